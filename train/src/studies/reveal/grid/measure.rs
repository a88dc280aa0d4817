//! Figures of a row's answers, and differences of two rows on the same questions.

use std::collections::HashMap;

use engram_data::world::questions::Part;
use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::MetricInfo;
use engram_eval::metric::mean::{mean, weighted_mean};
use engram_eval::result::Measure;

use super::settings::Figure;
use crate::error::{Result, TrainError};
use crate::studies::reveal::run::Tested;

/// The answers of a row, by seed.
pub(super) type RowAnswers = Vec<(u64, Vec<Tested>)>;

/// What is asked of the answers.
pub(super) struct Asked<'a> {
    pub(super) figure: Figure,
    pub(super) part: Part,
    pub(super) source: Option<&'a str>,
}

impl Asked<'_> {
    fn wants(&self, question: &Tested) -> bool {
        let of_source = self.source.is_none() || question.source.as_deref() == self.source;
        question.made_up && question.part == self.part.name() && of_source
    }

    fn value(&self, question: &Tested) -> f64 {
        let holds = match self.figure {
            Figure::ExactMatch => question.correct,
            Figure::RecallAt1 => question.found(1),
            Figure::RecallAt10 => question.found(10),
        };
        if holds { 1.0 } else { 0.0 }
    }

    /// The mean over questions and seeds, with an interval over pictures and seeds.
    pub(super) fn measure(&self, answers: &RowAnswers) -> Measure {
        let asked = self.questions(answers);
        let values: Vec<f64> = asked.iter().map(|(_, question)| self.value(question)).collect();
        mean_of(self.info(false), &asked, self.defined(&asked).map(|()| values))
    }

    /// A recall among entries of which some were not even read is none.
    fn defined(&self, asked: &[(u64, &Tested)]) -> Result<(), String> {
        let wanted = self.figure.entries();
        match asked.iter().all(|(_, question)| question.read.len() >= wanted) {
            true if asked.is_empty() => Err("undefined: no such questions".to_owned()),
            true => Ok(()),
            false => Err(format!("undefined: fewer than {wanted} entries are read")),
        }
    }

    /// The same of the difference of two rows, question by question.
    pub(super) fn difference(&self, better: &RowAnswers, worse: &RowAnswers) -> Result<Measure> {
        let by_id: HashMap<(u64, i64), &Tested> = worse
            .iter()
            .flat_map(|(seed, asked)| asked.iter().map(|one| ((*seed, one.id), one)))
            .collect();
        let asked = self.questions(better);
        // By their ids: a row whose memory lacks a source does not know it as a question's source.
        let others = asked.iter().map(|(seed, question)| {
            let other = by_id.get(&(*seed, question.id)).ok_or_else(|| TrainError::Recipe {
                place: format!("question {} of seed {seed}", question.id),
                reason: "was asked of one row and not of another; rows that are compared need the \
                         same `data.world_seed` and `data.pictures`"
                    .to_owned(),
            })?;
            Ok((*seed, *other))
        });
        let others = others.collect::<Result<Vec<(u64, &Tested)>>>()?;
        let values = asked.iter().zip(&others);
        let values = values.map(|((_, one), (_, other))| self.value(one) - self.value(other));
        let defined = self.defined(&asked).and_then(|()| self.defined(&others));
        Ok(mean_of(self.info(true), &asked, defined.map(|()| values.collect())))
    }

    fn questions<'a>(&self, answers: &'a RowAnswers) -> Vec<(u64, &'a Tested)> {
        let all = answers.iter().flat_map(|(seed, asked)| asked.iter().map(|one| (*seed, one)));
        all.filter(|(_, question)| self.wants(question)).collect()
    }

    fn info(&self, difference: bool) -> MetricInfo {
        let name = match (self.figure, difference) {
            (Figure::ExactMatch, false) => "exact_match",
            (Figure::ExactMatch, true) => "exact_match_difference",
            (Figure::RecallAt1, false) => "recall_at_1",
            (Figure::RecallAt1, true) => "recall_at_1_difference",
            (Figure::RecallAt10, false) => "recall_at_10",
            (Figure::RecallAt10, true) => "recall_at_10_difference",
        };
        MetricInfo { name, version: 1, higher_is_better: Some(true) }
    }
}

