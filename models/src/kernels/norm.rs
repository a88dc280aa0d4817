//! LayerNorm and RMSNorm, alone or fused with dropout and the residual sum.

use candle_core::{D, Result, Shape, Tensor};
use rayon::prelude::*;

use super::device::{BackwardPass, DeviceKernel, Saved};
use super::dropout::{Dropout, add_masked_block};
use super::math::{sum, sum2};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::{ROWS, add, zeros};
use crate::compute::full_precision;

/// The parameters of a norm over the last dimension.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// The scale `[D]`.
    pub weight: &'a Tensor,
    /// The shift `[D]` of a LayerNorm. `None` selects RMSNorm, which does not subtract the mean
    /// (T5, LLaMA).
    pub bias: Option<&'a Tensor>,
    /// Added to the variance (LayerNorm) or to the mean square (RMSNorm).
    pub epsilon: f32,
}

/// Normalises over the last dimension: `x` `[.., D]` → `[.., D]`.
pub fn norm(x: &Tensor, norm: Norm<'_>) -> Result<Tensor> {
    run(&[x], norm, None)
}

/// Computes `norm(residual + dropout(x))`, the end of a post-norm block: both `[.., D]` →
/// `[.., D]`. With `dropout` `None`, computes `norm(residual + x)`.
pub fn residual_norm(
    x: &Tensor,
    residual: &Tensor,
    norm: Norm<'_>,
    dropout: Option<Dropout>,
) -> Result<Tensor> {
    run(&[x, residual], norm, dropout)
}

fn run(x: &[&Tensor], norm: Norm<'_>, dropout: Option<Dropout>) -> Result<Tensor> {
    let mut inputs = x.to_vec();
    inputs.push(norm.weight);
    inputs.extend(norm.bias);
    apply(NormKernel::new(&norm, x.len() == 2, dropout), &inputs)
}

pub(super) struct NormKernel {
    /// Whether input 1 is a residual.
    residual: bool,
    /// Whether the mean is subtracted and a bias added (LayerNorm).
    centred: bool,
    epsilon: f32,
    dropout: Option<Dropout>,
}

/// The inputs by role.
struct Roles<'a> {
    x: &'a [f32],
    residual: Option<&'a [f32]>,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    width: usize,
}

impl NormKernel {
    /// Creates the kernel. Its inputs are `x`, the residual if any, the weight, and the bias if
    /// any.
    pub(super) fn new(norm: &Norm<'_>, residual: bool, dropout: Option<Dropout>) -> Self {
        Self { residual, centred: norm.bias.is_some(), epsilon: norm.epsilon, dropout }
    }

    /// Checks the shapes and returns the width.
    fn check(&self, dims: &[&[usize]]) -> Result<usize> {
        let width = dims[0].last().copied().unwrap_or(0);
        let num_residuals = usize::from(self.residual);
        let fits =
            dims[num_residuals + 1..].iter().all(|parameter| *parameter == [width]) && width > 0;
        if !fits || dims[num_residuals] != dims[0] {
            candle_core::bail!("norm: shapes {dims:?} do not match");
        }
        Ok(width)
    }

    /// Returns the inputs by role.
    fn roles<'a>(&self, inputs: &[Input<'a>]) -> Result<Roles<'a>> {
        let width = self.check(&dims_of(inputs))?;
        let num_residuals = usize::from(self.residual);
        Ok(Roles {
            x: inputs[0].data,
            residual: self.residual.then(|| inputs[1].data),
            weight: inputs[num_residuals + 1].data,
            bias: self.centred.then(|| inputs[num_residuals + 2].data),
            width,
        })
    }
}

