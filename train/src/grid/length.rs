//! The length of a grid's runs, and the expected time of the remaining runs.

use std::time::Duration;

use crate::recipe::Recipe;

/// The length of a run. Steps and epochs are separate, because the number of steps in an epoch is
/// unknown until the run is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Length {
    /// Steps of the phases that count steps.
    steps: u64,
    /// Epochs of the phases that count epochs.
    epochs: u64,
}

impl Length {
    /// The length of a recipe's phases.
    pub(super) fn of(recipe: &Recipe) -> Self {
        recipe.phases().iter().fold(Self::default(), |sum, phase| Self {
            steps: sum.steps + phase.steps.unwrap_or(0),
            epochs: sum.epochs + phase.epochs.unwrap_or(0) as u64,
        })
    }

    /// The length without the phases of an earlier run.
    pub(super) fn minus(self, earlier: Self) -> Self {
        Self {
            steps: self.steps.saturating_sub(earlier.steps),
            epochs: self.epochs.saturating_sub(earlier.epochs),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self { steps: self.steps + other.steps, epochs: self.epochs + other.epochs }
    }

    /// The ratio of two lengths. `None` if they mix steps and epochs in different proportions,
    /// because the time of an epoch, compared with a step, is unknown.
    fn ratio_to(self, other: Self) -> Option<f64> {
        let same_proportions = u128::from(self.steps) * u128::from(other.epochs)
            == u128::from(self.epochs) * u128::from(other.steps);
        let ratio = match other.steps {
            0 => self.epochs as f64 / other.epochs as f64,
            steps => self.steps as f64 / steps as f64,
        };
        (same_proportions && ratio.is_finite()).then_some(ratio)
    }
}

/// The total length and time of the runs trained so far.
#[derive(Debug, Default)]
pub(super) struct TrainedRuns {
    length: Length,
    time: Duration,
}

impl TrainedRuns {
    /// Adds a run.
    pub(super) fn add(&mut self, length: Length, time: Duration) {
        self.length = self.length.plus(length);
        self.time += time;
    }

    /// The expected time of further runs; `None` if the trained runs give no estimate.
    pub(super) fn expected_time(&self, runs: &[Length]) -> Option<Duration> {
        let total = runs.iter().fold(Length::default(), |sum, run| sum.plus(*run));
        Duration::try_from_secs_f64(self.time.as_secs_f64() * total.ratio_to(self.length)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_is_estimated_from_comparable_runs() {
        let seconds = |trained: &[(u64, u64, u64)], remaining: &[(u64, u64)]| {
            let mut trained_runs = TrainedRuns::default();
            for &(steps, epochs, seconds) in trained {
                trained_runs.add(Length { steps, epochs }, Duration::from_secs(seconds));
            }
            let remaining: Vec<Length> =
                remaining.iter().map(|&(steps, epochs)| Length { steps, epochs }).collect();
            trained_runs.expected_time(&remaining).map(|time| time.as_secs())
        };
        // Before the first run has finished.
        assert_eq!(seconds(&[], &[(100, 0)]), None);
        assert_eq!(seconds(&[], &[(0, 2)]), None);
        assert_eq!(seconds(&[(100, 0, 10), (50, 0, 5)], &[(300, 0), (100, 0)]), Some(40));
        assert_eq!(seconds(&[(0, 2, 10)], &[(0, 3)]), Some(15));
        // Runs of the same phases.
        assert_eq!(seconds(&[(100, 2, 10)], &[(100, 2), (100, 2)]), Some(20));
        // The steps of an epoch are unknown.
        assert_eq!(seconds(&[(100, 0, 10)], &[(100, 0), (0, 2)]), None);
        assert_eq!(seconds(&[(100, 0, 10)], &[(0, 2)]), None);
        assert_eq!(seconds(&[(0, 2, 10)], &[(100, 2)]), None);
    }
}
