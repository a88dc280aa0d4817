//! The recipe sections that the trainer itself reads, with their defaults.

use std::path::PathBuf;

use engram_infer::finished_run::WEIGHTS;
use engram_models::compute::Precision;
use engram_models::layers::LowRank;
use engram_models::params::path_matches;
use engram_models::recompute::Recompute;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::Variant;
use super::table;
use crate::optimiser::settings::RuleSettings;
use crate::schedule::Schedule;

/// `[embedding_tables]`: embedding tables that the ranks keep in parts, with their optimiser state.
/// Without this section, each rank has all tables. Results do not depend on it. Of the built-in
/// studies, only `patent` supports it, on the CPU. `[awp]` cannot perturb such a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingTableSettings {
    /// Path patterns of the tables, such as `"**.word_embeddings.weight"`. Tables of words, positions
    /// and token types can be kept in parts.
    #[serde(rename = "match")]
    pub patterns: Vec<String>,
    /// The order in which whole tables and column slices are placed on ranks. A table that is not
    /// split is on one rank.
    #[serde(default)]
    pub strategy: Strategy,
    /// Tables with more values than this are split by row, in equal shares for all ranks; 0 for all
    /// tables. By default no table is.
    pub row_threshold: Option<usize>,
    /// Other tables with more values than this are split into 2, 4, 8 or more column slices, until a
    /// slice has at most this number of values, or there are as many slices as ranks. By default no
    /// table is.
    pub column_threshold: Option<usize>,
}

/// The order in which tables and column slices are placed on ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The first on rank 0, the second on rank 1, and so on; after the last rank again from rank 0.
    #[default]
    Basic,
    /// From the largest to the smallest, in snake order: from rank 0 to the last rank, then back
    /// from the last rank to rank 0. The numbers of tables of two ranks differ by at most one, and
    /// their numbers of values by at most those of the largest table.
    MemoryBalanced,
    /// From the largest to the smallest, each on the rank with the fewest values so far. The ranks'
    /// numbers of values differ by at most those of the largest table. The largest number is below
    /// 4/3 of the smallest possible one (Graham, 1969).
    MemoryOptimised,
}

/// `[batch]`: the size of a step. The study reads `examples` and `tokens`, the trainer reads
/// `accumulate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchSettings {
    /// Maximum number of examples in a micro-batch.
    pub examples: usize,
    /// Maximum number of tokens in a micro-batch; 0 for no limit. Of the built-in studies, only
    /// `patent` reads it.
    pub tokens: usize,
    /// Number of micro-batches in a step (gradient accumulation).
    pub accumulate: usize,
    /// The examples that a contrastive loss uses as negatives.
    pub negatives: Negatives,
}

/// The examples that a contrastive loss uses as negatives. Only `clip`, and `reveal` in phases with
/// images, have such a loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Negatives {
    /// The examples of the micro-batch.
    #[default]
    MicroBatch,
    /// The examples of all micro-batches of the step (GradCache). Each forward pass runs twice.
    Step,
}

impl Default for BatchSettings {
    fn default() -> Self {
        let negatives = Negatives::MicroBatch;
        Self { examples: 32, tokens: 0, accumulate: 1, negatives }
    }
}

table! {
    /// `[compute]`: the device that trains the model, the precision of its activations, and how
    /// much memory they need.
    pub struct ComputeSettings {
        /// The device: `"cpu"`, `"cuda"` or `"cuda:N"` for the GPU with number `N`. With `"cuda"`,
        /// each of several ranks on a machine uses a GPU of its own. A run can be resumed on
        /// another device. CUDA needs a program that is built with the feature `cuda`.
        pub device: String = "cpu".into(),
        /// The precision of activations. Trained parameters, their gradients and the optimiser's
        /// state are f32 with either precision.
        pub precision: Precision = Precision::F32,
        /// The values that the backward pass computes again instead of keeping them in memory.
        /// Results do not depend on it, and a run can be resumed with another value.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("default" = "none"))]
        pub recompute: Recompute = Recompute::None,
    }
}

/// Whether a setting has its default, so that a resolved recipe omits it.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

