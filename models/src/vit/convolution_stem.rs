//! A convolutional stem in parallel with the patch projection. It helps a ViT learn shapes from few
//! images.
//!
//! After Xiao et al., "Early convolutions help transformers see better" (arXiv 2106.14881):
//! convolutions of 3 × 3 pixels with stride 2, each followed by ReLU, then a linear projection of
//! each patch. In the paper the stem replaces the patch projection. Here their outputs are added,
//! because the patch projection learns colours quickly. There is no norm between the convolutions,
//! because a norm would scale a flat background up to the level of an edge.

use candle_core::Tensor;

use super::config::ViTConfig;
use crate::error::Result;
use crate::kernels::{Convolution, Mode, convolution};
use crate::layers::Linear;
use crate::params::{Init, ParameterBuilder};

/// Side length of a convolution window, in pixels.
const KERNEL_SIZE: usize = 3;

const OPTIONS: Convolution = Convolution { stride: 2, padding: 1, relu: true };

/// The convolutions and the projection.
#[derive(Debug, Clone)]
pub(super) struct ConvolutionStem {
    /// The weight `[C_out, k, k, C]` and the bias `[C_out]` of each convolution.
    layers: Vec<[Tensor; 2]>,
    /// Side length of a patch after the convolutions.
    patch_side: usize,
    /// The projection of a patch's values to the width `D`.
    projection: Linear,
}

impl ConvolutionStem {
    /// Builds a stem with one convolution per item of `stem_channels`. The parameters are
    /// `N.weight`, `N.bias` and `projection`.
    pub(super) fn new(config: &ViTConfig, builder: &ParameterBuilder) -> Result<Self> {
        let channels = &config.stem_channels;
        let mut width = config.num_channels;
        let mut layers = Vec::with_capacity(channels.len());
        for (i, &out_channels) in channels.iter().enumerate() {
            let std = (2.0 / (KERNEL_SIZE * KERNEL_SIZE * width) as f64).sqrt();
            let (layer, shape) = (builder.pp(i), [out_channels, KERNEL_SIZE, KERNEL_SIZE, width]);
            layers.push([
                layer.get("weight", &shape, Init::Normal(std))?,
                layer.get("bias", &[out_channels], Init::Zeros)?,
            ]);
            width = out_channels;
        }
        let (patch_side, d) = (config.patch_size >> channels.len(), config.hidden_size);
        let inputs = patch_side * patch_side * width;
        let std = (inputs as f64).powf(-0.5);
        Ok(Self {
            layers,
            patch_side,
            projection: Linear::new(inputs, d, std, &builder.pp("projection"))?,
        })
    }

    /// Applies the stem to images: `[B, C, S, S]` → `[B, P, D]`, patches row by row.
    pub(super) fn forward(&self, pixels: &Tensor, mode: &Mode) -> Result<Tensor> {
        let mut x = pixels.permute((0, 2, 3, 1))?.contiguous()?;
        for [weight, bias] in &self.layers {
            x = convolution(&x, weight, bias, OPTIONS)?;
        }
        let (batch, height, width, channels) = x.dims4()?;
        let (patch_rows, patch_columns, patch_side) =
            (height / self.patch_side, width / self.patch_side, self.patch_side);
        let patches = x
            .reshape(vec![batch, patch_rows, patch_side, patch_columns, patch_side, channels])?
            .permute(vec![0, 1, 3, 2, 4, 5])?
            .contiguous()?
            .reshape((batch, patch_rows * patch_columns, patch_side * patch_side * channels))?;
        self.projection.forward(&patches, mode)
    }
}
