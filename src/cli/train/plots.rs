//! The plots that are written to the folders of finished runs.

use std::path::Path;

use engram::plot::{Axis, Interval, Legend, Line, draw_lines};
use engram_train::registry::LinePlot;

use super::super::output;

/// Draws a plot and writes it to its file in the run folder.
pub(super) fn write(plot: &LinePlot, run: &Path) -> anyhow::Result<()> {
    let lines = plot.lines.iter().map(|(name, points)| {
        let mut line = Line::new(*name, Vec::new());
        for (x, measure) in points {
            line.points.push((*x, measure.value));
            line.intervals.push(Interval::from_measure("", measure).bounds);
        }
        line
    });
    let lines: Vec<Line> = lines.collect();
    let svg = draw_lines(plot.axes.map(Axis::linear), &lines, Legend::UpperRight)?;
    output::replace_atomic(&run.join(&plot.file), svg.as_bytes())
}
