//! `engram predict`.

mod adapted;
mod answers;
mod boost;
mod speech;
mod streaming;
mod subtitles;
mod transcripts;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use engram_data::patent::{
    Labels, PhrasePair, predictions_csv, read_pairs, read_pairs_with_titles,
};
use engram_train::encode::PromptChoice;
use engram_train::studies::patent::{predict, zero_shot};
use engram_train::studies::reveal;

use super::memory::prompt_choice;
use super::{Outcome, output, paths};
pub(super) use speech::OnError;
pub(super) use transcripts::files_of;

/// Score phrase pairs or answer questions with a trained run, or with a baseline that trains nothing;
/// transcribe speech.
#[derive(Debug, Args)]
#[command(after_help = "\
A run of the patent study scores the pairs of a CSV file. A run of REVEAL answers the questions of
JSON lines, {\"id\": …, \"question\": …, \"image\": …} with paths from the file's folder, out of its
memory; without a question the picture is described, and each line needs a picture. Each answer comes
with what was read for it. With --haystack it replies yes or no to tasks of `engram data world`: it
is asked the question behind the task for each picture, with the task's entries as its whole
memory, and says yes where it gives the answer in question each time.

Examples:
  engram predict runs/r1 --input world/questions.jsonl --output answers.jsonl --evidence
  engram predict runs/r1 --haystack world/haystack.jsonl --output replies.jsonl
  engram eval haystack --replies replies.jsonl
  engram predict runs/p1 --input test.csv --output predictions.csv
  engram predict --recogniser hf://openai/whisper-tiny.en --input talks/ --output talks.tsv
  engram predict --recogniser hf://openai/whisper-tiny.en --input talk.mp3 --output talk.srt
  engram predict --recogniser hf://openai/whisper-tiny.en --input talk.mp3 --output talk.txt \\
      --boost names.txt
  engram predict --recogniser runs/s1 --input talk.mp3 --output talk.jsonl --stream 1
  arecord -f S16_LE -r 16000 -d 60 | engram predict --recogniser runs/s1 --input - --stream 1 \\
      --output talk.txt
  engram predict --recogniser whisper --input unlabelled.jsonl --format manifest --output train.jsonl
  engram predict --recogniser whisper --adapters runs/a1 --input clips.jsonl --output hyp.tsv
  engram predict --encoder hf://sentence-transformers/all-MiniLM-L6-v2 \\
      --input validation.csv --output cosine.csv
  engram predict --vectors glove.6B.300d.txt --input validation.csv --output glove.csv")]
pub struct Predict {
    /// The folder of a finished run
    #[arg(required_unless_present_any = ["encoder", "vectors", "recogniser"])]
    run: Option<PathBuf>,
    /// Baseline: the cosine of a sentence encoder, `hf://owner/name` or a folder
    #[arg(long, value_name = "WEIGHTS", conflicts_with_all = ["run", "vectors"])]
    encoder: Option<String>,
    /// Baseline of --encoder: the prompt before each phrase, by its name in config_sentence_transformers.json; '' for none
    #[arg(long, value_name = "NAME", requires = "encoder")]
    prompt: Option<String>,
    /// Baseline: the cosine of mean word vectors, a GloVe or word2vec text file
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    vectors: Option<PathBuf>,
    /// Pairs to score (CSV with id, anchor, target, context), questions (JSON lines), or sound
    #[arg(long, value_name = "FILE", required_unless_present = "haystack")]
    input: Option<PathBuf>,
    /// REVEAL: instead of questions, the tasks of a `haystack.jsonl`, each out of its own entries
    #[arg(long, value_name = "FILE", requires = "run",
        conflicts_with_all = ["input", "evidence", "curves"])]
    haystack: Option<PathBuf>,
    /// Where `id,score` goes, or each answer or transcript
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// REVEAL: the credit of each entry that was read for each token of the answer
    #[arg(long, requires = "run")]
    evidence: bool,
    /// REVEAL: also the deletion and insertion curves that judge the credit
    #[arg(long, requires = "run")]
    curves: bool,
    /// REVEAL: another memory than the run's
    #[arg(long, value_name = "FOLDER", requires = "run")]
    memory: Option<PathBuf>,
    /// REVEAL: how many entries are read; 0 for none
    #[arg(short, value_name = "N", requires = "run")]
    k: Option<usize>,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    speech: speech::Speech,
    #[command(flatten)]
    adapted: adapted::Adapted,
}

