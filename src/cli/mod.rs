//! The command line: what was typed, and which part of the toolkit does it.

mod bench;
mod data;
mod eval;
mod explore;
mod grid;
mod interrupt;
mod memory;
pub mod output;
mod paths;
mod predict;
mod recipe;
mod reproduce;
mod shell;
mod train;
#[cfg(target_os = "linux")]
pub mod truncated;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// How a command ended, if it could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done: exit code 0.
    Done,
    /// Finished, but a check or a threshold failed: exit code 1.
    CheckFailed,
    /// Stopped by a signal: exit code 128 and its number.
    Stopped(u8),
}

/// Research toolkit for models that read from a memory or from a second sense.
///
/// Exit codes: 0 done; 1 finished, but a check or threshold failed; 2 could not run; 130, 143
/// training was stopped by Ctrl-C or SIGTERM, with a checkpoint.
#[derive(Debug, Parser)]
#[command(name = "engram", version, max_term_width = 100)]
#[command(after_help = "\
Start with `engram reproduce`: it needs no data, no weights, no network.

Examples:
  engram reproduce
  engram explore train/kept
  engram eval wer --ref ref.tsv --hyp hyp.tsv --normalizer whisper-en
  engram train patent --recipe train/recipes/patent/world.toml --run runs/p0
  engram grid --help                      # each command's help has more")]
pub struct Cli {
    /// Threads to use; all cores without it. Results do not depend on it.
    #[arg(long, global = true, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Reproduce(reproduce::Reproduce),
    Train(train::Train),
    Grid(grid::GridCommand),
    Predict(predict::Predict),
    /// List all keys of recipes, with types, defaults and what they are
    #[command(subcommand)]
    Recipe(recipe::RecipeCommand),
    /// Measure predictions
    #[command(subcommand)]
    Eval(eval::Eval),
    /// Build, search and edit a key/value memory
    #[command(subcommand)]
    Memory(memory::MemoryCommand),
    /// Time the toolkit beside the tools that people use otherwise
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Fetch published weights, write the embedded data, turn data sets into entries of a memory
    #[command(subcommand)]
    Data(data::Data),
    Explore(explore::Explore),
    Completions(shell::Completions),
    Man(shell::ManPages),
}

impl Cli {
    /// Whether the command measures predictions.
    pub fn is_evaluation(&self) -> bool {
        matches!(self.command, Command::Eval(_))
    }

    /// Whether the command serves the explorer's page.
    pub fn is_explorer(&self) -> bool {
        matches!(self.command, Command::Explore(_))
    }

    /// Whether memory goes to a few large things, for which large pages pay: tensors, or the files of `eval vqa`, of
    /// which little is made.
    pub fn has_large_parts(&self) -> bool {
        !self.is_evaluation() || matches!(self.command, Command::Eval(eval::Eval::Vqa(_)))
    }
}

/// Reads the command line. Ends the program for one that is wrong; an error says which path cannot be used.
pub fn parse() -> anyhow::Result<Cli> {
    let mut command = paths::with_standard_streams(Cli::command());
    let matches = command.get_matches_mut();
    let cli =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    paths::check(&command, &matches)?;
    Ok(cli)
}

/// Bytes of stack of the pool's threads: as much as `main` has.
const STACK_SIZE: usize = 8 << 20;

/// Runs a command.
pub fn run(cli: Cli) -> anyhow::Result<Outcome> {
    let pool = rayon::ThreadPoolBuilder::new().stack_size(STACK_SIZE);
    // Without a number it is `RAYON_NUM_THREADS`, or as many as there are cores.
    pool.num_threads(cli.threads.map_or(0, usize::from)).build_global()?;
    let trains =
        matches!(cli.command, Command::Train(_) | Command::Grid(_) | Command::Reproduce(_));
    // A thread of the pool shares its work at less cost than one that waits outside for each kernel: steps
    // are a tenth quicker. A pool of one would wait for itself where a refresh is joined.
    match trains && rayon::current_num_threads() > 1 {
        true => rayon::scope(|_| cli.command.run()),
        false => cli.command.run(),
    }
}

impl Command {
    fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Reproduce(command) => command.run(),
            Self::Train(command) => command.run(),
            Self::Grid(command) => command.run(),
            Self::Predict(command) => command.run(),
            Self::Recipe(command) => command.run(),
            Self::Eval(command) => command.run(),
            Self::Memory(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Data(command) => command.run(),
            Self::Explore(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
        }
    }
}
