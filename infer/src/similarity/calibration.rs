//! The calibration of a member's scores: a linear function from scores to similarities.

use engram_data::patent::PhrasePair;
use serde::{Deserialize, Serialize};

/// The file of a calibration in a member's folder.
pub const CALIBRATION: &str = "calibration.json";

/// A linear calibration from scores to similarities, fitted on held-out rows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Calibration {
    slope: f64,
    intercept: f64,
}

impl Calibration {
    /// Fits the least-squares line from scores to gold; flat if the scores are constant.
    pub fn fit(scores: &[f64], gold: &[f64]) -> Self {
        let count = scores.len().max(1) as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let (mean_score, mean_gold) = (mean(scores), mean(gold));
        let (mut product, mut square) = (0.0, 0.0);
        for (score, gold) in scores.iter().zip(gold) {
            product += (score - mean_score) * (gold - mean_gold);
            square += (score - mean_score) * (score - mean_score);
        }
        let slope = if square > 0.0 { product / square } else { 0.0 };
        Self { slope, intercept: mean_gold - slope * mean_score }
    }

    /// A score as a similarity.
    pub fn apply(self, score: f64) -> f64 {
        self.slope.mul_add(score, self.intercept)
    }
}

/// Calibrates scores without using a row's own gold score: each half of the anchors is calibrated
/// by a line fitted on the other half.
pub fn cross_fitted(rows: &[PhrasePair], scores: &[f64], gold: &[f64]) -> Vec<f64> {
    let mut anchors: Vec<&str> = rows.iter().map(|row| row.anchor.as_str()).collect();
    anchors.sort_unstable();
    anchors.dedup();
    let halves: Vec<usize> = rows
        .iter()
        .map(|row| anchors.binary_search(&row.anchor.as_str()).unwrap_or(0) % 2)
        .collect();
    let line_of_other = |half: usize| {
        let pick = |values: &[f64]| -> Vec<f64> {
            let of_other = values.iter().zip(&halves).filter(|(_, h)| **h != half);
            of_other.map(|(value, _)| *value).collect()
        };
        Calibration::fit(&pick(scores), &pick(gold))
    };
    let lines = [line_of_other(0), line_of_other(1)];
    scores.iter().zip(&halves).map(|(score, half)| lines[*half].apply(*score)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_fits_the_least_squares_line() {
        let line = Calibration::fit(&[0.0, 1.0, 2.0], &[1.0, 3.0, 5.0]);
        assert!((line.slope - 2.0).abs() < 1e-12 && (line.intercept - 1.0).abs() < 1e-12);
        let flat = Calibration::fit(&[1.0, 1.0], &[0.0, 0.5]);
        assert_eq!((flat.slope, flat.intercept), (0.0, 0.25));
    }

    #[test]
    fn the_calibration_of_a_row_ignores_its_own_gold_score() {
        let row = |anchor: &str| PhrasePair {
            id: anchor.into(),
            anchor: anchor.into(),
            target: "t".into(),
            context: "A01".into(),
            score: None,
            rating: None,
        };
        let rows: Vec<PhrasePair> = ["a", "b", "a", "b", "a", "b"].map(row).into();
        let scores = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0];
        let gold = [0.0, 10.0, 1.0, 12.0, 2.0, 14.0];
        let found = cross_fitted(&rows, &scores, &gold);
        // Anchor `a` is calibrated by the line of `b`, 2 s + 10, and `b` by the line of `a`.
        for (found, expected) in found.iter().zip([10.0, 0.0, 12.0, 1.0, 14.0, 2.0]) {
            assert!((found - expected).abs() < 1e-12);
        }
    }
}
