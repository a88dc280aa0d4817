//! A recogniser with what AVFormer has learnt: switched on by name, and off again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_data::image::Picture;
use engram_models::ModelError;
use engram_models::avformer::{Avformer, AvformerConfig, FrozenRecogniser, VisualTokens};
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::speech::log_mel::samples_of;
use engram_models::weights::Weights;
use serde::{Deserialize, Serialize};

use super::{Listener, RecogniseOptions};
use crate::checksums::check_checksums;
use crate::encode::{Encoder, Prepared};
use crate::error::{Result, TrainError};
use crate::trainer::WEIGHTS;

/// `config.json` of a run of AVFormer: the models that its weights belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedTo {
    /// [`AddedTo::MODEL_TYPE`].
    pub model_type: String,
    /// What is added.
    pub avformer: AvformerConfig,
    /// The frozen recogniser, as the recipe names it.
    pub recogniser: String,
    /// The SHA-256 of its weights.
    pub recogniser_sha256: String,
    /// The frozen image encoder, as the recipe names it.
    pub image_encoder: String,
    /// The SHA-256 of its weights; empty where no frames are shown.
    pub image_encoder_sha256: String,
    /// The width of its embeddings.
    pub image_width: usize,
    /// Frames that are shown of each clip; 0 where none were shown in training.
    pub frames: usize,
    /// Seconds of silence behind each clip.
    #[serde(default)]
    pub silence: f64,
}

/// Pictures of a clip that are chosen from: of more, so many evenly.
pub const MOST_FRAMES: usize = 32;
/// The most silence behind a clip, in seconds.
pub(crate) const MOST_SILENCE: f64 = 30.0;

/// What is seen while a clip is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Its own frames.
    Right,
    /// Those of another clip.
    Wrong,
    /// Embeddings of zeros.
    Zero,
    /// No visual token.
    Nothing,
}

/// A clip, and the embeddings of what is seen.
#[derive(Debug, Clone, Default)]
pub struct AdaptedClip {
    /// At 16 kHz.
    pub samples: Vec<f32>,
    /// `[V, E]` of [`AdaptedRecogniser::see`]; empty for no frames.
    pub embeddings: Vec<f32>,
}

/// A frozen recogniser, and what was learnt for it in several runs. At most one of these is on; with none the texts are
/// those of the recogniser itself, bit for bit.
pub struct AdaptedRecogniser {
    listener: Listener,
    added: BTreeMap<String, Added>,
    on: Option<String>,
}

/// What one run has learnt.
struct Added {
    avformer: Avformer,
    /// `None` where it has learnt without frames, or is to see nothing.
    eyes: Option<Encoder>,
    frames: usize,
    /// Samples of silence behind each clip.
    silence: usize,
}

impl AddedTo {
    /// The kind of model that the file names.
    pub const MODEL_TYPE: &str = "engram_avformer";
    /// The file in a run's folder.
    pub const FILE: &str = "config.json";

    /// Reads that of a run. Folders of models are named as in the recipe, or as they lie from the run.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Recognise`] for another kind of file.
    pub fn read(run: &Path) -> Result<Self> {
        check_checksums(run)?;
        let path = run.join(Self::FILE);
        let bytes = std::fs::read(&path).map_err(TrainError::io(&path))?;
        let bad = |reason: String| TrainError::Recognise {
            reason: format!(
                "{}: {reason}; give the folder of a finished run of `engram train avformer`",
                path.display()
            ),
        };
        let read: Self = serde_json::from_slice(&bytes)
            .map_err(|error| bad(format!("line {}: {error}", error.line())))?;
        if read.model_type != Self::MODEL_TYPE {
            return Err(bad(format!("is of a `{}`", read.model_type)));
        }
        read.check(&bytes).map_err(bad)?;
        // Models that lie beside a run may move with it.
        let beside = |name: String| match run.join(&name) {
            path if path.is_dir() && !Path::new(&name).exists() => path.display().to_string(),
            _ => name,
        };
        let (recogniser, image_encoder) = (beside(read.recogniser), beside(read.image_encoder));
        Ok(Self { recogniser, image_encoder, ..read })
    }

    /// Fails for what no run writes; `written` are the bytes of the file.
    fn check(&self, written: &[u8]) -> std::result::Result<(), String> {
        let bad = |error: &dyn std::fmt::Display| error.to_string();
        let written: serde_json::Value = serde_json::from_slice(written).map_err(|e| bad(&e))?;
        // What is left out of it would be taken to be as usual.
        if serde_json::to_value(&self.avformer).map_err(|e| bad(&e))? != written["avformer"] {
            return Err("`avformer` does not say all of what was added".to_owned());
        }
        self.avformer.validate().map_err(|error| format!("`avformer`: {error}"))?;
        if self.frames > MOST_FRAMES {
            return Err(format!("`frames` is {}, more than {MOST_FRAMES}", self.frames));
        }
        if (self.frames > 0) == self.image_encoder_sha256.is_empty() {
            return Err("`frames` and `image_encoder_sha256` do not go together".to_owned());
        }
        match (0.0..=MOST_SILENCE).contains(&self.silence) {
            true => Ok(()),
            false => Err(format!("`silence` is {}, not 0 to {MOST_SILENCE} seconds", self.silence)),
        }
    }
}

