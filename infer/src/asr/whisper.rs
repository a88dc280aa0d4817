//! Speech recognition with Whisper.

mod files;
mod long;
mod transcript;
mod words;

use std::sync::Arc;

use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_models::avformer::EncodedClips;
use engram_models::generation::GenerateOptions;
use engram_models::generation::boosting::BoostTree;
use engram_models::kernels::Mode;
use engram_models::params::Parameters;
use engram_models::speech::AudioStates;
use engram_models::speech::log_mel::{Frames, HOP, LogMel, SAMPLE_RATE, samples_to_seconds};
use engram_models::weights::WeightsFiles;
use engram_models::whisper::{
    AlignmentHeads, DecodingRules, EarlierContext, Task, Whisper, WhisperTokens, WhisperTranscript,
};
use transcript::Part;

use super::speech_detection::is_without_speech;
use super::{Padding, TranscribeOptions, Transcript, packed};
use crate::error::{InferError, Result};

/// A Whisper model with its tokenizer and decoding rules.
pub struct WhisperAsr {
    pub(super) whisper: Whisper,
    pub(super) parameters: Parameters,
    pub(super) mel: LogMel,
    pub(super) tokenizer: SpeechTokenizer,
    pub(super) tokens: WhisperTokens,
    /// The tokens that no text contains.
    suppressed: Vec<u32>,
    /// The tokens that no text starts with.
    suppressed_at_start: Vec<u32>,
    /// The attention heads that give word times.
    alignment_heads: AlignmentHeads,
    /// Whether the model supports other languages than English.
    multilingual: bool,
    /// The language of speech if the options give none.
    pub(super) language: Option<String>,
    /// The files of the weights.
    pub(super) weights: WeightsFiles,
}

/// A clip with its boosted words.
#[derive(Clone, Copy)]
struct Clip<'a> {
    samples: &'a [f32],
    boost: Option<&'a Arc<BoostTree>>,
}

/// The maximum number of tokens of a text, as in openai/whisper: half of the decoder's positions.
const MAX_TOKENS: usize = 224;
/// The maximum number of tokens per second of English speech.
const ENGLISH_TOKENS_PER_SECOND: f64 = 12.0;
/// The maximum number of tokens per second for a multilingual model. Some languages have several
/// tokens per letter.
const MULTILINGUAL_TOKENS_PER_SECOND: f64 = 45.0;
/// The number of tokens that every text may have in addition to these rates; with timestamps, twice
/// this number.
const EXTRA_TOKENS: usize = 12;
/// The silence after a clip with [`Padding::Short`], in samples. With less silence, texts repeat
/// themselves.
pub(super) const SHORT_SILENCE: usize = 5 * SAMPLE_RATE as usize;

