//! The subsampling convolutions before the first block.

use candle_core::Tensor;

use super::config::{ConformerConfig, Subsampling};
use crate::error::Result;
use crate::kernels::{Activation, Mode, Windows, activation};
use crate::layers::{Convolution, Linear};
use crate::params::ParameterBuilder;

/// The subsampling module. Its parameters are `layers.N` and `linear`. In the published names, `N`
/// also counts the activations.
#[derive(Debug, Clone)]
pub(super) struct Subsampler {
    /// The convolutions before each ReLU: one full convolution, or a depthwise one and one over
    /// channels.
    layers: Vec<Vec<Convolution>>,
    linear: Linear,
}

impl Subsampler {
    pub(super) fn new(config: &ConformerConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (windows, channels) = (config.subsampling_windows(), config.subsampling_conv_channels);
        let kernel_positions = windows.size[0] * windows.size[1];
        // He initialisation, because ReLU follows.
        let std = |inputs: usize| (2.0 / inputs as f64).sqrt();
        let names = builder.pp("layers");
        let first = std(kernel_positions);
        let first = Convolution::over_time_and_width([1, channels], windows, first, &names.pp(0))?;
        let (mut layers, mut index) = (vec![vec![first]], 2);
        for _ in 1..config.subsampling_layers() {
            let full = |windows: Windows, inputs: usize, index: usize| {
                let (channels, std) = ([channels; 2], std(inputs));
                Convolution::over_time_and_width(channels, windows, std, &names.pp(index))
            };
            layers.push(match config.subsampling {
                Subsampling::Full => vec![full(windows, channels * kernel_positions, index)?],
                Subsampling::Depthwise => {
                    let std = std(kernel_positions);
                    let depthwise =
                        Convolution::depthwise(channels, windows, std, &names.pp(index))?;
                    index += 1;
                    vec![depthwise, full(Windows::square(1, 1, 0), channels, index)?]
                }
            });
            index += 2;
        }
        let width = (0..config.subsampling_layers())
            .fold(config.num_mel_bins, |width, _| windows.of_width(width));
        let inputs = channels * width;
        let std = (inputs as f64).powf(-0.5);
        let linear = Linear::new(inputs, config.hidden_size, std, &builder.pp("linear"))?;
        Ok(Self { layers, linear })
    }

    /// Subsamples frames `[F, M]` of packed clips of `lengths`. Returns states `[T, D]` and the new
    /// lengths.
    pub(super) fn forward(
        &self,
        frames: &Tensor,
        lengths: &[usize],
    ) -> Result<(Tensor, Vec<usize>)> {
        let (mut x, mut lengths) = (frames.unsqueeze(2)?, lengths.to_vec());
        for convolutions in &self.layers {
            for convolution in convolutions {
                (x, lengths) = convolution.forward(&x, &lengths)?;
            }
            x = activation(&x, Activation::Relu)?;
        }
        // The published linear layer expects the columns channel by channel.
        let x = x.transpose(1, 2)?.contiguous()?.flatten_from(1)?;
        Ok((self.linear.forward(&x, &Mode::evaluate())?, lengths))
    }
}
