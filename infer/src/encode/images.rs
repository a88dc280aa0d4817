//! Image embeddings of MobileNetV2.

use std::path::Path;

use candle_core::{Device, Tensor};
use engram_data::image::{Preprocessing, Resize};
use engram_models::mobilenet::{EMBEDDING_SIZE, IMAGE_SIZE, MobileNet};

use super::clip::flat_values;
use super::identity::{Identity, Inputs};
use super::text::tensor_error;
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

    pub(super) fn width(&self) -> usize {
        EMBEDDING_SIZE
    }

    pub(super) fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// Computes the embeddings of `N` images, `[N, D]` in row-major order; not normalised.
    pub(super) fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let shape = (images.len(), 3, IMAGE_SIZE, IMAGE_SIZE);
        let pixels =
            Tensor::from_vec(images.concat(), shape, &Device::Cpu).map_err(tensor_error)?;
        flat_values(&self.network.embed(&pixels)?)
    }
}
