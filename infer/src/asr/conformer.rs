//! Speech recognition with a Conformer, from a finished run or a published folder. Its decoder is a
//! CTC head, a transducer, or an attention decoder with a CTC head.
//!
//! The output cannot repeat itself endlessly, because each encoder state gives a limited number of
//! tokens. Long recordings are transcribed in overlapping windows, and only the middle of each
//! window is used.

use std::sync::Arc;

use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_models::adapter::Adapters;
use engram_models::compute::Compute;
use engram_models::conformer::{ConformerAsrConfig, ConformerAsrModel};
use engram_models::generation::boosting::BoostTree;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::speech::ctc_beam::BeamSearchOptions;
use engram_models::speech::decode::BestPath;
use engram_models::speech::log_mel::{Frames, HOP, LogMel, SAMPLE_RATE, samples_to_seconds};
use engram_models::weights::WeightsFiles;

use super::speech_detection::is_without_speech;
use super::transcript::{Segment, Transcript, Word};
use super::{TranscribeOptions, packed};
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// The window of a long recording, in samples: 20 s.
pub(super) const WINDOW: usize = 20 * SAMPLE_RATE as usize;
/// The additional audio on each side of a window, in samples: 2 s.
const CONTEXT: usize = 2 * SAMPLE_RATE as usize;
/// The minimum pause between two tokens that ends a segment, in seconds.
const SEGMENT_PAUSE: f64 = 0.6;

/// A Conformer with its tokenizer.
pub struct ConformerAsr {
    pub(super) model: ConformerAsrModel,
    pub(super) parameters: Parameters,
    pub(super) mel: LogMel,
    pub(super) tokenizer: SpeechTokenizer,
    /// The files of the weights.
    pub(super) weights: WeightsFiles,
}

/// Thresholds for noise. A clip or window counts as noise if both the letters per second of its
/// text and the mean probability of its tokens are below these thresholds. Speech in noise of equal
/// power gives more letters. Texts of up to two letters need a higher probability, because most
/// texts of noise are this short.
const MIN_LETTERS_PER_SECOND: f64 = 1.5;
const MIN_PROBABILITY: f32 = 0.75;
const MIN_PROBABILITY_OF_SHORT_TEXTS: f32 = 0.9;

/// The maximum time difference of the same token in two overlapping windows, in seconds.
const SEAM_TOLERANCE: f64 = 0.12;

#[derive(Debug, Clone, Copy)]
struct TimedToken {
    /// The start of the token, in seconds.
    time: f64,
    token: u32,
    /// The log-probability of the token, in nats.
    log_probability: f32,
}

impl ConformerAsr {
    /// Opens the model in a run folder or a published folder: `config.json`, `tokenizer.json` and
    /// `model.safetensors`.
    pub(super) fn open(folder: &PretrainedFolder, compute: &Compute) -> Result<Self> {
        let config = ConformerAsrConfig::read(&folder.file("config.json")?)?;
        let tokenizer = SpeechTokenizer::from_file(&folder.tokenizer()?)?;
        if tokenizer.vocabulary_size() > config.vocab_size() {
            let (tokens, vocabulary) = (tokenizer.vocabulary_size(), config.vocab_size());
            let reason = format!(
                "{}: tokenizer.json has {tokens} tokens, but config.json has {vocabulary}: \
                 they belong to different models",
                folder.name()
            );
            return Err(InferError::Refused(reason));
        }
        let weights = folder.weights_files()?;
        let builder = ParameterBuilder::frozen(compute);
        let builder = builder.with_weights(Arc::new(weights.open()?));
        let model = ConformerAsrModel::new(&config, &builder)?;
        Ok(Self {
            model,
            parameters: builder.finish()?,
            mel: LogMel::conformer(config.encoder().num_mel_bins)?,
            tokenizer,
            weights,
        })
    }

