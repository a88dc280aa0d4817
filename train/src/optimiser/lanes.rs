//! The arithmetic of update rules, written once for values on the CPU and for tensors on a GPU.
//!
//! A rule implements [`ElementRule`] with the operations of [`Lane`]. On the CPU a lane is one
//! value, and the compiler vectorises the loop over them; on a GPU it is a whole tensor.

use std::borrow::Cow;
use std::convert::Infallible;

use candle_core::Tensor;
use engram_models::ModelError;
use engram_models::compute::to_host;
use multiversion::multiversion;
use rayon::prelude::*;

use super::{BLOCK, State, Step, UpdateRule};
use crate::error::Result as TrainResult;

/// Declares [`Lane`]: for each operation, its result for a value and for a tensor.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($self:ident $(, $other:ident: $type:ty)*):
        $value:expr, $tensor:expr;)*) => {
        /// A value, or a tensor of values.
        pub(crate) trait Lane: Sized {
            /// The error of an operation; values have none.
            type Error;

            $($(#[$doc])* fn $name(&self $(, $other: $type)*) -> Result<Self, Self::Error>;)*
        }

        impl Lane for f32 {
            type Error = Infallible;

            $(#[inline(always)]
            fn $name(&$self $(, $other: $type)*) -> Result<Self, Infallible> {
                Ok($value)
            })*
        }

        impl Lane for Tensor {
            type Error = candle_core::Error;

            $(fn $name(&$self $(, $other: $type)*) -> candle_core::Result<Self> {
                $tensor
            })*
        }
    };
}

operations! {
    /// `self · factor`
    times(self, factor: f32): self * factor, self * f64::from(factor);

    /// `factor · self + other`, on the CPU with a single rounding.
    times_plus(self, factor: f32, other: &Self):
        factor.mul_add(*self, *other), (self * f64::from(factor))? + other;

    /// `self² + number`, on the CPU with a single rounding.
    square_plus(self, number: f32): self.mul_add(*self, number), self.sqr()? + f64::from(number);

    /// `self + number`
    plus_number(self, number: f32): self + number, self + f64::from(number);

    /// `self + other`
    plus(self, other: &Self): self + other, self + other;

    /// `self − other`
    minus(self, other: &Self): self - other, self - other;

    /// `self · other`
    product(self, other: &Self): self * other, self * other;

    /// `self / other`
    over(self, other: &Self): self / other, self / other;

    /// The square root.
    square_root(self): self.sqrt(), self.sqrt();

    /// −1, 0 or 1. Unlike with [`f32::signum`], the sign of 0 is 0.
    sign(self): f32::from(u8::from(*self > 0.0)) - f32::from(u8::from(*self < 0.0)), self.sign();

    /// `√self / divisor`
    root_over(self, divisor: f32): self.sqrt() / divisor, self.sqrt()? / f64::from(divisor);
}

/// One step of a rule that computes each value by itself, with the factors of this step. The rule
/// has `N` state values for each value.
pub(super) trait ElementRule<const N: usize>: Copy + Send + Sync {
    /// Returns the new value, and the new values of the state.
    fn apply<L: Lane>(
        &self,
        value: &L,
        gradient: &L,
        state: [&L; N],
    ) -> Result<(L, [L; N]), L::Error>;
}

/// `decay · value + step · direction`: the last operation of several rules.
#[derive(Clone, Copy)]
pub(super) struct DecayedStep {
    pub(super) decay: f32,
    pub(super) step: f32,
}

impl DecayedStep {
    #[inline(always)]
    pub(super) fn of<L: Lane>(&self, value: &L, direction: &L) -> Result<L, L::Error> {
        direction.times_plus(self.step, &value.times(self.decay)?)
    }
}

impl ElementRule<0> for DecayedStep {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        value: &L,
        direction: &L,
        _: [&L; 0],
    ) -> Result<(L, [L; 0]), L::Error> {
        Ok((self.of(value, direction)?, []))
    }
}

