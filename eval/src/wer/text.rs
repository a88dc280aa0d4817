//! The report as plain text, with alignments of the worst pairs.

use std::borrow::Cow;

use engram_textfile::shortened;
use unicode_general_category::{GeneralCategory, get_general_category};

use super::alignment::Edit;
use super::confusions::Confusions;
use super::counts::EditCounts;
use super::report::{NormaliserValue, WerReport, WorstPair};
use super::tokens::TokenUnit;
use super::{Alignment, PairAligner};
use crate::table::{TextTable, limits, number, number_in};
use crate::text::{breakdown, metrics, sources};

/// Width of an alignment line, in columns.
const LINE_WIDTH: usize = 100;

impl WerReport {
    /// Formats the report as aligned plain text. `unit` must be the unit of the evaluation. With
    /// `colour`, escape sequences colour the errors for a terminal: substitutions yellow, deletions
    /// red, insertions green.
    pub fn to_text(&self, unit: TokenUnit, colour: bool) -> String {
        let evaluation = &self.evaluation;
        let heading = format!(
            "{}, {} utterances, normaliser {}\n{}",
            unit.error_rate(),
            evaluation.primary.n,
            evaluation.normaliser,
            sources(evaluation)
        );
        let heading = match self.alignment {
            Alignment::Jiwer => heading,
            Alignment::Sclite => heading + "Words are aligned as in sclite\n",
        };
        let mut paragraphs = vec![heading, metrics(evaluation), self.counts(unit)];
        if !self.normalisers.is_empty() {
            let mut table = TextTable::new("lrl", &["normaliser", "error rate", "interval"]);
            for NormaliserValue { normaliser, measure } in &self.normalisers {
                let interval = measure.interval.as_ref();
                let value = number_in(measure.value, interval);
                table.push(vec![normaliser.clone(), value, limits(interval)]);
            }
            paragraphs.push(table.to_string());
        }
        paragraphs.extend(evaluation.breakdowns.iter().map(breakdown));
        paragraphs.extend(self.rare_words.as_ref().map(|rare| {
            let headings =
                ["words", "error rate", "reference", "substitutions", "deletions", "insertions"];
            let mut table = TextTable::new("lrrrrr", &headings);
            for (name, rate, counts) in [
                ("rare (B-WER)", rare.b_wer, rare.rare),
                ("others (U-WER)", rare.u_wer, rare.others),
            ] {
                let counts = [
                    counts.reference_tokens(),
                    counts.substitutions,
                    counts.deletions,
                    counts.insertions,
                ];
                let cells = [name.to_owned(), number(rate)].into_iter();
                table.push(cells.chain(counts.map(|count| count.to_string())).collect());
            }
            table.to_string()
        }));
        paragraphs.extend(self.confusions.as_ref().map(confusions_table));
        paragraphs.extend(
            self.worst.iter().map(|pair| alignment_text(pair, unit, self.alignment, colour)),
        );
        paragraphs.join("\n")
    }

    fn counts(&self, unit: TokenUnit) -> String {
        let EditCounts { hits, substitutions, deletions, insertions } = self.counts;
        let tokens = unit.plural();
        let mut text = format!(
            "{} reference {tokens}: {hits} hits, {substitutions} substitutions, {deletions} \
             deletions; {insertions} insertions\n",
            self.counts.reference_tokens()
        );
        if self.empty_references.pairs > 0 {
            text += &format!(
                "{} references are empty; these pairs contain {} of the insertions\n",
                self.empty_references.pairs, self.empty_references.insertions
            );
        }
        text
    }
}

fn confusions_table(confusions: &Confusions) -> String {
    let headings = ["substitutions", "n", "deletions", "n", "insertions", "n"];
    let mut table = TextTable::new("lrlrlr", &headings);
    let Confusions { substitutions, deletions, insertions } = confusions;
    let word = |word: &str| shortened(&visible(word), 24);
    for row in 0..substitutions.len().max(deletions.len()).max(insertions.len()) {
        let single = |list: &[(String, u64)]| match list.get(row) {
            Some((token, n)) => [word(token), n.to_string()],
            None => Default::default(),
        };
        let pair = match substitutions.get(row) {
            Some((a, b, n)) => [format!("{} → {}", word(a), word(b)), n.to_string()],
            None => Default::default(),
        };
        table.push([pair, single(deletions), single(insertions)].concat());
    }
    format!("Most frequent confusions\n{table}")
}

