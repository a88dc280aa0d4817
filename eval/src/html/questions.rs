//! The pages of visual question answering: predicted answers beside human answers.

use super::cases::{Cases, Cell, Column, Kind, truncated};
use super::numbers::{count, fixed, size};
use super::page::Page;
use super::sections::{self, Words};
use super::writer::Html;
use crate::aokvqa::{AokvqaReport, WrongAnswer};
use crate::vqa::{VqaReport, WorstQuestion};

const WORDS: Words<'static> =
    Words { value_name: "accuracy of a question in per cent", items: "questions" };

/// Maximum number of distinct human answers shown per question.
const MAX_ANSWERS: usize = 20;
/// Maximum length of a question or an answer, in characters.
const TEXT_WIDTH: usize = 300;

const VQA_COLUMNS: [Column<'static>; 3] = [
    Column { heading: "question id", kind: Kind::Name },
    Column { heading: "accuracy", kind: Kind::Number },
    Column { heading: "question and answers", kind: Kind::Reading },
];
const AOKVQA_COLUMNS: [Column<'static>; 4] = [
    Column { heading: "question id", kind: Kind::Name },
    Column { heading: "direct answer", kind: Kind::Number },
    Column { heading: "choice", kind: Kind::Number },
    Column { heading: "question and answers", kind: Kind::Reading },
];

impl VqaReport {
    /// The report as a page: accuracy by type, the distribution of [`VqaReport::items`], and the
    /// questions in [`VqaReport::worst`].
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        let lead = format!(
            "Accuracy in per cent, {} questions, answers by {}",
            size(evaluation.primary.n),
            evaluation.normaliser
        );
        let mut page = Page::new("Visual questions", &lead);
        sections::first_sections(&mut page, evaluation, &[], WORDS);
        let values: Vec<f64> = self.items.iter().map(sections::item_value).collect();
        // As in `VqaReport::worst`, a question is wrong if its accuracy is below 100.
        let wrong_count = values.iter().filter(|value| **value < 100.0).count();
        distribution(&mut page, &values, evaluation.primary.value);
        sections::breakdowns(&mut page, evaluation);
        Cases {
            items: "questions below 100 per cent",
            total: wrong_count,
            order: "by accuracy",
            columns: &VQA_COLUMNS,
            rows: self.worst.iter().map(vqa_cells).collect(),
            legend: Html::default(),
        }
        .write(&mut page);
        page.into_html()
    }
}

impl AokvqaReport {
    /// The report as a page: both accuracies, the distribution of [`AokvqaReport::items`], and the
    /// questions in [`AokvqaReport::worst`].
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        let lead = format!("Accuracy in per cent, {} questions", size(evaluation.primary.n));
        let mut page = Page::new("Visual questions, A-OKVQA", &lead);
        sections::first_sections(&mut page, evaluation, &self.warnings, WORDS);
        let values: Vec<f64> = self.items.iter().map(sections::item_value).collect();
        distribution(&mut page, &values, evaluation.primary.value);
        let wrong_count = values.iter().filter(|value| **value < 100.0).count();
        Cases {
            items: "questions below 100 per cent",
            total: wrong_count,
            order: "by the primary metric",
            columns: &AOKVQA_COLUMNS,
            rows: self.worst.iter().map(aokvqa_cells).collect(),
            legend: Html::default(),
        }
        .write(&mut page);
        page.into_html()
    }
}

fn distribution(page: &mut Page, values: &[f64], overall: f64) {
    let full_count = values.iter().filter(|value| **value > 100.0 - 1e-9).count();
    let zero_count = values.iter().filter(|value| **value == 0.0).count();
    let total = values.len();
    let remark = format!(
        "{} score 100; {} score 0.",
        sections::part_of(full_count, total, WORDS.items),
        sections::part_of(zero_count, total, WORDS.items)
    );
    sections::distribution(page, values, WORDS, Some(("mean", overall)), Some(remark));
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
