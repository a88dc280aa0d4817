//! Charts as SVG files of their own, for run folders and notebooks: lines with intervals or scatter
//! points, values in rows with their intervals, and heat maps.

use engram_textfile::shortened;

use super::axis::{Axis as Ticks, inside};
use super::writer::Html;
use crate::bootstrap::{BootstrapOptions, Resampling, interval};
use crate::metric::mean::{MEAN, mean, weighted_mean};
use crate::result::Measure;

/// The colour-blind-safe palette of Okabe and Ito.
const COLOURS: [&str; 4] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"];
/// Width of a chart, and height of a chart of lines, in pixels.
const SIZE: (f64, f64) = (640.0, 400.0);
/// Margins for the labels of an axis, and on the other sides.
const LABEL_MARGIN: f64 = 58.0;
const MARGIN: f64 = 16.0;
/// Width of a letter, in pixels.
const LETTER_WIDTH: f64 = 7.0;
/// Height of a row of intervals, and width and height of a cell of a heat map, in pixels.
const ROW: f64 = 34.0;
const CELL: (f64, f64) = (72.0, 30.0);
/// Approximate number of tick labels on an axis.
const LABELS: usize = 6;

/// The error for a chart that cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot could not be drawn: {0}")]
pub struct PlotError(String);

/// An axis of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis<'a> {
    /// The measured quantity and its unit.
    pub name: &'a str,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
}

impl<'a> Axis<'a> {
    /// A linear axis.
    pub fn linear(name: &'a str) -> Self {
        Self { name, logarithmic: false }
    }

    /// A logarithmic axis.
    pub fn logarithmic(name: &'a str) -> Self {
        Self { name, logarithmic: true }
    }
}

/// A line of a chart.
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

/// A value with its interval, in a row.
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

/// The range of an axis, with its ticks.
enum Scale {
    Linear(Ticks),
    /// The decimal logarithms of the ends.
    Logarithmic(f64, f64),
}

impl Scale {
    fn new(axis: Axis<'_>, numbers: impl Iterator<Item = f64>) -> Result<Self, PlotError> {
        let nothing = || PlotError(format!("no finite values of {}", axis.name));
        if !axis.logarithmic {
            return Ticks::over(numbers, LABELS).map(Self::Linear).ok_or_else(nothing);
        }
        let logarithms = numbers.map(f64::log10).filter(|number| number.is_finite());
        let (low, high) = logarithms
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
                (low.min(number), high.max(number))
            });
        let margin = (0.05 * (high - low)).max(0.01);
        if low > high { Err(nothing()) } else { Ok(Self::Logarithmic(low - margin, high + margin)) }
    }

    /// The position of a number, from 0 to 1.
    fn position(&self, number: f64) -> f64 {
        match self {
            Self::Linear(ticks) => ticks.position(number),
            Self::Logarithmic(low, high) => (number.log10() - low) / (high - low),
        }
    }

    /// Positions and labels of the ticks. A logarithmic axis has 1, 2 and 5 times each power of
    /// ten, or only the powers of ten if there are more than [`LABELS`] of these.
    fn ticks(&self) -> Vec<(f64, String)> {
        let (low, high) = match self {
            Self::Linear(ticks) => return ticks.ticks().collect(),
            Self::Logarithmic(low, high) => (*low, *high),
        };
        let ticks = |factors: &[f64]| -> Vec<(f64, String)> {
            let powers = low.floor() as i32..=high.ceil() as i32;
            let numbers =
                powers.flat_map(|power| factors.iter().map(move |f| f * 10f64.powi(power)));
            let within = numbers.filter(|number| (low..high).contains(&number.log10()));
            within.map(|number| (self.position(number), label(number, number))).collect()
        };
        let fine = ticks(&[1.0, 2.0, 5.0]);
        if fine.len() <= LABELS { fine } else { ticks(&[1.0]) }
    }
}

