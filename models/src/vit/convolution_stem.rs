//! A convolutional stem in parallel with the patch projection. It helps a ViT learn shapes from few
//! images.
//!
//! After Xiao et al., "Early convolutions help transformers see better" (arXiv 2106.14881):
//! convolutions of 3 × 3 pixels with stride 2, each followed by ReLU, then a linear projection of
//! each patch. In the paper the stem replaces the patch projection. Here their outputs are added,
//! because the patch projection learns colours quickly. There is no norm between the convolutions:
//! it would scale a flat background up to the level of an edge.

use candle_core::Tensor;

use super::config::ViTConfig;
use crate::error::Result;
use crate::kernels::{Convolution, convolution};
use crate::layers::Linear;
use crate::params::{Init, ParameterBuilder};

/// Side length of a convolution window, in pixels.
const EDGE: usize = 3;

#[derive(Debug, Clone)]
pub(super) struct ConvolutionStem {
    layers: Vec<Layer>,
    /// Side length of a patch after the convolutions.
    edge: usize,
    /// The projection of a patch's values to the width `D`.
    projection: Linear,
}

#[derive(Debug, Clone)]
struct Layer {
    /// `[C_out, 3, 3, C]`.
    weight: Tensor,
    /// `[C_out]`.
    bias: Tensor,
}

impl ConvolutionStem {
    /// Builds a stem with one convolution per item of `stem_channels`. The parameters are
    /// `N.weight`, `N.bias` and `projection`.
    pub(super) fn new(config: &ViTConfig, builder: &ParameterBuilder) -> Result<Self> {
        let channels = &config.stem_channels;
        let mut width = config.num_channels;
        let mut layers = Vec::with_capacity(channels.len());
        for (i, &out) in channels.iter().enumerate() {
            let convolution_builder = builder.pp(i);
            let std = (2.0 / (EDGE * EDGE * width) as f64).sqrt();
            layers.push(Layer {
                weight: convolution_builder.get(
                    "weight",
                    &[out, EDGE, EDGE, width],
                    Init::Normal(std),
                )?,
                bias: convolution_builder.get("bias", &[out], Init::Zeros)?,
            });
            width = out;
        }
        let (edge, d) = (config.patch_size >> channels.len(), config.hidden_size);
        let inputs = edge * edge * width;
        let std = (inputs as f64).powf(-0.5);
        Ok(Self {
            layers,
            edge,
            projection: Linear::new(inputs, d, std, &builder.pp("projection"))?,
        })
    }

    /// The number of parameter values.
    pub(super) fn num_parameters(config: &ViTConfig) -> usize {
        let channels = &config.stem_channels;
        let widths = std::iter::once(&config.num_channels).chain(channels);
        let convolutions = widths.zip(channels).map(|(c, out)| out * (EDGE * EDGE * c + 1));
        let edge = config.patch_size >> channels.len();
        let last = channels.last().unwrap_or(&config.num_channels);
        convolutions.sum::<usize>() + config.hidden_size * (edge * edge * last + 1)
    }

    /// Applies the stem to images: `[B, C, S, S]` → `[B, P, D]`, patches row by row.
    pub(super) fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        let mut x = pixels.permute((0, 2, 3, 1))?.contiguous()?;
        for layer in &self.layers {
            let windows = Convolution { stride: 2, padding: 1, relu: true };
            x = convolution(&x, &layer.weight, &layer.bias, windows)?;
        }
        let (batch, height, width, channels) = x.dims4()?;
        let (down, across, edge) = (height / self.edge, width / self.edge, self.edge);
        let patches = x
            .reshape(vec![batch, down, edge, across, edge, channels])?
            .permute(vec![0, 1, 3, 2, 4, 5])?
            .contiguous()?
            .reshape((batch, down * across, edge * edge * channels))?;
        self.projection.forward(&patches)
    }
}
