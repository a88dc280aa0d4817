//! `engram reproduce`: trains the studies on the embedded world and compares the results with the
//! papers' claims.
//!
//! | file | contents |
//! |---|---|
//! | `plan` | the grids whose claims are tested, by scale; a new claim is a row of one of these grids |
//! | `grids` | training these grids and testing their claims |
//! | `commands` | claims on the results of commands, mostly on real data (`commands.toml`) |
//! | `forget` | the run that answers from changed and deleted facts |
//! | `inputs` | checks of the options |

mod commands;
mod forget;
mod grids;
mod inputs;
mod plan;
mod stamps;

use std::time::Instant;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use engram_train::Stop;
use engram_train::grid::ClaimReport;
use engram_train::registry;
use engram_train::studies::ALL;

use super::claims::Report;
use super::interrupt::{Interrupt, shell_quoted};
use super::paths::{BaseFolder, InputFolder, ModelName, NewFolder};
use super::{Outcome, bundled, output, studies};
use forget::FORGET;
use stamps::STAMPS;

/// Claims that need only one run, which takes seconds.
const QUICK: [&str; 2] = ["patent.finetuned_over_zero_shot", "patent.decoys_learnt"];

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
  engram reproduce --study patent --data DATA                # with claims on real data
  engram reproduce --study forget --data DATA                # facts that change and are deleted")]
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
    /// Also test the claims of reveal/ablations (at its own size) and all of avformer/ablations
    #[arg(long)]
    ablations: bool,
    /// A Whisper model, used as AVFormer's frozen ASR model in addition to the Conformer (at scales
    /// laptop and full): hf://owner/name, or a folder
    #[arg(long, value_name = "WEIGHTS")]
    whisper: Option<ModelName>,
    /// Folder with real data, for more claims: patent/validation.csv, lmlm-audit/, speech/ (with
    /// --whisper), and coco-captions/ (at scales laptop and full)
    #[arg(long, env = "ENGRAM_DATA", value_name = "FOLDER")]
    data: Option<BaseFolder>,
    /// Folder with the unpacked packages of photographs, for the study `stamps`: see
    /// docs/how-to/pictures.md
    #[arg(long, env = "ENGRAM_STAMPS", value_name = "FOLDER")]
    stamps: Option<InputFolder>,
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
    /// The folder of the Conformer that AVFormer adapts.
    #[arg(skip)]
    conformer: String,
}

/// The claims that were tested, and notes for the report.
#[derive(Default)]
struct Results {
    claims: Vec<ClaimReport>,
    notes: Vec<String>,
}

impl Results {
    /// Whether a claim has a result.
    fn has(&self, id: &str) -> bool {
        self.claims.iter().any(|claim| claim.id == id)
    }
}

/// Parses the name of a study.
fn study_name() -> impl TypedValueParser<Value = String> {
    let of_papers = ["patent", "reveal", "avformer"].into_iter();
    let studies = of_papers.filter_map(|name| registry::find(ALL, name));
    let studies =
        studies.map(|study| PossibleValue::new(study.name).help(studies::about(study.name)));
    let stamps = PossibleValue::new(STAMPS).help("REVEAL on photographs; needs --stamps");
    let forget =
        PossibleValue::new(FORGET).help("REVEAL on facts that change; partly needs --data");
    PossibleValuesParser::new(studies.chain([stamps, forget]))
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

impl Scale {
    fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Laptop => "laptop",
            Self::Full => "full",
        }
    }
}

impl Reproduce {
    /// Runs the command.
    pub fn run(mut self) -> anyhow::Result<Outcome> {
        let interrupt = Interrupt::watch(None)?;
        self.stop = interrupt.stop();
        let _hold = self.stop.hold();
        interrupt.finish(self.measure())
    }

    /// Tests the requested claims; writes and prints the report, also if it was stopped.
    fn measure(mut self) -> anyhow::Result<Outcome> {
        let start = Instant::now();
        self.ablations |= self.scale == Scale::Full;
        self.conformer = self.out.join(bundled::FOLDER).join("conformer").display().to_string();
        if self.quick {
            self.claims = QUICK.map(str::to_owned).to_vec();
        }
        self.check_inputs()?;
        let _lock = self.lock_folder()?;
        let mut results = Results::default();
        let tested = self.test_commands(&mut results).and_then(|()| self.test_grids(&mut results));
        let stopped = match tested {
            Err(error) if !self.stop.is_requested() => return Err(error),
            Err(error) if results.claims.is_empty() => return Err(error),
            tested => tested.err(),
        };
        if stopped.is_some() {
            results.notes.push("Stopped before all claims were tested.".to_owned());
        } else if let Some(id) = self.claims.iter().find(|id| !results.has(id)) {
            anyhow::bail!("--claim {id}: could not be measured. {}", results.notes.join(" "));
        }
        // Claims on real data are tested first, and shown after the other claims of their study.
        let Results { mut claims, notes } = results;
        claims.sort_by_key(|claim| {
            let (study, id) = claim.id.split_once('.').unwrap_or_default();
            let order = ["patent", "reveal", "avformer", STAMPS, FORGET]
                .iter()
                .position(|name| *name == study);
            (order, id.starts_with("real_"))
        });
        let seconds = start.elapsed().as_secs();
        let report =
            Report::new("The papers' claims and our measurements", claims, notes, seconds)?
                .at_scale(self.scale.name());
        let name = if self.claims.is_empty() { "report" } else { "report-of-claims" };
        let file = self.out.join(format!("{name}.html"));
        let json = serde_json::to_vec_pretty(&report)?;
        output::replace_atomic(&self.out.join(format!("{name}.json")), &json)?;
        output::replace_atomic(&file, report.to_html().as_bytes())?;
        output::print_report(self.json, &report, || report.to_text())?;
        if let Some(stopped) = stopped {
            return Err(stopped);
        }
        let message = format!("{} s; report in {}", report.seconds(), file.display());
        output::note(&message);
        if self.quick {
            output::note("`engram reproduce` measures the other claims too, in minutes");
        }
        Ok(if report.is_as_expected() { Outcome::Done } else { Outcome::CheckFailed })
    }

    /// The command that measures one claim, with further options.
    fn claim_command(&self, id: &str, scale: Scale, options: &[(&str, &str)]) -> String {
        let (scale, seeds) = (scale.name(), self.seeds);
        let options =
            options.iter().map(|(name, value)| format!(" --{name} {}", shell_quoted(value)));
        let options: String = options.collect();
        format!("engram reproduce --claim {id} --scale {scale} --seeds {seeds}{options}")
    }
}
