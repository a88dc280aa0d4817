//! The device path of norms. Computes in f32.

use candle_core::{D, DType, Tensor};

use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::NormKernel;

/// The inputs by role, in their own dtypes; weight and bias in f32.
struct DeviceRoles<'a> {
    x: &'a Tensor,
    residual: Option<Tensor>,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl NormKernel {
    fn device_roles<'a>(&self, inputs: &'a [Tensor]) -> candle_core::Result<DeviceRoles<'a>> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        self.check(&dims)?;
        let parameters = 1 + usize::from(self.residual);
        let residual = self.residual.then(|| inputs[1].to_dtype(inputs[0].dtype()));
        let bias = self.centred.then(|| inputs[parameters + 1].to_dtype(DType::F32));
        Ok(DeviceRoles {
            x: &inputs[0],
            residual: residual.transpose()?,
            weight: inputs[parameters].to_dtype(DType::F32)?,
            bias: bias.transpose()?,
        })
    }

    /// Returns `residual + dropout(x)` in f32.
    fn sums(&self, roles: &DeviceRoles<'_>) -> candle_core::Result<Tensor> {
        let mut sums = roles.x.to_dtype(DType::F32)?;
        if let Some(dropout) = self.dropout {
            sums = dropout.masked(&sums)?;
        }
        match &roles.residual {
            Some(residual) => sums + residual.to_dtype(DType::F32)?,
            None => Ok(sums),
        }
    }
}

impl DeviceKernel for NormKernel {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        let roles = self.device_roles(inputs)?;
        #[cfg(feature = "cuda")]
        if roles.x.device().is_cuda() {
            let sums = crate::cuda::Sums {
                x: roles.x,
                residual: roles.residual.as_ref(),
                mask: self.dropout,
            };
            let (y, statistics) =
                crate::cuda::norm(sums, &roles.weight, roles.bias.as_ref(), self.epsilon)?;
            return Ok((y, Saved::tensors([statistics])));
        }
        let mut sums = self.sums(&roles)?;
        let mut mean = sums.mean_keepdim(D::Minus1)?;
        if !self.centred {
            mean = mean.zeros_like()?;
        }
        sums = sums.broadcast_sub(&mean)?;
        let variance = (sums.sqr()?.mean_keepdim(D::Minus1)? + f64::from(self.epsilon))?;
        let inverse = variance.sqrt()?.recip()?;
        let mut y = sums.broadcast_mul(&inverse)?.broadcast_mul(&roles.weight)?;
        if let Some(bias) = &roles.bias {
            y = y.broadcast_add(bias)?;
        }
        Ok((y.to_dtype(roles.x.dtype())?, Saved::tensors([mean, inverse])))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let roles = self.device_roles(pass.inputs)?;
        let parameters = 1 + usize::from(self.residual);
        let wants_parameters = pass.wanted[parameters..].contains(&true);
        let mut gradients = vec![None; pass.inputs.len()];
        #[cfg(feature = "cuda")]
        if roles.x.device().is_cuda() {
            let sums = crate::cuda::Sums {
                x: roles.x,
                residual: roles.residual.as_ref(),
                mask: self.dropout,
            };
            let statistics = &pass.saved.tensors[0];
            if wants_parameters {
                let [dw, db] =
                    crate::cuda::norm_parameters_backward(sums, pass.gradient, statistics)?;
                gradients[parameters] = Some(dw);
                if self.centred {
                    gradients[parameters + 1] = Some(db);
                }
            }
            let wanted = [pass.wanted[0], self.residual && pass.wanted[1]];
            let [dx, dresidual] = crate::cuda::norm_backward(
                sums,
                &roles.weight,
                pass.gradient,
                statistics,
                self.centred,
                wanted,
            )?;
            gradients[0] = dx;
            if self.residual {
                gradients[1] = dresidual;
            }
            return Ok(gradients);
        }
        let [mean, inverse] = &pass.saved.tensors[..] else {
            candle_core::bail!("norm: no saved statistics");
        };
        let dy = pass.gradient.to_dtype(DType::F32)?;
        let normed = self.sums(&roles)?.broadcast_sub(mean)?.broadcast_mul(inverse)?;
        if wants_parameters {
            let rows = |x: &Tensor| x.reshape(((), x.dim(D::Minus1)?))?.sum(0);
            gradients[parameters] = Some(rows(&(&dy * &normed)?)?);
            if self.centred {
                gradients[parameters + 1] = Some(rows(&dy)?);
            }
        }
        let g = dy.broadcast_mul(&roles.weight)?;
        let mean_product = (&g * &normed)?.mean_keepdim(D::Minus1)?;
        let mut ds = (&g - normed.broadcast_mul(&mean_product)?)?;
        if self.centred {
            ds = ds.broadcast_sub(&g.mean_keepdim(D::Minus1)?)?;
        }
        let ds = ds.broadcast_mul(inverse)?;
        gradients[0] = Some(match self.dropout {
            Some(dropout) => dropout.masked(&ds)?,
            None => ds.clone(),
        });
        if self.residual {
            gradients[1] = Some(ds);
        }
        for gradient in gradients[..parameters].iter_mut() {
            *gradient = gradient.take().map(|g| g.to_dtype(roles.x.dtype())).transpose()?;
        }
        Ok(gradients)
    }
}