fn mean_of(
    info: MetricInfo,
    asked: &[(u64, &Tested)],
    values: Result<Vec<f64>, String>,
) -> Measure {
    let values = match values {
        Ok(values) => values,
        Err(reason) => return Measure::new(&info, asked.len(), Err(reason), None),
    };
    let pictures: Vec<Option<usize>> = asked.iter().map(|(_, one)| one.picture).collect();
    let seeds: Vec<u64> = asked.iter().map(|(seed, _)| *seed).collect();
    let resampling = Resampling::by_crossed_groups(["picture", "seed"], &pictures, &seeds);
    let options = BootstrapOptions::default();
    let interval = interval(&resampling, &options, |counts| weighted_mean(&values, counts));
    Measure::new(&info, values.len(), Ok(mean(&values)), interval)
}

#[cfg(test)]
mod tests {
    use super::super::report::{Verdict, in_words};
    use super::*;

    /// 40 pictures with 3 questions each; the first `right` of each ten pictures are answered rightly.
    fn answers(seed: u64, right: usize) -> Vec<Tested> {
        let question = |id: usize| Tested {
            id: id as i64,
            name: None,
            question: String::new(),
            part: Part::HeldOut.name().to_owned(),
            picture: Some(id / 3),
            made_up: true,
            answer: String::new(),
            right: Vec::new(),
            correct: (id / 3 + seed as usize) % 10 < right,
            source: Some(["kg", "pairs", "pairs"][id % 3].to_owned()),
            entry: Some(id as i64),
            read: [vec![-1, id as i64], vec![-2; 8]].concat(),
        };
        (0..120).map(question).collect()
    }

    fn row(right: usize) -> RowAnswers {
        (1..=3).map(|seed| (seed, answers(seed, right))).collect()
    }

    #[test]
    fn differences_are_of_the_same_questions() {
        let asked = |figure, source| Asked { figure, part: Part::HeldOut, source };
        let exact = asked(Figure::ExactMatch, None);
        let found = exact.difference(&row(7), &row(4)).unwrap();
        assert!((found.value - 0.3).abs() < 1e-12 && found.n == 360);
        assert_eq!(
            found.interval.as_ref().unwrap().method,
            "percentile bootstrap by picture and seed"
        );
        assert_eq!(Verdict::of(&found, None), Verdict::Holds);
        assert_eq!(Verdict::of(&exact.difference(&row(4), &row(7)).unwrap(), None), Verdict::Fails);
        let same = exact.difference(&row(4), &row(4)).unwrap();
        assert_eq!(Verdict::of(&same, None), Verdict::NotDecided);
        assert_eq!(Verdict::of(&same, Some(0.01)), Verdict::Holds);
        assert_eq!(Verdict::of(&found, Some(0.01)), Verdict::Fails);
        assert_eq!(asked(Figure::ExactMatch, Some("kg")).measure(&row(7)).n, 120);
        assert_eq!(asked(Figure::RecallAt1, None).measure(&row(7)).value, 0.0);
        assert_eq!(asked(Figure::RecallAt10, None).measure(&row(7)).value, 1.0);
        // Of fewer entries there is no recall among ten.
        let mut few = row(7);
        few[2].1[5].read.pop();
        for measure in [
            asked(Figure::RecallAt10, None).measure(&few),
            asked(Figure::RecallAt10, None).difference(&row(7), &few).unwrap(),
        ] {
            assert_eq!(
                measure.reason.as_deref(),
                Some("undefined: fewer than 10 entries are read")
            );
            assert_eq!(
                (in_words(&measure).as_str(), Verdict::of(&measure, None)),
                ("–", Verdict::NotDecided)
            );
        }
        assert_eq!(asked(Figure::RecallAt1, None).measure(&few).value, 0.0);
        // Of a row that was trained without the source.
        let mut without = row(4);
        without.iter_mut().flat_map(|(_, asked)| asked).for_each(|question| {
            question.source = question.source.take().filter(|source| source != "kg");
        });
        let of_source = asked(Figure::ExactMatch, Some("kg"));
        assert_eq!(of_source.difference(&row(7), &without).unwrap().n, 120);
        // A question that only one of them was asked.
        let mut less = row(4);
        less[0].1.pop();
        assert!(exact.difference(&row(7), &less).unwrap_err().to_string().contains("question 119"));
    }
}
