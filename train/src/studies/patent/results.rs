//! The results of a run: members alone and combined.

use std::path::{Path, PathBuf};

use engram_data::patent::{PhrasePair, predictions_csv};
use engram_eval::metric::pearson;
use engram_eval::result::Measure;
use engram_infer::similarity::combination::{Combination, add_to, weighted_mean};
use engram_infer::similarity::stacking::{MIN_ROWS, STACKING, Stacking};

use super::NAME;
use super::ablations;
use super::corpus::Corpus;
use super::member::TrainedMember;
use super::metric::pearson_measure;
use super::run::{
    CombinedSummary, MemberSummary, PatentSummary, VariantSummary, validation_selects,
};
use super::settings::PatentData;
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::grid::TestItems;
use crate::recipe::{Recipe, Variant};

/// The name of the held-out rows in errors.
const HELD_OUT: &str = "held-out rows";

/// The scores of the members trained so far. For every variant, held-out rows are in the order of
/// the folds.
pub(super) struct Results {
    members: Vec<MemberSummary>,
    held_out_rows: Vec<PhrasePair>,
    variant_scores: Vec<VariantScores>,
    combine: Combination,
    failures: Vec<String>,
}

/// The scores of one variant's members.
struct VariantScores {
    name: Option<String>,
    weight: f64,
    /// The score of each held-out row, by the member not trained on it.
    held_out: Vec<f64>,
    /// The sum of the members' scores of each validation row; empty for a run without folds.
    validation: Vec<f64>,
    members: usize,
}

/// Scores of the held-out rows, and of the validation rows (empty for a run without folds).
struct Scores {
    held_out: Vec<f64>,
    validation: Vec<f64>,
}

/// The ensemble's scores.
pub(super) struct Combined {
    scores: Scores,
    /// The fitted regression and the scores of the plain mean; `None` without stacking.
    stacked: Option<(Stacking, Scores)>,
}

/// The results of one member.
pub(super) struct MemberScores {
    /// The member's folder, relative to the run's folder.
    pub(super) run: PathBuf,
    /// The index of the member's variant.
    pub(super) variant: usize,
    pub(super) steps: u64,
    pub(super) trained: TrainedMember,
}

