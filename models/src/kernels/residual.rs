//! The residual sum at the end of a pre-norm block.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::device::{BackwardPass, DeviceKernel, Saved};
use super::dropout::{Dropout, add_masked_block};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::{ELEMENTS, add};

/// Computes `x + dropout(y)` for two tensors of the same shape; `x + y` with `dropout` `None`.
///
/// # Errors
/// If the shapes differ.
pub fn residual(x: &Tensor, y: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
    apply(Residual { scale: 1.0, dropout }, &[x, y])
}

/// `x + scale dropout(y)`.
pub(super) struct Residual {
    pub(super) scale: f32,
    pub(super) dropout: Option<Dropout>,
}

impl Residual {
    /// Adds `scale dropout(from)` to `to`.
    fn add_branch(&self, from: &[f32], to: &mut [f32]) {
        let blocks = to.par_chunks_mut(ELEMENTS).zip(from.par_chunks(ELEMENTS));
        let dropout = self.dropout.map(|dropout| dropout.scaled_by(self.scale));
        blocks.enumerate().for_each(|(block, (to, from))| match dropout {
            None if self.scale == 1.0 => add(from, to),
            None => add_scaled(self.scale, from, to),
            Some(dropout) => add_masked_block(dropout, block * ELEMENTS, from, to),
        });
    }
}

/// Checks that the shapes are equal.
fn check(x: &[usize], y: &[usize]) -> Result<()> {
    if x != y {
        candle_core::bail!("residual: shapes {x:?} and {y:?} differ");
    }
    Ok(())
}

impl Kernel for Residual {
    fn name(&self) -> &'static str {
        "residual"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        check(inputs[0].dims, inputs[1].dims)?;
        let mut output = inputs[0].data.to_vec();
        self.add_branch(inputs[1].data, &mut output);
        Ok((output, Shape::from(inputs[0].dims), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let gradient = pass.gradient;
        if let Some(dx) = &mut input_gradients[0] {
            Self { scale: 1.0, dropout: None }.add_branch(gradient, dx.as_sum());
        }
        if let Some(dy) = &mut input_gradients[1] {
            self.add_branch(gradient, dy.as_sum());
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

impl Residual {
    /// The factors of the branch as a mask.
    fn mask(&self) -> Dropout {
        self.dropout.unwrap_or(Dropout::new(0.0, 0)).scaled_by(self.scale)
    }
}

impl DeviceKernel for Residual {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        check(inputs[0].dims(), inputs[1].dims())?;
        let branch = inputs[1].to_dtype(inputs[0].dtype())?;
        Ok((self.mask().masked_sum(&branch, Some(&inputs[0]))?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let is_identity = self.dropout.is_none() && self.scale == 1.0;
        let branch = match pass.wanted[1] {
            true if is_identity => Some(pass.gradient.clone()),
            true => Some(self.mask().masked_sum(pass.gradient, None)?),
            false => None,
        };
        Ok(vec![Some(pass.gradient.clone()), branch])
    }
}

vectorised! {
    fn add_scaled(scale: f32, from: &[f32], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.mul_add(scale, *to);
        }
    }
}
