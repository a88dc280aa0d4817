//! `engram reproduce`: trains the studies on the embedded world and compares the results with the
//! papers' claims.

mod avformer;
mod bundled;
mod correlation;
mod inputs;
mod patent;
mod real;
mod report;
mod reveal;
mod study;
mod values;

use std::path::Path;
use std::time::Instant;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use engram_infer::finished_run::is_finished;
use engram_train::grid::{Grid, GridOptions, GridReport, run_grid};
use engram_train::studies::ALL;
use engram_train::{Program, RunOptions, Stop};

use super::environment::Environment;
use super::grid::print_progress;
use super::interrupt::Interrupt;
use super::paths::{BaseFolder, ModelName, NewFolder};
use super::{Outcome, output};
use report::Report;

/// The sentence encoder that scores real phrases.
const ENCODER: &str = "hf://sentence-transformers/all-MiniLM-L6-v2";

/// Reproduce the studies on the embedded world and compare our results with the papers' claims.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no data, weights or network, and takes a few minutes on 2 cores. The embedded world is
small: it shows mechanisms and directions, not the papers' absolute values. The folder gets
report.json and report.html; finished runs are not trained again.
Scale smoke evaluates the bundled models again and trains small ones; laptop trains all models.

With --quick, it trains one small encoder of phrases and tests two claims: on 2 cores, the verdicts
come within 20 seconds. `engram reproduce` then continues from this run.

Examples:
  engram reproduce --quick
  engram reproduce
  engram reproduce --claim reveal.k_curve,reveal.needle      # only the training that these need
  engram reproduce --study reveal --scale laptop --seeds 3 --ablations --out runs/reveal
  engram reproduce --study avformer --scale laptop --whisper hf://openai/whisper-tiny.en
  engram reproduce --study patent --data DATA                # with claims on real data")]
pub struct Reproduce {
    /// Run only these studies
    #[arg(long, value_delimiter = ',', value_name = "STUDIES", value_parser = study_name())]
    study: Vec<String>,
    /// Measure only the claims with these ids, and run only the training that they need; the report
    /// is then report-of-claims.html
    #[arg(long = "claim", value_delimiter = ',', value_name = "IDS",
        conflicts_with_all = ["study", "ablations", "export_bundled"])]
    claims: Vec<String>,
    /// Measure only claims whose verdicts come within seconds; the report is then
    /// report-of-claims.html
    #[arg(long, conflicts_with_all = ["study", "claims", "scale", "ablations", "export_bundled"])]
    quick: bool,
    /// Size of the runs; the patent study has only one size
    #[arg(long, value_enum, default_value_t = Scale::Smoke)]
    scale: Scale,
    /// Number of training seeds, for intervals over seeds; the default at scale full is 3
    #[arg(long, default_value_t = 1, default_value_if("scale", "full", "3"), value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Also test the claims of train/recipes/*/ablations.toml; their size does not depend on --scale
    #[arg(long)]
    ablations: bool,
    /// A Whisper model, used as AVFormer's frozen ASR model in addition to the Conformer (at scales
    /// laptop and full): hf://owner/name, or a folder
    #[arg(long, value_name = "WEIGHTS")]
    whisper: Option<ModelName>,
    /// Folder with real data, for more claims: patent/validation.csv, speech/ (with --whisper), and
    /// coco-captions/ (at scales laptop and full)
    #[arg(long, env = "ENGRAM_DATA", value_name = "FOLDER")]
    data: Option<BaseFolder>,
    /// The sentence encoder for real phrases, if it is available offline: hf://owner/name, or a
    /// folder
    #[arg(
        long,
        env = "ENGRAM_MINILM",
        value_name = "WEIGHTS",
        default_value = ENCODER
    )]
    encoder: ModelName,
    /// The folder for runs and the report
    #[arg(long, default_value = "runs/reproduce", value_name = "FOLDER")]
    out: NewFolder,
    /// Write the models of train/bundled to a folder, as this reproduction trains them; models of
    /// REVEAL and AVFormer need --scale laptop
    #[arg(long, value_name = "FOLDER")]
    export_bundled: Option<NewFolder>,
    /// Use runs in the folder that another build of this program trained, and note it in the report
    #[arg(long)]
    reuse: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// The handle that asks the runs to stop.
    #[arg(skip)]
    stop: Stop,
}

