//! Progress output: a bar with the remaining time on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use engram_data::messages::{has_receiver, message};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// Time between plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of a phase, or of another long task.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    prints_lines: bool,
    label: String,
    total_steps: u64,
    start_step: u64,
    started: Instant,
    last_line: Option<Instant>,
}

impl Progress {
    /// Starts at `steps_done` of `total` steps (or images, or clips) of the phase or task `label`.
    pub(crate) fn new(quiet: bool, label: &str, steps_done: u64, total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal() && !has_receiver();
        let bar = (terminal && !quiet).then(|| {
            let template = "{prefix} [{bar:30}] {pos}/{len} {msg} ({eta} left)";
            let style = ProgressStyle::with_template(template);
            let bar =
                ProgressBar::new(total).with_position(steps_done).with_prefix(label.to_string());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.reset_eta();
            bar
        });
        Self {
            bar,
            prints_lines: !terminal && !quiet,
            label: label.to_string(),
            total_steps: total,
            start_step: steps_done,
            started: Instant::now(),
            last_line: None,
        }
    }

    /// Moves the bar to `steps_done` steps.
    pub(crate) fn step(&self, steps_done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(steps_done);
        }
    }

    /// Shows the values of a log line.
    pub(crate) fn report(&mut self, steps_done: u64, loss: Option<f64>, examples_per_second: f64) {
        let loss = loss.map_or("none".to_string(), |loss| format!("{loss:.4}"));
        let text = format!("loss {loss}, {examples_per_second:.1} examples/s");
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None => self.plain_line(steps_done, &format!(", {text}")),
        }
    }

    /// Shows the number of completed steps, without further values.
    pub(crate) fn count(&mut self, steps_done: u64) {
        self.step(steps_done);
        // Short phases print no line.
        if self.started.elapsed() >= LINE_INTERVAL {
            self.plain_line(steps_done, "");
        }
    }

    /// Prints a line at intervals, if there is no terminal.
    fn plain_line(&mut self, steps_done: u64, text: &str) {
        let is_early = self.last_line.is_some_and(|at| at.elapsed() < LINE_INTERVAL);
        if !self.prints_lines || is_early {
            return;
        }
        self.last_line = Some(Instant::now());
        let steps = (steps_done - self.start_step).max(1) as f64;
        let steps_left = self.total_steps.saturating_sub(steps_done) as f64;
        let seconds_left = self.started.elapsed().as_secs_f64() / steps * steps_left;
        let time_left = HumanDuration(Duration::from_secs_f64(seconds_left));
        let (label, total) = (&self.label, self.total_steps);
        message(&format!("{label}: step {steps_done}/{total}{text}, {time_left} left"));
    }

    /// Prints a line that stays, such as an evaluation. Hidden if `quiet`.
    pub(crate) fn print_unless_quiet(&self, text: &str) {
        if self.bar.is_some() || self.prints_lines {
            self.print(text);
        }
    }

    /// Prints a line even if `quiet`.
    pub(crate) fn print(&self, text: &str) {
        let text = format!("{}: {text}", self.label);
        match &self.bar {
            Some(bar) => bar.suspend(|| message(&text)),
            None => message(&text),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
