//! `engram reproduce`: the studies on the embedded world, beside what the papers say.

mod avformer;
mod kept;
mod patent;
mod real;
mod report;
mod reveal;
mod values;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, ValueEnum};
use engram_data::hub::WeightsLocation;
use engram_data::patent::{Labels, read_pairs};
use engram_train::recognise::Listener;
use engram_train::{Program, RunOptions, is_finished};

use super::{Outcome, output};
use report::Report;

/// The sentence encoder that real phrases are scored by.
const ENCODER: &str = "hf://sentence-transformers/all-MiniLM-L6-v2";

/// Run the studies on the embedded world and set the papers' figures beside ours.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no data, no weights and no network; about four minutes on 2 cores. The embedded world is
small: it shows mechanisms and directions, not the papers' absolute figures. The folder gets
report.json and report.html; runs of REVEAL and AVFormer that are finished are not made again.
At --scale laptop AVFormer's recogniser and image encoder are trained first; smoke takes those of
train/kept.

Examples:
  engram reproduce
  engram reproduce --study reveal --scale laptop --seeds 3 --ablations --out runs/reveal
  engram reproduce --study avformer --scale laptop --whisper hf://openai/whisper-tiny.en
  engram reproduce --study patent --data ../shared/data      # with rows on real data")]
pub struct Reproduce {
    /// Only these studies
    #[arg(long, value_delimiter = ',', value_name = "STUDIES")]
    study: Vec<StudyName>,
    /// How large the runs are; the patent study has one size
    #[arg(long, value_enum, default_value_t = Scale::Smoke)]
    scale: Scale,
    /// How many seeds REVEAL and AVFormer are trained with, for intervals over them; 1, at scale full 3
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
    /// Take runs of REVEAL and AVFormer in the folder that another build of this program trained, and say so
    /// in the report
    #[arg(long)]
    reuse: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
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
    /// Small models on a small world, in four minutes
    Smoke,
    /// The laptop recipes
    Laptop,
    /// The laptop recipes with three seeds and all rows, and MiniLM fine-tuned where --data has phrases: days
    Full,
}

impl Reproduce {
    /// Runs the command.
    pub fn run(mut self) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        self.ablations |= self.scale == Scale::Full;
        let _claimed = self.claim_folder()?;
        self.check_given()?;
        if let Some(whisper) = &self.whisper {
            // What is wrong with it is told before hours are spent.
            Listener::open(whisper)?;
        }
        let wanted = |study| self.study.is_empty() || self.study.contains(&study);
        let (mut rows, mut notes) = (Vec::new(), Vec::new());
        if wanted(StudyName::Patent) {
            rows.extend(patent::rows(&self.out, self.quiet)?);
            rows.extend(self.real_phrases(&mut notes)?);
        }
        if wanted(StudyName::Reveal) {
            rows.extend(self.reveal(&mut notes)?);
            rows.extend(self.real_captions(&mut notes)?);
        }
        if wanted(StudyName::Avformer) {
            rows.extend(self.avformer(&mut notes)?);
            rows.extend(self.real_speech(&mut notes)?);
        }
        let report = Report {
            program: Program::running()?,
            notes,
            scale: self.scale_name(),
            seconds: started.elapsed().as_secs(),
            threads: rayon::current_num_threads(),
            rows,
        };
        let file = self.out.join("report.html");
        let json = serde_json::to_vec_pretty(&report)?;
        output::write_whole(&self.out.join("report.json"), &json)?;
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
        RunOptions { run: run.into(), resume: true, quiet: self.quiet, ..RunOptions::default() }
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

    /// Fails for folders that are not there, before hours are spent.
    fn check_given(&self) -> anyhow::Result<()> {
        if let Some(data) = self.data.as_ref().filter(|data| !data.is_dir()) {
            anyhow::bail!("{}: is no folder; give another --data (ENGRAM_DATA)", data.display());
        }
        let phrases = self.data.iter().map(|data| data.join("patent/validation.csv"));
        for phrases in phrases.filter(|phrases| phrases.is_file()) {
            read_pairs(phrases, Labels::Required)?;
        }
        // A model of the hub that is not at hand is only told of.
        if let WeightsLocation::Folder(folder) = WeightsLocation::parse(&self.encoder)?
            && !folder.join("model.safetensors").is_file()
        {
            anyhow::bail!(
                "{}: has no model.safetensors; give another --encoder (ENGRAM_MINILM)",
                folder.display()
            );
        }
        self.keep.as_deref().map_or(Ok(()), kept::check_folder)
    }

    /// Makes the folder ours, until the file is dropped: what is cleared below must not be anybody else's.
    fn claim_folder(&self) -> anyhow::Result<File> {
        let marker = self.out.join(".engram-reproduce");
        let folder = std::fs::read_dir(&self.out);
        if folder.is_ok_and(|mut entries| entries.next().is_some()) && !marker.exists() {
            anyhow::bail!(
                "{}: holds something else than `engram reproduce` wrote; give another --out",
                self.out.display()
            );
        }
        std::fs::create_dir_all(&self.out)
            .with_context(|| format!("{}: could not be made", self.out.display()))?;
        let file = File::options().create(true).append(true).open(&marker);
        let file = file.with_context(|| format!("{}: could not be made", marker.display()))?;
        file.try_lock().with_context(|| {
            let out = self.out.display();
            format!(
                "{out}: another `engram reproduce` is at it; wait for it, or give another --out"
            )
        })?;
        Ok(file)
    }
}
