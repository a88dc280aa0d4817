//! A small study of plain candle operations, with switches that break it.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_models::params::{EmbeddingTable, Init, ParameterBuilder, Parameters, sum_of_rows};
use engram_train::{
    BatchLoss, Evaluation, EvaluationContext, MetricSpec, Phase, Recipe, RunOptions, RunSummary,
    StepContext, Stop, Study, StudyExtension, StudyResult, TableIds, TrainError,
};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::runs;

pub const RECIPE: &str = r#"
study = "toy"
seed = 7

[batch]
examples = 4
accumulate = 2

[optimiser]
learning_rate = 0.01

[schedule]
warmup_fraction = 0.1

[checkpoint]
every_steps = 4

[evaluation]
every_steps = 5

[log]
every_steps = 3

[[phase]]
name = "first"
epochs = 2
group = [{ match = "head.**", rate = 0.5 }]

[[phase]]
name = "second"
steps = 6
group = [{ match = "body.**", rate = 0 }]

[check]
files = ["metrics.jsonl"]
loss_at_most = 10.0
"#;

/// Micro-batches in a step.
const MICRO_BATCHES: usize = 2;
/// The number of training examples.
const EXAMPLES: usize = 38;
/// The width of an input.
const INPUTS: usize = 3;
/// The width of the hidden layer.
const HIDDEN: usize = 8;
/// The number of training and evaluation examples together. Each is also a word.
const WORDS: usize = EXAMPLES + 10;
/// The width of a row of the table of words.
const WORD: usize = 6;

/// Overrides of the behaviour of the study: faults, stops and evaluation values.
#[derive(Default)]
pub struct Overrides {
    /// The call of `loss`, counted from 0, that fails like a crash.
    pub crash_at_loss: Option<usize>,
    /// The call of `loss`, counted from 0, during which the run is asked to stop.
    pub stop_at_loss: Option<usize>,
    /// The evaluation, counted from 0, during which the run is asked to stop.
    pub stop_at_evaluation: Option<usize>,
    /// The calls of `loss`, counted from 0, of whose examples none can be used.
    pub unusable: Vec<usize>,
    /// The steps with a NaN loss.
    pub nan_steps: Vec<u64>,
    /// Whether a parameter gets no gradient.
    pub detach: bool,
    /// Whether the loss writes to a frozen parameter.
    pub change_frozen: bool,
    /// Values that evaluations return instead of the measured ones, by evaluation.
    pub evaluation_values: Vec<f64>,
    /// The table of words, with its fault; `None` for a model without the table.
    pub words: Option<Words>,
}

/// The use of the table of words.
#[derive(Clone, Copy, PartialEq)]
pub enum Words {
    /// Predictions depend on the words' rows.
    Used,
    /// The gradient of the table is zero in the first step, because the layer after it is zero.
    HeadIsZero,
    /// The table has no gradient.
    Ignored,
    /// The study names a word that the table does not have.
    Unknown,
}

/// A two-layer network that fits a function of three inputs.
#[derive(Default)]
pub struct Toy {
    pub overrides: Overrides,
    pub stop: Stop,
    /// The number of calls of `loss`.
    losses: Cell<usize>,
    /// The number of calls of `evaluate`.
    evaluations: Cell<usize>,
}

pub struct Model {
    parameters: Parameters,
    weights: [Tensor; 4],
    /// A table of words and the layer after it.
    words: Option<(EmbeddingTable, Tensor)>,
}

impl Toy {
    /// A study with a fault.
    pub fn with_overrides(overrides: Overrides) -> Self {
        Self { overrides, ..Self::default() }
    }

    /// A study that crashes after this number of steps.
    pub fn crashing(steps: usize) -> Self {
        Self::with_overrides(Overrides {
            crash_at_loss: Some(steps * MICRO_BATCHES),
            ..Overrides::default()
        })
    }

    fn forward(
        &self,
        model: &Model,
        examples: &[usize],
        dropout: Option<u64>,
    ) -> StudyResult<Tensor> {
        let [w1, b1, w2, b2] = &model.weights;
        let inputs: Vec<f32> = examples.iter().flat_map(|example| input(*example)).collect();
        let inputs = Tensor::from_vec(inputs, (examples.len(), INPUTS), &Device::Cpu)?;
        let mut hidden = inputs.matmul(w1)?.broadcast_add(b1)?.tanh()?;
        if let Some(seed) = dropout {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let dropout_factor = |_| if rng.random_bool(0.8) { 1.25f32 } else { 0.0 };
            let mask: Vec<f32> = (0..examples.len() * HIDDEN).map(dropout_factor).collect();
            hidden = (hidden * Tensor::from_vec(mask, (examples.len(), HIDDEN), &Device::Cpu)?)?;
        }
        let b2 = if self.overrides.detach { b2.detach() } else { b2.clone() };
        let predicted = hidden.matmul(w2)?.broadcast_add(&b2)?;
        match &model.words {
            Some((table, head)) if self.overrides.words != Some(Words::Ignored) => {
                let rows = sum_of_rows(&[(table, ids(examples))])?;
                Ok((predicted + rows.matmul(head)?)?)
            }
            _ => Ok(predicted),
        }
    }

