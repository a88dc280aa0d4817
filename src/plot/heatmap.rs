//! Plots tables of numbers as heat maps, such as the attribution of each entry to each word.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::label;
use super::{COLOURS, PlotError, svg};

/// Width and height of a cell, in pixels.
const CELL: (i32, i32) = (72, 30);
/// Width of a letter in the names, in pixels.
const LETTER_WIDTH: i32 = 7;
/// Margin on each side, in pixels.
const MARGIN: i32 = 8;
/// The shade, from 0 to 1, above which text is white.
const DARK_SHADE: f64 = 0.55;

/// Draws numbers `[rows, columns]` as a heat map, and returns the text of an SVG file. Positive and
/// negative numbers have different colours.
///
/// # Errors
/// If a row does not have one number per column, or if the plotting back end fails.
pub fn draw_heatmap(
    rows: &[String],
    columns: &[String],
    numbers: &[Vec<f64>],
) -> Result<String, PlotError> {
    if numbers.len() != rows.len() || numbers.iter().any(|row| row.len() != columns.len()) {
        let (rows, columns) = (rows.len(), columns.len());
        return Err(PlotError(format!("expected {rows} rows of {columns} numbers")));
    }
    let longest = rows.iter().map(|row| row.chars().count()).max().unwrap_or(0) as i32;
    let name_width = LETTER_WIDTH * longest + MARGIN;
    let width = name_width + CELL.0 * columns.len() as i32 + 2 * MARGIN;
    let height = CELL.1 * (rows.len() as i32 + 1) + 2 * MARGIN;
    let max = numbers.iter().flatten().fold(0.0f64, |largest, number| largest.max(number.abs()));
    // The step with which the largest number has three digits.
    let step = if max > 0.0 { max / 100.0 } else { 1.0 };
    svg((width as u32, height as u32), |area| {
        let style = ("sans-serif", 13).into_font().color(&BLACK);
        let middle = Pos::new(HPos::Center, VPos::Center);
        let left = |column: usize| MARGIN + name_width + CELL.0 * column as i32;
        let top = |row: usize| MARGIN + CELL.1 * row as i32;
        for (column, name) in columns.iter().enumerate() {
            let position = (left(column) + CELL.0 / 2, top(0) + CELL.1 / 2);
            area.draw(&Text::new(name.as_str(), position, style.pos(middle)))?;
        }
        for (row, (name, numbers)) in rows.iter().zip(numbers).enumerate() {
            let (top, bottom) = (top(row + 1), top(row + 2));
            let left_aligned = Pos::new(HPos::Left, VPos::Center);
            area.draw(&Text::new(
                name.as_str(),
                (MARGIN, top + CELL.1 / 2),
                style.pos(left_aligned),
            ))?;
            for (column, number) in numbers.iter().enumerate() {
                let shade = if max > 0.0 { number.abs() / max } else { 0.0 };
                let colour = COLOURS[usize::from(*number < 0.0)].mix(shade);
                let cell = [(left(column), top), (left(column + 1), bottom)];
                area.draw(&Rectangle::new(cell, colour.filled()))?;
                let ink = if shade > DARK_SHADE { WHITE } else { BLACK };
                let position = (left(column) + CELL.0 / 2, top + CELL.1 / 2);
                area.draw(&Text::new(
                    label(*number, step),
                    position,
                    style.color(&ink).pos(middle),
                ))?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_svg_has_all_names_and_numbers() {
        let owned = |names: [&str; 2]| names.map(str::to_owned);
        let numbers = [vec![1.5, 0.0], vec![-0.25, 0.5]];
        let svg = draw_heatmap(&owned(["a fact", "another"]), &owned(["pi", "##e"]), &numbers);
        let svg = svg.unwrap();
        for text in ["a fact", "another", "pi", "##e", "1.50", "-0.25"] {
            assert!(svg.contains(text), "{text}");
        }
        let error = draw_heatmap(&owned(["a", "b"]), &owned(["c", "d"]), &[vec![1.0]]).unwrap_err();
        assert!(error.to_string().contains("2 rows of 2 numbers"), "{error}");
    }
}
