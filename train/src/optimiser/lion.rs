//! Lion (Chen et al., arXiv 2302.06675), as in `optax.lion`.

use super::lanes::{DecayedStep, ElementRule, ElementSettings, ElementWise, Lane, MeanWeights};
use super::settings::{InvalidKey, Settings, at_least_zero, below_one};
use super::{Step, UpdateRule, decay_of};
use crate::recipe::table;

table! {
    /// `kind = "lion"`: steps of equal length along the sign of a momentum. Use 3 to 10 times lower
    /// learning rates than with AdamW.
    pub struct LionSettings {
        /// The momentum's weight in the update, and the momentum's decay rate.
        pub betas: [f64; 2] = [0.9, 0.99],
        /// Weight decay for tensors of rank 2 or higher, multiplied by the learning rate.
        pub weight_decay: f64 = 0.01,
    }
}

impl Settings for LionSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        let mut betas = self.betas.into_iter();
        betas
            .find_map(|beta| below_one("betas", beta))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let weight_decay = decay_of(self.weight_decay, shape);
        let settings = Self { weight_decay, ..self.clone() };
        Box::new(ElementWise::new(settings, shape, ["momentum"]))
    }
}

/// One step for one tensor.
#[derive(Clone, Copy)]
pub(super) struct LionStep {
    gradient_scale: f32,
    means: [MeanWeights; 2],
    step: DecayedStep,
}

impl ElementSettings for LionSettings {
    type Step = LionStep;

    fn step(&self, step: &Step) -> LionStep {
        let learning_rate = step.learning_rate();
        let decay = (1.0 - learning_rate * self.weight_decay) as f32;
        LionStep {
            gradient_scale: step.size.gradient_scale as f32,
            means: self.betas.map(MeanWeights::new),
            step: DecayedStep { decay, step: -(learning_rate as f32) },
        }
    }
}

impl ElementRule<1> for LionStep {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        value: &L,
        gradient: &L,
        [momentum]: [&L; 1],
    ) -> Result<(L, [L; 1]), L::Error> {
        let gradient = gradient.times(self.gradient_scale)?;
        let [direction, momentum] =
            [self.means[0].mean(momentum, &gradient)?, self.means[1].mean(momentum, &gradient)?];
        Ok((self.step.of(value, &direction.sign()?)?, [momentum]))
    }
}
