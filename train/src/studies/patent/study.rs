//! The [`Study`] of patent phrases: one model on one split of the rows.

use std::sync::Arc;

use engram_data::patent::PhrasePair;
use engram_data::titles::ClassTitles;
use engram_eval::metric::pearson::pearson;
use engram_eval::metric::spearman::spearman;
use engram_infer::digest;
use engram_infer::encode::EncoderFiles;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterGroup, Parameters};
use engram_models::similarity::PairLoss;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::corpus::hash_of_rows;
use super::scorer::Scorer;
use super::sequences::{RowBatch, Sequencer};
use super::settings::PatentModel;
use crate::Stop;
use crate::recipe::{BatchSettings, Phase};
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study, StudyResult,
};

/// Tokens per forward pass in evaluation.
const PREDICT_TOKENS: usize = 2048;

/// Trains one model on one split.
pub struct PatentStudy {
    model: PatentModel,
    batch: BatchSettings,
    titles: ClassTitles,
    train: Vec<PhrasePair>,
    held_out: Vec<PhrasePair>,
    files: Arc<EncoderFiles>,
    warnings: Vec<String>,
}

impl PatentStudy {
    /// Creates a study that trains on `train` and is measured on `held_out`.
    pub fn new(
        model: PatentModel,
        batch: BatchSettings,
        titles: ClassTitles,
        (train, held_out): (Vec<PhrasePair>, Vec<PhrasePair>),
        files: Arc<EncoderFiles>,
    ) -> Self {
        Self { model, batch, titles, train, held_out, files, warnings: Vec::new() }
    }

    /// The encoder files that a run saves with its weights.
    pub fn files(&self) -> &EncoderFiles {
        &self.files
    }

    /// Sets the warnings of the model card.
    pub fn set_warnings(&mut self, warnings: Vec<String>) {
        self.warnings = warnings;
    }

    /// The class titles.
    pub fn titles(&self) -> &ClassTitles {
        &self.titles
    }

    /// The held-out rows, which are measured and may select the checkpoint.
    pub fn held_out(&self) -> &[PhrasePair] {
        &self.held_out
    }

    /// Predicts scores, as the mean over the recipe's passes: probabilities, cosines, or unscaled
    /// values for the Pearson loss. Scores depend on which targets share an anchor.
    ///
    /// # Errors
    /// If a phrase cannot be tokenised.
    pub(super) fn predict(
        &self,
        scorer: &Scorer,
        rows: &[PhrasePair],
        progress: &dyn Fn(usize),
    ) -> StudyResult<Vec<f64>> {
        self.predict_unless(&Stop::default(), scorer, rows, progress)
    }

    /// Like [`predict`](Self::predict); returns [`Stopped`](crate::Stopped) if a stop is requested.
    fn predict_unless(
        &self,
        stop: &Stop,
        scorer: &Scorer,
        rows: &[PhrasePair],
        progress: &dyn Fn(usize),
    ) -> StudyResult<Vec<f64>> {
        let sequencer = Sequencer::new(&self.files.tokenizer, &self.titles, &self.model);
        let mut sums = vec![0.0f64; rows.len()];
        for pass in 0..self.model.passes {
            let mut rng = ChaCha8Rng::seed_from_u64(pass as u64);
            let limits = (usize::MAX, PREDICT_TOKENS);
            for batch in sequencer.batches(rows, limits, &mut rng, false)? {
                stop.check()?;
                let scores = scorer.score(&batch.input, &Mode::inference())?.to_vec1::<f32>()?;
                for (row, score) in batch.rows.iter().zip(scores) {
                    sums[*row] += self.to_score(f64::from(score));
                }
                progress(batch.rows.len());
            }
        }
        let passes = self.model.passes as f64;
        Ok(sums.into_iter().map(|sum| sum / passes).collect())
    }

    /// Converts a logit to a probability, if the loss is of logits.
    fn to_score(&self, score: f64) -> f64 {
        match self.model.loss {
            PairLoss::Mse | PairLoss::Bce => 1.0 / (1.0 + (-score).exp()),
            _ => score,
        }
    }
}

impl Study for PatentStudy {
    type Model = Scorer;
    type Batch = RowBatch;

    fn name(&self) -> &str {
        super::NAME
    }

    fn primary_metric(&self) -> MetricSpec {
        MetricSpec::higher("pearson")
    }

    fn build(
        &self,
        groups: Vec<ParameterGroup>,
        seed: u64,
    ) -> StudyResult<(Self::Model, Parameters)> {
        Scorer::build(&self.files, &self.model, groups, seed)
    }

    fn batches(&self, _: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<RowBatch>> {
        let sequencer = Sequencer::new(&self.files.tokenizer, &self.titles, &self.model);
        let limits = (self.batch.examples, self.batch.tokens);
        Ok(sequencer.batches(&self.train, limits, rng, true)?)
    }

    fn loss(
        &self,
        scorer: &Scorer,
        batch: &RowBatch,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss> {
        let scores = scorer.score(&batch.input, &Mode::train(step.step_seed))?;
        let gold: Vec<f32> =
            batch.rows.iter().map(|row| self.train[*row].score.unwrap_or(0.0)).collect();
        let loss = self.model.loss.loss(&scores, &gold)?;
        let (examples, tokens) = (batch.rows.len(), batch.tokens());
        Ok(BatchLoss { loss, examples, tokens, parts: Vec::new() })
    }

    fn evaluate(
        &self,
        scorer: &Scorer,
        context: &EvaluationContext<'_>,
    ) -> StudyResult<Evaluation> {
        let predicted = self.predict_unless(context.stop, scorer, &self.held_out, &|_| {})?;
        let gold = gold_scores(&self.held_out);
        Ok(Evaluation {
            metrics: vec![
                ("pearson".into(), pearson(&gold, &predicted)?),
                ("spearman".into(), spearman(&gold, &predicted)?),
            ],
            counts: vec![("held_out".into(), self.held_out.len() as u64)],
        })
    }

    fn inputs(&self) -> StudyResult<Inputs> {
        let mut inputs = self.files.inputs();
        inputs.extend([
            ("training rows".into(), hash_of_rows(&self.train)),
            ("held-out rows".into(), hash_of_rows(&self.held_out)),
            ("class titles".into(), digest::of_bytes(self.titles.to_tsv())),
        ]);
        Ok(inputs)
    }

    fn card(&self) -> Vec<(String, String)> {
        let base = match self.model.weights.as_str() {
            "" => "none (random start)".to_string(),
            weights => weights.to_string(),
        };
        let mut facts = vec![
            ("Base model".into(), base),
            ("Training rows".into(), self.train.len().to_string()),
            ("Held-out rows".into(), self.held_out.len().to_string()),
        ];
        facts.extend(self.warnings.iter().map(|warning| ("warning".into(), warning.clone())));
        facts
    }
}

/// The gold scores of rows that all have one.
pub(super) fn gold_scores(rows: &[PhrasePair]) -> Vec<f64> {
    rows.iter().map(|row| f64::from(row.score.unwrap_or(f32::NAN))).collect()
}
