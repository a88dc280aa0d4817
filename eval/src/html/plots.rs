//! Plots as inline SVG; the page's style sets the colours.

use super::axis::{Axis, inside};
use super::numbers::{format_value, percent, size};
use super::writer::Html;

/// Height of an interval plot.
const ROW_HEIGHT: f64 = 18.0;
/// Width of a letter of a label.
const LETTER_WIDTH: f64 = 6.5;
/// Margin left and right of the axis, for the tick labels.
const ROW_MARGIN: f64 = 16.0;

/// A value and its interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub(super) value: f64,
    pub(super) limits: Option<(f64, f64)>,
}

impl Mark {
    /// The value and the limits, without infinite values and NaN, to fit the axis.
    pub(super) fn numbers(self) -> impl Iterator<Item = f64> {
        let limits = self.limits.map_or([f64::NAN; 2], |(low, high)| [low, high]);
        limits.into_iter().chain([self.value]).filter(|value| value.is_finite())
    }
}

/// An axis over the width of an interval plot.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowScale {
    pub(super) axis: Axis,
    pub(super) width: f64,
}

impl RowScale {
    fn x_at(&self, position: f64) -> f64 {
        ROW_MARGIN + position * (self.width - 2.0 * ROW_MARGIN)
    }

    fn x_of(&self, value: f64) -> f64 {
        self.x_at(self.axis.position(value))
    }

    fn view(&self) -> String {
        format!("0 0 {} {ROW_HEIGHT}", self.width)
    }
}

