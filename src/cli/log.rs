//! Log lines on standard error: notes, warnings and errors, as text or as JSON.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::{Args, ValueEnum};
use engram_data::messages::{cleaned, cleaned_line, message, send_messages_to};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber, debug, error, info, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};

use super::output::{Stdout, named};

/// The heading in the help of options that every command has.
pub const GLOBAL_HEADING: &str = "Global options";
/// The `tracing` target of reports, which `--quiet` does not hide.
const REPORT: &str = "engram::report";

static IS_QUIET: AtomicBool = AtomicBool::new(false);
static IS_JSON: AtomicBool = AtomicBool::new(false);
/// Whether only errors are shown.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Options for the lines on standard error.
#[derive(Debug, Clone, Copy, Args)]
pub struct LogOptions {
    /// Also print the paths that the command uses, and the seconds of each stage
    #[arg(short, long, global = true, help_heading = GLOBAL_HEADING)]
    verbose: bool,
    /// Hide progress and notes; warnings and errors remain
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = GLOBAL_HEADING)]
    quiet: bool,
    /// Format of the lines on standard error
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text",
        help_heading = GLOBAL_HEADING)]
    log_format: LogFormat,
}

/// The format of the lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Plain lines and progress bars
    Text,
    /// One JSON object per line, without progress bars
    Json,
}

impl LogOptions {
    /// Starts the log of the command.
    pub fn start(self) {
        let level = match (self.verbose, self.quiet) {
            (true, _) => LevelFilter::DEBUG,
            (false, false) => LevelFilter::INFO,
            (false, true) => LevelFilter::WARN,
        };
        let is_json = self.log_format == LogFormat::Json;
        IS_QUIET.store(self.quiet, Ordering::Relaxed);
        start(level, is_json);
    }
}

fn start(level: LevelFilter, is_json: bool) {
    // Other crates' events are not for the user.
    let is_shown = filter_fn(move |event| {
        let target = event.target();
        if IS_SILENT.load(Ordering::Relaxed) && *event.level() > LevelFilter::ERROR {
            return false;
        }
        target == REPORT || (target.starts_with("engram") && *event.level() <= level)
    });
    // A closed standard error must not end the command.
    let lines = layer().with_writer(|| CleanedStderr).with_ansi(false).log_internal_errors(false);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = if is_json {
        lines.json().flatten_event(true).with_target(false).boxed()
    } else {
        lines.event_format(PlainLines).boxed()
    };
    let _ = tracing::subscriber::set_global_default(
        Registry::default().with(lines.with_filter(is_shown)),
    );
    IS_JSON.store(is_json, Ordering::Relaxed);
    if is_json || is_quiet() {
        send_messages_to(log_message);
    }
}

/// Logs a message of the libraries, so that `--quiet` hides notes and nothing else.
fn log_message(text: &str) {
    if text.starts_with("warning: ") || is_quiet() && !text.starts_with("note: ") {
        warn!("{text}");
    } else {
        info!("{text}");
    }
}

/// Prints panics without passwords and control characters.
pub fn clean_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        let trace = match trace.status() {
            BacktraceStatus::Captured => trace.to_string(),
            _ => "run with RUST_BACKTRACE=1 to see the calls".to_owned(),
        };
        let _ = CleanedStderr.write_all(format!("{panic}\n{trace}\n").as_bytes());
    }));
}

/// Standard error, without passwords and control characters. Each write has whole lines.
struct CleanedStderr;

impl io::Write for CleanedStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = cleaned(&String::from_utf8_lossy(bytes));
        io::stderr().write_all(text.as_bytes()).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The format of `--log-format text`: the message, then the fields.
struct PlainLines;

impl<S, N> FormatEvent<S, N> for PlainLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if *event.metadata().level() == Level::ERROR {
            writer.write_str("error: ")?;
        }
        let mut line = String::new();
        context.field_format().format_fields(Writer::new(&mut line), event)?;
        // Only a report has several lines. A path with a line break would print a false message.
        match event.metadata().target() == REPORT {
            true => writeln!(writer, "{line}"),
            false => writeln!(writer, "{}", cleaned_line(&line)),
        }
    }
}

/// Hides everything except errors from now on.
pub fn silence() {
    IS_SILENT.store(true, Ordering::Relaxed);
    IS_QUIET.store(true, Ordering::Relaxed);
    send_messages_to(|_| {});
}

/// Whether `--quiet` is given.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Whether standard error has JSON lines.
pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Logs a report to standard error, also with `--quiet`.
pub fn report(text: &str) {
    info!(target: REPORT, "{text}");
}

/// Runs a stage of a command and logs its seconds for `--verbose`.
pub fn stage<T>(name: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    debug!(seconds = start.elapsed().as_secs_f64(), "{name}");
    result
}

/// A wrong command line as an error: the first line of its message.
pub fn one_line(error: clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    anyhow::Error::msg(line.trim_start_matches("error: ").to_owned())
}

/// Prints the message of a wrong command line, or a help, and ends the program. The options are not
/// parsed, so this looks for `--log-format json` itself.
pub fn usage_error(error: &clap::Error, arguments: &[OsString]) -> ! {
    if !error.use_stderr() {
        let print = || {
            let mut stdout = Stdout::lock()?;
            error.print().map_err(named)?;
            stdout.flush()
        };
        let code = match print() {
            Ok(()) => 0,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Err(error) => {
                message(&format!("error: {error}"));
                2
            }
        };
        std::process::exit(code);
    }
    let is_json = arguments.iter().any(|argument| argument == "--log-format=json")
        || arguments.windows(2).any(|pair| pair[0] == "--log-format" && pair[1] == "json");
    let mut text = error.to_string();
    let values = arguments.iter().filter_map(|argument| argument.to_str());
    let values = values.flat_map(|value| [value, value.split_once('=').unwrap_or_default().1]);
    for value in values.filter(|value| value.contains('\n')) {
        text = text.replace(value, &cleaned_line(value));
    }
    if is_json {
        start(LevelFilter::INFO, true);
        error!("{}", text.trim_start_matches("error: ").trim_end());
    } else if cleaned(&text) == error.to_string() {
        // With colours.
        error.exit();
    } else {
        let _ = CleanedStderr.write_all(text.as_bytes());
    }
    std::process::exit(error.exit_code())
}
