//! Lines with their points and intervals, or clouds of points.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::{Area, COLOURS, PlotError, label, range, svg};

const SIZE: (u32, u32) = (640, 400);
/// Pixels of the ends of an interval.
const CAP: u32 = 6;

/// A line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What stands in the legend.
    pub name: String,
    /// Places on both axes.
    pub points: Vec<(f64, f64)>,
    /// Around the points; empty for none.
    pub intervals: Vec<[f64; 2]>,
    /// Whether a line joins the points.
    pub joined: bool,
    /// Whether the points of a line are drawn.
    pub dots: bool,
}

/// An axis of a plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis<'a> {
    /// What is measured, in which unit.
    pub name: &'a str,
    /// Whether equal distances are equal ratios.
    pub logarithmic: bool,
}

/// Where the names of the lines stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legend {
    /// Below, where lines are high at their end.
    LowerRight,
    /// Above, where they are low.
    UpperRight,
    /// Nowhere.
    None,
}

impl Line {
    /// A line without intervals.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, intervals: Vec::new(), joined: true, dots: true }
    }

    /// Points that nothing joins.
    pub fn cloud(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { joined: false, ..Self::new(name, points) }
    }
}

impl<'a> Axis<'a> {
    /// An axis of equal distances for equal differences.
    pub fn linear(name: &'a str) -> Self {
        Self { name, logarithmic: false }
    }

    /// An axis of equal distances for equal ratios.
    pub fn logarithmic(name: &'a str) -> Self {
        Self { name, logarithmic: true }
    }

    /// Where a number stands on the axis.
    fn place(self, number: f64) -> f64 {
        if self.logarithmic { number.log10() } else { number }
    }

    /// What stands at a place.
    fn label(self, place: f64) -> String {
        label(if self.logarithmic { 10f64.powf(place) } else { place })
    }
}

/// Lines with their points, intervals and names, as the text of an SVG file.
///
/// # Errors
/// Whatever the back end cannot draw.
pub fn draw_lines(
    axes: [Axis<'_>; 2],
    lines: &[Line],
    legend: Legend,
) -> Result<String, PlotError> {
    svg(SIZE, |area| drawn(area, axes, lines, legend))
}

fn drawn(
    area: &Area<'_>,
    axes: [Axis<'_>; 2],
    lines: &[Line],
    legend: Legend,
) -> Result<(), Box<dyn std::error::Error>> {
    let placed = |(x, y): &(f64, f64)| (axes[0].place(*x), axes[1].place(*y));
    let points = lines.iter().flat_map(|line| &line.points);
    let ends = lines.iter().flat_map(|line| {
        line.points.iter().zip(&line.intervals).flat_map(|((x, _), ends)| ends.map(|y| (*x, y)))
    });
    let all: Vec<(f64, f64)> = points.copied().chain(ends).map(|point| placed(&point)).collect();
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d::<RangedCoordf64, RangedCoordf64>(
        range(all.iter().map(|point| point.0)).into(),
        range(all.iter().map(|point| point.1)).into(),
    )?;
    chart
        .configure_mesh()
        .x_desc(axes[0].name)
        .y_desc(axes[1].name)
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|x| axes[0].label(*x))
        .y_label_formatter(&|y| axes[1].label(*y))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.into_iter().cycle()) {
        let points: Vec<(f64, f64)> = line.points.iter().map(placed).collect();
        let bars = points.iter().zip(&line.intervals).map(|((x, y), ends)| {
            let [low, high] = ends.map(|end| axes[1].place(end));
            ErrorBar::new_vertical(*x, low, *y, high, colour.mix(0.6).stroke_width(1), CAP)
        });
        let bars: Vec<_> = bars.collect();
        chart.draw_series(bars)?;
        let drawn = if line.joined {
            chart.draw_series(
                LineSeries::new(points, colour.stroke_width(2)).point_size(if line.dots {
                    3
                } else {
                    0
                }),
            )?
        } else {
            let dots =
                points.into_iter().map(|point| Circle::new(point, 3, colour.mix(0.5).filled()));
            chart.draw_series(dots)?
        };
        drawn.label(&line.name).legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
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
        let bars = draw_lines(axes, &[line], Legend::UpperRight).unwrap();
        assert!(bars.len() > plain.len());
        let cloud = Line::cloud("pairs", vec![(0.0, 0.5), (10.0, 0.1)]);
        let cloud = draw_lines(axes, &[cloud], Legend::None).unwrap();
        let dots = |svg: &str| svg.matches("<circle").count();
        assert_eq!((dots(&cloud), dots(&plain)), (2, 3));
        assert!(!cloud.contains("pairs"));
    }
}
