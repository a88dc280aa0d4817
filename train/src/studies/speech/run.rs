//! Training and testing one run.
//!
//! Besides the files of every run, the run folder has `config.json` and `tokenizer.json` in the
//! published form, so that it can be opened as an ASR model. `ref.tsv` and `hyp.tsv` are the
//! references and hypotheses of the test, for `engram eval wer`. `summary.json` is written last.

use std::collections::HashSet;

use engram_data::world::questions::Split;
use engram_eval::result::Measure;
use engram_eval::wer::rare_words::RareWords;
use engram_eval::wer::report::{WER, WerOptions};
use engram_infer::finished_run::{CHECKSUMS, CHECKSUMS_KEY};
use serde::{Deserialize, Serialize};

use super::super::reports::{word_errors, write_texts};
use super::NAME;
use super::model::SpeechModules;
use super::settings::{Objective, SpeechData, SpeechFeed, SpeechModel};
use super::study::SpeechStudy;
use crate::Stop;
use crate::checkpoint::write_file;
use crate::checksums::train_and_finish;
use crate::error::{Result, TrainError};
use crate::grid::TestItems;
use crate::recipe::Recipe;
use crate::study::StudyResult;
use crate::trainer::{RunOptions, RunSummary};

/// The tokenizer's file name.
const TOKENIZER: &str = "tokenizer.json";

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SpeechSummary {
    /// The SHA-256 of the resolved recipe.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// Steps trained.
    pub steps: u64,
    /// The word error rate on the test; `None` if no phase trains on texts. The references are the
    /// texts as the tokenizer encodes and decodes them.
    pub wer: Option<Measure>,
    /// The error rates of image names and of all other words; `None` for clips from files, and if
    /// no phase trains on texts.
    pub names: Option<NameErrors>,
    /// Failures of the recipe's `[check]`.
    pub check_failures: Vec<String>,
}

/// The word error rates of image names and of all other words.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NameErrors {
    /// The error rate of names.
    pub names: f64,
    /// The error rate of other words.
    pub others: f64,
}

/// Trains an ASR model by a recipe, and tests it.
///
/// # Errors
/// Errors of reading the data, and of [`train`](crate::train).
pub fn train_speech(recipe: &mut Recipe, options: &RunOptions) -> Result<SpeechSummary> {
    recipe.expect_study(NAME)?;
    recipe.fill_start_hash()?;
    let (data, model, feeds) = settings(recipe)?;
    let study = SpeechStudy::new(data, model, feeds, recipe.batch.clone());
    let mut study = study.map_err(TrainError::in_study(NAME, "reading the data"))?;
    check_start(&study, recipe)?;
    let has_several_phases_with_texts = recipe.phases.len() > 1 && study.learns_texts();
    if recipe.evaluation.early_stop > 0 && has_several_phases_with_texts {
        let reason = "needs a single phase: in a phase of `best_rq`, the word error rate does not \
                      change; train the phases as several runs, the later ones with [start]";
        return Err(recipe.error("evaluation.early_stop", reason));
    }
    train_and_finish(&mut study, recipe, options, |study, trained| finish(study, recipe, trained))
}

/// Reads and checks the study's part of the recipe, and fills in defaults.
pub(super) fn settings(recipe: &mut Recipe) -> Result<(SpeechData, SpeechModel, Vec<SpeechFeed>)> {
    let (data, model): (SpeechData, SpeechModel) = (recipe.data()?, recipe.model()?);
    let feeds = recipe.feed()?;
    recipe.check_key("data", data.first_invalid_key())?;
    recipe.check_batch(&[])?;
    data.spec_augment.validate().map_err(|error| recipe.error("data.spec_augment", error))?;
    model.encoder().validate().map_err(|error| recipe.error("model", error))?;
    model.best_rq.validate().map_err(|error| recipe.error("model.best_rq", error))?;
    // Any number of tokens will do to check the other sizes.
    let config = model.decoder.config(&model.encoder(), 1);
    config.validate().map_err(|error| recipe.error("model.decoder", error))?;
    let objective = model.decoder.objective();
    let is_foreign =
        |feed: &SpeechFeed| feed.objective != Objective::BestRq && feed.objective != objective;
    if let Some(phase) = feeds.iter().position(is_foreign) {
        let name = &recipe.phases[phase].name;
        let reason = format!(
            "trains another decoder than `model.decoder`; set it to {:?}",
            serde_json::json!(objective).as_str().unwrap_or_default()
        );
        return Err(recipe.error(&format!("phase.{name}.feed.objective"), reason));
    }
    Ok((data, model, feeds))
}

