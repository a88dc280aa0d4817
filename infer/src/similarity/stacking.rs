//! Stacking: ridge regression from the variants' scores and the overlap of the phrases to the gold
//! score.
//!
//! The members are trained for correlation, so their mean is not linear in the gold score. Variants
//! also make different errors on phrases with many or few common words. The regression is fitted on
//! the held-out rows: each row's scores come from members not trained on that row. Its terms are
//! each feature, its square and all products of two features.

use std::collections::BTreeSet;

use engram_data::patent::PhrasePair;
use serde::{Deserialize, Serialize};

/// The file of a fitted stacking in a run's folder.
pub const STACKING: &str = "stacking.json";

/// Minimum number of held-out rows for a fit: about ten per coefficient.
pub const MIN_ROWS: usize = 700;

/// The ridge penalty on coefficients of unit-variance terms.
const RIDGE: f64 = 10.0;

/// Groups of anchors for cross-fitting.
const PARTS: usize = 5;

/// A fitted regression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stacking {
    /// Mean and standard deviation of each feature.
    features: Vec<Moments>,
    /// Mean, standard deviation and coefficient of each feature and each product.
    terms: Vec<(Moments, f64)>,
    intercept: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Moments {
    mean: f64,
    std: f64,
}

impl Stacking {
    /// Fits the regression on rows with gold scores; `scores` has one list per variant.
    pub fn fit(rows: &[PhrasePair], scores: &[Vec<f64>]) -> Self {
        let all: Vec<usize> = (0..rows.len()).collect();
        Self::fit_on(&all, &features(rows, scores), &gold(rows))
    }

    /// Predicts the scores of rows.
    pub fn predict(&self, rows: &[PhrasePair], scores: &[Vec<f64>]) -> Vec<f64> {
        features(rows, scores).iter().map(|features| self.value(features)).collect()
    }

    /// Cross-fitted scores of the training rows: each row is predicted by a fit on other anchors.
    pub fn cross_fitted(rows: &[PhrasePair], scores: &[Vec<f64>]) -> Vec<f64> {
        let anchors: BTreeSet<&str> = rows.iter().map(|row| row.anchor.as_str()).collect();
        let anchors: Vec<&str> = anchors.into_iter().collect();
        let part_of =
            |row: &PhrasePair| anchors.binary_search(&row.anchor.as_str()).unwrap_or(0) % PARTS;
        let parts: Vec<usize> = rows.iter().map(part_of).collect();
        let (features, gold) = (features(rows, scores), gold(rows));
        let mut predicted = vec![0.0; rows.len()];
        for part in 0..PARTS {
            let (own, others): (Vec<usize>, Vec<usize>) =
                (0..rows.len()).partition(|row| parts[*row] == part);
            let fitted = Self::fit_on(&others, &features, &gold);
            own.iter().for_each(|row| predicted[*row] = fitted.value(&features[*row]));
        }
        predicted
    }

    fn fit_on(rows: &[usize], features: &[Vec<f64>], gold: &[f64]) -> Self {
        let moments_of = |width: usize, value: &dyn Fn(usize, usize) -> f64| -> Vec<Moments> {
            (0..width)
                .map(|column| Moments::of(rows.iter().map(|row| value(*row, column))))
                .collect()
        };
        let width = features.first().map_or(0, Vec::len);
        let of_features = moments_of(width, &|row, column| features[row][column]);
        let products: Vec<Vec<f64>> =
            rows.iter().map(|row| products(&features[*row], &of_features)).collect();
        let of_terms: Vec<Moments> = (0..products.first().map_or(0, Vec::len))
            .map(|column| Moments::of(products.iter().map(|products| products[column])))
            .collect();
        let count = rows.len().max(1) as f64;
        let mean = rows.iter().map(|row| gold[*row]).sum::<f64>() / count;
        let width = of_terms.len();
        let mut normal = vec![0.0; width * width];
        let mut right = vec![0.0; width];
        for (row, products) in rows.iter().zip(&products) {
            let terms: Vec<f64> =
                products.iter().zip(&of_terms).map(|(value, m)| m.standardise(*value)).collect();
            for (i, term) in terms.iter().enumerate() {
                right[i] += term * (gold[*row] - mean);
                // The lower triangle is enough.
                for (sum, other) in normal[i * width..].iter_mut().zip(&terms[..=i]) {
                    *sum += term * other;
                }
            }
        }
        (0..width).for_each(|i| normal[i * width + i] += RIDGE);
        let coefficients = solve(normal, right);
        let terms = of_terms.into_iter().zip(coefficients).collect();
        Self { features: of_features, terms, intercept: mean }
    }

    fn value(&self, features: &[f64]) -> f64 {
        let products = products(features, &self.features);
        let terms = products.iter().zip(&self.terms);
        self.intercept
            + terms.map(|(value, (m, weight))| m.standardise(*value) * weight).sum::<f64>()
    }
}

impl Moments {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count().max(1) as f64;
        let mean = values.clone().sum::<f64>() / count;
        let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self { mean, std: variance.sqrt() }
    }

    /// In standard deviations from the mean; 0 for a constant feature.
    fn standardise(self, value: f64) -> f64 {
        if self.std > 0.0 { (value - self.mean) / self.std } else { 0.0 }
    }
}

/// The standardised features, followed by all products of two.
fn products(features: &[f64], moments: &[Moments]) -> Vec<f64> {
    let values: Vec<f64> =
        features.iter().zip(moments).map(|(value, m)| m.standardise(*value)).collect();
    let mut products = values.clone();
    for (i, value) in values.iter().enumerate() {
        products.extend(values[i..].iter().map(|other| value * other));
    }
    products
}

