//! A study in one file: it learns the median of some numbers. One line in a table of studies gives
//! it recipes, training, resuming and grids.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use engram_eval::items::{Item, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_models::params::{Init, ParameterBuilder};
use engram_train::grid::{AblationStudy, Column, Filter, Measures, MetricQuery};
use engram_train::recipe::reference::{NoKeys, RecipeSchema};
use engram_train::registry::{RunReport, StudyDefinition};
use engram_train::{
    BatchLoss, Evaluation, EvaluationContext, MetricSpec, Phase, Recipe, Result, RunOptions,
    StepContext, Study, StudyExtension, StudyResult, finish_run, train,
};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The absolute difference between a number and the guess.
const ERROR: MetricInfo = MetricInfo::lower("error", Unit::Points);

/// `[data]`: the numbers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MedianData {
    /// The numbers whose median is learnt.
    numbers: Vec<f32>,
}

impl Default for MedianData {
    fn default() -> Self {
        Self { numbers: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 80.0] }
    }
}

/// `[model]`: the first guess.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MedianModel {
    /// The first guess.
    start: f32,
}

/// The guess is the only parameter. The mean absolute error is minimal at the median.
struct Median {
    data: MedianData,
    model: MedianModel,
}

impl Study for Median {
    type Model = Tensor;
    type Batch = f32;

    fn name(&self) -> &str {
        "median"
    }

    fn primary_metric(&self) -> MetricSpec {
        MetricSpec::lower("error")
    }

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Tensor> {
        Ok(builder.get("guess", &[1], Init::Constant(f64::from(self.model.start)))?)
    }

    fn batches(&self, _: &Phase, _: &mut ChaCha8Rng) -> StudyResult<Vec<f32>> {
        Ok(self.data.numbers.clone())
    }

    fn loss(&self, guess: &Tensor, number: &f32, _: &StepContext<'_>) -> StudyResult<BatchLoss> {
        let loss = (guess - f64::from(*number))?.abs()?.mean_all()?;
        Ok(BatchLoss { loss, examples: 1, tokens: 1, parts: Vec::new() })
    }

    fn evaluate(&self, guess: &Tensor, _: &EvaluationContext<'_>) -> StudyResult<Evaluation> {
        let errors = self.data.errors(guess.to_vec1::<f32>()?[0]);
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        Ok(Evaluation { metrics: vec![("error".to_owned(), mean)], counts: Vec::new() })
    }
}

impl StudyExtension for Median {}

impl MedianData {
    fn errors(&self, guess: f32) -> Vec<f64> {
        self.numbers.iter().map(|number| f64::from((number - guess).abs())).collect()
    }
}

/// The results of a run.
#[derive(Debug, Serialize, Deserialize)]
struct MedianSummary {
    recipe_hash: String,
    /// The error of each number.
    errors: Vec<f64>,
    check_failures: Vec<String>,
}

/// The study, as commands see it.
pub static MEDIAN: StudyDefinition = StudyDefinition {
    name: "median",
    recipe_schema: || RecipeSchema::new::<MedianData, MedianModel, NoKeys, NoKeys>("median"),
    complete: |recipe| {
        recipe.data::<MedianData>()?;
        recipe.model::<MedianModel>().map(drop)
    },
    train: train_median,
    ablations: &MedianAblations,
};

fn train_median(recipe: &mut Recipe, options: &RunOptions) -> Result<RunReport> {
    recipe.expect_study("median")?;
    recipe.fill_start_hash()?;
    let mut study = Median { data: recipe.data()?, model: recipe.model()? };
    let trained = train(&mut study, recipe, options)?;
    let weights = engram_models::weights::Weights::open(&trained.weights)?;
    let guess = weights.get("guess", &[1], DType::F32, &Device::Cpu)?;
    let guess = guess.to_vec1::<f32>().expect("a number")[0];
    let summary = MedianSummary {
        recipe_hash: trained.recipe_hash,
        errors: study.data.errors(guess),
        check_failures: trained.check.failures,
    };
    finish_run(&options.run, &summary)?;
    RunReport::new("median", &summary, &summary.check_failures)
}

#[derive(Debug)]
struct MedianAblations;

impl AblationStudy for MedianAblations {
    fn measures(&self) -> Measures {
        Measures {
            title: "Median, ablations",
            description: "Absolute errors.",
            metrics: vec![ERROR],
            filters: vec![Filter { key: "numbers", values: vec!["all", "half"] }],
            systems: &[],
            evaluation_keys: &[],
            columns: vec![Column {
                key: "error",
                heading: "error",
                query: MetricQuery::new(ERROR),
            }],
            resampling_unit: "number",
        }
    }

    fn items(&self, folder: &Path, query: &MetricQuery) -> Result<Result<Vec<Item>, String>> {
        let text = std::fs::read(folder.join("summary.json")).expect("a finished run");
        let summary: MedianSummary = serde_json::from_slice(&text).expect("JSON");
        let total = summary.errors.len();
        let count = if query.filter("numbers") == Some("half") { total / 2 } else { total };
        let item = |(i, error): (usize, &f64)| {
            let statistic = Statistic::Ratio { numerator: *error, denominator: 1.0 };
            Item::new(&query.metric, "", &i.to_string(), Some(&i.to_string()), statistic)
        };
        Ok(Ok(summary.errors.iter().enumerate().take(count).map(item).collect()))
    }
}
