//! Plots of lines, as SVG.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const SIZE: (u32, u32) = (640, 400);
/// Told apart by those who see colours differently too (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
/// Pixels of the ends of an interval.
const CAP: u32 = 6;

/// A line of a plot.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Around the points; empty for none.
    pub(super) intervals: Vec<[f64; 2]>,
}

/// An axis of a plot.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) name: &'static str,
    pub(super) logarithmic: bool,
}

/// Where the names of the lines stand.
#[derive(Clone, Copy)]
pub(super) enum Legend {
    LowerRight,
    UpperRight,
}

impl Line {
    /// A line without intervals.
    pub(super) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, intervals: Vec::new() }
    }
}

impl Axis {
    /// Where a number stands on the axis.
    fn place(self, number: f64) -> f64 {
        if self.logarithmic { number.log10() } else { number }
    }

    /// What stands at a place.
    fn label(self, place: f64) -> String {
        let number = if self.logarithmic { 10f64.powf(place) } else { place };
        match number.abs() {
            1000.0.. => format!("{number:.0}"),
            10.0.. => format!("{number:.1}"),
            0.1.. => format!("{number:.2}"),
            _ => format!("{number:.4}"),
        }
    }
}

/// Lines with their points, intervals and names, as the text of an SVG file.
///
/// # Errors
/// Whatever the back end cannot draw.
pub(super) fn draw(axes: [Axis; 2], lines: &[Line], legend: Legend) -> anyhow::Result<String> {
    let mut svg = String::new();
    drawn(&mut svg, axes, lines, legend)
        .map_err(|error| anyhow::anyhow!("the plot could not be drawn: {error}"))?;
    Ok(svg)
}

fn drawn(
    svg: &mut String,
    axes: [Axis; 2],
    lines: &[Line],
    legend: Legend,
) -> Result<(), Box<dyn std::error::Error>> {
    let placed = |(x, y): &(f64, f64)| (axes[0].place(*x), axes[1].place(*y));
    let points = lines.iter().flat_map(|line| &line.points);
    let ends = lines.iter().flat_map(|line| {
        line.points.iter().zip(&line.intervals).flat_map(|((x, _), ends)| ends.map(|y| (*x, y)))
    });
    let all: Vec<(f64, f64)> = points.copied().chain(ends).map(|point| placed(&point)).collect();
    let range = |of: fn(&(f64, f64)) -> f64| {
        let least = all.iter().map(of).fold(f64::INFINITY, f64::min);
        let most = all.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
        let margin = (0.05 * (most - least)).max(0.01);
        least - margin..most + margin
    };
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d::<RangedCoordf64, RangedCoordf64>(
            range(|point| point.0).into(),
            range(|point| point.1).into(),
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
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
            .label(&line.name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .position(match legend {
            Legend::LowerRight => SeriesLabelPosition::LowerRight,
            Legend::UpperRight => SeriesLabelPosition::UpperRight,
        })
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_intervals_are_drawn() {
        let axis = |name| Axis { name, logarithmic: false };
        let mut line = Line::new("right", vec![(0.0, 0.5), (10.0, 0.1)]);
        let plain = draw([axis("dB"), axis("WER")], &[line], Legend::UpperRight).unwrap();
        assert!(plain.contains("<svg") && plain.contains("right") && plain.contains("WER"));
        line = Line::new("right", vec![(0.0, 0.5), (10.0, 0.1)]);
        line.intervals = vec![[0.4, 0.6], [0.0, 0.2]];
        let bars = draw([axis("dB"), axis("WER")], &[line], Legend::UpperRight).unwrap();
        assert!(bars.len() > plain.len());
    }
}