/// Returns an error unless the run in `[start]` has the same tokens, because the classes of the
/// decoder would differ. The encoder has no tokens.
fn check_start(study: &SpeechStudy, recipe: &Recipe) -> Result<()> {
    let Some(start) = recipe.start.as_ref() else { return Ok(()) };
    let is_of_encoder = |pattern: &String| pattern.starts_with("encoder.");
    if !start.parameters.is_empty() && start.parameters.iter().all(is_of_encoder) {
        return Ok(());
    }
    let path = start.run.join(TOKENIZER);
    let start_tokenizer = engram_durable::read_text(&path).map_err(TrainError::io(&path))?;
    if start_tokenizer == study.tokenizer.json()? {
        return Ok(());
    }
    let run = start.run.display();
    let reason = format!(
        "names {run}, which has other tokens; use the same data.tokenizer or data.word_pieces for \
         both, or load only the encoder: start.parameters = [\"encoder.**\"]"
    );
    Err(recipe.error("start.run", reason))
}

/// Writes the ASR model's files into the run folder, and runs the test.
fn finish(
    study: &SpeechStudy,
    recipe: &Recipe,
    trained: &RunSummary,
) -> StudyResult<SpeechSummary> {
    let encoder = study.model.encoder();
    let vocabulary_size = study.tokenizer.vocabulary_size();
    let mut config = study.model.decoder.config(&encoder, vocabulary_size).to_json()?;
    config[CHECKSUMS_KEY] = CHECKSUMS.into();
    let write = |name: &str, content: &[u8]| write_file(&trained.run.join(name), content);
    write("config.json", &serde_json::to_vec_pretty(&config)?)?;
    write(TOKENIZER, study.tokenizer.json()?.as_bytes())?;

    let modules =
        SpeechModules::load(&study.model, vocabulary_size, &trained.weights, &recipe.compute()?)?;
    let mut summary = SpeechSummary {
        recipe_hash: trained.recipe_hash.clone(),
        seed: recipe.seed,
        steps: trained.steps,
        wer: None,
        names: None,
        check_failures: trained.check.failures.clone(),
    };
    if !study.learns_texts() {
        return Ok(summary);
    }
    let test = study.evaluated(Split::Test)?;
    let hypotheses = study.transcribe(&modules, &test, &Stop::default())?;
    let references = || test.iter().map(|test| (test.id.as_str(), test.text.as_str()));
    write_texts(&trained.run.join("ref.tsv"), references())?;
    let ids = test.iter().map(|utterance| utterance.id.as_str());
    let lines = ids.zip(hypotheses.iter().map(String::as_str));
    write_texts(&trained.run.join("hyp.tsv"), lines)?;

    let names: HashSet<String> = test
        .iter()
        .flat_map(|utterance| utterance.names.iter().map(|name| (*name).to_string()))
        .collect();
    let rare_words = (!names.is_empty()).then_some(RareWords::List(names));
    let options = WerOptions { rare_words, items: true, ..WerOptions::default() };
    let report = word_errors(references(), &hypotheses, &options)?;
    TestItems::write(&trained.run, &WER, &report.items)?;
    summary.wer = Some(report.evaluation.primary);
    summary.names =
        report.rare_words.map(|words| NameErrors { names: words.b_wer, others: words.u_wer });
    Ok(summary)
}
