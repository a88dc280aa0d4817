//! CLIP's two encoders with their tokenizer and image processor.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_data::image::Preprocessing;
use engram_data::tokenizer::{SegmentTokenizer, TextForm};
use engram_models::clip::{Clip, ClipConfig, ClipVision, ClipVisionConfig};
use engram_models::compute::{Compute, to_host};
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::ParameterBuilder;
use engram_models::similarity::sentence_transformer::{PromptChoice, TransformerSettings};
use engram_models::weights::Weights;

use super::identity::{Identity, Inputs};
use super::layout::Layout;
use super::text::{batches_of_tokens, tensor_error};
use super::tokenizer::{TokenizerConfig, adapt_tokenizer_json, text_form};
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// The maximum number of images in a forward pass.
const IMAGE_BATCH: usize = 16;

/// Both encoders of CLIP with their tokenizer and image processor.
pub(super) struct ClipModel {
    clip: Clip,
    tokenizer: SegmentTokenizer,
    settings: TransformerSettings,
    tokenizer_config: Option<TokenizerConfig>,
    form: TextForm,
    images: ClipImageModel,
}

/// CLIP's vision encoder with its image processor.
pub(super) struct ClipImageModel {
    vision: ClipVision,
    preprocessing: Preprocessing,
}

impl ClipModel {
    /// Builds the model of a folder with the configuration `config_path`. Returns the model and its
    /// identity.
    pub(super) fn open(
        layout: &Layout,
        config_path: &Path,
        compute: &Compute,
    ) -> Result<(Self, Identity)> {
        layout.check_clip()?;
        let (folder, settings) = (layout.transformer(), layout.settings(true)?);
        let config = ClipConfig::read(config_path)?;
        let tokenizer_config = TokenizerConfig::read(&folder)?;
        let tokenizer = folder.tokenizer()?;
        let weights = folder.weights()?;
        let json = std::fs::read(&tokenizer).map_err(InferError::io(&tokenizer))?;
        let json = adapt_tokenizer_json(json, tokenizer_config.as_ref(), settings.do_lower_case);
        let tokenizer = SegmentTokenizer::from_bytes(&tokenizer, &json)?;
        tokenizer.check_fits(config.text_config.vocab_size, None)?;
        let (end, expected_end) = (tokenizer.special().sep, config.text_config.end_of_text());
        if expected_end.is_some_and(|expected| expected != end) {
            let reason = format!(
                "has the end-of-text token {}, but its tokenizer has {end}; use both files of the \
                 same model",
                config.text_config.eos_token_id
            );
            return Err(InferError::Encoder { name: config_path.display().to_string(), reason });
        }
        let preprocessing = checked_preprocessing(&config.vision_config, config_path, &folder)?;
        let builder = ParameterBuilder::frozen(compute);
        let source = Arc::new(Weights::open(&weights.path)?);
        let clip = Clip::new(&config, &builder.with_weights(source))?;
        let forms = PromptChoice::ROLES.map(|role| {
            clip_text_form(&clip, &settings, settings.task_length(&role), tokenizer_config.as_ref())
        });
        let identity = Inputs::of_config(&read_text(config_path)?)
            .texts(&json, &forms, &layout.prompts)
            .images(&preprocessing)
            .with_weights(weights.sha256);
        let images = ClipImageModel { vision: clip.vision().clone(), preprocessing };
        let [form, ..] = forms;
        let model = Self { clip, tokenizer, settings, tokenizer_config, form, images };
        Ok((model, identity))
    }

    /// Sets the length limit for all further texts to the limit of queries or of documents.
    pub(super) fn set_role(&mut self, choice: &PromptChoice) {
        let task_length = self.settings.task_length(choice);
        let tokenizer_config = self.tokenizer_config.as_ref();
        self.form = clip_text_form(&self.clip, &self.settings, task_length, tokenizer_config);
    }

    /// Tokenizes a text as `<|startoftext|> text <|endoftext|>`.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode_text(text, &self.form)?)
    }

    pub(super) fn images(&self) -> &ClipImageModel {
        &self.images
    }

    /// Computes the embeddings of `N` texts, `[N, D]` in row-major order; not normalised.
    pub(super) fn embed_texts(&self, texts: &[&[u32]]) -> Result<Vec<f32>> {
        let mut vectors = Vec::new();
        for batch in batches_of_tokens(texts) {
            let encoded = self.clip.encode_texts(&PackedTokens::new(batch), &Mode::inference())?;
            vectors.extend(flat_values(&encoded.embeddings)?);
        }
        Ok(vectors)
    }
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(InferError::io(path))
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
        let preprocessing = checked_preprocessing(&config, config_path, folder)?;
        let builder = ParameterBuilder::frozen(compute);
        let source = Arc::new(Weights::open(&weights.path)?);
        let vision = ClipVision::new(&config, &builder.with_weights(source))?;
        let inputs = Inputs::of_config(&read_text(config_path)?).images(&preprocessing);
        Ok((Self { vision, preprocessing }, inputs.with_weights(weights.sha256)))
    }

    pub(super) fn width(&self) -> usize {
        self.vision.config().projection_dim
    }

    pub(super) fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// Computes the embeddings of `N` images, `[N, D]` in row-major order; not normalised.
    pub(super) fn embed(&self, images: &[&[f32]]) -> Result<Vec<f32>> {
        let size = self.vision.config().image_size;
        let mut vectors = Vec::new();
        for batch in images.chunks(IMAGE_BATCH) {
            let shape = (batch.len(), 3, size, size);
            let pixels =
                Tensor::from_vec(batch.concat(), shape, &Device::Cpu).map_err(tensor_error)?;
            let encoded = self.vision.forward(&pixels, &Mode::inference())?;
            vectors.extend(flat_values(&encoded.embeddings)?);
        }
        Ok(vectors)
    }
}

/// The settings for tokenizing texts, limited to CLIP's positions. `task_length` is the limit for
/// queries or documents; `None` if the model has none.
fn clip_text_form(
    clip: &Clip,
    settings: &TransformerSettings,
    task_length: Option<usize>,
    config: Option<&TokenizerConfig>,
) -> TextForm {
    let positions = clip.config().text_config.max_position_embeddings;
    text_form(settings, task_length, config, positions, Some(positions))
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

/// All values of a tensor in row-major order.
pub(super) fn flat_values(tensor: &Tensor) -> Result<Vec<f32>> {
    to_host(tensor).map_err(tensor_error)
}
