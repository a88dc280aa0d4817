//! Tables of values with their intervals, drawn on one axis (forest plots).

use super::axis::Axis;
use super::numbers::{decimals, fixed, limits, size};
use super::plots::{Mark, RowScale, interval_axis, interval_row};
use super::writer::Html;
use crate::metric::Range;
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
    /// The metric's range, for the axis.
    pub(super) range: Range,
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
            range: Range::of(&measure.metric, measure.unit),
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { value: self.value, limits: self.interval.map(|i| (i.low, i.high)) }
    }
}

/// Rows that share an axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) rows: &'a [Row<'a>],
    /// A value for comparison, drawn as a dashed line; `None` for no line.
    pub(super) overall: Option<f64>,
}

impl Group<'_> {
    /// The values and limits of all rows.
    fn numbers(&self) -> impl Iterator<Item = f64> + '_ {
        self.rows.iter().flat_map(|row| row.mark().numbers())
    }

    /// An axis over all values and limits, within the range of the metrics; `None` without values.
    fn scale(&self, width: f64) -> Option<RowScale> {
        let numbers = || self.numbers().chain(self.overall.filter(|value| value.is_finite()));
        let mut axis = Axis::over(numbers(), STEPS)?;
        let union = |a: Range, b: Range| Range::new(a.low.min(b.low), a.high.max(b.high));
        if let Some(range) = self.rows.iter().map(|row| row.range).reduce(union) {
            axis = axis.within(range, numbers());
        }
        Some(RowScale { axis, width })
    }
}

/// The properties shared by the rows of a group.
struct Table {
    show_n: bool,
    /// Whether any row of the table has an interval.
    has_intervals: bool,
    scale: Option<RowScale>,
    overall: Option<f64>,
    /// Number of decimals, the same in all rows.
    decimals: usize,
}

/// Writes a table of values with intervals, drawn on one axis. A dashed line marks `overall`.
pub(super) fn forest(html: &mut Html, name: &str, rows: &[Row<'_>], overall: Option<f64>) {
    forest_of_groups(html, name, &[Group { rows, overall }], false);
}

/// Writes a table of values with intervals. The rows of each group have their own axis below them.
/// `show_n` shows the count of each row; the plot is then narrower.
pub(super) fn forest_of_groups(html: &mut Html, name: &str, groups: &[Group<'_>], show_n: bool) {
    let (width, class) = if show_n { (NARROW_PLOT, "forest") } else { (WIDE_PLOT, "forest wide") };
    let rows = || groups.iter().flat_map(|group| group.rows);
    let interval = rows().find_map(|row| row.interval);
    let decimals = decimals(groups.iter().flat_map(Group::numbers));
    html.node(
        "div",
        &[("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", name)],
        |html| {
            html.node("table", &[("class", class)], |html| {
                let mut columns = vec![(name, ""), ("value", "number"), ("", "plot")];
                let heading = interval.map(interval_heading);
                if let Some(heading) = &heading {
                    columns.insert(2, (heading.as_str(), ""));
                }
                if show_n {
                    columns.insert(1, ("n", "number"));
                }
                html.table_head(columns);
                for group in groups {
                    let table = Table {
                        show_n,
                        has_intervals: interval.is_some(),
                        scale: group.scale(width),
                        overall: group.overall,
                        decimals,
                    };
                    html.node("tbody", &[], |html| {
                        for row in group.rows {
                            html.node("tr", &[], |html| forest_row(html, row, &table));
                        }
                        if let Some(scale) = &table.scale {
                            html.node("tr", &[("class", "axis")], |html| {
                                let columns =
                                    2 + usize::from(show_n) + usize::from(interval.is_some());
                                html.leaf("td", &[("colspan", &columns.to_string())], "");
                                html.node("td", &[("class", "plot")], |html| {
                                    interval_axis(html, scale);
                                });
                            });
                        }
                    });
                }
            });
        },
    );
}

fn forest_row(html: &mut Html, row: &Row<'_>, table: &Table) {
    html.node("th", &[("scope", "row"), ("dir", "auto")], |html| {
        html.text(&super::cases::truncated(&row.name, 120));
        direction(html, row.higher_is_better);
    });
    if table.show_n {
        html.leaf("td", &[("class", "number n")], &size(row.n));
    }
    let decimals =
        row.interval.map_or(table.decimals, |interval| interval.decimals(table.decimals));
    let value = fixed(row.value, decimals);
    match row.reason {
        Some(reason) => {
            html.leaf("td", &[("class", "number"), ("title", reason)], &value);
        }
        None => html.leaf("td", &[("class", "number")], &value),
    }
    let limits = row.interval.map(|interval| limits(interval, decimals));
    if table.has_intervals {
        html.leaf("td", &[("class", "limits")], limits.as_deref().unwrap_or(""));
    }
    html.node("td", &[("class", "plot")], |html| {
        if let Some(scale) = table.scale.as_ref().filter(|_| row.value.is_finite()) {
            let limits = limits.unwrap_or_default();
            let title = format!("{}: {} {limits}", row.name, value);
            interval_row(html, scale, row.mark(), table.overall, title.trim_end());
        } else if let Some(reason) = row.reason {
            html.leaf("span", &[("class", "reason"), ("dir", "auto")], reason);
        }
    });
}

/// Writes an arrow in the direction of better values; nothing for a descriptive value.
pub(super) fn direction(html: &mut Html, higher_is_better: Option<bool>) {
    let (arrow, title) = match higher_is_better {
        Some(true) => (" ↑", "higher is better"),
        Some(false) => (" ↓", "lower is better"),
        None => return,
    };
    html.leaf("span", &[("class", "direction"), ("title", title)], arrow);
}

/// Explains the star of an interval with few sampling units, if there is such an interval.
pub(super) fn star_note(html: &mut Html, rows: &[Row<'_>]) {
    if rows.iter().any(|row| row.interval.is_some_and(|i| i.units < MIN_UNITS)) {
        let text = format!("* fewer than {MIN_UNITS} sampling units: a rough interval");
        html.leaf("p", &[("class", "note")], &text);
    }
}
