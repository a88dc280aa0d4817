//! Square pictures as rows of patches: what CLIP's vision encoder and ViT begin with.

use candle_core::Tensor;

use crate::config::{bad_field, check_sizes};
use crate::error::{ModelError, Result};
use crate::kernels::linear;
use crate::params::{Init, ParameterBuilder};

/// A picture's edge beyond this is a mistake in the configuration.
const LONGEST_EDGE: usize = 4096;

/// More colours than this are a mistake in the configuration.
const MOST_CHANNELS: usize = 1 << 10;

/// How a picture falls into patches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PatchGrid {
    /// Pixels of an edge of the picture.
    pub(crate) image_size: usize,
    /// Pixels of an edge of a patch.
    pub(crate) patch_size: usize,
    /// Colours of a pixel.
    pub(crate) num_channels: usize,
}

/// A linear map of each patch.
#[derive(Debug, Clone)]
pub(crate) struct PatchEmbedding {
    grid: PatchGrid,
    /// `[D, C, patch, patch]`, as published: a convolution whose stride is its size.
    weight: Tensor,
    /// `[D]`.
    bias: Option<Tensor>,
}

impl PatchGrid {
    /// Checks that patches fill the picture.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] naming the field.
    pub(crate) fn validate(&self) -> Result<()> {
        let Self { image_size: image, patch_size: patch, num_channels } = *self;
        check_sizes(&[("num_channels", num_channels)])?;
        if num_channels > MOST_CHANNELS {
            let reason = format!("{num_channels} is more than {MOST_CHANNELS}");
            return Err(bad_field("num_channels", reason));
        }
        if patch == 0 || patch > image || image > LONGEST_EDGE || !image.is_multiple_of(patch) {
            let reason = format!("patches of {patch} pixels do not fill pictures of {image}");
            return Err(bad_field("patch_size", reason));
        }
        Ok(())
    }

    /// Patches `P` of a picture.
    pub(crate) fn num_patches(&self) -> usize {
        self.image_size.checked_div(self.patch_size).unwrap_or(0).pow(2)
    }

    /// Numbers of a patch.
    pub(crate) fn patch_width(&self) -> usize {
        self.num_channels * self.patch_size * self.patch_size
    }

    /// Pictures `[B, C, S, S]` as patches `[B P, C patch patch]`, row by row.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for pictures of another shape.
    fn patches(&self, pixels: &Tensor) -> Result<Tensor> {
        let Self { image_size: size, patch_size: patch, num_channels: channels } = *self;
        let batch = match *pixels.dims() {
            [batch, c, height, width]
                if batch > 0 && [c, height, width] == [channels, size, size] =>
            {
                batch
            }
            ref other => {
                return Err(ModelError::BadInput(format!(
                    "pictures of shape {other:?}; \
                     this encoder takes [B, {channels}, {size}, {size}]"
                )));
            }
        };
        let side = size / patch;
        Ok(pixels
            .reshape(vec![batch, channels, side, patch, side, patch])?
            .permute(vec![0, 2, 4, 1, 3, 5])?
            .contiguous()?
            .reshape((batch * self.num_patches(), self.patch_width()))?)
    }
}

impl PatchEmbedding {
    /// A map of patches to `d` channels with parameters `weight` and, if asked for, `bias`; a fresh
    /// weight is normal with standard deviation `std`, the bias zero.
    pub(crate) fn new(
        grid: PatchGrid,
        d: usize,
        std: f64,
        bias: bool,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let PatchGrid { patch_size: patch, num_channels, .. } = grid;
        let shape = [d, num_channels, patch, patch];
        let weight = builder.get("weight", &shape, Init::Normal(std))?;
        let bias = bias.then(|| builder.get("bias", &[d], Init::Zeros)).transpose()?;
        Ok(Self { grid, weight, bias })
    }

    /// Pictures `[B, C, S, S]` → `[B, P, D]`.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for pictures of another shape.
    pub(crate) fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        let patches = self.grid.patches(pixels)?;
        let d = self.weight.dim(0)?;
        let weight = self.weight.reshape((d, self.grid.patch_width()))?;
        let embedded = linear(&patches, &weight, self.bias.as_ref())?;
        let batch = pixels.dim(0)?;
        Ok(embedded.reshape((batch, self.grid.num_patches(), d))?)
    }
}

/// Puts a class token (`D` numbers, of any shape) before the patches of each picture: `[B, P, D]` →
/// `[B, 1 + P, D]`.
pub(crate) fn with_class_token(class: &Tensor, patches: &Tensor) -> Result<Tensor> {
    let (batch, _, d) = patches.dims3()?;
    let class = class.reshape((1, 1, d))?.broadcast_as((batch, 1, d))?;
    Ok(Tensor::cat(&[&class.contiguous()?, patches], 1)?)
}
