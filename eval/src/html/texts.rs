//! The page for translations and other texts: each text above its references.

use super::cases::{Cases, Cell, Kind, with_references};
use super::numbers::size;
use super::sections::{self, Report};
use super::writer::Html;
use crate::metric::registry::spelling;
use crate::texts::TextsReport;

impl TextsReport {
    /// The report as a page: metrics, the distribution of [`TextsReport::items`], and the texts in
    /// [`TextsReport::worst`].
    pub fn to_html(&self) -> String {
        let primary = &self.evaluation.primary;
        let metric = spelling(&primary.metric);
        let (value_name, order) = (format!("{metric} of a line"), format!("by {metric}"));
        let columns =
            [("line", Kind::Name), (&metric, Kind::Number), ("text and references", Kind::Reading)];
        let cells = |line: &crate::texts::WorstText| {
            let text = Cell::Rich(with_references(&line.hypothesis, &line.references));
            vec![Cell::text(&line.id), Cell::number(line.value), text]
        };
        Report {
            title: "Texts",
            lead: format!(
                "{} lines, references per line: {}, normaliser {}",
                size(primary.n),
                size(self.references),
                self.evaluation.normaliser
            ),
            evaluation: &self.evaluation,
            warnings: &[],
            items: "lines",
            value_name: &value_name,
            values: &sections::item_values(&self.items),
            overall: Some("overall"),
            remark: None,
            cases: Cases {
                items: "lines",
                total: primary.n,
                order: &order,
                columns: &columns,
                rows: self.worst.iter().map(cells).collect(),
                legend: Html::default(),
            },
        }
        .into_html()
    }
}
