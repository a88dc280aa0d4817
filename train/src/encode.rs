//! Encoders from a model's folder: texts and pictures as unit vectors, for a memory's keys and for its queries.
//!
//! | folder | texts | pictures |
//! |---|---|---|
//! | `config.json` of BERT or DeBERTa | as `modules.json` says, else the mean of the states | – |
//! | `config.json` of CLIP | the text tower | the vision tower |
//! | that of CLIP's vision tower (`clip_vision_model`) | – | the vision tower |
//! | `mobilenet_v2_ops.json` | – | the average pool of MobileNetV2 |
//!
//! CLIP makes of a text with a picture the sum of both unit vectors, at unit length. (REVEAL encodes both together in
//! one network; that comes with its model.)

mod clip;
mod files;
mod joint;
mod layout;
mod pictures;
mod text;
mod tokenizer;

use std::path::Path;

use engram_data::hub::WeightsLocation;
use engram_data::image::{Picture, Preprocessing};
use engram_models::clip::CLIP_VISION;
use engram_models::mobilenet::OPS_FILE;
pub use engram_models::similarity::sentence_transformer::PromptChoice;
use engram_models::similarity::sentence_transformer::Prompts;
use serde::Deserialize;

use crate::digest;
use crate::error::{Result, TrainError};
use crate::published::{PublishedFolder, is_missing};
pub use files::EncoderFiles;
pub use joint::{JointEncoder, PreparedParts};
use layout::Layout;

/// The `model_type` of CLIP.
const CLIP: &str = "clip";

/// What is to be encoded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Item<'a> {
    /// A text.
    pub text: Option<&'a str>,
    /// The file of a picture.
    pub picture: Option<&'a Path>,
}

/// What an encoder takes of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// Its text.
    pub text: bool,
    /// Its picture.
    pub pictures: bool,
}

/// An item as tokens and pixels; what the encoder does not take is `None`.
#[derive(Debug, Clone)]
pub struct Prepared {
    tokens: Option<Vec<u32>>,
    pixels: Option<Vec<f32>>,
}

impl Prepared {
    /// The pixels of its picture; none without one.
    pub(crate) fn pixels(&self) -> &[f32] {
        self.pixels.as_deref().unwrap_or_default()
    }
}

/// A frozen model that makes unit vectors.
pub struct Encoder {
    name: String,
    sha256: String,
    model: Model,
    prompts: Prompts,
    /// What stands before each text.
    prompt: String,
}

enum Model {
    Text(Box<text::TextModel>),
    Clip(Box<clip::ClipModel>),
    ClipVision(Box<clip::ClipPictures>),
    Pictures(pictures::PictureModel),
}

impl Encoder {
    /// Opens the model of a folder or of `hf://owner/name`; texts get its default prompt.
    ///
    /// # Errors
    /// [`TrainError::Data`] for files that are missing, [`TrainError::Model`] for a model that is not known or does not
    /// fit its weights.
    pub fn open(location: &str) -> Result<Self> {
        Self::with_prompt(location, &PromptChoice::Default)
    }

    /// As [`open`](Self::open), with the chosen prompt before each text.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`TrainError::Model`] for a prompt that the model does not have.
    pub fn with_prompt(location: &str, choice: &PromptChoice) -> Result<Self> {
        let folder = PublishedFolder::open(location)?;
        let layout = Layout::read(folder.clone())?;
        let (mut model, sha256) = Self::build(&folder, &layout)?;
        let name = match folder.place() {
            WeightsLocation::Folder(path) => match path.canonicalize() {
                Ok(absolute) => absolute.display().to_string(),
                Err(_) => folder.place().to_string(),
            },
            hub => hub.to_string(),
        };
        let prompt = layout.prompts.text(choice, &name)?.to_owned();
        match &mut model {
            Model::Text(model) => model.set_prompt(&prompt, choice)?,
            Model::Clip(model) => model.set_role(choice),
            Model::ClipVision(_) | Model::Pictures(_) => {}
        }
        Ok(Self { name, sha256, model, prompts: layout.prompts, prompt })
    }

