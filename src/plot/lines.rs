//! Plots lines with points and intervals, or scatter points.

use plotters::prelude::*;

use super::axis::{LABELS, Scale};
use super::{Area, Axis, COLOURS, PlotError, svg};

/// Width and height of the plot, in pixels.
const SIZE: (u32, u32) = (640, 400);
/// Length of the caps of an interval, in pixels.
const CAP: u32 = 6;

/// A line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// Points as (x, y).
    pub points: Vec<(f64, f64)>,
    /// The interval of each y value; empty for a line without intervals.
    pub intervals: Vec<[f64; 2]>,
    /// Whether a line joins the points.
    pub connected: bool,
    /// Whether the points of a line are drawn.
    pub markers: bool,
}

/// Position of the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legend {
    /// At the bottom right, for lines that end high.
    LowerRight,
    /// At the top right, for lines that end low.
    UpperRight,
    /// No legend.
    None,
}

impl Line {
    /// A line without intervals.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, intervals: Vec::new(), connected: true, markers: true }
    }

    /// Scatter points.
    pub fn scatter(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { connected: false, ..Self::new(name, points) }
    }
}

/// Draws lines with points, intervals and legend, and returns the text of an SVG file.
///
/// # Errors
/// If the plotting back end fails.
pub fn draw_lines(
    axes: [Axis<'_>; 2],
    lines: &[Line],
    legend: Legend,
) -> Result<String, PlotError> {
    svg(SIZE, |area| draw_chart(area, axes, lines, legend))
}

fn draw_chart(
    area: &Area<'_>,
    axes: [Axis<'_>; 2],
    lines: &[Line],
    legend: Legend,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = lines.iter().flat_map(|line| &line.points);
    let bounds = lines.iter().flat_map(|line| line.intervals.iter().flatten());
    let x_scale = Scale::new(axes[0], points.clone().map(|point| point.0));
    let y_scale = Scale::new(axes[1], points.map(|point| point.1).chain(bounds.copied()));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d(x_scale, y_scale)?;
    chart
        .configure_mesh()
        .x_desc(axes[0].name)
        .y_desc(axes[1].name)
        .x_labels(LABELS)
        .y_labels(LABELS)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.into_iter().cycle()) {
        let points = line.points.iter().copied();
        let bars = points.clone().zip(&line.intervals).map(|((x, y), [low, high])| {
            ErrorBar::new_vertical(x, *low, y, *high, colour.mix(0.6).stroke_width(1), CAP)
        });
        let bars: Vec<_> = bars.collect();
        chart.draw_series(bars)?;
        let series = if line.connected {
            chart.draw_series(
                LineSeries::new(points, colour.stroke_width(2)).point_size(if line.markers {
                    3
                } else {
                    0
                }),
            )?
        } else {
            let dots = points.map(|point| Circle::new(point, 3, colour.mix(0.5).filled()));
            chart.draw_series(dots)?
        };
        series.label(&line.name).legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
    }
    let position = match legend {
        Legend::LowerRight => SeriesLabelPosition::LowerRight,
        Legend::UpperRight => SeriesLabelPosition::UpperRight,
        Legend::None => return Ok(()),
    };
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .position(position)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_intervals_are_drawn() {
        let axes = ["dB", "WER"].map(Axis::linear);
        let mut line = Line::new("right", vec![(0.0, 0.5), (10.0, 0.1)]);
        let plain = draw_lines(axes, std::slice::from_ref(&line), Legend::UpperRight).unwrap();
        assert!(plain.contains("<svg") && plain.contains("right") && plain.contains("WER"));
        assert!(plain.contains("<polyline"));
        line.intervals = vec![[0.4, 0.6], [0.0, 0.2]];
        let with_intervals = draw_lines(axes, &[line], Legend::UpperRight).unwrap();
        assert!(with_intervals.len() > plain.len());
        let scatter = Line::scatter("pairs", vec![(0.0, 0.5), (10.0, 0.1)]);
        let scatter = draw_lines(axes, &[scatter], Legend::None).unwrap();
        let dots = |svg: &str| svg.matches("<circle").count();
        assert_eq!((dots(&scatter), dots(&plain)), (2, 3));
        assert!(!scatter.contains("pairs"));
    }
}
