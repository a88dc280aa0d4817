//! Sections common to all pages: metrics, files and method, breakdowns, distribution, warnings.

use super::cases::Cases;
use super::forest::{Group, Row, forest, forest_of_groups, star_note};
use super::numbers::{decimals, fixed, format_value, limits, size};
use super::page::Page;
use super::plots::Histogram;
use super::writer::Html;
use crate::items::Item;
use crate::metric::Range;
use crate::metric::registry::spelling;
use crate::result::{Breakdown, Evaluation, Measure};
use crate::text::interval_heading;

/// Maximum number of groups listed in a breakdown.
const MAX_GROUPS: usize = 200;
/// Breakdowns with more groups are collapsed.
const MAX_OPEN_GROUPS: usize = 40;

/// The value of each item.
pub(super) fn item_values(items: &[Item]) -> Vec<f64> {
    items.iter().map(Item::value).collect()
}

/// The sentence about the items with the value 0, if there are any.
pub(super) fn zero_remark(values: &[f64], items: &str, metric: &str) -> Option<String> {
    let zeros = values.iter().filter(|value| **value == 0.0).count();
    let remark = || format!("{} have a {metric} of 0.", part_of(zeros, values.len(), items));
    (zeros > 0).then(remark)
}

/// A page with the sections that most evaluations have.
pub(super) struct Report<'a> {
    pub(super) title: &'a str,
    /// The text below the title.
    pub(super) lead: String,
    pub(super) evaluation: &'a Evaluation,
    pub(super) warnings: &'a [String],
    /// The kind of items, in the plural: `utterances`.
    pub(super) items: &'a str,
    /// The value of one item: `word error rate of an utterance`.
    pub(super) value_name: &'a str,
    /// The values of the items for the distribution; may be empty.
    pub(super) values: &'a [f64],
    /// The name of the primary value in the distribution; `None` if it is not drawn.
    pub(super) overall: Option<&'a str>,
    /// A sentence about the distribution.
    pub(super) remark: Option<String>,
    pub(super) cases: Cases<'a>,
}

impl Report<'_> {
    pub(super) fn into_html(self) -> String {
        let Self { evaluation, items, .. } = self;
        let mut page = Page::new(self.title, &self.lead);
        first_sections(&mut page, evaluation, self.warnings, items);
        let overall = self.overall.map(|name| (name, evaluation.primary.value));
        let names = (self.value_name, items);
        distribution(&mut page, self.values, names, overall, self.remark);
        breakdowns(&mut page, evaluation);
        self.cases.write(&mut page);
        page.into_html()
    }
}

/// Adds the first sections of every page: warnings, metrics, files and method.
pub(super) fn first_sections(
    page: &mut Page,
    evaluation: &Evaluation,
    warnings: &[String],
    items: &str,
) {
    page.section("Metrics", |html| {
        if !warnings.is_empty() {
            html.node("div", &[("class", "warnings"), ("role", "note")], |html| {
                for warning in warnings {
                    html.node("p", &[], |html| {
                        html.leaf("strong", &[], "Warning: ");
                        html.leaf("span", &[("dir", "auto")], warning);
                    });
                }
            });
        }
        headline(html, &evaluation.primary);
        let measures = || std::iter::once(&evaluation.primary).chain(&evaluation.secondary);
        let rows: Vec<Row<'_>> = measures().map(Row::of_measure).collect();
        forest(html, "metric", &rows, None);
        star_note(html, &rows);
    });
    page.section("Method", |html| method(html, evaluation, items));
}

/// Shows the primary metric in large type.
fn headline(html: &mut Html, primary: &Measure) {
    let decimals = decimals(Row::of_measure(primary).mark().numbers());
    let decimals = primary.interval.as_ref().map_or(decimals, |i| i.decimals(decimals));
    html.node("p", &[("class", "headline")], |html| {
        html.leaf("span", &[("class", "name")], &spelling(&primary.metric));
        html.leaf("strong", &[], &fixed(primary.value, decimals));
        if primary.unit.label() != "" {
            html.leaf("span", &[("class", "unit")], primary.unit.label());
        }
        if let Some(interval) = &primary.interval {
            let text = format!("{} {}", interval_heading(interval), limits(interval, decimals));
            html.leaf("span", &[("class", "limits")], &text);
        }
        if let Some(reason) = &primary.reason {
            html.leaf("span", &[("class", "limits")], reason);
        }
        if let Some(higher_is_better) = primary.higher_is_better {
            html.leaf("span", &[("class", "direction")], better(higher_is_better).trim_start());
        }
    });
}

fn better(higher: bool) -> &'static str {
    if higher { " ↑ higher is better" } else { " ↓ lower is better" }
}

