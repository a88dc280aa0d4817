//! The accuracy of one answer.

use super::answer::{Normaliser, without_line_ends};
use super::human_answers::HumanAnswer;

/// Maximum number of earlier answers searched for an equal text, so that most texts are normalised
/// only once.
const MAX_SEARCHED: usize = 16;

/// Returns the accuracy of an answer, from 0 to 1. For each human answer, the score is
/// `min(1, m / 3)`, where `m` is the number of other human answers that equal the predicted answer.
/// The accuracy is the mean of these scores; without human answers it is 0.
///
/// If the human answers differ, [`normalise_answer`](super::answer::normalise_answer) is applied
/// to all answers first. If all are equal, answers are compared without normalisation, so `Yes`
/// matches none of ten answers `yes`.
pub fn accuracy(predicted: &str, answers: &[HumanAnswer<'_>]) -> f64 {
    Scorer::default().accuracy(predicted, answers)
}

/// Computes [`accuracy`] with reusable buffers, for many questions.
#[derive(Debug, Default)]
pub(super) struct Scorer {
    predicted_normaliser: Normaliser,
    human_normaliser: Normaliser,
    matching: Vec<bool>,
    /// At the index of the first of several answers that are equal in all fields: how many of them
    /// match the predicted answer.
    copies: Vec<usize>,
}

impl Scorer {
    pub(super) fn accuracy(&mut self, predicted: &str, answers: &[HumanAnswer<'_>]) -> f64 {
        self.mark_matches(predicted, answers);
        let matches = self.matching.iter().filter(|matching| **matching).count();
        self.copies.clear();
        self.copies.resize(answers.len(), 0);
        for (answer, _) in answers.iter().zip(&self.matching).filter(|(_, matching)| **matching) {
            if let Some(copies) = self.copies.get_mut(answer.first_equal as usize) {
                *copies += 1;
            }
        }
        // The script compares an answer neither with itself nor with an answer equal in all fields.
        let score = |(answer, matching): (&HumanAnswer<'_>, &bool)| -> f64 {
            let copies =
                if *matching { self.copies.get(answer.first_equal as usize) } else { None };
            let others = matches - copies.copied().unwrap_or(0);
            (others as f64 / 3.0).min(1.0)
        };
        let total = answers.iter().zip(&self.matching).map(score).sum::<f64>();
        total / answers.len().max(1) as f64
    }

    /// Marks the human answers that match.
    fn mark_matches(&mut self, predicted: &str, answers: &[HumanAnswer<'_>]) {
        self.matching.clear();
        let Some((first, others)) = answers.split_first() else { return };
        let (predicted, first_text) =
            (without_line_ends(predicted), without_line_ends(&first.answer));
        let differs = |other: &HumanAnswer<'_>| {
            other.answer != first.answer && without_line_ends(&other.answer) != first_text
        };
        if !others.iter().any(differs) {
            self.matching.resize(answers.len(), predicted == first_text);
            return;
        }
        let predicted = self.predicted_normaliser.normalise(&predicted);
        for (index, human) in answers.iter().enumerate() {
            let has_equal_text = |earlier: &HumanAnswer<'_>| earlier.answer == human.answer;
            let matching = match answers[..index.min(MAX_SEARCHED)].iter().position(has_equal_text)
            {
                Some(earlier) => self.matching[earlier],
                None => {
                    self.human_normaliser.normalise(&without_line_ends(&human.answer)) == predicted
                }
            };
            self.matching.push(matching);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(texts: &[&'static str]) -> Vec<HumanAnswer<'static>> {
        let answer = |(index, text): (usize, &&'static str)| HumanAnswer {
            answer: (*text).into(),
            first_equal: index as u32,
        };
        texts.iter().enumerate().map(answer).collect()
    }

    #[test]
    fn answers_are_normalised_unless_all_are_equal() {
        // The human answers differ: scores of 1/3, 1/3 and 2/3.
        let differing = accuracy("Cat", &answers(&["the cat", "a cat", "dog"]));
        assert!((differing - 4.0 / 9.0).abs() < 1e-12, "{differing}");
        assert_eq!(accuracy("Yes", &answers(&["yes"; 10])), 0.0);
        assert_eq!(accuracy(" yes\n", &answers(&["yes"; 10])), 1.0);
        // Without ids the ten answers are equal in all fields, so no other answer remains.
        let mut without_ids = answers(&["yes"; 10]);
        without_ids.iter_mut().for_each(|answer| answer.first_equal = 0);
        assert_eq!(accuracy("yes", &without_ids), 0.0);
    }
}