impl WhisperAsr {
    /// Transcribes clips of 16 kHz samples in one batch, with the boosted words `boosts[i]` for
    /// clip `i`. Clips beyond the end of `boosts` use the words of the options. With timestamps,
    /// clips are transcribed one by one, because the audio after the last pair of timestamps is
    /// decoded again.
    pub(super) fn transcribe(
        &self,
        clips: &[&[f32]],
        boosts: &[Option<Arc<BoostTree>>],
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>> {
        self.language(options)?;
        let boost = |i: usize| boosts.get(i).unwrap_or(&options.boost).as_ref();
        let clips: Vec<Clip<'_>> = clips
            .iter()
            .enumerate()
            .map(|(i, samples)| Clip { samples, boost: boost(i) })
            .collect();
        let max_samples = self.whisper.config.max_samples();
        if let Some(clip) = clips.iter().find(|clip| clip.samples.len() > max_samples) {
            let seconds = samples_to_seconds(clip.samples.len());
            let reason = format!(
                "a clip of {seconds:.1} s is too long; split it into clips of at most {:.0} s",
                samples_to_seconds(max_samples)
            );
            return Err(InferError::Refused(reason));
        }
        if options.timestamps {
            let transcribe = |clip: &Clip<'_>| {
                let options = TranscribeOptions { boost: clip.boost.cloned(), ..options.clone() };
                self.transcribe_whole(clip.samples, &options)
            };
            return clips.iter().map(transcribe).collect();
        }
        let mut transcripts: Vec<Transcript> =
            clips.iter().map(|clip| Transcript::empty(clip.samples.len())).collect();
        let may_have_speech = |clip: &Clip<'_>| !is_without_speech(clip.samples);
        let (indices, clips): (Vec<usize>, Vec<Clip<'_>>) =
            clips.into_iter().enumerate().filter(|(_, clip)| may_have_speech(clip)).unzip();
        for (i, transcript) in indices.into_iter().zip(self.transcribe_speech(&clips, options)?) {
            transcripts[i] = transcript;
        }
        Ok(transcripts)
    }

    /// Transcribes clips that may contain speech.
    fn transcribe_speech(
        &self,
        clips: &[Clip<'_>],
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>> {
        let mut transcripts = self.transcripts(clips, options.padding, options)?;
        if options.padding == Padding::Short {
            let is_doubtful =
                |i: &usize| transcripts[*i].truncated || transcripts[*i].is_doubtful();
            let doubtful: Vec<usize> = (0..clips.len()).filter(is_doubtful).collect();
            let doubtful_clips: Vec<Clip<'_>> = doubtful.iter().map(|i| clips[*i]).collect();
            let new_transcripts = self.transcripts(&doubtful_clips, Padding::Silence, options)?;
            for (i, transcript) in doubtful.into_iter().zip(new_transcripts) {
                transcripts[i] = Transcript { decoded_again: true, ..transcript };
            }
        }
        Ok(transcripts)
    }

    /// Transcribes clips without timestamps, with this padding.
    fn transcripts(
        &self,
        clips: &[Clip<'_>],
        padding: Padding,
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>> {
        if clips.is_empty() {
            return Ok(Vec::new());
        }
        let (decoded, audio) = self.decode(clips, padding, options)?;
        let mut transcripts = clips
            .iter()
            .zip(&decoded)
            .map(|(clip, decoded)| self.transcript(clip.samples.len(), decoded, options))
            .collect::<Result<Vec<_>>>()?;
        if options.word_times {
            let parts: Vec<Vec<Part>> = decoded
                .iter()
                .zip(&transcripts)
                .map(|(decoded, transcript)| transcript.as_parts(decoded))
                .collect();
            let clips: Vec<(usize, &[Part])> = clips
                .iter()
                .zip(&parts)
                .map(|(clip, parts)| (clip.samples.len(), parts.as_slice()))
                .collect();
            let words = self.words(&audio, &clips, 0.0, options)?;
            for (transcript, words) in transcripts.iter_mut().zip(words) {
                transcript.words = words;
            }
        }
        Ok(transcripts)
    }

    /// The log-mel frames of a clip with its padding.
    fn frames(&self, clip: &[f32], padding: Padding) -> Frames {
        let max_samples = self.whisper.config.max_samples();
        match padding {
            Padding::Silence => self.mel.frames(clip, max_samples),
            Padding::Short => self.mel.frames(clip, (clip.len() + SHORT_SILENCE).min(max_samples)),
            Padding::Zeros => {
                // faster-whisper computes one more frame, of silence, and drops it.
                let mut frames = self.mel.frames(clip, clip.len() + HOP);
                frames.values.truncate(clip.len() / HOP * frames.bands);
                frames.values.resize(max_samples / HOP * frames.bands, 0.0);
                frames
            }
        }
    }

    /// Decodes clips, and returns the decoder's results with the encoder states.
    fn decode(
        &self,
        clips: &[Clip<'_>],
        padding: Padding,
        options: &TranscribeOptions,
    ) -> Result<(Vec<WhisperTranscript>, AudioStates)> {
        let audio = self.encode(clips, padding)?;
        let language = self.language(options)?;
        let prompt = self.tokens.prompt(language, options.timestamps)?;
        let samples: Vec<usize> = clips.iter().map(|clip| clip.samples.len()).collect();
        let boosts = clips.iter().map(|clip| clip.boost.cloned()).collect();
        let rules = DecodingRules { boosts, ..self.rules(&samples, options) };
        let decoded = self.generate(&audio, None, &prompt, &rules, options.num_beams)?;
        Ok((decoded, audio))
    }

    /// Generates a text for each clip of `audio` after the context and the prompt.
    fn generate(
        &self,
        audio: &AudioStates,
        context: Option<&EarlierContext>,
        prompt: &[u32],
        rules: &DecodingRules,
        num_beams: usize,
    ) -> Result<Vec<WhisperTranscript>> {
        let positions = self.whisper.config.max_target_positions;
        let earlier = context.and_then(|context| context.counts.first()).map_or(0, |n| n + 1);
        let free = positions.saturating_sub(earlier + prompt.len());
        let search = GenerateOptions {
            max_new_tokens: free.clamp(1, MAX_TOKENS),
            num_beams,
            ..GenerateOptions::default()
        };
        Ok(self.whisper.decoder.generate(audio, context, prompt, rules, &search)?)
    }

    /// The encoder states of clips.
    fn encode(&self, clips: &[Clip<'_>], padding: Padding) -> Result<AudioStates> {
        let frames = clips.iter().map(|clip| self.frames(clip.samples, padding));
        let (frames, lengths) = packed(frames.collect())?;
        Ok(self.whisper.encode(&frames, &lengths, &Mode::inference())?)
    }

    /// The maximum number of tokens in the text of a clip with this many samples.
    fn max_tokens(&self, samples: usize, options: &TranscribeOptions) -> usize {
        let rate = if self.multilingual {
            MULTILINGUAL_TOKENS_PER_SECOND
        } else {
            ENGLISH_TOKENS_PER_SECOND
        };
        let seconds = samples_to_seconds(samples);
        // Timestamps are tokens, too.
        let extra = EXTRA_TOKENS * if options.timestamps { 2 } else { 1 };
        (extra + (seconds * rate) as usize).min(MAX_TOKENS - 1)
    }

    /// Returns the language token and the task for the prompt of a multilingual model; `None` for
    /// an English-only model.
    pub(super) fn language(&self, options: &TranscribeOptions) -> Result<Option<(u32, Task)>> {
        let refuse = |reason: String| Err(InferError::Refused(reason));
        if !self.multilingual && options.task == Task::Translate {
            return refuse(
                "an English-only model cannot translate; use a multilingual one".to_string(),
            );
        }
        match (options.language.as_ref().or(self.language.as_ref()), self.multilingual) {
            (None, false) => Ok(None),
            (Some(language), false) if language == "en" => Ok(None),
            (Some(language), false) => refuse(format!(
                "an English-only model does not support the language `{language}`; use a \
                     multilingual one"
            )),
            (None, true) => refuse(
                "a multilingual model needs the language of the speech, such as `en`: give it, or set \
                     `model.language` in a recipe"
                    .to_string(),
            ),
            (Some(language), true) => match self.tokenizer.id_of(&format!("<|{language}|>")) {
                Some(token) if self.tokens.is_language(token) => Ok(Some((token, options.task))),
                _ => refuse(format!(
                    "the model does not support the language `{language}`; use a language code \
                     such as `en`"
                )),
            },
        }
    }

    /// The tokens before each text, with the default options.
    pub(super) fn prompt(&self) -> Result<Vec<u32>> {
        Ok(self.tokens.prompt(self.language(&TranscribeOptions::default())?, false)?)
    }

    /// The decoding rules for clips of these lengths, without boosted words.
    fn rules(&self, samples: &[usize], options: &TranscribeOptions) -> DecodingRules {
        DecodingRules {
            tokens: self.tokens.clone(),
            suppress_tokens: self.suppressed.clone(),
            begin_suppress_tokens: self.suppressed_at_start.clone(),
            timestamps: options.timestamps,
            max_tokens: samples.iter().map(|count| self.max_tokens(*count, options)).collect(),
            boosts: Vec::new(),
        }
    }

    /// Returns greedy transcripts of clips from their encoder states. `samples` holds the clip
    /// lengths, which limit the number of tokens of the texts.
    pub(super) fn texts_of(&self, clips: &EncodedClips, samples: &[usize]) -> Result<Vec<String>> {
        let mut texts = vec![String::new(); samples.len()];
        for (indices, clips) in clips.by_context_length()? {
            let samples: Vec<usize> = indices.iter().map(|index| samples[*index]).collect();
            let rules = self.rules(&samples, &TranscribeOptions::default());
            let context = clips.context.as_ref();
            let decoded = self.generate(&clips.audio, context, &self.prompt()?, &rules, 1)?;
            for (index, decoded) in indices.into_iter().zip(decoded) {
                let text = self.tokenizer.decode(decoded.generated.without_end())?;
                texts[index] = text.trim().to_owned();
            }
        }
        Ok(texts)
    }
}
