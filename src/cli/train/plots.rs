//! The plots that are written to the folders of finished runs.

use std::path::Path;

use engram::plot::{Axis, Interval, Legend, Line, draw_lines};
use engram_eval::result::Measure;
use engram_train::studies::avformer::evaluate::{AtRatio, TEST};
use engram_train::studies::avformer::run::AvformerSummary;

use super::super::output;

/// The file name of the plot of WER against signal-to-noise ratio, in the test folder.
const SWEEP: &str = "sweep.svg";

/// Draws the WER of an adapted ASR model against the signal-to-noise ratio, if the run measured at
/// least two ratios.
pub(super) fn avformer(summary: &AvformerSummary, run: &Path) -> anyhow::Result<()> {
    let sweep = &summary.test.sweep;
    if sweep.iter().filter(|one| one.snr_db.is_some()).count() < 2 {
        return Ok(());
    }
    let lines = [
        line("without frames", sweep, |one| &one.no_frames),
        line("right frames", sweep, |one| &one.right_frames),
        line("wrong frames", sweep, |one| &one.wrong_frames),
    ];
    let axes = ["SNR, dB", "WER"].map(Axis::linear);
    let svg = draw_lines(axes, &lines, Legend::UpperRight)?;
    output::write_atomic(&run.join(TEST).join(SWEEP), svg.as_bytes())
}

/// One system at all signal-to-noise ratios; clean speech is skipped.
fn line(name: &str, sweep: &[AtRatio], of: fn(&AtRatio) -> &Measure) -> Line {
    let mut line = Line::new(name, Vec::new());
    let mut noisy: Vec<(f64, &Measure)> =
        sweep.iter().filter_map(|one| Some((f64::from(one.snr_db?), of(one)))).collect();
    noisy.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (ratio, wer) in noisy {
        line.points.push((ratio, wer.value));
        line.intervals.push(Interval::from_measure("", wer).bounds);
    }
    line
}
