//! Figures of a row's runs, and differences of two rows on the same items.

use std::collections::HashMap;
use std::path::Path;

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::items::{Item, Statistic};
use engram_eval::metric::MetricInfo;
use engram_eval::result::Measure;

use super::ablated::{Ablated, Asked};
use crate::error::{Result, TrainError};

/// What the runs of a row have on one question: items by seed, or why there is no figure.
pub(super) type Answers = Result<Vec<(u64, Item)>, String>;

/// The runs of rows, and how they are read.
pub(super) struct Runs<'a> {
    pub(super) study: &'a dyn Ablated,
    /// The folder of `seed-1/ROW`.
    pub(super) out: &'a Path,
    pub(super) seeds: u64,
}

impl Runs<'_> {
    /// The items of a row, of all seeds.
    pub(super) fn answers(&self, row: &str, asked: &Asked) -> Result<Answers> {
        let mut answers = Vec::new();
        for seed in 1..=self.seeds {
            let folder = self.out.join(format!("seed-{seed}")).join(row);
            match self.study.items(&folder, asked)? {
                Ok(items) => answers.extend(items.into_iter().map(|item| (seed, item))),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Ok(Ok(answers))
    }

    /// The figure over items and seeds, with an interval over what items belong to, and seeds.
    pub(super) fn measure(&self, row: &str, asked: &Asked) -> Result<Measure> {
        let info = asked.figure.info(false);
        Ok(figure(&info, self.study.unit(), &self.answers(row, asked)?, parts))
    }

    /// The same of the difference of two rows, item by item.
    pub(super) fn difference(
        &self,
        [better, worse]: [&str; 2],
        [asked, of_worse]: [&Asked; 2],
    ) -> Result<Measure> {
        let [better, worse] = [self.answers(better, asked)?, self.answers(worse, of_worse)?];
        let info = asked.figure.info(true);
        difference(&info, self.study.unit(), better, worse)
    }
}

fn difference(info: &MetricInfo, unit: &str, better: Answers, worse: Answers) -> Result<Measure> {
    let (better, worse) = match (better, worse) {
        (Ok(better), Ok(worse)) => (better, worse),
        (Err(reason), _) | (_, Err(reason)) => {
            return Ok(figure(info, unit, &Err(reason), parts));
        }
    };
    let by_id: HashMap<(u64, &str), &Item> =
        worse.iter().map(|(seed, item)| ((*seed, item.id.as_str()), item)).collect();
    let others = better.iter().map(|(seed, item)| {
        let other = by_id.get(&(*seed, item.id.as_str()));
        let other = other.filter(|other| parts(other)[1] == parts(item)[1]);
        let other = other.ok_or_else(|| TrainError::Recipe {
            place: format!("item {} of seed {seed}", item.id),
            reason:
                "was asked of one row and not of another; rows that are compared need the same \
                     test data"
                    .to_owned(),
        })?;
        Ok(parts(other)[0])
    });
    let others = others.collect::<Result<Vec<f64>>>()?;
    let less = better.into_iter().zip(others).map(|((seed, mut item), other)| {
        let [numerator, denominator] = parts(&item);
        item.statistic = Statistic::Ratio { numerator: numerator - other, denominator };
        (seed, item)
    });
    Ok(figure(info, unit, &Ok(less.collect()), parts))
}

/// What an item adds above and below the line.
fn parts(item: &Item) -> [f64; 2] {
    match item.statistic {
        Statistic::Ratio { numerator, denominator } => [numerator, denominator],
        Statistic::Mean { value } => [value, 1.0],
        // No figure of a grid is one.
        Statistic::Correlation { .. } => [f64::NAN; 2],
    }
}

fn figure(
    info: &MetricInfo,
    unit: &str,
    answers: &Answers,
    parts: fn(&Item) -> [f64; 2],
) -> Measure {
    let answers = match answers {
        Ok(answers) => answers,
        Err(reason) => return Measure::new(info, 0, Err(reason.clone()), None),
    };
    let values: Vec<[f64; 2]> = answers.iter().map(|(_, item)| parts(item)).collect();
    let groups: Vec<&Option<String>> = answers.iter().map(|(_, item)| &item.group).collect();
    let seeds: Vec<u64> = answers.iter().map(|(seed, _)| *seed).collect();
    let ratio = |counts: &dyn Fn(usize) -> f64| {
        let sum = |part: usize| -> f64 {
            values.iter().enumerate().map(|(i, parts)| counts(i) * parts[part]).sum()
        };
        sum(0) / sum(1)
    };
    let resampling = Resampling::by_crossed_groups([unit, "seed"], &groups, &seeds);
    let interval = interval(&resampling, &BootstrapOptions::default(), |counts| {
        ratio(&|i| f64::from(counts[i]))
    });
    Measure::new(info, values.len(), Ok(ratio(&|_| 1.0)), interval)
}

#[cfg(test)]
mod tests {
    use super::super::ablated::Figure;
    use super::super::report::{Verdict, in_words};
    use super::*;

    /// 40 pictures with 3 questions each; the first `right` of each ten pictures are answered rightly.
    fn answers(right: usize) -> Answers {
        let item = |seed: u64, id: usize| {
            let holds = (id / 3 + seed as usize) % 10 < right;
            Item {
                metric: "exact_match".to_owned(),
                version: 1,
                higher_is_better: Some(true),
                normaliser: String::new(),
                id: id.to_string(),
                group: Some((id / 3).to_string()),
                statistic: Statistic::Ratio {
                    numerator: f64::from(u8::from(holds)),
                    denominator: 1.0,
                },
            }
        };
        Ok((1..=3).flat_map(|seed| (0..120).map(move |id| (seed, item(seed, id)))).collect())
    }

    fn less(better: Answers, worse: Answers, figure: Figure) -> Measure {
        difference(&figure.info(true), "picture", better, worse).unwrap()
    }

    #[test]
    fn differences_are_of_the_same_questions() {
        let found = less(answers(7), answers(4), Figure::ExactMatch);
        assert!((found.value - 0.3).abs() < 1e-12 && found.n == 360);
        assert_eq!(
            found.interval.as_ref().unwrap().method,
            "percentile bootstrap by picture and seed"
        );
        assert_eq!(Verdict::of(&found, None), Verdict::Holds);
        let worse = less(answers(4), answers(7), Figure::ExactMatch);
        assert_eq!(Verdict::of(&worse, None), Verdict::Fails);
        let same = less(answers(4), answers(4), Figure::ExactMatch);
        assert_eq!(Verdict::of(&same, None), Verdict::NotDecided);
        assert_eq!(Verdict::of(&same, Some(0.01)), Verdict::Holds);
        assert_eq!(Verdict::of(&found, Some(0.01)), Verdict::Fails);
        // Fewer errors are better.
        let errors = less(answers(4), answers(7), Figure::Wer);
        assert_eq!(Verdict::of(&errors, None), Verdict::Holds);
        assert_eq!(Verdict::of(&less(answers(7), answers(4), Figure::Wer), None), Verdict::Fails);
        let undefined = less(answers(7), Err("undefined: as it is".to_owned()), Figure::Wer);
        assert_eq!(undefined.reason.as_deref(), Some("undefined: as it is"));
        assert_eq!(Verdict::of(&undefined, None), Verdict::NotDecided);
        assert_eq!(in_words(&undefined), "–");
        assert_eq!(in_words(&found).split(' ').next(), Some("0.300"));
    }

    #[test]
    fn rows_that_are_compared_have_the_same_items() {
        let info = Figure::ExactMatch.info(true);
        let less = |worse| difference(&info, "picture", answers(7), Ok(worse));
        let mut worse = answers(7).unwrap();
        worse.retain(|(seed, item)| *seed != 2 || item.id != "5");
        let error = less(worse).unwrap_err().to_string();
        assert!(error.contains("item 5 of seed 2") && error.contains("same test data"), "{error}");
        let mut worse = answers(7).unwrap();
        worse[0].1.statistic = Statistic::Ratio { numerator: 0.0, denominator: 2.0 };
        assert!(less(worse).unwrap_err().to_string().contains("item 0 of seed 1"));
    }

    #[test]
    fn error_rates_weigh_items_by_their_words() {
        let item = |id: &str, numerator, denominator| {
            let item = Item {
                metric: "wer".to_owned(),
                version: 1,
                higher_is_better: Some(false),
                normaliser: String::new(),
                id: id.to_owned(),
                group: Some(id.to_owned()),
                statistic: Statistic::Ratio { numerator, denominator },
            };
            (1, item)
        };
        let row = |errors: f64| Ok(vec![item("a", errors, 8.0), item("b", 1.0, 2.0)]);
        let info = Figure::Wer.info(false);
        assert_eq!(figure(&info, "name", &row(2.0), parts).value, 0.3);
        assert_eq!(less(row(2.0), row(4.0), Figure::Wer).value, -0.2);
    }
}
