//! Image embeddings of a Vision Transformer: its class token.

use std::path::Path;
use std::sync::Arc;

use engram_data::image::Preprocessing;
use engram_models::compute::Compute;
use engram_models::kernels::Mode;
use engram_models::params::ParameterBuilder;
use engram_models::vit::{ViT, ViTConfig};
use engram_models::weights::Weights;

use super::ImageEncoder;
use super::clip::{checked_preprocessing, embed_in_batches, read_text};
use super::identity::{Identity, Inputs};
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// A ViT with its image processor.
pub(super) struct VitModel {
    vit: ViT,
    preprocessing: Preprocessing,
}

impl VitModel {
    /// Builds the model of a folder. Returns the model and its identity.
    pub(super) fn open(
        folder: &PretrainedFolder,
        config_path: &Path,
        compute: &Compute,
    ) -> Result<(Self, Identity)> {
        let config = ViTConfig::read(config_path)?;
        let preprocessing = checked_preprocessing(config.image_size, config_path, folder)?;
        let weights = folder.weights()?;
        let source = Arc::new(Weights::open(&weights.path)?.with_optional_prefix("vit.")?);
        let vit = ViT::new(&config, &ParameterBuilder::frozen(compute).with_weights(source))?;
        let inputs = Inputs::of_config(&read_text(config_path)?).images(&preprocessing);
        Ok((Self { vit, preprocessing }, inputs.with_weights(weights.sha256)))
    }
}

impl ImageEncoder for VitModel {
    fn width(&self) -> usize {
        self.vit.config.hidden_size
    }

    fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        embed_in_batches(images, self.vit.config.image_size, |pixels| {
            let output = self.vit.forward(pixels, None, &Mode::inference())?;
            output.class_token.ok_or_else(|| InferError::from("the ViT has no class token"))
        })
    }
}
