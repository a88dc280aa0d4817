//! Image embeddings of MobileNetV2.

use std::path::Path;

use candle_core::{Device, Tensor};
use engram_data::image::{Preprocessing, Resize};
use engram_models::compute::to_host;
use engram_models::mobilenet::{MobileNet, WEIGHTS_FILE};

use super::ImageEncoder;
use super::identity::{Identity, Inputs};
use crate::digest;
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// MobileNetV2 with its image preprocessing.
pub(super) struct ImageModel {
    network: MobileNet,
    preprocessing: Preprocessing,
}

impl ImageModel {
    /// Builds the model of a folder from its graph file. Returns the model and its identity.
    pub(super) fn open(graph: &Path, folder: &PretrainedFolder) -> Result<(Self, Identity)> {
        let weights = folder.file(WEIGHTS_FILE)?;
        let network = MobileNet::read(graph, &weights)?;
        let (height, width) = network.image_size();
        // `MobileNet` has checked that the image sides are small.
        let size = Resize::Exact { height: height as u32, width: width as u32 };
        let preprocessing = Preprocessing { resize: Some(size), ..Preprocessing::mobilenet() };
        let hash = |file: &Path| digest::of_file(file).map_err(InferError::io(file));
        let ((_, graph_sha256), (_, weights_sha256)) = (hash(graph)?, hash(&weights)?);
        let inputs = Inputs::of_graph(&graph_sha256).images(&preprocessing);
        let identity = inputs.with_weights(weights_sha256);
        Ok((Self { network, preprocessing }, identity))
    }
}

impl ImageEncoder for ImageModel {
    fn width(&self) -> usize {
        self.network.embedding_size()
    }

    fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        let (height, width) = self.network.image_size();
        let shape = (images.len(), 3, height, width);
        let pixels = Tensor::from_vec(images.concat(), shape, &Device::Cpu)?;
        Ok(to_host(&self.network.embed(&pixels)?)?)
    }
}
