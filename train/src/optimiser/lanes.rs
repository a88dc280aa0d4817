//! The arithmetic of update rules, written once for values on the CPU and for tensors on a GPU.
//!
//! A rule implements [`ElementRule`] with the operations of [`Lane`]. On the CPU a lane is one
//! value, and the compiler vectorises the loop over them; on a GPU it is a whole tensor.

use std::convert::Infallible;

use candle_core::Tensor;
use multiversion::multiversion;
use rayon::prelude::*;

use super::state_values::StateValues;
use super::{BLOCK, State, Step, UpdateRule};
use crate::error::Result as TrainResult;

/// A value, or a tensor of values.
pub(crate) trait Lane: Sized {
    /// The error of an operation; values have none.
    type Error;

    /// `self · factor`
    fn times(&self, factor: f32) -> Result<Self, Self::Error>;

    /// `factor · self + other`, on the CPU with a single rounding.
    fn times_plus(&self, factor: f32, other: &Self) -> Result<Self, Self::Error>;

    /// `self² + number`, on the CPU with a single rounding.
    fn square_plus(&self, number: f32) -> Result<Self, Self::Error>;

    /// `self + number`
    fn plus_number(&self, number: f32) -> Result<Self, Self::Error>;

    /// `self + other`
    fn plus(&self, other: &Self) -> Result<Self, Self::Error>;

    /// `self − other`
    fn minus(&self, other: &Self) -> Result<Self, Self::Error>;

    /// `self · other`
    fn product(&self, other: &Self) -> Result<Self, Self::Error>;

    /// `self / other`
    fn over(&self, other: &Self) -> Result<Self, Self::Error>;

    /// The square root.
    fn square_root(&self) -> Result<Self, Self::Error>;

    /// −1, 0 or 1.
    fn sign(&self) -> Result<Self, Self::Error>;

    /// `√self / divisor`
    fn root_over(&self, divisor: f32) -> Result<Self, Self::Error>;
}

impl Lane for f32 {
    type Error = Infallible;

    #[inline(always)]
    fn times(&self, factor: f32) -> Result<Self, Infallible> {
        Ok(self * factor)
    }

    #[inline(always)]
    fn times_plus(&self, factor: f32, other: &Self) -> Result<Self, Infallible> {
        Ok(factor.mul_add(*self, *other))
    }

    #[inline(always)]
    fn square_plus(&self, number: f32) -> Result<Self, Infallible> {
        Ok(self.mul_add(*self, number))
    }

    #[inline(always)]
    fn plus_number(&self, number: f32) -> Result<Self, Infallible> {
        Ok(self + number)
    }

    #[inline(always)]
    fn plus(&self, other: &Self) -> Result<Self, Infallible> {
        Ok(self + other)
    }

    #[inline(always)]
    fn minus(&self, other: &Self) -> Result<Self, Infallible> {
        Ok(self - other)
    }

    #[inline(always)]
    fn product(&self, other: &Self) -> Result<Self, Infallible> {
        Ok(self * other)
    }

    #[inline(always)]
    fn over(&self, other: &Self) -> Result<Self, Infallible> {
        Ok(self / other)
    }

    #[inline(always)]
    fn square_root(&self) -> Result<Self, Infallible> {
        Ok(self.sqrt())
    }

    /// Unlike [`f32::signum`], the sign of 0 is 0.
    #[inline(always)]
    fn sign(&self) -> Result<Self, Infallible> {
        Ok(Self::from(u8::from(*self > 0.0)) - Self::from(u8::from(*self < 0.0)))
    }

    #[inline(always)]
    fn root_over(&self, divisor: f32) -> Result<Self, Infallible> {
        Ok(self.sqrt() / divisor)
    }
}

impl Lane for Tensor {
    type Error = candle_core::Error;

    fn times(&self, factor: f32) -> candle_core::Result<Self> {
        self * f64::from(factor)
    }

    fn times_plus(&self, factor: f32, other: &Self) -> candle_core::Result<Self> {
        (self * f64::from(factor))? + other
    }

    fn square_plus(&self, number: f32) -> candle_core::Result<Self> {
        self.sqr()? + f64::from(number)
    }

    fn plus_number(&self, number: f32) -> candle_core::Result<Self> {
        self + f64::from(number)
    }

    fn plus(&self, other: &Self) -> candle_core::Result<Self> {
        self + other
    }

    fn minus(&self, other: &Self) -> candle_core::Result<Self> {
        self - other
    }

    fn product(&self, other: &Self) -> candle_core::Result<Self> {
        self * other
    }

    fn over(&self, other: &Self) -> candle_core::Result<Self> {
        self / other
    }

    fn square_root(&self) -> candle_core::Result<Self> {
        self.sqrt()
    }

    fn sign(&self) -> candle_core::Result<Self> {
        self.sign()
    }

    fn root_over(&self, divisor: f32) -> candle_core::Result<Self> {
        self.sqrt()? / f64::from(divisor)
    }
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

/// Updates slices of equal length. Only used for the numbers of state values that rules have.
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

/// The settings of a rule that computes each value by itself, with `N` state tensors.
pub(super) trait ElementSettings<const N: usize>: Send {
    /// The names of the state tensors.
    const STATE: [&'static str; N];

    /// One step of the rule.
    type Step: ElementRule<N> + UpdateSlice<N>;

    /// The factors of a step.
    fn step(&self, step: &Step) -> Self::Step;
}

/// A rule that computes each value by itself, with its state.
pub(super) struct ElementWise<S, const N: usize> {
    pub(super) settings: S,
    state: [StateValues; N],
}

impl<S: ElementSettings<N>, const N: usize> ElementWise<S, N> {
    /// A rule whose state is zero, for a parameter of this shape.
    pub(super) fn new(settings: S, shape: &[usize]) -> Self {
        let count = shape.iter().product();
        Self { settings, state: [(); N].map(|()| StateValues::zeros(count)) }
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

impl<S: ElementSettings<N>, const N: usize> UpdateRule for ElementWise<S, N> {
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
        let named = S::STATE.into_iter().zip(&self.state);
        named.map(|(name, values)| Ok((name, values.to_host()?))).collect()
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        if let Some(index) = S::STATE.iter().position(|state| *state == name) {
            self.state[index] = StateValues::Host(values);
        }
    }
}
