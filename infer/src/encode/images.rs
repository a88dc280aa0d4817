//! Image embeddings of MobileNetV2, and of models with a published image processor.

use std::path::Path;

use candle_core::{Device, Tensor};
use engram_data::image::{Preprocessing, Resize};
use engram_models::compute::to_host;
use engram_models::mobilenet::{EMBEDDING_SIZE, IMAGE_SIZE, MobileNet};

use super::ImageEncoder;
use super::identity::{Identity, Inputs};
use crate::digest;
use crate::error::{InferError, Result};

/// MobileNetV2 with its image preprocessing.
pub(super) struct ImageModel {
    network: MobileNet,
    preprocessing: Preprocessing,
}

impl ImageModel {
    /// Builds the model from its weights. Returns the model and its identity.
    pub(super) fn open(weights: &Path) -> Result<(Self, Identity)> {
        let network = MobileNet::read(weights)?;
        let side = IMAGE_SIZE as u32;
        let size = Resize::Exact { height: side, width: side };
        let preprocessing = Preprocessing { resize: Some(size), ..Preprocessing::mobilenet() };
        let (_, sha256) = digest::of_file(weights).map_err(InferError::io(weights))?;
        let inputs = Inputs::of_architecture("mobilenet-v2").images(&preprocessing);
        let identity = inputs.with_weights(sha256);
        Ok((Self { network, preprocessing }, identity))
    }
}

impl ImageEncoder for ImageModel {
    fn width(&self) -> usize {
        EMBEDDING_SIZE
    }

    fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        let shape = (images.len(), 3, IMAGE_SIZE, IMAGE_SIZE);
        let pixels = Tensor::from_vec(images.concat(), shape, &Device::Cpu)?;
        Ok(to_host(&self.network.embed(&pixels)?)?)
    }
}

/// The maximum number of images in a forward pass.
const IMAGE_BATCH: usize = 16;

/// An image encoder with its published image processor.
pub(super) struct ProcessedImages<F> {
    pub(super) preprocessing: Preprocessing,
    /// Height and width of an image after the preprocessing, in pixels.
    pub(super) size: (usize, usize),
    /// The dimension `D` of the embeddings.
    pub(super) width: usize,
    /// Computes the embeddings `[B, D]` of images `[B, 3, H, W]`.
    pub(super) forward: F,
}

impl<F: Fn(&Tensor) -> Result<Tensor> + Send + Sync> ImageEncoder for ProcessedImages<F> {
    fn width(&self) -> usize {
        self.width
    }

    fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        let mut vectors = Vec::new();
        for batch in images.chunks(IMAGE_BATCH) {
            let shape = (batch.len(), 3, self.size.0, self.size.1);
            let pixels = Tensor::from_vec(batch.concat(), shape, &Device::Cpu)?;
            vectors.extend(to_host(&(self.forward)(&pixels)?)?);
        }
        Ok(vectors)
    }
}
