//! Pretrained encoders: texts and images as unit vectors, for the keys and queries of a retrieval
//! memory.
//!
//! | file in the model folder | encoder of texts | encoder of images |
//! |---|---|---|
//! | `config.json` of BERT or DeBERTa | pooling from `modules.json`, else mean pooling | – |
//! | `config.json` of CLIP | the text encoder | the vision encoder |
//! | `config.json` of a CLIP vision encoder (`clip_vision_model`) | – | the vision encoder |
//! | `mobilenet_v2_1.0_224.safetensors` | – | the average-pooled features of MobileNetV2 |
//!
//! For a text with an image, CLIP adds the unit vectors of both and normalises the sum. (REVEAL
//! encodes text and image together in one network, which is part of its model.)

mod clip;
mod files;
mod identity;
mod images;
mod joint;
mod layout;
mod text;
mod tokenizer;

use std::path::Path;

use engram_data::hub::WeightsLocation;
use engram_data::image::{DecodedImage, Preprocessing};
use engram_models::clip::CLIP_VISION;
use engram_models::compute::Compute;
use engram_models::mobilenet;
pub use engram_models::similarity::sentence_transformer::PromptChoice;
use engram_models::similarity::sentence_transformer::Prompts;
use serde::Deserialize;

use crate::error::{InferError, Result};
use crate::pretrained::{PretrainedFolder, is_missing};
pub use files::EncoderFiles;
use identity::Identity;
pub use joint::JointEncoder;
use layout::Layout;

/// The `model_type` of CLIP in `config.json`.
const CLIP: &str = "clip";

/// An input of an encoder: a text, an image, or both. Absent parts are `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Item<'a> {
    /// A text.
    pub text: Option<&'a str>,
    /// An image file.
    pub image: Option<&'a Path>,
}

/// The modalities that an encoder supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modalities {
    /// Whether the encoder supports texts.
    pub text: bool,
    /// Whether the encoder supports images.
    pub images: bool,
}

/// An item as tokens and pixels. The field of a modality is `None` if the item lacks it or the
/// encoder does not support it.
#[derive(Debug, Clone)]
pub struct Prepared {
    tokens: Option<Vec<u32>>,
    pixels: Option<Vec<f32>>,
}

impl Prepared {
    /// The pixels of the image, `[3, height, width]` in row-major order; empty without an image.
    pub fn pixels(&self) -> &[f32] {
        self.pixels.as_deref().unwrap_or_default()
    }
}

/// A frozen model that encodes texts, images or both as unit vectors.
pub struct Encoder {
    name: String,
    identity: Identity,
    model: Model,
    prompts: Prompts,
    /// The prompt that is put before each input text; may be empty.
    prompt: String,
}

enum Model {
    Text(Box<text::TextModel>),
    Clip(Box<clip::ClipModel>),
    ClipVision(Box<clip::ClipImageModel>),
    Images(images::ImageModel),
}

impl Encoder {
    /// Opens the model in a folder or at `hf://owner/name`, with its default prompt. It computes on
    /// `compute`; MobileNetV2 always computes on the CPU.
    ///
    /// # Errors
    /// [`InferError::Data`] for missing files; [`InferError::Encoder`] for an unsupported format;
    /// [`InferError::Model`] for a model that is unknown or does not match its weights.
    pub fn open(location: &str, compute: &Compute) -> Result<Self> {
        Self::with_prompt(location, &PromptChoice::Default, compute)
    }

    /// Opens a model like [`open`](Self::open), with the chosen prompt.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); [`InferError::Model`] for a prompt that the model does
    /// not have.
    pub fn with_prompt(location: &str, choice: &PromptChoice, compute: &Compute) -> Result<Self> {
        let folder = PretrainedFolder::open(location)?;
        let layout = Layout::read(folder.clone())?;
        let (mut model, identity) = Self::build(&folder, &layout, compute)?;
        let name = match folder.location() {
            WeightsLocation::Folder(path) => match path.canonicalize() {
                Ok(absolute) => absolute.display().to_string(),
                Err(_) => folder.location().to_string(),
            },
            hub => hub.to_string(),
        };
        let prompt = layout.prompts.text(choice, &name)?.to_owned();
        match &mut model {
            Model::Text(model) => model.set_prompt(&prompt, choice)?,
            Model::Clip(model) => model.set_role(choice),
            Model::ClipVision(_) | Model::Images(_) => {}
        }
        Ok(Self { name, identity, model, prompts: layout.prompts, prompt })
    }