/// Formats a number with enough digits to distinguish values that differ by `step`.
fn label(number: f64, step: f64) -> String {
    let decimals = (-step.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    super::numbers::fixed(number, decimals)
}

/// The elements of a chart.
struct Chart(Html);

impl Chart {
    fn shape(&mut self, tag: &str, numbers: &[(&str, f64)], style: &str) {
        let numbers: Vec<(&str, String)> =
            numbers.iter().map(|(name, number)| (*name, format!("{number:.1}"))).collect();
        let mut attributes: Vec<(&str, &str)> =
            numbers.iter().map(|(name, number)| (*name, number.as_str())).collect();
        attributes.push(("style", style));
        self.0.leaf(tag, &attributes, "");
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        self.shape("line", &[("x1", from.0), ("y1", from.1), ("x2", to.0), ("y2", to.1)], style);
    }

    fn dot(&mut self, (x, y): (f64, f64), radius: f64, style: &str) {
        self.shape("circle", &[("cx", x), ("cy", y), ("r", radius)], style);
    }

    fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), style: &str) {
        let numbers = [("x", x), ("y", y), ("width", width), ("height", height)];
        self.shape("rect", &numbers, style);
    }

    /// Writes a text; `anchor` is `start`, `middle` or `end`.
    fn text(&mut self, (x, y): (f64, f64), anchor: &str, style: &str, text: &str) {
        let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
        let attributes = [("x", x.as_str()), ("y", &y), ("text-anchor", anchor), ("style", style)];
        self.0.leaf("text", &attributes, text);
    }

    /// Draws the horizontal axis of a plot that ends at `bottom`, with a grid.
    fn horizontal_axis(&mut self, name: &str, scale: &Scale, plot: &Plot) {
        for (position, text) in scale.ticks() {
            let x = plot.x(position);
            self.line((x, plot.top), (x, plot.bottom), "stroke:#ddd");
            let x = inside(x, &text, LETTER_WIDTH, SIZE.0);
            self.text((x, plot.bottom + 17.0), "middle", "", &text);
        }
        self.line((plot.left, plot.bottom), (plot.right, plot.bottom), "stroke:#000");
        let centre = inside(plot.x(0.5), name, LETTER_WIDTH, SIZE.0);
        self.text((centre, plot.bottom + 36.0), "middle", "", name);
    }

    /// The text of an SVG file.
    fn into_svg(self, width: f64, height: f64) -> String {
        let mut svg = Html::default();
        let (view, width, height) =
            (format!("0 0 {width} {height}"), width.to_string(), height.to_string());
        let attributes = [
            ("xmlns", "http://www.w3.org/2000/svg"),
            ("width", &width),
            ("height", &height),
            ("viewBox", &view),
            ("font-family", "sans-serif"),
            ("font-size", "13"),
        ];
        svg.node("svg", &attributes, |svg| {
            svg.leaf("rect", &[("width", &width), ("height", &height), ("fill", "#fff")], "");
            svg.append(&self.0);
        });
        svg.into_string()
    }
}

/// The ends of the plotted area, in pixels.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Plot {
    fn x(&self, position: f64) -> f64 {
        self.left + position * (self.right - self.left)
    }

    fn y(&self, position: f64) -> f64 {
        self.bottom - position * (self.bottom - self.top)
    }
}

