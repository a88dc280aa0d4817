//! Bottleneck adapters (arXiv 1902.00751): what a frozen block learns with few parameters.
//!
//! `y = x + W_up f(W_down norm(x))`. The map up starts at zero, so that a fresh adapter changes
//! nothing.

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::{Activation, Chain};
use crate::layers::{LayerNorm, Linear};
use crate::params::{Init, ParameterBuilder};

/// The epsilon of the norm.
const EPSILON: f64 = 1e-5;
/// Standard deviation of a fresh map down.
const DEVIATION: f64 = 0.02;

/// One adapter.
#[derive(Debug, Clone)]
pub struct BottleneckAdapter {
    norm: LayerNorm,
    down: Linear,
    up: Linear,
    activation: Activation,
}

impl BottleneckAdapter {
    /// An adapter of states of `width` through `bottleneck` channels, below the builder's path:
    /// `norm`, `down`, `up`.
    pub fn new(
        (width, bottleneck): (usize, usize),
        activation: Activation,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let up = builder.pp("up");
        Ok(Self {
            norm: LayerNorm::new(width, EPSILON, &builder.pp("norm"))?,
            down: Linear::new(width, bottleneck, DEVIATION, &builder.pp("down"))?,
            up: Linear {
                weight: up.get("weight", &[width, bottleneck], Init::Zeros)?,
                bias: Some(up.get("bias", &[width], Init::Zeros)?),
            },
            activation,
        })
    }

    /// `[T, D]` → `[T, D]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut chain = Chain::new();
        let x = chain.input(x);
        let normed = chain.norm(x, self.norm.as_norm());
        let (down, up) = (self.down.with_bias()?, self.up.with_bias()?);
        let made = chain.feed_forward(normed, down, up, self.activation);
        chain.residual(x, made, None);
        Ok(chain.finish()?)
    }
}
