//! Bottleneck adapters (arXiv 1902.00751): small trainable layers for frozen blocks.
//!
//! `f(x) = W_up a(W_down norm(x))`, with a LayerNorm `norm`, an activation `a`, and biases (not
//! shown). The up-projection starts at zero, so a new adapter does not change the output.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{check_sizes, require};
use crate::error::{ModelError, Result};
use crate::kernels::{Activation, Chain, Mode};
use crate::layers::{LayerNorm, Linear};
use crate::params::{Init, ParameterBuilder};

/// The epsilon of the norm.
const EPSILON: f64 = 1e-5;
/// Standard deviation of the random initial weights of the down-projection.
const STD: f64 = 0.02;

/// The settings of adapters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterConfig {
    /// Width of the bottleneck: channels between the down-projection and the up-projection.
    pub bottleneck: usize,
    /// Whether an adapter follows its block or runs in parallel.
    pub placement: Placement,
    /// The activation between the two projections.
    pub activation: Activation,
}

/// The position of an adapter relative to its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// After its block: `block(x) + f(block(x))`.
    Serial,
    /// In parallel with its block: `block(x) + f(x)`.
    Parallel,
}

/// The adapters of a stack of blocks: one per block, or none.
#[derive(Debug, Clone)]
pub struct Adapters {
    adapters: Vec<BottleneckAdapter>,
    placement: Placement,
}

/// One adapter.
#[derive(Debug, Clone)]
struct BottleneckAdapter {
    norm: LayerNorm,
    down: Linear,
    up: Linear,
    activation: Activation,
}

impl Default for AdapterConfig {
    /// AVFormer's adapters: 64 channels, after each block.
    fn default() -> Self {
        Self { bottleneck: 64, placement: Placement::Serial, activation: Activation::Relu }
    }
}

impl AdapterConfig {
    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], which names the field.
    pub fn validate(&self) -> Result<()> {
        check_sizes(&[("bottleneck", self.bottleneck)])
    }
}

impl Adapters {
    /// No adapters: the blocks stay unchanged.
    pub const NONE: Self = Self { adapters: Vec::new(), placement: Placement::Serial };

    /// Adapters for `blocks` blocks whose states have `width` channels. The adapter of block `N`
    /// has the parameters `N.norm`, `N.down` and `N.up` below the builder's path.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(
        config: &AdapterConfig,
        blocks: usize,
        width: usize,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        config.validate()?;
        require(blocks > 0, "adapters", || "the encoder has no block")?;
        let adapters = (0..blocks)
            .map(|i| BottleneckAdapter::new(config, width, &builder.pp(i)))
            .collect::<Result<_>>()?;
        Ok(Self { adapters, placement: config.placement })
    }

    /// Returns an error unless there is one adapter per block, or none.
    pub(crate) fn check(&self, blocks: usize) -> Result<()> {
        match self.adapters.len() {
            0 => Ok(()),
            found if found == blocks => Ok(()),
            found => Err(ModelError::BadInput(format!("{found} adapters for {blocks} blocks"))),
        }
    }

    /// Applies the adapter of block `i`: the block's input and output `[T, D]` → the adapted output
    /// `[T, D]`. Without adapters, returns `output`.
    pub(crate) fn apply(
        &self,
        i: usize,
        input: &Tensor,
        output: Tensor,
        mode: &Mode,
    ) -> Result<Tensor> {
        match (self.adapters.get(i), self.placement) {
            (None, _) => Ok(output),
            (Some(adapter), Placement::Serial) => adapter.forward(&output, None, mode),
            (Some(adapter), Placement::Parallel) => adapter.forward(input, Some(&output), mode),
        }
    }
}

impl BottleneckAdapter {
    fn new(config: &AdapterConfig, width: usize, builder: &ParameterBuilder) -> Result<Self> {
        let bottleneck = config.bottleneck;
        Ok(Self {
            norm: LayerNorm::new(width, EPSILON, &builder.pp("norm"))?,
            down: Linear::new(width, bottleneck, STD, &builder.pp("down"))?,
            up: Linear::initialised(bottleneck, width, Init::Zeros, &builder.pp("up"))?,
            activation: config.activation,
        })
    }

    /// Computes the adapter's output `f(x)` `[T, D]` and adds it to `other`, or to `x` if `other`
    /// is `None`.
    fn forward(&self, x: &Tensor, other: Option<&Tensor>, mode: &Mode) -> Result<Tensor> {
        let mut chain = Chain::new();
        let x = chain.input(x);
        let sum = other.map_or(x, |other| chain.input(other));
        let normed = chain.norm(x, self.norm.as_norm());
        let (down, up) = (self.down.parameters(mode), self.up.parameters(mode));
        let delta = chain.feed_forward(normed, down, up, self.activation);
        chain.residual(sum, delta, None);
        Ok(chain.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Compute;
    use crate::finite_difference::check_gradients;

    /// Checks gradients with respect to all inputs, for both placements, with a non-zero
    /// up-projection.
    #[test]
    fn gradients_equal_central_differences() -> Result<()> {
        let sine_values = |count: u32, step: f64| -> Vec<f64> {
            (0..count).map(|i| (f64::from(i) * step).sin()).collect()
        };
        let config = |placement| AdapterConfig { bottleneck: 2, placement, ..Default::default() };
        for placement in [Placement::Serial, Placement::Parallel] {
            let inputs = [
                sine_values(12, 0.7),
                sine_values(12, 1.3),
                sine_values(8, 0.9),
                sine_values(8, 2.1),
            ];
            let [x, y, down, up] = inputs;
            let inputs: [(Vec<f64>, &[usize]); 4] =
                [(x, &[3, 4]), (y, &[3, 4]), (down, &[2, 4]), (up, &[4, 2])];
            check_gradients(&inputs, |t| {
                let builder = ParameterBuilder::new(
                    1,
                    Vec::new(),
                    &Compute { device: t[0].device().clone(), dtype: t[0].dtype() },
                );
                let mut adapters = Adapters::new(&config(placement), 1, 4, &builder)?;
                let adapter = &mut adapters.adapters[0];
                adapter.down = adapter.down.with_weight(t[2].clone());
                adapter.up = adapter.up.with_weight(t[3].clone());
                adapters.apply(0, &t[0], t[1].clone(), &Mode::evaluate())
            })?;
        }
        Ok(())
    }

    #[test]
    fn new_adapters_keep_the_output_and_must_match_the_number_of_blocks() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(1);
        let adapters = Adapters::new(&AdapterConfig::default(), 2, 4, &builder)?;
        let x = Tensor::arange(0f32, 8f32, &candle_core::Device::Cpu)?.reshape((2, 4))?;
        let adapted = adapters.apply(1, &x, x.clone(), &Mode::evaluate())?;
        assert_eq!(adapted.to_vec2::<f32>()?, x.to_vec2::<f32>()?);
        assert!(adapters.check(2).is_ok() && Adapters::NONE.check(9).is_ok());
        assert!(adapters.check(3).unwrap_err().to_string().contains("2 adapters for 3 blocks"));
        assert_eq!(builder.finish()?.value_counts().0, 2 * (8 + (4 + 1) * 64 + 64 * 4 + 4));
        Ok(())
    }
}