/// Draws lines with points, intervals and legend, and returns the text of an SVG file. Points
/// without a position are left out: NaN, infinity, and 0 on a logarithmic axis.
///
/// # Errors
/// If no value is finite.
pub fn draw_lines(
    axes: [Axis<'_>; 2],
    lines: &[Line],
    legend: Legend,
) -> Result<String, PlotError> {
    let points = lines.iter().flat_map(|line| &line.points);
    let bounds = lines.iter().flat_map(|line| line.intervals.iter().flatten());
    let x_scale = Scale::new(axes[0], points.clone().map(|point| point.0))?;
    let y_scale = Scale::new(axes[1], points.map(|point| point.1).chain(bounds.copied()))?;
    let longest = y_scale.ticks().iter().map(|(_, text)| text.chars().count()).max().unwrap_or(0);
    let plot = Plot {
        left: LABEL_MARGIN.max(LETTER_WIDTH * longest as f64 + MARGIN) + MARGIN,
        right: SIZE.0 - MARGIN,
        top: MARGIN,
        bottom: SIZE.1 - LABEL_MARGIN,
    };
    let at = |(x, y): (f64, f64)| {
        let point = (plot.x(x_scale.position(x)), plot.y(y_scale.position(y)));
        [x, y, point.0, point.1].into_iter().all(f64::is_finite).then_some(point)
    };
    let mut chart = Chart(Html::default());
    chart.horizontal_axis(axes[0].name, &x_scale, &plot);
    for (position, text) in y_scale.ticks() {
        let y = plot.y(position);
        chart.line((plot.left, y), (plot.right, y), "stroke:#ddd");
        chart.text((plot.left - 6.0, y + 4.0), "end", "", &text);
    }
    let middle = plot.y(0.5);
    let turned = format!("translate({MARGIN} {middle}) rotate(-90)");
    chart.0.leaf("text", &[("text-anchor", "middle"), ("transform", &turned)], axes[1].name);
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let (stroke, fill) = (format!("stroke:{colour}"), format!("fill:{colour}"));
        for ((x, _), [low, high]) in line.points.iter().zip(&line.intervals) {
            let Some((from, to)) = at((*x, *low)).zip(at((*x, *high))) else { continue };
            chart.line(from, to, &stroke);
            for (x, y) in [from, to] {
                chart.line((x - 3.0, y), (x + 3.0, y), &stroke);
            }
        }
        let points: Vec<(f64, f64)> = line.points.iter().filter_map(|point| at(*point)).collect();
        if line.connected {
            let text: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let style = format!("fill:none;stroke-width:2;{stroke}");
            chart.0.leaf("polyline", &[("points", &text.join(" ")), ("style", &style)], "");
        }
        if line.markers {
            let style = if line.connected { fill } else { format!("{fill};fill-opacity:0.5") };
            points.iter().for_each(|point| chart.dot(*point, 3.0, &style));
        }
    }
    let height = 20.0 * lines.len() as f64;
    let top = match legend {
        Legend::None => return Ok(chart.into_svg(SIZE.0, SIZE.1)),
        Legend::UpperRight => plot.top + 8.0,
        Legend::LowerRight => plot.bottom - height - 8.0,
    };
    let longest = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let width = LETTER_WIDTH * longest as f64 + 32.0;
    let left = plot.right - width - 8.0;
    let style = "fill:#fff;fill-opacity:0.8;stroke:#ccc";
    chart.rectangle((left, top), (width, height), style);
    for (row, (line, colour)) in lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let y = top + 20.0 * row as f64 + 10.0;
        chart.rectangle((left + 8.0, y - 4.0), (8.0, 8.0), &format!("fill:{colour}"));
        chart.text((left + 22.0, y + 4.0), "start", "", &line.name);
    }
    Ok(chart.into_svg(SIZE.0, SIZE.1))
}

