//! CLIP's two encoders with their tokenizer and image processor.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_data::image::Preprocessing;
use engram_data::tokenizer::SegmentTokenizer;
use engram_models::clip::{Clip, ClipConfig, ClipVision, ClipVisionConfig};
use engram_models::compute::{Compute, to_host};
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::ParameterBuilder;
use engram_models::weights::Weights;

use super::identity::{Identity, Inputs};
use super::layout::Layout;
use super::tokenizer::{TextTokens, TokenizerConfig, adapt_tokenizer_json};
use super::{ImageEncoder, TextEncoder};
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// The maximum number of images in a forward pass.
const IMAGE_BATCH: usize = 16;

/// CLIP's text encoder.
pub(super) struct ClipTextModel(Clip);

/// CLIP's vision encoder with its image processor.
pub(super) struct ClipImageModel {
    vision: ClipVision,
    preprocessing: Preprocessing,
}

/// Builds both encoders of CLIP from a folder with the configuration `config_path`. Returns them
/// with the tokenizer and the identity.
pub(super) fn open_both(
    layout: &Layout,
    config_path: &Path,
    compute: &Compute,
) -> Result<(ClipTextModel, TextTokens, ClipImageModel, Identity)> {
    layout.check_clip()?;
    let (folder, settings) = (layout.transformer(), layout.settings(true)?);
    let clip_config = ClipConfig::read(config_path)?;
    let config = TokenizerConfig::read(&folder)?;
    let tokenizer = folder.tokenizer()?;
    let weights = folder.weights()?;
    let json = engram_durable::read_file(&tokenizer).map_err(InferError::io(&tokenizer))?;
    let json = adapt_tokenizer_json(json, config.as_ref(), settings.do_lower_case);
    let tokenizer = SegmentTokenizer::from_bytes(&tokenizer, &json)?;
    tokenizer.check_fits(clip_config.text_config.vocab_size, None)?;
    let (end, expected_end) = (tokenizer.special().sep, clip_config.text_config.end_of_text());
    if expected_end.is_some_and(|expected| expected != end) {
        let reason = format!(
            "has the end-of-text token {}, but its tokenizer has {end}; use both files of the \
             same model",
            clip_config.text_config.eos_token_id
        );
        return Err(InferError::Encoder { name: config_path.display().to_string(), reason });
    }
    let size = clip_config.vision_config.image_size;
    let preprocessing = checked_preprocessing(size, config_path, &folder)?;
    let builder = ParameterBuilder::frozen(compute);
    let source = Arc::new(Weights::open(&weights.path)?);
    let clip = Clip::new(&clip_config, &builder.with_weights(source))?;
    let default_limit = clip.config.text_config.max_position_embeddings;
    let (tokenizer, positions) = (Arc::new(tokenizer), Some(default_limit));
    let tokens = TextTokens { tokenizer, settings, config, default_limit, positions };
    let identity = Inputs::of_config(&read_text(config_path)?)
        .texts(&json, &tokens.forms(), &layout.prompts)
        .images(&preprocessing)
        .with_weights(weights.sha256);
    let images = ClipImageModel { vision: clip.vision.clone(), preprocessing };
    Ok((ClipTextModel(clip), tokens, images, identity))
}

impl TextEncoder for ClipTextModel {
    fn width(&self) -> usize {
        self.0.vision.config.projection_dim
    }

    fn embed(&self, batch: PackedTokens) -> Result<Tensor> {
        Ok(self.0.encode_texts(&batch, &Mode::inference())?.embeddings)
    }
}

pub(super) fn read_text(path: &Path) -> Result<String> {
    engram_durable::read_text(path).map_err(InferError::io(path))
}

impl ClipImageModel {
    /// Builds a vision encoder without a text encoder. Returns the model and its identity.
    pub(super) fn open(
        folder: &PretrainedFolder,
        config_path: &Path,
        compute: &Compute,
    ) -> Result<(Self, Identity)> {
        let config = ClipVisionConfig::read(config_path)?;
        let weights = folder.weights()?;
        let preprocessing = checked_preprocessing(config.image_size, config_path, folder)?;
        let builder = ParameterBuilder::frozen(compute);
        let source = Arc::new(Weights::open(&weights.path)?);
        let vision = ClipVision::new(&config, &builder.with_weights(source))?;
        let inputs = Inputs::of_config(&read_text(config_path)?).images(&preprocessing);
        Ok((Self { vision, preprocessing }, inputs.with_weights(weights.sha256)))
    }
}

impl ImageEncoder for ClipImageModel {
    fn width(&self) -> usize {
        self.vision.config.projection_dim
    }

    fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        embed_in_batches(images, self.vision.config.image_size, |pixels| {
            Ok(self.vision.forward(pixels, &Mode::inference())?.embeddings)
        })
    }
}

/// Computes the embeddings of images of `size` × `size` pixels, `[N, D]` in row-major order.
/// `embed` computes those of a batch, `[B, D]`.
pub(super) fn embed_in_batches(
    images: &[&[f32]],
    size: usize,
    embed: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<f32>> {
    let mut vectors = Vec::new();
    for batch in images.chunks(IMAGE_BATCH) {
        let shape = (batch.len(), 3, size, size);
        let pixels = Tensor::from_vec(batch.concat(), shape, &Device::Cpu)?;
        vectors.extend(to_host(&embed(&pixels)?)?);
    }
    Ok(vectors)
}

/// Reads the image processor of a model and checks that it produces images of `size` × `size`
/// pixels.
pub(super) fn checked_preprocessing(
    size: usize,
    config_path: &Path,
    folder: &PretrainedFolder,
) -> Result<Preprocessing> {
    let (processor, preprocessing) = folder.image_processor()?;
    let fits = preprocessing
        .output_size()
        .is_some_and(|(height, width)| [height, width].map(|side| side as usize) == [size; 2]);
    if !fits {
        let reason = format!(
            "does not produce images of {size} x {size} pixels, which {} requires; use both files \
             of the same model",
            config_path.display()
        );
        return Err(InferError::Encoder { name: processor.display().to_string(), reason });
    }
    Ok(preprocessing)
}
