//! The [`Study`] of patent phrases: one model on one split of the rows.

use std::sync::Arc;

use engram_data::patent::PhrasePair;
use engram_eval::metric::pearson::pearson;
use engram_eval::metric::spearman::spearman;
use engram_infer::digest;
use engram_infer::similarity::scorer::Scorer;
use engram_infer::similarity::sequences::{BatchLimits, RowBatch, Sequencer};
use engram_models::params::ParameterBuilder;
use rand_chacha::ChaCha8Rng;

use super::corpus::hash_of_rows;
use super::settings::PairTable;
use crate::card::USAGE;
use crate::recipe::{BatchSettings, Phase};
use crate::study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study,
    StudyExtension, StudyResult, TableIds,
};

/// A command that uses the model.
pub(super) const COMMAND: &str = "`engram score pairs.csv --model RUN --out scores.csv`";

/// Trains one model on one split.
pub struct PatentStudy {
    sequencer: Sequencer,
    batch: BatchSettings,
    train: Vec<PhrasePair>,
    held_out: Vec<PhrasePair>,
    warnings: Vec<String>,
    /// The CSV of the rows, if they are pairs of one CSV.
    pairs: Option<PairTable>,
}

impl PatentStudy {
    /// A study that trains on `train` and is measured on `held_out`. `warnings` and the CSV `pairs`
    /// are for the model card.
    pub fn new(
        sequencer: Sequencer,
        batch: BatchSettings,
        train: Vec<PhrasePair>,
        held_out: Vec<PhrasePair>,
        warnings: Vec<String>,
        pairs: Option<PairTable>,
    ) -> Self {
        Self { sequencer, batch, train, held_out, warnings, pairs }
    }

    /// The sequencer (which builds token sequences) and the held-out rows.
    pub(super) fn into_sequencer_and_held_out(self) -> (Sequencer, Vec<PhrasePair>) {
        (self.sequencer, self.held_out)
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

    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Self::Model> {
        Ok(Scorer::build(self.sequencer.files(), self.sequencer.settings(), builder)?)
    }

    fn batches(&self, _: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<RowBatch>> {
        let limits = BatchLimits { rows: self.batch.examples, tokens: self.batch.tokens };
        Ok(self.sequencer.batches(&self.train, limits, rng, true)?)
    }

    fn loss(
        &self,
        scorer: &Scorer,
        batch: &RowBatch,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss> {
        let scores = scorer.score(&batch.input, &step.mode())?;
        let gold: Vec<f32> =
            batch.rows.iter().map(|row| self.train[*row].score.unwrap_or(0.0)).collect();
        let loss = self.sequencer.settings().loss.loss(&scores, &gold)?;
        let (examples, tokens) = (batch.rows.len(), batch.tokens());
        Ok(BatchLoss { loss, examples, tokens, parts: Vec::new() })
    }

    fn evaluate(
        &self,
        scorer: &Scorer,
        context: &EvaluationContext<'_>,
    ) -> StudyResult<Evaluation> {
        let predicted = scorer.predict(&self.sequencer, &self.held_out, context.stop, &|_| {})?;
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
        let mut inputs = self.sequencer.files().inputs();
        inputs.extend([
            ("training rows".into(), hash_of_rows(&self.train)),
            ("held-out rows".into(), hash_of_rows(&self.held_out)),
        ]);
        if self.pairs.is_none() {
            let titles = digest::of_bytes(self.sequencer.titles().to_tsv());
            inputs.insert("class titles".into(), titles);
        }
        Ok(inputs)
    }

    fn card_title(&self) -> String {
        match &self.pairs {
            Some(PairTable { anchor, target, .. }) => {
                format!("A model that scores the similarity of `{anchor}` and `{target}`")
            }
            None => format!("A model of the study `{}`", self.name()),
        }
    }

    fn card(&self) -> Vec<(String, String)> {
        let base = match self.sequencer.settings().weights.as_str() {
            "" => "none (random start)".to_string(),
            weights => weights.to_string(),
        };
        let [training, held_out] = match self.pairs {
            Some(_) => ["Training pairs", "Validation pairs"],
            None => ["Training rows", "Held-out rows"],
        };
        let mut facts = vec![
            ("Base model".into(), base),
            (training.into(), self.train.len().to_string()),
            (held_out.into(), self.held_out.len().to_string()),
            (USAGE.into(), COMMAND.into()),
        ];
        if let Some(PairTable { file, score, .. }) = &self.pairs {
            facts.push(("Scores".into(), format!("column `{score}` of {file}")));
        }
        facts.extend(self.warnings.iter().map(|warning| ("warning".into(), warning.clone())));
        facts
    }
}

impl StudyExtension for PatentStudy {
    const SUPPORTS_EMBEDDING_TABLES: bool = true;

    fn table_ids(&self, scorer: &Scorer, batch: &RowBatch) -> StudyResult<TableIds> {
        let lookups = scorer.lookups(&batch.input)?.into_iter();
        let external = lookups.filter_map(|(table, ids)| Some((table.as_external()?, ids)));
        Ok(external.map(|(table, ids)| (Arc::clone(table), ids)).collect())
    }
}

/// The gold scores of rows. Every row must have one.
pub(super) fn gold_scores(rows: &[PhrasePair]) -> Vec<f64> {
    rows.iter().map(|row| f64::from(row.score.unwrap_or(f32::NAN))).collect()
}
