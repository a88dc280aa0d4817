//! CLIP's two encoders with their tokenizer and image processor.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use engram_data::image::Preprocessing;
use engram_data::tokenizer::SegmentTokenizer;
use engram_models::clip::{Clip, ClipConfig, ClipVision, ClipVisionConfig};
use engram_models::compute::Compute;
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::ParameterBuilder;

use super::identity::Inputs;
use super::images::Images;
use super::layout::Layout;
use super::text::TextModel;
use super::tokenizer::{TextTokens, TokenizerConfig, adapt_tokenizer_json};
use super::{Parts, Texts};
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// Builds both encoders of CLIP from a folder with the configuration `config_path`, whose content is
/// `config_json`.
pub(super) fn open_both(
    layout: &Layout,
    config_path: &Path,
    config_json: &str,
    compute: &Compute,
) -> Result<Parts> {
    layout.check_image_encoder()?;
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
    let preprocessing = checked_preprocessing(&clip_config.vision_config, config_path, &folder)?;
    let builder = ParameterBuilder::frozen(compute);
    let source = Arc::new(weights.files.open()?);
    let clip = Clip::new(&clip_config, &builder.with_weights(source))?;
    let default_limit = clip.config.text_config.max_position_embeddings;
    let (tokenizer, positions) = (Arc::new(tokenizer), Some(default_limit));
    let tokens = TextTokens { tokenizer, settings, config, default_limit, positions };
    let identity = Inputs::of_config(config_json)
        .texts(&json, &tokens.forms(), &layout.prompts)
        .images(&preprocessing)
        .with_weights(weights.sha256);
    let images = image_encoder(clip.vision.clone(), preprocessing);
    let width = clip.vision.config.projection_dim;
    let embed = Box::new(move |batch: &PackedTokens| {
        Ok(clip.encode_texts(batch, &Mode::inference())?.embeddings)
    });
    Ok((Some(Texts::new(TextModel::new(width, embed), tokens)), Some(images), identity))
}

/// Builds a vision encoder without a text encoder, like [`open_both`].
pub(super) fn open_vision(
    folder: &PretrainedFolder,
    config_path: &Path,
    config_json: &str,
    compute: &Compute,
) -> Result<Parts> {
    let config = ClipVisionConfig::read(config_path)?;
    let weights = folder.weights()?;
    let preprocessing = checked_preprocessing(&config, config_path, folder)?;
    let builder = ParameterBuilder::frozen(compute);
    let source = Arc::new(weights.files.open()?);
    let vision = ClipVision::new(&config, &builder.with_weights(source))?;
    let inputs = Inputs::of_config(config_json).images(&preprocessing);
    let images = image_encoder(vision, preprocessing);
    Ok((None, Some(images), inputs.with_weights(weights.sha256)))
}

fn image_encoder(vision: ClipVision, preprocessing: Preprocessing) -> Images {
    let (side, width) = (vision.config.image_size, vision.config.projection_dim);
    let forward =
        Box::new(move |pixels: &Tensor| Ok(vision.forward(pixels, &Mode::inference())?.embeddings));
    Images { preprocessing, size: (side, side), width, batch: Images::BATCH, forward }
}

/// Reads the image processor of a model and checks that its output size matches the model.
fn checked_preprocessing(
    config: &ClipVisionConfig,
    config_path: &Path,
    folder: &PretrainedFolder,
) -> Result<Preprocessing> {
    let (processor, preprocessing) = folder.image_processor()?;
    let size = config.image_size;
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