/// Adapters and map of a run's weights, for its recogniser.
///
/// # Errors
/// [`TrainError::Model`] for weights that cannot be read, or are of another model; [`TrainError::Recognise`] for those
/// with numbers that are none.
pub(crate) fn open_avformer(
    recogniser: FrozenRecogniser,
    (config, image_width): (&AvformerConfig, usize),
    weights: &Path,
) -> Result<Avformer> {
    let frozen = vec![ParameterGroup::all_frozen()];
    let builder = ParameterBuilder::new(0, frozen, DType::F32, &Device::Cpu);
    let builder = builder.with_weights(Arc::new(Weights::open(weights)?));
    let avformer = Avformer::new(recogniser, config, image_width, &builder)?;
    for parameter in builder.finish()?.iter() {
        if !parameter.read(|values| values.iter().all(|value| value.is_finite()))? {
            let (file, name) = (weights.display(), parameter.name());
            let reason = format!(
                "{file}: `{name}` has numbers that are not finite; train the run again, or give another"
            );
            return Err(TrainError::Recognise { reason });
        }
    }
    Ok(avformer)
}

/// Embeddings as the projection takes them: unit vectors times this, so that their mean square is 1.
pub(crate) fn embedding_scale(width: usize) -> f32 {
    (width as f32).sqrt()
}

impl AdaptedRecogniser {
    /// A recogniser to which nothing is added yet.
    pub fn new(listener: Listener) -> Self {
        Self { listener, added: BTreeMap::new(), on: None }
    }

    /// The recogniser itself.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Adds what a run has learnt, by a name, without switching it on. Its image encoder is looked for
    /// where the run says, or at `image_encoder`.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] for a run that belongs to another recogniser or image encoder, and those
    /// of opening its files.
    pub fn add(&mut self, name: &str, run: &Path, image_encoder: Option<&str>) -> Result<()> {
        let config = self.config_of(run)?;
        let eyes = match config.frames {
            0 => None,
            _ => {
                let given = image_encoder.unwrap_or(&config.image_encoder);
                let encoder = Encoder::open(given).map_err(|error| TrainError::Recognise {
                    reason: format!(
                        "{}: its image encoder could not be opened ({error}); give where it lies \
                         (--image-encoder), or show no frames (--frames none)",
                        run.display()
                    ),
                })?;
                if encoder.sha256() != config.image_encoder_sha256 {
                    let wanted = ("image encoder", config.image_encoder.as_str());
                    return Err(differs(run, wanted, given, encoder.sha256()));
                }
                Some(encoder)
            }
        };
        self.add_with(name, run, &config, eyes)
    }

    /// As [`AdaptedRecogniser::add`] for one that is to see nothing: its image encoder is not opened, and need not
    /// be there.
    ///
    /// # Errors
    /// As [`AdaptedRecogniser::add`], those of an image encoder aside.
    pub fn add_unseeing(&mut self, name: &str, run: &Path) -> Result<()> {
        let config = self.config_of(run)?;
        self.add_with(name, run, &config, None)
    }

    /// What a run of this recogniser says of itself.
    fn config_of(&self, run: &Path) -> Result<AddedTo> {
        let config = AddedTo::read(run)?;
        let found = self.listener.weights_sha256()?;
        if found != config.recogniser_sha256 {
            let wanted = ("recogniser", config.recogniser.as_str());
            return Err(differs(run, wanted, "the recogniser that is given", &found));
        }
        Ok(config)
    }

    fn add_with(
        &mut self,
        name: &str,
        run: &Path,
        config: &AddedTo,
        eyes: Option<Encoder>,
    ) -> Result<()> {
        let added_to = (&config.avformer, config.image_width);
        let avformer = open_avformer(self.listener.frozen()?, added_to, &run.join(WEIGHTS))?;
        let silence = samples_of(config.silence);
        let added = Added { avformer, eyes, frames: config.frames, silence };
        self.added.insert(name.to_string(), added);
        Ok(())
    }

    /// Switches what was added by this name on, and all else off.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] for a name that was not added.
    pub fn switch(&mut self, name: Option<&str>) -> Result<()> {
        if let Some(name) = name.filter(|name| !self.added.contains_key(*name)) {
            let known: Vec<&str> = self.added.keys().map(String::as_str).collect();
            let reason = format!("there are no adapters `{name}`; there are: {}", known.join(", "));
            return Err(TrainError::Recognise { reason });
        }
        self.on = name.map(str::to_string);
        Ok(())
    }

    fn on(&self) -> Option<&Added> {
        self.added.get(self.on.as_ref()?)
    }

