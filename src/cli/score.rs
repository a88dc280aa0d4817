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
use engram_infer::encode::PromptChoice;
use engram_train::studies::patent::{predict, zero_shot};
use engram_train::studies::reveal;

use super::memory::prompt_choice;
use super::{Outcome, output, paths};
pub(super) use speech::OnError;
pub(super) use transcripts::files_of;

/// Score phrase pairs, answer questions or transcribe speech, with a trained run or with published
/// weights.
#[derive(Debug, Args)]
#[command(after_help = "\
A patent run scores the phrase pairs of a CSV file.

A REVEAL run answers questions with entries from its memory. --input has one JSON object per line:
{\"id\": …, \"question\": …, \"image\": …}. Image paths are relative to the file's folder. Every line
needs an image; without a question the run writes a caption. The output has the retrieved entries
of each answer. With --haystack the run replies yes or no to each task from `engram data world`. It
answers the task's question for each image, with only the task's entries as memory, and replies
yes if every answer matches.

Examples:
  engram predict runs/r1 --input world/questions.jsonl --output answers.jsonl --evidence
  engram predict runs/r1 --haystack world/haystack.jsonl --output replies.jsonl
  engram eval haystack --replies replies.jsonl
  engram predict runs/p1 --input test.csv --output predictions.csv
  engram predict --asr-model hf://openai/whisper-tiny.en --input talks/ --output talks.tsv
  engram predict --asr-model hf://openai/whisper-tiny.en --input talk.mp3 --output talk.srt
  engram predict --asr-model hf://openai/whisper-tiny.en --input talk.mp3 --output talk.txt \\
      --boost names.txt
  engram predict --asr-model runs/s1 --input talk.mp3 --output talk.jsonl --stream 1
  arecord -f S16_LE -r 16000 -d 60 | engram predict --asr-model runs/s1 --input - --stream 1 \\
      --output talk.txt
  engram predict --asr-model whisper --input unlabelled.jsonl --format manifest \\
      --output train.jsonl
  engram predict --asr-model whisper --adapters runs/a1 --input clips.jsonl --output hyp.tsv
  engram predict --encoder hf://sentence-transformers/all-MiniLM-L6-v2 \\
      --input validation.csv --output cosine.csv
  engram predict --vectors glove.6B.300d.txt --input validation.csv --output glove.csv")]
pub struct Predict {
    /// The folder of a finished run
    #[arg(required_unless_present_any = ["encoder", "vectors", "asr_model"])]
    run: Option<PathBuf>,
    /// Baseline: cosine similarity of a sentence encoder (`hf://owner/name` or a folder)
    #[arg(long, value_name = "WEIGHTS", conflicts_with_all = ["run", "vectors"])]
    encoder: Option<String>,
    /// Name of the prompt of --encoder, from config_sentence_transformers.json; '' for no prompt
    #[arg(long, value_name = "NAME", requires = "encoder")]
    prompt: Option<String>,
    /// Baseline: cosine similarity of mean word vectors (a GloVe or word2vec text file)
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    vectors: Option<PathBuf>,
    /// Phrase pairs (CSV with id, anchor, target, context), questions (JSON lines), or audio
    #[arg(long, value_name = "FILE", required_unless_present = "haystack")]
    input: Option<PathBuf>,
    /// REVEAL: reply to the tasks of a `haystack.jsonl` instead of questions
    #[arg(long, value_name = "FILE", requires = "run",
        conflicts_with_all = ["input", "evidence", "curves"])]
    haystack: Option<PathBuf>,
    /// Output file: scores (`id,score`), answers or transcripts; - is standard output
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// REVEAL: add the attribution of each answer token to each retrieved entry
    #[arg(long, requires = "run")]
    evidence: bool,
    /// REVEAL: add deletion and insertion curves, which measure the quality of the attributions
    #[arg(long, requires = "run")]
    curves: bool,
    /// REVEAL: use this memory instead of the run's own
    #[arg(long, value_name = "FOLDER", requires = "run")]
    memory: Option<PathBuf>,
    /// REVEAL: number of entries to retrieve; 0 for no memory
    #[arg(short, value_name = "N", requires = "run")]
    k: Option<usize>,
    /// Hide progress
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
        if let Some(asr_model) = &self.speech.asr_model {
            let input = self.input.as_deref().context("give --input")?;
            return match &self.adapted.adapters {
                Some(run) => self.transcribe_adapted((asr_model, run), input),
                None => self.transcribe(asr_model, input),
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
        let needs_reveal =
            self.evidence || self.curves || self.memory.is_some() || self.k.is_some();
        if needs_reveal || self.haystack.is_some() {
            let reason = "is not a finished REVEAL run, which --haystack, --evidence, --curves, \
                          --memory and -k need";
            let run = self.run.as_deref().unwrap_or(Path::new("")).display();
            anyhow::bail!("{run}: {reason}; leave these options out, or finish the run");
        }
        if let Some(run) = self.run.as_deref().filter(|run| reveal::run::is_unfinished(run)) {
            let (run, reason) = (run.display(), "is an unfinished REVEAL run");
            anyhow::bail!("{run}: {reason}; continue it with `engram train reveal … --resume`");
        }
        let input = match self.input.as_deref().context("give --input")? {
            dash if dash == Path::new("-") => Path::new(paths::STDIN),
            input => input,
        };
        let pairs = match &self.run {
            Some(run) => {
                let titles = predict::titles(run)?;
                read_pairs_with_titles(input, Labels::Optional, &titles)?
            }
            None => read_pairs(input, Labels::Optional)?,
        };
        let scores = self.scores(&pairs)?;
        if let Some((pair, score)) = pairs.iter().zip(&scores).find(|(_, score)| !score.is_finite())
        {
            anyhow::bail!("pair `{}`: the score is {score}; check the model's weights", pair.id);
        }
        let bytes = predictions_csv(&pairs, &scores);
        output::write_atomic(&self.output, &bytes)?;
        let done = format!("{} scores written to {}", scores.len(), self.output.display());
        output::note(&done, self.quiet);
        Ok(Outcome::Done)
    }

    fn scores(&self, pairs: &[PhrasePair]) -> anyhow::Result<Vec<f64>> {
        match (&self.run, &self.encoder, &self.vectors) {
            (Some(folder), _, _) => {
                let work = predict::prediction_work(folder, pairs.len())?;
                let bar = output::progress_bar(work, "scores", self.quiet);
                let scores = predict::predict(folder, pairs, &|done| bar.inc(done as u64))?;
                bar.finish_and_clear();
                Ok(scores)
            }
            (None, Some(weights), _) => {
                let bar = output::progress_bar(pairs.len(), "scores", self.quiet);
                let prompt = prompt_choice(self.prompt.as_deref(), PromptChoice::Default);
                let count = |done: usize| bar.inc(done as u64);
                let scores = zero_shot::encoder_cosines(weights, &prompt, pairs, &count)?;
                bar.finish_and_clear();
                Ok(scores)
            }
            (None, None, Some(file)) => Ok(zero_shot::word_vector_cosines(file, pairs)?),
            (None, None, None) => anyhow::bail!("give a run, --encoder or --vectors"),
        }
    }
}
