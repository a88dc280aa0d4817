//! A Conformer with an attention decoder and a CTC head (hybrid CTC/attention, Watanabe et al.
//! 2017): a Transformer decoder, the same as Whisper's, generates the text from the encoder states.
//!
//! The CTC head aligns the text in training, and gives the times of tokens in decoding. With more
//! than one beam, the decoder rescores the hypotheses of CTC's beam search ("attention rescoring",
//! arXiv 2012.05481), which cannot repeat themselves endlessly.

use std::ops::Range;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::{ConformerConfig, ConformerCtcConfig, CtcHead};
use crate::adapter::Adapters;
use crate::compute::to_host;
use crate::config::{check_sizes, require};
use crate::error::Result;
use crate::generation::GenerateOptions;
use crate::kernels::{Activation, Mode};
use crate::packed::PackedTokens;
use crate::params::ParameterBuilder;

use crate::speech::AudioStates;
use crate::speech::ctc_beam::{BOOSTED_BEAMS, BeamSearchOptions, beam_search};
use crate::speech::decode::{BestPath, clips, forced_alignment, rows};
use crate::speech::text_losses::mean_text_losses;
use crate::whisper::{Decoder, WhisperConfig};

/// The sizes of the attention decoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionDecoderConfig {
    /// The number of layers.
    pub num_layers: usize,
    /// The number of attention heads.
    pub num_heads: usize,
    /// Width of the feed-forward layers.
    pub intermediate_size: usize,
    /// The maximum number of tokens of a text, including the end token.
    pub max_tokens: usize,
    /// Dropout on the output of attention and feed-forward layers.
    pub dropout: f64,
}

impl Default for AttentionDecoderConfig {
    /// The decoder of ESPnet's Conformer recipes: 6 layers.
    fn default() -> Self {
        Self { num_layers: 6, num_heads: 8, intermediate_size: 2048, max_tokens: 448, dropout: 0.1 }
    }
}

/// The configuration of a Conformer with an attention decoder and a CTC head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConformerAttentionConfig {
    /// The encoder.
    pub encoder_config: ConformerConfig,
    /// Vocabulary size `V`, including the blank.
    pub vocab_size: usize,
    /// The blank of the CTC head. For the decoder, this token begins and ends a text.
    #[serde(rename = "pad_token_id")]
    pub blank: u32,
    /// The weight of CTC in the loss and in the score of hypotheses; the decoder has the rest.
    pub ctc_weight: f64,
    /// The attention decoder.
    pub decoder: AttentionDecoderConfig,
}

impl ConformerAttentionConfig {
    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] with the field's name.
    pub fn validate(&self) -> Result<()> {
        self.ctc().validate()?;
        self.whisper().validate()?;
        check_sizes(&[("decoder.num_layers", self.decoder.num_layers)])?;
        require((0.0..=1.0).contains(&self.ctc_weight), "ctc_weight", || {
            format!("{} is not between 0 and 1", self.ctc_weight)
        })
    }

    /// The configuration of the encoder with its CTC head.
    fn ctc(&self) -> ConformerCtcConfig {
        ConformerCtcConfig {
            encoder_config: self.encoder_config.clone(),
            vocab_size: self.vocab_size,
            blank: self.blank,
        }
    }

    /// The configuration of the decoder.
    fn whisper(&self) -> WhisperConfig {
        let AttentionDecoderConfig {
            num_layers,
            num_heads,
            intermediate_size,
            max_tokens,
            dropout,
        } = self.decoder;
        WhisperConfig {
            vocab_size: self.vocab_size,
            d_model: self.encoder_config.hidden_size,
            encoder_attention_heads: num_heads,
            decoder_layers: num_layers,
            decoder_attention_heads: num_heads,
            decoder_ffn_dim: intermediate_size,
            max_target_positions: max_tokens,
            activation_function: Activation::Relu,
            dropout,
            init_std: self.encoder_config.initializer_range,
            decoder_start_token_id: self.blank,
            eos_token_id: self.blank,
            ..WhisperConfig::default()
        }
    }
}

/// An attention decoder with a CTC head.
#[derive(Debug, Clone)]
pub struct AttentionDecoder {
    /// The configuration.
    pub config: ConformerAttentionConfig,
    /// The CTC head.
    pub ctc: CtcHead,
    decoder: Decoder,
}