impl Kernel for NormKernel {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let roles = self.roles(inputs)?;
        let width = roles.width;
        let mut output = zeros(roles.x.len());
        // The mean and the reciprocal standard deviation of each row; for RMSNorm, 0 and the
        // reciprocal root mean square.
        let mut statistics = vec![[0.0; 2]; roles.x.len() / width];
        output
            .par_chunks_mut(ROWS * width)
            .zip(statistics.par_chunks_mut(ROWS))
            .enumerate()
            .for_each(|(block, (y, statistics))| {
                let start = block * ROWS * width;
                residual_sums(&roles, self.dropout, start, y);
                normalise(&roles, self.epsilon, y, statistics);
            });
        Ok((output, Shape::from(inputs[0].dims), Box::new(statistics)))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let statistics = pass.saved::<Vec<[f32; 2]>>()?;
        let roles = self.roles(inputs)?;
        let width = roles.width;
        let num_residuals = usize::from(self.residual);
        let needs_parameter_gradients =
            input_gradients[num_residuals + 1..].iter().any(Option::is_some);
        let mut ds = zeros(roles.x.len());
        let block_sums: Vec<Option<[Vec<f32>; 2]>> = ds
            .par_chunks_mut(ROWS * width)
            .zip(gradient.par_chunks(ROWS * width))
            .zip(statistics.par_chunks(ROWS))
            .enumerate()
            .map(|(block, ((ds, dy), statistics))| {
                let mut sums =
                    needs_parameter_gradients.then(|| [vec![0.0; width], vec![0.0; width]]);
                residual_sums(&roles, self.dropout, block * ROWS * width, ds);
                row_gradients(&roles, statistics, dy, ds, &mut sums);
                sums
            })
            .collect();
        for buffer in input_gradients[num_residuals + 1..].iter_mut().flatten() {
            buffer.as_sum();
        }
        for [dw, db] in block_sums.iter().flatten() {
            if let Some(buffer) = &mut input_gradients[num_residuals + 1] {
                add(dw, buffer.as_sum());
            }
            if let Some(Some(buffer)) = input_gradients.get_mut(num_residuals + 2) {
                add(db, buffer.as_sum());
            }
        }
        let (dx, other_gradients) = input_gradients.split_at_mut(1);
        if let Some(dx) = &mut dx[0] {
            let dx = dx.as_sum();
            let blocks = dx.par_chunks_mut(ROWS * width).zip(ds.par_chunks(ROWS * width));
            blocks.enumerate().for_each(|(block, (dx, ds))| match self.dropout {
                None => add(ds, dx),
                Some(dropout) => add_masked_block(dropout, block * ROWS * width, ds, dx),
            });
        }
        if let (true, Some(dr)) = (self.residual, &mut other_gradients[0]) {
            // The gradient of the sum equals the residual's gradient.
            dr.add(ds);
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}

/// The inputs by role, in their own dtypes; weight and bias in f32.
struct DeviceRoles<'a> {
    x: &'a Tensor,
    residual: Option<Tensor>,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl NormKernel {
    fn device_roles<'a>(&self, inputs: &'a [Tensor]) -> Result<DeviceRoles<'a>> {
        self.check(&tensor_dims(inputs))?;
        let parameters = 1 + usize::from(self.residual);
        let residual = self.residual.then(|| inputs[1].to_dtype(inputs[0].dtype()));
        let bias = self.centred.then(|| full_precision(&inputs[parameters + 1]));
        Ok(DeviceRoles {
            x: &inputs[0],
            residual: residual.transpose()?,
            weight: full_precision(&inputs[parameters])?,
            bias: bias.transpose()?,
        })
    }

    /// Returns `residual + dropout(x)` in f32.
    fn sums(&self, roles: &DeviceRoles<'_>) -> Result<Tensor> {
        let mut sums = full_precision(roles.x)?;
        if let Some(dropout) = self.dropout {
            sums = dropout.masked(&sums)?;
        }
        match &roles.residual {
            Some(residual) => sums + full_precision(residual)?,
            None => Ok(sums),
        }
    }

    #[cfg(feature = "cuda")]
    fn sums_on_gpu<'a>(&self, roles: &'a DeviceRoles<'_>) -> crate::cuda::Sums<'a> {
        let residual = roles.residual.as_ref();
        crate::cuda::Sums { x: roles.x, residual, mask: self.dropout }
    }
}

