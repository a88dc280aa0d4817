//! An ASR model with AVFormer adapters, which are activated and deactivated by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_data::image::DecodedImage;
use engram_models::avformer::{Avformer, AvformerConfig, FrozenAsrModel, VisualTokens};
use engram_models::compute::Compute;
use engram_models::kernels::Mode;
use engram_models::params::ParameterBuilder;
use engram_models::speech::log_mel::seconds_to_samples;
use engram_models::weights::Weights;
use serde::{Deserialize, Serialize};

use super::{AsrModel, TranscribeOptions};
use crate::encode::{Encoder, Prepared};
use crate::error::{InferError, Result};
use crate::finished_run::{WEIGHTS, check_checksums};

/// `config.json` of an AVFormer run: the adapters, and the models that they were trained with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvformerRunConfig {
    /// [`AvformerRunConfig::MODEL_TYPE`].
    pub model_type: String,
    /// The configuration of the adapters and the projection.
    pub avformer: AvformerConfig,
    /// The frozen ASR model's name in the recipe.
    pub asr_model: String,
    /// The SHA-256 of the ASR model's weights.
    pub asr_model_sha256: String,
    /// The language of speech for a multilingual Whisper model; `None` for other models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// The frozen image encoder's name in the recipe.
    pub image_encoder: String,
    /// The SHA-256 of the image encoder's weights; empty if `frames` is 0.
    pub image_encoder_sha256: String,
    /// The SHA-256 of the image encoder's configuration and preprocessing; empty if `frames` is 0.
    pub image_encoder_inputs_sha256: String,
    /// The dimension of the image embeddings.
    pub image_width: usize,
    /// The number of images (video frames) per clip; 0 for a model that was trained without images.
    pub frames: usize,
    /// Silence that is appended to each clip, in seconds.
    #[serde(default)]
    pub silence_seconds: f64,
}

/// The maximum number of frames per clip. If a clip has more images, [`select_frames`] first
/// reduces them to this number, at equal distances.
pub const MAX_FRAMES: usize = 32;
/// The maximum silence after a clip, in seconds.
pub const MAX_SILENCE_SECONDS: f64 = 30.0;

/// A clip with the embeddings of its images.
#[derive(Debug, Clone, Default)]
pub struct AdaptedClip {
    /// The audio samples at 16 kHz.
    pub samples: Vec<f32>,
    /// Embeddings of `V` images with dimension `E`, `[V, E]` in row-major order, from
    /// [`AdaptedAsrModel::embed_images`]; empty without images.
    pub embeddings: Vec<f32>,
}

/// A frozen ASR model with the adapters of several runs. At most one set of adapters is active.
/// Without active adapters, the transcripts equal those of the ASR model.
pub struct AdaptedAsrModel {
    asr_model: AsrModel,
    /// The loaded adapters by name.
    adapters: BTreeMap<String, RunAdapters>,
    /// The name of the active adapters; `None` if no adapters are active.
    active: Option<String>,
}

struct RunAdapters {
    avformer: Avformer,
    /// `None` if the run was trained without images, or is used without images.
    image_encoder: Option<Encoder>,
    /// The number of images per clip.
    frames: usize,
    /// Silence that is appended to each clip, in samples.
    silence: usize,
}

impl AvformerRunConfig {
    /// The `model_type` in the file.
    pub const MODEL_TYPE: &str = "engram_avformer";
    /// The name of the file in a run folder.
    pub const FILE: &str = "config.json";

    /// Reads the file of a run. If the name of a model is a folder that exists only within the run
    /// folder, its path within the run folder is returned. Other names stay as in the recipe.
    ///
    /// # Errors
    /// [`InferError::BadChecksum`]; [`InferError::Io`]; [`InferError::Refused`] for a file that
    /// is not of an AVFormer run.
    pub fn read(run: &Path) -> Result<Self> {
        check_checksums(run)?;
        let path = run.join(Self::FILE);
        let bytes = engram_durable::read_file(&path).map_err(InferError::io(&path))?;
        let invalid = |reason: String| -> InferError {
            let remedy = "use the folder of a finished run of `engram train avformer`";
            format!("{}: {reason}; {remedy}", path.display()).into()
        };
        let config: Self = serde_json::from_slice(&bytes)
            .map_err(|error| invalid(format!("line {}: {error}", error.line())))?;
        if config.model_type != Self::MODEL_TYPE {
            return Err(invalid(format!("has the model type `{}`", config.model_type)));
        }
        config.check(&bytes).map_err(invalid)?;
        // A run folder may be moved together with models in its subfolders.
        let resolved = |name: String| match run.join(&name) {
            path if path.is_dir() && !Path::new(&name).exists() => path.display().to_string(),
            _ => name,
        };
        let asr_model = resolved(config.asr_model);
        let image_encoder = resolved(config.image_encoder);
        Ok(Self { asr_model, image_encoder, ..config })
    }