table! {
    /// `[optimiser]`: the update rule, the learning rate and gradient clipping.
    pub struct OptimiserSettings {
        /// The peak learning rate of the schedule.
        pub learning_rate: f64 = 1e-4,
        /// Maximum Euclidean norm of all gradients together, for gradient clipping; 0 for no limit.
        pub clip_norm: f64 = 1.0,
        /// Layer-wise learning rate decay: the factor from each layer to the layer below it; 1 for
        /// equal rates.
        pub layer_rate_decay: f64 = 1.0,
        /// The update rule. Its keys depend on `kind`, which is `"adamw"` by default.
        pub rule: RuleSettings = RuleSettings::default(),
    }
}

/// `[[group]]`: the learning rate and the update rule of all parameters whose path matches. If
/// several groups match a parameter, the last one sets the rate, and the last one with a `rule`
/// sets the rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// The path pattern: `*` matches within one level, `**` matches across levels.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The factor on the learning rate; 0 freezes the parameters.
    pub rate: f64,
    /// The update rule of these parameters, with the keys of `[optimiser.rule]`. By default, the
    /// rule of an earlier matching group or `[optimiser.rule]` applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleSettings>,
}

/// `[[low_rank]]`: low-rank branches (LoRA) for all linear layers whose path matches; the last
/// match applies. Parameters outside the branches are frozen, unless a `[[group]]` matches them.
/// The weights of the finished run contain the branches, added to the weights of their layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LowRankSettings {
    /// The pattern of layer paths, such as `**.query`: `*` matches within one level, `**` matches
    /// across levels.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The rank of the branch.
    pub rank: usize,
    /// The output of the branch is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Dropout probability of the branch's input. Layers before and after the blocks have no such
    /// dropout.
    #[serde(default)]
    pub dropout: f64,
}

impl LowRankSettings {
    /// The settings of the branches.
    pub(crate) fn settings(&self) -> LowRank {
        LowRank { rank: self.rank, alpha: self.alpha, dropout: self.dropout }
    }
}

/// `[gradient_check]`: exceptions from the gradient check at a phase's first step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GradientCheckSettings {
    /// Path patterns of parameters whose gradient may be missing or zero at the first step.
    pub allow: Vec<String>,
}

/// `[awp]`: adversarial weight perturbation. Off without this table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwpSettings {
    /// The first epoch of the phase, counted from 0, with perturbed weights.
    pub start_epoch: usize,
    /// The step length along the gradient, relative to the tensor's norm.
    pub learning_rate: f64,
    /// The maximum change of a weight, relative to its absolute value.
    pub epsilon: f64,
    /// Path patterns of the tensors to perturb.
    #[serde(rename = "match")]
    pub patterns: Vec<String>,
}

impl Default for AwpSettings {
    fn default() -> Self {
        let patterns = vec!["**weight**".to_string()];
        Self { start_epoch: 1, learning_rate: 1.0, epsilon: 1e-3, patterns }
    }
}

/// `[ema]`: an exponential moving average (EMA) of the parameters. It is evaluated and saved in
/// place of the parameters. Off without this table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmaSettings {
    /// The decay. Update `t` of a phase uses `(1 + t) / (10 + t)` if this is smaller.
    pub decay: f64,
}

table! {
    /// `[checkpoint]`: when checkpoints are written. Each phase also ends with a checkpoint.
    pub struct CheckpointSettings {
        /// Steps between checkpoints; 0 for a checkpoint at the end of each epoch.
        pub every_steps: u64 = 0,
        /// Number of recent checkpoints to keep, besides the best one.
        pub keep: usize = 2,
    }
}

table! {
    /// `[evaluation]`: when the model is evaluated during training. Each phase also ends with an
    /// evaluation.
    pub struct EvaluationSettings {
        /// Steps between evaluations; 0 to count epochs instead.
        pub every_steps: u64 = 0,
        /// Epochs between evaluations, if `every_steps` is 0; 0 for no evaluation before the end of
        /// the phase.
        pub every_epochs: usize = 1,
        /// Early stopping: the phase ends after this number of evaluations in a row without
        /// improvement; 0 for never.
        pub early_stop: usize = 0,
        /// The minimum improvement of the primary metric that counts.
        pub margin: f64 = 0.0,
        /// Whether `model.safetensors` comes from the best checkpoint instead of the last one.
        pub keep_best: bool = true,
    }
}

