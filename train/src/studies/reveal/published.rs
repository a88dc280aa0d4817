//! The published models that a recipe's `[model]` names: their sizes, weights, tokenizer and pictures.

use std::path::{Path, PathBuf};

use engram_data::image::Preprocessing;
use engram_data::text_to_text::TextToText;
use engram_models::reveal::published::PublishedWeights;
use engram_models::t5::T5Config;
use engram_models::vit::ViTConfig;

use super::corpus::pictures::squared;
use super::settings::RevealModel;
use crate::digest;
use crate::published::PublishedFolder;
use crate::study::StudyResult;

/// The picture processor's file, in a model's folder and in a run's.
pub const PROCESSOR: &str = "preprocessor_config.json";

/// What was found of the published models.
#[derive(Default)]
pub struct Published {
    /// The sizes of the texts' model.
    pub t5: Option<T5Config>,
    /// Its tokenizer.
    pub tokens: Option<TextToText>,
    /// The sizes of the pictures' model, without its class token.
    pub vit: Option<ViTConfig>,
    /// How pictures become its input, if its folder says so.
    pub processor: Option<PathBuf>,
    /// The files of weights.
    pub weights: PublishedWeights,
    /// The SHA-256 of each file that was read.
    pub digests: Vec<(String, String)>,
    /// What starts afresh, for the reader of the figures.
    pub notes: Vec<String>,
}

impl Published {
    /// Finds the files of `model.t5` and `model.vit` in their folders, in the hub's cache, or on the hub.
    ///
    /// # Errors
    /// Files that are missing, and configurations of other models; each names its file.
    pub fn find(model: &RevealModel) -> StudyResult<Self> {
        let mut found = Self::default();
        if model.t5.is_empty() {
            found.notes.push("texts start from fresh weights: `model.t5` names none".to_owned());
        } else {
            let folder = PublishedFolder::open(&model.t5)?;
            let sizes = folder.file("config.json")?;
            let config = T5Config::read(&sizes)?;
            let tokenizer = folder.tokenizer()?;
            let json = std::fs::read_to_string(&tokenizer)
                .map_err(|error| format!("{}: {error}", tokenizer.display()))?;
            let tokens = TextToText::parse(&json, &tokenizer)?;
            tokens.check_fits(config.vocab_size)?;
            let weights = folder.weights()?;
            found.digest("T5 sizes", &sizes)?;
            found.digest("T5 tokenizer", &tokenizer)?;
            found.digests.push(("T5 weights".to_owned(), weights.sha256));
            found.weights.t5 = Some(weights.path);
            (found.t5, found.tokens) = (Some(config), Some(tokens));
        }
        if model.vit.is_empty() {
            let note = "the image encoder starts from fresh weights: `model.vit` names none";
            found.notes.push(note.to_owned());
        } else {
            let folder = PublishedFolder::open(&model.vit)?;
            let sizes = folder.file("config.json")?;
            let config = ViTConfig::read(&sizes)?;
            let weights = folder.weights()?;
            found.digest("ViT sizes", &sizes)?;
            found.digests.push(("ViT weights".to_owned(), weights.sha256));
            found.weights.vit = Some(weights.path);
            found.vit = Some(ViTConfig { class_token: false, ..config });
            found.processor = folder.optional_image_processor()?.map(|(path, _)| path);
            if let Some(processor) = found.processor.clone() {
                found.digest("ViT picture processor", &processor)?;
            }
        }
        Ok(found)
    }

    /// Whether nothing is published of what the model starts from.
    pub fn is_none(&self) -> bool {
        self.weights == PublishedWeights::default()
    }

    fn digest(&mut self, name: &str, path: &Path) -> StudyResult<()> {
        let (_, hash) =
            digest::of_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
        self.digests.push((name.to_owned(), hash));
        Ok(())
    }

    /// How pictures become `size` pixels square.
    ///
    /// # Errors
    /// A processor's file that makes pictures of another size.
    pub fn preprocessing(&self, size: usize) -> StudyResult<Preprocessing> {
        preprocessing(self.processor.as_deref(), size)
    }
}

/// How pictures become `size` pixels square, by a published file if there is one.
///
/// # Errors
/// A file that makes pictures of another size.
pub fn preprocessing(processor: Option<&Path>, size: usize) -> StudyResult<Preprocessing> {
    let Some(path) = processor else { return Ok(squared(size)) };
    let preprocessing = Preprocessing::read(path)?;
    let edge = u32::try_from(size).unwrap_or(u32::MAX);
    match preprocessing.output_size() {
        Some(found) if found == (edge, edge) => Ok(preprocessing),
        _ => Err(format!(
            "{}: does not make pictures of {size} x {size} pixels, which config.json asks for; take \
             both files from one model",
            path.display()
        )
        .into()),
    }
}
