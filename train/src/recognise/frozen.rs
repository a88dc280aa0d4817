//! What a frozen recogniser gives to what is added to it: its model, its frames and tokens, and how its
//! texts are written.

use candle_core::{Device, Tensor};
use engram_data::DataError;
use engram_models::ModelError;
use engram_models::avformer::FrozenRecogniser;
use engram_models::generation::GenerateOptions;
use engram_models::params::Parameters;
use engram_models::speech::AudioStates;
use engram_models::speech::decode::best_paths;
use engram_models::speech::log_mel::{Frames, HOP, samples_of};
use engram_models::whisper::Rules;

use rayon::prelude::*;

use super::{Listener, MOST_TOKENS, RecogniseOptions, Recogniser, SHORT_SILENCE};
use crate::error::Result;

impl Listener {
    /// The model, whose parameters do not move.
    ///
    /// # Errors
    /// [`TrainError`](crate::TrainError)`::Recognise` for a multilingual Whisper model, which would have to
    /// be told a language.
    pub fn frozen(&self) -> Result<FrozenRecogniser> {
        Ok(match self {
            Self::Whisper(whisper) => FrozenRecogniser::Whisper {
                model: Box::new(whisper.whisper.clone()),
                prompt: whisper.prompt()?,
                end: whisper.tokens.end,
            },
            Self::Conformer(conformer) => {
                FrozenRecogniser::Conformer(Box::new(conformer.model.clone()))
            }
        })
    }

    /// The parameters, none of which is trainable.
    pub fn parameters(&self) -> &Parameters {
        match self {
            Self::Whisper(whisper) => &whisper.parameters,
            Self::Conformer(conformer) => &conformer.parameters,
        }
    }

    /// Samples of the shortest clip that has a token.
    pub fn fewest_samples(&self) -> usize {
        match self {
            Self::Whisper(_) => HOP,
            Self::Conformer(conformer) => {
                HOP * conformer.model.config().encoder_config.subsampling_factor
            }
        }
    }

    /// Samples of silence behind a clip with which Whisper, that has learnt from 30 seconds, hears about as well as
    /// with all of them; a Conformer needs none.
    pub fn silence_behind(&self) -> usize {
        match self {
            Self::Whisper(_) => SHORT_SILENCE,
            Self::Conformer(_) => 0,
        }
    }

    fn frames(&self, samples: &[f32], silence: usize) -> Frames {
        let length = (samples.len() + silence).min(samples_of(self.max_seconds()));
        match self {
            Self::Whisper(whisper) => whisper.mel.frames(samples, length),
            Self::Conformer(conformer) => conformer.mel.frames(samples, length),
        }
    }

    /// What lies before the first block, of clips in one pass: the frames of their samples and of so many of silence
    /// behind them, or as many as the model hears, as tokens.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a clip that is shorter than a token.
    pub fn embed<C: AsRef<[f32]> + Sync>(
        &self,
        recogniser: &FrozenRecogniser,
        clips: &[C],
        silence: usize,
    ) -> Result<AudioStates> {
        let frames = clips.par_iter().map(|clip| self.frames(clip.as_ref(), silence));
        let frames: Vec<Frames> = frames.collect();
        let bands = frames.first().map_or(1, |frames| frames.bands);
        let lengths: Vec<usize> = frames.iter().map(Frames::len).collect();
        let values: Vec<f32> = frames.into_iter().flat_map(|frames| frames.values).collect();
        let shape = (values.len() / bands, bands);
        let frames = Tensor::from_vec(values, shape, &Device::Cpu).map_err(ModelError::from)?;
        Ok(recogniser.embed(&frames, &lengths)?)
    }

    /// The tokens of a text, as the model writes it.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] for a text with a character that is not in the vocabulary.
    pub fn tokens_of(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match self {
            // A text begins with a space.
            Self::Whisper(whisper) => whisper.tokeniser.encode_known(&format!(" {}", text.trim())),
            Self::Conformer(conformer) => conformer.tokeniser().encode_known(text.trim()),
        }
    }

    /// Why the model cannot write a text; `None` if it can.
    pub fn cannot_write(&self, text: &str) -> Option<String> {
        match (self.tokens_of(text), self) {
            (Err(DataError::Tokenizer { reason, .. }), _) => Some(format!(
                "its text cannot be written: {reason}; correct it, or leave the clip out"
            )),
            (Err(error), _) => Some(error.to_string()),
            (Ok(tokens), Self::Whisper(whisper)) => {
                let positions = whisper.whisper.config().max_target_positions;
                let read = tokens.len() + whisper.prompt().map_or(0, |prompt| prompt.len());
                (read > positions).then(|| {
                    format!("its text is {read} tokens; the model has {positions} positions: shorten it, or leave the clip out")
                })
            }
            (Ok(_), Self::Conformer(_)) => None,
        }
    }

    /// The likeliest text of each clip, one token after the other, of the encoder's states; Whisper's
    /// texts are no longer than `samples` of a clip can be.
    ///
    /// # Errors
    /// Those of the decoder.
    pub fn texts_of(&self, audio: &AudioStates, samples: &[usize]) -> Result<Vec<String>> {
        match self {
            Self::Whisper(whisper) => whisper.texts_of(audio, samples),
            Self::Conformer(conformer) => {
                let logits = conformer.model.logits(audio)?;
                let blank = conformer.model.config().blank;
                let paths = best_paths(&logits, &audio.lengths, blank)?;
                let text = |tokens: &[u32]| Ok(conformer.tokeniser().decode(tokens)?.trim().into());
                paths.iter().map(|path| text(&path.tokens)).collect()
            }
        }
    }
}

impl Recogniser {
    /// What stands before each text.
    fn prompt(&self) -> Result<Vec<u32>> {
        Ok(self.tokens.prompt(self.language(&RecogniseOptions::default())?, false)?)
    }

    fn texts_of(&self, audio: &AudioStates, samples: &[usize]) -> Result<Vec<String>> {
        let (options, prompt) = (RecogniseOptions::default(), self.prompt()?);
        let positions = self.whisper.config().max_target_positions;
        let rules = Rules {
            tokens: self.tokens.clone(),
            suppressed: self.suppressed.clone(),
            suppressed_at_start: self.suppressed_at_start.clone(),
            timestamps: false,
            most_tokens: samples.iter().map(|count| self.most_tokens(*count, &options)).collect(),
            boosts: Vec::new(),
        };
        let search = GenerateOptions {
            max_new_tokens: positions.saturating_sub(prompt.len()).clamp(1, MOST_TOKENS),
            num_beams: 1,
            ..GenerateOptions::default()
        };
        let heard = self.whisper.decoder().generate(audio, &prompt, &rules, &search)?;
        let text = |tokens: &[u32]| Ok(self.tokeniser.decode(tokens)?.trim().to_string());
        heard.iter().map(|heard| text(heard.text.without_end())).collect()
    }
}
