//! The latency of final words for audio in real time.
//!
//! A file is read at full speed, and the clock is simulated. A chunk arrives when its last sample
//! has been spoken. Its pass starts on arrival, or when the previous pass is done, and lasts for
//! its measured time. If passes take longer than chunks, the latency grows, as with a microphone.
//! The time to read and decode the file is not included.

use serde::Serialize;

/// A simulated clock for arriving audio and computing time, in seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock {
    /// The time at the end of the last pass.
    pub(super) now: f64,
    pub(super) passes: usize,
    /// The number of passes that started late, because the previous pass, on less audio, was still
    /// running.
    pub(super) late_passes: usize,
    /// The arrival time of the last pass's audio.
    arrived: f64,
    /// The computing time of all passes.
    pub(super) compute_seconds: f64,
}

impl Clock {
    /// Adds a pass over audio that had arrived completely at `arrived`.
    pub(super) fn pass(&mut self, arrived: f64, compute_seconds: f64) {
        self.late_passes += usize::from(self.now > arrived && arrived > self.arrived);
        self.arrived = arrived;
        self.now = self.now.max(arrived) + compute_seconds;
        self.passes += 1;
        self.compute_seconds += compute_seconds;
    }
}

/// The distribution of some values, such as latencies in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// The number of values.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// The median: the smallest value that at least half of the values do not exceed.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The maximum.
    pub max: f64,
}

impl Distribution {
    /// The distribution of these values; `None` without values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let max = *values.last()?;
        let quantile =
            |fraction: f64| values[((fraction * count as f64).ceil() as usize).max(1) - 1];
        Some(Self {
            count,
            mean: values.iter().sum::<f64>() / count as f64,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p95: quantile(0.95),
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
        let ends = passes.map(|(arrived, compute_seconds)| {
            clock.pass(arrived, compute_seconds);
            clock.now
        });
        // The third pass waits for the second until 4, the fourth for the third. The fifth is on
        // time.
        assert_eq!(ends, [1.5, 4.0, 4.5, 4.75, 5.1]);
        assert_eq!((clock.passes, clock.late_passes), (5, 2));
        assert!((clock.compute_seconds - 3.35).abs() < 1e-12);
        // A second pass over the same audio is not late.
        clock.pass(5.0, 0.1);
        assert_eq!((clock.passes, clock.late_passes), (6, 2));
    }

    #[test]
    fn percentiles_are_values_at_their_ranks() {
        let distribution = Distribution::of((1..=20).rev().map(f64::from).collect());
        let expected =
            Distribution { count: 20, mean: 10.5, p50: 10.0, p90: 18.0, p95: 19.0, max: 20.0 };
        assert_eq!(distribution, Some(expected));
        let one = Distribution { count: 1, mean: 2.0, p50: 2.0, p90: 2.0, p95: 2.0, max: 2.0 };
        assert_eq!((Distribution::of(vec![2.0]), Distribution::of(vec![])), (Some(one), None));
    }
}