/// Computes in f32.
impl DeviceKernel for NormKernel {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        let roles = self.device_roles(inputs)?;
        #[cfg(feature = "cuda")]
        if roles.x.device().is_cuda() {
            let sums = self.sums_on_gpu(&roles);
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

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let roles = self.device_roles(pass.inputs)?;
        let parameters = 1 + usize::from(self.residual);
        let wants_parameters = pass.wanted[parameters..].contains(&true);
        let mut gradients = vec![None; pass.inputs.len()];
        #[cfg(feature = "cuda")]
        if roles.x.device().is_cuda() {
            let sums = self.sums_on_gpu(&roles);
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
        let dy = full_precision(pass.gradient)?;
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
        Ok(gradients)
    }
}

vectorised! {
    /// Computes `out = residual + dropout(x)` for the block that starts at element `start`. A
    /// missing residual counts as 0.
    fn residual_sums(roles: &Roles<'_>, dropout: Option<Dropout>, start: usize, out: &mut [f32]) {
        let x = &roles.x[start..start + out.len()];
        match dropout {
            None => out.copy_from_slice(x),
            Some(dropout) => {
                for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
                    *out = x * dropout.factor(start + i);
                }
            }
        }
        if let Some(residual) = roles.residual {
            for (out, r) in out.iter_mut().zip(&residual[start..start + x.len()]) {
                *out += r;
            }
        }
    }

    /// Normalises each row in place and stores its statistics.
    fn normalise(roles: &Roles<'_>, epsilon: f32, y: &mut [f32], statistics: &mut [[f32; 2]]) {
        let scale = 1.0 / roles.width as f32;
        for (row, statistics) in y.chunks_mut(roles.width).zip(statistics) {
            let mean = if roles.bias.is_some() { sum(row, |v| v) * scale } else { 0.0 };
            let variance = sum(row, |v| (v - mean) * (v - mean)) * scale;
            let reciprocal = 1.0 / (variance + epsilon).sqrt();
            *statistics = [mean, reciprocal];
            match roles.bias {
                Some(bias) => {
                    for ((v, w), b) in row.iter_mut().zip(roles.weight).zip(bias) {
                        *v = ((*v - mean) * reciprocal).mul_add(*w, *b);
                    }
                }
                None => {
                    for (v, w) in row.iter_mut().zip(roles.weight) {
                        *v = *v * reciprocal * w;
                    }
                }
            }
        }
    }

    /// Replaces the results of `residual_sums` in `ds` by their gradients. Adds the gradients of
    /// weight and bias to `sums`; `None` if both are frozen.
    fn row_gradients(
        roles: &Roles<'_>,
        statistics: &[[f32; 2]],
        dy: &[f32],
        ds: &mut [f32],
        sums: &mut Option<[Vec<f32>; 2]>,
    ) {
        let width = roles.width;
        let scale = 1.0 / width as f32;
        let mut g = vec![0.0; width];
        for ((ds, dy), [mean, reciprocal]) in
            ds.chunks_mut(width).zip(dy.chunks(width)).zip(statistics)
        {
            for s in ds.iter_mut() {
                *s = (*s - mean) * reciprocal;
            }
            for ((g, dy), weight) in g.iter_mut().zip(dy).zip(roles.weight) {
                *g = dy * weight;
            }
            if let Some([dw, db]) = sums {
                for (((dw, db), dy), x) in dw.iter_mut().zip(db).zip(dy).zip(&*ds) {
                    *dw = dy.mul_add(*x, *dw);
                    *db += dy;
                }
            }
            let mean_g = if roles.bias.is_some() { sum(&g, |v| v) * scale } else { 0.0 };
            let mean_gx = sum2(&g, ds, |g, x| g * x) * scale;
            for (x, g) in ds.iter_mut().zip(&g) {
                *x = reciprocal * (g - mean_g - *x * mean_gx);
            }
        }
    }
}
