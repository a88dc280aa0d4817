//! The subsampling convolutions before the first block.

use candle_core::Tensor;

use super::config::{ConformerConfig, Subsampling};
use crate::error::Result;
use crate::kernels::{Activation, Mode, Windows, activation};
use crate::layers::{Convolution, DepthwiseConvolution, Linear};
use crate::params::ParameterBuilder;

/// The subsampling module. Its parameters are `layers.N` and `linear`. In the published names, `N`
/// also counts the activations.
#[derive(Debug, Clone)]
pub(super) struct Subsampler {
    first: Convolution,
    later_layers: Vec<Layer>,
    linear: Linear,
}

/// A convolution after the first.
#[derive(Debug, Clone)]
enum Layer {
    Full(Convolution),
    Depthwise {
        depthwise: DepthwiseConvolution,
        /// The convolution over channels.
        pointwise: Convolution,
    },
}

impl Subsampler {
    pub(super) fn new(config: &ConformerConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (windows, channels) = (config.subsampling_windows(), config.subsampling_conv_channels);
        let kernel_positions = windows.size[0] * windows.size[1];
        // He initialisation, because ReLU follows.
        let std = |inputs: usize| (2.0 / inputs as f64).sqrt();
        let layers = builder.pp("layers");
        let first = Convolution::over_time_and_width(
            1,
            channels,
            windows,
            std(kernel_positions),
            &layers.pp(0),
        )?;
        let (mut later_layers, mut index) = (Vec::new(), 2);
        for _ in 1..config.subsampling_layers() {
            let layer_builder = layers.pp(index);
            later_layers.push(match config.subsampling {
                Subsampling::Full => Layer::Full(Convolution::over_time_and_width(
                    channels,
                    channels,
                    windows,
                    std(channels * kernel_positions),
                    &layer_builder,
                )?),
                Subsampling::Depthwise => {
                    let depthwise = DepthwiseConvolution::over_time_and_width(
                        channels,
                        windows,
                        std(kernel_positions),
                        &layer_builder,
                    )?;
                    index += 1;
                    Layer::Depthwise {
                        depthwise,
                        pointwise: Convolution::over_time_and_width(
                            channels,
                            channels,
                            Windows::square(1, 1, 0),
                            std(channels),
                            &layers.pp(index),
                        )?,
                    }
                }
            });
            index += 2;
        }
        let width = (0..config.subsampling_layers())
            .fold(config.num_mel_bins, |width, _| windows.of_width(width));
        let inputs = channels * width;
        let std = (inputs as f64).powf(-0.5);
        let linear = Linear::new(inputs, config.hidden_size, std, &builder.pp("linear"))?;
        Ok(Self { first, later_layers, linear })
    }

    /// Subsamples frames `[F, M]` of packed clips of `lengths`. Returns states `[T, D]` and the new
    /// lengths.
    pub(super) fn forward(
        &self,
        frames: &Tensor,
        lengths: &[usize],
    ) -> Result<(Tensor, Vec<usize>)> {
        let (x, lengths) = self.first.forward(&frames.unsqueeze(2)?, lengths)?;
        let (mut x, mut lengths) = (activation(&x, Activation::Relu)?, lengths);
        for layer in &self.later_layers {
            let (output, output_lengths) = match layer {
                Layer::Full(convolution) => convolution.forward(&x, &lengths)?,
                Layer::Depthwise { depthwise, pointwise } => {
                    let (x, lengths) = depthwise.forward(&x, &lengths)?;
                    pointwise.forward(&x, &lengths)?
                }
            };
            (x, lengths) = (activation(&output, Activation::Relu)?, output_lengths);
        }
        // The published linear layer expects the columns channel by channel.
        let x = x.transpose(1, 2)?.contiguous()?.flatten_from(1)?;
        Ok((self.linear.forward(&x, &Mode::evaluate())?, lengths))
    }
}
