//! RMSProp (Tieleman and Hinton, 2012), as in `torch.optim.RMSprop`.

use super::lanes::{ElementRule, ElementSettings, ElementWise, Lane, MeanWeights};
use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::{Step, UpdateRule, decay_of};
use crate::recipe::table;

table! {
    /// `kind = "rmsprop"`: gradients divided by the root of their running mean square.
    pub struct RmspropSettings {
        /// The decay of the running mean square.
        pub decay: f64 = 0.99,
        /// Added to the root mean square.
        pub epsilon: f64 = 1e-8,
        /// The factor on the sum of earlier updates; 0 for none.
        pub momentum: f64 = 0.0,
        /// Weight decay for tensors of rank 2 or higher, added to the gradient (L2 penalty).
        pub weight_decay: f64 = 0.0,
    }
}

impl Settings for RmspropSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        below_one("decay", self.decay)
            .or_else(|| positive("epsilon", self.epsilon))
            .or_else(|| below_one("momentum", self.momentum))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let weight_decay = decay_of(self.weight_decay, shape);
        let settings = Self { weight_decay, ..self.clone() };
        match self.momentum {
            0.0 => Box::new(ElementWise::new(settings, shape, ["mean_square"])),
            // The velocity is the decayed sum of normalised gradients.
            _ => Box::new(ElementWise::new(settings, shape, ["mean_square", "velocity"])),
        }
    }
}

/// One step for one tensor.
#[derive(Clone, Copy)]
pub(super) struct RmspropStep {
    gradient_scale: f32,
    weight_decay: f32,
    mean: MeanWeights,
    epsilon: f32,
    momentum: f32,
    learning_rate: f32,
}

impl ElementSettings for RmspropSettings {
    type Step = RmspropStep;

    fn step(&self, step: &Step) -> RmspropStep {
        RmspropStep {
            gradient_scale: step.size.gradient_scale as f32,
            weight_decay: self.weight_decay as f32,
            mean: MeanWeights::new(self.decay),
            epsilon: self.epsilon as f32,
            momentum: self.momentum as f32,
            learning_rate: step.learning_rate() as f32,
        }
    }
}

impl RmspropStep {
    /// The gradient divided by the root of the mean square, and the new mean square.
    #[inline(always)]
    fn normalised<L: Lane>(
        &self,
        value: &L,
        gradient: &L,
        mean_square: &L,
    ) -> Result<(L, L), L::Error> {
        let gradient = gradient.times(self.gradient_scale)?;
        let gradient = value.times_plus(self.weight_decay, &gradient)?;
        let square = gradient.times(self.mean.rest)?.product(&gradient)?;
        let mean_square = mean_square.times_plus(self.mean.decay, &square)?;
        let root = mean_square.square_root()?.plus_number(self.epsilon)?;
        Ok((gradient.over(&root)?, mean_square))
    }
}

/// Without momentum.
impl ElementRule<1> for RmspropStep {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        value: &L,
        gradient: &L,
        [mean_square]: [&L; 1],
    ) -> Result<(L, [L; 1]), L::Error> {
        let (normalised, mean_square) = self.normalised(value, gradient, mean_square)?;
        Ok((normalised.times_plus(-self.learning_rate, value)?, [mean_square]))
    }
}

/// With momentum.
impl ElementRule<2> for RmspropStep {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        value: &L,
        gradient: &L,
        [mean_square, velocity]: [&L; 2],
    ) -> Result<(L, [L; 2]), L::Error> {
        let (normalised, mean_square) = self.normalised(value, gradient, mean_square)?;
        let velocity = velocity.times_plus(self.momentum, &normalised)?;
        Ok((velocity.times_plus(-self.learning_rate, value)?, [mean_square, velocity]))
    }
}