/// The weights of a running mean: `decay · mean + rest · x`.
///
/// `rest` is `1 − decay`, computed in f64. In f32, the rounding of a decay near 1 would be a large
/// part of the rest: 1.3e-5 of it for 0.999.
#[derive(Clone, Copy)]
pub(super) struct MeanWeights {
    pub(super) decay: f32,
    pub(super) rest: f32,
}

impl MeanWeights {
    pub(super) fn new(decay: f64) -> Self {
        Self { decay: decay as f32, rest: (1.0 - decay) as f32 }
    }

    #[inline(always)]
    pub(super) fn mean<L: Lane>(&self, mean: &L, x: &L) -> Result<L, L::Error> {
        mean.times_plus(self.decay, &x.times(self.rest)?)
    }
}

/// Updates slices of equal length. Implemented for each number of state values that a rule has.
pub(super) trait UpdateSlice<const N: usize>: Copy + Send + Sync {
    /// Applies the rule to each value.
    fn update_slice(self, values: &mut [f32], gradient: &[f32], state: [&mut [f32]; N]);
}

/// Implements [`UpdateSlice`] for rules with this number of state values.
macro_rules! update_slice {
    ($name:ident, $count:literal, $($state:ident $new:ident),*) => {
        #[multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
            "x86_64+avx2+fma"
        ))]
        fn $name<R: ElementRule<$count>>(
            rule: R,
            values: &mut [f32],
            gradient: &[f32],
            $($state: &mut [f32],)*
        ) {
            let count = values.len();
            let gradient = &gradient[..count];
            $(let $state = &mut $state[..count];)*
            #[allow(clippy::needless_range_loop)] // The number of slices differs.
            for i in 0..count {
                let Ok((value, [$($new),*])) =
                    rule.apply(&values[i], &gradient[i], [$(&$state[i]),*]);
                values[i] = value;
                $($state[i] = $new;)*
            }
        }

        impl<R: ElementRule<$count>> UpdateSlice<$count> for R {
            fn update_slice(
                self,
                values: &mut [f32],
                gradient: &[f32],
                [$($state),*]: [&mut [f32]; $count],
            ) {
                $name(self, values, gradient, $($state),*);
            }
        }
    };
}

update_slice!(update_0, 0,);
update_slice!(update_1, 1, first new_first);
update_slice!(update_2, 2, first new_first, second new_second);

/// Applies a rule to all values, in blocks that do not depend on the number of threads.
pub(super) fn update_all<R: UpdateSlice<N>, const N: usize>(
    rule: R,
    values: &mut [f32],
    gradient: &[f32],
    state: [&mut [f32]; N],
) {
    let mut state = state.map(|values| values.chunks_mut(BLOCK));
    let blocks = values.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK));
    let blocks = blocks.map(|(values, gradient)| {
        (values, gradient, state.each_mut().map(|blocks| blocks.next().unwrap_or_default()))
    });
    let blocks: Vec<_> = blocks.collect();
    blocks
        .into_par_iter()
        .for_each(|(values, gradient, state)| rule.update_slice(values, gradient, state));
}

/// The values of one state tensor.
pub(crate) enum StateValues {
    /// On the CPU, in row-major order.
    Host(Vec<f32>),
    /// On the GPU of the parameter, in the shape of the state tensor.
    OnGpu(Tensor),
}

impl StateValues {
    /// `count` zeros.
    pub(crate) fn zeros(count: usize) -> Self {
        Self::Host(vec![0.0; count])
    }

    /// The values on the CPU. Moves them there if they are on a GPU.
    pub(crate) fn host(&mut self) -> TrainResult<&mut [f32]> {
        if let Self::OnGpu(tensor) = self {
            *self = Self::Host(to_host(tensor).map_err(ModelError::from)?);
        }
        match self {
            Self::Host(values) => Ok(values),
            Self::OnGpu(_) => Ok(&mut []),
        }
    }

