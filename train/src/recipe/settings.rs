//! The sections of a recipe that the trainer itself obeys, with their defaults.

use std::path::PathBuf;

use engram_models::params::path_matches;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::Variant;
use crate::schedule::Schedule;
use crate::trainer::WEIGHTS;

/// `[batch]`: how large a step is. A study reads the sizes; the trainer reads `accumulate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchSettings {
    /// Examples in a micro-batch, at most.
    pub examples: usize,
    /// Tokens in a micro-batch, at most; 0 for no limit.
    pub tokens: usize,
    /// Micro-batches in a step.
    pub accumulate: usize,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self { examples: 32, tokens: 0, accumulate: 1 }
    }
}

/// The rule that turns gradients into steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimiserKind {
    /// Adam with decoupled weight decay.
    Adamw,
    /// Adafactor with factored second moments, as REVEAL uses it.
    Adafactor,
}

/// `[optimiser]`: how gradients become steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimiserSettings {
    /// The rule.
    pub kind: OptimiserKind,
    /// The highest learning rate of the schedule.
    pub learning_rate: f64,
    /// AdamW: decay of the first and second moment.
    pub betas: [f64; 2],
    /// Added to AdamW's denominator, or to Adafactor's squared gradients; without it 1e-8 and
    /// 1e-30.
    pub epsilon: Option<f64>,
    /// Decay of tensors of rank 2 and more. AdamW multiplies it by the learning rate, Adafactor
    /// does not.
    pub weight_decay: f64,
    /// The Euclidean norm that all gradients together are cut to; 0 for no limit.
    pub clip_norm: f64,
    /// The factor on the learning rate from each layer to the one below it.
    pub layer_rate_decay: f64,
    /// Adafactor: exponent of the second moment's decay, `1 − t^−exponent`.
    pub decay_exponent: f64,
    /// Adafactor: the root mean square that a tensor's update is cut to.
    pub update_clip: f64,
    /// Adafactor: decay of the update's running mean; 0 for none.
    pub momentum: f64,
}

impl Default for OptimiserSettings {
    fn default() -> Self {
        Self {
            kind: OptimiserKind::Adamw,
            learning_rate: 1e-4,
            betas: [0.9, 0.999],
            epsilon: None,
            weight_decay: 0.01,
            clip_norm: 1.0,
            layer_rate_decay: 1.0,
            decay_exponent: 0.8,
            update_clip: 1.0,
            momentum: 0.0,
        }
    }
}

/// `[[group]]`: a factor on the learning rate for all parameters whose path matches; 0 freezes,
/// and of several that match the last one counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// The path pattern: `*` is one level's characters, `**` any.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The factor.
    pub rate: f64,
}

/// `[gradient_check]`: what the check at a phase's first step may find.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GradientCheckSettings {
    /// Path patterns of parameters whose gradient may be missing or zero at the first step.
    pub allow: Vec<String>,
}

/// `[awp]`: adversarial weight perturbation; none without this table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwpSettings {
    /// The first epoch of the phase, counted from 0, in which weights are perturbed.
    pub start_epoch: usize,
    /// The length of the step along the gradient, relative to the tensor's norm.
    pub learning_rate: f64,
    /// How far a weight may move, relative to its size.
    pub epsilon: f64,
    /// Path patterns of the tensors that are perturbed.
    #[serde(rename = "match")]
    pub patterns: Vec<String>,
}

impl Default for AwpSettings {
    fn default() -> Self {
        let patterns = vec!["**weight**".to_string()];
        Self { start_epoch: 1, learning_rate: 1.0, epsilon: 1e-3, patterns }
    }
}

/// `[ema]`: a running mean of the parameters, which is then what is evaluated and kept. None without
/// this table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmaSettings {
    /// The decay; while the run is young `(1 + t) / (10 + t)` is used where it is smaller.
    pub decay: f64,
}

/// `[checkpoint]`: when checkpoints are written. There is always one at the end of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Steps from one to the next; 0 for one at the end of each epoch.
    pub every_steps: u64,
    /// How many are kept beside the best one.
    pub keep: usize,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self { every_steps: 0, keep: 2 }
    }
}

