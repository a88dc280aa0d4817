//! Stacking: ridge regression from the variants' scores and the overlap of the phrases to the gold
//! score. A variant is one `[[variant]]` of the recipe, with one member for each fold.
//!
//! The members are trained for correlation, so their mean is not linear in the gold score. Variants
//! also make different errors on pairs that share many or few words. The regression is fitted on
//! the held-out rows: each row's scores come from members not trained on that row. Its terms are
//! each feature, its square and all products of two features.

use std::collections::BTreeSet;

use engram_data::patent::PhrasePair;
use serde::{Deserialize, Serialize};

use super::combination::anchor_groups;

/// The file of a fitted stacking in a run's folder.
pub const STACKING: &str = "stacking.json";

/// Minimum number of held-out rows for a fit: about ten per coefficient.
pub const MIN_ROWS: usize = 700;

/// The ridge penalty on coefficients of unit-variance terms.
const RIDGE: f64 = 10.0;

/// The number of groups of anchors for cross-fitting.
const GROUPS: usize = 5;

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
    /// The population standard deviation.
    std: f64,
}

impl Stacking {
    /// Fits the regression on rows with gold scores; `scores` has one list per variant.
    pub fn fit(rows: &[PhrasePair], scores: &[Vec<f64>]) -> Self {
        let indices: Vec<usize> = (0..rows.len()).collect();
        Self::fit_rows(&indices, &features(rows, scores), &gold(rows))
    }

    /// Predicts the scores of rows; `scores` has one list per variant.
    pub fn predict(&self, rows: &[PhrasePair], scores: &[Vec<f64>]) -> Vec<f64> {
        features(rows, scores).iter().map(|features| self.predict_row(features)).collect()
    }

    /// Predicts the scores of the training rows by cross-fitting: each row is predicted by a fit on
    /// other anchors. `scores` has one list per variant.
    pub fn cross_fitted(rows: &[PhrasePair], scores: &[Vec<f64>]) -> Vec<f64> {
        let groups = anchor_groups(rows, GROUPS);
        let (features, gold) = (features(rows, scores), gold(rows));
        let mut predicted = vec![0.0; rows.len()];
        for group in 0..GROUPS {
            let (in_group, others): (Vec<usize>, Vec<usize>) =
                (0..rows.len()).partition(|row| groups[*row] == group);
            let fitted = Self::fit_rows(&others, &features, &gold);
            in_group.iter().for_each(|row| predicted[*row] = fitted.predict_row(&features[*row]));
        }
        predicted
    }

    /// Fits the regression on the rows with these indices.
    fn fit_rows(rows: &[usize], features: &[Vec<f64>], gold: &[f64]) -> Self {
        let moments_of = |width: usize, value: &dyn Fn(usize, usize) -> f64| -> Vec<Moments> {
            (0..width)
                .map(|column| Moments::of(rows.iter().map(|row| value(*row, column))))
                .collect()
        };
        let width = features.first().map_or(0, Vec::len);
        let feature_moments = moments_of(width, &|row, column| features[row][column]);
        let products: Vec<Vec<f64>> =
            rows.iter().map(|row| products(&features[*row], &feature_moments)).collect();
        let term_moments: Vec<Moments> = (0..products.first().map_or(0, Vec::len))
            .map(|column| Moments::of(products.iter().map(|products| products[column])))
            .collect();
        let count = rows.len().max(1) as f64;
        let mean = rows.iter().map(|row| gold[*row]).sum::<f64>() / count;
        let width = term_moments.len();
        // The normal equations of ridge regression.
        let mut matrix = vec![0.0; width * width];
        let mut right_side = vec![0.0; width];
        for (row, products) in rows.iter().zip(&products) {
            let terms = products.iter().zip(&term_moments);
            let terms: Vec<f64> = terms.map(|(value, m)| m.standardise(*value)).collect();
            for (i, term) in terms.iter().enumerate() {
                right_side[i] += term * (gold[*row] - mean);
                // The lower triangle is enough.
                for (sum, other) in matrix[i * width..].iter_mut().zip(&terms[..=i]) {
                    *sum += term * other;
                }
            }
        }
        (0..width).for_each(|i| matrix[i * width + i] += RIDGE);
        let coefficients = solve(matrix, right_side);
        let terms = term_moments.into_iter().zip(coefficients).collect();
        Self { features: feature_moments, terms, intercept: mean }
    }

