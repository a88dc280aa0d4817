//! When a word is final, for sound that comes in at its own speed.
//!
//! A recording of a file is read as fast as it can be heard, and the clock is simulated: a chunk is
//! there when its last sample was spoken, its pass begins then or when the one before is done, and
//! takes the time that it was measured to take. So passes that take longer than chunks fall behind
//! more and more, as they would at a microphone. Reading and decoding a file are not counted.

use serde::Serialize;

/// A clock that runs on while sound comes in and while it is heard. In seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock {
    /// When the last pass was done.
    pub(super) now: f64,
    pub(super) passes: usize,
    /// Passes that began later than they could have, because the one before was still at work on less
    /// sound.
    pub(super) late_passes: usize,
    /// When the sound of the last pass was there.
    arrived: f64,
    pub(super) compute_seconds: f64,
}

impl Clock {
    /// A pass over sound that was there at `arrived`.
    pub(super) fn pass(&mut self, arrived: f64, compute_seconds: f64) {
        self.late_passes += usize::from(self.now > arrived && arrived > self.arrived);
        self.arrived = arrived;
        self.now = self.now.max(arrived) + compute_seconds;
        self.passes += 1;
        self.compute_seconds += compute_seconds;
    }
}

/// How some values are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// How many there are.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// The least value that half of them do not exceed, and so on.
    pub p50: f64,
    /// Nine tenths.
    pub p90: f64,
    /// Nineteen twentieths.
    pub p95: f64,
    /// The greatest.
    pub max: f64,
}

impl Distribution {
    /// Of these values; `None` of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let max = *values.last()?;
        let rank = |share: f64| values[((share * count as f64).ceil() as usize).max(1) - 1];
        Some(Self {
            count,
            mean: values.iter().sum::<f64>() / count as f64,
            p50: rank(0.5),
            p90: rank(0.9),
            p95: rank(0.95),
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_is_late_makes_the_next_one_late() {
        let mut clock = Clock::default();
        let passes = [(1.0, 0.5), (2.0, 2.0), (3.0, 0.5), (4.0, 0.25), (5.0, 0.1)];
        let done = passes.map(|(arrived, compute)| {
            clock.pass(arrived, compute);
            clock.now
        });
        // The third waits for the second until 4, the fourth for the third; the fifth is in time.
        assert_eq!(done, [1.5, 4.0, 4.5, 4.75, 5.1]);
        assert_eq!((clock.passes, clock.late_passes), (5, 2));
        assert!((clock.compute_seconds - 3.35).abs() < 1e-12);
        // The same sound once more is not late.
        clock.pass(5.0, 0.1);
        assert_eq!((clock.passes, clock.late_passes), (6, 2));
    }

    #[test]
    fn a_distribution_is_of_ranks() {
        let found = Distribution::of((1..=20).rev().map(f64::from).collect());
        let want =
            Distribution { count: 20, mean: 10.5, p50: 10.0, p90: 18.0, p95: 19.0, max: 20.0 };
        assert_eq!(found, Some(want));
        let one = Distribution { count: 1, mean: 2.0, p50: 2.0, p90: 2.0, p95: 2.0, max: 2.0 };
        assert_eq!((Distribution::of(vec![2.0]), Distribution::of(vec![])), (Some(one), None));
    }
}