    /// Transcribes clips of 16 kHz samples in one batch, with the boosted words `boosts[i]` for
    /// clip `i`. Clips beyond the end of `boosts` use the words of the options. The transcripts
    /// always have segments.
    pub(super) fn transcribe(
        &self,
        clips: &[&[f32]],
        boosts: &[Option<Arc<BoostTree>>],
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>> {
        let boost = |i: usize| boosts.get(i).unwrap_or(&options.boost).clone();
        let search = |i| BeamSearchOptions { num_beams: options.num_beams, boost: boost(i) };
        let paths = self.paths(clips, &(0..clips.len()).map(search).collect::<Vec<_>>())?;
        let transcripts = clips.iter().zip(paths).map(|(clip, path)| {
            let timed = self.timed_tokens(&path);
            let seconds = samples_to_seconds(clip.len());
            self.transcript((seconds, options.word_times), &timed, &[path])
        });
        transcripts.collect()
    }

    /// Transcribes a recording. `read` appends samples at 16 kHz and returns `false` at the end.
    /// After each window, `on_window` gets the number of seconds transcribed so far.
    pub(super) fn transcribe_long<E: From<InferError>>(
        &self,
        options: &TranscribeOptions,
        mut read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        mut on_window: impl FnMut(f64),
    ) -> Result<Transcript, E> {
        let search =
            BeamSearchOptions { num_beams: options.num_beams, boost: options.boost.clone() };
        // `samples` starts at sample `first` of the recording. The recording is transcribed up to
        // sample `done`.
        let (mut samples, mut first, mut done, mut has_more) = (Vec::new(), 0, 0, true);
        let (mut timed, mut paths) = (Vec::new(), Vec::new());
        loop {
            let end = done + WINDOW + CONTEXT - first;
            while has_more && samples.len() < end {
                has_more = read(&mut samples)?;
            }
            let window = &samples[..samples.len().min(end)];
            let is_last = first + window.len() <= done + WINDOW;
            if let Some(path) =
                self.paths(&[window], std::slice::from_ref(&search)).map_err(E::from)?.pop()
            {
                let (from, to) = (samples_to_seconds(done), samples_to_seconds(done + WINDOW));
                let previous_count = timed.len();
                for token in self.timed_tokens(&path) {
                    let time = token.time + samples_to_seconds(first);
                    let token = TimedToken { time, ..token };
                    let is_in_window = time >= from - SEAM_TOLERANCE && (time < to || is_last);
                    let is_in_seam = time < from + SEAM_TOLERANCE;
                    let previous = &timed[..previous_count];
                    if is_in_window && !(is_in_seam && is_transcribed(previous, &token)) {
                        timed.push(token);
                    }
                }
                paths.push(path);
            }
            if is_last {
                let length = samples_to_seconds(first + window.len());
                on_window(length);
                return self
                    .transcript((length, options.word_times), &timed, &paths)
                    .map_err(E::from);
            }
            done += WINDOW;
            on_window(samples_to_seconds(done));
            let count = done.saturating_sub(CONTEXT) - first;
            samples.drain(..count);
            first += count;
        }
    }

    /// The best path of each clip's text; empty for audio without speech.
    fn paths(&self, clips: &[&[f32]], searches: &[BeamSearchOptions]) -> Result<Vec<BestPath>> {
        let mut paths = vec![empty_path(); clips.len()];
        let frames = clips.iter().enumerate().filter(|(_, clip)| !is_without_speech(clip));
        let frames = frames.map(|(i, clip)| (i, self.mel.frames(clip, 0)));
        let (indices, frames): (Vec<usize>, Vec<Frames>) =
            frames.filter(|(_, frames)| !frames.is_empty()).unzip();
        if indices.is_empty() {
            return Ok(paths);
        }
        let (packed, lengths) = packed(frames)?;
        let encoder = &self.model.encoder;
        let embedded = encoder.embed(&packed, &lengths)?;
        let audio = encoder.forward(embedded, &Adapters::NONE, &Mode::inference())?;
        let searches: Vec<BeamSearchOptions> =
            indices.iter().map(|i| searches[*i].clone()).collect();
        // Noise is detected from the path without boosting.
        let unboosted_paths = self.model.greedy_paths(&audio)?;
        let is_greedy = |search: &BeamSearchOptions| search.num_beams < 2 && search.boost.is_none();
        let beam_paths = if searches.iter().all(is_greedy) {
            unboosted_paths.clone()
        } else {
            self.model.paths(&audio, &searches)?
        };
        for ((i, path), unboosted) in indices.into_iter().zip(beam_paths).zip(unboosted_paths) {
            let text = self.tokenizer.decode(&unboosted.tokens)?;
            if !is_noise(&unboosted, &text, clips[i].len()) {
                paths[i] = path;
            }
        }
        Ok(paths)
    }

    fn timed_tokens(&self, path: &BestPath) -> Vec<TimedToken> {
        let factor = self.model.encoder.config.subsampling_factor;
        let tokens = path.tokens.iter().zip(&path.states).zip(&path.log_probabilities);
        let timed = |((token, state), log_probability): ((&u32, &usize), &f32)| TimedToken {
            time: samples_to_seconds(state * factor * HOP),
            token: *token,
            log_probability: *log_probability,
        };
        tokens.map(timed).collect()
    }

    /// Builds the transcript of a recording of `length` seconds from its tokens, with words if
    /// `word_times` is true. Pauses separate segments.
    fn transcript(
        &self,
        (length, word_times): (f64, bool),
        timed: &[TimedToken],
        paths: &[BestPath],
    ) -> Result<Transcript> {
        let (mut segments, mut words) = (Vec::new(), Vec::new());
        for part in timed.chunk_by(|before, after| after.time - before.time < SEGMENT_PAUSE) {
            let tokens: Vec<u32> = part.iter().map(|timed| timed.token).collect();
            let text = self.tokenizer.decode(&tokens)?.trim().to_string();
            if let ([first, ..], [.., last], false) = (part, part, text.is_empty()) {
                let end = (last.time + SEGMENT_PAUSE / 2.0).min(length);
                if word_times {
                    words.extend(self.words(part, end)?);
                }
                segments.push(Segment { start: first.time, end, text });
            }
        }
        // A pause separates words, with or without a space token.
        let texts: Vec<&str> = segments.iter().map(|segment| segment.text.as_str()).collect();
        let mean = |of: fn(&BestPath) -> f32| {
            paths.iter().map(of).sum::<f32>() / paths.len().max(1) as f32
        };
        let blanks = paths.iter().map(|path| path.min_blank_probability);
        Ok(Transcript {
            text: texts.join(" "),
            segments,
            words,
            seconds: length,
            mean_log_probability: mean(|path| path.mean_log_probability),
            no_speech_probability: blanks.fold(1.0, f32::min),
            ..Transcript::empty(0)
        })
    }

    /// The words of a segment that ends at `end`. Each word lasts until the next token starts.
    fn words(&self, segment: &[TimedToken], end: f64) -> Result<Vec<Word>> {
        let tokens: Vec<u32> = segment.iter().map(|timed| timed.token).collect();
        let (mut words, mut is_open) = (Vec::<(Word, usize)>::new(), false);
        for (timed, piece) in segment.iter().zip(self.tokenizer.pieces(&tokens)?) {
            let starts_word = piece.starts_with(char::is_whitespace);
            if let Some((word, _)) = words.last_mut().filter(|_| is_open && starts_word) {
                word.end = timed.time;
            }
            is_open &= !starts_word;
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

/// The path of audio without speech.
fn empty_path() -> BestPath {
    BestPath { min_blank_probability: 1.0, ..BestPath::default() }
}

/// Whether the best path and its text are typical of noise with this many samples.
fn is_noise(path: &BestPath, text: &str, samples: usize) -> bool {
    let letters = text.chars().filter(|c| c.is_alphanumeric()).count();
    let sum: f32 = path.log_probabilities.iter().map(|value| value.exp()).sum();
    let min_mean = if letters <= 2 { MIN_PROBABILITY_OF_SHORT_TEXTS } else { MIN_PROBABILITY };
    let is_improbable = sum < min_mean * path.tokens.len() as f32;
    is_improbable && (letters as f64) < MIN_LETTERS_PER_SECOND * samples_to_seconds(samples)
}

/// Whether the last token of the previous windows is later than this token, or is the same token at
/// nearly the same time.
fn is_transcribed(previous: &[TimedToken], token: &TimedToken) -> bool {
    let is_same =
        |last: &TimedToken| token.token == last.token && token.time - last.time < SEAM_TOLERANCE;
    previous.last().is_some_and(|last| last.time > token.time || is_same(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_uncertain_tokens_in_a_long_clip_are_noise() {
        let path = |probabilities: &[f32]| BestPath {
            tokens: vec![1; probabilities.len()],
            states: (0..probabilities.len()).collect(),
            log_probabilities: probabilities.iter().map(|value| value.ln()).collect(),
            ..empty_path()
        };
        let five_seconds = 5 * SAMPLE_RATE as usize;
        let noise =
            |probabilities: &[f32], text, samples| is_noise(&path(probabilities), text, samples);
        assert!(noise(&[0.6; 6], "a be c", five_seconds) && noise(&[0.8, 0.9], "me", five_seconds));
        // Speech has more letters, or higher probabilities. In half a second, one letter is enough.
        assert!(
            !noise(&[0.6; 2], "abracadabra", five_seconds)
                && !noise(&[0.8; 5], "abode", five_seconds)
        );
        assert!(!noise(&[0.95], "a", five_seconds) && !noise(&[0.6], "a", five_seconds / 10));
        assert!(!noise(&[], "", five_seconds));
    }
}