    /// The prediction for a row with these features.
    fn predict_row(&self, features: &[f64]) -> f64 {
        let products = products(features, &self.features);
        let terms = products.iter().zip(&self.terms);
        self.intercept
            + terms
                .map(|(value, (m, coefficient))| m.standardise(*value) * coefficient)
                .sum::<f64>()
    }
}

impl Moments {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count().max(1) as f64;
        let mean = values.clone().sum::<f64>() / count;
        let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self { mean, std: variance.sqrt() }
    }

    /// The distance of a value from the mean, in standard deviations; 0 for a constant feature.
    fn standardise(self, value: f64) -> f64 {
        if self.std > 0.0 { (value - self.mean) / self.std } else { 0.0 }
    }
}

/// The standardised features, followed by all products of two features, squares included.
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
            let remainder = a[i * n + j] - sum;
            a[i * n + j] = if i == j { remainder.sqrt() } else { remainder / a[j * n + j] };
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

/// The gold scores of rows; 0 for a row without a gold score.
fn gold(rows: &[PhrasePair]) -> Vec<f64> {
    rows.iter().map(|row| f64::from(row.score.unwrap_or(0.0))).collect()
}

/// The variants' scores of each row, and the overlap of anchor and target.
fn features(rows: &[PhrasePair], scores: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let row_features = |(index, row): (usize, &PhrasePair)| {
        let variant_scores = scores.iter().map(|scores| scores[index]);
        variant_scores.chain(overlap(&row.anchor, &row.target)).collect()
    };
    rows.iter().enumerate().map(row_features).collect()
}

/// The overlap features of two phrases, in order:
/// - shared words as a fraction of the anchor's words, of the target's words and of their union,
/// - shared character trigrams as a fraction of the union,
/// - the word counts of both phrases,
/// - 1 if the last words are equal, else 0,
/// - 1 if the first words are equal, else 0.
fn overlap(anchor: &str, target: &str) -> [f64; 8] {
    let anchor_words: Vec<&str> = anchor.split_whitespace().collect();
    let target_words: Vec<&str> = target.split_whitespace().collect();
    let set = |words: &[&str]| -> BTreeSet<String> {
        words.iter().map(|word| word.to_lowercase()).collect()
    };
    let trigrams = |text: &str| -> BTreeSet<String> {
        let letters: Vec<char> = text.to_lowercase().chars().collect();
        letters.windows(3).map(|letters| letters.iter().collect()).collect()
    };
    let fraction = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let jaccard = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
        fraction(a.intersection(b).count(), a.union(b).count())
    };
    let equality = |a: Option<&&str>, b: Option<&&str>| {
        let are_equal = a.zip(b).is_some_and(|(a, b)| a.to_lowercase() == b.to_lowercase());
        f64::from(u8::from(are_equal))
    };
    let (anchor_set, target_set) = (set(&anchor_words), set(&target_words));
    let shared = anchor_set.intersection(&target_set).count();
    [
        fraction(shared, anchor_set.len()),
        fraction(shared, target_set.len()),
        jaccard(&anchor_set, &target_set),
        jaccard(&trigrams(anchor), &trigrams(target)),
        anchor_words.len() as f64,
        target_words.len() as f64,
        equality(anchor_words.last(), target_words.last()),
        equality(anchor_words.first(), target_words.first()),
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
        for predicted in [stacking.predict(&rows, &scores), Stacking::cross_fitted(&rows, &scores)]
        {
            for (score, row) in predicted.iter().zip(&rows) {
                assert!((score - f64::from(row.score.unwrap_or(0.0))).abs() < 0.05);
            }
        }
        let json = serde_json::to_string(&stacking).expect("JSON");
        let restored: Stacking = serde_json::from_str(&json).expect("JSON");
        assert_eq!(restored.predict(&rows, &scores), stacking.predict(&rows, &scores));
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
    fn overlap_compares_words_and_trigrams_regardless_of_case() {
        assert_eq!(overlap("Water pump", "pump"), [0.5, 1.0, 0.5, 0.25, 2.0, 1.0, 1.0, 0.0]);
        assert!(overlap("", "").iter().all(|value| *value == 0.0));
    }
}
