//! The page for several systems: the metric of each, and the difference of each pair.

use super::forest::{Row, forest, star_note};
use super::page::Page;
use super::sections::plain_table;
use super::writer::Html;
use crate::compare::{Comparisons, MATRIX_NOTE};
use crate::metric::registry::spelling;

impl Comparisons {
    /// The comparisons as a page.
    pub fn to_html(&self) -> String {
        let metric = self.measures().next().map(|measure| spelling(&measure.metric));
        let mut page = Page::new("Comparison of systems", &metric.unwrap_or_default());
        let systems = self.systems.iter().cloned().zip(self.measures()).collect::<Vec<_>>();
        let pairs = self.pairs.iter().map(|pair| (pair.systems.join(" − "), &pair.difference));
        for (heading, measures) in [("Systems", systems), ("Differences", pairs.collect())] {
            let row = |(name, measure)| Row { name, ..Row::of_measure(measure) };
            let rows: Vec<Row<'_>> = measures.into_iter().map(row).collect();
            page.section(heading, |html| {
                forest(html, heading, &rows, None);
                star_note(html, &rows);
            });
        }
        page.section("Matrix", |html| {
            let name = |(number, system): (usize, &String)| {
                let mut name = Html::default();
                name.foreign("span", "", &format!("{number} {system}"));
                name
            };
            let names = (1..).zip(&self.systems).map(name);
            let rows: Vec<_> = names.zip(self.matrix()).collect();
            let numbers: Vec<String> = (1..=rows.len()).map(|n| n.to_string()).collect();
            let headings = std::iter::once("system").chain(numbers.iter().map(String::as_str));
            plain_table(html, &headings.collect::<Vec<_>>(), &rows);
            html.leaf("p", &[("class", "note")], MATRIX_NOTE);
        });
        page.into_html()
    }
}
