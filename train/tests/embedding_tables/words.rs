//! A small study with an embedding table, and switches that disturb it.

use std::cell::Cell;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_models::params::{EmbeddingTable, Init, ParameterBuilder, sum_of_rows};
use engram_train::{
    BatchLoss, Evaluation, EvaluationContext, MetricSpec, Phase, StepContext, Stop, Study,
    StudyExtension, StudyResult, TableIds,
};
use rand_chacha::ChaCha8Rng;

/// The last step of an epoch has one micro-batch, so that other ranks have none.
pub const RECIPE: &str = r#"
study = "words"
seed = 5
batch = { accumulate = 3 }
optimiser = { learning_rate = 0.05, clip_norm = 0.4 }
ema = { decay = 0.9 }
evaluation = { every_steps = 2 }
checkpoint = { every_steps = 2 }
log = { every_steps = 1, tensorboard = false }
check = { files = ["model.safetensors"] }

[[phase]]
name = "words"
epochs = 3
"#;

const WORDS: usize = 40;
const WIDTH: usize = 6;
const MICRO_BATCHES: usize = 7;
const TOKENS: usize = 12;

/// The gradient of the table.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Disturbed {
    #[default]
    No,
    /// It is zero in the first step, because the head is.
    HeadIsZero,
    /// There is none.
    LossIgnoresTable,
}

/// Learns a number for each word. The prediction is a linear function of the word's row.
#[derive(Default)]
pub struct Words {
    pub disturbed: Disturbed,
    pub stop: Stop,
    /// The steps in which all losses are NaN.
    pub nan_steps: Vec<u64>,
    /// The number of the loss, counted from 0, that asks the run to stop.
    pub stop_at_loss: Option<usize>,
    /// The number of the evaluation, counted from 0, that asks the run to stop.
    pub stop_at_evaluation: Option<usize>,
    pub losses: Cell<usize>,
    pub evaluations: Cell<usize>,
}

pub struct WordModel {
    table: EmbeddingTable,
    head: Tensor,
}

impl WordModel {
    fn mean_squared_error(&self, words: &Arc<[u32]>) -> StudyResult<Tensor> {
        let targets: Vec<f32> = words.iter().map(|word| (*word as f32).sin()).collect();
        let targets = Tensor::from_vec(targets, (words.len(), 1), &Device::Cpu)?;
        let predicted = sum_of_rows(&[(&self.table, words)])?.matmul(&self.head)?;
        Ok((predicted - targets)?.sqr()?.mean_all()?)
    }
}

/// Asks to stop if this is the call `at`, counted from 0.
fn count_and_stop(calls: &Cell<usize>, at: Option<usize>, stop: &Stop) {
    if at == Some(calls.replace(calls.get() + 1)) {
        stop.request();
    }
}

impl Study for Words {
    type Model = WordModel;
    type Batch = Arc<[u32]>;

    fn name(&self) -> &str {
        "words"
    }

    fn primary_metric(&self) -> MetricSpec {
        MetricSpec::lower("error")
    }

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<WordModel> {
        let is_zero = self.disturbed == Disturbed::HeadIsZero;
        let init = if is_zero { Init::Zeros } else { Init::Normal(0.5) };
        let head = builder.get("head.weight", &[WIDTH, 1], init)?;
        let shape = [WORDS, WIDTH];
        let table = builder.pp("words").embedding_table("weight", shape, Init::Normal(0.5))?;
        Ok(WordModel { table, head })
    }

    fn batches(&self, _: &Phase, _: &mut ChaCha8Rng) -> StudyResult<Vec<Arc<[u32]>>> {
        let word = |i: usize| (i * i * 7 % (WORDS - 5)) as u32;
        let batch = |batch: usize| (0..TOKENS).map(|i| word(batch * TOKENS + i)).collect();
        Ok((0..MICRO_BATCHES).map(batch).collect())
    }

    fn loss(
        &self,
        model: &WordModel,
        batch: &Arc<[u32]>,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss> {
        count_and_stop(&self.losses, self.stop_at_loss, &self.stop);
        let mut loss = match self.disturbed {
            Disturbed::LossIgnoresTable => model.head.sqr()?.mean_all()?,
            _ => model.mean_squared_error(batch)?,
        };
        if self.nan_steps.contains(&step.step) {
            loss = (loss * f64::NAN)?;
        }
        let (examples, tokens) = (batch.len(), batch.len());
        Ok(BatchLoss { loss, examples, tokens, parts: Vec::new() })
    }

    fn evaluate(
        &self,
        model: &WordModel,
        context: &EvaluationContext<'_>,
    ) -> StudyResult<Evaluation> {
        count_and_stop(&self.evaluations, self.stop_at_evaluation, &self.stop);
        context.stop.check()?;
        let all: Arc<[u32]> = (0..WORDS as u32).collect();
        let error = f64::from(model.mean_squared_error(&all)?.to_scalar::<f32>()?);
        Ok(Evaluation { metrics: vec![("error".to_owned(), error)], counts: Vec::new() })
    }
}

impl StudyExtension for Words {
    const SUPPORTS_EMBEDDING_TABLES: bool = true;

    fn table_ids(&self, model: &WordModel, batch: &Arc<[u32]>) -> StudyResult<TableIds> {
        let table = model.table.as_external().into_iter();
        Ok(table.map(|table| (Arc::clone(table), Arc::clone(batch))).collect())
    }
}
