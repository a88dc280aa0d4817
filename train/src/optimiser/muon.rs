//! Muon (Jordan et al., 2024), as in `torch.optim.Muon`: the momentum of a matrix, orthogonalised
//! by Newton–Schulz iterations. Vectors use AdamW.
//!
//! PyTorch iterates in bf16, this implementation in f32.

use candle_core::{Device, Tensor};
use engram_models::ModelError;
use engram_models::compute::to_host;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::adamw::AdamwSettings;
use super::lanes::{DecayedStep, ElementRule, Lane, MeanWeights, StateValues, update_all};
use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::{State, Step, UpdateRule, sum_of_squares};
use crate::error::Result as TrainResult;
use crate::recipe::table;

/// The coefficients of the quintic Newton–Schulz iteration.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

table! {
    /// `kind = "muon"`: an orthogonalised momentum. A tensor of rank above 2 is a matrix with its
    /// first dimension as rows. Vectors use AdamW. Give word embeddings and output layers another
    /// rule with a `[[group]]`.
    pub struct MuonSettings {
        /// The decay of the momentum.
        pub momentum: f64 = 0.95,
        /// Whether to use Nesterov momentum.
        pub nesterov: bool = true,
        /// Number of Newton–Schulz iterations.
        pub iterations: usize = 5,
        /// The minimum norm by which a momentum is divided.
        pub epsilon: f64 = 1e-7,
        /// The factor on the learning rate, by the shape of the matrix.
        pub scale: MuonScale = MuonScale::MatchAdamw,
        /// Weight decay of matrices, multiplied by the learning rate.
        pub weight_decay: f64 = 0.01,
        /// The settings of AdamW for vectors, with the keys of `kind = "adamw"`.
        pub adamw: AdamwSettings = AdamwSettings::default(),
    }
}

/// The factor on Muon's learning rate, for a matrix of `rows × columns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MuonScale {
    /// `0.2 √max(rows, columns)`: updates as large as AdamW's, so that both share a learning rate.
    MatchAdamw,
    /// `√max(1, rows / columns)`, as first published. Use learning rates around 0.02.
    Original,
}

impl Settings for MuonSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        let too_few_or_many = !(1..=100).contains(&self.iterations);
        let of_adamw = |(key, reason)| match key {
            "betas" => ("adamw.betas", reason),
            "epsilon" => ("adamw.epsilon", reason),
            _ => ("adamw.weight_decay", reason),
        };
        below_one("momentum", self.momentum)
            .or_else(|| too_few_or_many.then_some(("iterations", "has to lie in [1, 100]")))
            .or_else(|| positive("epsilon", self.epsilon))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
            .or_else(|| self.adamw.first_invalid_key().map(of_adamw))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let [rows, other_dimensions @ ..] = shape else { return self.adamw.build(shape) };
        if other_dimensions.is_empty() {
            return self.adamw.build(shape);
        }
        let columns = other_dimensions.iter().product();
        let momentum = StateValues::zeros(rows * columns);
        Box::new(Muon { settings: self.clone(), rows: *rows, columns, momentum })
    }

    fn needs_whole_tensors(&self) -> bool {
        true
    }
}

struct Muon {
    settings: MuonSettings,
    rows: usize,
    columns: usize,
    momentum: StateValues,
}

