//! Runs the command with a time limit and classifies its result.

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Memory limit in megabytes for any command on a small input.
pub const MAX_MEGABYTES: u64 = 2000;

/// The path of the command: `ENGRAM_BIN`, or the release build of this checkout.
pub fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("ENGRAM_BIN") {
        Some(path) => std::path::absolute(&path).unwrap_or(path.into()),
        None => checkout().join("target/release/engram"),
    })
}

/// The root of the repository that contains this package.
pub fn checkout() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).map(Into::into).unwrap_or(package)
}

/// Lowers the resource limits of this process, which all commands inherit: no core files, no file
/// above 4 GB.
pub fn lower_limits() {
    let limit = |max| libc::rlimit { rlim_cur: max, rlim_max: max };
    // SAFETY: both structures live until the calls return.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &limit(0));
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit(4 << 30));
    }
}

/// A command line of `engram` that has not started.
pub struct Engram {
    command: Command,
    limit: Duration,
}

/// A running command.
pub struct Running {
    child: Child,
    start: Instant,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

/// A command that ended, or was killed at its time limit.
#[derive(Debug)]
pub struct CommandResult {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub seconds: f64,
    /// Peak resident memory.
    pub megabytes: u64,
    /// Whether the command reached its time limit.
    pub timed_out: bool,
}

/// A failure that is never allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Panic,
    Hang,
}

impl Engram {
    /// `engram` with arguments: one thread, no network, a home folder without settings.
    pub fn new<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(path());
        command.args(arguments).stdin(Stdio::null());
        for name in ["HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "ENGRAM_DATA"] {
            command.env_remove(name);
        }
        command.envs([("HOME", "/nonexistent"), ("HF_HUB_OFFLINE", "1")]);
        command.envs([("RAYON_NUM_THREADS", "1"), ("RUST_BACKTRACE", "0")]);
        Self { command, limit: Duration::from_secs(60) }
    }

    /// `engram` with space-separated arguments; paths must not contain spaces.
    pub fn line(line: &str) -> Self {
        Self::new(line.split_whitespace())
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs the command in a folder.
    pub fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Sets the time limit; the default is 60 seconds.
    pub fn seconds(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    pub fn start(mut self) -> Result<Running> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().with_context(|| {
            format!("{} could not start; set ENGRAM_BIN to the command", path().display())
        })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = (spawn_reader(stdout), spawn_reader(stderr));
        Ok(Running { child, start: Instant::now(), stdout, stderr })
    }

    pub fn run(self) -> Result<CommandResult> {
        let limit = self.limit;
        Ok(self.start()?.wait(limit))
    }

    /// Runs a command of a set-up. An exit code other than 0 or 1 is an error; 1 is a failed check
    /// of a training run.
    pub fn must_run(self) -> Result<CommandResult> {
        let line = format!("{:?}", self.command);
        let ended = self.run()?;
        anyhow::ensure!(matches!(ended.code, Some(0 | 1)), "set-up failed: {line}: {ended}");
        Ok(ended)
    }
}

/// Reads an output of the command to its end, on a thread.
fn spawn_reader(output: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut output) = output {
            // Returns the bytes before an error.
            let _ = output.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    pub fn id(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its id is still its own.
        unsafe { libc::kill(self.id(), signal) };
    }

    /// Whether the process has not ended.
    pub fn is_running(&self) -> bool {
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: all zeros is a valid `siginfo_t`, and `info` outlives the call. `waitid` leaves
        // `si_pid` at 0 while the process runs.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, self.child.id(), &mut info, flags);
            info.si_pid() == 0
        }
    }

    /// Waits until the process ends. Kills it at the time limit.
    pub fn wait(self, limit: Duration) -> CommandResult {
        let (mut timed_out, wait_start) = (false, Instant::now());
        while self.is_running() {
            if wait_start.elapsed() > limit && !timed_out {
                timed_out = true;
                self.signal(libc::SIGKILL);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let mut status = 0;
        // SAFETY: all zeros is a valid `rusage`, and both pointers live until the call returns.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::wait4(self.id(), &mut status, 0, &mut usage);
            usage
        };
        CommandResult {
            code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
            signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
            seconds: self.start.elapsed().as_secs_f64(),
            stdout: self.stdout.join().unwrap_or_default(),
            stderr: self.stderr.join().unwrap_or_default(),
            megabytes: usage.ru_maxrss.unsigned_abs() / 1024,
            timed_out,
        }
    }
}

impl CommandResult {
    /// The fault: a panic, an abort, a bus error, a hang, or too much memory.
    pub fn fault(&self) -> Option<Fault> {
        let signals = [libc::SIGABRT, libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE];
        if self.timed_out || self.megabytes > MAX_MEGABYTES {
            return Some(Fault::Hang);
        }
        let is_crash = self.signal.is_some_and(|signal| signals.contains(&signal));
        let is_panic = self.code == Some(101) || self.stderr.contains("panicked at");
        (is_crash || is_panic).then_some(Fault::Panic)
    }

    /// The first lines of the error.
    pub fn error(&self) -> String {
        let lines: Vec<&str> = self.stderr.trim().lines().take(2).collect();
        lines.join(" / ").chars().take(300).collect()
    }
}

impl fmt::Display for CommandResult {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(formatter, "exit {code}")?,
            (None, Some(signal)) => write!(formatter, "signal {signal}")?,
            (None, None) => write!(formatter, "no exit code")?,
        }
        write!(formatter, ", {:.1} s, {} MB: {}", self.seconds, self.megabytes, self.error())
    }
}