impl Predict {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        if let Some(recogniser) = &self.speech.recogniser {
            let input = self.input.as_deref().context("give --input")?;
            return match &self.adapted.adapters {
                Some(run) => self.transcribe_adapted((recogniser, run), input),
                None => self.transcribe(recogniser, input),
            };
        }
        if self.output.is_dir() {
            anyhow::bail!("{}: is a folder; name a file for --output", self.output.display());
        }
        if let Some(run) = self.run.as_ref().filter(|run| reveal::run::is_run(run)) {
            return match (&self.haystack, &self.input) {
                (Some(haystack), _) => self.reply(run, haystack),
                (None, Some(input)) => self.answer(run, input),
                (None, None) => anyhow::bail!("give --input or --haystack"),
            };
        }
        let of_reveal = self.evidence || self.curves || self.memory.is_some() || self.k.is_some();
        if of_reveal || self.haystack.is_some() {
            let reason = "is no finished run of REVEAL; --haystack, --evidence, --curves, --memory \
                          and -k are";
            let run = self.run.as_deref().unwrap_or(Path::new("")).display();
            anyhow::bail!("{run}: {reason} for one: leave them out, or finish the run");
        }
        if let Some(run) = self.run.as_deref().filter(|run| reveal::run::is_unfinished(run)) {
            let (run, reason) = (run.display(), "is a run of REVEAL that is not finished");
            anyhow::bail!("{run}: {reason}; go on with `engram train reveal … --resume`");
        }
        let input = match self.input.as_deref().context("give --input")? {
            dash if dash == Path::new("-") => Path::new(paths::STDIN),
            input => input,
        };
        let rows = match &self.run {
            Some(run) => {
                let titles = predict::titles(run)?;
                read_pairs_with_titles(input, Labels::Optional, &titles)?
            }
            None => read_pairs(input, Labels::Optional)?,
        };
        let scores = self.scores(&rows)?;
        if let Some((row, score)) = rows.iter().zip(&scores).find(|(_, score)| !score.is_finite()) {
            anyhow::bail!("row `{}` got the score {score}: the model is broken", row.id);
        }
        let bytes = predictions_csv(&rows, &scores);
        output::write_whole(&self.output, &bytes)?;
        let done = format!("{} scores written to {}", scores.len(), self.output.display());
        output::note(&done, self.quiet);
        Ok(Outcome::Done)
    }

    fn scores(&self, rows: &[PhrasePair]) -> anyhow::Result<Vec<f64>> {
        match (&self.run, &self.encoder, &self.vectors) {
            (Some(folder), _, _) => {
                let work = predict::prediction_work(folder, rows.len())?;
                let bar = output::progress_bar(work, "scores", self.quiet);
                let scores = predict::predict(folder, rows, &|done| bar.inc(done as u64))?;
                bar.finish_and_clear();
                Ok(scores)
            }
            (None, Some(weights), _) => {
                let bar = output::progress_bar(rows.len(), "scores", self.quiet);
                let prompt = prompt_choice(self.prompt.as_deref(), PromptChoice::Default);
                let count = |done: usize| bar.inc(done as u64);
                let scores = zero_shot::encoder_cosines(weights, &prompt, rows, &count)?;
                bar.finish_and_clear();
                Ok(scores)
            }
            (None, None, Some(file)) => Ok(zero_shot::word_vector_cosines(file, rows)?),
            (None, None, None) => anyhow::bail!("name a run, --encoder or --vectors"),
        }
    }
}
