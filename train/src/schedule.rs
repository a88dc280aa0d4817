//! Learning-rate schedules.

use crate::recipe::table;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The curve of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Curve {
    /// The learning rate stays constant.
    Constant,
    /// Linear decay.
    #[default]
    Linear,
    /// Cosine decay over half a period.
    Cosine,
    /// Decay with the inverse square root of the step. It does not depend on the number of steps.
    InverseSqrt,
}

table! {
    /// `[schedule]`: the learning-rate schedule of a phase.
    pub struct Schedule {
        /// The curve after the warm-up.
        pub kind: Curve = Curve::Linear,
        /// Warm-up length as a fraction of the phase's steps.
        pub warmup_fraction: f64 = 0.0,
        /// Warm-up length in steps; by default `warmup_fraction` sets the length.
        pub warmup_steps: Option<u64> = None,
        /// Linear and cosine: the final learning rate as a fraction of the peak.
        pub final_fraction: f64 = 0.0,
        /// Inverse square root: the number of steps after the warm-up at which the learning rate is
        /// 0.71 times the peak.
        pub timescale: u64 = 10_000,
    }
}

impl Schedule {
    /// The learning-rate factor at `step` (counted from 0) of a phase of `total` steps.
    ///
    /// The warm-up rises to 1 in equal increments and reaches 1 at its last step. No step of the
    /// phase has factor 0. Linear and cosine: from step `total` on, the factor is
    /// `final_fraction`.
    ///
    /// # Source
    /// Inverse square root: scenic `lr_schedules.py`, `sqrt(T) / sqrt(t + T − W)`.
    pub fn factor(&self, step: u64, total: u64) -> f64 {
        let warmup = self.warmup_length(total);
        if step < warmup {
            return (step + 1) as f64 / warmup as f64;
        }
        let steps_after_warmup = (step - warmup) as f64;
        let decay_steps = total.saturating_sub(warmup).max(1) as f64;
        let decayed_fraction = (steps_after_warmup / decay_steps).min(1.0);
        let decay = match self.kind {
            Curve::Constant => return 1.0,
            Curve::InverseSqrt => {
                let timescale = self.timescale as f64;
                return (timescale / (steps_after_warmup + timescale)).sqrt();
            }
            Curve::Linear => 1.0 - decayed_fraction,
            Curve::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * decayed_fraction).cos()),
        };
        self.final_fraction + (1.0 - self.final_fraction) * decay
    }

    /// The number of warm-up steps in a phase of `total` steps.
    fn warmup_length(&self, total: u64) -> u64 {
        self.warmup_steps.unwrap_or((self.warmup_fraction * total as f64).round() as u64)
    }

    /// Returns an error if a setting is invalid.
    pub(crate) fn validate(&self) -> Result<(), &'static str> {
        let is_fraction = |value: f64| (0.0..=1.0).contains(&value);
        if !is_fraction(self.warmup_fraction) {
            return Err("`warmup_fraction` has to lie in [0, 1]");
        }
        if self.warmup_steps.is_some() && self.warmup_fraction > 0.0 {
            return Err("has both `warmup_fraction` and `warmup_steps`; give one");
        }
        if !is_fraction(self.final_fraction) {
            return Err("`final_fraction` has to lie in [0, 1]");
        }
        if self.timescale == 0 {
            return Err("`timescale` has to be at least 1");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factors at these steps, rounded to six decimals.
    fn factors(schedule: &Schedule, steps: &[u64], total: u64) -> Vec<f64> {
        let rounded = |factor: f64| (factor * 1e6).round() / 1e6;
        steps.iter().map(|step| rounded(schedule.factor(*step, total))).collect()
    }

    #[test]
    fn linear_warms_up_and_falls_to_its_final_fraction() {
        let schedule = Schedule { warmup_fraction: 0.2, ..Schedule::default() };
        assert_eq!(
            factors(&schedule, &[0, 1, 2, 6, 9, 10, 99], 10),
            [0.5, 1.0, 1.0, 0.5, 0.125, 0.0, 0.0]
        );
        let schedule = Schedule { warmup_steps: Some(0), final_fraction: 0.1, ..schedule };
        assert_eq!(factors(&schedule, &[0, 5, 10], 10), [1.0, 0.55, 0.1]);
    }

    #[test]
    fn cosine_falls_from_1_over_one_half_at_the_middle_to_0() {
        let schedule = Schedule { kind: Curve::Cosine, ..Schedule::default() };
        assert_eq!(factors(&schedule, &[0, 25, 50, 100], 100), [1.0, 0.853553, 0.5, 0.0]);
    }

    #[test]
    fn inverse_sqrt_equals_scenic() {
        // base * min(1, t/W) * sqrt(T)/sqrt(t + T - W), W = 4, T = 12
        let schedule = Schedule {
            kind: Curve::InverseSqrt,
            warmup_steps: Some(4),
            timescale: 12,
            ..Schedule::default()
        };
        assert_eq!(factors(&schedule, &[0, 3, 4, 8, 40], 7), [0.25, 1.0, 1.0, 0.866025, 0.5]);
    }

    #[test]
    fn constant_stays_at_the_peak() {
        let schedule = Schedule { kind: Curve::Constant, ..Schedule::default() };
        assert_eq!(factors(&schedule, &[0, 7, 1000], 10), [1.0, 1.0, 1.0]);
    }
}
