//! What a recipe of the study says in `[data]`, `[model]` and in the feed of a phase.

use engram_data::speech::spec_augment::SpecAugment;
use engram_models::conformer::ConformerConfig;
use engram_models::speech::best_rq::BestRqConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[data]`: clips of speech.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpeechData {
    /// A manifest (JSON lines) of clips to train on; empty for the embedded world.
    pub train: String,
    /// A manifest of clips that choose the checkpoint.
    pub validation: String,
    /// A manifest of clips that are measured at the end.
    pub test: String,
    /// A `tokenizer.json`; empty for the letters.
    pub tokenizer: String,
    /// Of the embedded world: sentences of an epoch.
    pub sentences: usize,
    /// Of the embedded world: sentences of validation and of the test, each.
    pub evaluated: usize,
    /// In training each clip, of files too, is played at one of these speeds.
    pub speeds: Vec<f64>,
    /// In training noise is added at a ratio between these, in dB; empty for none.
    pub snr_db: Vec<f32>,
    /// Of the embedded world: the ratio in validation and test, in dB.
    pub evaluated_snr_db: f32,
    /// Of the embedded world: the share of the added noises that are other voices. The rest is white,
    /// of another colour or in bands, as all noise is that is added to clips of files.
    pub babble: f64,
    /// Where texts are learnt, the share of the clips that noise alone takes the place of, with an empty
    /// text.
    pub noise_alone: f64,
    /// The longest clip that is learnt from or measured, in seconds: memory grows with its square.
    pub max_seconds: f64,
    /// What of the frames is masked where texts are learnt.
    pub spec_augment: SpecAugment,
}

impl Default for SpeechData {
    fn default() -> Self {
        Self {
            train: String::new(),
            validation: String::new(),
            test: String::new(),
            tokenizer: String::new(),
            sentences: 4_000,
            evaluated: 400,
            speeds: vec![0.8, 0.9, 1.0, 1.1, 1.2],
            snr_db: vec![0.0, 40.0],
            evaluated_snr_db: 30.0,
            babble: 0.5,
            noise_alone: 0.08,
            max_seconds: 35.0,
            spec_augment: SpecAugment::default(),
        }
    }
}

impl SpeechData {
    /// Whether the embedded world is what is learnt.
    pub fn is_world(&self) -> bool {
        self.train.is_empty()
    }

    /// A value that cannot be, and why.
    pub fn conflict(&self) -> Option<(&'static str, String)> {
        if !self.is_world() && (self.validation.is_empty() || self.test.is_empty()) {
            return Some(("train", "needs `validation` and `test` beside it".into()));
        }
        if self.is_world() && !(self.validation.is_empty() && self.test.is_empty()) {
            return Some(("train", "is empty, but `validation` or `test` is not".into()));
        }
        if self.speeds.is_empty() || self.speeds.iter().any(|s| !(0.5..=2.0).contains(s)) {
            return Some(("speeds", "wants speeds between 0.5 and 2, one at least".into()));
        }
        let ordered = |range: &[f32]| range[0] <= range[1] && range.iter().all(|r| r.is_finite());
        if !(self.snr_db.is_empty() || self.snr_db.len() == 2 && ordered(&self.snr_db)) {
            return Some(("snr_db", "wants the lowest and the highest ratio, or nothing".into()));
        }
        for (key, share) in [("babble", self.babble), ("noise_alone", self.noise_alone)] {
            if !(0.0..=1.0).contains(&share) {
                return Some((key, format!("{share} is no share")));
            }
        }
        if !self.evaluated_snr_db.is_finite() {
            return Some(("evaluated_snr_db", "is no ratio in dB".into()));
        }
        if !(self.max_seconds > 0.0 && self.max_seconds.is_finite()) {
            return Some(("max_seconds", format!("{} is no length", self.max_seconds)));
        }
        if self.is_world() && (self.sentences == 0 || self.evaluated == 0) {
            return Some(("sentences", "and `evaluated` have to be 1 at least".into()));
        }
        None
    }
}

/// A Conformer's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// 4 blocks of width 144: the small encoder that trains on two cores.
    Tiny,
    /// 17 blocks of width 512: Conformer L (arXiv 2005.08100, table 1).
    Large,
    /// 24 blocks of width 1024: the 0.6 billion parameters of BEST-RQ (arXiv 2202.01855).
    ExtraLarge,
}

/// `[model]`: the Conformer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpeechModel {
    /// The encoder's size.
    pub size: Size,
    /// Its blocks, where there are to be others than the size has; 0 for those.
    pub layers: usize,
    /// Dropout of what a block's parts add.
    pub dropout: f64,
    /// Dropout of attention weights.
    pub attention_dropout: f64,
    /// The quantiser of BEST-RQ and its masks.
    pub best_rq: BestRqConfig,
}

impl Default for SpeechModel {
    fn default() -> Self {
        Self {
            size: Size::Tiny,
            layers: 0,
            dropout: 0.1,
            attention_dropout: 0.1,
            best_rq: BestRqConfig::default(),
        }
    }
}

impl SpeechModel {
    /// The encoder's configuration.
    pub fn encoder(&self) -> ConformerConfig {
        let config = match self.size {
            Size::Tiny => ConformerConfig::tiny(),
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

/// What a phase learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The codes of masked sound; no text is read.
    BestRq,
    /// Texts, by connectionist temporal classification.
    Ctc,
}

/// `[phase.feed]`: what a phase is fed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeechFeed {
    /// What it learns.
    pub objective: Objective,
    /// Of the embedded world: who speaks, the first so many of the voices to train on; 0 for all of
    /// them. (All are heard in the babble.)
    #[serde(default)]
    pub voices: usize,
}
