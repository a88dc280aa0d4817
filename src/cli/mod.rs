//! The command line: parses the arguments and calls the matching part of the toolkit.

mod answer;
mod bench;
mod bundled;
mod claims;
mod compute;
mod data;
mod encode;
mod environment;
mod eval;
mod explore;
mod grid;
mod interrupt;
mod invocation;
pub mod log;
mod memory;
mod models;
mod offered;
pub mod output;
mod paths;
mod recipe;
mod remedy;
mod reproduce;
mod score;
mod shell;
mod studies;
mod train;
mod transcribe;
#[cfg(target_os = "linux")]
pub mod truncated;

use std::ffi::OsString;
use std::sync::atomic::Ordering;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
pub use invocation::Invocation;

/// The result of a command that ran without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done: exit code 0.
    Done,
    /// Finished, but a check or a threshold failed: exit code 1.
    CheckFailed,
    /// Stopped by a signal: exit code 128 + the signal's number.
    Stopped(u8),
}

/// A toolkit for retrieval-augmented and audio-visual models.
///
/// Exit codes: 0 done; 1 finished, but a check or threshold failed; 2 could not run; 130 or 143
/// training was stopped by Ctrl-C or SIGTERM, after a checkpoint was written.
#[derive(Debug, Parser)]
#[command(name = "engram", version, max_term_width = 100)]
#[command(after_help = "\
Start with `engram reproduce --quick`. It needs no data, no weights and no network.

Examples:
  engram reproduce --quick                # a first claim in seconds
  engram reproduce
  engram data bundled --out bundled       # small trained models, for `engram explore bundled`
  engram eval wer --ref ref.tsv --hyp hyp.tsv --normalizer whisper-en
  engram train patent --recipe patent/world --run runs/p0
  engram grid --help                      # every command has examples in its help")]
pub struct Cli {
    /// Number of threads; default: all cores. Results do not depend on it
    #[arg(long, global = true, value_name = "N", help_heading = log::GLOBAL_HEADING,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    log: log::LogOptions,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Reproduce(reproduce::Reproduce),
    Train(train::Train),
    Grid(grid::GridCommand),
    Transcribe(transcribe::Transcribe),
    Answer(answer::Answer),
    Score(score::Score),
    Encode(encode::Encode),
    /// Show built-in recipes, and list all recipe keys
    #[command(subcommand)]
    Recipe(recipe::RecipeCommand),
    /// Evaluate predictions: WER, chrF, captions, VQA, retrieval, phrase similarity
    #[command(subcommand)]
    Eval(eval::Eval),
    /// Build, search and edit a key/value memory
    #[command(subcommand)]
    Memory(memory::MemoryCommand),
    /// Measure the speed of a memory on your machine, also against other tools
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Download weights, write the embedded data sets, convert data sets to memory entries
    #[command(subcommand)]
    Data(data::Data),
    Explore(explore::Explore),
    Models(models::Models),
    Completions(shell::Completions),
    Man(shell::ManPages),
}

impl Cli {
    /// Whether the command is `engram eval`.
    pub fn is_evaluation(&self) -> bool {
        matches!(self.command, Command::Eval(_))
    }

    /// Whether the command is `engram explore`.
    pub fn is_explorer(&self) -> bool {
        matches!(self.command, Command::Explore(_))
    }

    /// Whether a few large allocations take most of the command's memory: tensors, or the input
    /// files of `eval vqa`. Huge pages make such commands faster.
    pub fn has_large_allocations(&self) -> bool {
        !self.is_evaluation() || matches!(self.command, Command::Eval(eval::Eval::Vqa(_)))
    }
}

/// Runs the command, and returns its exit code. `prepare` is called before the command starts.
pub fn main(invocation: Invocation, prepare: impl FnOnce(&Cli)) -> u8 {
    let words = invocation.words.clone();
    invocation.remember();
    let outcome = parse(words).and_then(|cli| {
        prepare(&cli);
        run(cli)
    });
    match outcome {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::CheckFailed) => 1,
        Ok(Outcome::Stopped(code)) => code,
        Err(_) if output::READER_IS_GONE.load(Ordering::Relaxed) => 0,
        Err(error) => {
            tracing::error!("{}", remedy::with_remedy(&error));
            2
        }
    }
}

/// `engram eval` as a function: an evaluation without a command around it.
#[derive(Debug, Parser)]
#[command(name = "engram eval", no_binary_name = true)]
struct Evaluation {
    #[command(subcommand)]
    eval: eval::Eval,
}

/// Runs `engram eval` with these words, and returns what it prints.
///
/// # Errors
/// A wrong option, and the errors of the command.
pub fn evaluate(words: &[OsString]) -> anyhow::Result<String> {
    let evaluation = Evaluation::try_parse_from(words).map_err(log::one_line)?;
    output::captured(|| evaluation.eval.run())
}

/// Parses the command line. Exits with a usage message if it is invalid. Returns an error if a path
/// cannot be used.
fn parse(words: Vec<OsString>) -> anyhow::Result<Cli> {
    let mut command = data::with_sample_listing(command());
    let matches = command.try_get_matches_from_mut(&words);
    let matches = matches.unwrap_or_else(|error| log::usage_error(&error, &words));
    let cli = Cli::from_arg_matches(&matches)
        .unwrap_or_else(|error| log::usage_error(&error.format(&mut command), &words));
    cli.log.start();
    paths::check(&command, &matches)?;
    Ok(cli)
}

/// The command line, with the parsers and hints for paths.
fn command() -> clap::Command {
    paths::with_paths(Cli::command())
}

/// Stack size in bytes of each thread in the pool, the same as for `main`.
const STACK_SIZE: usize = 8 << 20;

/// Runs a command.
fn run(cli: Cli) -> anyhow::Result<Outcome> {
    let pool = rayon::ThreadPoolBuilder::new().stack_size(STACK_SIZE);
    // For 0 threads, rayon uses `RAYON_NUM_THREADS`, or else the number of cores.
    pool.num_threads(cli.threads.map_or(0, usize::from)).build_global()?;
    let is_training =
        matches!(cli.command, Command::Train(_) | Command::Grid(_) | Command::Reproduce(_));
    // On a thread of the pool, training steps are a tenth faster: other threads hand each kernel to
    // the pool and wait. With one thread in the pool, joining a refresh would deadlock.
    log::stage("done", || {
        if is_training && rayon::current_num_threads() > 1 {
            rayon::scope(|_| cli.command.run())
        } else {
            cli.command.run()
        }
    })
}

impl Command {
    fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Reproduce(command) => command.run(),
            Self::Train(command) => command.run(),
            Self::Grid(command) => command.run(),
            Self::Transcribe(command) => command.run(),
            Self::Answer(command) => command.run(),
            Self::Score(command) => command.run(),
            Self::Encode(command) => command.run(),
            Self::Recipe(command) => command.run(),
            Self::Eval(command) => command.run(),
            Self::Memory(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Data(command) => command.run(),
            Self::Explore(command) => command.run(),
            Self::Models(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
        }
    }
}
