//! Speech as text by a Conformer with a head for CTC: one of our own runs, or a published one.
//!
//! There is nothing that could go round: every state has its token or none. Longer recordings are
//! heard in windows that overlap; of each the middle counts.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::speech::tokens::SpeechTokeniser;
use engram_models::ModelError;
use engram_models::conformer::{ConformerCtc, ConformerCtcConfig};
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::speech::decode::{BestPath, best_paths};
use engram_models::speech::log_mel::{Frames, HOP, LogMel, SAMPLE_RATE};
use engram_models::weights::Weights;

use super::steady::is_steady;
use super::transcript::{Segment, Transcript};
use crate::digest;
use crate::error::{Result, TrainError};

/// Samples of a window of a long recording, and of what is heard before and behind it: 20 s and 2 s.
const WINDOW: usize = 20 * SAMPLE_RATE as usize;
const CONTEXT: usize = 2 * SAMPLE_RATE as usize;
/// A pause between two tokens that ends a segment, in seconds.
const PAUSE: f64 = 0.6;

/// A Conformer and what its texts are made with.
pub struct ConformerRecogniser {
    model: ConformerCtc,
    mel: LogMel,
    tokeniser: SpeechTokeniser,
    /// The weights file.
    weights: PathBuf,
}

/// Two windows that overlap may differ by so much about where a token is, in seconds.
const EDGE: f64 = 0.12;

/// Tokens with the seconds at which they begin.
type Timed = Vec<(f64, u32)>;

impl ConformerRecogniser {
    /// Opens the model of a run's folder, of a published folder, or of `hf://owner/name`:
    /// `config.json`, `tokenizer.json` and `model.safetensors`.
    ///
    /// # Errors
    /// [`TrainError::Data`] for files that are missing; [`TrainError::Model`] for a model that is
    /// not known or does not fit its weights; [`TrainError::Recognise`] for the tokenizer of another.
    pub fn open(location: &str) -> Result<Self> {
        let (settings, place) = (HubSettings::from_env(), WeightsLocation::parse(location)?);
        let find = |file: &str| place.file(file, &settings);
        let config = ConformerCtcConfig::read(&find("config.json")?)?;
        let tokeniser = SpeechTokeniser::from_file(&find("tokenizer.json")?)?;
        if tokeniser.vocabulary_size() > config.vocab_size {
            let (theirs, own) = (tokeniser.vocabulary_size(), config.vocab_size);
            let reason = format!(
                "{location}: tokenizer.json has {theirs} tokens, config.json {own}: they are of two models"
            );
            return Err(TrainError::Recognise { reason });
        }
        let weights = find("model.safetensors")?;
        let frozen = vec![ParameterGroup::all_frozen()];
        let builder = ParameterBuilder::new(0, frozen, DType::F32, &Device::Cpu);
        let builder = builder.with_weights(Arc::new(Weights::open(&weights)?));
        Ok(Self {
            model: ConformerCtc::new(&config, &builder)?,
            mel: LogMel::normalised(config.encoder_config.num_mel_bins)?,
            tokeniser,
            weights,
        })
    }

    /// Seconds of the longest clip that is heard at once.
    pub fn max_seconds(&self) -> f64 {
        seconds(WINDOW)
    }

    /// The SHA-256 of the weights file, which is read for it.
    ///
    /// # Errors
    /// [`TrainError::Io`]
    pub fn weights_sha256(&self) -> Result<String> {
        let path = &self.weights;
        Ok(digest::of_file(path).map_err(TrainError::io(path))?.1)
    }

    /// The texts of clips of samples at 16 kHz, in one batch.
    ///
    /// # Errors
    /// [`TrainError::Model`]
    pub fn transcribe(&self, clips: &[&[f32]]) -> Result<Vec<Transcript>> {
        let paths = self.paths(clips)?;
        let made = clips.iter().zip(paths).map(|(clip, path)| {
            let timed = self.timed(&path);
            self.transcript(seconds(clip.len()), &timed, &[path])
        });
        made.collect()
    }

