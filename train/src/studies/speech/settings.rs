//! Settings of the study: `[data]`, `[model]` and the feed of a phase.

use engram_data::speech::spec_augment::SpecAugment;
use engram_models::conformer::ConformerConfig;
use engram_models::speech::best_rq::BestRqConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::checks::{Invalid, first, fraction, invalid_if, manifests, positive};
use super::decoder::DecoderSettings;
use crate::recipe::{is_default, table};

/// The smallest number of word pieces: the letters.
const MIN_WORD_PIECES: usize = 28;

table! {
    /// `[data]`: speech clips.
    pub struct SpeechData {
        /// Manifest (JSON lines) of training clips; empty for the embedded world.
        pub train: String = String::new(),
        /// Manifest of validation clips, which select the checkpoint.
        pub validation: String = String::new(),
        /// Manifest of test clips, measured at the end.
        pub test: String = String::new(),
        /// A `tokenizer.json`; empty for single letters, or for `word_pieces`.
        pub tokenizer: String = String::new(),
        /// The number of word pieces, learned from the training texts; 0 for single letters.
        #[serde(skip_serializing_if = "is_default")]
        pub word_pieces: usize = 0,
        /// Embedded world: sentences per epoch.
        pub sentences: usize = 4_000,
        /// Embedded world: sentences in validation, and in the test.
        pub evaluation_sentences: usize = 400,
        /// Speeds for training clips, also from files; each clip is played at one of them.
        pub speeds: Vec<f64> = vec![0.8, 0.9, 1.0, 1.1, 1.2],
        /// The lowest and highest signal-to-noise ratio of noise added in training, in dB; empty
        /// for no noise.
        pub snr_db: Vec<f32> = vec![0.0, 40.0],
        /// Embedded world: the signal-to-noise ratio in validation and test, in dB.
        pub evaluated_snr_db: f32 = 30.0,
        /// Embedded world: the share of added noises that are babble (other voices). All other
        /// noise, also for clips from files, is white, coloured or band-limited.
        pub babble: f64 = 0.5,
        /// In phases that train on texts, the share of clips replaced by noise alone, with an empty
        /// text.
        pub noise_only: f64 = 0.08,
        /// The longest clip in training or test, in seconds; memory grows with its square.
        pub max_seconds: f64 = 35.0,
        /// The masking of frames in phases that train on texts.
        pub spec_augment: SpecAugment = SpecAugment::default(),
    }
}

impl SpeechData {
    /// Whether the data are the embedded world.
    pub fn is_world(&self) -> bool {
        self.train.is_empty()
    }

    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Invalid {
        let is_range = |ends: &[f32]| ends[0] <= ends[1] && ends.iter().all(|end| end.is_finite());
        let has_tokenizer = !self.tokenizer.is_empty();
        let is_valid_speed = |speed: &f64| (0.5..=2.0).contains(speed);
        let has_sentences = self.sentences > 0 && self.evaluation_sentences > 0;
        first([
            invalid_if(
                self.word_pieces > 0 && has_tokenizer,
                "word_pieces",
                "is given, but `tokenizer` too; give only one",
            ),
            invalid_if(
                self.word_pieces > 0 && self.word_pieces < MIN_WORD_PIECES,
                "word_pieces",
                format!("is below {MIN_WORD_PIECES}, the number of letters"),
            ),
            manifests(&self.train, &self.validation, &self.test),
            invalid_if(
                self.speeds.is_empty() || !self.speeds.iter().all(is_valid_speed),
                "speeds",
                "needs at least one speed, each between 0.5 and 2",
            ),
            invalid_if(
                !(self.snr_db.is_empty() || self.snr_db.len() == 2 && is_range(&self.snr_db)),
                "snr_db",
                "needs the lowest and the highest ratio, or nothing",
            ),
            fraction("babble", self.babble),
            fraction("noise_only", self.noise_only),
            invalid_if(
                !self.evaluated_snr_db.is_finite(),
                "evaluated_snr_db",
                "must be a finite number of dB",
            ),
            positive("max_seconds", self.max_seconds),
            invalid_if(
                self.is_world() && !has_sentences,
                "sentences",
                "and `evaluation_sentences` must be at least 1",
            ),
        ])
    }
}

/// The size of a Conformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// 4 blocks of width 144: small enough to train on two cores.
    Tiny,
    /// 16 blocks of width 144: Conformer S (arXiv 2005.08100, table 1).
    Small,
    /// 16 blocks of width 256: Conformer M.
    Medium,
    /// 17 blocks of width 512: Conformer L.
    Large,
    /// 24 blocks of width 1024: the 0.6-billion-parameter model of BEST-RQ (arXiv 2202.01855).
    ExtraLarge,
}

table! {
    /// `[model]`: the Conformer.
    pub struct SpeechModel {
        /// The encoder's size.
        pub size: Size = Size::Tiny,
        /// The number of blocks; 0 for the number that belongs to `size`.
        pub layers: usize = 0,
        /// Dropout in residual branches.
        pub dropout: f64 = 0.1,
        /// Dropout of attention weights.
        pub attention_dropout: f64 = 0.1,
        /// The quantiser and the masking of BEST-RQ.
        pub best_rq: BestRqConfig = BestRqConfig::default(),
        /// The decoder. Its keys depend on `kind`.
        #[serde(skip_serializing_if = "DecoderSettings::is_default")]
        pub decoder: DecoderSettings = DecoderSettings::default(),
    }
}

impl SpeechModel {
    /// The encoder's configuration.
    pub fn encoder(&self) -> ConformerConfig {
        let config = match self.size {
            Size::Tiny => ConformerConfig::tiny(),
            Size::Small => ConformerConfig::small(),
            Size::Medium => ConformerConfig::medium(),
            Size::Large => ConformerConfig::large(),
            Size::ExtraLarge => ConformerConfig::extra_large(),
        };
        let layers = match self.layers {
            0 => config.num_hidden_layers,
            layers => layers,
        };
        ConformerConfig {
            num_hidden_layers: layers,
            dropout: self.dropout,
            attention_dropout: self.attention_dropout,
            ..config
        }
    }
}

/// The training objective of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// BEST-RQ: predict the codes of masked audio, without texts.
    BestRq,
    /// CTC: predict texts by connectionist temporal classification. For the decoder `ctc`.
    Ctc,
    /// Predict texts by a transducer. For the decoder `transducer`.
    Transducer,
    /// Predict texts by attention and CTC. For the decoder `attention`.
    Attention,
}

/// `[phase.feed]`: the training objective of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeechFeed {
    /// The objective.
    pub objective: Objective,
    /// Embedded world: the number of training voices that speak, from the first; 0 for all. Babble
    /// noise uses all voices.
    #[serde(default)]
    pub voices: usize,
}