impl Results {
    /// Results without members.
    pub(super) fn new<'a>(
        variants: impl Iterator<Item = &'a Variant>,
        combine: Combination,
    ) -> Self {
        let new_scores = |variant: &Variant| VariantScores {
            name: variant.name.clone(),
            weight: variant.weight,
            held_out: Vec::new(),
            validation: Vec::new(),
            members: 0,
        };
        let variant_scores = variants.map(new_scores).collect();
        let (members, held_out_rows, failures) = (Vec::new(), Vec::new(), Vec::new());
        Self { members, held_out_rows, variant_scores, combine, failures }
    }

    /// Adds failures of a member's `[check]`.
    pub(super) fn add_failures(&mut self, failures: impl Iterator<Item = String>) {
        self.failures.extend(failures);
    }

    /// Measures a member on its held-out rows and, for a run with folds, on the validation rows.
    /// `corpus` is `None` for a run without folds.
    pub(super) fn add(&mut self, scores: MemberScores, corpus: Option<&Corpus>) -> Result<()> {
        let MemberScores { run, variant, steps, trained } = scores;
        let scores_of_variant = &mut self.variant_scores[variant];
        let validation = match corpus {
            Some(corpus) => {
                let scores = trained.member.predict(&corpus.validation, &|_| {})?;
                add_to(&mut scores_of_variant.validation, &scores);
                Some(pearson_of("validation", &corpus.validation, &scores)?)
            }
            None => None,
        };
        scores_of_variant.members += 1;
        let held_out = pearson_of(HELD_OUT, &trained.held_out_rows, &trained.raw_scores)?;
        self.members.push(MemberSummary { run, variant, steps, held_out, validation });
        if variant == 0 {
            self.held_out_rows.extend(trained.held_out_rows);
        }
        // Pearson's r of a single model needs no calibration, which may also be impossible: all
        // rows may have the same anchor.
        scores_of_variant.held_out.extend(match corpus {
            Some(_) => trained.calibrated_scores,
            None => trained.raw_scores,
        });
        Ok(())
    }

    /// Whether the recipe asks for stacking and there are enough rows to fit it.
    fn uses_stacking(&self) -> bool {
        self.combine == Combination::Stacked && self.held_out_rows.len() >= MIN_ROWS
    }

    /// The scores of all held-out rows, by variant.
    fn held_out(&self) -> Vec<Vec<f64>> {
        self.variant_scores.iter().map(|variant| variant.held_out.clone()).collect()
    }

    /// The scores of all validation rows, by variant.
    fn validation(&self) -> Vec<Vec<f64>> {
        self.variant_scores.iter().map(VariantScores::validation_scores).collect()
    }

    /// The weighted mean of the variants' scores.
    fn mean(&self, scores: &[Vec<f64>]) -> Vec<f64> {
        let weights = self.variant_scores.iter().map(|variant| variant.weight);
        weighted_mean(weights.zip(scores.iter().cloned()))
    }

    /// Computes the ensemble's scores.
    pub(super) fn combined(&self, corpus: &Corpus) -> Combined {
        let (held_out, validation) = (self.held_out(), self.validation());
        let mean = Scores { held_out: self.mean(&held_out), validation: self.mean(&validation) };
        if !self.uses_stacking() {
            return Combined { scores: mean, stacked: None };
        }
        let stacking = Stacking::fit(&self.held_out_rows, &held_out);
        let validation = if mean.validation.is_empty() {
            Vec::new()
        } else {
            stacking.predict(&corpus.validation, &validation)
        };
        let held_out = Stacking::cross_fitted(&self.held_out_rows, &held_out);
        Combined { scores: Scores { held_out, validation }, stacked: Some((stacking, mean)) }
    }

    /// Measures the ensemble and each variant.
    pub(super) fn summary(
        &self,
        recipe: &Recipe,
        corpus: &Corpus,
        combined: &Combined,
        data: &PatentData,
    ) -> Result<PatentSummary> {
        let has_folds = data.folds > 0;
        let measured = |Scores { held_out, validation }: &Scores| -> Result<CombinedSummary> {
            let validation =
                has_folds.then(|| pearson_of("validation", &corpus.validation, validation));
            Ok(CombinedSummary {
                held_out: pearson_of(HELD_OUT, &self.held_out_rows, held_out)?,
                validation: validation.transpose()?,
            })
        };
        let CombinedSummary { held_out, validation } = measured(&combined.scores)?;
        let mean = combined.stacked.as_ref().map(|(_, scores)| measured(scores)).transpose()?;
        let mut variants = Vec::new();
        for variant in &self.variant_scores {
            let Some(name) = variant.name.clone() else { continue };
            let (held_out, validation) = (variant.held_out.clone(), variant.validation_scores());
            let CombinedSummary { held_out, validation } =
                measured(&Scores { held_out, validation })?;
            variants.push(VariantSummary { name, weight: variant.weight, held_out, validation });
        }
        let mut check_failures = self.failures.clone();
        let check = recipe.check();
        if let Some(expected) = check.metric_value.filter(|_| has_folds)
            && (held_out.value.is_nan() || held_out.value < expected - check.tolerance)
        {
            let (value, tolerance) = (held_out.value, check.tolerance);
            check_failures.push(format!(
                "all members: pearson is {value:.6}, the recipe expects {expected} ± {tolerance}"
            ));
        }
        Ok(PatentSummary {
            recipe_hash: recipe.hash()?,
            seed: recipe.seed,
            combine: match combined.stacked {
                Some(_) => Combination::Stacked,
                None => Combination::Mean,
            },
            members: self.members.clone(),
            variants,
            held_out,
            validation,
            mean,
            warnings: self.warnings(corpus, validation_selects(data, recipe)),
            check_failures,
        })
    }

    /// Caveats about the metrics, for the summary.
    fn warnings(&self, corpus: &Corpus, validation_selects: bool) -> Vec<String> {
        let mut warnings = corpus.warnings(validation_selects);
        if self.combine == Combination::Stacked && !self.uses_stacking() {
            warnings.push(format!(
                "{} held-out rows are too few for stacking ({MIN_ROWS} needed); using the mean",
                self.held_out_rows.len()
            ));
        }
        warnings
    }

    /// Writes the scores from which the metrics are computed, and the fitted stacking.
    pub(super) fn write(&self, run: &Path, corpus: &Corpus, combined: &Combined) -> Result<()> {
        let write = |name: &str, suffix: &str, rows: &[PhrasePair], scores: &[f64]| {
            let path = run.join(format!("{name}{suffix}.csv"));
            write_file(&path, &predictions_csv(rows, scores))
        };
        let write_both = |suffix: &str, held_out: &[f64], validation: &[f64]| {
            write("held_out", suffix, &self.held_out_rows, held_out)?;
            if validation.is_empty() {
                Ok(())
            } else {
                write("validation", suffix, &corpus.validation, validation)
            }
        };
        for variant in &self.variant_scores {
            if let Some(name) = &variant.name {
                write_both(&format!("-{name}"), &variant.held_out, &variant.validation_scores())?;
            }
        }
        write_both("", &combined.scores.held_out, &combined.scores.validation)?;
        let items = ablations::correlation_items(&self.held_out_rows, &combined.scores.held_out);
        TestItems::write(run, &pearson::INFO, &items)?;
        let Some((stacking, Scores { held_out, validation })) = &combined.stacked else {
            return Ok(());
        };
        write_both("-mean", held_out, validation)?;
        let json = serde_json::to_vec_pretty(stacking)
            .map_err(TrainError::in_study(NAME, "the stacking"))?;
        write_file(&run.join(STACKING), &json)
    }
}

/// Pearson's r of scores of these rows. `part` is their name in errors.
fn pearson_of(part: &'static str, rows: &[PhrasePair], scores: &[f64]) -> Result<Measure> {
    pearson_measure(rows, scores).map_err(TrainError::in_study(NAME, part))
}

impl VariantScores {
    /// The mean of the members' scores of each validation row.
    fn validation_scores(&self) -> Vec<f64> {
        let count = self.members as f64;
        self.validation.iter().map(|sum| sum / count).collect()
    }
}
