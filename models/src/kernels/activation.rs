//! Activation functions, alone or with the bias added in the same pass.

mod device;

use candle_core::{Shape, Tensor};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::device::DeviceKernel;
use super::math::{erf, exp, tanh};
use super::operation::{BufferState, CompositePrecision, Gradient, Input, Kernel, apply};
use super::rows::{ROWS, add, add_column_sums, new_values, zeros};

/// An activation function, by its published name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Activation {
    /// `x Φ(x)` with the exact cumulative distribution function of the normal distribution.
    #[serde(rename = "gelu")]
    Gelu,
    /// The tanh approximation of GELU.
    #[serde(rename = "gelu_new", alias = "gelu_pytorch_tanh")]
    GeluTanh,
    /// `x σ(1.702 x)`, the approximation of GELU that OpenAI's CLIP uses.
    #[serde(rename = "quick_gelu")]
    QuickGelu,
    /// `max(x, 0)`.
    #[serde(rename = "relu")]
    Relu,
    /// `x σ(x)`, also called swish.
    #[serde(rename = "silu", alias = "swish")]
    Silu,
    /// The hyperbolic tangent.
    #[serde(rename = "tanh")]
    Tanh,
    /// The logistic function `σ(x)`.
    #[serde(rename = "sigmoid")]
    Sigmoid,
}

/// The tanh approximation is `x/2 (1 + tanh(TANH_SCALE (x + TANH_CUBIC x³)))`; `TANH_SCALE` is
/// `sqrt(2 / π)`.
const TANH_SCALE: f32 = 0.797_884_6;
const TANH_CUBIC: f32 = 0.044_715;
/// The factor in [`Activation::QuickGelu`].
const QUICK_SCALE: f32 = 1.702;

impl Activation {
    /// Returns the value and the derivative at `x`.
    #[inline(always)]
    pub(crate) fn at(self, x: f32) -> (f32, f32) {
        match self {
            Self::Gelu => {
                let cdf = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
                let pdf = 0.398_942_3 * exp(-0.5 * x * x);
                (x * cdf, x.mul_add(pdf, cdf))
            }
            Self::GeluTanh => {
                let t = tanh(TANH_SCALE * (TANH_CUBIC * x * x).mul_add(x, x));
                let derivative = TANH_SCALE * (3.0 * TANH_CUBIC * x).mul_add(x, 1.0);
                let half = 0.5 * (1.0 + t);
                (x * half, (0.5 * x * (1.0 - t * t)).mul_add(derivative, half))
            }
            Self::QuickGelu => {
                let scaled = QUICK_SCALE * x;
                let sigmoid = 1.0 / (1.0 + exp(-scaled.max(-80.0)));
                (x * sigmoid, sigmoid * scaled.mul_add(1.0 - sigmoid, 1.0))
            }
            Self::Relu => (if x < 0.0 { 0.0 } else { x }, if x > 0.0 { 1.0 } else { 0.0 }),
            Self::Silu => {
                let sigmoid = 1.0 / (1.0 + exp(-x.max(-80.0)));
                (x * sigmoid, sigmoid * x.mul_add(1.0 - sigmoid, 1.0))
            }
            Self::Tanh => {
                let t = tanh(x);
                (t, 1.0 - t * t)
            }
            Self::Sigmoid => {
                let sigmoid = 1.0 / (1.0 + exp(-x.max(-80.0)));
                (sigmoid, sigmoid * (1.0 - sigmoid))
            }
        }
    }

    /// Computes the same function with candle's differentiable operations.
    pub(crate) fn composite(self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::QuickGelu => x * candle_nn::ops::sigmoid(&(x * 1.702)?)?,
            // candle's ReLU has derivative 1 at 0. PyTorch and this kernel use 0.
            Self::Relu => x.le(0.0)?.where_cond(&x.zeros_like()?, x),
            Self::Silu => x.silu(),
            Self::Tanh => x.tanh(),
            Self::Sigmoid => candle_nn::ops::sigmoid(x),
        }
    }
}

/// Applies `f` to each element: `x` of any shape → the same shape.
pub fn activation(x: &Tensor, f: Activation) -> candle_core::Result<Tensor> {
    apply(ActivationKernel(f), &[x])
}

/// Computes `f(x + bias)`: `x` `[.., D]`, `bias` `[D]` → `[.., D]`.
pub fn bias_activation(x: &Tensor, bias: &Tensor, f: Activation) -> candle_core::Result<Tensor> {
    apply(ActivationKernel(f), &[x, bias])
}

pub(super) struct ActivationKernel(pub(super) Activation);

impl Kernel for ActivationKernel {
    type Saved = ();

