//! Power laws: the cost at a size that was not measured.

use serde::Serialize;

/// `cost = factor · size^exponent`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct PowerLaw {
    factor: f64,
    /// The exponent, at least 0; 1 for a cost that is proportional to the size.
    pub(super) exponent: f64,
    /// The largest relative difference between a measured cost and the law.
    pub(super) largest_deviation: f64,
}

impl PowerLaw {
    /// The law with the least squares of the logarithms. Costs that fall with the size are noise:
    /// their law is constant. `None` for costs at fewer than two sizes.
    pub(super) fn fit(costs: &[(usize, f64)]) -> Option<Self> {
        let points: Vec<(f64, f64)> =
            costs.iter().map(|(size, cost)| ((*size as f64).ln(), cost.ln())).collect();
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
        if points.len() < 2 || spread == 0.0 {
            return None;
        }
        let products = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y));
        let exponent = (products.sum::<f64>() / spread).max(0.0);
        let law =
            Self { factor: (mean_y - exponent * mean_x).exp(), exponent, largest_deviation: 0.0 };
        let deviation = |(size, cost): &(usize, f64)| (law.at(*size as f64) / cost - 1.0).abs();
        let largest_deviation = costs.iter().map(deviation).fold(0.0, f64::max);
        Some(Self { largest_deviation, ..law })
    }

    /// The cost at a size.
    pub(super) fn at(&self, size: f64) -> f64 {
        self.factor * size.powf(self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_law_is_found_again_and_one_size_gives_none() {
        let costs = [10_000, 30_000, 1_000_000].map(|size| (size, 2e-6 * (size as f64).powf(1.2)));
        let law = PowerLaw::fit(&costs).expect("a law");
        assert!((law.exponent - 1.2).abs() < 1e-9 && law.largest_deviation < 1e-9);
        assert!((law.at(2e7) / (2e-6 * 2e7f64.powf(1.2)) - 1.0).abs() < 1e-9);
        // The law gives 1.26, 2.52 and 5.04.
        let law = PowerLaw::fit(&[(100, 1.0), (200, 4.0), (400, 4.0)]).expect("a law");
        assert!((law.exponent - 1.0).abs() < 1e-9);
        assert!((law.largest_deviation - 0.370).abs() < 1e-3);
        let constant = PowerLaw::fit(&[(100, 2.0), (400, 0.5)]).expect("a law");
        assert!(constant.exponent == 0.0 && (constant.at(1e9) - 1.0).abs() < 1e-9);
        assert_eq!(PowerLaw::fit(&[(100, 1.0)]), None);
        assert_eq!(PowerLaw::fit(&[(100, 1.0), (100, 2.0)]), None);
    }
}
