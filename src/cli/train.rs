//! `engram train`: trains a study by a recipe, or a model for text pairs of a CSV.

mod images;
mod ranks;
mod similarity;

use std::path::Path;

use anyhow::Context;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use engram_infer::finished_run::RECIPE;
use engram_train::recipe::reference::listing;
use engram_train::registry::{self, StudyDefinition};
use engram_train::studies::ALL;
use engram_train::{MemoryServers, Recipe, RecipeOptions, RunOptions, Stop, ValueStorages};
use serde_json::{Map, Value};

use self::images::OwnImages;
use self::ranks::RankSession;
use self::similarity::Similarity;
use super::interrupt::Interrupt;
use super::memory::location::{ServerOptions, memory_server};
use super::memory::value_storage;
use super::paths::{NewFolder, RecipeFile};
use super::{Outcome, output, studies};

/// The subcommand without a recipe file.
const SIMILARITY: &str = "similarity";

/// Train a model as a recipe describes, or on your own text pairs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram train similarity --csv pairs.csv --columns question,answer,rating --run runs/s
  engram train patent --recipe patent/world --run runs/p0
  engram train reveal --recipe reveal/laptop --run runs/r1 --resume
  engram train speech --help          # options, examples and the recipe keys of a study")]
pub struct Train {
    #[command(subcommand)]
    study: TrainStudy,
}

/// A study and the options of its training. Each study in [`ALL`] is a subcommand, beside
/// `similarity`.
#[derive(Debug)]
enum TrainStudy {
    Recipe { study: &'static StudyDefinition, options: TrainOptions, images: Option<OwnImages> },
    Similarity(Similarity),
}

#[derive(Debug, Args)]
struct TrainOptions {
    /// The recipe: a file (TOML), or a built-in name as in `engram recipe list`
    #[arg(long, value_name = "FILE", required = true)]
    recipe: Option<RecipeFile>,
    /// Output folder of the run
    #[arg(long, value_name = "FOLDER")]
    run: NewFolder,
    /// Change a value in the recipe, for example `optimiser.learning_rate=2e-5` (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The device that trains: `cpu`, `cuda` or `cuda:N` (sets `compute.device`)
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Continue a stopped run (Ctrl-C stops a run after a checkpoint). The result is byte-identical
    /// to a run without a stop
    #[arg(long)]
    resume: bool,
    /// Use the recipe's `[tiny]` sizes, which train in one to two minutes
    #[arg(long)]
    tiny: bool,
    #[command(flatten)]
    server: ServerOptions,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

impl Subcommand for TrainStudy {
    fn augment_subcommands(command: Command) -> Command {
        let subcommand = |study: &&'static StudyDefinition| {
            let command = TrainOptions::augment_args(Command::new(study.name));
            let command = images::augment(study.name, command);
            let about = studies::about(study.name);
            command.about(about).after_help(examples(study.name)).defer(with_recipe_keys)
        };
        let similarity = Similarity::augment_args(Command::new(SIMILARITY));
        command
            .subcommands(ALL.iter().map(subcommand))
            .subcommand(similarity)
            .subcommand_required(true)
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        name == SIMILARITY || registry::find(ALL, name).is_some()
    }
}

impl FromArgMatches for TrainStudy {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        if let Some((SIMILARITY, matches)) = matches.subcommand() {
            return Ok(Self::Similarity(Similarity::from_arg_matches(matches)?));
        }
        let selected = matches
            .subcommand()
            .and_then(|(name, matches)| Some((registry::find(ALL, name)?, matches)));
        let Some((study, matches)) = selected else {
            return Err(clap::Error::new(clap::error::ErrorKind::MissingSubcommand));
        };
        let images = images::are_possible(study.name).then(|| OwnImages::from_arg_matches(matches));
        let images = images.transpose()?;
        Ok(Self::Recipe { study, options: TrainOptions::from_arg_matches(matches)?, images })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Parses the names of `N` columns, separated by commas. `wanted` is the error for other texts.
fn column_names<const N: usize>(text: &str, wanted: &str) -> Result<[String; N], String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    <[String; N]>::try_from(names)
        .ok()
        .filter(|names| names.iter().all(|name| !name.is_empty()))
        .ok_or_else(|| wanted.to_owned())
}

fn examples(study: &str) -> String {
    let examples = studies::view(study).map_or(&[][..], |view| view.examples());
    let lines = examples.iter().map(|line| format!("\n  {line}"));
    format!("Examples:{}", lines.collect::<String>())
}

/// Adds the study's recipe keys to the long help. Clap only calls it for the subcommand in use.
fn with_recipe_keys(command: Command) -> Command {
    let Some(study) = registry::find(ALL, command.get_name()) else { return command };
    let keys = listing(&(study.recipe_schema)());
    let (name, examples) = (study.name, examples(study.name));
    command.after_long_help(format!(
        "{examples}\n\nRecipe keys of this study with their defaults, for --set and recipe \
         files.\n`engram recipe reference {name}` also lists the keys of all studies:\n{keys}"
    ))
}

impl Train {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let session = RankSession::start(self.study.run_folder())?;
        let result = self.train(&session);
        session.finish(result)
    }

