//! Pretrained encoders: texts and images as unit vectors, for the keys and queries of a retrieval
//! memory.
//!
//! `config.json` tells the family ([`ModelFamily`]); MobileNetV2 has none, but only
//! `mobilenet_v2_1.0_224.safetensors`. A text encoder pools as its `modules.json` says, or by mean
//! pooling without this file.
//!
//! For a text with an image, CLIP and SigLIP add the unit vectors of both and normalise the sum.
//! (REVEAL encodes text and image together in one network, which is part of its model.)
//! [`Encoder::embed`] gives the vectors as the model publishes them, most of which have other
//! lengths.

mod clip;
mod files;
mod frozen;
mod identity;
mod images;
mod joint;
mod layout;
mod text;
mod tokenizer;

use std::path::Path;

use engram_data::image::DecodedImage;
use engram_data::messages::{counted, message};
use engram_data::tokenizer::TextForm;
use engram_frozen::Family;
use engram_models::clip::CLIP_VISION;
use engram_models::compute::{Compute, to_host};
use engram_models::mobilenet;
use engram_models::packed::PackedTokens;
pub use engram_models::similarity::sentence_transformer::PromptChoice;
use engram_models::similarity::sentence_transformer::Prompts;
use serde_json::{Map, Value};

use crate::error::{InferError, Result};
use crate::families::ModelFamily;
use crate::pretrained::{PretrainedFolder, is_missing};
pub use files::EncoderFiles;
use identity::Identity;
use images::Images;
pub use joint::JointEncoder;
use layout::Layout;
use text::TextModel;
use tokenizer::TextTokens;

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

/// A text encoder with its tokenizer and the settings of its texts.
struct Texts {
    model: TextModel,
    tokens: TextTokens,
    form: TextForm,
}

impl Texts {
    fn new(model: TextModel, tokens: TextTokens) -> Self {
        let form = tokens.form(&PromptChoice::Default);
        Self { model, tokens, form }
    }

    /// Sets the prompt `text` for all further texts, with the length limit of queries or documents.
    fn set_prompt(&mut self, text: &str, choice: &PromptChoice) -> Result<()> {
        self.form = self.tokens.form(choice);
        if !text.is_empty() {
            let ids = self.tokens.tokens(text, &self.form)?;
            self.model.set_prompt(&ids, self.tokens.tokenizer.special());
        }
        Ok(())
    }
}

/// A frozen model that encodes texts, images or both as unit vectors.
pub struct Encoder {
    name: String,
    identity: Identity,
    /// `None` for a model that only supports images.
    texts: Option<Texts>,
    /// `None` for a model that only supports texts.
    images: Option<Images>,
    modules: String,
    prompts: Prompts,
    /// The prompt that is put before each input text; may be empty.
    prompt: String,
}

/// A model's text encoder, image encoder and identity.
type Parts = (Option<Texts>, Option<Images>, Identity);

/// At its end, an encoder prints a note if it truncated texts.
impl Drop for Encoder {
    fn drop(&mut self) {
        let (count, limit) = (self.truncated_texts(), self.max_length().unwrap_or(0));
        if count > 0 {
            let texts = counted(count, "text");
            message(&format!("note: {}: cut {texts} to {limit} tokens", self.name));
        }
    }
}

