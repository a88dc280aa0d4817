//! The calibration of a member's scores: a linear function from scores to similarities.

use engram_data::patent::PhrasePair;
use serde::{Deserialize, Serialize};

use super::combination::anchor_groups;

/// The file of a calibration in a member's folder.
pub const CALIBRATION: &str = "calibration.json";

/// A linear calibration from scores to similarities, fitted on held-out rows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Calibration {
    slope: f64,
    intercept: f64,
}

impl Calibration {
    /// Fits the least-squares line from scores to gold; flat if the scores are constant. A line that
    /// falls would turn the order of the scores round, so that a model with the wrong order would
    /// seem right. Then the line rises as steeply instead.
    pub fn fit(scores: &[f64], gold: &[f64]) -> Self {
        let count = scores.len().max(1) as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let (mean_score, mean_gold) = (mean(scores), mean(gold));
        let (mut products, mut squares) = (0.0, 0.0);
        for (score, gold) in scores.iter().zip(gold) {
            products += (score - mean_score) * (gold - mean_gold);
            squares += (score - mean_score) * (score - mean_score);
        }
        let slope = if squares > 0.0 { products / squares } else { 0.0 };
        let slope = slope.abs();
        Self { slope, intercept: mean_gold - slope * mean_score }
    }

    /// Converts a score to a similarity.
    pub fn apply(self, score: f64) -> f64 {
        self.slope.mul_add(score, self.intercept)
    }
}

/// Calibrates scores without using a row's own gold score: each half of the anchors is calibrated
/// by a line fitted on the other half.
pub fn cross_fitted(rows: &[PhrasePair], scores: &[f64], gold: &[f64]) -> Vec<f64> {
    let half_of_row = anchor_groups(rows, 2);
    let fit_without = |half: usize| {
        let without = |values: &[f64]| -> Vec<f64> {
            let other_half = values.iter().zip(&half_of_row).filter(|(_, h)| **h != half);
            other_half.map(|(value, _)| *value).collect()
        };
        Calibration::fit(&without(scores), &without(gold))
    };
    let calibrations = [fit_without(0), fit_without(1)];
    scores.iter().zip(&half_of_row).map(|(score, half)| calibrations[*half].apply(*score)).collect()
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
        let wrong_order = Calibration::fit(&[0.0, 1.0, 2.0], &[5.0, 3.0, 1.0]);
        assert!(wrong_order.apply(0.0) < wrong_order.apply(2.0));
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
        let calibrated = cross_fitted(&rows, &scores, &gold);
        // For a score s, anchor `a` gets the line of `b`, 2 s + 10. Anchor `b` gets the line of
        // `a`, s.
        for (value, expected) in calibrated.iter().zip([10.0, 0.0, 12.0, 1.0, 14.0, 2.0]) {
            assert!((value - expected).abs() < 1e-12);
        }
    }
}