    fn name(&self) -> &'static str {
        "activation"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, Self::Saved)> {
        let (x, bias, width) = input_parts(inputs)?;
        let output = new_values(x.len(), ROWS * width, |block, y| {
            forward_block(self.0, &x[block * ROWS * width..][..y.len()], bias, width, y);
        });
        Ok((output, Shape::from(inputs[0].dims), ()))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        _: &Self::Saved,
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        let (x, bias, width) = input_parts(inputs)?;
        let mut dx = zeros(x.len());
        let blocks = dx.par_chunks_mut(ROWS * width).zip(x.par_chunks(ROWS * width));
        blocks.zip(gradient.par_chunks(ROWS * width)).for_each(|((dx, x), dy)| {
            input_gradient(self.0, x, bias, width, dy, dx);
        });
        if let Some(Some(db)) = input_gradients.get_mut(1) {
            add_column_sums(&dx, width, width, db.as_sum());
        }
        match &mut input_gradients[0] {
            Some(buffer) if buffer.state == BufferState::Zeros => buffer.data = dx,
            Some(buffer) => add(&dx, buffer.as_sum()),
            None => {}
        }
        Ok(())
    }

    fn precision(&self) -> CompositePrecision {
        CompositePrecision::Full
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        check(&dims)?;
        match inputs {
            [x, bias] => self.0.composite(&x.broadcast_add(bias)?),
            _ => self.0.composite(&inputs[0]),
        }
    }
}

/// The values of the input, the values of the bias, and the width.
type Parts<'a> = (&'a [f32], Option<&'a [f32]>, usize);

/// Checks the inputs and returns them by role.
fn input_parts<'a>(inputs: &[Input<'a>]) -> candle_core::Result<Parts<'a>> {
    let dims: Vec<_> = inputs.iter().map(|input| input.dims).collect();
    let width = check(&dims)?;
    Ok((inputs[0].data, inputs.get(1).map(|bias| bias.data), width))
}

/// Checks the shapes of the input and the bias, and returns the width.
fn check(dims: &[&[usize]]) -> candle_core::Result<usize> {
    let width = dims[0].last().copied().unwrap_or(1);
    if let Some(bias) = dims.get(1).filter(|bias| **bias != [width]) {
        candle_core::bail!("activation: bias {bias:?} does not fit input {:?}", dims[0]);
    }
    Ok(width.max(1))
}

vectorised! {
    /// Computes `y = f(x + bias)`.
    fn forward_block(f: Activation, x: &[f32], bias: Option<&[f32]>, width: usize, y: &mut [f32]) {
        match f {
            Activation::Gelu => {
                for_each_with_bias(x, bias, width, y, |x, y| *y = Activation::Gelu.at(x).0);
            }
            f => for_each_with_bias(x, bias, width, y, |x, y| *y = f.at(x).0),
        }
    }

    /// Computes `dx = dy f'(x + bias)`.
    fn input_gradient(
        f: Activation,
        x: &[f32],
        bias: Option<&[f32]>,
        width: usize,
        dy: &[f32],
        dx: &mut [f32],
    ) {
        dx.copy_from_slice(dy);
        match f {
            Activation::Gelu => {
                for_each_with_bias(x, bias, width, dx, |x, d| *d *= Activation::Gelu.at(x).1);
            }
            f => for_each_with_bias(x, bias, width, dx, |x, d| *d *= f.at(x).1),
        }
    }

    /// Computes `g = f(h)` and `dh = dg f'(h)` in one pass. `dh` replaces `dg`.
    pub(crate) fn values_and_derivatives(f: Activation, h: &[f32], g: &mut [f32], dg: &mut [f32]) {
        match f {
            Activation::Gelu => value_and_gradient_pairs(Activation::Gelu, h, g, dg),
            f => value_and_gradient_pairs(f, h, g, dg),
        }
    }

    /// Computes `g = f(h)`.
    pub(crate) fn activation_values(f: Activation, h: &[f32], g: &mut [f32]) {
        let width = h.len().max(1);
        match f {
            Activation::Gelu => {
                for_each_with_bias(h, None, width, g, |h, g| *g = Activation::Gelu.at(h).0);
            }
            f => for_each_with_bias(h, None, width, g, |h, g| *g = f.at(h).0),
        }
    }
}

/// Computes `g = f(h)` and multiplies `dg` by `f'(h)`.
#[inline(always)]
fn value_and_gradient_pairs(f: Activation, h: &[f32], g: &mut [f32], dg: &mut [f32]) {
    for ((h, g), dg) in h.iter().zip(g).zip(dg) {
        let (value, derivative) = f.at(*h);
        *g = value;
        *dg *= derivative;
    }
}

/// Calls `f(x + bias, y)` for each element.
#[inline(always)]
fn for_each_with_bias(
    x: &[f32],
    bias: Option<&[f32]>,
    width: usize,
    y: &mut [f32],
    f: impl Fn(f32, &mut f32),
) {
    match bias {
        None => x.iter().zip(y).for_each(|(x, y)| f(*x, y)),
        Some(bias) => {
            for (x, y) in x.chunks(width).zip(y.chunks_mut(width)) {
                x.iter().zip(bias).zip(y).for_each(|((x, b), y)| f(x + b, y));
            }
        }
    }
}
