//! Speech as text by a Conformer with a head for CTC: one of our own runs, or a published one.
//!
//! There is nothing that could go round: every state has its token or none. Longer recordings are
//! heard in windows that overlap; of each the middle counts.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_data::speech::tokens::SpeechTokeniser;
use engram_models::ModelError;
use engram_models::adapter::Adapters;
use engram_models::conformer::{ConformerCtc, ConformerCtcConfig};
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::speech::boosting::BoostTree;
use engram_models::speech::ctc_beam::{self, Search};
use engram_models::speech::decode::{BestPath, best_paths};
use engram_models::speech::log_mel::{Frames, HOP, LogMel, SAMPLE_RATE, seconds};
use engram_models::weights::Weights;

use super::RecogniseOptions;
use super::steady::is_without_speech;
use super::transcript::{Segment, Transcript, Word};
use crate::error::{Result, TrainError};
use crate::published::{self, PublishedFolder};

/// Samples of a window of a long recording, and of what is heard before and behind it: 20 s and 2 s.
const WINDOW: usize = 20 * SAMPLE_RATE as usize;
const CONTEXT: usize = 2 * SAMPLE_RATE as usize;
/// A pause between two tokens that ends a segment, in seconds.
const PAUSE: f64 = 0.6;

/// A Conformer and what its texts are made with.
pub struct ConformerRecogniser {
    pub(super) model: ConformerCtc,
    pub(super) parameters: Parameters,
    pub(super) mel: LogMel,
    tokeniser: SpeechTokeniser,
    /// The weights file.
    weights: PathBuf,
}

/// The text of a clip or of a window is of noise where it has fewer letters in a second, and its tokens a
/// lower mean probability: speech in noise as loud as itself has more letters. Of one letter or two more
/// certainty is asked for, because most texts of noise are no longer.
const FEWEST_LETTERS: f64 = 1.5;
const LEAST_LIKELY: f32 = 0.75;
const LEAST_LIKELY_OF_TWO: f32 = 0.9;

/// Two windows that overlap may differ by so much about where a token is, in seconds.
const EDGE: f64 = 0.12;

/// A token of a text.
#[derive(Debug, Clone, Copy)]
struct Timed {
    /// Where it begins, in seconds.
    time: f64,
    token: u32,
    /// In nats.
    log_probability: f32,
}

impl ConformerRecogniser {
    /// Opens the model of a run's folder, of a published folder, or of `hf://owner/name`:
    /// `config.json`, `tokenizer.json` and `model.safetensors`.
    ///
    /// # Errors
    /// [`TrainError::Data`] for files that are missing; [`TrainError::Model`] for a model that is
    /// not known or does not fit its weights; [`TrainError::Recognise`] for the tokenizer of another.
    pub fn open(location: &str) -> Result<Self> {
        let folder = PublishedFolder::open(location)?;
        let config = ConformerCtcConfig::read(&folder.file("config.json")?)?;
        let tokeniser = SpeechTokeniser::from_file(&folder.tokenizer()?)?;
        if tokeniser.vocabulary_size() > config.vocab_size {
            let (theirs, own) = (tokeniser.vocabulary_size(), config.vocab_size);
            let reason = format!(
                "{location}: tokenizer.json has {theirs} tokens, config.json {own}: they are of two models"
            );
            return Err(TrainError::Recognise { reason });
        }
        let weights = folder.weights_path()?;
        let frozen = vec![ParameterGroup::all_frozen()];
        let builder = ParameterBuilder::new(0, frozen, DType::F32, &Device::Cpu);
        let builder = builder.with_weights(Arc::new(Weights::open(&weights)?));
        let model = ConformerCtc::new(&config, &builder)?;
        Ok(Self {
            model,
            parameters: builder.finish()?,
            mel: LogMel::normalised(config.encoder_config.num_mel_bins)?,
            tokeniser,
            weights,
        })
    }

    /// What its texts are made with.
    pub(super) fn tokeniser(&self) -> &SpeechTokeniser {
        &self.tokeniser
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
        published::weights_sha256(&self.weights)
    }

