//! Line plots in the folders of finished runs.

use std::path::{Path, PathBuf};

use crate::plot::{Axis, Interval, Legend, Line, draw_lines};
use engram_eval::result::Measure;

use super::super::output;

/// A line plot of measures, with their intervals.
#[derive(Debug, Clone)]
pub(in super::super) struct LinePlot {
    /// The file of the plot, relative to the run folder.
    pub(super) file: PathBuf,
    /// The titles of the horizontal and the vertical axis.
    pub(super) axes: [&'static str; 2],
    /// The lines: names, and points in ascending order of the horizontal value. Each point is the
    /// horizontal value and the measure.
    pub(super) lines: Vec<(&'static str, Vec<(f64, Measure)>)>,
}

impl LinePlot {
    /// Draws the plot and writes it to its file in the run folder.
    pub(in super::super) fn write(&self, run: &Path) -> anyhow::Result<()> {
        let lines = self.lines.iter().map(|(name, points)| {
            let mut line = Line::new(*name, Vec::new());
            for (x, measure) in points {
                line.points.push((*x, measure.value));
                line.intervals.push(Interval::from_measure("", measure).bounds);
            }
            line
        });
        let lines: Vec<Line> = lines.collect();
        let svg = draw_lines(self.axes.map(Axis::linear), &lines, Legend::UpperRight)?;
        output::replace_atomic(&run.join(&self.file), svg.as_bytes())
    }
}
