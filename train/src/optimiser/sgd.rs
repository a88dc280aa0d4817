//! Stochastic gradient descent with momentum, as in `torch.optim.SGD`.

use super::lanes::{ElementRule, ElementSettings, ElementWise, Lane};
use super::settings::{InvalidKey, Settings, at_least_zero, below_one};
use super::{Step, UpdateRule, decay_of};
use crate::recipe::table;

table! {
    /// `kind = "sgd"`: stochastic gradient descent with momentum.
    pub struct SgdSettings {
        /// The factor on the sum of earlier gradients; 0 for none.
        pub momentum: f64 = 0.9,
        /// Whether to use Nesterov momentum.
        pub nesterov: bool = false,
        /// Weight decay for tensors of rank 2 or higher, added to the gradient (L2 penalty).
        pub weight_decay: f64 = 0.0,
    }
}

impl Settings for SgdSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        let lacks_momentum = self.nesterov && self.momentum == 0.0;
        below_one("momentum", self.momentum)
            .or_else(|| lacks_momentum.then_some(("nesterov", "needs a momentum above 0")))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let weight_decay = decay_of(self.weight_decay, shape);
        let settings = Self { weight_decay, ..self.clone() };
        match self.momentum {
            0.0 => Box::new(ElementWise::new(settings, shape, [])),
            // The state is the decayed sum of gradients.
            _ => Box::new(ElementWise::new(settings, shape, ["velocity"])),
        }
    }
}

/// One step for one tensor.
#[derive(Clone, Copy)]
pub(super) struct SgdStep {
    gradient_scale: f32,
    weight_decay: f32,
    learning_rate: f32,
    momentum: f32,
    nesterov: bool,
}

impl ElementSettings for SgdSettings {
    type Step = SgdStep;

    fn step(&self, step: &Step) -> SgdStep {
        SgdStep {
            gradient_scale: step.size.gradient_scale as f32,
            weight_decay: self.weight_decay as f32,
            learning_rate: step.learning_rate() as f32,
            momentum: self.momentum as f32,
            nesterov: self.nesterov,
        }
    }
}

impl SgdStep {
    /// The scaled gradient with weight decay.
    #[inline(always)]
    fn gradient<L: Lane>(&self, value: &L, gradient: &L) -> Result<L, L::Error> {
        value.times_plus(self.weight_decay, &gradient.times(self.gradient_scale)?)
    }
}

/// Without momentum.
impl ElementRule<0> for SgdStep {
    #[inline(always)]
    fn apply<L: Lane>(&self, value: &L, gradient: &L, _: [&L; 0]) -> Result<(L, [L; 0]), L::Error> {
        let gradient = self.gradient(value, gradient)?;
        Ok((gradient.times_plus(-self.learning_rate, value)?, []))
    }
}

/// With momentum.
impl ElementRule<1> for SgdStep {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        value: &L,
        gradient: &L,
        [velocity]: [&L; 1],
    ) -> Result<(L, [L; 1]), L::Error> {
        let gradient = self.gradient(value, gradient)?;
        let velocity = velocity.times_plus(self.momentum, &gradient)?;
        let value = if self.nesterov {
            let update = velocity.times_plus(self.momentum, &gradient)?;
            update.times_plus(-self.learning_rate, value)?
        } else {
            velocity.times_plus(-self.learning_rate, value)?
        };
        Ok((value, [velocity]))
    }
}
