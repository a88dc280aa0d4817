//! The end of a member's training: its calibration and its files.

use engram_data::patent::PhrasePair;
use engram_infer::similarity::calibration::{CALIBRATION, Calibration, cross_fitted};
use engram_infer::similarity::member::{CONFIG, Member, TITLES, TOKENIZER};
use engram_infer::similarity::scorer::Scorer;
use engram_models::compute::Compute;

use super::NAME;
use super::study::{PatentStudy, gold_scores};
use crate::Stop;
use crate::checkpoint::write_file;
use crate::checksums::write_checksums;
use crate::error::{Result, TrainError};
use crate::trainer::RunSummary;

/// A trained member and the scores that it gives its held-out rows.
pub(super) struct TrainedMember {
    pub(super) member: Member,
    pub(super) held_out_rows: Vec<PhrasePair>,
    /// The model's scores of the held-out rows, without calibration.
    pub(super) raw_scores: Vec<f64>,
    /// The scores on the scale of the gold scores, for pooling with other members. The anchors are
    /// split into halves. The calibration of a row is fitted on the half without its anchor.
    pub(super) calibrated_scores: Vec<f64>,
}

/// Loads the selected weights of a finished run, fits the calibration, and writes the files that
/// prediction needs. The model scores the held-out rows on `compute`.
pub(super) fn finish(
    study: PatentStudy,
    summary: &RunSummary,
    compute: &Compute,
) -> Result<TrainedMember> {
    let (sequencer, held_out_rows) = study.into_sequencer_and_held_out();
    let scorer = Scorer::open(&sequencer, &summary.weights, compute)?;
    let raw_scores = scorer.predict(&sequencer, &held_out_rows, &Stop::default(), &|_| {})?;
    let gold = gold_scores(&held_out_rows);
    let calibration = Calibration::fit(&raw_scores, &gold);
    let (files, run) = (sequencer.files(), &summary.run);
    write_file(&run.join(CONFIG), files.config_json.as_bytes())?;
    write_file(&run.join(TOKENIZER), &files.tokenizer_json)?;
    if !sequencer.titles().is_empty() {
        write_file(&run.join(TITLES), sequencer.titles().to_tsv().as_bytes())?;
    }
    let json = serde_json::to_vec_pretty(&calibration)
        .map_err(TrainError::in_study(NAME, "calibration"))?;
    write_file(&run.join(CALIBRATION), &json)?;
    write_checksums(run)?;
    let calibrated_scores = cross_fitted(&held_out_rows, &raw_scores, &gold);
    let member = Member::new(sequencer, scorer, calibration);
    Ok(TrainedMember { member, held_out_rows, raw_scores, calibrated_scores })
}
