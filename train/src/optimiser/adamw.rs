//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
//!
//! The operations and their order equal those of `torch.optim.AdamW`.

use candle_core::Tensor;
#[cfg(feature = "cuda")]
use engram_models::cuda::AdamwUpdate;
use rayon::prelude::*;

use super::lanes::{
    DecayedStep, ElementRule, ElementSettings, ElementWise, Lane, MeanWeights, UpdateSlice,
};
use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::{BLOCK, State, Step, UpdateRule, decay_of};
use crate::error::Result as TrainResult;
use crate::recipe::table;

table! {
    /// `kind = "adamw"`: Adam with decoupled weight decay.
    pub struct AdamwSettings {
        /// Decay rates of the first and second moment.
        pub betas: [f64; 2] = [0.9, 0.999],
        /// Added to the square root of the second moment.
        pub epsilon: f64 = 1e-8,
        /// Weight decay for tensors of rank 2 or higher, multiplied by the learning rate.
        pub weight_decay: f64 = 0.01,
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

/// The number of values that share an idle flag: less than the row length of most embedding
/// tables.
const VALUES_PER_FLAG: usize = 256;

struct AdamW {
    rule: ElementWise<AdamwSettings, 2>,
    /// For each block of values, whether both moments are all 0. Idle values only decay. A row of a
    /// word embedding table is idle until its token occurs. Empty before the first update, and
    /// after the moments were replaced.
    idle: Vec<bool>,
}

/// One step for one tensor.
#[derive(Clone, Copy)]
pub(super) struct AdamwStep {
    gradient_scale: f32,
    first: MeanWeights,
    second: MeanWeights,
    /// `decay` is `1 − learning_rate · weight_decay`. `step` is the factor on the ratio of the
    /// first moment to the second moment's root, at step `t`: `−learning_rate / (1 − beta1^t)`.
    step: DecayedStep,
    /// `√(1 − beta2^t)`: the bias correction of the second moment's square root.
    correction: f32,
    epsilon: f32,
}

impl AdamW {
    fn new(settings: &AdamwSettings, shape: &[usize]) -> Self {
        let weight_decay = decay_of(settings.weight_decay, shape);
        let settings = AdamwSettings { weight_decay, ..settings.clone() };
        let names = ["first_moment", "second_moment"];
        Self { rule: ElementWise::new(settings, shape, names), idle: Vec::new() }
    }
}

impl ElementSettings for AdamwSettings {
    type Step = AdamwStep;

    fn step(&self, step: &Step) -> AdamwStep {
        let [beta1, beta2] = self.betas;
        let correction1 = 1.0 - beta1.powf(step.number as f64);
        let correction2 = 1.0 - beta2.powf(step.number as f64);
        let learning_rate = step.learning_rate();
        AdamwStep {
            gradient_scale: step.size.gradient_scale as f32,
            first: MeanWeights::new(beta1),
            second: MeanWeights::new(beta2),
            step: DecayedStep {
                decay: (1.0 - learning_rate * self.weight_decay) as f32,
                step: (-learning_rate / correction1) as f32,
            },
            correction: correction2.sqrt() as f32,
            epsilon: self.epsilon as f32,
        }
    }
}

impl ElementRule<2> for AdamwStep {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        value: &L,
        gradient: &L,
        [first, second]: [&L; 2],
    ) -> Result<(L, [L; 2]), L::Error> {
        let gradient = gradient.times(self.gradient_scale)?;
        let first = gradient.minus(first)?.times_plus(self.first.rest, first)?;
        let square = gradient.times(self.second.rest)?.product(&gradient)?;
        let second = second.times_plus(self.second.decay, &square)?;
        let root = second.root_over(self.correction)?.plus_number(self.epsilon)?;
        let value = self.step.of(value, &first.over(&root)?)?;
        Ok((value, [first, second]))
    }
}

impl UpdateRule for AdamW {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        _: &mut Vec<f32>,
    ) -> TrainResult<()> {
        let rule = self.rule.settings.step(step);
        let [first, second] = self.rule.host_state()?;
        if self.idle.is_empty() {
            let blocks = first.chunks(VALUES_PER_FLAG).zip(second.chunks(VALUES_PER_FLAG));
            let idle = blocks.map(|(first, second)| first.iter().chain(second).all(|m| *m == 0.0));
            self.idle = idle.collect();
        }
        values
            .par_chunks_mut(BLOCK)
            .zip(gradient.par_chunks(BLOCK))
            .zip(first.par_chunks_mut(BLOCK))
            .zip(second.par_chunks_mut(BLOCK))
            .zip(self.idle.par_chunks_mut(BLOCK / VALUES_PER_FLAG))
            .for_each(|((((values, gradient), first), second), idle)| {
                let blocks = values
                    .chunks_mut(VALUES_PER_FLAG)
                    .zip(gradient.chunks(VALUES_PER_FLAG))
                    .zip(first.chunks_mut(VALUES_PER_FLAG))
                    .zip(second.chunks_mut(VALUES_PER_FLAG))
                    .zip(idle);
                for ((((values, gradient), first), second), idle) in blocks {
                    *idle = *idle && gradient.iter().all(|g| *g == 0.0);
                    if *idle {
                        values.iter_mut().for_each(|value| *value *= rule.step.decay);
                    } else {
                        rule.update_slice(values, gradient, [first, second]);
                    }
                }
            });
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        self.rule.updated(values, gradient, step)
    }

    #[cfg(feature = "cuda")]
    fn adamw_update(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Option<AdamwUpdate>> {
        let f = self.rule.settings.step(step);
        Ok(Some(AdamwUpdate {
            values: values.clone(),
            moments: self.rule.tensors(values)?,
            gradient: gradient.contiguous()?,
            factors: [
                f.gradient_scale,
                f.step.decay,
                f.first.rest,
                f.second.decay,
                f.second.rest,
                f.step.step,
                f.correction,
                f.epsilon,
            ],
        }))
    }

    fn state(&self) -> TrainResult<State<'_>> {
        self.rule.state()
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        self.idle.clear();
        self.rule.set_state(name, values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::StepSize;

    /// The rows of a table get gradients at different steps. The shortcut gives the same values as
    /// no shortcut, also if the state is restored before each step.
    #[test]
    fn the_shortcut_for_idle_values_changes_no_value() {
        const WIDTH: usize = 300;
        let settings = AdamwSettings::default();
        let run = |shortcut: bool, resume: bool| {
            let mut rule = AdamW::new(&settings, &[7, WIDTH]);
            let mut values: Vec<f32> = (0..7 * WIDTH).map(|i| (i as f32).sin()).collect();
            for (steps_done, row) in [2, 5, 2, 0, 5].into_iter().enumerate() {
                if !shortcut {
                    rule.idle = vec![false; (7 * WIDTH).div_ceil(VALUES_PER_FLAG)];
                }
                if resume {
                    let mut restored = AdamW::new(&settings, &[7, WIDTH]);
                    for (name, values) in rule.state().expect("the state") {
                        restored.set_state(name, values.to_vec());
                    }
                    rule = restored;
                }
                let mut gradient = vec![0.0; values.len()];
                for (gradient, value) in
                    gradient.iter_mut().zip(&values).skip(row * WIDTH).take(WIDTH)
                {
                    *gradient = 2.0 * value;
                }
                let size = StepSize { learning_rate: 0.1, gradient_scale: 1.0 };
                let step = Step { number: steps_done as u64 + 1, size, rate_factor: 1.0 };
                rule.update(&mut values, &gradient, &step, &mut Vec::new()).expect("a step");
            }
            assert_eq!(rule.idle.contains(&true), shortcut);
            values
        };
        let dense = run(false, false);
        assert_eq!(run(true, false), dense);
        assert_eq!(run(true, true), dense);
    }
}