/// Parses the name of a study.
fn study_name() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(
        study::ALL
            .iter()
            .map(|study| PossibleValue::new(study.name()).help(study::description(*study))),
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// The bundled models and small models, in minutes
    Smoke,
    /// The laptop recipes
    Laptop,
    /// The laptop recipes with three seeds and all claims, and fine-tuned MiniLM if --data has
    /// phrases; takes days
    Full,
}

impl Reproduce {
    /// Runs the command.
    pub fn run(mut self) -> anyhow::Result<Outcome> {
        let interrupt = Interrupt::watch(None)?;
        self.stop = interrupt.stop();
        interrupt.finish(self.measure())
    }

    /// Measures the requested claims; writes and prints the report.
    fn measure(mut self) -> anyhow::Result<Outcome> {
        let start = Instant::now();
        self.ablations |= self.scale == Scale::Full;
        if self.quick {
            self.claims = patent::QUICK.map(str::to_owned).to_vec();
        }
        self.check_inputs()?;
        let _lock = self.lock_folder()?;
        let (mut claims, mut notes) = (Vec::new(), Vec::new());
        for study in study::ALL.iter().filter(|study| self.includes_study(**study)) {
            claims.extend(study.claims(&self, &mut notes)?);
        }
        claims.retain(|claim| self.includes_claim(&claim.id));
        if let Some(id) = self.claims.iter().find(|id| claims.iter().all(|claim| claim.id != **id))
        {
            anyhow::bail!("--claim {id}: could not be measured. {}", notes.join(" "));
        }
        let scale_and_seconds = (self.scale_name(), start.elapsed().as_secs());
        let report = Report::new(
            Program::running()?,
            Environment::current(),
            scale_and_seconds,
            claims,
            notes,
        );
        let name = if self.claims.is_empty() { "report" } else { "report-of-claims" };
        let file = self.out.join(format!("{name}.html"));
        let json = serde_json::to_vec_pretty(&report)?;
        output::replace_atomic(&self.out.join(format!("{name}.json")), &json)?;
        output::replace_atomic(&file, report.to_html().as_bytes())?;
        output::print_report(self.json, &report, || report.to_text())?;
        let message = format!("{} s; report in {}", report.seconds(), file.display());
        output::note(&message);
        if self.quick {
            output::note("`engram reproduce` measures the other claims too, in minutes");
        }
        Ok(if report.is_as_expected() { Outcome::Done } else { Outcome::CheckFailed })
    }

    /// Adds a note whether a run's weights equal those of the bundled model. With
    /// `--export-bundled`, writes the run to the folder of this option.
    fn compare_with_bundled(
        &self,
        model: &bundled::BundledModel,
        run: &Path,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        notes.push(model.comparison_note(run)?);
        match &self.export_bundled {
            Some(folder) => model.export(run, &self.out, folder),
            None => Ok(()),
        }
    }

    /// A built-in grid that starts from bundled models of the repository, with the folder of the
    /// unpacked models instead.
    fn bundled_grid(&self, name: &str) -> anyhow::Result<Grid> {
        let folder = format!("{}/", self.out.join(bundled::FOLDER).display());
        Ok(Grid::built_in_with(name, ALL, |set| set.replace(bundled::REPOSITORY, &folder))?)
    }

    /// Trains the configurations of a grid into `out`.
    fn train_grid(&self, grid: &Grid, out: &Path) -> anyhow::Result<GridReport> {
        let options = GridOptions {
            out: out.to_path_buf(),
            seeds: self.seeds,
            quiet: output::is_quiet(),
            reuse: self.reuse,
            stop: self.stop.clone(),
        };
        Ok(run_grid(grid, &options, &mut print_progress)?)
    }

    /// Whether the run still has to be trained. Adds a note if another build trained it.
    fn is_unfinished(&self, run: &Path, notes: &mut Vec<String>) -> anyhow::Result<bool> {
        if Program::differs_from_running(run, self.reuse)? {
            notes.push(format!("Trained by another build of the program: {}.", run.display()));
        }
        Ok(!is_finished(run))
    }

    fn run_options(&self, run: &Path) -> RunOptions {
        RunOptions {
            run: run.into(),
            resume: true,
            quiet: output::is_quiet(),
            stop: self.stop.clone(),
            ..RunOptions::default()
        }
    }

    /// The command that measures one claim. `options` are further options, each after a space.
    fn claim_command(&self, id: &str, options: &str) -> String {
        let (scale, seeds) = (self.scale_name(), self.seeds);
        format!("engram reproduce --claim {id} --scale {scale} --seeds {seeds}{options}")
    }

    fn note(&self, text: &str) {
        output::note(text);
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