/// Formats a length with at most one decimal.
fn length(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

fn line(html: &mut Html, class: &str, from: (f64, f64), to: (f64, f64)) {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(length);
    let attributes = [("class", class), ("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2)];
    html.leaf("line", &attributes, "");
}

fn label(html: &mut Html, anchor: &str, position: (f64, f64), text: &str) {
    let (x, y) = (length(position.0), length(position.1));
    html.leaf("text", &[("x", &x), ("y", &y), ("text-anchor", anchor)], text);
}

/// Writes a label below an axis of a plot of this width.
fn tick_label(html: &mut Html, width: f64, (x, y): (f64, f64), text: &str) {
    label(html, "middle", (inside(x, text, LETTER_WIDTH, width), y), text);
}

/// Draws one value with its interval, for a row of a table; `overall` is drawn as a dashed line.
pub(super) fn interval_row(
    html: &mut Html,
    scale: &RowScale,
    mark: Mark,
    overall: Option<f64>,
    title: &str,
) {
    let view = scale.view();
    let attributes = [("class", "row"), ("viewBox", view.as_str()), ("role", "img")];
    html.node("svg", &attributes, |html| {
        html.leaf("title", &[], title);
        // Extends the hover area beyond the mark.
        let (width, height) = (length(scale.width), length(ROW_HEIGHT));
        html.leaf("rect", &[("class", "hover"), ("width", &width), ("height", &height)], "");
        for (position, _) in scale.axis.ticks() {
            let x = scale.x_at(position);
            line(html, "grid", (x, 0.0), (x, ROW_HEIGHT));
        }
        if let Some(overall) = overall.filter(|overall| overall.is_finite()) {
            let x = scale.x_of(overall);
            line(html, "overall", (x, 0.0), (x, ROW_HEIGHT));
        }
        let middle = ROW_HEIGHT / 2.0;
        if let Some((low, high)) = mark.limits.filter(|(a, b)| a.is_finite() && b.is_finite()) {
            let (low, high) = (scale.x_of(low), scale.x_of(high));
            line(html, "whisker", (low, middle), (high, middle));
            for end in [low, high] {
                line(html, "whisker", (end, middle - 4.0), (end, middle + 4.0));
            }
        }
        if mark.value.is_finite() {
            let (x, y) = (length(scale.x_of(mark.value)), length(middle));
            html.leaf("circle", &[("class", "mark"), ("cx", &x), ("cy", &y), ("r", "4")], "");
        }
    });
}

/// Draws the axis below the interval rows.
pub(super) fn interval_axis(html: &mut Html, scale: &RowScale) {
    let view = scale.view();
    let attributes = [("class", "row"), ("viewBox", view.as_str()), ("aria-hidden", "true")];
    html.node("svg", &attributes, |html| {
        line(html, "axis", (scale.x_at(0.0), 0.5), (scale.x_at(1.0), 0.5));
        for (position, text) in scale.axis.ticks() {
            let x = scale.x_at(position);
            line(html, "axis", (x, 0.0), (x, 4.0));
            tick_label(html, scale.width, (x, 15.0), &text);
        }
    });
}

/// A histogram of the values of single items.
pub(super) struct Histogram<'a> {
    pub(super) values: &'a [f64],
    /// The quantity on the axis: `word error rate of an utterance`.
    pub(super) quantity: &'a str,
    /// The kind of items, in the plural: `utterances`.
    pub(super) items: &'a str,
    /// The name and the value of the overall metric, drawn as a line; `None` for no line.
    pub(super) overall: Option<(&'a str, f64)>,
}

/// Width and height of a histogram, then its margins.
const PLOT_SIZE: (f64, f64) = (560.0, 270.0);
const LEFT_MARGIN: f64 = 58.0;
const RIGHT_MARGIN: f64 = 14.0;
const TOP_MARGIN: f64 = 42.0;
const BOTTOM_MARGIN: f64 = 46.0;

/// With at most this number of distinct values, each value has its own bar.
const MAX_VALUE_BARS: usize = 12;

struct Bar {
    low: f64,
    high: f64,
    count: usize,
    name: String,
}

/// Returns the axis, the bars, and whether the last bar is open-ended: it includes all values
/// beyond the axis. `None` if no value is finite.
fn bars(values: &[f64]) -> Option<(Axis, Vec<Bar>, bool)> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    // The last bar collects outliers. Otherwise a few of them would squeeze all other values into
    // one bar.
    let high_percentile = sorted[((sorted.len() - 1) * 995).div_ceil(1000)];
    let has_outliers = max - min > 2.0 * (high_percentile - min) && high_percentile > min;
    let end = if has_outliers { high_percentile } else { max };
    let start = if min >= 0.0 { 0.0 } else { min };
    let axis = Axis::over([start, min, end], 5)?;
    let mut distinct = sorted.clone();
    distinct.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
    if distinct.len() <= MAX_VALUE_BARS && distinct.len() > 1 && !has_outliers {
        let smallest_gap =
            distinct.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::MAX, f64::min);
        let span = axis.high() - axis.low();
        let half_width = (0.4 * smallest_gap).clamp(0.008 * span, 0.03 * span);
        let bar = |value: &f64| Bar {
            low: value - half_width,
            high: value + half_width,
            count: sorted.iter().filter(|other| (*other - value).abs() < 1e-9).count(),
            name: format_value(*value),
        };
        return Some((axis, distinct.iter().map(bar).collect(), false));
    }
    let bins_per_step = (30 / axis.steps()).max(1);
    let bin_limits = axis.bins(bins_per_step);
    let mut bars: Vec<Bar> = bin_limits
        .iter()
        .map(|(low, high)| Bar {
            low: *low,
            high: *high,
            count: 0,
            name: format!("{} to {}", axis.label(*low), axis.label(*high)),
        })
        .collect();
    let last = bars.len().checked_sub(1)?;
    for value in &sorted {
        let bin = (axis.position(*value) * bars.len() as f64 + 1e-9) as usize;
        bars[bin.min(last)].count += 1;
    }
    let open_ended = max > axis.high();
    if open_ended {
        bars[last].name = format!("{} or more", axis.label(bars[last].low));
    }
    Some((axis, bars, open_ended))
}

impl Histogram<'_> {
    /// Draws the plot, unless no value is finite.
    pub(super) fn draw(&self, html: &mut Html) {
        let Some((axis, bars, open_ended)) = bars(self.values) else { return };
        let total: usize = bars.iter().map(|bar| bar.count).sum();
        let max = bars.iter().map(|bar| bar.count).max().unwrap_or(0);
        let Some(counts) = Axis::over([0.0, max.max(1) as f64], max.clamp(1, 4)) else { return };
        let (bottom, right) = (PLOT_SIZE.1 - BOTTOM_MARGIN, PLOT_SIZE.0 - RIGHT_MARGIN);
        // Bars of single values at the ends need space beyond the ticks.
        let (plot_left, width) = (LEFT_MARGIN + 8.0, right - LEFT_MARGIN - 16.0);
        let x = |value: f64| plot_left + (value - axis.low()) / (axis.high() - axis.low()) * width;
        let y = |count: f64| bottom - counts.position(count) * (bottom - TOP_MARGIN);
        let view = format!("0 0 {} {}", PLOT_SIZE.0, PLOT_SIZE.1);
        let name = format!("Histogram: {}, {} {}", self.quantity, size(total), self.items);
        let attributes =
            [("class", "histogram"), ("viewBox", &view), ("role", "img"), ("aria-label", &name)];
        html.node("svg", &attributes, |html| {
            for (position, text) in counts.ticks() {
                let y = bottom - position * (bottom - TOP_MARGIN);
                line(html, "grid", (LEFT_MARGIN, y), (right, y));
                label(html, "end", (LEFT_MARGIN - 6.0, y + 4.0), &text);
            }
            for bar in &bars {
                let (low, high) = (x(bar.low).max(LEFT_MARGIN), x(bar.high).min(right));
                let [left, bar_width] = [low + 0.5, (high - low - 1.0).max(1.0)].map(length);
                let [top, bar_height] =
                    [y(bar.count as f64), bottom - y(bar.count as f64)].map(length);
                let percentage = percent(bar.count as f64, total as f64);
                let title =
                    format!("{}: {} {} ({percentage})", bar.name, size(bar.count), self.items);
                html.node("g", &[("class", "bin")], |html| {
                    html.leaf("title", &[], &title);
                    let [plot_top, plot_height] = [TOP_MARGIN, bottom - TOP_MARGIN].map(length);
                    let (x, width) = (("x", left.as_str()), ("width", bar_width.as_str()));
                    let (y, height) = (("y", plot_top.as_str()), ("height", plot_height.as_str()));
                    html.leaf("rect", &[("class", "hover"), x, y, width, height], "");
                    let (y, height) = (("y", top.as_str()), ("height", bar_height.as_str()));
                    let bar_attributes = [("class", "bar"), x, y, width, height];
                    html.leaf("rect", &bar_attributes, "");
                });
            }
            line(html, "axis", (LEFT_MARGIN, bottom), (right, bottom));
            for (position, text) in axis.ticks() {
                let x = plot_left + position * width;
                line(html, "axis", (x, bottom), (x, bottom + 4.0));
                let suffix = if open_ended && position == 1.0 { "+" } else { "" };
                tick_label(html, PLOT_SIZE.0, (x, bottom + 17.0), &(text + suffix));
            }
            let centre = ((LEFT_MARGIN + right) / 2.0, PLOT_SIZE.1 - 8.0);
            tick_label(html, PLOT_SIZE.0, centre, self.quantity);
            label(html, "start", (4.0, 15.0), self.items);
            if let Some((name, value)) = self.overall.filter(|(_, value)| value.is_finite()) {
                let overall_x = x(value.clamp(axis.low(), axis.high()));
                line(html, "overall", (overall_x, TOP_MARGIN - 4.0), (overall_x, bottom));
                let anchor = if axis.position(value) > 0.6 { "end" } else { "start" };
                label(
                    html,
                    anchor,
                    (overall_x, TOP_MARGIN - 8.0),
                    &format!("{name} {}", format_value(value)),
                );
            }
        });
    }
}