impl AttentionDecoder {
    /// Builds the decoder and the head for an encoder. Parameter names start with `ctc_head` and
    /// `decoder`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &ConformerAttentionConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            ctc: CtcHead::new(&config.ctc(), builder)?,
            decoder: Decoder::new(&config.whisper(), &builder.pp("decoder"))?,
            config: config.clone(),
        })
    }

    /// Returns the decoder's logits `[Σ (U_b + 1), V]` of the next token after 0, 1, … `U_b` tokens
    /// of each text.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers of texts and clips differ, or a text is too
    /// long.
    pub fn decoder_logits(
        &self,
        audio: &AudioStates,
        texts: &[Vec<u32>],
        mode: &Mode,
    ) -> Result<Tensor> {
        audio.check_texts(texts)?;
        let inputs = texts.iter().map(|text| [&[self.config.blank][..], text].concat());
        let inputs = PackedTokens::new(&inputs.collect::<Vec<Vec<u32>>>());
        self.decoder.forward(&inputs, None, audio, &Adapters::NONE, mode)
    }

    /// Returns `-log p(text, end)` of each clip by the decoder in nats, `[B]`.
    ///
    /// # Errors
    /// The errors of [`AttentionDecoder::decoder_logits`].
    pub fn decoder_losses(
        &self,
        audio: &AudioStates,
        texts: &[Vec<u32>],
        mode: &Mode,
    ) -> Result<Tensor> {
        let logits = self.decoder_logits(audio, texts, mode)?;
        let means = mean_text_losses(&logits, texts, &vec![1; texts.len()], self.config.blank)?;
        let lengths: Vec<f64> = texts.iter().map(|text| text.len() as f64 + 1.0).collect();
        let lengths = Tensor::from_vec(lengths, texts.len(), means.device())?;
        Ok((&means * lengths.to_dtype(means.dtype())?)?)
    }

    /// Returns the share of the decoder's cross-attention that goes to the encoder states
    /// `selected` of each clip, for each token of its text ([`Decoder::attention_share`]).
    ///
    /// # Errors
    /// The errors of [`Decoder::attention_share`].
    pub fn attention_share(
        &self,
        audio: &AudioStates,
        texts: &[Vec<u32>],
        selected: &[Range<usize>],
    ) -> Result<Vec<Vec<f64>>> {
        self.decoder.attention_share(audio, texts, &[self.config.blank], selected)
    }

    /// Returns the loss of each clip's text in nats, `[B]`: the weighted sum of CTC's loss and the
    /// decoder's. A text that is too long for CTC has infinite loss and zero gradient, unless the
    /// weight of CTC is 0.
    ///
    /// # Errors
    /// The errors of [`AttentionDecoder::decoder_losses`] and [`CtcHead::losses`].
    pub fn losses(&self, audio: &AudioStates, texts: &[Vec<u32>], mode: &Mode) -> Result<Tensor> {
        let weight = self.config.ctc_weight;
        if weight == 0.0 {
            return self.decoder_losses(audio, texts, mode);
        }
        let ctc = self.ctc.losses(audio, texts)?;
        if weight == 1.0 {
            return Ok(ctc);
        }
        let attention = self.decoder_losses(audio, texts, mode)?;
        Ok(((ctc * weight)? + (attention * (1.0 - weight))?)?)
    }

    /// Returns the text of each clip, with the times that CTC aligns. With one beam and no boosted
    /// words, the decoder generates greedily. Else it rescores CTC's hypotheses: the score is the
    /// weighted sum of both log probabilities and the bonus. A text without a CTC alignment has its
    /// tokens at the first state.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers of searches and clips differ, or for logits
    /// that are NaN or infinite.
    pub fn paths(
        &self,
        audio: &AudioStates,
        searches: &[BeamSearchOptions],
    ) -> Result<Vec<BestPath>> {
        BeamSearchOptions::check(searches, audio.lengths.len())?;
        let logits = rows(&self.ctc.logits(audio)?.detach())?;
        let is_greedy = searches.iter().all(|search| search.beams().is_none());
        let greedy = if is_greedy { self.greedy(audio)? } else { Vec::new() };
        let clips = clips(&logits, &audio.lengths).into_iter().zip(audio.clips()?);
        let path = |(i, (rows, clip)): (usize, (&[Vec<f32>], AudioStates))| {
            let tokens = match greedy.get(i) {
                Some(tokens) => tokens.clone(),
                None => self.rescored(&clip, rows, &searches[i])?,
            };
            Ok(self.aligned(rows, tokens))
        };
        clips.enumerate().map(path).collect()
    }

    /// The decoder's greedy texts.
    fn greedy(&self, audio: &AudioStates) -> Result<Vec<Vec<u32>>> {
        let options = GenerateOptions {
            max_new_tokens: self.config.decoder.max_tokens,
            ..GenerateOptions::greedy(self.config.blank, self.config.blank)
        };
        // CTC gives at most one token per state, and so does the decoder.
        let texts = self.decoder.generate_texts(audio, &options, &audio.lengths)?;
        Ok(texts.iter().map(|text| text.without_end().to_vec()).collect())
    }

    /// The best of CTC's hypotheses for a clip by both scores.
    fn rescored(
        &self,
        clip: &AudioStates,
        rows: &[Vec<f32>],
        search: &BeamSearchOptions,
    ) -> Result<Vec<u32>> {
        let num_beams = search.beams().unwrap_or(BOOSTED_BEAMS);
        let mut hypotheses = beam_search(rows, self.config.blank, num_beams, search.boost())?;
        hypotheses.retain(|text| text.tokens.len() < self.config.decoder.max_tokens);
        let texts: Vec<Vec<u32>> = hypotheses.iter().map(|text| text.tokens.clone()).collect();
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let repeated = AudioStates {
            states: Tensor::cat(&vec![&clip.states; texts.len()], 0)?,
            lengths: vec![clip.lengths[0]; texts.len()],
        };
        let losses = to_host(&self.decoder_losses(&repeated, &texts, &Mode::inference())?)?;
        let weight = self.config.ctc_weight;
        let mut best = (f64::NEG_INFINITY, Vec::new());
        for ((text, loss), hypothesis) in texts.into_iter().zip(losses).zip(&hypotheses) {
            let score = weight * hypothesis.log_probability - (1.0 - weight) * f64::from(loss)
                + hypothesis.bonus;
            if score > best.0 {
                best = (score, text);
            }
        }
        Ok(best.1)
    }

    /// The path of a text, as CTC aligns it.
    fn aligned(&self, rows: &[Vec<f32>], tokens: Vec<u32>) -> BestPath {
        forced_alignment(rows, &tokens, self.config.blank).unwrap_or_else(|| BestPath {
            states: vec![0; tokens.len()],
            log_probabilities: vec![f32::NEG_INFINITY; tokens.len()],
            mean_log_probability: f32::NEG_INFINITY,
            min_blank_probability: 1.0,
            tokens,
        })
    }
}
