//! Encoders of images with their image processors.

use std::path::Path;

use candle_core::{Device, Tensor};
use engram_data::image::{Preprocessing, Resize};
use engram_models::compute::to_host;
use engram_models::mobilenet::{EMBEDDING_SIZE, IMAGE_SIZE, MobileNet};

use super::identity::{Identity, Inputs};
use crate::digest;
use crate::error::{InferError, Result};

/// Computes the embeddings `[B, D]` of images `[B, 3, H, W]`.
type Forward = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

/// An encoder of images.
pub(super) struct Images {
    pub(super) preprocessing: Preprocessing,
    /// Height and width of an image after the preprocessing, in pixels.
    pub(super) size: (usize, usize),
    /// The dimension `D` of the embeddings.
    pub(super) width: usize,
    /// The maximum number of images in a forward pass.
    pub(super) batch: usize,
    pub(super) forward: Forward,
}

impl Images {
    /// The batch of encoders that consist of transformer blocks.
    pub(super) const BATCH: usize = 16;

    /// MobileNetV2 with its weights. Also returns its identity.
    pub(super) fn mobilenet(weights: &Path) -> Result<(Self, Identity)> {
        let network = MobileNet::read(weights)?;
        let side = IMAGE_SIZE as u32;
        let resize = Some(Resize::Exact { height: side, width: side });
        let preprocessing = Preprocessing { resize, ..Preprocessing::mobilenet() };
        let (_, sha256) = digest::of_file(weights).map_err(InferError::io(weights))?;
        let inputs = Inputs::of_architecture("mobilenet-v2").images(&preprocessing);
        let forward = Box::new(move |pixels: &Tensor| Ok(network.embed(pixels)?));
        let (size, width, batch) = ((IMAGE_SIZE, IMAGE_SIZE), EMBEDDING_SIZE, 256);
        Ok((Self { preprocessing, size, width, batch, forward }, inputs.with_weights(sha256)))
    }

    /// Computes the embeddings of `N` images, `[N, D]` in row-major order.
    pub(super) fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        let mut vectors = Vec::new();
        for batch in images.chunks(self.batch) {
            let shape = (batch.len(), 3, self.size.0, self.size.1);
            let pixels = Tensor::from_vec(batch.concat(), shape, &Device::Cpu)?;
            vectors.extend(to_host(&(self.forward)(&pixels)?)?);
        }
        Ok(vectors)
    }
}
