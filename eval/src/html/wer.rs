//! The page for word and character error rates: counts, confusions, rare words, alignments.

use super::cases::{Cases, Cell, Column, Kind, truncated};
use super::forest::{Row, forest};
use super::numbers::{count, format_value, percent, size};
use super::page::Page;
use super::plots::share_bar;
use super::sections::{self, PlainRow};
use super::writer::Html;
use crate::wer::alignment::Edit;
use crate::wer::confusions::Confusions;
use crate::wer::report::{NormaliserValue, WerReport, WorstPair};
use crate::wer::text::visible;
use crate::wer::tokens::TokenUnit;
use crate::wer::{PairAligner, Step};

/// Maximum number of alignment steps on the page, per pair and in total, so that browsers display
/// the page quickly.
const MAX_PAIR_STEPS: usize = 1500;
const MAX_STEPS: usize = 30_000;
/// Maximum length of a token, in characters.
const TOKEN_WIDTH: usize = 80;

const COLUMNS: [Column<'static>; 8] = [
    ("utterance", Kind::Name),
    ("rate", Kind::Number),
    ("errors", Kind::Number),
    ("S", Kind::Number),
    ("D", Kind::Number),
    ("I", Kind::Number),
    ("reference", Kind::Number),
    ("alignment", Kind::Reading),
];

impl WerReport {
    /// The report as a page: metrics, breakdowns, confusions, and alignments of the pairs in
    /// [`WerReport::worst`].
    ///
    /// `unit` must be the unit of the evaluation. The distribution shows [`WerReport::items`].
    pub fn to_html(&self, unit: TokenUnit) -> String {
        let evaluation = &self.evaluation;
        let tokens = unit.plural();
        let value_name = format!("{} of an utterance", unit.error_rate().to_lowercase());
        let lead = format!(
            "{} utterances, {} reference {tokens}, normaliser {}",
            size(evaluation.primary.n),
            count(self.counts.reference_tokens()),
            evaluation.normaliser
        );
        let items = "utterances";
        let mut page = Page::new(unit.error_rate(), &lead);
        sections::first_sections(&mut page, evaluation, &[], items);
        page.section("Errors", |html| self.error_table(html, tokens));
        let values = sections::item_values(&self.items);
        let correct = values.iter().filter(|value| **value == 0.0).count();
        let remark = format!("{} have no error.", sections::part_of(correct, values.len(), items));
        let overall = Some(("overall", evaluation.primary.value));
        sections::distribution(&mut page, &values, (&value_name, items), overall, Some(remark));
        page.section("By normaliser", |html| self.normaliser_table(html));
        sections::breakdowns(&mut page, evaluation);
        if let Some(confusions) = &self.confusions {
            page.section("Most frequent confusions", |html| confusion_tables(html, confusions));
        }
        let mut steps_left = MAX_STEPS;
        Cases {
            items: "utterances with errors",
            total: if values.is_empty() { self.worst.len() } else { values.len() - correct },
            order: "by number of errors",
            columns: &COLUMNS,
            rows: self.worst.iter().map(|pair| cells(self, pair, unit, &mut steps_left)).collect(),
            legend: legend(),
        }
        .write(&mut page);
        page.into_html()
    }

    fn error_table(&self, html: &mut Html, tokens: &str) {
        let counts = &self.counts;
        let reference = counts.reference_tokens();
        let heading = format!("of reference {tokens}");
        html.node("table", &[("class", "plain")], |html| {
            let columns =
                [("", ""), (tokens, "number"), (heading.as_str(), "number"), ("", "shares")];
            html.table_head(columns);
            html.node("tbody", &[], |html| {
                for (name, number) in [
                    ("reference", reference),
                    ("hits", counts.hits),
                    ("substitutions", counts.substitutions),
                    ("deletions", counts.deletions),
                    ("insertions", counts.insertions),
                ] {
                    html.node("tr", &[], |html| {
                        html.leaf("th", &[("scope", "row")], name);
                        html.leaf("td", &[("class", "number")], &count(number));
                        let (part, whole) = (number as f64, reference.max(1) as f64);
                        html.leaf("td", &[("class", "number")], &percent(part, whole));
                        html.node("td", &[("class", "shares")], |html| {
                            share_bar(html, "bar", part / whole)
                        });
                    });
                }
            });
        });
        if self.empty_references.pairs > 0 {
            let text = format!(
                "Empty references: {}; insertions in them: {}.",
                count(self.empty_references.pairs),
                count(self.empty_references.insertions)
            );
            html.leaf("p", &[("class", "note")], &text);
        }
        if let Some(rare) = &self.rare_words {
            html.leaf("h3", &[], "Rare words");
            let word_groups = [
                ("rare (B-WER)", rare.b_wer, rare.rare),
                ("others (U-WER)", rare.u_wer, rare.others),
            ];
            let row = |(name, rate, counts): (&str, f64, crate::wer::counts::EditCounts)| {
                let numbers = [
                    counts.reference_tokens(),
                    counts.substitutions,
                    counts.deletions,
                    counts.insertions,
                ];
                let rate = std::iter::once(format_value(rate));
                let mut html = Html::default();
                html.text(name);
                (html, rate.chain(numbers.map(count)).collect())
            };
            let headings = ["words", "rate", "reference", "sub.", "del.", "ins."];
            html.node("div", &[("class", "scroll"), ("tabindex", "0")], |html| {
                sections::plain_table(html, &headings, &word_groups.map(row));
            });
        }
    }