/// Draws a bar whose length is proportional to its share.
pub(super) fn share_bar(html: &mut Html, class: &str, share: f64) {
    let width = length(100.0 * share.clamp(0.0, 1.0));
    let attributes = [
        ("class", "share"),
        ("viewBox", "0 0 100 10"),
        ("aria-hidden", "true"),
        ("preserveAspectRatio", "none"),
    ];
    html.node("svg", &attributes, |html| {
        html.leaf("rect", &[("class", class), ("width", &width), ("height", "10")], "");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_a_bar() {
        let noise: Vec<f64> = (0..997).map(|i| f64::from(i * i % 101) / 100.0).collect();
        let with_outlier = [&noise[..], &[50.0]].concat();
        for values in [&noise[..], &with_outlier, &[0.0; 7], &[0.0, 30.0, 100.0], &[-2.0, 1.0, 3.5]]
        {
            let (_, bars, _) = bars(values).unwrap();
            assert_eq!(bars.iter().map(|bar| bar.count).sum::<usize>(), values.len());
        }
        assert!(bars(&with_outlier).unwrap().1.last().unwrap().name.ends_with("or more"));
        assert!(bars(&[f64::NAN]).is_none());
        let value_bars = bars(&[0.0, 30.0, 100.0]).unwrap().1;
        assert_eq!(
            value_bars.iter().map(|bar| &*bar.name).collect::<Vec<_>>(),
            ["0.0000", "30.00", "100.00"]
        );
    }
}
