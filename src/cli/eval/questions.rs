//! `engram eval vqa` and `engram eval aokvqa`: accuracies in visual question answering.

use clap::Args;
use engram_eval::aokvqa;
use engram_eval::vqa::{self, read};
use engram_textfile::read_text;

use super::super::Outcome;
use super::output;
use super::shared::{IntervalOptions, OutputOptions, source_file};
use crate::cli::paths::InputFile;

/// Evaluate visual question answering: VQA accuracy, for VQA v2 and OK-VQA.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval vqa --ref v2_mscoco_val2014_annotations.json --hyp mine.json
  engram eval vqa --ref mscoco_val2014_annotations.json --hyp mine.json --json
  engram eval vqa --ref some.json --hyp mine.json --questions questions.json \\
      --worst 500 --html report.html

Results: [{\"question_id\", \"answer\"}], one per question. Files may be gzipped.")]
pub struct Vqa {
    /// Annotations with human answers
    #[arg(long = "ref", value_name = "FILE")]
    reference: InputFile,
    /// Results: one answer per question
    #[arg(long, value_name = "FILE")]
    hyp: InputFile,
    /// Question file; adds the question texts to the list of worst questions
    #[arg(long, value_name = "FILE")]
    questions: Option<InputFile>,
    /// List the N questions with the lowest accuracy
    #[arg(long, value_name = "N", default_value_t = 0)]
    worst: usize,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

impl Vqa {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (annotation_text, result_text) = (read_text(&self.reference)?, read_text(&self.hyp)?);
        let files = [&self.reference, &self.hyp].map(|path| path.display().to_string());
        let annotations = read::parse_annotations(&files[0], &annotation_text)?;
        let results = read::parse_results(&files[1], &result_text)?;
        let mut sources = vec![
            source_file("annotations", &self.reference, annotations.len()),
            source_file("results", &self.hyp, results.len()),
        ];
        let question_text = self.questions.as_ref().map(read_text).transpose()?;
        let questions = match (&self.questions, &question_text) {
            (Some(path), Some(text)) => {
                let questions = read::parse_questions(&path.display().to_string(), text)?;
                sources.push(source_file("questions", path, questions.len()));
                questions
            }
            _ => read::Questions::new(),
        };
        let options = self.outputs.report_options(self.intervals, self.worst, sources);
        let [annotation_file, result_file] = &files;
        let mut report = vqa::evaluate(
            annotation_file,
            &annotations,
            result_file,
            &results,
            &questions,
            &options,
        )?;
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst.truncate(self.worst);
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}

/// Evaluate A-OKVQA: direct answers and multiple choice.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram eval aokvqa --ref aokvqa_v1p0_val.json --hyp mine.json

Predictions: {\"question_id\": {\"direct_answer\": \"…\", \"multiple_choice\": \"…\"}}.
Answers are compared exactly, without normalisation. Questions with difficult direct answers count
for multiple choice only. Files may be gzipped.")]
pub struct Aokvqa {
    /// Questions with human answers (train or validation split)
    #[arg(long = "ref", value_name = "FILE")]
    reference: InputFile,
    /// Predictions of the system; a question without a prediction scores 0
    #[arg(long, value_name = "FILE")]
    hyp: InputFile,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

impl Aokvqa {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (questions, predictions) = (read_text(&self.reference)?, read_text(&self.hyp)?);
        let files = [&self.reference, &self.hyp].map(|path| path.display().to_string());
        let questions = aokvqa::parse_questions(&files[0], &questions)?;
        let predictions = aokvqa::parse_predictions(&files[1], &predictions)?;
        let sources = vec![
            source_file("questions", &self.reference, questions.len()),
            source_file("predictions", &self.hyp, predictions.len()),
        ];
        let options = self.outputs.report_options(self.intervals, 0, sources);
        let mut report = aokvqa::evaluate(&questions, &files[1], &predictions, &options)?;
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst.clear();
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}
