//! Plots values in rows, each with its interval, for comparison at a glance.

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::mean::{MEAN, mean, weighted_mean};
use engram_eval::result::Measure;
use plotters::coord::types::RangedCoordi32;
use plotters::prelude::*;

use super::axis::{LABELS, Scale};
use super::{Area, Axis, COLOURS, PlotError, svg};

/// Width of the plot, in pixels.
const WIDTH: u32 = 640;
/// Height of a row, in pixels.
const ROW: u32 = 34;
/// Total height of the margins, in pixels.
const MARGINS: u32 = 76;
/// Width of a letter in the names, in pixels.
const LETTER_WIDTH: u32 = 7;

/// A value with its interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// The label of the row.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The bounds of the interval; both equal the value if there is no interval.
    pub bounds: [f64; 2],
}

impl Interval {
    /// A value with a 95 % interval.
    pub fn new(name: impl Into<String>, value: f64, bounds: [f64; 2]) -> Self {
        Self { name: name.into(), value, bounds }
    }

    /// The mean of the values with its bootstrap interval.
    pub fn bootstrap_mean(name: impl Into<String>, values: &[f64]) -> Self {
        let resampling = Resampling::by_row(values.len());
        let options = BootstrapOptions::default();
        let bootstrap = interval(&resampling, &options, |counts| weighted_mean(values, counts));
        Self::from_measure(name, &Measure::new(&MEAN, values.len(), Ok(mean(values)), bootstrap))
    }

    /// The value and interval of a [`Measure`].
    pub fn from_measure(name: impl Into<String>, measure: &Measure) -> Self {
        let bounds = measure.ci95.unwrap_or_default().map(|bound| bound.unwrap_or(measure.value));
        Self::new(name, measure.value, bounds)
    }
}

/// Draws values and their intervals, and returns the text of an SVG file. A line marks 0 if the
/// axis includes it.
///
/// # Errors
/// If the plotting back end fails.
pub fn draw_intervals(axis: &str, intervals: &[Interval]) -> Result<String, PlotError> {
    let height = MARGINS + ROW * intervals.len() as u32;
    svg((WIDTH, height), |area| draw_rows(area, axis, intervals))
}

fn draw_rows(
    area: &Area<'_>,
    axis: &str,
    intervals: &[Interval],
) -> Result<(), Box<dyn std::error::Error>> {
    let lengths = intervals.iter().map(|interval| interval.name.chars().count());
    let name_width = (LETTER_WIDTH * lengths.max().unwrap_or(0) as u32 + 16).min(WIDTH / 2);
    let numbers =
        intervals.iter().flat_map(|interval| interval.bounds.into_iter().chain([interval.value]));
    let rows = intervals.len() as i32;
    let scale = Scale::new(Axis::linear(axis), numbers);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(name_width)
        .build_cartesian_2d(scale, RangedCoordi32::from(-1..rows))?;
    let row_position = |row: usize| rows - 1 - row as i32;
    let name = |position: &i32| {
        let row = usize::try_from(rows - 1 - position).ok();
        row.and_then(|row| intervals.get(row))
            .map_or_else(String::new, |interval| interval.name.clone())
    };
    chart
        .configure_mesh()
        .x_desc(axis)
        .x_labels(LABELS)
        .y_labels(intervals.len() + 2)
        .y_label_formatter(&name)
        .light_line_style(TRANSPARENT)
        .draw()?;
    if chart.x_range().contains(&0.0) {
        let zero = PathElement::new(vec![(0.0, -1), (0.0, rows)], BLACK.mix(0.5));
        chart.draw_series([zero])?;
    }
    let colour = COLOURS[0];
    chart.draw_series(intervals.iter().enumerate().map(|(row, interval)| {
        let [low, high] = interval.bounds;
        PathElement::new(
            vec![(low, row_position(row)), (high, row_position(row))],
            colour.stroke_width(2),
        )
    }))?;
    chart.draw_series(intervals.iter().enumerate().map(|(row, interval)| {
        Circle::new((interval.value, row_position(row)), 4, colour.filled())
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_lies_in_its_interval() {
        let mean = Interval::bootstrap_mean("right", &[1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(mean.value, 0.75);
        assert!(mean.bounds[0] < 0.75 && 0.75 < mean.bounds[1], "{mean:?}");
    }

    #[test]
    fn each_interval_has_a_row_with_its_name() {
        let intervals =
            [Interval::new("right", 0.2, [0.1, 0.3]), Interval::new("none", -0.1, [-0.1, -0.1])];
        let svg = draw_intervals("WER", &intervals).unwrap();
        assert!(svg.contains("right") && svg.contains("none") && svg.contains("WER"));
        assert_eq!(svg.matches("<circle").count(), 2);
    }
}
