//! Image embeddings of MobileNetV2.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use engram_data::DataError;
use engram_data::image::{Preprocessing, Resize};
use engram_models::mobilenet::{MobileNet, WEIGHTS_FILE};

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
    /// Builds the model from its graph file. `find` returns the path of another file of the model.
    /// Returns the model and its identity.
    pub(super) fn open(
        graph: &Path,
        find: &dyn Fn(&str) -> Result<PathBuf, DataError>,
    ) -> Result<(Self, Identity)> {
        let weights = find(WEIGHTS_FILE)?;
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

    pub(super) fn width(&self) -> usize {
        self.network.embedding_size()
    }

    pub(super) fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// Computes the embeddings of `N` images, `[N, D]` in row-major order; not normalised.
    pub(super) fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let (height, width) = self.network.image_size();
        let shape = (images.len(), 3, height, width);
        let pixels =
            Tensor::from_vec(images.concat(), shape, &Device::Cpu).map_err(tensor_error)?;
        flat_values(&self.network.embed(&pixels)?)
    }
}
