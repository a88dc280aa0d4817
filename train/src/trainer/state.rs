//! The state of a run: everything needed to resume it, except tensors.

use serde::{Deserialize, Serialize};

use crate::exact::Exact;
use crate::log::{LogPosition, Window};

/// The training state in a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// Steps over all phases, including skipped steps.
    pub(crate) step: u64,
    /// The index of the phase.
    pub(crate) phase: usize,
    /// The index of the epoch in the phase.
    pub(crate) epoch: usize,
    /// The index of the epoch's next micro-batch.
    pub(crate) batch: usize,
    /// Steps done in the phase, including skipped steps.
    pub(crate) phase_step: u64,
    /// The phase's planned number of steps.
    pub(crate) phase_steps: u64,
    /// Whether the phase has ended.
    pub(crate) phase_done: bool,
    /// Optimiser steps in this phase; skipped steps do not count.
    pub(crate) optimiser_steps: u64,
    /// Whether the phase's gradients have been checked.
    pub(crate) gradients_checked: bool,
    /// The number of skipped steps since the last optimiser step.
    pub(crate) bad_steps: u32,
    /// The best evaluation of the phase; `None` before the first evaluation.
    pub(crate) best: Option<Best>,
    /// Evaluations since the last improvement.
    pub(crate) evaluations_without_gain: usize,
    /// The metrics of the last evaluation.
    pub(crate) metrics: Vec<(String, Exact)>,
    /// The example counts of the last evaluation.
    pub(crate) counts: Vec<(String, u64)>,
    /// SHA-256 of the parameters that are frozen in this phase.
    pub(crate) frozen: String,
    /// Sums since the last log line.
    pub(crate) window: Window,
    /// The loss of the last log line; `None` before the first one.
    pub(crate) last_loss: Option<Exact>,
    /// The content of `metrics.jsonl`.
    pub(crate) log: LogPosition,
    /// The epoch of the last step, if the run was stopped before the log line, evaluation and
    /// checkpoint of this step; otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<usize>,
}

/// The best evaluation of a phase.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Best {
    /// The value of the primary metric.
    pub(crate) value: Exact,
    /// The step of the evaluation, over all phases.
    pub(crate) step: u64,
}

impl State {
    /// The state at the start of phase `phase`, which has `steps` steps.
    pub(crate) fn start_phase(&mut self, phase: usize, steps: u64, frozen: String) {
        *self = Self {
            step: self.step,
            log: self.log.clone(),
            phase,
            phase_steps: steps,
            frozen,
            ..Self::default()
        };
    }
}

pub(super) fn step_seed(seed: u64, step: u64, micro_batch: usize) -> u64 {
    let mixed = mix(mix(seed) ^ step);
    mix(mixed ^ (micro_batch as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// One output of SplitMix64: each input bit changes about half of the output bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_that_json_has_not_survive_it() {
        for value in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.1 + 0.2] {
            let mut state = State::default();
            state.window.add(value, value, 1, 1, &[("part".to_owned(), value)]);
            state.last_loss = Some(Exact(value));
            state.best = Some(Best { value: Exact(value), step: 1 });
            state.metrics = vec![("metric".to_owned(), Exact(value))];
            let json = serde_json::to_string(&state).expect("JSON");
            let read: State = serde_json::from_str(&json).expect("a state");
            assert_eq!(serde_json::to_string(&read).expect("JSON"), json);
            let best = read.best.expect("the best evaluation").value.0;
            assert_eq!(best.to_bits(), value.to_bits(), "{json}");
        }
    }

    #[test]
    fn seeds_differ_by_run_step_and_micro_batch() {
        let mut seen = HashSet::new();
        for seed in 0..8 {
            for step in 0..32 {
                for micro_batch in 0..8 {
                    assert!(seen.insert(step_seed(seed, step, micro_batch)));
                }
            }
        }
    }
}