impl Encoder {
    /// Opens the model in a folder or at `hf://owner/name`, with its default prompt. It computes on
    /// `compute`; MobileNetV2 and the models of [`engram_frozen`] always compute on the CPU.
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
        let (mut texts, images, identity) = Self::build(&folder, &layout, compute)?;
        let name = folder.name();
        let prompt = layout.prompts.text(choice, &name)?.to_owned();
        if let Some(texts) = &mut texts {
            texts.set_prompt(&prompt, choice)?;
        }
        let modules = layout.names()?;
        Ok(Self { name, identity, texts, images, modules, prompts: layout.prompts, prompt })
    }

    /// Builds the encoders and computes their identity.
    fn build(folder: &PretrainedFolder, layout: &Layout, compute: &Compute) -> Result<Parts> {
        let transformer = layout.transformer();
        let config = match transformer.file("config.json") {
            Ok(config) => config,
            // Without a configuration file, only the layout of MobileNetV2 is supported.
            Err(missing) if is_missing(&missing) => {
                let weights = folder.file(mobilenet::WEIGHTS_FILE);
                let weights =
                    weights.map_err(|error| if is_missing(&error) { missing } else { error })?;
                let (images, identity) = Images::mobilenet(&weights)?;
                return Ok((None, Some(images), identity));
            }
            Err(error) => return Err(error.into()),
        };
        let text = config_text(&config)?;
        if let Some(family) = Family::of(&text) {
            return frozen::open(family, layout, &config, &text);
        }
        // Invalid JSON is an error when the whole file is read.
        let fields: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
        match fields.get("model_type").and_then(Value::as_str) {
            Some("clip") => clip::open_both(layout, &config, &text, compute),
            Some(CLIP_VISION) => clip::open_vision(&transformer, &config, &text, compute),
            kind => {
                if kind.is_some() {
                    let name = config.display().to_string();
                    ModelFamily::of_config(&fields, name, ModelFamily::is_encoder)?;
                }
                TextModel::open(layout, compute)
            }
        }
    }

    /// The prompt that is put before each input text; may be empty.
    pub fn prompt(&self) -> &str {
        &self.prompt
    }

    /// All prompts of the model.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// The modules of a text encoder, as in sentence-transformers.
    pub fn modules(&self) -> &str {
        &self.modules
    }

    /// The maximum length of a text, in tokens with the special tokens; `None` for an encoder of
    /// images.
    pub fn max_length(&self) -> Option<usize> {
        self.texts.as_ref().map(|texts| texts.form.max_length)
    }

    /// The number of texts that were longer than the maximum length, and so were cut.
    pub fn truncated_texts(&self) -> usize {
        self.texts.as_ref().map_or(0, |texts| texts.tokens.tokenizer.truncated_texts())
    }

    /// Sets the maximum length of all further texts, in tokens with the special tokens; at least 3.
    ///
    /// # Errors
    /// [`InferError::Encoder`] for more tokens than the model has positions.
    pub fn set_max_length(&mut self, length: usize) -> Result<()> {
        let Some(texts) = &mut self.texts else { return Ok(()) };
        if let Some(positions) = texts.tokens.positions.filter(|positions| length > *positions) {
            let reason = format!("encodes at most {positions} tokens, not {length}; give fewer");
            return Err(InferError::Encoder { name: self.name.clone(), reason });
        }
        texts.form.max_length = length.max(3);
        Ok(())
    }

    /// Notes for the user about settings of the model that the encoder ignores. `choice` is the
    /// prompt that the encoder was opened with.
    pub fn notes(&self, choice: &PromptChoice) -> Vec<String> {
        let mut notes = Vec::new();
        if let (PromptChoice::Document, Some(name)) = (choice, self.prompts.ignored_prompt()) {
            notes.push(format!(
                "{}: has the prompt `{name}`, but sentence-transformers does not use it by \
                 default; choose it by its name to apply it",
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
        match (&self.texts, &self.images) {
            (_, Some(images)) => images.width,
            (Some(texts), None) => texts.model.width,
            (None, None) => 0,
        }
    }

    /// The modalities that the encoder supports.
    pub fn modalities(&self) -> Modalities {
        Modalities { text: self.texts.is_some(), images: self.images.is_some() }
    }

    /// Converts an item to tokens and pixels. Texts beyond the model's maximum length are
    /// truncated.
    ///
    /// # Errors
    /// [`InferError::Data`] for an image that cannot be read, or a text that cannot be tokenized.
    pub fn prepare(&self, item: Item<'_>) -> Result<Prepared> {
        let tokens = match (&self.texts, item.text) {
            (Some(texts), Some(text)) => {
                let text = format!("{}{text}", self.prompt);
                Some(texts.tokens.tokens(&text, &texts.form)?)
            }
            _ => None,
        };
        let pixels = match (&self.images, item.image) {
            (Some(images), Some(path)) => {
                Some(images.preprocessing.apply(&DecodedImage::open(path)?, path)?)
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
        let Some(images) = &self.images else {
            let reason = "only encodes texts, not images; use CLIP, SigLIP, DINOv2 or MobileNetV2";
            let reason = reason.into();
            return Err(InferError::Encoder { name: self.name.clone(), reason });
        };
        Ok(Prepared { tokens: None, pixels: Some(images.preprocessing.apply(image, name)?) })
    }

    /// Computes unit vectors of `N` items, `[N, D]` in row-major order. The vectors are
    /// bit-identical for any number of threads. An item without a supported modality gets a zero
    /// vector.
    ///
    /// # Errors
    /// [`InferError::Model`]
    pub fn encode(&self, items: &[&Prepared]) -> Result<Vec<f32>> {
        let mut vectors = self.sums(items, to_unit_length)?;
        vectors.chunks_mut(self.width()).for_each(to_unit_length);
        Ok(vectors)
    }

    /// Computes the vectors of `N` texts or images as the model publishes them, `[N, D]` in
    /// row-major order: those of `encode` in sentence-transformers, of `get_text_features` and
    /// `get_image_features` of CLIP. Like [`encode`](Self::encode), but without a unit length that
    /// the model itself does not give; for an item with a text and an image, the sum.
    ///
    /// # Errors
    /// [`InferError::Model`]
    pub fn embed(&self, items: &[&Prepared]) -> Result<Vec<f32>> {
        self.sums(items, |_| {})
    }

    /// The sum of the vectors of each item's text and image, after `change`, `[N, D]`.
    fn sums(&self, items: &[&Prepared], change: fn(&mut [f32])) -> Result<Vec<f32>> {
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
        let mut vectors = Vec::new();
        if let Some(encoder) = &self.texts {
            for batch in text::batches_of_tokens(&texts) {
                vectors.extend(to_host(&encoder.model.embed(PackedTokens::new(batch))?)?);
            }
        }
        if let Some(encoder) = &self.images {
            vectors.extend(encoder.embed(&images)?);
        }
        let width = self.width();
        let mut sums = vec![0.0; items.len() * width];
        let rows = with_text.into_iter().chain(with_image);
        for (row, vector) in rows.zip(vectors.chunks_mut(width)) {
            change(vector);
            sums[row * width..].iter_mut().zip(vector).for_each(|(sum, x)| *sum += *x);
        }
        Ok(sums)
    }
}

/// Normalises a vector to unit length; a zero vector stays zero.
pub fn to_unit_length(vector: &mut [f32]) {
    let squared_norm: f64 = vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let scale = if squared_norm > 0.0 { 1.0 / squared_norm.sqrt() } else { 0.0 };
    vector.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
}

/// The text of a `config.json`. Invalid UTF-8 gives an error when the text is parsed.
fn config_text(config: &Path) -> Result<String> {
    let bytes = engram_durable::read_file(config).map_err(InferError::io(config))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
