//! Activation functions, alone or with the bias added in the same pass.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::device::primitives::{activation_backward, add_bias_and_activate};
use super::device::{BackwardPass, DeviceKernel, Saved};
use super::math::Real;
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::{ROWS, add_column_sums, new_values, zeros};
use crate::compute::full_precision;

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

impl Activation {
    /// Returns the value and the derivative at `x`.
    #[inline(always)]
    pub(crate) fn at<T: Real>(self, x: T) -> (T, T) {
        let [one, half] = [T::of(1.0), T::of(0.5)];
        match self {
            Self::Gelu => {
                let cdf = half * (one + (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
                let pdf = T::of(0.398_942_280_401_432_7) * (T::of(-0.5) * x * x).exp();
                (x * cdf, x.mul_add(pdf, cdf))
            }
            Self::GeluTanh => {
                // `x/2 (1 + tanh(scale (x + cubic x³)))`; `scale` is `sqrt(2 / π)`.
                let [scale, cubic] = [T::of(0.797_884_560_802_865_4), T::of(0.044_715)];
                let t = (scale * (cubic * x * x).mul_add(x, x)).tanh();
                let derivative = scale * (T::of(3.0) * cubic * x).mul_add(x, one);
                let value = half * (one + t);
                (x * value, (half * x * (one - t * t)).mul_add(derivative, value))
            }
            Self::QuickGelu => {
                let scaled = T::of(1.702) * x;
                let s = sigmoid(scaled);
                (x * s, s * scaled.mul_add(one - s, one))
            }
            Self::Relu => {
                let zero = T::of(0.0);
                // The derivative at 0 is 0, as in PyTorch.
                (if x < zero { zero } else { x }, if x > zero { one } else { zero })
            }
            Self::Silu => {
                let s = sigmoid(x);
                (x * s, s * x.mul_add(one - s, one))
            }
            Self::Tanh => {
                let t = x.tanh();
                (t, one - t * t)
            }
            Self::Sigmoid => {
                let s = sigmoid(x);
                (s, s * (one - s))
            }
        }
    }
}

/// The logistic function.
#[inline(always)]
pub(super) fn sigmoid<T: Real>(x: T) -> T {
    // Below -80, the exponential may overflow. NaN counts as -80.
    let x = if x > T::of(-80.0) { x } else { T::of(-80.0) };
    T::of(1.0) / (T::of(1.0) + (T::of(0.0) - x).exp())
}

/// Evaluates an expression of the activation `$f`, which is a constant for these activations: the
/// compiler then vectorises the loops.
macro_rules! specialised {
    ($f:ident, [$($constant:ident),+], $expression:expr) => {
        match $f {
            $(Activation::$constant => {
                let $f = Activation::$constant;
                $expression
            })+
            $f => $expression,
        }
    };
}
pub(super) use specialised;

/// Applies `f` to each element: `x` of any shape → the same shape.
pub fn activation(x: &Tensor, f: Activation) -> Result<Tensor> {
    apply(ActivationKernel(f), &[x])
}

/// Computes `f(x + bias)`: `x` `[.., D]`, `bias` `[D]` → `[.., D]`.
pub fn bias_activation(x: &Tensor, bias: &Tensor, f: Activation) -> Result<Tensor> {
    apply(ActivationKernel(f), &[x, bias])
}

pub(super) struct ActivationKernel(pub(super) Activation);

impl Kernel for ActivationKernel {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let (x, bias, width) = input_parts(inputs)?;
        let output = new_values(x.len(), ROWS * width, |block, y| {
            forward_block(self.0, &x[block * ROWS * width..][..y.len()], bias, width, y);
        });
        Ok((output, Shape::from(inputs[0].dims), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let (x, bias, width) = input_parts(inputs)?;
        let mut dx = zeros(x.len());
        let blocks = dx.par_chunks_mut(ROWS * width).zip(x.par_chunks(ROWS * width));
        blocks.zip(gradient.par_chunks(ROWS * width)).for_each(|((dx, x), dy)| {
            input_gradient(self.0, x, bias, width, dy, dx);
        });
        if let Some(Some(db)) = input_gradients.get_mut(1) {
            add_column_sums(&dx, width, width, db.as_sum());
        }
        if let Some(buffer) = &mut input_gradients[0] {
            buffer.add(dx);
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

/// The values of the input, the values of the bias, and the width.
type Parts<'a> = (&'a [f32], Option<&'a [f32]>, usize);

/// Checks the inputs and returns them by role.
fn input_parts<'a>(inputs: &[Input<'a>]) -> Result<Parts<'a>> {
    let width = check(&dims_of(inputs))?;
    Ok((inputs[0].data, inputs.get(1).map(|bias| bias.data), width))
}

/// Checks the shapes of the input and the bias, and returns the width.
fn check(dims: &[&[usize]]) -> Result<usize> {
    let width = dims[0].last().copied().unwrap_or(1);
    if let Some(bias) = dims.get(1).filter(|bias| **bias != [width]) {
        candle_core::bail!("activation: bias {bias:?} does not fit input {:?}", dims[0]);
    }
    Ok(width.max(1))
}

impl DeviceKernel for ActivationKernel {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        check(&tensor_dims(inputs))?;
        let (x, bias) = match inputs {
            // The bias is added in place.
            [x, bias] => (x.copy()?, Some(full_precision(bias)?)),
            _ => (inputs[0].clone(), None),
        };
        let [hidden, y] = add_bias_and_activate(x, bias.as_ref(), self.0)?;
        Ok((y, Saved::tensors([hidden])))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let (hidden, has_bias) = (&pass.saved.tensors[0], pass.inputs.len() == 2);
        let sums = has_bias && pass.wanted[1];
        let (dx, sums) = activation_backward(hidden, pass.gradient, self.0, sums)?;
        Ok(if has_bias { vec![Some(dx), sums] } else { vec![Some(dx)] })
    }
}

vectorised! {
    /// Computes `y = f(x + bias)`.
    fn forward_block(f: Activation, x: &[f32], bias: Option<&[f32]>, width: usize, y: &mut [f32]) {
        specialised!(f, [Gelu], for_each_with_bias(x, bias, width, y, |x, y| *y = f.at(x).0));
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
        specialised!(f, [Gelu], for_each_with_bias(x, bias, width, dx, |x, d| *d *= f.at(x).1));
    }

    /// Computes `g = f(h)` and `dh = dg f'(h)` in one pass. `dh` replaces `dg`.
    pub(crate) fn values_and_derivatives(f: Activation, h: &[f32], g: &mut [f32], dg: &mut [f32]) {
        specialised!(f, [Gelu], value_and_gradient_pairs(f, h, g, dg));
    }

    /// Computes `g = f(h)`.
    pub(crate) fn activation_values(f: Activation, h: &[f32], g: &mut [f32]) {
        let width = h.len().max(1);
        specialised!(f, [Gelu], for_each_with_bias(h, None, width, g, |h, g| *g = f.at(h).0));
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
