//! Plots as SVG, for the output folders of `engram bench` and `engram train` and for notebooks.
//!
//! | file | contents |
//! |---|---|
//! | `axis` | linear and logarithmic axes with round tick values |
//! | `lines` | lines with intervals, and scatter points |
//! | `intervals` | values in rows, with their intervals |
//! | `heatmap` | a heat map |

mod axis;
mod heatmap;
mod intervals;
mod lines;

use plotters::prelude::*;

pub use axis::Axis;
pub use heatmap::draw_heatmap;
pub use intervals::{Interval, draw_intervals};
pub use lines::{Legend, Line, draw_lines};

/// The colour-blind-safe palette of Okabe and Ito.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// The error for a plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot could not be drawn: {0}")]
pub struct PlotError(String);

/// Returns the text of an SVG file of `width` by `height` pixels.
fn svg(
    (width, height): (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    let draw_area = || -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        Ok(area.present()?)
    };
    draw_area().map_err(|error| PlotError(error.to_string()))?;
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