    /// The text of a recording. `read` adds samples at 16 kHz and gives `false` at the end; `heard` is
    /// told after each window how many seconds are done.
    ///
    /// # Errors
    /// As [`ConformerRecogniser::transcribe`], and those of `read`.
    pub fn transcribe_long<E: From<TrainError>>(
        &self,
        mut read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        mut heard: impl FnMut(f64),
    ) -> Result<Transcript, E> {
        // `samples` begin at `first` of the recording, of which `done` are heard.
        let (mut samples, mut first, mut done, mut more) = (Vec::new(), 0, 0, true);
        let (mut timed, mut paths) = (Timed::new(), Vec::new());
        loop {
            let end = done + WINDOW + CONTEXT - first;
            while more && samples.len() < end {
                more = read(&mut samples)?;
            }
            let window = &samples[..samples.len().min(end)];
            let is_last = first + window.len() <= done + WINDOW;
            if let Some(path) = self.paths(&[window]).map_err(E::from)?.pop() {
                let (from, to) = (seconds(done), seconds(done + WINDOW));
                let before = timed.len();
                for (time, token) in self.timed(&path) {
                    let time = time + seconds(first);
                    let is_own = time >= from - EDGE && (time < to || is_last);
                    let is_seam = time < from + EDGE;
                    if is_own && !(is_seam && is_heard(&timed[..before], time, token)) {
                        timed.push((time, token));
                    }
                }
                paths.push(path);
            }
            if is_last {
                let length = seconds(first + window.len());
                heard(length);
                return self.transcript(length, &timed, &paths).map_err(E::from);
            }
            done += WINDOW;
            heard(seconds(done));
            let behind = done.saturating_sub(CONTEXT) - first;
            samples.drain(..behind);
            first += behind;
        }
    }

    /// The likeliest path of each clip; none of sound that does not change.
    fn paths(&self, clips: &[&[f32]]) -> Result<Vec<BestPath>> {
        let frames: Vec<Frames> = clips
            .iter()
            .map(|clip| self.mel.frames(if is_steady(clip) { &[] } else { clip }, 0))
            .collect();
        let mut paths = vec![BestPath { least_blank: 1.0, ..BestPath::default() }; clips.len()];
        let places: Vec<usize> = (0..clips.len()).filter(|i| !frames[*i].is_empty()).collect();
        if places.is_empty() {
            return Ok(paths);
        }
        let lengths: Vec<usize> = places.iter().map(|i| frames[*i].len()).collect();
        let values: Vec<f32> = places.iter().flat_map(|i| frames[*i].values.clone()).collect();
        let bands = frames[places[0]].bands;
        let shape = (values.len() / bands, bands);
        let packed = Tensor::from_vec(values, shape, &Device::Cpu).map_err(ModelError::from)?;
        let encoder = self.model.encoder();
        let embedded = encoder.embed(&packed, &lengths)?;
        let audio = encoder.forward(embedded, &[], &Mode::predict())?;
        let logits = self.model.logits(&audio)?;
        let blank = self.model.config().blank;
        for (place, path) in places.into_iter().zip(best_paths(&logits, &audio.lengths, blank)?) {
            paths[place] = path;
        }
        Ok(paths)
    }

    fn timed(&self, path: &BestPath) -> Timed {
        let factor = self.model.config().encoder_config.subsampling_factor;
        let time = |state: &usize| seconds(state * factor * HOP);
        path.states.iter().map(time).zip(path.tokens.iter().copied()).collect()
    }

    /// The transcript of a recording of this length out of its tokens; a pause divides segments.
    fn transcript(
        &self,
        length: f64,
        timed: &[(f64, u32)],
        paths: &[BestPath],
    ) -> Result<Transcript> {
        let tokens: Vec<u32> = timed.iter().map(|(_, token)| *token).collect();
        let mut segments = Vec::new();
        for part in timed.chunk_by(|(before, _), (after, _)| after - before < PAUSE) {
            let tokens: Vec<u32> = part.iter().map(|(_, token)| *token).collect();
            let text = self.tokeniser.decode(&tokens)?.trim().to_string();
            if let ([(start, _), ..], [.., (end, _)], false) = (part, part, text.is_empty()) {
                segments.push(Segment {
                    start: *start,
                    end: (end + PAUSE / 2.0).min(length),
                    text,
                });
            }
        }
        let mean = |of: fn(&BestPath) -> f32| {
            paths.iter().map(of).sum::<f32>() / paths.len().max(1) as f32
        };
        Ok(Transcript {
            text: self.tokeniser.decode(&tokens)?.trim().to_string(),
            segments,
            seconds: length,
            mean_log_probability: mean(|path| path.mean_log_probability),
            no_speech_probability: paths
                .iter()
                .fold(1.0, |least, path| path.least_blank.min(least)),
            cut: false,
            padded: false,
        })
    }
}

/// Whether the window before has heard a token already, or one behind it.
fn is_heard(timed: &[(f64, u32)], time: f64, token: u32) -> bool {
    timed.last().is_some_and(|&(last, same)| last > time || same == token && time - last < EDGE)
}

fn seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(SAMPLE_RATE)
}