/// A token in visible form: `␣` for a space, `U+200D` for an invisible character.
pub(crate) fn visible(token: &str) -> Cow<'_, str> {
    let is_invisible = |character: char| {
        use GeneralCategory::{Control, Format, LineSeparator, ParagraphSeparator, SpaceSeparator};
        let category = get_general_category(character);
        matches!(category, Control | Format | LineSeparator | ParagraphSeparator | SpaceSeparator)
    };
    if token == " " {
        return "␣".into();
    }
    if token.chars().all(is_invisible) {
        let codes: Vec<_> = token.chars().map(|c| format!("U+{:04X}", u32::from(c))).collect();
        codes.join(" ").into()
    } else {
        token.into()
    }
}

/// Formats an alignment: the reference above the hypothesis, with a letter below each error. Long
/// alignments are wrapped.
fn alignment_text(pair: &WorstPair, unit: TokenUnit, alignment: Alignment, colour: bool) -> String {
    let counts = &pair.counts;
    let mut text = format!(
        "{}: {} of {} wrong ({} substituted, {} deleted, {} inserted)\n",
        shortened(&pair.id, 60),
        counts.errors(),
        counts.reference_tokens(),
        counts.substitutions,
        counts.deletions,
        counts.insertions
    );
    let mut lines = [String::from("REF"), String::from("HYP"), String::from("   ")];
    let mut width = 0;
    let mut aligner = PairAligner::new(alignment);
    for step in aligner.align_tokens(unit, &pair.reference, &pair.hypothesis) {
        let [reference, hypothesis] =
            [step.reference, step.hypothesis].map(|token| shortened(token, 60));
        let lengths = [&reference, &hypothesis].map(|token| token.chars().count());
        let cell_width = lengths[0].max(lengths[1]);
        if width > 0 && width + cell_width + 1 > LINE_WIDTH {
            push_lines(&mut text, &mut lines);
            width = 0;
        }
        width += cell_width + 1;
        let (escape, letter) = match step.edit {
            Edit::Hit => ("", ""),
            Edit::Substitution => ("\u{1b}[33m", "S"),
            Edit::Deletion => ("\u{1b}[31m", "D"),
            Edit::Insertion => ("\u{1b}[32m", "I"),
        };
        for (line, cell) in lines.iter_mut().zip([reference.as_str(), hypothesis.as_str(), letter])
        {
            let padding = " ".repeat(cell_width - cell.chars().count());
            *line += " ";
            *line += &match (escape, cell) {
                ("", cell) => format!("{cell}{padding}"),
                (escape, cell) if colour => format!("{escape}{cell}\u{1b}[0m{padding}"),
                (_, "") => "*".repeat(cell_width),
                (_, cell) => format!("{cell}{padding}"),
            };
        }
    }
    push_lines(&mut text, &mut lines);
    text
}

fn push_lines(text: &mut String, lines: &mut [String; 3]) {
    for line in lines {
        *text += line.trim_end();
        *text += "\n";
        line.truncate(3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wer::align;

    #[test]
    fn invisible_tokens_are_shown_by_code() {
        for (token, expected) in [
            (" ", "␣"),
            ("\u{200d}", "U+200D"),
            ("\t\u{a0}", "U+0009 U+00A0"),
            ("a\u{a0}b", "a\u{a0}b"),
        ] {
            assert_eq!(visible(token), expected);
        }
    }

    #[test]
    fn an_alignment_is_written_in_columns() {
        let (reference, hypothesis) = ("a cat sat on", "a sat on mats");
        let pair = WorstPair {
            id: "u1".to_owned(),
            counts: EditCounts::of(&align(TokenUnit::Word, reference, hypothesis)),
            reference: reference.to_owned(),
            hypothesis: hypothesis.to_owned(),
        };
        let expected = [
            "u1: 2 of 4 wrong (0 substituted, 1 deleted, 1 inserted)",
            "REF a cat sat on ****",
            "HYP a *** sat on mats",
            "      D          I\n",
        ];
        assert_eq!(
            alignment_text(&pair, TokenUnit::Word, Alignment::Jiwer, false),
            expected.join("\n")
        );
        let coloured = alignment_text(&pair, TokenUnit::Word, Alignment::Jiwer, true);
        assert!(coloured.contains("\u{1b}[31mcat\u{1b}[0m"), "{coloured}");
    }
}
