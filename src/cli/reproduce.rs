//! `engram reproduce`: the studies on the embedded world, beside what the papers say.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use engram_data::patent::PhrasePair;
use engram_data::world::phrases::phrase_world;
use engram_eval::phrase::{GoldRow, PhraseOptions, Prediction, evaluate};
use engram_train::studies::patent::run::{predict, train_patent};
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

/// A figure with its interval.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    system: &'static str,
    metric: String,
    value: f64,
    low: Option<f64>,
    high: Option<f64>,
    n: usize,
}

impl Reproduce {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        self.claim_folder()?;
        let claims = self.patent()?;
        let report = serde_json::to_vec_pretty(&claims)?;
        output::write_whole(&self.out.join("report.json"), &report)?;
        if self.json {
            output::print_json(&claims)?;
        } else {
            output::print(&text(&claims))?;
            let (seconds, file) = (started.elapsed().as_secs(), self.out.join("report.json"));
            output::note(&format!("{seconds} s; report in {}", file.display()), self.quiet);
        }
        let all_hold = claims.iter().all(|claim| claim.holds);
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
                holds: grouped.value > surface.value && alone.value > surface.value,
                ours: vec![surface, alone.clone(), grouped.clone()],
            },
            Claim {
                study: "patent",
                claim: "seeing the other targets of an anchor helps",
                paper: "+0.02 to +0.025 for one model (real data)",
                holds: grouped.value > alone.value,
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
        let options = RunOptions {
            run: run.clone(),
            resume: false,
            quiet: self.quiet,
            stop_after_steps: None,
        };
        train_patent(&mut recipe, &options)?.context("the run was stopped")?;
        measure(system, test, &predict(&run, test, &|_| {})?)
    }
}

/// Pearson's r of scores against the pairs' gold, with its interval over anchors.
fn measure(system: &'static str, rows: &[PhrasePair], scores: &[f64]) -> anyhow::Result<Measured> {
    let gold: Vec<GoldRow> = rows
        .iter()
        .map(|row| GoldRow {
            id: row.id.clone(),
            anchor: row.anchor.clone(),
            target: row.target.clone(),
            context: row.context.clone(),
            score: f64::from(row.score.unwrap_or(f32::NAN)),
            rating: row.rating.clone(),
            line: None,
        })
        .collect();
    let prediction = |(row, score): (&PhrasePair, &f64)| Prediction {
        id: row.id.clone(),
        score: *score,
        line: None,
    };
    let predictions: Vec<Prediction> = rows.iter().zip(scores).map(prediction).collect();
    let report = evaluate(&gold, &predictions, &PhraseOptions::default())?;
    let pearson = report.evaluation.primary;
    let interval = pearson.interval.as_ref();
    Ok(Measured {
        system,
        metric: "pearson".into(),
        value: pearson.value,
        low: interval.map(|i| i.low),
        high: interval.map(|i| i.high),
        n: rows.len(),
    })
}

/// The claims as a table.
fn text(claims: &[Claim]) -> String {
    let mut lines = Vec::new();
    for claim in claims {
        lines.push(format!("{}: {}", claim.study, claim.claim));
        lines.push(format!("  paper  {}", claim.paper));
        for ours in &claim.ours {
            let interval = match (ours.low, ours.high) {
                (Some(low), Some(high)) => format!(" [{low:.3}, {high:.3}]"),
                _ => String::new(),
            };
            let (system, metric, value, n) = (ours.system, &ours.metric, ours.value, ours.n);
            lines.push(format!("  ours   {metric} {value:.3}{interval} n {n}  {system}"));
        }
        lines.push(format!("  holds  {}", if claim.holds { "yes" } else { "NO" }));
    }
    lines.join("\n")
}