/// `[evaluation]`: when the model is measured while it trains. There is always one at the end of a
/// phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSettings {
    /// Steps from one to the next; 0 for counting epochs instead.
    pub every_steps: u64,
    /// Epochs from one to the next; 0 for none before the end.
    pub every_epochs: usize,
    /// Ends the phase after so many evaluations without a gain; 0 for never.
    pub early_stop: usize,
    /// How much better a figure has to be to count as a gain.
    pub margin: f64,
    /// Whether the best checkpoint is kept and becomes `model.safetensors`, instead of the last.
    pub keep_best: bool,
}

impl Default for EvaluationSettings {
    fn default() -> Self {
        Self { every_steps: 0, every_epochs: 1, early_stop: 0, margin: 0.0, keep_best: true }
    }
}

/// `[log]`: what is written while it trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// Steps from one line of `metrics.jsonl` to the next.
    pub every_steps: u64,
    /// Whether TensorBoard events are written.
    pub tensorboard: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { every_steps: 10, tensorboard: true }
    }
}

/// `[[phase]]`: a stretch of training with its own parameters, data and schedule; one at least.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Its place among the phases, counted from 0; not written in a recipe.
    #[serde(skip)]
    pub index: usize,
    /// Its length in epochs. Exactly one of `epochs` and `steps` is given.
    pub epochs: Option<usize>,
    /// Its length in steps. A phase of 0 steps is left out: `--set phase.NAME.steps=0`.
    pub steps: Option<u64>,
    /// The highest learning rate, where it differs from `[optimiser]`.
    pub learning_rate: Option<f64>,
    /// Which parameters move, after (and so over) the recipe's own groups.
    #[serde(default)]
    pub group: Vec<GroupSettings>,
    /// What is fed: a table that the study reads with [`crate::Recipe::feed`].
    #[serde(default)]
    #[schemars(with = "OfStudy")]
    pub feed: Table,
}

/// `[start]`: another run, with whose weights this one begins; fresh or published ones without this
/// table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSettings {
    /// Its folder. It has to have every parameter that is taken over, in the same shape.
    pub run: PathBuf,
    /// The SHA-256 of its weights; filled in where it is not given.
    pub sha256: Option<String>,
    /// Patterns of the parameters that are taken over; the others are fresh. All where it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub parameters: Vec<String>,
}

impl StartSettings {
    /// Whether a parameter is taken over.
    pub fn takes_over(&self, name: &str) -> bool {
        let matches = |pattern: &String| path_matches(pattern.as_bytes(), name.as_bytes());
        self.parameters.is_empty() || self.parameters.iter().any(matches)
    }

    /// The file of the weights.
    pub fn weights(&self) -> PathBuf {
        self.run.join(WEIGHTS)
    }
}

/// `[check]`: what a finished run has to show. A recipe without it is refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSettings {
    /// Files that the run folder has to hold.
    pub files: Vec<String>,
    /// The bound on the training loss of the last log line.
    pub loss_at_most: Option<f64>,
    /// The figure of the primary metric to expect.
    pub figure: Option<f64>,
    /// How much worse than `figure` the kept model may be.
    pub tolerance: f64,
}

/// The place of a table that each study reads as a struct of its own.
type OfStudy = serde_json::Map<String, serde_json::Value>;

/// A whole recipe; its tables are in the order in which they are written back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    /// The study that the recipe is for.
    pub study: String,
    /// The seed of everything that is drawn in the run.
    #[serde(default)]
    pub seed: u64,
    pub start: Option<StartSettings>,
    #[serde(default)]
    #[schemars(with = "OfStudy")]
    pub data: Table,
    #[serde(default)]
    #[schemars(with = "OfStudy")]
    pub model: Table,
    #[serde(default)]
    #[schemars(with = "OfStudy")]
    pub memory: Table,
    #[serde(default)]
    pub batch: BatchSettings,
    #[serde(default)]
    pub optimiser: OptimiserSettings,
    #[serde(default)]
    pub schedule: Schedule,
    #[serde(default)]
    pub gradient_check: GradientCheckSettings,
    pub awp: Option<AwpSettings>,
    pub ema: Option<EmaSettings>,
    #[serde(default)]
    pub checkpoint: CheckpointSettings,
    #[serde(default)]
    pub evaluation: EvaluationSettings,
    #[serde(default)]
    pub log: LogSettings,
    #[serde(default)]
    pub group: Vec<GroupSettings>,
    #[serde(default)]
    pub phase: Vec<Phase>,
    #[schemars(required)]
    pub check: Option<CheckSettings>,
    // Read by `Recipe::variants`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Variant>")]
    pub variant: Vec<Table>,
}
