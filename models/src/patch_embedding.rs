//! Splits square images into patches and embeds them; the first layer of ViT and of CLIP's vision
//! encoder.

use candle_core::Tensor;

use crate::config::{check_sizes, require};
use crate::error::{Result, bail};
use crate::kernels::linear;
use crate::params::{Init, ParameterBuilder};

/// The largest accepted side length of an image, in pixels.
const MAX_IMAGE_SIZE: usize = 4096;

/// The largest accepted number of channels.
const MAX_CHANNELS: usize = 1 << 10;

/// The patch grid of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PatchGrid {
    /// Side length `S` of the square image, in pixels.
    pub(crate) image_size: usize,
    /// Side length of a square patch, in pixels.
    pub(crate) patch_size: usize,
    /// Number of channels `C` of a pixel.
    pub(crate) num_channels: usize,
}

/// A linear projection of each patch.
#[derive(Debug, Clone)]
pub(crate) struct PatchEmbedding {
    grid: PatchGrid,
    /// `[D, C, patch, patch]`, as published: the weight of a convolution whose stride is its size.
    weight: Tensor,
    /// `[D]`.
    bias: Option<Tensor>,
}

impl PatchGrid {
    /// Checks that the image is divided into whole patches, and that the sizes are not too large.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], which names the field.
    pub(crate) fn validate(&self) -> Result<()> {
        let Self { image_size: image, patch_size: patch, num_channels } = *self;
        check_sizes(&[("num_channels", num_channels)])?;
        require(num_channels <= MAX_CHANNELS, "num_channels", || {
            format!("{num_channels} is more than {MAX_CHANNELS}")
        })?;
        let fits = (1..=image).contains(&patch) && image.is_multiple_of(patch);
        require(fits && image <= MAX_IMAGE_SIZE, "patch_size", || {
            format!("patches of {patch} pixels do not fill images of {image} pixels")
        })
    }

    /// The number of patches `P` of an image.
    pub(crate) fn num_patches(&self) -> usize {
        self.image_size.checked_div(self.patch_size).unwrap_or(0).pow(2)
    }

    /// The number of values in a patch.
    pub(crate) fn patch_width(&self) -> usize {
        self.num_channels * self.patch_size * self.patch_size
    }

    /// Splits images into patches, row by row: `[B, C, S, S]` → `[B P, C patch patch]`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for images of another shape.
    fn patches(&self, pixels: &Tensor) -> Result<Tensor> {
        let Self { image_size: size, patch_size: patch, num_channels: channels } = *self;
        let batch = match *pixels.dims() {
            [batch, c, height, width]
                if batch > 0 && [c, height, width] == [channels, size, size] =>
            {
                batch
            }
            ref other => {
                bail!(
                    "images of shape {other:?}; \
                     this encoder takes [B, {channels}, {size}, {size}]"
                );
            }
        };
        let patches_per_side = size / patch;
        Ok(pixels
            .reshape(vec![batch, channels, patches_per_side, patch, patches_per_side, patch])?
            .permute(vec![0, 2, 4, 1, 3, 5])?
            .contiguous()?
            .reshape((batch * self.num_patches(), self.patch_width()))?)
    }
}

impl PatchEmbedding {
    /// A projection of patches to `d` channels with the parameters `weight` and, if `bias` is set,
    /// `bias`. Without published weights, the weight is normal with standard deviation `std`, and
    /// the bias is zero.
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

    /// Embeds the patches of images: `[B, C, S, S]` → `[B, P, D]`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for images of another shape.
    pub(crate) fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        let patches = self.grid.patches(pixels)?;
        let d = self.weight.dim(0)?;
        let weight = self.weight.reshape((d, self.grid.patch_width()))?;
        let embedded = linear(&patches, &weight, self.bias.as_ref())?;
        let batch = pixels.dim(0)?;
        Ok(embedded.reshape((batch, self.grid.num_patches(), d))?)
    }
}

/// Prepends a class token (`D` values, of any shape) to the patches of each image: `[B, P, D]` →
/// `[B, 1 + P, D]`.
pub(crate) fn with_class_token(class: &Tensor, patches: &Tensor) -> Result<Tensor> {
    let (batch, _, d) = patches.dims3()?;
    let class = class.reshape((1, 1, d))?.broadcast_as((batch, 1, d))?;
    Ok(Tensor::cat(&[&class.to_dtype(patches.dtype())?.contiguous()?, patches], 1)?)
}