    fn mean_squared_error(
        &self,
        model: &Model,
        examples: &[usize],
        dropout: Option<u64>,
    ) -> StudyResult<Tensor> {
        let targets: Vec<f32> = examples.iter().map(|example| target(*example)).collect();
        let targets = Tensor::from_vec(targets, (examples.len(), 1), &Device::Cpu)?;
        Ok((self.forward(model, examples, dropout)? - targets)?.sqr()?.mean_all()?)
    }
}

/// The ids of the examples' words.
fn ids(examples: &[usize]) -> Arc<[u32]> {
    examples.iter().map(|example| *example as u32).collect()
}

/// The input of an example, with values from −1 to 1.
fn input(example: usize) -> [f32; INPUTS] {
    let value = |salt: usize| ((example * 7919 + salt * 104_729) % 1000) as f32 / 500.0 - 1.0;
    [value(1), value(2), value(3)]
}

fn target(example: usize) -> f32 {
    let [a, b, c] = input(example);
    a * b + 0.5 * c
}

impl Study for Toy {
    type Model = Model;
    type Batch = Vec<usize>;

    fn name(&self) -> &str {
        "toy"
    }

    fn primary_metric(&self) -> MetricSpec {
        MetricSpec::lower("mse")
    }

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Model> {
        let (body, head) = (builder.pp("body"), builder.pp("head"));
        let weights = [
            body.get("weight", &[INPUTS, HIDDEN], Init::Normal(0.5))?,
            body.get("bias", &[HIDDEN], Init::Zeros)?,
            head.get("weight", &[HIDDEN, 1], Init::Normal(0.5))?,
            head.get("bias", &[1], Init::Zeros)?,
        ];
        let words = |words| -> StudyResult<_> {
            let is_zero = words == Words::HeadIsZero;
            let init = if is_zero { Init::Zeros } else { Init::Normal(0.5) };
            let builder = builder.pp("words");
            let table = builder.embedding_table("weight", [WORDS, WORD], Init::Normal(0.5))?;
            Ok((table, builder.get("head", &[WORD, 1], init)?))
        };
        let words = self.overrides.words.map(words).transpose()?;
        Ok(Model { parameters: builder.finish()?, weights, words })
    }

    fn batches(&self, _: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<Self::Batch>> {
        let mut order: Vec<usize> = (0..EXAMPLES).collect();
        order.shuffle(rng);
        Ok(order.chunks(4).map(<[usize]>::to_vec).collect())
    }

    fn loss(
        &self,
        model: &Model,
        batch: &Self::Batch,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss> {
        let call = self.losses.replace(self.losses.get() + 1);
        if self.overrides.crash_at_loss == Some(call) {
            return Err("the power went off".into());
        }
        if self.overrides.stop_at_loss == Some(call) {
            self.stop.request();
        }
        if self.overrides.change_frozen {
            let mut parameters = model.parameters.iter();
            let frozen = parameters.find(|p| !p.is_trainable());
            if let Some(frozen) = frozen {
                frozen.update(&mut |values| values[0] += 1.0)?;
            }
        }
        let mut loss = self.mean_squared_error(model, batch, Some(step.step_seed))?;
        if self.overrides.nan_steps.contains(&step.step) {
            loss = (loss * f64::NAN)?;
        }
        let mut examples = batch.len();
        if self.overrides.unusable.contains(&call) {
            (loss, examples) = ((loss * 0.0)?, 0);
        }
        let parts = vec![("mse".to_string(), f64::from(loss.to_scalar::<f32>()?))];
        Ok(BatchLoss { loss, examples, tokens: batch.len() * INPUTS, parts })
    }

    fn evaluate(&self, model: &Model, context: &EvaluationContext<'_>) -> StudyResult<Evaluation> {
        let call = self.evaluations.replace(self.evaluations.get() + 1);
        if self.overrides.stop_at_evaluation == Some(call) {
            self.stop.request();
        }
        context.stop.check()?;
        let examples: Vec<usize> = (EXAMPLES..WORDS).collect();
        let measured =
            f64::from(self.mean_squared_error(model, &examples, None)?.to_scalar::<f32>()?);
        let value = self.overrides.evaluation_values.get(call).copied().unwrap_or(measured);
        Ok(Evaluation {
            metrics: vec![("mse".to_string(), value)],
            counts: vec![("validation".to_string(), examples.len() as u64)],
        })
    }

    fn card(&self) -> Vec<(String, String)> {
        vec![("training examples".to_string(), EXAMPLES.to_string())]
    }
}

impl StudyExtension for Toy {
    const SUPPORTS_EMBEDDING_TABLES: bool = true;

    fn table_ids(&self, model: &Model, batch: &Vec<usize>) -> StudyResult<TableIds> {
        let mut ids = ids(batch).to_vec();
        if self.overrides.words == Some(Words::Unknown) {
            ids.push(WORDS as u32);
        }
        let table = model.words.as_ref().and_then(|(table, _)| table.as_external());
        Ok(table.map(|table| (Arc::clone(table), ids.into())).into_iter().collect())
    }
}

/// The recipe with overrides.
pub fn recipe(set: &[&str]) -> Recipe {
    runs::recipe(RECIPE, set).expect("a valid recipe")
}

/// Trains in the folder `run`.
pub fn train(
    study: &mut Toy,
    run: &Path,
    set: &[&str],
    resume: bool,
) -> Result<RunSummary, TrainError> {
    let options = RunOptions { resume, stop: study.stop.clone(), ..runs::quiet(run) };
    engram_train::train(study, &recipe(set), &options)
}
