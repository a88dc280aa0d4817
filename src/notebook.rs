//! Output of notebook cells: plots, images, waveforms and tables.
//!
//! [evcxr](https://github.com/evcxr/evcxr) displays the last expression of a cell if its type has a
//! method `evcxr_display`, such as [`CellOutput`]. Plots are SVG and tables are Markdown, so code
//! hosting sites display them too.
//!
//! ```
//! use engram::notebook;
//! use engram::plot::Interval;
//!
//! let intervals = [Interval::new("frozen", 0.60, [0.57, 0.63]), Interval::new("adapters", 0.44, [0.41, 0.47])];
//! notebook::intervals("WER", &intervals)?
//! # ; Ok::<(), engram::plot::PlotError>(())
//! ```

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::imageops::{FilterType, resize};
use image::{ImageError, ImageFormat, RgbImage};

use crate::plot::{
    Axis, Interval, Legend, Line, PlotError, draw_heatmap, draw_intervals, draw_lines,
};

/// Maximum number of segments of a waveform plot; each shows its lowest and highest sample.
const SEGMENTS: usize = 600;
/// Pixels between images.
const GAP: u32 = 8;

/// The output of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellOutput {
    mime: &'static str,
    content: String,
}

impl CellOutput {
    /// Prints the output in evcxr's format; evcxr calls this method.
    pub fn evcxr_display(&self) {
        println!("EVCXR_BEGIN_CONTENT {}\n{}\nEVCXR_END_CONTENT", self.mime, self.content);
    }

    fn svg(content: String) -> Self {
        Self { mime: "image/svg+xml", content }
    }
}

/// Plots lines with intervals, or scatter points.
///
/// # Errors
/// Same as [`draw_lines`].
pub fn lines(axes: [Axis<'_>; 2], lines: &[Line], legend: Legend) -> Result<CellOutput, PlotError> {
    draw_lines(axes, lines, legend).map(CellOutput::svg)
}

/// Plots values with their intervals.
///
/// # Errors
/// Same as [`draw_intervals`].
pub fn intervals(axis: &str, intervals: &[Interval]) -> Result<CellOutput, PlotError> {
    draw_intervals(axis, intervals).map(CellOutput::svg)
}

/// Plots a table of numbers as a heat map.
///
/// # Errors
/// Same as [`draw_heatmap`].
pub fn heatmap(
    rows: &[String],
    columns: &[String],
    numbers: &[Vec<f64>],
) -> Result<CellOutput, PlotError> {
    draw_heatmap(rows, columns, numbers).map(CellOutput::svg)
}

/// Plots the waveform of audio sampled at `rate` Hz.
///
/// # Errors
/// Same as [`draw_lines`].
pub fn waveform(samples: &[f32], rate: u32) -> Result<CellOutput, PlotError> {
    let segment_length = samples.len().div_ceil(SEGMENTS).max(1);
    let mut points = Vec::new();
    for (segment, samples) in samples.chunks(segment_length).enumerate() {
        let seconds = (segment * segment_length) as f64 / f64::from(rate);
        let low = samples.iter().copied().fold(f32::INFINITY, f32::min);
        let high = samples.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        points.extend([low, high].map(|peak| (seconds, f64::from(peak))));
    }
    let line = Line { markers: false, ..Line::new("", points) };
    lines(["seconds", "amplitude"].map(Axis::linear), &[line], Legend::None)
}

/// Shows images side by side, each `height` pixels high.
///
/// # Errors
/// If the PNG cannot be written.
pub fn images(images: &[RgbImage], height: u32) -> Result<CellOutput, ImageError> {
    let scaled: Vec<RgbImage> = images
        .iter()
        .map(|image| {
            let width = (height * image.width()).div_ceil(image.height().max(1));
            resize(image, width, height, FilterType::Nearest)
        })
        .collect();
    let width = scaled.iter().map(|image| image.width() + GAP).sum::<u32>();
    let white = image::Rgb([u8::MAX; 3]);
    let mut canvas = RgbImage::from_pixel(width.saturating_sub(GAP).max(1), height.max(1), white);
    let mut left = 0;
    for image in &scaled {
        image::imageops::replace(&mut canvas, image, left, 0);
        left += i64::from(image.width() + GAP);
    }
    let mut png = Cursor::new(Vec::new());
    canvas.write_to(&mut png, ImageFormat::Png)?;
    Ok(CellOutput { mime: "image/png", content: STANDARD.encode(png.get_ref()) })
}

/// Shows a table with a header and rows of text.
pub fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> CellOutput {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let line = |cells: &mut dyn Iterator<Item = String>| {
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut content = line(&mut header.iter().map(|text| cell(text)));
    content.push_str(&line(&mut header.iter().map(|_| "---".to_owned())));
    for row in rows {
        content.push_str(&line(&mut row.iter().map(|text| cell(text))));
    }
    CellOutput { mime: "text/markdown", content }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_cells_are_escaped_for_markdown() {
        let output = table(["text", "n"], [["a | b\nc".to_owned(), "2".to_owned()]]);
        assert_eq!(output.content, "| text | n |\n| --- | --- |\n| a \\| b c | 2 |\n");
    }

    #[test]
    fn images_are_side_by_side() {
        let red = RgbImage::from_pixel(4, 2, image::Rgb([255, 0, 0]));
        let output = images(&[red.clone(), red], 10).expect("drawn");
        let png = STANDARD.decode(&output.content).expect("base64");
        let decoded = image::load_from_memory(&png).expect("an image").to_rgb8();
        assert_eq!(decoded.dimensions(), (20 + GAP + 20, 10));
        let colours = [0, 20, 20 + GAP].map(|x| decoded.get_pixel(x, 5).0);
        assert_eq!(colours, [[255, 0, 0], [255, 255, 255], [255, 0, 0]]);
    }

    #[test]
    fn a_waveform_has_its_seconds_and_peaks() {
        let samples: Vec<f32> = (0..32_000).map(|i| if i % 2 == 0 { 0.5 } else { -0.5 }).collect();
        let output = waveform(&samples, 16_000).expect("drawn");
        assert_eq!(output.mime, "image/svg+xml");
        assert!(output.content.contains("seconds") && output.content.contains(">2.0<"));
        assert_eq!(output.content.matches("<circle").count(), 0);
    }
}