/// Solves `A x = b` by Cholesky for a symmetric positive definite `A`, given by its lower triangle.
fn solve(mut a: Vec<f64>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for j in 0..n {
        for i in j..n {
            let sum: f64 = (0..j).map(|k| a[i * n + k] * a[j * n + k]).sum();
            let rest = a[i * n + j] - sum;
            a[i * n + j] = if i == j { rest.sqrt() } else { rest / a[j * n + j] };
        }
    }
    for i in 0..n {
        let sum: f64 = (0..i).map(|k| a[i * n + k] * b[k]).sum();
        b[i] = (b[i] - sum) / a[i * n + i];
    }
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|k| a[k * n + i] * b[k]).sum();
        b[i] = (b[i] - sum) / a[i * n + i];
    }
    b
}

fn gold(rows: &[PhrasePair]) -> Vec<f64> {
    rows.iter().map(|row| f64::from(row.score.unwrap_or(0.0))).collect()
}

/// The variants' scores of each row, and the overlap of anchor and target.
fn features(rows: &[PhrasePair], scores: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let of_row = |(index, row): (usize, &PhrasePair)| {
        let own = scores.iter().map(|scores| scores[index]);
        own.chain(overlap(&row.anchor, &row.target)).collect()
    };
    rows.iter().enumerate().map(of_row).collect()
}

/// The overlap features of two phrases, in order:
/// - shared words as a fraction of the anchor's words, of the target's words and of their union,
/// - shared character trigrams as a fraction of the union,
/// - the word counts of both phrases,
/// - whether the last words are equal, and whether the first words are.
fn overlap(anchor: &str, target: &str) -> [f64; 8] {
    let (a, t): (Vec<&str>, Vec<&str>) =
        (anchor.split_whitespace().collect(), target.split_whitespace().collect());
    let set = |words: &[&str]| -> BTreeSet<String> {
        words.iter().map(|word| word.to_lowercase()).collect()
    };
    let trigrams = |text: &str| -> BTreeSet<String> {
        let letters: Vec<char> = text.to_lowercase().chars().collect();
        letters.windows(3).map(|letters| letters.iter().collect()).collect()
    };
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let jaccard = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
        share(a.intersection(b).count(), a.union(b).count())
    };
    let same = |a: Option<&&str>, t: Option<&&str>| {
        let same = a.zip(t).is_some_and(|(a, t)| a.to_lowercase() == t.to_lowercase());
        f64::from(u8::from(same))
    };
    let (words_a, words_t) = (set(&a), set(&t));
    let shared = words_a.intersection(&words_t).count();
    [
        share(shared, words_a.len()),
        share(shared, words_t.len()),
        jaccard(&words_a, &words_t),
        jaccard(&trigrams(anchor), &trigrams(target)),
        a.len() as f64,
        t.len() as f64,
        same(a.last(), t.last()),
        same(a.first(), t.first()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<PhrasePair> {
        let row = |i: usize| PhrasePair {
            id: i.to_string(),
            anchor: format!("anchor {}", i % 40),
            target: ["anchor part", "part of it", "another anchor", "x"][i % 4].into(),
            context: "A01".into(),
            score: Some(((i * 7919) % 5) as f32 / 4.0),
            rating: None,
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn cholesky_solves_a_small_system() {
        // [[4, 2], [2, 3]] x = [2, 5] has x = [-0.5, 2].
        let x = solve(vec![4.0, 0.0, 2.0, 3.0], vec![2.0, 5.0]);
        assert!((x[0] + 0.5).abs() < 1e-12 && (x[1] - 2.0).abs() < 1e-12, "{x:?}");
    }

    #[test]
    fn stacking_fits_a_nonlinear_scale() {
        let rows = rows(900);
        // The scores are the square roots of the gold scores, so their squares are the gold scores.
        let scores = vec![gold(&rows).iter().map(|gold| gold.sqrt()).collect::<Vec<f64>>()];
        let stacking = Stacking::fit(&rows, &scores);
        for found in [stacking.predict(&rows, &scores), Stacking::cross_fitted(&rows, &scores)] {
            for (found, row) in found.iter().zip(&rows) {
                assert!((found - f64::from(row.score.unwrap_or(0.0))).abs() < 0.05);
            }
        }
        let json = serde_json::to_string(&stacking).expect("JSON");
        let read: Stacking = serde_json::from_str(&json).expect("JSON");
        assert_eq!(read.predict(&rows, &scores), stacking.predict(&rows, &scores));
    }

    #[test]
    fn the_stacked_score_of_a_row_ignores_its_own_gold_score() {
        let mut rows = rows(900);
        let scores = vec![vec![0.5; 900]];
        let before = Stacking::cross_fitted(&rows, &scores);
        rows[0].score = Some(1.0 - rows[0].score.unwrap_or(0.0));
        let after = Stacking::cross_fitted(&rows, &scores);
        assert_eq!(before[0], after[0]);
        assert!(before.iter().zip(&after).any(|(before, after)| before != after));
    }

    #[test]
    fn overlap_counts_words_and_trigrams() {
        assert_eq!(overlap("Water pump", "pump"), [0.5, 1.0, 0.5, 0.25, 2.0, 1.0, 1.0, 0.0]);
        assert!(overlap("", "").iter().all(|value| *value == 0.0));
    }
}
