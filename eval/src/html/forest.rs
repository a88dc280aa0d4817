//! Tables of values with their intervals, drawn on one axis (forest plots).

use super::axis::Axis;
use super::numbers::{decimals, fixed, limits, size};
use super::plots::{Mark, RowScale, interval_axis, interval_row};
use super::writer::Html;
use crate::metric::registry::spelling;
use crate::result::{Interval, MIN_UNITS, Measure};
use crate::text::interval_heading;

/// Number of axis steps.
const STEPS: usize = 4;
/// Plot width in a table that fills the page.
const WIDE_PLOT: f64 = 460.0;
/// Plot width in one of several tables side by side.
const NARROW_PLOT: f64 = 192.0;

/// One row of the table.
#[derive(Debug, Clone)]
pub(super) struct Row<'a> {
    pub(super) name: String,
    /// Draws an arrow beside the name; `None` for no arrow.
    pub(super) higher_is_better: Option<bool>,
    pub(super) n: usize,
    pub(super) value: f64,
    pub(super) reason: Option<&'a str>,
    pub(super) interval: Option<&'a Interval>,
}

impl<'a> Row<'a> {
    pub(super) fn of_measure(measure: &'a Measure) -> Self {
        Self {
            name: spelling(&measure.metric),
            higher_is_better: measure.higher_is_better,
            n: measure.n,
            value: measure.value,
            reason: measure.reason.as_deref(),
            interval: measure.interval.as_ref(),
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { value: self.value, limits: self.interval.map(|i| (i.low, i.high)) }
    }
}

/// Optional parts of a forest table.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForestOptions {
    /// The overall value, drawn as a dashed line; `None` for no line.
    pub(super) overall: Option<f64>,
    /// Whether to show each row's count; the plot is then narrower.
    pub(super) show_n: bool,
}

/// The properties shared by all rows.
struct Table<'a> {
    options: &'a ForestOptions,
    scale: Option<RowScale>,
    /// Whether any row has an interval.
    has_intervals: bool,
    /// Number of decimals, the same in all rows.
    decimals: usize,
}

/// Writes a table of values with intervals, drawn on one axis.
pub(super) fn forest(html: &mut Html, name: &str, rows: &[Row<'_>], options: &ForestOptions) {
    let numbers = || rows.iter().flat_map(|row| row.mark().numbers());
    let overall = options.overall.filter(|value| value.is_finite());
    let axis = Axis::over(numbers().chain(overall), STEPS);
    let (width, class) =
        if options.show_n { (NARROW_PLOT, "forest") } else { (WIDE_PLOT, "forest wide") };
    let interval = rows.iter().find_map(|row| row.interval);
    let table = Table {
        options,
        scale: axis.map(|axis| RowScale { axis, width }),
        has_intervals: interval.is_some(),
        decimals: decimals(numbers()),
    };
    html.node(
        "div",
        &[("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", name)],
        |html| {
            html.node("table", &[("class", class)], |html| {
                html.node("thead", &[], |html| {
                    html.node("tr", &[], |html| {
                        html.leaf("th", &[("scope", "col")], name);
                        if options.show_n {
                            html.leaf("th", &[("scope", "col"), ("class", "number")], "n");
                        }
                        html.leaf("th", &[("scope", "col"), ("class", "number")], "value");
                        if let Some(interval) = interval {
                            html.leaf("th", &[("scope", "col")], &interval_heading(interval));
                        }
                        html.leaf("th", &[("scope", "col"), ("class", "plot")], "");
                    });
                });
                html.node("tbody", &[], |html| {
                    for row in rows {
                        html.node("tr", &[], |html| forest_row(html, row, &table));
                    }
                });
                if let Some(scale) = &table.scale {
                    html.node("tfoot", &[], |html| {
                        html.node("tr", &[], |html| {
                            let columns_before_plot =
                                2 + usize::from(options.show_n) + usize::from(interval.is_some());
                            html.leaf("td", &[("colspan", &columns_before_plot.to_string())], "");
                            html.node("td", &[("class", "plot")], |html| {
                                interval_axis(html, scale)
                            });
                        });
                    });
                }
            });
        },
    );
}

fn forest_row(html: &mut Html, row: &Row<'_>, table: &Table<'_>) {
    html.node("th", &[("scope", "row"), ("dir", "auto")], |html| {
        html.text(&super::cases::truncated(&row.name, 120));
        if let Some(higher_is_better) = row.higher_is_better {
            let (arrow, title) = if higher_is_better {
                (" ↑", "higher is better")
            } else {
                (" ↓", "lower is better")
            };
            html.leaf("span", &[("class", "direction"), ("title", title)], arrow);
        }
    });
    if table.options.show_n {
        html.leaf("td", &[("class", "number n")], &size(row.n));
    }
    let value = fixed(row.value, table.decimals);
    match row.reason {
        Some(reason) => {
            html.leaf("td", &[("class", "number"), ("title", reason)], &value);
        }
        None => html.leaf("td", &[("class", "number")], &value),
    }
    let limits = row.interval.map(|interval| limits(interval, table.decimals));
    if table.has_intervals {
        html.leaf("td", &[("class", "limits")], limits.as_deref().unwrap_or(""));
    }
    html.node("td", &[("class", "plot")], |html| {
        if let Some(scale) = table.scale.as_ref().filter(|_| row.value.is_finite()) {
            let limits = limits.unwrap_or_default();
            let title = format!("{}: {} {limits}", row.name, value);
            interval_row(html, scale, row.mark(), table.options.overall, title.trim_end());
        } else if let Some(reason) = row.reason {
            html.leaf("span", &[("class", "reason"), ("dir", "auto")], reason);
        }
    });
}

/// Explains the star of an interval with few sampling units, if there is such an interval.
pub(super) fn star_note(html: &mut Html, rows: &[Row<'_>]) {
    if rows.iter().any(|row| row.interval.is_some_and(|i| i.units < MIN_UNITS)) {
        let text = format!("* fewer than {MIN_UNITS} sampling units: a rough interval");
        html.leaf("p", &[("class", "note")], &text);
    }
}