    /// Returns an error for values that no run writes. `bytes` is the content of the file.
    fn check(&self, bytes: &[u8]) -> std::result::Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let json: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| text(&e))?;
        // Missing fields would silently get their defaults.
        if serde_json::to_value(&self.avformer).map_err(|e| text(&e))? != json["avformer"] {
            return Err("`avformer` has missing fields".to_owned());
        }
        self.avformer.validate().map_err(|error| format!("`avformer`: {error}"))?;
        if self.frames > MAX_FRAMES {
            return Err(format!("`frames` is {}, more than {MAX_FRAMES}", self.frames));
        }
        if (self.frames > 0) == self.image_encoder_sha256.is_empty() {
            return Err("`frames` and `image_encoder_sha256` do not match".to_owned());
        }
        if (0.0..=MAX_SILENCE_SECONDS).contains(&self.silence_seconds) {
            Ok(())
        } else {
            Err(format!(
                "`silence_seconds` is {}, but has to be 0 to {MAX_SILENCE_SECONDS} seconds",
                self.silence_seconds
            ))
        }
    }
}

/// Loads the adapters and the projection of a run for its ASR model.
///
/// # Errors
/// [`InferError::Model`] for weights that cannot be read or belong to another model;
/// [`InferError::Refused`] for values that are NaN or infinite.
pub fn open_avformer(
    asr_model: FrozenAsrModel,
    config: &AvformerConfig,
    image_width: usize,
    weights: &Path,
) -> Result<Avformer> {
    let builder = ParameterBuilder::frozen(asr_model.compute());
    let builder = builder.with_weights(Arc::new(Weights::open(weights)?));
    let avformer = Avformer::new(asr_model, config, image_width, &builder)?;
    for parameter in builder.finish()?.iter() {
        if !parameter.read(|values| values.iter().all(|value| value.is_finite()))? {
            let (file, name) = (weights.display(), parameter.name());
            let reason = format!(
                "{file}: `{name}` has values that are not finite; train again, or use another run"
            );
            return Err(InferError::Refused(reason));
        }
    }
    Ok(avformer)
}

/// The factor from unit vectors to the projection's input, which has a mean square of 1.
pub fn embedding_scale(width: usize) -> f32 {
    (width as f32).sqrt()
}

impl AdaptedAsrModel {
    /// Creates a model without adapters.
    pub fn new(asr_model: AsrModel) -> Self {
        Self { asr_model, adapters: BTreeMap::new(), active: None }
    }

    /// The ASR model.
    pub fn asr_model(&self) -> &AsrModel {
        &self.asr_model
    }

    /// Loads the adapters of a run under a name, without activating them. The image encoder is
    /// loaded from `image_encoder`, or by default from its location in the run's configuration.
    ///
    /// # Errors
    /// [`InferError::Refused`] for a run that belongs to another ASR model or image encoder, and
    /// the errors of opening its files.
    pub fn add(&mut self, name: &str, run: &Path, image_encoder: Option<&str>) -> Result<()> {
        let config = self.read_matching_config(run)?;
        let encoder = match config.frames {
            0 => None,
            _ => {
                let location = image_encoder.unwrap_or(&config.image_encoder);
                let encoder = Encoder::open(location, &Compute::cpu()).map_err(|error| {
                    let remedy = "give its location, or use no frames";
                    let run = run.display();
                    format!("{run}: its image encoder could not be opened ({error}); {remedy}")
                })?;
                if encoder.sha256() != config.image_encoder_sha256 {
                    let (kind, expected) = ("image encoder", &config.image_encoder);
                    return Err(wrong_weights(run, kind, expected, location, encoder.sha256()));
                }
                if config.image_encoder_inputs_sha256 != encoder.inputs_sha256() {
                    let reason = format!(
                        "{}: was trained with the image encoder {}; {location} has the same \
                         weights, but another configuration or image preprocessing: use the \
                         encoder that it was trained with",
                        run.display(),
                        config.image_encoder
                    );
                    return Err(InferError::Refused(reason));
                }
                Some(encoder)
            }
        };
        self.insert(name, run, &config, encoder)
    }

