//! Plots as SVG: what `engram bench` and `engram train` leave in folders, and what notebooks show.
//!
//! | file | what it draws |
//! |---|---|
//! | `lines` | lines with intervals, and clouds of points |
//! | `intervals` | figures below each other, with their intervals |
//! | `shades` | a table of numbers, the larger the darker |

mod intervals;
mod lines;
mod shades;

use plotters::prelude::*;

pub use intervals::{Interval, draw_intervals};
pub use lines::{Axis, Legend, Line, draw_lines};
pub use shades::draw_shades;

/// Told apart by those who see colours differently too (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot could not be drawn: {0}")]
pub struct PlotError(String);

/// The text of an SVG file of `width` by `height` pixels.
fn svg(
    (width, height): (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    let drawn = || -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        Ok(area.present()?)
    };
    drawn().map_err(|error| PlotError(error.to_string()))?;
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The range of numbers, somewhat wider than them.
fn range(numbers: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let least = numbers.clone().fold(f64::INFINITY, f64::min);
    let most = numbers.fold(f64::NEG_INFINITY, f64::max);
    let margin = (0.05 * (most - least)).max(0.01);
    least - margin..most + margin
}

/// A number beside an axis, or in a cell.
fn label(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        1000.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        0.1.. => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}