    fn train(self, session: &RankSession) -> anyhow::Result<Outcome> {
        let interrupt = Interrupt::watch_on(&session.ranks(), session.resume())?;
        interrupt.finish(self.study.train(interrupt.stop(), session))
    }
}

impl TrainStudy {
    fn run_folder(&self) -> &Path {
        match self {
            Self::Recipe { options, .. } => &options.run,
            Self::Similarity(similarity) => &similarity.run,
        }
    }

    fn train(self, stop: Stop, session: &RankSession) -> anyhow::Result<Outcome> {
        let (study, options, images) = match self {
            Self::Recipe { study, options, images } => (study, options, images),
            Self::Similarity(similarity) => return similarity.train(stop, session),
        };
        let device = options.device.map(|device| format!("compute.device={device:?}"));
        let set = options.set.into_iter().chain(device).collect();
        let recipe_options = RecipeOptions { tiny: options.tiny, set };
        let of_images = images.map_or(Ok(None), |images| images.recipe(&recipe_options))?;
        let has_images = of_images.is_some();
        let mut recipe = match of_images {
            Some(recipe) => recipe,
            None => Recipe::load(&options.recipe.context("--recipe is missing")?, &recipe_options)?,
        };
        if options.resume && !options.run.join(RECIPE).is_file() {
            let run = options.run.display();
            output::warn(&format!("{run}: no run to continue; starting a new run"));
        }
        let server = options.server;
        let run_options = RunOptions {
            run: session.run_folder(&options.run),
            resume: options.resume,
            quiet: output::is_quiet(),
            stop,
            ranks: session.ranks(),
            value_storages: ValueStorages::new(|address| Ok(value_storage(address, false, false)?)),
            memory_servers: MemoryServers::new(move |urls| Ok(memory_server(urls, server)?)),
            ..RunOptions::default()
        };
        let report = (study.train)(&mut recipe, &run_options).map_err(|error| {
            let error = anyhow::Error::from(error);
            let text = output::with_causes(&error);
            // Without a recipe file, there is no file to set the key in.
            if has_images && text.contains("`data.on_bad_image`") {
                return anyhow::anyhow!("{text}: --set data.on_bad_image=skip");
            }
            error
        })?;
        let view = studies::view(study.name);
        for plot in view.map_or(Ok(Vec::new()), |view| view.plots(&report.summary))? {
            plot.write(&options.run)?;
        }
        match view.filter(|_| !options.json) {
            Some(view) => output::print(&view.text(&report.summary)?)?,
            None => output::print_json(&with_threads(report.summary))?,
        }
        let passed = report.check_failures.is_empty();
        Ok(if passed { Outcome::Done } else { Outcome::CheckFailed })
    }
}

/// The summary with the number of threads, which does not change the results.
fn with_threads(summary: Value) -> Map<String, Value> {
    let mut report = Map::new();
    report.insert("threads".to_owned(), rayon::current_num_threads().into());
    if let Value::Object(keys) = summary {
        report.extend(keys);
    }
    report
}