    /// Loads adapters like [`AdaptedAsrModel::add`] for use without images. The image encoder is
    /// not opened and may be missing.
    ///
    /// # Errors
    /// The errors of [`AdaptedAsrModel::add`], except those of the image encoder.
    pub fn add_without_images(&mut self, name: &str, run: &Path) -> Result<()> {
        let config = self.read_matching_config(run)?;
        self.insert(name, run, &config, None)
    }

    /// Reads the configuration of a run and checks that it belongs to this ASR model.
    fn read_matching_config(&self, run: &Path) -> Result<AvformerRunConfig> {
        let config = AvformerRunConfig::read(run)?;
        let sha256 = self.asr_model.weights_sha256()?;
        if sha256 != config.asr_model_sha256 {
            let (kind, model) = ("ASR model", "the given ASR model");
            return Err(wrong_weights(run, kind, &config.asr_model, model, &sha256));
        }
        Ok(config)
    }

    /// Loads the adapters of a run and stores them under a name.
    fn insert(
        &mut self,
        name: &str,
        run: &Path,
        config: &AvformerRunConfig,
        image_encoder: Option<Encoder>,
    ) -> Result<()> {
        if let Some(language) = &config.language {
            self.asr_model.set_language(language)?;
        }
        let weights = run.join(WEIGHTS);
        let frozen = self.asr_model.frozen()?.start_at(config.avformer.first_block)?;
        let avformer = open_avformer(frozen, &config.avformer, config.image_width, &weights)?;
        let silence = seconds_to_samples(config.silence_seconds);
        let adapters = RunAdapters { avformer, image_encoder, frames: config.frames, silence };
        self.adapters.insert(name.to_string(), adapters);
        Ok(())
    }

    /// Activates the adapters with this name, and deactivates all others. `None` deactivates all.
    ///
    /// # Errors
    /// [`InferError::Refused`] for a name that was not added.
    pub fn activate(&mut self, name: Option<&str>) -> Result<()> {
        if let Some(name) = name.filter(|name| !self.adapters.contains_key(*name)) {
            let names: Vec<&str> = self.adapters.keys().map(String::as_str).collect();
            let remedy = if names.is_empty() {
                "add adapters first".to_owned()
            } else {
                format!("the names are {}", names.join(", "))
            };
            let reason = format!("there are no adapters `{name}`; {remedy}");
            return Err(InferError::Refused(reason));
        }
        self.active = name.map(str::to_string);
        Ok(())
    }

    fn active(&self) -> Option<&RunAdapters> {
        self.adapters.get(self.active.as_ref()?)
    }

    /// The number of images in the embeddings of a clip; 0 unless the active adapters use images.
    pub fn image_count(&self, clip: &AdaptedClip) -> usize {
        let image_encoder = self.active().and_then(|active| active.image_encoder.as_ref());
        image_encoder.map_or(0, |encoder| clip.embeddings.len() / encoder.width())
    }

    /// The number of images that the active adapters use per clip; 0 without active adapters, or if
    /// they use no images.
    pub fn frames(&self) -> usize {
        let active = self.active().filter(|active| active.image_encoder.is_some());
        active.map_or(0, |active| active.frames)
    }

    /// Chooses [`frames`](Self::frames) of a clip's images at equal distances, and computes their
    /// embeddings, `[V, E]` in row-major order. Empty unless the active adapters use images.
    ///
    /// # Errors
    /// [`InferError::Data`] with the name of an image that cannot be decoded.
    pub fn embed_images(&self, images: &[PathBuf]) -> Result<Vec<f32>> {
        let Some(RunAdapters { image_encoder: Some(encoder), frames, .. }) = self.active() else {
            return Ok(Vec::new());
        };
        let prepare = |path: &PathBuf| encoder.prepare_image(&DecodedImage::open(path)?, path);
        let selected = select_frames(images, *frames).into_iter();
        let prepared: Vec<Prepared> = selected.map(prepare).collect::<Result<_>>()?;
        let scale = embedding_scale(encoder.width());
        let mut embeddings = encoder.encode(&prepared.iter().collect::<Vec<_>>())?;
        embeddings.iter_mut().for_each(|value| *value *= scale);
        Ok(embeddings)
    }