/// Writes the files, the normaliser, the counts and the method of the intervals.
fn method(html: &mut Html, evaluation: &Evaluation, items: &str) {
    html.node("dl", &[], |html| {
        let mut pair = |name: &str, value: &str| {
            html.leaf("dt", &[], name);
            html.foreign("dd", "", value);
        };
        for source in &evaluation.sources {
            let format = source.read_as().map(|format| format!(", read as {format}"));
            let rows = format!("{} rows{}", size(source.rows), format.unwrap_or_default());
            pair(&source.role, &format!("{} ({rows})", source.path));
        }
        let primary = &evaluation.primary;
        pair(items, &size(primary.n));
        pair("normaliser", &evaluation.normaliser);
        if let Some(interval) = &primary.interval {
            pair("intervals", &format!("{}, {}", interval_heading(interval), interval.method));
            let undefined = match interval.undefined_resamples {
                0 => String::new(),
                n => format!(" ({} undefined)", size(n)),
            };
            let resamples =
                format!("{} of {} sampling units", size(interval.resamples), size(interval.units));
            pair("resamples", &(resamples + &undefined));
            pair("seed", &interval.seed.to_string());
        } else {
            pair("intervals", "none");
        }
        let version = format!("{} version {}", spelling(&primary.metric), primary.version);
        pair("definition", &version);
    });
}

/// Adds one table per breakdown; tables of the same grouping share a section.
pub(super) fn breakdowns(page: &mut Page, evaluation: &Evaluation) {
    let overall = |table: &Breakdown| {
        let measures = std::iter::once(&evaluation.primary).chain(&evaluation.secondary);
        let mut matching = measures.filter(|measure| measure.metric == table.metric);
        matching.next().map(|measure| measure.value)
    };
    for grouping in evaluation.breakdowns.chunk_by(|a, b| a.name == b.name) {
        let Some(first) = grouping.first().filter(|table| !table.rows.is_empty()) else { continue };
        page.section(&format!("By {}", super::cases::truncated(&first.name, 60)), |html| {
            html.node("div", &[("class", "tables")], |html| {
                for table in grouping {
                    html.node("div", &[], |html| breakdown(html, table, overall(table)));
                }
            });
        });
    }
}

fn breakdown(html: &mut Html, table: &Breakdown, overall: Option<f64>) {
    html.node("h3", &[], |html| {
        html.text(&spelling(&table.metric));
        if let Some(higher_is_better) = table.higher_is_better {
            html.leaf("span", &[("class", "direction")], better(higher_is_better));
        }
    });
    let rows: Vec<Row<'_>> = table
        .rows
        .iter()
        .take(MAX_GROUPS)
        .map(|group| Row {
            name: if group.name.is_empty() { "(none)" } else { &group.name }.to_owned(),
            higher_is_better: None,
            n: group.n,
            value: group.value,
            reason: group.reason.as_deref(),
            interval: group.interval.as_ref(),
            range: Range::of(&table.metric, table.unit),
        })
        .collect();
    let write = |html: &mut Html| {
        forest_of_groups(html, &table.name, &[Group { rows: &rows, overall }], true);
        star_note(html, &rows);
        if let Some(overall) = overall {
            let text = format!("Dashed line: the overall value, {}.", format_value(overall));
            html.leaf("p", &[("class", "note")], &text);
        }
    };
    if table.rows.len() > MAX_GROUPS {
        let text = format!("The first {} of {} groups.", size(MAX_GROUPS), size(table.rows.len()));
        html.leaf("p", &[("class", "note")], &text);
    }
    if rows.len() > MAX_OPEN_GROUPS {
        html.node("details", &[], |html| {
            html.leaf("summary", &[], &format!("{} groups", size(rows.len())));
            write(html);
        })
    } else {
        write(html)
    }
}

/// Adds a histogram of the values of single items. `quantity` and `items` are names for its labels.
pub(super) fn distribution(
    page: &mut Page,
    values: &[f64],
    (quantity, items): (&str, &str),
    overall: Option<(&str, f64)>,
    remark: Option<String>,
) {
    if !values.iter().any(|value| value.is_finite()) {
        return;
    }
    page.section("Distribution", |html| {
        html.node("figure", &[], |html| {
            Histogram { values, quantity, items, overall }.draw(html);
            if let Some(remark) = remark {
                html.leaf("figcaption", &[], &remark);
            }
        });
    });
}

/// Formats a part of a total, like `1234 of 2939 utterances (42.0 %)`.
pub(super) fn part_of(part: usize, whole: usize, items: &str) -> String {
    let percentage = super::numbers::percent(part as f64, whole.max(1) as f64);
    format!("{} of {} {items} ({percentage})", size(part), size(whole))
}

/// The name of a row, and its formatted numbers.
pub(super) type PlainRow = (Html, Vec<String>);

/// Writes a table with one heading per column; the first column is left-aligned, the others
/// right-aligned.
pub(super) fn plain_table(html: &mut Html, headings: &[&str], rows: &[PlainRow]) {
    html.node("table", &[("class", "plain")], |html| {
        let class = |column: usize| if column == 0 { "" } else { "number" };
        html.table_head(headings.iter().enumerate().map(|(index, name)| (*name, class(index))));
        html.node("tbody", &[], |html| {
            for (name, numbers) in rows {
                html.node("tr", &[], |html| {
                    html.node("th", &[("scope", "row")], |html| html.append(name));
                    for number in numbers {
                        html.leaf("td", &[("class", "number")], number);
                    }
                });
            }
        });
    });
}
