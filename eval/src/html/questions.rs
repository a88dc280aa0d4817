//! The pages of visual question answering: predicted answers beside human answers.

use super::cases::{Cases, Cell, Column, Kind, truncated};
use super::numbers::{count, fixed, size};
use super::sections::{self, Report};
use super::writer::Html;
use crate::aokvqa::{AokvqaReport, WrongAnswer};
use crate::result::Evaluation;
use crate::vqa::{VqaReport, WorstQuestion};

/// Maximum number of distinct human answers shown per question.
const MAX_ANSWERS: usize = 20;
/// Maximum length of a question or an answer, in characters.
const TEXT_WIDTH: usize = 300;

const VQA_COLUMNS: [Column<'static>; 3] = [
    ("question id", Kind::Name),
    ("accuracy", Kind::Number),
    ("question and answers", Kind::Reading),
];
const AOKVQA_COLUMNS: [Column<'static>; 4] = [
    ("question id", Kind::Name),
    ("direct answer", Kind::Number),
    ("choice", Kind::Number),
    ("question and answers", Kind::Reading),
];

impl VqaReport {
    /// The report as a page: accuracy by type, the distribution of [`VqaReport::items`], and the
    /// questions in [`VqaReport::worst`].
    pub fn to_html(&self) -> String {
        let Evaluation { primary, normaliser, .. } = &self.evaluation;
        let questions = size(primary.n);
        let lead = format!("Accuracy in per cent, {questions} questions, answers by {normaliser}");
        let values = sections::item_values(&self.items);
        let rows = self.worst.iter().map(vqa_cells).collect();
        let cases = cases(&values, "by accuracy", &VQA_COLUMNS, rows);
        report("Visual questions", lead, &self.evaluation, &[], &values, cases).into_html()
    }
}

impl AokvqaReport {
    /// The report as a page: both accuracies, the distribution of [`AokvqaReport::items`], and the
    /// questions in [`AokvqaReport::worst`].
    pub fn to_html(&self) -> String {
        let lead = format!("Accuracy in per cent, {} questions", size(self.evaluation.primary.n));
        let values = sections::item_values(&self.items);
        let rows = self.worst.iter().map(aokvqa_cells).collect();
        let cases = cases(&values, "by the primary metric", &AOKVQA_COLUMNS, rows);
        let title = "Visual questions, A-OKVQA";
        report(title, lead, &self.evaluation, &self.warnings, &values, cases).into_html()
    }
}

fn cases<'a>(
    values: &[f64],
    order: &'a str,
    columns: &'a [Column<'a>],
    rows: Vec<Vec<Cell>>,
) -> Cases<'a> {
    Cases {
        items: "questions below 100 per cent",
        // As in the list of the worst questions, a question is wrong if it is below 100.
        total: values.iter().filter(|value| **value < 100.0).count(),
        order,
        columns,
        rows,
        legend: Html::default(),
    }
}

/// A page of questions with accuracies.
fn report<'a>(
    title: &'a str,
    lead: String,
    evaluation: &'a Evaluation,
    warnings: &'a [String],
    values: &'a [f64],
    cases: Cases<'a>,
) -> Report<'a> {
    let part_where = |condition: fn(f64) -> bool| {
        let count = values.iter().filter(|value| condition(**value)).count();
        sections::part_of(count, values.len(), "questions")
    };
    let (full, zero) = (part_where(|value| value > 100.0 - 1e-9), part_where(|value| value == 0.0));
    Report {
        title,
        lead,
        evaluation,
        warnings,
        items: "questions",
        value_name: "accuracy of a question in per cent",
        values,
        overall: Some("mean"),
        remark: Some(format!("{full} score 100; {zero} score 0.")),
        cases,
    }
}

fn vqa_cells(worst: &WorstQuestion) -> Vec<Cell> {
    let mut html = Html::default();
    question(&mut html, &worst.question);
    answer(&mut html, "", "answer", &worst.answer);
    human_answers(&mut html, &worst.human_answers);
    vec![Cell::text(&worst.id), accuracy(worst.accuracy), Cell::Rich(html)]
}

fn aokvqa_cells(worst: &WrongAnswer) -> Vec<Cell> {
    let mut html = Html::default();
    question(&mut html, &worst.question);
    if let Some(direct) = &worst.direct_answer {
        answer(&mut html, "", "direct answer", direct);
    }
    if let Some(chosen) = &worst.choice {
        let class = if *chosen == worst.correct_choice { "right" } else { "wrong" };
        answer(&mut html, class, "choice", chosen);
    }
    if worst.choice.as_ref() != Some(&worst.correct_choice) {
        answer(&mut html, "right", "correct choice", &worst.correct_choice);
    }
    human_answers(&mut html, &worst.human_answers);
    vec![
        Cell::text(&worst.id),
        accuracy(worst.direct_accuracy.unwrap_or(f64::NAN)),
        accuracy(worst.choice_accuracy),
        Cell::Rich(html),
    ]
}

/// An accuracy in per cent. As a fraction it is a multiple of 1/3 or 1/10, so one decimal
/// distinguishes all values.
fn accuracy(value: f64) -> Cell {
    Cell::Number(value, fixed(value, 1))
}

fn question(html: &mut Html, question: &str) {
    if !question.is_empty() {
        html.foreign("p", "", &truncated(question, TEXT_WIDTH));
    }
}

fn answer(html: &mut Html, class: &str, label: &str, answer: &str) {
    html.node("p", &[], |html| {
        html.leaf("span", &[("class", "label")], &format!("{label} "));
        let class = format!("given {class}");
        if answer.trim().is_empty() {
            html.leaf("span", &[("class", "times")], "(empty)")
        } else {
            html.foreign("span", class.trim_end(), &truncated(answer, TEXT_WIDTH))
        }
    });
}

fn human_answers(html: &mut Html, answers: &[(String, u64)]) {
    html.node("p", &[], |html| {
        html.leaf("span", &[("class", "label")], "human answers ");
        for (index, (answer, frequency)) in answers.iter().take(MAX_ANSWERS).enumerate() {
            html.text(if index == 0 { "" } else { ", " });
            html.foreign("span", "", &truncated(answer, TEXT_WIDTH));
            html.leaf("span", &[("class", "times")], &format!(" ×{}", count(*frequency)));
        }
        if let Some(more @ 1..) = answers.len().checked_sub(MAX_ANSWERS) {
            html.text(&format!(" and {} more", size(more)));
        }
    });
}
