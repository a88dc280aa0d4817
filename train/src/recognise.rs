//! Speech as text: a published recogniser, and clips in batches.

mod adapted;
mod boost;
mod conformer;
mod files;
mod frozen;
mod listener;
mod long;
mod steady;
mod streaming;
mod transcript;
mod words;

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_data::speech::tokens::SpeechTokeniser;
use engram_models::ModelError;
use engram_models::generation::GenerateOptions;
use engram_models::kernels::Mode;
use engram_models::params::Parameters;
use engram_models::speech::AudioStates;
use engram_models::speech::boosting::BoostTree;
use engram_models::speech::log_mel::{Frames, HOP, LogMel, SAMPLE_RATE, seconds};
use engram_models::whisper::{AlignmentHeads, Heard, Rules, Task, Whisper, WhisperTokens};

use crate::error::{Result, TrainError};
use crate::published;
pub(crate) use adapted::embedding_scale;
pub use adapted::{AdaptedClip, AdaptedRecogniser, AddedTo, MOST_FRAMES, Shown, evenly, shown};
pub(crate) use adapted::{MOST_SILENCE, open_avformer};
pub use boost::{Booster, CONFORMER_BOOST_WEIGHT, WHISPER_BOOST_WEIGHT};
pub use conformer::ConformerRecogniser;
pub use listener::Listener;
pub use streaming::{Distribution, FinalWord, Pass, StreamOptions, Streamed};
use transcript::Part;
pub use transcript::{Segment, Transcript, Word};

/// A Whisper model and what its texts are made with.
pub struct Recogniser {
    whisper: Whisper,
    parameters: Parameters,
    mel: LogMel,
    tokeniser: SpeechTokeniser,
    tokens: WhisperTokens,
    suppressed: Vec<u32>,
    suppressed_at_start: Vec<u32>,
    /// The heads that tell when words are said.
    alignment_heads: AlignmentHeads,
    /// Whether it knows more languages than English.
    multilingual: bool,
    /// The weights file.
    weights: PathBuf,
}

/// How clips are transcribed.
#[derive(Debug, Clone)]
pub struct RecogniseOptions {
    /// Texts that are followed at the same time; 1 is the greedy search.
    pub num_beams: usize,
    /// Whether pairs of timestamps are written, which give segments.
    pub timestamps: bool,
    /// Whether each word's times are told.
    pub word_times: bool,
    /// The language that is spoken, `en`; multilingual models alone need one.
    pub language: Option<String>,
    /// What is to be written.
    pub task: Task,
    /// What clips are filled up with.
    pub padding: Padding,
    /// The words that are listened for in all clips, by [`Booster::tree`].
    pub boost: Option<Arc<BoostTree>>,
}

/// A clip and what is listened for in it.
#[derive(Clone, Copy)]
struct Clip<'a> {
    samples: &'a [f32],
    boost: Option<&'a Arc<BoostTree>>,
}

/// What is put behind a clip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Padding {
    /// Frames of zeros up to 30 seconds, as faster-whisper does.
    #[default]
    Zeros,
    /// Silence up to 30 seconds, as openai-whisper does.
    Silence,
    /// Five seconds of silence, which costs less for short clips. A text that repeats itself, has no
    /// end or is not likely is made again with [`Padding::Silence`].
    Short,
}

impl Default for RecogniseOptions {
    fn default() -> Self {
        Self {
            num_beams: 1,
            timestamps: false,
            word_times: false,
            language: None,
            task: Task::Transcribe,
            padding: Padding::default(),
            boost: None,
        }
    }
}

/// Tokens of a text at most, as openai/whisper has it: half of the decoder's positions.
const MOST_TOKENS: usize = 224;
/// Nobody says more than this many tokens in a second, and a few at once: of English, and of languages
/// whose letters are several tokens each.
const TOKENS_PER_SECOND: f64 = 12.0;
const TOKENS_PER_SECOND_OF_ANY: f64 = 45.0;
const TOKENS_AT_ONCE: usize = 12;
/// A text whose tokens have a lower mean log-probability is not likely (`logprob_threshold` of
/// openai/whisper).
const LEAST_LIKELY: f32 = -1.0;
/// Nothing is said where no text is likely, and the model says with the first probability that nothing
/// is said or has but a word; nor where it says so with the second, and hears few words. openai/whisper
/// has 0.6 and no second: it hears "you" in silence.
const NO_SPEECH: f32 = 0.3;
const SURELY_NO_SPEECH: f32 = 0.85;
const FEW_WORDS: usize = 2;
/// Silence behind a clip that is padded little, in samples: with less, texts are said twice.
const SHORT_SILENCE: usize = 5 * SAMPLE_RATE as usize;

