//! The device path of residual sums.

use candle_core::Tensor;

use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::super::dropout::Dropout;
use super::Residual;

impl Residual {
    /// The factors of the branch as a mask.
    fn mask(&self) -> Dropout {
        self.dropout.unwrap_or(Dropout::new(0.0, 0)).scaled_by(self.scale)
    }
}

impl DeviceKernel for Residual {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        if inputs[0].shape() != inputs[1].shape() {
            let (x, y) = (inputs[0].dims(), inputs[1].dims());
            candle_core::bail!("residual: shapes {x:?} and {y:?} differ");
        }
        let branch = inputs[1].to_dtype(inputs[0].dtype())?;
        Ok((self.mask().masked_sum(&branch, Some(&inputs[0]))?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let is_identity = self.dropout.is_none() && self.scale == 1.0;
        let branch = match pass.wanted[1] {
            true if is_identity => Some(pass.gradient.clone()),
            true => Some(self.mask().masked_sum(pass.gradient, None)?),
            false => None,
        };
        Ok(vec![Some(pass.gradient.clone()), branch])
    }
}
