//! The page for retrieval: the first retrieved entries, and the relevant entries that were missed.

use super::cases::{Cases, Cell, Column, Kind, truncated};
use super::numbers::{count, size};
use super::sections::{self, Report};
use super::writer::Html;
use crate::retrieval::{RetrievalReport, WorstQuery};

/// Maximum length of an id, in characters.
const ID_WIDTH: usize = 120;

fn columns(primary: &str) -> [Column<'_>; 5] {
    [
        ("query", Kind::Name),
        (primary, Kind::Number),
        ("first relevant rank", Kind::Number),
        ("relevant", Kind::Number),
        ("retrieved and missed", Kind::Reading),
    ]
}

impl RetrievalReport {
    /// The report as a page: all metrics, the distribution of [`RetrievalReport::items`], and the
    /// queries in [`RetrievalReport::worst`].
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        let primary = evaluation.primary.metric.as_str();
        let value_name = format!("{primary} of a query");
        let values = sections::item_values(&self.items);
        Report {
            title: "Retrieval",
            lead: format!("{} queries", size(evaluation.primary.n)),
            evaluation,
            warnings: &self.warnings,
            items: "queries",
            value_name: &value_name,
            values: &values,
            overall: Some("mean"),
            remark: sections::zero_remark(&values, "queries", primary),
            cases: Cases {
                items: "queries below 1",
                total: values.iter().filter(|value| **value < 1.0).count(),
                order: &format!("by {primary}, then by the rank of the first relevant entry"),
                columns: &columns(primary),
                rows: self.worst.iter().map(cells).collect(),
                legend: Html::default(),
            },
        }
        .into_html()
    }
}

fn cells(query: &WorstQuery) -> Vec<Cell> {
    let mut html = Html::default();
    let list = |html: &mut Html, label: &str, ids: &[(&str, &String)], more: usize| {
        html.node("p", &[], |html| {
            html.leaf("span", &[("class", "label")], &format!("{label} "));
            for (index, (class, id)) in ids.iter().enumerate() {
                html.text(if index == 0 { "" } else { ", " });
                html.foreign("span", class, &truncated(id, ID_WIDTH));
            }
            if ids.is_empty() {
                html.leaf("span", &[("class", "times")], "none");
            }
            if more > 0 {
                html.text(&format!(" and {} more", size(more)));
            }
        });
    };
    let class = |relevant: bool| if relevant { "right" } else { "" };
    let retrieved = query.retrieved.iter();
    let retrieved: Vec<_> = retrieved.map(|(id, relevant)| (class(*relevant), id)).collect();
    list(&mut html, "first retrieved", &retrieved, 0);
    let missed: Vec<_> = query.missed.iter().map(|id| ("", id)).collect();
    list(&mut html, "relevant, not retrieved", &missed, query.missed_total - missed.len());
    let rank = match query.first_rank {
        Some(rank) => Cell::count(rank as u64),
        None => Cell::Number(f64::NAN, "–".to_owned()),
    };
    vec![
        Cell::text(&query.id),
        Cell::number(query.value),
        rank,
        Cell::Number(query.relevant as f64, count(query.relevant as u64)),
        Cell::Rich(html),
    ]
}
