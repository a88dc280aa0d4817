//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
//!
//! It computes the same operations in the same order as `torch.optim.AdamW`.

use engram_models::gradients::Gradients;
use engram_models::params::Parameters;
use multiversion::multiversion;
use rayon::prelude::*;

use super::{BLOCK, Buffer, Optimiser, StateTensor, StepSize, decay_of, trainable_with_gradients};
use crate::error::Result;
use crate::recipe::OptimiserSettings;

/// AdamW with its moments.
pub struct AdamW {
    betas: [f64; 2],
    epsilon: f64,
    steps: u64,
    moments: Vec<Moments>,
}

/// The number of values that share an idle flag; at most one row of an embedding table.
const RUN: usize = 256;

struct Moments {
    first: Buffer,
    second: Buffer,
    weight_decay: f64,
    /// For each block of values, whether both moments are all 0. Idle values only decay. This is
    /// the case for most rows of a word embedding table, whose tokens have not occurred yet. Empty
    /// after the moments were set from outside; the next step recomputes it.
    idle: Vec<bool>,
}

impl Moments {
    fn find_idle(&mut self) {
        let runs = self.first.values.chunks(RUN).zip(self.second.values.chunks(RUN));
        let idle = runs.map(|(first, second)| first.iter().chain(second).all(|m| *m == 0.0));
        self.idle = idle.collect();
    }
}

/// The factors of one step for one tensor.
#[derive(Clone, Copy)]
struct Factors {
    gradient_scale: f32,
    /// `1 − rate · decay`
    keep: f32,
    beta1: f32,
    beta2: f32,
    /// `−rate / (1 − beta1^t)`
    step: f32,
    /// `√(1 − beta2^t)`: the bias correction of the second moment's square root.
    correction: f32,
    epsilon: f32,
}

impl AdamW {
    /// Fresh moments for the trainable parameters.
    pub fn new(settings: &OptimiserSettings, parameters: &Parameters) -> Self {
        let moments = parameters.trainable().map(|parameter| {
            let count = parameter.tensor().elem_count();
            Moments {
                first: Buffer::new(parameter, "first_moment", count),
                second: Buffer::new(parameter, "second_moment", count),
                weight_decay: decay_of(settings, parameter),
                idle: Vec::new(),
            }
        });
        Self {
            betas: settings.betas,
            epsilon: settings.epsilon.unwrap_or(1e-8),
            steps: 0,
            moments: moments.collect(),
        }
    }
}

impl Optimiser for AdamW {
    fn step(
        &mut self,
        parameters: &Parameters,
        gradients: &Gradients,
        rates: &[f64],
        size: StepSize,
    ) -> Result<()> {
        self.steps += 1;
        let [beta1, beta2] = self.betas;
        let correction1 = 1.0 - beta1.powf(self.steps as f64);
        let correction2 = 1.0 - beta2.powf(self.steps as f64);
        let tensors = trainable_with_gradients(parameters, gradients, rates, &mut self.moments);
        for (parameter, gradient, rate, moments) in tensors {
            if moments.idle.is_empty() {
                moments.find_idle();
            }
            let rate = size.learning_rate * rate;
            let factors = Factors {
                gradient_scale: size.gradient_scale as f32,
                keep: (1.0 - rate * moments.weight_decay) as f32,
                beta1: beta1 as f32,
                beta2: beta2 as f32,
                step: (-rate / correction1) as f32,
                correction: correction2.sqrt() as f32,
                epsilon: self.epsilon as f32,
            };
            parameter.update(&mut |values| {
                values
                    .par_chunks_mut(BLOCK)
                    .zip(gradient.par_chunks(BLOCK))
                    .zip(moments.first.values.par_chunks_mut(BLOCK))
                    .zip(moments.second.values.par_chunks_mut(BLOCK))
                    .zip(moments.idle.par_chunks_mut(BLOCK / RUN))
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
            })?;
        }
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    fn state(&self) -> Vec<StateTensor<'_>> {
        self.moments.iter().flat_map(|m| [m.first.tensor(), m.second.tensor()]).collect()
    }

    fn state_mut(&mut self) -> Vec<(&str, &mut [f32])> {
        let tensors = self.moments.iter_mut().flat_map(|moments| {
            moments.idle.clear();
            [moments.first.tensor_mut(), moments.second.tensor_mut()]
        });
        tensors.collect()
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
    use engram_models::params::{Init, ParameterBuilder};

    /// Rows of a table get gradients at different steps. The result has to be the same without the
    /// shortcut, and after loading the state half-way, before or after setting the step count.
    #[test]
    fn idle_values_end_with_the_same_bytes() -> Result<()> {
        let settings = OptimiserSettings { learning_rate: 0.1, ..OptimiserSettings::default() };
        let run = |short_cut: bool, resume: Option<bool>| -> Result<Vec<f32>> {
            let builder = ParameterBuilder::on_cpu(5);
            let table = builder.get("table.weight", &[7, 300], Init::Normal(1.0))?;
            let parameters = builder.finish()?;
            let mut gradients = Gradients::new(&parameters);
            let mut optimiser = AdamW::new(&settings, &parameters);
            for (done, row) in [2, 5, 2, 0, 5].into_iter().enumerate() {
                if !short_cut {
                    optimiser.moments[0].idle = vec![false; (7 * 300_usize).div_ceil(RUN)];
                }
                if let Some(steps_first) = resume {
                    let mut fresh = AdamW::new(&settings, &parameters);
                    if steps_first {
                        fresh.set_steps(done as u64);
                    }
                    for (new, old) in fresh.state_mut().into_iter().zip(optimiser.state()) {
                        new.1.copy_from_slice(old.values);
                    }
                    fresh.set_steps(done as u64);
                    optimiser = fresh;
                }
                gradients.clear();
                let loss = table.narrow(0, row, 1).and_then(|row| row.sqr()?.sum_all());
                gradients.backward(&loss.map_err(engram_models::ModelError::from)?)?;
                let size = StepSize { learning_rate: 0.1, gradient_scale: 1.0 };
                optimiser.step(&parameters, &gradients, &[1.0], size)?;
            }
            let idle = optimiser.moments[0].idle.iter().filter(|idle| **idle).count();
            assert_eq!(idle > 0, short_cut);
            Ok(parameters.iter().next().map_or(Ok(Vec::new()), |p| p.to_vec())?)
        };
        let dense = run(false, None)?;
        for resume in [None, Some(false), Some(true)] {
            assert_eq!(run(true, resume)?, dense, "{resume:?}");
        }
        Ok(())
    }
}