    /// Transcribes clips in one batch with greedy decoding. Without active adapters, the
    /// transcripts are those of the ASR model.
    ///
    /// # Errors
    /// An error for a clip that is too long or too short; [`InferError::Refused`] for embeddings
    /// that do not match the adapters.
    pub fn transcribe(&self, clips: &[AdaptedClip]) -> Result<Vec<String>> {
        let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
        let Some(RunAdapters { avformer, image_encoder, frames, silence }) = self.active() else {
            let options = TranscribeOptions::default();
            let transcripts = self.asr_model.transcribe(&samples, &[], &options)?;
            return Ok(transcripts.into_iter().map(|transcript| transcript.text).collect());
        };
        let width = image_encoder.as_ref().map_or(1, Encoder::width);
        let max_values = frames * width * usize::from(image_encoder.is_some());
        let fits = |clip: &AdaptedClip| {
            clip.embeddings.len() <= max_values && clip.embeddings.len().is_multiple_of(width)
        };
        if let Some(clip) = clips.iter().find(|clip| !fits(clip)) {
            let reason = format!(
                "{} values are not embeddings of up to {frames} images of dimension {width}: \
                 compute them again with the active adapters",
                clip.embeddings.len()
            );
            return Err(InferError::Refused(reason));
        }
        let image_counts: Vec<usize> =
            clips.iter().map(|clip| clip.embeddings.len() / width).collect();
        let values: Vec<f32> = clips.iter().flat_map(|clip| clip.embeddings.clone()).collect();
        let shape = (image_counts.iter().sum::<usize>(), width);
        let embeddings = Tensor::from_vec(values, shape, &Device::Cpu)?;
        let visual = VisualTokens { embeddings: &embeddings, counts: &image_counts };
        let embedded = self.asr_model.embed(&avformer.asr_model, &samples, *silence)?;
        let encoded = avformer.encode(embedded, Some(&visual), &Mode::inference())?;
        let lengths: Vec<usize> = samples.iter().map(|samples| samples.len()).collect();
        self.asr_model.texts_of(&encoded, &lengths)
    }
}

/// The error for a run that was trained for the model `expected`, while `model` has other weights,
/// with this SHA-256. `kind` is the kind of both models.
fn wrong_weights(run: &Path, kind: &str, expected: &str, model: &str, sha256: &str) -> InferError {
    let reason = format!(
        "{}: was trained for the {kind} {expected}, but {model} has other weights (SHA-256 \
         {sha256}): use the {kind} that it was trained for",
        run.display()
    );
    reason.into()
}

/// Chooses `count` items of a list: the middle item of each of `count` equal parts. Returns all
/// items if the list is shorter.
pub fn sample_evenly<T>(items: &[T], count: usize) -> impl Iterator<Item = &T> {
    let (length, count) = (items.len(), count.min(items.len()));
    (0..count).map(move |i| &items[(2 * i + 1) * length / (2 * count)])
}

/// Chooses `count` of a clip's images at equal distances, as the evaluation of a run does: at most
/// [`MAX_FRAMES`] first, then `count` of these.
pub fn select_frames<T>(frames: &[T], count: usize) -> Vec<&T> {
    let chosen: Vec<&T> = sample_evenly(frames, MAX_FRAMES).collect();
    sample_evenly(&chosen, count).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenly_sampled_items_are_the_middles_of_equal_parts() {
        let items: Vec<usize> = (0..8).collect();
        let sampled = |count| sample_evenly(&items, count).copied().collect::<Vec<_>>();
        assert_eq!(sampled(4), [1, 3, 5, 7]);
        assert_eq!(sampled(1), [4]);
        assert_eq!(sampled(3), [1, 4, 6]);
        assert_eq!(sampled(20), items);
        assert!(sampled(0).is_empty() && sample_evenly(&[0; 0], 3).next().is_none());
    }
}