impl UpdateRule for Muon {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        scratch: &mut Vec<f32>,
    ) -> TrainResult<()> {
        scratch.resize(gradient.len(), 0.0);
        update_all(self.direction(step), scratch, gradient, [self.momentum.host()?]);
        let shape = (self.rows, self.columns);
        let update = Tensor::from_slice(scratch, shape, &Device::Cpu)
            .and_then(|direction| {
                to_host(&self.orthogonalised(&direction, sum_of_squares(scratch))?)
            })
            .map_err(ModelError::from)?;
        update_all(self.step(step), values, &update, []);
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        let direction = self.direction(step);
        let momentum = self.momentum.tensor(values.dims(), values)?;
        let (direction, [new_momentum]) = direction.apply(values, gradient, [&*momentum])?;
        *momentum = new_momentum;
        let direction = direction.reshape((self.rows, self.columns))?;
        let squares = f64::from(direction.sqr()?.sum_all()?.to_scalar::<f32>()?);
        let update = self.orthogonalised(&direction, squares)?.reshape(values.shape())?;
        self.step(step).of(values, &update)
    }

    fn state(&self) -> TrainResult<State<'_>> {
        Ok(vec![("momentum", self.momentum.to_host()?)])
    }

    fn set_state(&mut self, _: &str, values: Vec<f32>) {
        self.momentum = StateValues::Host(values);
    }
}

/// The momentum of one step for one tensor. The update's direction replaces the rule's values.
#[derive(Clone, Copy)]
struct Direction {
    gradient_scale: f32,
    /// The weight of the gradient in the momentum: `1 − momentum`.
    gradient_weight: f32,
    /// The weight of the momentum in the update; the gradient has the remaining weight.
    momentum_weight: f32,
}

impl ElementRule<1> for Direction {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        _: &L,
        gradient: &L,
        [momentum]: [&L; 1],
    ) -> Result<(L, [L; 1]), L::Error> {
        let gradient = gradient.times(self.gradient_scale)?;
        let momentum = gradient.minus(momentum)?.times_plus(self.gradient_weight, momentum)?;
        let direction = momentum.minus(&gradient)?.times_plus(self.momentum_weight, &gradient)?;
        Ok((direction, [momentum]))
    }
}

impl Muon {
    fn direction(&self, step: &Step) -> Direction {
        let MeanWeights { decay, rest } = MeanWeights::new(self.settings.momentum);
        Direction {
            gradient_scale: step.size.gradient_scale as f32,
            gradient_weight: rest,
            momentum_weight: if self.settings.nesterov { decay } else { 1.0 },
        }
    }

    fn step(&self, step: &Step) -> DecayedStep {
        let learning_rate = step.learning_rate();
        DecayedStep {
            decay: (1.0 - learning_rate * self.settings.weight_decay) as f32,
            step: -((learning_rate * self.shape_factor()) as f32),
        }
    }

    /// The matrix `[rows, columns]` with the same singular vectors, and all singular values near 1.
    /// `squares` is the sum of the squared values.
    fn orthogonalised(&self, matrix: &Tensor, squares: f64) -> candle_core::Result<Tensor> {
        let [a, b, c] = COEFFICIENTS;
        let is_tall = self.rows > self.columns;
        let x = if is_tall { matrix.t()?.contiguous()? } else { matrix.clone() };
        let mut x = (x / squares.sqrt().max(self.settings.epsilon))?;
        for _ in 0..self.settings.iterations {
            let gram = x.matmul(&x.t()?)?;
            let polynomial = ((&gram * b)? + (gram.matmul(&gram)? * c)?)?;
            x = ((&x * a)? + polynomial.matmul(&x)?)?;
        }
        if is_tall { x.t()?.contiguous() } else { Ok(x) }
    }

    fn shape_factor(&self) -> f64 {
        let (rows, columns) = (self.rows as f64, self.columns as f64);
        match self.settings.scale {
            MuonScale::MatchAdamw => 0.2 * rows.max(columns).sqrt(),
            MuonScale::Original => (rows / columns).max(1.0).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orthogonalisation_keeps_zeros() {
        let momentum = StateValues::zeros(0);
        let muon = Muon { settings: MuonSettings::default(), rows: 2, columns: 2, momentum };
        let zeros = Tensor::zeros((2, 2), candle_core::DType::F32, &Device::Cpu).expect("a matrix");
        let result = muon.orthogonalised(&zeros, 0.0).expect("a matrix");
        assert_eq!(to_host(&result).expect("values"), [0.0; 4]);
    }
}