impl Recogniser {
    /// Seconds of the longest clip.
    pub fn max_seconds(&self) -> f64 {
        seconds(self.whisper.config().max_samples())
    }

    /// The SHA-256 of the weights file, which is read for it.
    ///
    /// # Errors
    /// [`TrainError::Io`]
    pub fn weights_sha256(&self) -> Result<String> {
        published::weights_sha256(&self.weights)
    }

    /// Checks that the model can do what is asked for.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] for a language that the model does not know, none where it needs one,
    /// and a translation by an English model.
    pub fn check(&self, options: &RecogniseOptions) -> Result<()> {
        self.language(options).map(drop)
    }

    /// The texts of clips of samples at 16 kHz, in one batch; with timestamps one after the other,
    /// because what stands behind the last pair of them is listened to again.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] for a clip that is too long, a language that the model does not
    /// know, or one where it knows none; [`TrainError::Model`]
    pub fn transcribe<C: AsRef<[f32]>>(
        &self,
        clips: &[C],
        options: &RecogniseOptions,
    ) -> Result<Vec<Transcript>> {
        self.transcribe_each(clips, &[], options)
    }

    /// As [`Recogniser::transcribe`], with the words that are listened for in each clip; those of the
    /// options in clips behind the last of `boosts`.
    ///
    /// # Errors
    /// As there.
    pub fn transcribe_each<C: AsRef<[f32]>>(
        &self,
        clips: &[C],
        boosts: &[Option<Arc<BoostTree>>],
        options: &RecogniseOptions,
    ) -> Result<Vec<Transcript>> {
        self.check(options)?;
        let boost = |i: usize| boosts.get(i).unwrap_or(&options.boost).as_ref();
        let clips: Vec<Clip<'_>> = clips
            .iter()
            .enumerate()
            .map(|(i, clip)| Clip { samples: clip.as_ref(), boost: boost(i) })
            .collect();
        let longest = self.whisper.config().max_samples();
        if let Some(clip) = clips.iter().find(|clip| clip.samples.len() > longest) {
            let seconds = seconds(clip.samples.len());
            let reason =
                format!("a clip of {seconds:.1} s; the model hears {:.0} s", self.max_seconds());
            return Err(TrainError::Recognise { reason });
        }
        if options.timestamps {
            let whole = |clip: &Clip<'_>| {
                let options = RecogniseOptions { boost: clip.boost.cloned(), ..options.clone() };
                self.transcribe_whole(clip.samples, &options)
            };
            return clips.iter().map(whole).collect();
        }
        let mut transcripts: Vec<Transcript> =
            clips.iter().map(|clip| Transcript::nothing(clip.samples.len())).collect();
        let changes = |clip: &Clip<'_>| !steady::is_without_speech(clip.samples);
        let (places, clips): (Vec<usize>, Vec<Clip<'_>>) =
            clips.into_iter().enumerate().filter(|(_, clip)| changes(clip)).unzip();
        for (place, transcript) in places.into_iter().zip(self.listen(&clips, options)?) {
            transcripts[place] = transcript;
        }
        Ok(transcripts)
    }