/// Draws values and their intervals in rows, and returns the text of an SVG file. A line marks 0 if
/// the axis includes it.
///
/// # Errors
/// If no value is finite.
pub fn draw_intervals(axis: &str, intervals: &[Interval]) -> Result<String, PlotError> {
    let longest = intervals.iter().map(|interval| interval.name.chars().count()).max();
    let names = (LETTER_WIDTH * longest.unwrap_or(0) as f64 + MARGIN).min(SIZE.0 / 2.0);
    let bottom = MARGIN + ROW * intervals.len() as f64;
    let plot = Plot { left: names + MARGIN, right: SIZE.0 - MARGIN, top: MARGIN, bottom };
    let numbers = intervals.iter().flat_map(|one| one.bounds.into_iter().chain([one.value]));
    let scale = Scale::new(Axis::linear(axis), numbers)?;
    let x = |number: f64| plot.x(scale.position(number));
    let mut chart = Chart(Html::default());
    chart.horizontal_axis(axis, &scale, &plot);
    if let Scale::Linear(ticks) = &scale
        && (ticks.low()..=ticks.high()).contains(&0.0)
    {
        chart.line((x(0.0), plot.top), (x(0.0), bottom), "stroke:#888");
    }
    for (row, Interval { name, value, bounds: [low, high] }) in intervals.iter().enumerate() {
        let y = MARGIN + ROW * (row as f64 + 0.5);
        let max_length = (SIZE.0 / 2.0 / LETTER_WIDTH) as usize;
        chart.text((names + 4.0, y + 4.0), "end", "", &shortened(name, max_length));
        let style = format!("stroke-width:2;stroke:{}", COLOURS[0]);
        chart.line((x(*low), y), (x(*high), y), &style);
        chart.dot((x(*value), y), 4.0, &format!("fill:{}", COLOURS[0]));
    }
    Ok(chart.into_svg(SIZE.0, bottom + LABEL_MARGIN))
}

