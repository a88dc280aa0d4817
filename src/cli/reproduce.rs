//! `engram reproduce`: the studies on the embedded world, beside what the papers say.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use engram_data::patent::PhrasePair;
use engram_data::world::phrases::phrase_world;
use engram_eval::result::Measure;
use engram_train::studies::patent::figure::{figure, in_words};
use engram_train::studies::patent::predict::predict;
use engram_train::studies::patent::run::train_patent;
use engram_train::studies::patent::zero_shot::word_overlap;
use engram_train::{Recipe, RecipeOptions, RunOptions};
use serde::Serialize;

use super::{Outcome, output};

/// The recipe that is run, as it stands in the repository.
const RECIPE: &str = include_str!("../../train/recipes/patent/world.toml");

/// The seed of the embedded set (also in the recipe, as `data.fold_seed`).
const WORLD_SEED: u64 = 1;

/// Run the studies on the embedded world and set the papers' figures beside ours.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no data, no weights and no network; a minute on 2 cores. The embedded world is small: it
shows mechanisms and directions, not the papers' absolute figures.")]
pub struct Reproduce {
    /// The folder for runs and the report
    #[arg(long, default_value = "runs/reproduce", value_name = "FOLDER")]
    out: PathBuf,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// One claim of a paper, and what was measured here.
#[derive(Debug, Serialize)]
struct Claim {
    study: &'static str,
    claim: &'static str,
    paper: &'static str,
    ours: Vec<Measured>,
    holds: bool,
}

/// The figure of one system.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    system: &'static str,
    #[serde(flatten)]
    figure: Measure,
}

/// The report as JSON.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    seconds: u64,
    threads: usize,
    claims: Vec<Claim>,
}

impl Reproduce {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        self.claim_folder()?;
        let claims = self.patent()?;
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            seconds: started.elapsed().as_secs(),
            threads: rayon::current_num_threads(),
            claims,
        };
        let file = self.out.join("report.json");
        output::write_whole(&file, &serde_json::to_vec_pretty(&report)?)?;
        if self.json {
            output::print_json(&report)?;
        } else {
            output::print(&text(&report.claims))?;
            let done = format!("{} s; report in {}", report.seconds, file.display());
            output::note(&done, self.quiet);
        }
        let all_hold = report.claims.iter().all(|claim| claim.holds);
        Ok(if all_hold { Outcome::Done } else { Outcome::CheckFailed })
    }

    /// Makes the folder ours: what is cleared below must not be anybody else's.
    fn claim_folder(&self) -> anyhow::Result<()> {
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
        output::write_whole(&marker, b"")
    }

    /// The patent study: from random weights on the embedded phrase set, with and without the
    /// other targets of an anchor in the input.
    fn patent(&self) -> anyhow::Result<Vec<Claim>> {
        let test = phrase_world(WORLD_SEED).test;
        let surface = measure("shared words (Jaccard)", &test, &word_overlap(&test))?;
        let grouped = self.trained("listwise, all targets of the anchor", "patent", &[], &test)?;
        let alone = ["model.layout=\"pairs\"", "model.pooling=\"mean\""];
        let alone = self.trained("one pair at a time", "patent-pairs", &alone, &test)?;
        Ok(vec![
            Claim {
                study: "patent",
                claim: "a trained encoder knows more than the words' spelling",
                paper: "word2vec 0.44, Sentence-BERT 0.60, fine-tuned 0.87 (Pearson, real data)",
                holds: grouped.figure.value > surface.figure.value
                    && alone.figure.value > surface.figure.value,
                ours: vec![surface, alone.clone(), grouped.clone()],
            },
            Claim {
                study: "patent",
                claim: "seeing the other targets of an anchor helps",
                paper: "+0.02 to +0.025 for one model (real data)",
                holds: grouped.figure.value > alone.figure.value,
                ours: vec![alone, grouped],
            },
        ])
    }

    /// Trains the recipe with changes and measures it on the test pairs.
    fn trained(
        &self,
        system: &'static str,
        folder: &str,
        set: &[&str],
        test: &[PhrasePair],
    ) -> anyhow::Result<Measured> {
        let set = set.iter().map(|s| s.to_string()).collect();
        let options = RecipeOptions { tiny: false, set };
        let mut recipe = Recipe::parse(RECIPE, "world.toml".as_ref(), &options)?;
        let run = self.out.join(folder);
        if run.exists() {
            std::fs::remove_dir_all(&run)
                .with_context(|| format!("{}: could not be cleared", run.display()))?;
        }
        let options = RunOptions { run: run.clone(), quiet: self.quiet, ..RunOptions::default() };
        train_patent(&mut recipe, &options)?.context("the run was stopped")?;
        measure(system, test, &predict(&run, test, &|_| {})?)
    }
}

/// Pearson's r of scores with its interval over anchors.
fn measure(system: &'static str, rows: &[PhrasePair], scores: &[f64]) -> anyhow::Result<Measured> {
    Ok(Measured { system, figure: figure(rows, scores)? })
}

/// The claims as a table.
fn text(claims: &[Claim]) -> String {
    let mut lines = Vec::new();
    for claim in claims {
        lines.push(format!("{}: {}", claim.study, claim.claim));
        lines.push(format!("  paper  {}", claim.paper));
        for ours in &claim.ours {
            let (system, figure) = (ours.system, &ours.figure);
            let (metric, value, n) = (&figure.metric, in_words(figure), figure.n);
            lines.push(format!("  ours   {metric} {value} n {n}  {system}"));
        }
        lines.push(format!("  holds  {}", if claim.holds { "yes" } else { "NO" }));
    }
    lines.join("\n")
}
