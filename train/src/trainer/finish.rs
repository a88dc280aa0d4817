//! The end of a run: final weights, model card and the recipe's check.

use engram_durable as durable;
use engram_infer::finished_run::WEIGHTS;
use engram_models::layers::merge;
use engram_models::params::Parameters;
use engram_models::weights::{self, Weights};

use super::{CheckOutcome, RunSummary, Session};
use crate::card::{self, CARD};
use crate::checkpoint::{EMA, PARAMETERS, write_file};
use crate::error::{Result, TrainError};
use crate::study::{Evaluation, Study};

/// Writes the final weights and the model card, and runs the recipe's check.
pub(super) fn finish<S: Study>(
    session: &Session<'_>,
    study: &S,
    parameters: Option<&Parameters>,
) -> Result<RunSummary> {
    let run = session.folder.path();
    let checkpoints = &session.checkpoints;
    let keep_best = session.recipe.evaluation.keep_best;
    let final_checkpoint = if keep_best { checkpoints.best() } else { None };
    if let Some(final_checkpoint) = final_checkpoint.or_else(|| checkpoints.latest()) {
        let file = if session.recipe.ema.is_some() { EMA } else { PARAMETERS };
        let (source, target) = (final_checkpoint.join(file), run.join(WEIGHTS));
        let low_rank = session.recipe.low_rank();
        if low_rank.is_empty() {
            durable::link_file(&source, &target).map_err(TrainError::io(&target))?;
        } else {
            let merged = merge(Weights::open(&source)?.read_all()?, &low_rank)?;
            let named = merged.iter().map(|(name, tensor)| (name.as_str(), tensor));
            weights::save(&target, named)?;
        }
    }
    let mut summary = summary(session)?;
    let parameter_counts = parameters.map(Parameters::value_counts);
    let inputs = &session.folder.inputs;
    let card = card::of_run(study, session.recipe, &summary, parameter_counts, inputs)?;
    write_file(&run.join(CARD), card.as_bytes())?;
    summary.check = check(session, study, &summary);
    Ok(summary)
}

/// The summary of the run, without the recipe's check.
fn summary(session: &Session<'_>) -> Result<RunSummary> {
    let state = &session.state;
    let metrics = state.metrics.iter().map(|(name, value)| (name.clone(), value.0));
    let evaluation = Evaluation { metrics: metrics.collect(), counts: state.counts.clone() };
    Ok(RunSummary {
        run: session.folder.path().to_path_buf(),
        steps: state.step,
        last_loss: state.last_loss.map(|loss| loss.0),
        last_evaluation: (!evaluation.metrics.is_empty()).then_some(evaluation),
        best: state.best.map(|best| (best.value.0, best.step)),
        weights: session.folder.path().join(WEIGHTS),
        recipe_hash: session.recipe.hash()?,
        check: CheckOutcome::default(),
    })
}

/// Checks the conditions of the recipe's `[check]`.
fn check<S: Study>(session: &Session<'_>, study: &S, summary: &RunSummary) -> CheckOutcome {
    let conditions = session.recipe.check();
    let mut failures = Vec::new();
    for file in conditions.files.iter().filter(|file| !summary.run.join(file).exists()) {
        failures.push(format!("the run did not write `{file}`"));
    }
    if let Some(bound) = conditions.loss_at_most
        && summary.last_loss.is_none_or(|loss| loss > bound)
    {
        let found = summary.last_loss.map_or("none".to_string(), |loss| format!("{loss:.6}"));
        failures.push(format!("the last loss is {found}, but the recipe allows at most {bound}"));
    }
    if let Some(expected) = conditions.metric_value {
        let metric = study.primary_metric();
        let best = summary.best.map(|(value, _)| value);
        let last = summary.last_evaluation.as_ref().and_then(|e| e.get(&metric.name));
        let found = if session.recipe.evaluation.keep_best { best } else { last };
        let worse_by =
            |found: f64| if metric.higher_is_better { expected - found } else { found - expected };
        if !found.is_some_and(|found| worse_by(found) <= conditions.tolerance) {
            let found = found.map_or("none".to_string(), |found| format!("{found:.6}"));
            let (name, tolerance) = (metric.name, conditions.tolerance);
            failures.push(format!(
                "{name} is {found}, but the recipe expects {expected} ± {tolerance}"
            ));
        }
    }
    CheckOutcome { failures }
}
