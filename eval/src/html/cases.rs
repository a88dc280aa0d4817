//! The table of the worst cases; the page's script sorts and filters it.

use super::numbers::size;
use super::page::Page;
use super::writer::Html;

/// Maximum number of references shown with a text.
const MAX_REFERENCES: usize = 10;
/// Maximum length of a text or a reference, in characters.
const TEXT_WIDTH: usize = 600;

/// A column heading, and the kind of its cells.
pub(super) type Column<'a> = (&'a str, Kind);

/// The kind of a column's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Names: sorted as text.
    Name,
    /// Short codes.
    Code,
    /// Numbers: sorted by value.
    Number,
    /// Text for reading: not sorted, as wide as possible.
    Reading,
}

#[derive(Debug)]
pub(super) enum Cell {
    /// A number and its displayed form.
    Number(f64, String),
    /// A text from a file.
    Text(String),
    /// Markup.
    Rich(Html),
}

impl Cell {
    pub(super) fn number(value: f64) -> Self {
        Self::Number(value, super::numbers::format_value(value))
    }

    pub(super) fn count(count: u64) -> Self {
        Self::Number(count as f64, super::numbers::count(count))
    }

    /// A text, shortened to 400 characters.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(truncated(text, 400))
    }
}

/// The worst cases and their description.
pub(super) struct Cases<'a> {
    /// The kind of items, in the plural: `utterances`.
    pub(super) items: &'a str,
    /// The number of all cases, listed or not.
    pub(super) total: usize,
    /// The order of the cases, in words: `by number of errors`.
    pub(super) order: &'a str,
    pub(super) columns: &'a [Column<'a>],
    pub(super) rows: Vec<Vec<Cell>>,
    /// Explains the marks in the cells.
    pub(super) legend: Html,
}

impl Cases<'_> {
    /// Adds the section, unless there are no cases.
    pub(super) fn write(&self, page: &mut Page) {
        if self.rows.is_empty() {
            return;
        }
        page.section("Worst cases", |html| {
            let (listed, total) = (self.rows.len(), self.total.max(self.rows.len()));
            let text = if listed == total {
                format!("All {} {}, {}.", size(total), self.items, self.order)
            } else {
                let (listed, total) = (size(listed), size(total));
                format!("The worst {listed} of {total} {}, {}.", self.items, self.order)
            };
            html.leaf("p", &[], &text);
            html.append(&self.legend);
            html.node("div", &[("class", "cases")], |html| {
                self.controls(html);
                self.table(html);
            });
        });
    }

    /// The controls are hidden until the script enables them.
    fn controls(&self, html: &mut Html) {
        html.node("div", &[("class", "controls"), ("hidden", "")], |html| {
            html.node("label", &[], |html| {
                html.text("Filter ");
                let attributes = [
                    ("type", "search"),
                    ("class", "filter"),
                    ("placeholder", "word or id"),
                    ("autocomplete", "off"),
                ];
                html.void("input", &attributes);
            });
            html.node("label", &[], |html| {
                html.text("Sort ");
                html.node("select", &[("class", "order")], |html| {
                    html.leaf("option", &[("value", "")], "worst first");
                    for (index, (heading, kind)) in self.columns.iter().enumerate() {
                        let direction_names = match kind {
                            Kind::Reading => continue,
                            Kind::Name | Kind::Code => ["A to Z", "Z to A"],
                            Kind::Number => ["ascending", "descending"],
                        };
                        for (direction, direction_name) in
                            ["up", "down"].into_iter().zip(direction_names)
                        {
                            let value = format!("{index} {direction}");
                            let text = format!("{heading}, {direction_name}");
                            html.leaf("option", &[("value", &value)], &text);
                        }
                    }
                });
            });
            let count = [("class", "shown"), ("role", "status"), ("aria-live", "polite")];
            html.leaf("span", &count, "");
        });
    }

    fn table(&self, html: &mut Html) {
        html.node("table", &[("class", "list")], |html| {
            html.table_head(self.columns.iter().map(|(heading, kind)| (*heading, class(*kind))));
            html.node("tbody", &[], |html| {
                for row in &self.rows {
                    html.node("tr", &[], |html| {
                        for (cell, column) in row.iter().zip(self.columns) {
                            write_cell(html, cell, column);
                        }
                    });
                }
            });
        });
    }
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Name => "name",
        Kind::Code => "code",
        Kind::Number => "number",
        Kind::Reading => "reading",
    }
}

fn write_cell(html: &mut Html, cell: &Cell, (heading, kind): &Column<'_>) {
    let (class, label) = (("class", class(*kind)), ("data-label", *heading));
    match cell {
        Cell::Number(value, displayed) => {
            let value = if value.is_finite() { value.to_string() } else { String::new() };
            html.leaf("td", &[class, label, ("data-value", &value)], displayed);
        }
        Cell::Text(text) => html.leaf("td", &[class, label, ("dir", "auto")], text),
        Cell::Rich(inside) => html.node("td", &[class, label], |html| html.append(inside)),
    }
}

/// A system's text above its references.
pub(super) fn with_references(text: &str, references: &[String]) -> Html {
    let mut html = Html::default();
    html.foreign("p", "given", &truncated(text, TEXT_WIDTH));
    html.node("ul", &[], |html| {
        for reference in references.iter().take(MAX_REFERENCES) {
            html.foreign("li", "", &truncated(reference, TEXT_WIDTH));
        }
    });
    if let Some(more @ 1..) = references.len().checked_sub(MAX_REFERENCES) {
        html.leaf("p", &[("class", "note")], &format!("and {} more references", size(more)));
    }
    html
}

/// Shortens a text to at most `max_length` characters, with an ellipsis.
pub(super) fn truncated(text: &str, max_length: usize) -> String {
    match text.char_indices().nth(max_length) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