    /// The model with the SHA-256 of what decides its vectors.
    fn build(folder: &PublishedFolder, layout: &Layout) -> Result<(Model, String)> {
        let transformer = layout.transformer();
        let config = match transformer.find("config.json") {
            Ok(config) => config,
            // Without a configuration, only the folder layout of MobileNetV2 is known.
            Err(missing) if is_missing(&missing) => {
                let Ok(ops) = folder.find(OPS_FILE) else { return Err(missing.into()) };
                let find = |file: &str| folder.find(file);
                let (model, weights) = pictures::PictureModel::open(&ops, &find)?;
                let (_, sha256) = digest::of_file(&weights).map_err(TrainError::io(&weights))?;
                return Ok((Model::Pictures(model), sha256));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(match model_type(&config)?.as_deref() {
            Some(CLIP) => {
                let (model, sha256) = clip::ClipModel::open(layout, &config)?;
                (Model::Clip(Box::new(model)), sha256)
            }
            Some(CLIP_VISION) => {
                let (model, sha256) = clip::ClipPictures::open(&transformer, &config)?;
                (Model::ClipVision(Box::new(model)), sha256)
            }
            _ => {
                let (model, sha256) = text::TextModel::open(layout)?;
                (Model::Text(Box::new(model)), sha256)
            }
        })
    }

    /// What stands before each text; empty for nothing.
    pub fn prompt(&self) -> &str {
        &self.prompt
    }

    /// What a user should know of the model's settings, a line for each.
    pub fn advice(&self, choice: &PromptChoice) -> Vec<String> {
        let mut advice = Vec::new();
        if let (PromptChoice::Document, Some(name)) = (choice, self.prompts.passed_over()) {
            advice.push(format!(
                "{}: has the prompt `{name}`, which sentence-transformers does not take by itself; --prompt {name} \
                 takes it",
                self.name
            ));
        }
        if let Some(other) = &self.prompts.other_similarity {
            advice.push(format!(
                "{}: is made for the similarity `{other}`; keys and queries have unit length here, so scores are cosines",
                self.name
            ));
        }
        advice
    }

    /// The folder's absolute path, or the address on the hub.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The SHA-256 of the weights file; where modules do more than average, of them too.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The width `D` of its vectors.
    pub fn width(&self) -> usize {
        match &self.model {
            Model::Text(model) => model.width(),
            Model::Clip(model) => model.pictures().width(),
            Model::ClipVision(model) => model.width(),
            Model::Pictures(model) => model.width(),
        }
    }

    /// What it takes of an item.
    pub fn reads(&self) -> Reads {
        match &self.model {
            Model::Text(_) => Reads { text: true, pictures: false },
            Model::Clip(_) => Reads { text: true, pictures: true },
            Model::ClipVision(_) | Model::Pictures(_) => Reads { text: false, pictures: true },
        }
    }

    /// An item as tokens and pixels; texts that are too long lose their end.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a picture that cannot be read, or a text that cannot be expressed.
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
        let pixels = match (self.preprocessing(), item.picture) {
            (Some(preprocessing), Some(path)) => {
                Some(preprocessing.apply(&Picture::open(path)?, path)?)
            }
            _ => None,
        };
        Ok(Prepared { tokens, pixels })
    }

    /// A picture that is in memory already, as pixels; errors call it `name`.
    ///
    /// # Errors
    /// [`TrainError::Encoder`] for an encoder of texts alone; [`TrainError::Data`] for a picture that is too thin.
    pub fn prepare_picture(&self, picture: &Picture, name: &Path) -> Result<Prepared> {
        let Some(preprocessing) = self.preprocessing() else {
            let reason = "encodes texts alone, and no picture; take CLIP or MobileNetV2".into();
            return Err(TrainError::Encoder { name: self.name.clone(), reason });
        };
        Ok(Prepared { tokens: None, pixels: Some(preprocessing.apply(picture, name)?) })
    }

    /// How pictures become pixels; `None` for an encoder of texts alone.
    fn preprocessing(&self) -> Option<&Preprocessing> {
        match &self.model {
            Model::Text(_) => None,
            Model::Clip(model) => Some(model.pictures().preprocessing()),
            Model::ClipVision(model) => Some(model.preprocessing()),
            Model::Pictures(model) => Some(model.preprocessing()),
        }
    }

    /// Unit vectors of items, `[N, D]`, the same bytes for any number of threads; zeros for an item of which the
    /// encoder takes nothing.
    ///
    /// # Errors
    /// [`TrainError::Model`].
    pub fn encode(&self, items: &[&Prepared]) -> Result<Vec<f32>> {
        let width = self.width();
        let mut vectors = vec![0.0; items.len() * width];
        let (mut with_text, mut texts) = (Vec::new(), Vec::new());
        let (mut with_picture, mut pictures) = (Vec::new(), Vec::new());
        for (row, item) in items.iter().enumerate() {
            if let Some(tokens) = &item.tokens {
                with_text.push(row);
                texts.push(tokens.as_slice());
            }
            if let Some(pixels) = &item.pixels {
                with_picture.push(row);
                pictures.push(pixels.as_slice());
            }
        }
        let of_texts = match &self.model {
            Model::Text(model) => model.embed(&texts)?,
            Model::Clip(model) => model.embed_texts(&texts)?,
            Model::ClipVision(_) | Model::Pictures(_) => Vec::new(),
        };
        let of_pictures = match &self.model {
            Model::Text(_) => Vec::new(),
            Model::Clip(model) => model.pictures().embed(&pictures)?,
            Model::ClipVision(model) => model.embed(&pictures)?,
            Model::Pictures(model) => model.embed(&pictures)?,
        };
        for (rows, made) in [(with_text, of_texts), (with_picture, of_pictures)] {
            for (row, made) in rows.into_iter().zip(made.chunks(width)) {
                add_unit(made, &mut vectors[row * width..(row + 1) * width]);
            }
        }
        vectors.chunks_mut(width).for_each(to_unit_length);
        Ok(vectors)
    }
}

/// The factor that brings a vector to unit length; 0 for zeros.
fn unit_scale(vector: &[f32]) -> f64 {
    let square: f64 = vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    if square > 0.0 { 1.0 / square.sqrt() } else { 0.0 }
}

fn add_unit(vector: &[f32], sum: &mut [f32]) {
    let scale = unit_scale(vector);
    sum.iter_mut().zip(vector).for_each(|(sum, v)| *sum += (f64::from(*v) * scale) as f32);
}

fn to_unit_length(vector: &mut [f32]) {
    let scale = unit_scale(vector);
    vector.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
}

/// The `model_type` of a `config.json`; what is no JSON is refused by whoever reads the whole of it.
fn model_type(config: &Path) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Published {
        model_type: Option<String>,
    }
    let text = std::fs::read(config).map_err(TrainError::io(config))?;
    let published = serde_json::from_slice::<Published>(&text).ok();
    Ok(published.and_then(|published| published.model_type))
}