    /// Builds the model and computes its identity.
    fn build(
        folder: &PretrainedFolder,
        layout: &Layout,
        compute: &Compute,
    ) -> Result<(Model, Identity)> {
        let transformer = layout.transformer();
        let config = match transformer.find("config.json") {
            Ok(config) => config,
            // Without a configuration file, only the layout of MobileNetV2 is supported.
            Err(missing) if is_missing(&missing) => {
                let weights = folder.find(mobilenet::WEIGHTS_FILE);
                let Ok(weights) = weights else { return Err(missing.into()) };
                let (model, identity) = images::ImageModel::open(&weights)?;
                return Ok((Model::Images(model), identity));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(match model_type(&config)?.as_deref() {
            Some(CLIP) => {
                let (model, identity) = clip::ClipModel::open(layout, &config, compute)?;
                (Model::Clip(Box::new(model)), identity)
            }
            Some(CLIP_VISION) => {
                let (model, identity) = clip::ClipImageModel::open(&transformer, &config, compute)?;
                (Model::ClipVision(Box::new(model)), identity)
            }
            _ => {
                let (model, identity) = text::TextModel::open(layout, compute)?;
                (Model::Text(Box::new(model)), identity)
            }
        })
    }

    /// The prompt that is put before each input text; may be empty.
    pub fn prompt(&self) -> &str {
        &self.prompt
    }

    /// Notes for the user about settings of the model that the encoder ignores. `choice` is the
    /// prompt that the encoder was opened with.
    pub fn notes(&self, choice: &PromptChoice) -> Vec<String> {
        let mut notes = Vec::new();
        if let (PromptChoice::Document, Some(name)) = (choice, self.prompts.ignored_prompt()) {
            notes.push(format!(
                "{}: has the prompt `{name}`, but sentence-transformers does not use it by \
                 default; --prompt {name} applies it",
                self.name
            ));
        }
        if let Some(other) = &self.prompts.other_similarity {
            notes.push(format!(
                "{}: was trained for the similarity `{other}`; here, keys and queries have unit \
                 length, so scores are cosine similarities",
                self.name
            ));
        }
        notes
    }

    /// The absolute path of the model's folder, or its Hub address.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The SHA-256 of the weights file. For a text encoder with `do_lower_case`, or with modules
    /// other than mean pooling, the hash covers these too. [`inputs_sha256`](Self::inputs_sha256)
    /// covers the other files of the model.
    pub fn sha256(&self) -> &str {
        &self.identity.sha256
    }

    /// The SHA-256 of everything else in the model's folder that changes a vector: the
    /// configuration, the tokenizer with its length limits, the prompts, and the image
    /// preprocessing. The hash is the same for every [`PromptChoice`].
    pub fn inputs_sha256(&self) -> &str {
        &self.identity.inputs_sha256
    }

    /// The dimension `D` of the vectors.
    pub fn width(&self) -> usize {
        match &self.model {
            Model::Text(model) => model.width(),
            Model::Clip(model) => model.images().width(),
            Model::ClipVision(model) => model.width(),
            Model::Images(model) => model.width(),
        }
    }

    /// The modalities that the encoder supports.
    pub fn modalities(&self) -> Modalities {
        match &self.model {
            Model::Text(_) => Modalities { text: true, images: false },
            Model::Clip(_) => Modalities { text: true, images: true },
            Model::ClipVision(_) | Model::Images(_) => Modalities { text: false, images: true },
        }
    }

    /// Converts an item to tokens and pixels. Texts beyond the model's maximum length are
    /// truncated.
    ///
    /// # Errors
    /// [`InferError::Data`] for an image that cannot be read, or a text that cannot be tokenized.
    pub fn prepare(&self, item: Item<'_>) -> Result<Prepared> {
        let prompted;
        let text = match item.text {
            Some(text) if !self.prompt.is_empty() => {
                prompted = format!("{}{text}", self.prompt);
                Some(prompted.as_str())
            }
            text => text,
        };
        let tokens = match (&self.model, text) {
            (Model::Text(model), Some(text)) => Some(model.tokens(text)?),
            (Model::Clip(model), Some(text)) => Some(model.tokens(text)?),
            _ => None,
        };
        let pixels = match (self.preprocessing(), item.image) {
            (Some(preprocessing), Some(path)) => {
                Some(preprocessing.apply(&DecodedImage::open(path)?, path)?)
            }
            _ => None,
        };
        Ok(Prepared { tokens, pixels })
    }

    /// Converts an in-memory image to pixels. Error messages name it `name`.
    ///
    /// # Errors
    /// [`InferError::Encoder`] for an encoder that only supports texts; [`InferError::Data`] for an
    /// image that is too thin to be resized.
    pub fn prepare_image(&self, image: &DecodedImage, name: &Path) -> Result<Prepared> {
        let Some(preprocessing) = self.preprocessing() else {
            let reason = "only encodes texts, not images; use CLIP or MobileNetV2".into();
            return Err(InferError::Encoder { name: self.name.clone(), reason });
        };
        Ok(Prepared { tokens: None, pixels: Some(preprocessing.apply(image, name)?) })
    }

    /// The image preprocessing; `None` for an encoder that only supports texts.
    fn preprocessing(&self) -> Option<&Preprocessing> {
        match &self.model {
            Model::Text(_) => None,
            Model::Clip(model) => Some(model.images().preprocessing()),
            Model::ClipVision(model) => Some(model.preprocessing()),
            Model::Images(model) => Some(model.preprocessing()),
        }
    }

    /// Computes unit vectors of `N` items, `[N, D]` in row-major order. The vectors are
    /// bit-identical for any number of threads. An item without a supported modality gets a zero
    /// vector.
    ///
    /// # Errors
    /// [`InferError::Model`]
    pub fn encode(&self, items: &[&Prepared]) -> Result<Vec<f32>> {
        let width = self.width();
        let mut vectors = vec![0.0; items.len() * width];
        let (mut with_text, mut texts) = (Vec::new(), Vec::new());
        let (mut with_image, mut images) = (Vec::new(), Vec::new());
        for (i, item) in items.iter().enumerate() {
            if let Some(tokens) = &item.tokens {
                with_text.push(i);
                texts.push(tokens.as_slice());
            }
            if let Some(pixels) = &item.pixels {
                with_image.push(i);
                images.push(pixels.as_slice());
            }
        }
        let text_vectors = match &self.model {
            Model::Text(model) => model.embed(&texts)?,
            Model::Clip(model) => model.embed_texts(&texts)?,
            Model::ClipVision(_) | Model::Images(_) => Vec::new(),
        };
        let image_vectors = match &self.model {
            Model::Text(_) => Vec::new(),
            Model::Clip(model) => model.images().embed(&images)?,
            Model::ClipVision(model) => model.embed(&images)?,
            Model::Images(model) => model.embed(&images)?,
        };
        for (indices, encoded) in [(with_text, text_vectors), (with_image, image_vectors)] {
            for (i, vector) in indices.into_iter().zip(encoded.chunks(width)) {
                add_unit(vector, &mut vectors[i * width..(i + 1) * width]);
            }
        }
        vectors.chunks_mut(width).for_each(to_unit_length);
        Ok(vectors)
    }
}

/// The factor that normalises a vector to unit length; 0 for a zero vector.
fn unit_scale(vector: &[f32]) -> f64 {
    let squared_norm: f64 = vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    if squared_norm > 0.0 { 1.0 / squared_norm.sqrt() } else { 0.0 }
}

/// Adds a vector, normalised to unit length, to a sum.
fn add_unit(vector: &[f32], sum: &mut [f32]) {
    let scale = unit_scale(vector);
    sum.iter_mut().zip(vector).for_each(|(sum, v)| *sum += (f64::from(*v) * scale) as f32);
}

/// Normalises a vector to unit length; a zero vector stays zero.
fn to_unit_length(vector: &mut [f32]) {
    let scale = unit_scale(vector);
    vector.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
}

/// The `model_type` in a `config.json`. Invalid JSON gives `None` here and an error when the whole
/// file is read.
fn model_type(config: &Path) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Config {
        model_type: Option<String>,
    }
    let bytes = std::fs::read(config).map_err(InferError::io(config))?;
    let parsed = serde_json::from_slice::<Config>(&bytes).ok();
    Ok(parsed.and_then(|parsed| parsed.model_type))
}