/// Draws numbers `[rows, columns]` as a heat map, and returns the text of an SVG file. Positive and
/// negative numbers have different colours. The cells of infinite numbers and NaN stay empty.
///
/// # Errors
/// If a row does not have one number per column.
pub fn draw_heatmap(
    rows: &[String],
    columns: &[String],
    numbers: &[Vec<f64>],
) -> Result<String, PlotError> {
    if numbers.len() != rows.len() || numbers.iter().any(|row| row.len() != columns.len()) {
        let (rows, columns) = (rows.len(), columns.len());
        return Err(PlotError(format!("expected {rows} rows of {columns} numbers")));
    }
    let longest = rows.iter().map(|row| row.chars().count()).max().unwrap_or(0);
    let names = LETTER_WIDTH * longest as f64 + MARGIN;
    let finite = numbers.iter().flatten().filter(|number| number.is_finite());
    let max = finite.fold(0.0f64, |largest, number| largest.max(number.abs()));
    // The step with which the largest number has three digits.
    let step = if max > 0.0 { max / 100.0 } else { 1.0 };
    let corner =
        |row: usize, column: usize| (names + CELL.0 * column as f64, CELL.1 * row as f64 + 8.0);
    let centre = |(x, y): (f64, f64)| (x + CELL.0 / 2.0, y + CELL.1 / 2.0 + 4.0);
    let mut chart = Chart(Html::default());
    for (column, name) in columns.iter().enumerate() {
        chart.text(centre(corner(0, column)), "middle", "", name);
    }
    for (row, (name, numbers)) in rows.iter().zip(numbers).enumerate() {
        let (_, y) = centre(corner(row + 1, 0));
        chart.text((8.0, y), "start", "", name);
        for (column, number) in numbers.iter().enumerate().filter(|(_, n)| n.is_finite()) {
            let shade = if max > 0.0 { number.abs() / max } else { 0.0 };
            let colour = COLOURS[usize::from(*number < 0.0)];
            let corner = corner(row + 1, column);
            chart.rectangle(corner, CELL, &format!("fill:{colour};fill-opacity:{shade:.3}"));
            let ink = if shade > 0.55 { "fill:#fff" } else { "fill:#000" };
            chart.text(centre(corner), "middle", ink, &label(*number, step));
        }
    }
    let (width, height) = corner(rows.len() + 1, columns.len());
    Ok(chart.into_svg(width + 8.0, height + 8.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_intervals_are_drawn() {
        let axes = ["dB", "WER"].map(Axis::linear);
        let mut line = Line::new("right", vec![(0.0, 0.5), (10.0, 0.1)]);
        let plain = draw_lines(axes, std::slice::from_ref(&line), Legend::UpperRight).unwrap();
        for part in ["<svg", "right", "WER", "<polyline", "0.1"] {
            assert!(plain.contains(part), "{part}");
        }
        line.intervals = vec![[0.4, 0.6], [0.0, 0.2]];
        let with_intervals = draw_lines(axes, &[line], Legend::UpperRight).unwrap();
        assert!(with_intervals.len() > plain.len());
        let scatter = Line::scatter("pairs", vec![(0.0, 0.5), (10.0, 0.1)]);
        let scatter = draw_lines(axes, &[scatter], Legend::None).unwrap();
        let dots = |svg: &str| svg.matches("<circle").count();
        assert_eq!((dots(&scatter), dots(&plain)), (2, 2));
        assert!(!scatter.contains("pairs") && !scatter.contains("<polyline"));
        let error = draw_lines(axes, &[Line::new("", Vec::new())], Legend::None).unwrap_err();
        assert!(error.to_string().contains("no finite values of dB"), "{error}");
    }

    #[test]
    fn points_without_a_position_are_left_out() {
        let axes = [Axis::logarithmic("keys"), Axis::linear("loss")];
        let points = vec![(0.0, 0.5), (1.0, f64::NAN), (10.0, 0.1), (100.0, f64::INFINITY)];
        let line = Line { intervals: vec![[0.0, 0.2]; 4], ..Line::new("right", points) };
        let lines = draw_lines(axes, &[line], Legend::None).unwrap();
        assert_eq!(lines.matches("<circle").count(), 1);
        let names = ["a".to_owned(), "b".to_owned()];
        let numbers = [vec![f64::NAN, 1.0], vec![f64::INFINITY, -0.5]];
        let cells = draw_heatmap(&names, &names, &numbers).unwrap();
        assert!(cells.contains("fill-opacity:1.000") && cells.contains("fill-opacity:0.500"));
        for svg in [lines, cells] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn logarithmic_axes_have_round_numbers_at_equal_ratios() {
        let ticks = |numbers: [f64; 2]| {
            let scale = Scale::new(Axis::logarithmic("keys"), numbers.into_iter()).unwrap();
            let labels = scale.ticks().into_iter().map(|(_, label)| label);
            // Thin spaces group the digits of large numbers.
            labels.map(|label| label.replace(char::is_whitespace, "")).collect::<Vec<_>>()
        };
        assert_eq!(ticks([1.0, 16.0]), ["1", "2", "5", "10"]);
        assert_eq!(ticks([0.15, 1.0]), ["0.2", "0.5", "1"]);
        assert_eq!(ticks([100.0, 1e6]), ["100", "1000", "10000", "100000", "1000000"]);
        let scale = Scale::new(Axis::logarithmic("keys"), [1.0, 100.0].into_iter()).unwrap();
        let [low, middle, high] = [1.0, 10.0, 100.0].map(|number| scale.position(number));
        assert!((middle - low - (high - middle)).abs() < 1e-9 && low > 0.0 && high < 1.0);
    }

    #[test]
    fn each_interval_has_a_row_with_its_name() {
        let mean = Interval::bootstrap_mean("right", &[1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(mean.value, 0.75);
        assert!(mean.bounds[0] < 0.75 && 0.75 < mean.bounds[1], "{mean:?}");
        let svg = draw_intervals("WER", &[mean, Interval::new("none", -0.1, [-0.1; 2])]).unwrap();
        assert!(svg.contains("right") && svg.contains("none") && svg.contains("WER"));
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn a_heat_map_has_all_names_and_numbers() {
        let owned = |names: [&str; 2]| names.map(str::to_owned);
        let numbers = [vec![1.5, 0.0], vec![-0.25, 0.5]];
        let svg = draw_heatmap(&owned(["a fact", "another"]), &owned(["pi", "##e"]), &numbers);
        let svg = svg.unwrap();
        for text in ["a fact", "another", "pi", "##e", "1.50", "−0.25"] {
            assert!(svg.contains(text), "{text}");
        }
        let error = draw_heatmap(&owned(["a", "b"]), &owned(["c", "d"]), &[vec![1.0]]).unwrap_err();
        assert!(error.to_string().contains("2 rows of 2 numbers"), "{error}");
    }
}