    /// The texts of clips of samples at 16 kHz, in one batch, with the words that are listened for in
    /// each; those of the options in clips behind the last of `boosts`.
    ///
    /// # Errors
    /// [`TrainError::Model`]
    pub fn transcribe(
        &self,
        clips: &[&[f32]],
        boosts: &[Option<Arc<BoostTree>>],
        options: &RecogniseOptions,
    ) -> Result<Vec<Transcript>> {
        let boost = |i: usize| boosts.get(i).unwrap_or(&options.boost).clone();
        let search = |i| Search { num_beams: options.num_beams, boost: boost(i) };
        let paths = self.paths(clips, &(0..clips.len()).map(search).collect::<Vec<_>>())?;
        let made = clips.iter().zip(paths).map(|(clip, path)| {
            let timed = self.timed(&path);
            let form = (seconds(clip.len()), options.word_times);
            self.transcript(form, &timed, &[path])
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
        options: &RecogniseOptions,
        mut read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        mut heard: impl FnMut(f64),
    ) -> Result<Transcript, E> {
        let search = Search { num_beams: options.num_beams, boost: options.boost.clone() };
        // `samples` begin at `first` of the recording, of which `done` are heard.
        let (mut samples, mut first, mut done, mut more) = (Vec::new(), 0, 0, true);
        let (mut timed, mut paths) = (Vec::new(), Vec::new());
        loop {
            let end = done + WINDOW + CONTEXT - first;
            while more && samples.len() < end {
                more = read(&mut samples)?;
            }
            let window = &samples[..samples.len().min(end)];
            let is_last = first + window.len() <= done + WINDOW;
            if let Some(path) =
                self.paths(&[window], std::slice::from_ref(&search)).map_err(E::from)?.pop()
            {
                let (from, to) = (seconds(done), seconds(done + WINDOW));
                let before = timed.len();
                for token in self.timed(&path) {
                    let token = Timed { time: token.time + seconds(first), ..token };
                    let is_own = token.time >= from - EDGE && (token.time < to || is_last);
                    let is_seam = token.time < from + EDGE;
                    if is_own && !(is_seam && is_heard(&timed[..before], &token)) {
                        timed.push(token);
                    }
                }
                paths.push(path);
            }
            if is_last {
                let length = seconds(first + window.len());
                heard(length);
                let form = (length, options.word_times);
                return self.transcript(form, &timed, &paths).map_err(E::from);
            }
            done += WINDOW;
            heard(seconds(done));
            let behind = done.saturating_sub(CONTEXT) - first;
            samples.drain(..behind);
            first += behind;
        }
    }

    /// The path of each clip's text; none of sound that does not change.
    fn paths(&self, clips: &[&[f32]], searches: &[Search]) -> Result<Vec<BestPath>> {
        let frames: Vec<Frames> = clips
            .iter()
            .map(|clip| self.mel.frames(if is_without_speech(clip) { &[] } else { clip }, 0))
            .collect();
        let mut paths = vec![nothing(); clips.len()];
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
        let audio = encoder.forward(embedded, &Adapters::NONE, &Mode::predict())?;
        let logits = self.model.logits(&audio)?;
        let blank = self.model.config().blank;
        let searches: Vec<Search> = places.iter().map(|i| searches[*i].clone()).collect();
        let found = ctc_beam::paths(&logits, &audio.lengths, blank, &searches)?;
        // What a list has made of a text does not tell whether somebody speaks.
        let likeliest = best_paths(&logits, &audio.lengths, blank)?;
        for ((place, path), likeliest) in places.into_iter().zip(found).zip(likeliest) {
            let text = self.tokeniser.decode(&likeliest.tokens)?;
            if !is_noise(&likeliest, &text, clips[place].len()) {
                paths[place] = path;
            }
        }
        Ok(paths)
    }

    fn timed(&self, path: &BestPath) -> Vec<Timed> {
        let factor = self.model.config().encoder_config.subsampling_factor;
        let tokens = path.tokens.iter().zip(&path.states).zip(&path.log_probabilities);
        let timed = |((token, state), log_probability): ((&u32, &usize), &f32)| Timed {
            time: seconds(state * factor * HOP),
            token: *token,
            log_probability: *log_probability,
        };
        tokens.map(timed).collect()
    }

    /// The transcript of a recording of this length out of its tokens; a pause divides segments.
    fn transcript(
        &self,
        (length, word_times): (f64, bool),
        timed: &[Timed],
        paths: &[BestPath],
    ) -> Result<Transcript> {
        let tokens = |timed: &[Timed]| timed.iter().map(|one| one.token).collect::<Vec<u32>>();
        let (mut segments, mut words) = (Vec::new(), Vec::new());
        for part in timed.chunk_by(|before, after| after.time - before.time < PAUSE) {
            let text = self.tokeniser.decode(&tokens(part))?.trim().to_string();
            if let ([first, ..], [.., last], false) = (part, part, text.is_empty()) {
                let end = (last.time + PAUSE / 2.0).min(length);
                if word_times {
                    words.extend(self.words(part, end)?);
                }
                segments.push(Segment { start: first.time, end, text });
            }
        }
        // A pause divides words, whether a space was heard in it or not.
        let texts: Vec<&str> = segments.iter().map(|segment| segment.text.as_str()).collect();
        let mean = |of: fn(&BestPath) -> f32| {
            paths.iter().map(of).sum::<f32>() / paths.len().max(1) as f32
        };
        Ok(Transcript {
            text: texts.join(" "),
            segments,
            words,
            seconds: length,
            mean_log_probability: mean(|path| path.mean_log_probability),
            no_speech_probability: paths
                .iter()
                .fold(1.0, |least, path| path.least_blank.min(least)),
            cut: false,
            padded: false,
        })
    }

    /// The words of a segment that ends at `end`: each lasts until the token behind it begins.
    fn words(&self, segment: &[Timed], end: f64) -> Result<Vec<Word>> {
        let tokens: Vec<u32> = segment.iter().map(|timed| timed.token).collect();
        let (mut words, mut is_open) = (Vec::<(Word, usize)>::new(), false);
        for (timed, piece) in segment.iter().zip(self.tokeniser.pieces(&tokens)?) {
            let begins = piece.starts_with(char::is_whitespace);
            if let Some((word, _)) = words.last_mut().filter(|_| is_open && begins) {
                word.end = timed.time;
            }
            is_open &= !begins;
            let text = piece.trim();
            if text.is_empty() {
                continue;
            }
            if !is_open {
                let (start, text) = (timed.time, String::new());
                words.push((Word { start, end, text, probability: 0.0 }, 0));
            }
            if let Some((word, count)) = words.last_mut() {
                word.text += text;
                word.probability += timed.log_probability.exp();
                *count += 1;
            }
            is_open = true;
        }
        let mean = |(word, count): (Word, usize)| Word {
            probability: word.probability / count.max(1) as f32,
            ..word
        };
        Ok(words.into_iter().map(mean).collect())
    }
}

/// The path of sound in which nobody speaks.
fn nothing() -> BestPath {
    BestPath { least_blank: 1.0, ..BestPath::default() }
}

/// Whether the likeliest path and its text are what noise of so many samples sounds like.
fn is_noise(path: &BestPath, text: &str, samples: usize) -> bool {
    let letters = text.chars().filter(|c| c.is_alphanumeric()).count();
    let sum: f32 = path.log_probabilities.iter().map(|own| own.exp()).sum();
    let least = if letters <= 2 { LEAST_LIKELY_OF_TWO } else { LEAST_LIKELY };
    let is_unsure = sum < least * path.tokens.len() as f32;
    is_unsure && (letters as f64) < FEWEST_LETTERS * seconds(samples)
}

/// Whether the window before has heard a token already, or a later one.
fn is_heard(timed: &[Timed], token: &Timed) -> bool {
    let is_same = |last: &Timed| token.token == last.token && token.time - last.time < EDGE;
    timed.last().is_some_and(|last| last.time > token.time || is_same(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_unsure_tokens_in_much_sound_are_noise() {
        let path = |probabilities: &[f32]| BestPath {
            tokens: vec![1; probabilities.len()],
            states: (0..probabilities.len()).collect(),
            log_probabilities: probabilities.iter().map(|own| own.ln()).collect(),
            ..nothing()
        };
        let long = 5 * SAMPLE_RATE as usize;
        let noise =
            |probabilities: &[f32], text, samples| is_noise(&path(probabilities), text, samples);
        assert!(noise(&[0.6; 6], "a be c", long) && noise(&[0.8, 0.9], "me", long));
        // Speech has more letters, or surer ones, whatever the tokens; a short clip is no proof.
        assert!(!noise(&[0.6; 2], "abracadabra", long) && !noise(&[0.8; 5], "abode", long));
        assert!(!noise(&[0.95], "a", long) && !noise(&[0.6], "a", long / 10));
        assert!(!noise(&[], "", long));
    }
}