    /// The values as a tensor of this shape on the device of `parameter`. Moves them there at the
    /// first call.
    pub(crate) fn tensor(
        &mut self,
        shape: &[usize],
        parameter: &Tensor,
    ) -> candle_core::Result<&mut Tensor> {
        if let Self::Host(values) = self {
            *self = Self::OnGpu(Tensor::from_slice(values, shape, parameter.device())?);
        }
        match self {
            Self::OnGpu(tensor) => Ok(tensor),
            Self::Host(_) => candle_core::bail!("the state is not on a GPU"),
        }
    }

    /// Moves the values towards `x` on its device: `decay · values + (1 − decay) · x`. Returns the
    /// new values.
    pub(crate) fn average(&mut self, x: &Tensor, decay: f64) -> candle_core::Result<Tensor> {
        let values = self.tensor(x.dims(), x)?;
        *values = ((&*values * decay)? + (x * (1.0 - decay))?)?;
        Ok(values.clone())
    }

    /// The values on the CPU; copied only from a GPU.
    pub(crate) fn to_host(&self) -> TrainResult<Cow<'_, [f32]>> {
        match self {
            Self::Host(values) => Ok(Cow::from(values)),
            Self::OnGpu(tensor) => Ok(Cow::from(to_host(tensor).map_err(ModelError::from)?)),
        }
    }
}

/// The settings of a rule that computes each value by itself.
pub(super) trait ElementSettings: Send {
    /// One step of the rule.
    type Step;

    /// The factors of a step.
    fn step(&self, step: &Step) -> Self::Step;
}

/// A rule that computes each value by itself, with its state.
pub(super) struct ElementWise<S, const N: usize> {
    pub(super) settings: S,
    /// The names of the state tensors.
    names: [&'static str; N],
    state: [StateValues; N],
}

impl<S, const N: usize> ElementWise<S, N> {
    /// A rule whose state is zero, for a parameter of this shape.
    pub(super) fn new(settings: S, shape: &[usize], names: [&'static str; N]) -> Self {
        let count = shape.iter().product();
        Self { settings, names, state: names.map(|_| StateValues::zeros(count)) }
    }

    /// The state on the CPU.
    pub(super) fn host_state(&mut self) -> TrainResult<[&mut [f32]; N]> {
        for values in &mut self.state {
            values.host()?;
        }
        Ok(self.state.each_mut().map(|values| values.host().unwrap_or_default()))
    }

    /// The state on the device of a parameter.
    pub(super) fn tensors(&mut self, parameter: &Tensor) -> candle_core::Result<[Tensor; N]> {
        let tensors = self.state.iter_mut();
        let tensors = tensors.map(|values| values.tensor(parameter.dims(), parameter).cloned());
        let tensors: Vec<Tensor> = tensors.collect::<candle_core::Result<_>>()?;
        Ok(tensors.try_into().unwrap_or_else(|_| unreachable!("one tensor for each state")))
    }
}

impl<S, const N: usize> UpdateRule for ElementWise<S, N>
where
    S: ElementSettings<Step: ElementRule<N> + UpdateSlice<N>>,
{
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        _: &mut Vec<f32>,
    ) -> TrainResult<()> {
        let rule = self.settings.step(step);
        update_all(rule, values, gradient, self.host_state()?);
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        let state = self.tensors(values)?;
        let rule = self.settings.step(step);
        let (updated, state) = rule.apply(values, gradient, state.each_ref())?;
        self.state = state.map(StateValues::OnGpu);
        Ok(updated)
    }

    fn state(&self) -> TrainResult<State<'_>> {
        let named = self.names.into_iter().zip(&self.state);
        named.map(|(name, values)| Ok((name, values.to_host()?))).collect()
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        if let Some(index) = self.names.iter().position(|other| *other == name) {
            self.state[index] = StateValues::Host(values);
        }
    }
}