    /// How many pictures a clip is seen with.
    pub fn seen(&self, clip: &AdaptedClip) -> usize {
        let eyes = self.on().and_then(|added| added.eyes.as_ref());
        eyes.map_or(0, |encoder| clip.embeddings.len() / encoder.width())
    }

    /// Frames that are wanted of each clip.
    pub fn frames(&self) -> usize {
        self.on().filter(|added| added.eyes.is_some()).map_or(0, |added| added.frames)
    }

    /// The embeddings of a clip's pictures, `[V, E]`: as many as are wanted, evenly. Errors name the picture.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a picture that does not decode.
    pub fn see(&self, pictures: &[PathBuf]) -> Result<Vec<f32>> {
        let Some(Added { eyes: Some(encoder), frames, .. }) = self.on() else {
            return Ok(Vec::new());
        };
        let prepare = |path: &PathBuf| encoder.prepare_picture(&Picture::open(path)?, path);
        let shown = shown(pictures, *frames).into_iter();
        let prepared: Vec<Prepared> = shown.map(prepare).collect::<Result<_>>()?;
        let scale = embedding_scale(encoder.width());
        let mut embeddings = encoder.encode(&prepared.iter().collect::<Vec<_>>())?;
        embeddings.iter_mut().for_each(|value| *value *= scale);
        Ok(embeddings)
    }

    /// The texts of clips in one batch, by the greedy search. Where nothing is on they are the
    /// recogniser's own.
    ///
    /// # Errors
    /// [`TrainError::Model`] for a clip that is too long or too short; [`TrainError::Recognise`] for
    /// embeddings that were not made for what is on.
    pub fn transcribe(&self, clips: &[AdaptedClip]) -> Result<Vec<String>> {
        let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
        let Some(Added { avformer, eyes, frames, silence }) = self.on() else {
            let made = self.listener.transcribe(&samples, &[], &RecogniseOptions::default())?;
            return Ok(made.into_iter().map(|transcript| transcript.text).collect());
        };
        let width = eyes.as_ref().map_or(1, Encoder::width);
        let most = frames * width * usize::from(eyes.is_some());
        let fits = |clip: &AdaptedClip| {
            clip.embeddings.len() <= most && clip.embeddings.len().is_multiple_of(width)
        };
        if let Some(clip) = clips.iter().find(|clip| !fits(clip)) {
            let reason = format!(
                "{} numbers are no embeddings of up to {frames} pictures of {width}: see them again with \
                 what is switched on",
                clip.embeddings.len()
            );
            return Err(TrainError::Recognise { reason });
        }
        let counts: Vec<usize> = clips.iter().map(|clip| clip.embeddings.len() / width).collect();
        let values: Vec<f32> = clips.iter().flat_map(|clip| clip.embeddings.clone()).collect();
        let shape = (counts.iter().sum::<usize>(), width);
        let embeddings = Tensor::from_vec(values, shape, &Device::Cpu);
        let embeddings = embeddings.map_err(ModelError::from)?;
        let visual = VisualTokens { embeddings: &embeddings, counts: &counts };
        let embedded = self.listener.embed(avformer.recogniser(), &samples, *silence)?;
        let audio = avformer.encode(embedded, Some(&visual), &Mode::predict())?;
        let lengths: Vec<usize> = samples.iter().map(|samples| samples.len()).collect();
        self.listener.texts_of(&audio, &lengths)
    }
}

/// The error of a run that was trained for other weights of a model, `(what it is, its name)`.
fn differs(run: &Path, (what, wanted): (&str, &str), given: &str, found: &str) -> TrainError {
    let reason = format!(
        "{}: was trained for the {what} {wanted}; the weights of {given} are others (SHA-256 {found}): give the \
         one that it was trained for",
        run.display()
    );
    TrainError::Recognise { reason }
}

/// So many of a list: the middle one of each of as many equal parts; all if there are fewer.
pub fn evenly<T>(all: &[T], count: usize) -> impl Iterator<Item = &T> {
    let (length, count) = (all.len(), count.min(all.len()));
    (0..count).map(move |i| &all[(2 * i + 1) * length / (2 * count)])
}

/// The pictures of a clip that are seen with it: so many of those that are chosen from, as the test of a run has them.
pub fn shown<T>(pictures: &[T], count: usize) -> Vec<&T> {
    let chosen: Vec<&T> = evenly(pictures, MOST_FRAMES).collect();
    evenly(&chosen, count).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_evenly() {
        let all: Vec<usize> = (0..8).collect();
        let taken = |count| evenly(&all, count).copied().collect::<Vec<_>>();
        assert_eq!(taken(4), [1, 3, 5, 7]);
        assert_eq!(taken(1), [4]);
        assert_eq!(taken(3), [1, 4, 6]);
        assert_eq!(taken(20), all);
        assert!(taken(0).is_empty() && evenly(&[0; 0], 3).next().is_none());
    }
}
