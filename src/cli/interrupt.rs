//! Ctrl-C and SIGTERM during training. The first signal stops the run after a checkpoint; the
//! second stops it at once.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use engram_train::distributed::Ranks;
use engram_train::{Stop, TrainError};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Invocation, Outcome, output};

/// Linux's number of this signal, which Windows does not have.
const SIGHUP: i32 = 1;
/// SIGUSR1. `mpirun` passes it on to all ranks and lets them end by themselves. After SIGINT and
/// SIGTERM it soon kills them, and drops their last messages.
const FORWARDED: i32 = if cfg!(target_os = "linux") { 10 } else { 30 };
/// Time that a run has to end by itself after it has saved its steps.
const GRACE_PERIOD: Duration = Duration::from_secs(2);
/// Interval between checks whether a signal came, and whether the run has saved its steps.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Signal handling for a command that trains.
pub(super) struct Interrupt {
    stop: Stop,
    /// The exit code for the first signal; 0 before it.
    code: Arc<AtomicUsize>,
    resume: Resume,
    /// Makes sure that only one of the command and the watching thread prints how to continue.
    message: Arc<Once>,
}

/// How to continue a stopped command.
#[derive(Clone)]
pub(super) struct Resume {
    /// The run folder; `None` for a command that trains several runs.
    run: Option<PathBuf>,
    /// The command line that continues.
    command: String,
}

impl Interrupt {
    /// Starts to watch for signals. `run` is the run folder of a command that `--resume` continues.
    /// `None` stands for a command that continues when it is repeated unchanged.
    pub(super) fn watch(run: Option<PathBuf>) -> anyhow::Result<Self> {
        Self::watch_on(&Ranks::default(), Resume::new(run))
    }

    /// Starts to watch for signals on a rank of a command. Launchers send signals to all ranks, and
    /// rank 0 decides: the other ranks ignore the first signal.
    pub(super) fn watch_on(ranks: &Ranks, resume: Resume) -> anyhow::Result<Self> {
        let message = Arc::new(Once::new());
        let interrupt = Self { stop: Stop::default(), code: Arc::default(), resume, message };
        let mut signals = watched_signals();
        let has_ranks = ranks.size() > 1;
        if has_ranks {
            signals.push(FORWARDED);
        }
        let has_signal = Arc::new(AtomicBool::new(false));
        for signal in &signals {
            let reason = "cannot register a signal handler";
            // The shutdown is registered before the flag, so that the first signal finds the flag
            // unset.
            let (code, flag) = (exit_code(*signal), Arc::clone(&has_signal));
            signal_hook::flag::register_conditional_shutdown(*signal, code.into(), flag)
                .context(reason)?;
            signal_hook::flag::register(*signal, Arc::clone(&has_signal)).context(reason)?;
            signal_hook::flag::register_usize(*signal, Arc::clone(&interrupt.code), code.into())
                .context(reason)?;
        }
        if ranks.rank() > 0 {
            return Ok(interrupt);
        }
        let (stop, resume) = (interrupt.stop.clone(), interrupt.resume.clone());
        let (code, message) = (Arc::clone(&interrupt.code), Arc::clone(&interrupt.message));
        thread::spawn(move || {
            while code.load(Ordering::SeqCst) == 0 {
                thread::sleep(POLL_INTERVAL);
            }
            if stop.request() {
                let end = if stop.has_unsaved() { "step with a checkpoint" } else { "work" };
                output::warn(&format!("stopping after this {end}; a second signal stops at once"));
                if has_ranks {
                    // If the launcher ends the run at once, this is the last line that the user
                    // sees.
                    output::warn(&format!(
                        "if the launcher ends the run before the checkpoint is written, continue \
                         with:\n  {}",
                        resume.command
                    ));
                }
                while stop.must_wait() {
                    thread::sleep(POLL_INTERVAL);
                }
                thread::sleep(GRACE_PERIOD);
            }
            // All steps and reports are saved, so exiting here loses nothing.
            message.call_once(|| output::warn(&resume.message()));
            std::process::exit(i32::from(stored_code(&code)));
        });
        Ok(interrupt)
    }

    /// The handle that asks runs to stop.
    pub(super) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Converts a [`TrainError::Stopped`] to [`Outcome::Stopped`] and prints how to continue.
    pub(super) fn finish(&self, result: anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
        let Err(error) = &result else { return result };
        let is_stopped = |cause: &(dyn std::error::Error + 'static)| {
            matches!(cause.downcast_ref(), Some(TrainError::Stopped { .. }))
        };
        if let Some(TrainError::RunExists { .. }) = error.downcast_ref() {
            return Err(anyhow::anyhow!("{error:#}; --resume continues that run"));
        }
        if !error.chain().any(is_stopped) {
            return result;
        }
        self.message.call_once(|| output::warn(&self.resume.message()));
        Ok(Outcome::Stopped(stored_code(&self.code)))
    }
}

impl Resume {
    /// The command line of this program continues the run in the folder `run`; `None` as for
    /// [`Interrupt::watch`].
    pub(super) fn new(run: Option<PathBuf>) -> Self {
        let command = command_line(run.is_some());
        Self { run, command }
    }

    /// The same command on a number of ranks.
    pub(super) fn on_ranks(mut self, size: usize) -> Self {
        if size > 1 {
            self.command = format!("mpirun -n {size} {}", self.command);
        }
        self
    }

    /// The message at the end of a stopped command.
    pub(super) fn message(&self) -> String {
        let Self { run, command } = self;
        let Some(run) = run else {
            return format!("stopped; finished runs are kept. Continue with:\n  {command}");
        };
        let has_checkpoint = |folder: PathBuf| folder.join("checkpoints/LATEST").is_file();
        let members = fs::read_dir(run).into_iter().flatten().flatten();
        if has_checkpoint(run.clone())
            || members.into_iter().any(|member| has_checkpoint(member.path()))
        {
            format!(
                "stopped; the newest checkpoint is in {}. Continue with:\n  {command}",
                run.display()
            )
        } else {
            format!(
                "stopped before the first checkpoint: no step is saved. Start again with:\n  {command}"
            )
        }
    }
}

/// The exit code that shells report for a process ended by a signal.
fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The exit code that a signal handler has stored.
fn stored_code(code: &AtomicUsize) -> u8 {
    u8::try_from(code.load(Ordering::SeqCst)).unwrap_or(u8::MAX)
}

/// The signals that end a command, except the signals that the caller ignores (as with `nohup`).
fn watched_signals() -> Vec<i32> {
    let status = engram_durable::read_text("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    match ignored {
        Some(mask) => {
            let is_watched = |signal: &i32| mask >> (signal - 1) & 1 == 0;
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(is_watched).collect()
        }
        // Other systems do not report ignored signals.
        None => vec![SIGINT, SIGTERM],
    }
}

/// The current command line, quoted for a shell; adds `--resume` if the command has that option.
fn command_line(has_resume_option: bool) -> String {
    let words = Invocation::of_process().words.iter();
    let mut words: Vec<String> = words.map(|word| shell_quoted(&word.to_string_lossy())).collect();
    if has_resume_option && !words.iter().any(|word| word == "--resume") {
        words.push("--resume".to_owned());
    }
    words.join(" ")
}

pub(super) fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
