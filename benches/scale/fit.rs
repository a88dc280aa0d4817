//! Power laws: the cost at a size that was not measured.

use std::fmt;

/// `cost = factor · size^exponent`.
pub struct PowerLaw {
    factor: f64,
    /// At least 0; 1 for a cost that is proportional to the size.
    exponent: f64,
    /// The largest relative difference between a measured cost and the law.
    largest_deviation: f64,
}

impl PowerLaw {
    /// The law with the least squares of the logarithms. Costs that fall with the size are noise:
    /// their law is constant. `None` for costs at fewer than two sizes.
    pub fn fit(costs: &[(usize, f64)]) -> Option<Self> {
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
    pub fn at(&self, size: f64) -> f64 {
        self.factor * size.powf(self.exponent)
    }
}

impl fmt::Display for PowerLaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} (within {:.0} %)", self.exponent, 100.0 * self.largest_deviation)
    }
}
