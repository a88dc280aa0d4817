//! `engram reproduce`: the studies on the embedded world, beside what the papers say.

mod avformer;
mod correlation;
mod given;
mod kept;
mod patent;
mod real;
mod report;
mod reveal;
mod values;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use engram_train::{Program, RunOptions, Stop, is_finished};

use super::interrupt::Interrupt;
use super::{Outcome, output};
use report::Report;

/// The sentence encoder that real phrases are scored by.
const ENCODER: &str = "hf://sentence-transformers/all-MiniLM-L6-v2";

/// Run the studies on the embedded world and set the papers' figures beside ours.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no data, no weights and no network; a few minutes on 2 cores. The embedded world is
small: it shows mechanisms and directions, not the papers' absolute figures. The folder gets
report.json and report.html; finished runs are not trained again.
At --scale laptop AVFormer's recogniser and image encoder are trained first; smoke takes those of
train/kept.

Examples:
  engram reproduce
  engram reproduce --row reveal.k_curve,reveal.needle        # no training that these do not need
  engram reproduce --study reveal --scale laptop --seeds 3 --ablations --out runs/reveal
  engram reproduce --study avformer --scale laptop --whisper hf://openai/whisper-tiny.en
  engram reproduce --study patent --data ../shared/data      # with rows on real data")]
pub struct Reproduce {
    /// Only these studies
    #[arg(long, value_delimiter = ',', value_name = "STUDIES")]
    study: Vec<StudyName>,
    /// Only these rows of the report, by their ids, and no training that they do not need; the report is
    /// report-of-rows.html then
    #[arg(long = "row", value_delimiter = ',', value_name = "IDS",
        conflicts_with_all = ["study", "ablations", "keep"])]
    rows: Vec<String>,
    /// How large the runs are; the patent study has one size
    #[arg(long, value_enum, default_value_t = Scale::Smoke)]
    scale: Scale,
    /// How many seeds everything is trained with, for intervals over them; 1, at scale full 3
    #[arg(long, default_value_t = 1, default_value_if("scale", "full", "3"), value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Add the rows that need further trainings, at the scale of
    /// train/recipes/*/ablations.toml whatever --scale says
    #[arg(long)]
    ablations: bool,
    /// A Whisper model that AVFormer is added to as well as to a Conformer: hf://owner/name, or a
    /// folder
    #[arg(long, value_name = "WEIGHTS")]
    whisper: Option<String>,
    /// Real data, for more rows: a folder with patent/validation.csv, with speech/ (for --whisper), and with
    /// coco-captions/ (from scale laptop on)
    #[arg(long, env = "ENGRAM_DATA", value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// The sentence encoder for real phrases, where it is at hand: hf://owner/name, or a folder
    #[arg(
        long,
        env = "ENGRAM_MINILM",
        value_name = "WEIGHTS",
        default_value = ENCODER
    )]
    encoder: String,
    /// The folder for runs and the report
    #[arg(long, default_value = "runs/reproduce", value_name = "FOLDER")]
    out: PathBuf,
    /// Write the small models of this reproduction to a folder, as train/kept has them: at scale smoke
    /// AVFormer's and REVEAL's, at laptop the image encoder and the Conformer
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Take runs in the folder that another build of this program trained, and say so in the report
    #[arg(long)]
    reuse: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Through which runs are asked to stop
    #[arg(skip)]
    stop: Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StudyName {
    /// Patent phrase similarity
    Patent,
    /// Answers about pictures out of a memory
    Reveal,
    /// Speech that is seen
    Avformer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// Small models on a small world, in minutes
    Smoke,
    /// The laptop recipes
    Laptop,
    /// The laptop recipes with three seeds and all rows, and MiniLM fine-tuned where --data has phrases: days
    Full,
}

impl Reproduce {
    /// Runs the command.
    pub fn run(mut self) -> anyhow::Result<Outcome> {
        let interrupt = Interrupt::watch(None)?;
        self.stop = interrupt.stop();
        interrupt.ended(self.make())
    }

    fn make(mut self) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        self.ablations |= self.scale == Scale::Full;
        self.check_given()?;
        let _claimed = self.claim_folder()?;
        let (mut rows, mut notes) = (Vec::new(), Vec::new());
        if self.makes(StudyName::Patent) {
            rows.extend(self.patent(&mut notes)?);
            rows.extend(self.real_phrases(&mut notes)?);
        }
        if self.makes(StudyName::Reveal) {
            rows.extend(self.reveal(&mut notes)?);
            rows.extend(self.real_captions(&mut notes)?);
        }
        if self.makes(StudyName::Avformer) {
            rows.extend(self.avformer(&mut notes)?);
            rows.extend(self.real_speech(&mut notes)?);
        }
        rows.retain(|row| self.wants(&row.id));
        if let Some(id) = self.rows.iter().find(|id| rows.iter().all(|row| row.id != **id)) {
            anyhow::bail!("--row {id}: could not be made. {}", notes.join(" "));
        }
        let report = Report {
            program: Program::running()?,
            notes,
            scale: self.scale_name(),
            seconds: started.elapsed().as_secs(),
            threads: rayon::current_num_threads(),
            rows,
        };
        let name = if self.rows.is_empty() { "report" } else { "report-of-rows" };
        let file = self.out.join(format!("{name}.html"));
        let json = serde_json::to_vec_pretty(&report)?;
        output::write_whole(&self.out.join(format!("{name}.json")), &json)?;
        output::write_whole(&file, report.to_html().as_bytes())?;
        output::print_report(self.json, &report, || report.to_text())?;
        let done = format!("{} s; report in {}", report.seconds, file.display());
        output::note(&done, self.quiet);
        Ok(if report.as_expected() { Outcome::Done } else { Outcome::CheckFailed })
    }

    /// Says whether a run has the weights that the repository keeps, and keeps them where that is asked for.
    fn keep(&self, kept: &kept::Kept, run: &Path, notes: &mut Vec<String>) -> anyhow::Result<()> {
        notes.push(kept.compared(run)?);
        match &self.keep {
            Some(folder) => kept.keep(run, &self.out, folder),
            None => Ok(()),
        }
    }

    /// Whether a run is not there yet.
    fn is_to_be_made(&self, run: &Path, notes: &mut Vec<String>) -> anyhow::Result<bool> {
        if Program::is_other(run, self.reuse)? {
            notes.push(format!("Trained by another program than used it: {}.", run.display()));
        }
        Ok(!is_finished(run))
    }

    fn run_options(&self, run: &Path) -> RunOptions {
        RunOptions {
            run: run.into(),
            resume: true,
            quiet: self.quiet,
            stop: self.stop.clone(),
            ..RunOptions::default()
        }
    }

    /// The command for a row alone.
    fn command(&self, id: &str, more: &str) -> String {
        let (scale, seeds) = (self.scale_name(), self.seeds);
        format!("engram reproduce --row {id} --scale {scale} --seeds {seeds}{more}")
    }

    fn tell(&self, what: &str) {
        output::note(what, self.quiet);
    }

    fn is_smoke(&self) -> bool {
        self.scale == Scale::Smoke
    }

    fn scale_name(&self) -> &'static str {
        match self.scale {
            Scale::Smoke => "smoke",
            Scale::Laptop => "laptop",
            Scale::Full => "full",
        }
    }
}