table! {
    /// `[log]`: the logs of a run.
    pub struct LogSettings {
        /// Steps between lines of `metrics.jsonl`.
        pub every_steps: u64 = 10,
        /// Whether TensorBoard events are written.
        pub tensorboard: bool = true,
    }
}

/// `[[phase]]`: a part of training with its own parameters, data and schedule. At least one is
/// required.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// The name of the phase.
    pub name: String,
    /// The index among the phases, counted from 0. It is not a recipe key.
    #[serde(skip)]
    pub index: usize,
    /// The length in epochs. Give exactly one of `epochs` and `steps`.
    pub epochs: Option<usize>,
    /// The length in steps. A phase of 0 steps is skipped: `--set phase.NAME.steps=0`. If all phases
    /// have 0 steps, the run in `[start]` is evaluated without training.
    pub steps: Option<u64>,
    /// The peak learning rate of this phase; by default `optimiser.learning_rate`.
    pub learning_rate: Option<f64>,
    /// Groups of this phase only. They override the `[[group]]`s of the recipe.
    #[serde(default)]
    pub group: Vec<GroupSettings>,
    /// The phase's training data: a table that the study reads with [`crate::Recipe::feed`].
    #[serde(default)]
    #[schemars(with = "OfStudy")]
    pub feed: Table,
}

/// `[start]`: another run, whose weights initialise this run. Without this table, weights are
/// random or published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSettings {
    /// The folder of the other run. It has to contain every loaded parameter in the same shape.
    pub run: PathBuf,
    /// The SHA-256 of that run's weights; filled in if not given.
    pub sha256: Option<String>,
    /// Path patterns of the parameters to load; empty for all. Other parameters are initialised as
    /// without this table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub parameters: Vec<String>,
}

impl StartSettings {
    /// Whether this parameter is loaded from the other run.
    pub(crate) fn loads_parameter(&self, name: &str) -> bool {
        let matches = |pattern: &String| path_matches(pattern.as_bytes(), name.as_bytes());
        self.parameters.is_empty() || self.parameters.iter().any(matches)
    }

    /// The weights file.
    pub fn weights(&self) -> PathBuf {
        self.run.join(WEIGHTS)
    }
}

/// `[check]`: the conditions that a finished run has to meet. Every recipe needs it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSettings {
    /// Files that the run folder has to contain.
    pub files: Vec<String>,
    /// The maximum training loss of the last log line; not checked if not given.
    pub loss_at_most: Option<f64>,
    /// The expected value of the primary metric; not checked if not given.
    pub metric_value: Option<f64>,
    /// The largest allowed difference to `metric_value`, if the saved model is worse.
    pub tolerance: f64,
}

/// The schema type of a table that each study reads as its own struct.
type OfStudy = serde_json::Map<String, serde_json::Value>;

/// A whole recipe. Its tables are written in the order of the fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the types of most fields describe them")]
pub struct RecipeSettings {
    /// The study of the recipe.
    pub study: String,
    /// The seed of all randomness in the run.
    #[serde(default)]
    pub seed: u64,
    /// Path patterns of linear layers whose weights are frozen and quantised to 4 bits (NF4), which
    /// saves memory. Needs `[[low_rank]]` or other trained parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub quantised: Vec<String>,
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub compute: ComputeSettings,
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
    pub embedding_tables: Option<EmbeddingTableSettings>,
    #[serde(default)]
    pub checkpoint: CheckpointSettings,
    #[serde(default)]
    pub evaluation: EvaluationSettings,
    #[serde(default)]
    pub log: LogSettings,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub low_rank: Vec<LowRankSettings>,
    #[serde(default)]
    pub group: Vec<GroupSettings>,
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
    #[schemars(required)]
    pub check: Option<CheckSettings>,
    // Read by `Recipe::variants`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Variant>")]
    pub variant: Vec<Table>,
}
