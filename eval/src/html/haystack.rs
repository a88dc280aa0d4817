//! The page for Visual Haystacks: replies that are wrong or contain both "yes" and "no".

use super::cases::{Cases, Cell, Column, Kind, truncated};
use super::numbers::{format_value, size};
use super::sections::Report;
use super::writer::Html;
use crate::haystack::{HaystackReport, WrongReply};

/// Maximum length of a question or a reply, in characters.
const TEXT_WIDTH: usize = 600;

const COLUMNS: [Column<'static>; 4] = [
    ("question", Kind::Name),
    ("correct answer", Kind::Code),
    ("answer words", Kind::Code),
    ("reply", Kind::Reading),
];

impl HaystackReport {
    /// The report as a page: all metrics, the plain accuracy by correct answer and by answer words,
    /// and the replies in [`HaystackReport::worst`].
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        Report {
            title: "Visual Haystacks",
            lead: format!(
                "{} questions; accuracy is the mean over 100 resamples, standard deviation {}",
                size(evaluation.primary.n),
                format_value(self.standard_deviation)
            ),
            evaluation,
            warnings: &[],
            items: "questions",
            value_name: "correct replies",
            values: &[],
            overall: None,
            remark: None,
            cases: Cases {
                items: "replies that are wrong or contain both words",
                total: self.wrong_total,
                order: "those with both words last",
                columns: &COLUMNS,
                rows: self.worst.iter().map(cells).collect(),
                legend: Html::default(),
            },
        }
        .into_html()
    }
}

fn cells(reply: &WrongReply) -> Vec<Cell> {
    let mut html = Html::default();
    if !reply.question.is_empty() {
        html.foreign("p", "", &truncated(&reply.question, TEXT_WIDTH));
    }
    if reply.response.trim().is_empty() {
        html.leaf("p", &[("class", "times")], "(empty)")
    } else {
        html.foreign("p", "given", &truncated(&reply.response, TEXT_WIDTH))
    }
    let (id, answer, words) = (&reply.id, &reply.answer, &reply.answer_words);
    vec![Cell::text(id), Cell::text(answer), Cell::text(words), Cell::Rich(html)]
}
