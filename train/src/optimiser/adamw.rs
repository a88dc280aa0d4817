//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
//!
//! It computes the same operations in the same order as `torch.optim.AdamW`.

use multiversion::multiversion;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::{BLOCK, Step, UpdateRule, decay_of};
use crate::error::Result;

/// `kind = "adamw"`: Adam with decoupled weight decay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdamwSettings {
    /// Decay rates of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub epsilon: f64,
    /// Weight decay for tensors of rank 2 or higher, multiplied by the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamwSettings {
    fn default() -> Self {
        Self { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl Settings for AdamwSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        let mut betas = self.betas.into_iter();
        betas
            .find_map(|beta| below_one("betas", beta))
            .or_else(|| positive("epsilon", self.epsilon))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        Box::new(AdamW::new(self, shape))
    }
}

/// The number of values with a common idle flag: less than a row of most embedding tables.
const RUN: usize = 256;

struct AdamW {
    betas: [f64; 2],
    epsilon: f64,
    weight_decay: f64,
    first: Vec<f32>,
    second: Vec<f32>,
    /// For each run of values, whether both moments are all 0. Idle values only decay. Most rows of
    /// a word embedding table are idle, because their tokens have not occurred yet. Empty after
    /// the moments were replaced, until the next update.
    idle: Vec<bool>,
}

/// The factors of one step for one tensor.
#[derive(Clone, Copy)]
struct Factors {
    gradient_scale: f32,
    /// The factor on the parameter: `1 − rate · decay`.
    keep: f32,
    beta1: f32,
    beta2: f32,
    /// The factor on the first moment over the second moment's root: `−rate / (1 − beta1^t)`.
    step: f32,
    /// `√(1 − beta2^t)`: the bias correction of the second moment's square root.
    correction: f32,
    epsilon: f32,
}

impl AdamW {
    fn new(settings: &AdamwSettings, shape: &[usize]) -> Self {
        let count = shape.iter().product();
        Self {
            betas: settings.betas,
            epsilon: settings.epsilon,
            weight_decay: decay_of(settings.weight_decay, shape),
            first: vec![0.0; count],
            second: vec![0.0; count],
            idle: Vec::new(),
        }
    }

    fn find_idle(&mut self) {
        let runs = self.first.chunks(RUN).zip(self.second.chunks(RUN));
        let idle = runs.map(|(first, second)| first.iter().chain(second).all(|m| *m == 0.0));
        self.idle = idle.collect();
    }
}

impl UpdateRule for AdamW {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        _: &mut Vec<f32>,
    ) -> Result<()> {
        if self.idle.is_empty() {
            self.find_idle();
        }
        let [beta1, beta2] = self.betas;
        let correction1 = 1.0 - beta1.powf(step.number as f64);
        let correction2 = 1.0 - beta2.powf(step.number as f64);
        let rate = step.learning_rate();
        let factors = Factors {
            gradient_scale: step.size.gradient_scale as f32,
            keep: (1.0 - rate * self.weight_decay) as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            step: (-rate / correction1) as f32,
            correction: correction2.sqrt() as f32,
            epsilon: self.epsilon as f32,
        };
        values
            .par_chunks_mut(BLOCK)
            .zip(gradient.par_chunks(BLOCK))
            .zip(self.first.par_chunks_mut(BLOCK))
            .zip(self.second.par_chunks_mut(BLOCK))
            .zip(self.idle.par_chunks_mut(BLOCK / RUN))
            .for_each(|((((values, gradient), first), second), idle)| {
                let runs = values
                    .chunks_mut(RUN)
                    .zip(gradient.chunks(RUN))
                    .zip(first.chunks_mut(RUN))
                    .zip(second.chunks_mut(RUN))
                    .zip(idle);
                for ((((values, gradient), first), second), idle) in runs {
                    *idle = *idle && gradient.iter().all(|g| *g == 0.0);
                    if *idle {
                        values.iter_mut().for_each(|value| *value *= factors.keep);
                    } else {
                        update(values, gradient, first, second, factors);
                    }
                }
            });
        Ok(())
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        vec![("first_moment", &self.first), ("second_moment", &self.second)]
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        self.idle.clear();
        if name == "first_moment" {
            self.first = values;
        } else {
            self.second = values;
        }
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
fn update(values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], f: Factors) {
    let rest1 = 1.0 - f.beta1;
    let rest2 = 1.0 - f.beta2;
    for (((value, gradient), first), second) in
        values.iter_mut().zip(gradient).zip(first.iter_mut()).zip(second.iter_mut())
    {
        let gradient = gradient * f.gradient_scale;
        *first = rest1.mul_add(gradient - *first, *first);
        *second = f.beta2.mul_add(*second, rest2 * gradient * gradient);
        let denominator = second.sqrt() / f.correction + f.epsilon;
        *value = f.step.mul_add(*first / denominator, *value * f.keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::StepSize;

    /// Rows of a table get gradients at different steps. The result is the same without the
    /// shortcut, and with a restored state before each step.
    #[test]
    fn the_shortcut_for_idle_values_changes_no_bytes() {
        const WIDTH: usize = 300;
        let settings = AdamwSettings::default();
        let run = |short_cut: bool, resume: bool| {
            let mut rule = AdamW::new(&settings, &[7, WIDTH]);
            let mut values: Vec<f32> = (0..7 * WIDTH).map(|i| (i as f32).sin()).collect();
            for (done, row) in [2, 5, 2, 0, 5].into_iter().enumerate() {
                if !short_cut {
                    rule.idle = vec![false; (7 * WIDTH).div_ceil(RUN)];
                }
                if resume {
                    let mut fresh = AdamW::new(&settings, &[7, WIDTH]);
                    for (name, values) in rule.state() {
                        fresh.set_state(name, values.to_vec());
                    }
                    rule = fresh;
                }
                let mut gradient = vec![0.0; values.len()];
                for (gradient, value) in
                    gradient.iter_mut().zip(&values).skip(row * WIDTH).take(WIDTH)
                {
                    *gradient = 2.0 * value;
                }
                let size = StepSize { learning_rate: 0.1, gradient_scale: 1.0 };
                let step = Step { number: done as u64 + 1, size, rate: 1.0 };
                rule.update(&mut values, &gradient, &step, &mut Vec::new()).expect("a step");
            }
            assert_eq!(rule.idle.contains(&true), short_cut);
            values
        };
        let dense = run(false, false);
        assert_eq!(run(true, false), dense);
        assert_eq!(run(true, true), dense);
    }
}