    fn normaliser_table(&self, html: &mut Html) {
        if self.normalisers.is_empty() {
            return;
        }
        let rows: Vec<Row<'_>> = self
            .normalisers
            .iter()
            .map(|NormaliserValue { normaliser, measure }| Row {
                name: normaliser.clone(),
                higher_is_better: None,
                ..Row::of_measure(measure)
            })
            .collect();
        forest(html, "normaliser", &rows, None);
    }
}

fn confusion_tables(html: &mut Html, confusions: &Confusions) {
    let Confusions { substitutions, deletions, insertions } = confusions;
    let word = |html: &mut Html, word: &str| {
        html.foreign("bdi", "", &truncated(&visible(word), TOKEN_WIDTH))
    };
    let pair = |(reference, hypothesis, n): &(String, String, u64)| {
        let mut html = Html::default();
        word(&mut html, reference);
        html.text(" → ");
        word(&mut html, hypothesis);
        (html, vec![count(*n)])
    };
    let single = |(token, n): &(String, u64)| {
        let mut html = Html::default();
        word(&mut html, token);
        (html, vec![count(*n)])
    };
    let lists: [(&str, Vec<PlainRow>); 3] = [
        ("substitutions, reference → hypothesis", substitutions.iter().map(pair).collect()),
        ("deletions", deletions.iter().map(single).collect()),
        ("insertions", insertions.iter().map(single).collect()),
    ];
    if lists.iter().all(|(_, list)| list.is_empty()) {
        return;
    }
    html.node("div", &[("class", "columns")], |html| {
        for (name, rows) in lists {
            html.node("div", &[], |html| {
                if rows.is_empty() {
                    html.leaf("p", &[("class", "note")], &format!("No {name}."))
                } else {
                    sections::plain_table(html, &[name, "times"], &rows)
                }
            });
        }
    });
}

fn cells(
    report: &WerReport,
    pair: &WorstPair,
    unit: TokenUnit,
    steps_left: &mut usize,
) -> Vec<Cell> {
    let counts = &pair.counts;
    let numbers = [
        counts.errors(),
        counts.substitutions,
        counts.deletions,
        counts.insertions,
        counts.reference_tokens(),
    ];
    let mut cells = vec![Cell::text(&pair.id), Cell::number(counts.error_rate())];
    cells.extend(numbers.map(Cell::count));
    let mut aligner = PairAligner::new(report.alignment);
    let steps = aligner.align_tokens(unit, &pair.reference, &pair.hypothesis);
    cells.push(Cell::Rich(alignment(&steps, unit, steps_left)));
    cells
}

/// Shows the reference above the hypothesis; `steps_left` is the number of alignment steps that
/// the page may still show.
fn alignment(steps: &[Step<'_>], unit: TokenUnit, steps_left: &mut usize) -> Html {
    let mut html = Html::default();
    let shown = steps.len().min(MAX_PAIR_STEPS).min(*steps_left);
    *steps_left -= shown;
    let class = match unit {
        TokenUnit::Word => "alignment",
        TokenUnit::Char => "alignment chars",
    };
    html.node("div", &[("class", class), ("dir", "auto")], |html| {
        for Step { edit, reference, hypothesis } in &steps[..shown] {
            alignment_step(html, *edit, reference, hypothesis);
            // Allows a line break here, and puts a space into copied text.
            if unit == TokenUnit::Word {
                html.text(" ");
            }
        }
    });
    if shown < steps.len() {
        let text = format!("… and {} more steps, not shown", size(steps.len() - shown));
        html.leaf("p", &[("class", "note")], &text);
    }
    html
}

fn alignment_step(html: &mut Html, edit: Edit, reference: &str, hypothesis: &str) {
    let (class, title) = match edit {
        Edit::Hit => ("c", ""),
        Edit::Substitution => ("c s", "substitution"),
        Edit::Deletion => ("c d", "deletion"),
        Edit::Insertion => ("c i", "insertion"),
    };
    let (reference_tag, hypothesis_tag) = match edit {
        Edit::Hit => ("span", "span"),
        _ => ("del", "ins"),
    };
    let attributes = [("class", class), ("title", title)];
    let attributes = if edit == Edit::Hit { &attributes[..1] } else { &attributes[..] };
    html.node("span", attributes, |html| {
        html.leaf(reference_tag, &[], &truncated(reference, TOKEN_WIDTH));
        html.leaf(hypothesis_tag, &[], &truncated(hypothesis, TOKEN_WIDTH));
    });
}

fn legend() -> Html {
    let mut html = Html::default();
    html.node("div", &[("class", "legend")], |html| {
        html.leaf("span", &[], "Above: reference; below: hypothesis.");
        for (edit, reference, hypothesis, name) in [
            (Edit::Substitution, "reference", "hypothesis", "substitution"),
            (Edit::Deletion, "reference", "", "deletion"),
            (Edit::Insertion, "", "hypothesis", "insertion"),
        ] {
            html.node("span", &[], |html| {
                alignment_step(html, edit, reference, hypothesis);
                html.leaf("span", &[], name);
            });
        }
    });
    html
}