    /// The texts of clips in which somebody may speak.
    fn listen(&self, clips: &[Clip<'_>], options: &RecogniseOptions) -> Result<Vec<Transcript>> {
        let mut transcripts = self.transcripts(clips, options.padding, options)?;
        if options.padding == Padding::Short {
            let is_doubtful = |i: &usize| transcripts[*i].cut || transcripts[*i].is_doubtful();
            let doubtful: Vec<usize> = (0..clips.len()).filter(is_doubtful).collect();
            let again: Vec<Clip<'_>> = doubtful.iter().map(|i| clips[*i]).collect();
            let made = self.transcripts(&again, Padding::Silence, options)?;
            for (i, made) in doubtful.into_iter().zip(made) {
                transcripts[i] = Transcript { padded: true, ..made };
            }
        }
        Ok(transcripts)
    }

    /// The texts of clips without timestamps, with this padding.
    fn transcripts(
        &self,
        clips: &[Clip<'_>],
        padding: Padding,
        options: &RecogniseOptions,
    ) -> Result<Vec<Transcript>> {
        if clips.is_empty() {
            return Ok(Vec::new());
        }
        let (heard, audio) = self.hear(clips, padding, options)?;
        let mut transcripts = clips
            .iter()
            .zip(&heard)
            .map(|(clip, heard)| self.transcript(clip.samples.len(), heard, options))
            .collect::<Result<Vec<_>>>()?;
        if options.word_times {
            let parts: Vec<Vec<Part>> =
                heard.iter().zip(&transcripts).map(|(heard, made)| made.as_part(heard)).collect();
            let clips: Vec<(usize, &[Part])> = clips
                .iter()
                .zip(&parts)
                .map(|(clip, parts)| (clip.samples.len(), parts.as_slice()))
                .collect();
            let words = self.words(&audio, &clips, 0.0, options)?;
            transcripts.iter_mut().zip(words).for_each(|(made, words)| made.words = words);
        }
        Ok(transcripts)
    }

    /// The frames of a clip and of what is put behind it.
    fn frames(&self, clip: &[f32], padding: Padding) -> Frames {
        let longest = self.whisper.config().max_samples();
        match padding {
            Padding::Silence => self.mel.frames(clip, longest),
            Padding::Short => self.mel.frames(clip, (clip.len() + SHORT_SILENCE).min(longest)),
            Padding::Zeros => {
                // The reference hears one frame of silence more than it takes.
                let mut frames = self.mel.frames(clip, clip.len() + HOP);
                frames.values.truncate(clip.len() / HOP * frames.bands);
                frames.values.resize(longest / HOP * frames.bands, 0.0);
                frames
            }
        }
    }

    /// What is heard in clips, and the encoder's states of them.
    fn hear(
        &self,
        clips: &[Clip<'_>],
        padding: Padding,
        options: &RecogniseOptions,
    ) -> Result<(Vec<Heard>, AudioStates)> {
        let audio = self.encode(clips, padding)?;
        let language = self.language(options)?;
        let prompt = self.tokens.prompt(language, options.timestamps)?;
        let positions = self.whisper.config().max_target_positions;
        let max_new_tokens = positions.saturating_sub(prompt.len()).clamp(1, MOST_TOKENS);
        let rules = Rules {
            tokens: self.tokens.clone(),
            suppressed: self.suppressed.clone(),
            suppressed_at_start: self.suppressed_at_start.clone(),
            timestamps: options.timestamps,
            most_tokens: clips.iter().map(|c| self.most_tokens(c.samples.len(), options)).collect(),
            boosts: clips.iter().map(|clip| clip.boost.cloned()).collect(),
        };
        let search = GenerateOptions {
            max_new_tokens,
            num_beams: options.num_beams,
            ..GenerateOptions::default()
        };
        let heard = self.whisper.decoder().generate(&audio, &prompt, &rules, &search)?;
        Ok((heard, audio))
    }

    fn encode(&self, clips: &[Clip<'_>], padding: Padding) -> Result<AudioStates> {
        let (mut values, mut lengths) = (Vec::new(), Vec::with_capacity(clips.len()));
        for clip in clips {
            let frames = self.frames(clip.samples, padding);
            lengths.push(frames.len());
            values.extend(frames.values);
        }
        let bands = self.whisper.config().num_mel_bins;
        let shape = (values.len() / bands, bands);
        let frames = Tensor::from_vec(values, shape, &Device::Cpu).map_err(ModelError::from)?;
        Ok(self.whisper.encode(&frames, &lengths, &Mode::predict())?)
    }

    /// Tokens that the text of a clip of this many samples has at most.
    fn most_tokens(&self, samples: usize, options: &RecogniseOptions) -> usize {
        let rate = match self.multilingual {
            true => TOKENS_PER_SECOND_OF_ANY,
            false => TOKENS_PER_SECOND,
        };
        let seconds = seconds(samples);
        // Times are tokens too.
        let at_once = TOKENS_AT_ONCE * if options.timestamps { 2 } else { 1 };
        (at_once + (seconds * rate) as usize).min(MOST_TOKENS - 1)
    }

    /// The language's token and the task, which multilingual models read first.
    fn language(&self, options: &RecogniseOptions) -> Result<Option<(u32, Task)>> {
        let refuse = |reason: String| Err(TrainError::Recognise { reason });
        if !self.multilingual && options.task == Task::Translate {
            return refuse("an English model does not translate".to_string());
        }
        match (&options.language, self.multilingual) {
            (None, false) => Ok(None),
            (Some(language), false) if language == "en" => Ok(None),
            (Some(language), false) => refuse(format!("an English model knows no `{language}`")),
            (None, true) => {
                refuse("a multilingual model needs a language, such as `en`".to_string())
            }
            (Some(language), true) => match self.tokeniser.id_of(&format!("<|{language}|>")) {
                Some(token) if self.tokens.is_language(token) => Ok(Some((token, options.task))),
                _ => refuse(format!("the model knows no language `{language}`")),
            },
        }
    }
}
