//! Adafactor (Shazeer and Stern, 2018), with the arithmetic of `optax.adafactor`.
//!
//! If the two largest dimensions of a tensor are 128 or more, only row and column means of the
//! squared gradients are stored. The order of operations follows optax:
//! - divide by the root of the second moment,
//! - clip the update's root mean square,
//! - multiply by the learning rate and by the parameter's own root mean square,
//! - apply momentum,
//! - apply weight decay (not multiplied by the learning rate),
//! - multiply by the group's factor.

use std::borrow::Cow;

use multiversion::multiversion;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::{BLOCK, State, Step, UpdateRule, decay_of, sum_of_squares};
use crate::error::Result;

/// `kind = "adafactor"`: second moments of matrices as means of rows and columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdafactorSettings {
    /// The exponent in the decay of the second moment: `1 − t^−exponent` at step `t`.
    pub decay_exponent: f64,
    /// Added to the squared gradients.
    pub epsilon: f64,
    /// The maximum root mean square of a tensor's update, for update clipping.
    pub update_clip: f64,
    /// Momentum, the decay of the update's moving average; 0 for none.
    pub momentum: f64,
    /// Weight decay for tensors of rank 2 or higher, not multiplied by the learning rate.
    pub weight_decay: f64,
}

impl Default for AdafactorSettings {
    fn default() -> Self {
        Self {
            decay_exponent: 0.8,
            epsilon: 1e-30,
            update_clip: 1.0,
            momentum: 0.0,
            weight_decay: 0.01,
        }
    }
}

impl Settings for AdafactorSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        at_least_zero("decay_exponent", self.decay_exponent)
            .or_else(|| positive("epsilon", self.epsilon))
            .or_else(|| positive("update_clip", self.update_clip))
            .or_else(|| below_one("momentum", self.momentum))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let zeros = |count: usize| vec![0.0; count];
        let count: usize = shape.iter().product();
        let moment = match Axes::of(shape) {
            None => SecondMoment::Full(zeros(count)),
            Some(axes) => SecondMoment::Factored {
                rows: zeros(count / axes.largest.length),
                columns: zeros(count / axes.second_largest.length),
                axes,
            },
        };
        let weight_decay = decay_of(self.weight_decay, shape);
        let momentum = (self.momentum > 0.0).then(|| zeros(count));
        Box::new(Adafactor { settings: Self { weight_decay, ..self.clone() }, moment, momentum })
    }
}

/// The minimum length of both dimensions of a factored second moment.
const MIN_FACTORED_DIMENSION: usize = 128;

/// The minimum of the parameter's root mean square, which scales the update.
const MIN_PARAMETER_SCALE: f64 = 1e-3;

/// The number of partial sums of a reduction. It is fixed, so that results do not depend on the
/// thread count.
const PARTS: usize = 32;

struct Adafactor {
    settings: AdafactorSettings,
    moment: SecondMoment,
    /// The moving average of updates; `None` without momentum.
    momentum: Option<Vec<f32>>,
}

enum SecondMoment {
    Full(Vec<f32>),
    Factored { axes: Axes, rows: Vec<f32>, columns: Vec<f32> },
}

/// The two largest dimensions of a tensor. `rows` are means over the largest dimension, `columns`
/// over the second largest.
#[derive(Clone, Copy)]
struct Axes {
    largest: Axis,
    second_largest: Axis,
    /// The length of the last dimension, whose elements are adjacent in memory.
    last_length: usize,
}

#[derive(Clone, Copy)]
struct Axis {
    length: usize,
    stride: usize,
}

impl Axis {
    /// The index of the element `index` in the tensor without this dimension.
    fn drop_from(self, index: usize) -> usize {
        index / (self.stride * self.length) * self.stride + index % self.stride
    }
}

impl Axes {
    /// The two largest dimensions of a shape; `None` if a tensor of this shape has no factored
    /// second moment.
    fn of(shape: &[usize]) -> Option<Self> {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        order.sort_by_key(|dimension| shape[*dimension]);
        let [.., second_largest, largest] = order[..] else { return None };
        let axis = |dimension: usize| Axis {
            length: shape[dimension],
            stride: shape[dimension + 1..].iter().product(),
        };
        (shape[second_largest] >= MIN_FACTORED_DIMENSION).then(|| Self {
            largest: axis(largest),
            second_largest: axis(second_largest),
            last_length: shape[shape.len() - 1],
        })
    }
}

impl UpdateRule for Adafactor {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        scratch: &mut Vec<f32>,
    ) -> Result<()> {
        scratch.resize(gradient.len(), 0.0);
        let update = &mut scratch[..];
        let second_moment_decay = 1.0 - (step.number as f64).powf(-self.settings.decay_exponent);
        let gradient_scale = step.size.gradient_scale as f32;
        let epsilon = self.settings.epsilon as f32;
        self.moment.scale(gradient, update, gradient_scale, epsilon, second_moment_decay as f32);
        let clip = (root_mean_square(update) / self.settings.update_clip).max(1.0);
        let parameter_scale = root_mean_square(values).max(MIN_PARAMETER_SCALE);
        let factor = (step.size.learning_rate * parameter_scale / clip) as f32;
        if let Some(mean) = &mut self.momentum {
            apply_momentum(mean, update, factor, self.settings.momentum as f32);
        }
        let factor = if self.momentum.is_some() { 1.0 } else { factor };
        let decay_factor = (1.0 - step.rate_factor * self.settings.weight_decay) as f32;
        let rate_factor = step.rate_factor as f32;
        let blocks = values.par_chunks_mut(BLOCK).zip(update.par_chunks(BLOCK));
        blocks.for_each(|(values, update)| {
            apply(values, update, -rate_factor * factor, decay_factor);
        });
        Ok(())
    }

    fn state(&self) -> Result<State<'_>> {
        let mut state = match &self.moment {
            SecondMoment::Full(moment) => vec![(FULL, Cow::from(moment))],
            SecondMoment::Factored { rows, columns, .. } => {
                vec![(ROWS, Cow::from(rows)), (COLUMNS, Cow::from(columns))]
            }
        };
        state.extend(self.momentum.as_deref().map(|momentum| (MOMENTUM, Cow::from(momentum))));
        Ok(state)
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        match (&mut self.moment, name) {
            (_, MOMENTUM) => self.momentum = Some(values),
            (SecondMoment::Full(moment), _) => *moment = values,
            (SecondMoment::Factored { rows, .. }, ROWS) => *rows = values,
            (SecondMoment::Factored { columns, .. }, _) => *columns = values,
        }
    }
}

/// The names of the state tensors.
const FULL: &str = "second_moment";
const ROWS: &str = "second_moment_rows";
const COLUMNS: &str = "second_moment_columns";
const MOMENTUM: &str = "momentum";

impl SecondMoment {
    /// Updates the moment and writes the gradient, divided by the moment's square root, to
    /// `update`.
    fn scale(
        &mut self,
        gradient: &[f32],
        update: &mut [f32],
        gradient_scale: f32,
        epsilon: f32,
        decay: f32,
    ) {
        match self {
            Self::Full(moment) => {
                moment
                    .par_chunks_mut(BLOCK)
                    .zip(gradient.par_chunks(BLOCK))
                    .zip(update.par_chunks_mut(BLOCK))
                    .for_each(|((values, gradient), update)| {
                        scale_full(values, gradient, update, gradient_scale, epsilon, decay);
                    });
            }
            Self::Factored { axes, rows, columns } => {
                let (row_means, column_means) = squared_means(
                    gradient,
                    *axes,
                    rows.len(),
                    columns.len(),
                    gradient_scale,
                    epsilon,
                );
                let update_means = |moment: &mut [f32], means: &[f64]| {
                    for (moment, mean) in moment.iter_mut().zip(means) {
                        *moment = decay.mul_add(*moment, (1.0 - decay) * *mean as f32);
                    }
                };
                update_means(rows, &row_means);
                update_means(columns, &column_means);
                let row_factors = row_factors(rows, *axes);
                let column_factors: Vec<f32> = columns.iter().map(|v| 1.0 / v.sqrt()).collect();
                let block_length = (BLOCK / axes.last_length).max(1) * axes.last_length;
                gradient
                    .par_chunks(block_length)
                    .zip(update.par_chunks_mut(block_length))
                    .enumerate()
                    .for_each(|(block, (gradient, update))| {
                        let start = block * block_length;
                        let factors = (row_factors.as_slice(), column_factors.as_slice());
                        scale_factored(gradient, update, start, *axes, factors, gradient_scale);
                    });
            }
        }
    }
}

/// `(row / mean of rows)^−1/2`. The mean is over the second largest dimension.
fn row_factors(rows: &[f32], axes: Axes) -> Vec<f32> {
    // Without the largest dimension, the stride of a dimension to its left is smaller.
    let stride = if axes.largest.stride < axes.second_largest.stride {
        axes.second_largest.stride / axes.largest.length
    } else {
        axes.second_largest.stride
    };
    let second_largest = Axis { length: axes.second_largest.length, stride };
    let mut means = vec![0.0f64; rows.len() / second_largest.length];
    for (i, row) in rows.iter().enumerate() {
        means[second_largest.drop_from(i)] += f64::from(*row);
    }
    let length = second_largest.length as f64;
    let factor = |(i, row): (usize, &f32)| {
        let mean = means[second_largest.drop_from(i)] / length;
        (f64::from(*row) / mean).powf(-0.5) as f32
    };
    rows.iter().enumerate().map(factor).collect()
}

/// Means of the squared gradient (plus epsilon) along the largest and the second largest dimension.
fn squared_means(
    gradient: &[f32],
    axes: Axes,
    row_count: usize,
    column_count: usize,
    gradient_scale: f32,
    epsilon: f32,
) -> (Vec<f64>, Vec<f64>) {
    let part_length = (gradient.len() / axes.last_length).div_ceil(PARTS) * axes.last_length;
    let sums: Vec<_> = gradient
        .par_chunks(part_length)
        .enumerate()
        .map(|(index, chunk)| {
            let (mut rows, mut columns) = (vec![0.0; row_count], vec![0.0; column_count]);
            for (line, block) in chunk.chunks_exact(axes.last_length).enumerate() {
                let start = index * part_length + line * axes.last_length;
                add_squares(&mut rows, axes.largest, start, block, gradient_scale, epsilon);
                add_squares(
                    &mut columns,
                    axes.second_largest,
                    start,
                    block,
                    gradient_scale,
                    epsilon,
                );
            }
            (rows, columns)
        })
        .collect();
    let (rows, columns): (Vec<_>, Vec<_>) = sums.into_iter().unzip();
    (mean_of_sums(&rows, axes.largest.length), mean_of_sums(&columns, axes.second_largest.length))
}

/// The elementwise sum of the parts, divided by `length`. The order of summation is fixed.
fn mean_of_sums(parts: &[Vec<f64>], length: usize) -> Vec<f64> {
    let mut total = vec![0.0; parts.first().map_or(0, Vec::len)];
    for part in parts {
        for (total, value) in total.iter_mut().zip(part) {
            *total += value;
        }
    }
    total.iter_mut().for_each(|value| *value /= length as f64);
    total
}

/// Adds the squares of a contiguous block to the sums along `axis`. `start` is the index of the
/// block's first element in the tensor.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_squares(
    sums: &mut [f64],
    axis: Axis,
    start: usize,
    block: &[f32],
    gradient_scale: f32,
    epsilon: f32,
) {
    let square = |g: &f32| {
        let g = g * gradient_scale;
        f64::from(g.mul_add(g, epsilon))
    };
    let first = axis.drop_from(start);
    if axis.stride == 1 {
        // Eight partial sums, so that the compiler can vectorise the loop.
        let mut lanes = [0.0f64; 8];
        let chunks = block.chunks_exact(8);
        let remainder: f64 = chunks.remainder().iter().map(square).sum();
        for chunk in chunks {
            for (lane, g) in lanes.iter_mut().zip(chunk) {
                *lane += square(g);
            }
        }
        sums[first] += lanes.iter().sum::<f64>() + remainder;
    } else {
        for (sum, g) in sums[first..].iter_mut().zip(block) {
            *sum += square(g);
        }
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
fn scale_full(
    moment: &mut [f32],
    gradient: &[f32],
    update: &mut [f32],
    gradient_scale: f32,
    epsilon: f32,
    decay: f32,
) {
    let one_minus_decay = 1.0 - decay;
    for ((moment, gradient), update) in moment.iter_mut().zip(gradient).zip(update.iter_mut()) {
        let gradient = gradient * gradient_scale;
        *moment = decay.mul_add(*moment, one_minus_decay * gradient.mul_add(gradient, epsilon));
        *update = gradient / moment.sqrt();
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
fn scale_factored(
    gradient: &[f32],
    update: &mut [f32],
    start: usize,
    axes: Axes,
    factors: (&[f32], &[f32]),
    gradient_scale: f32,
) {
    let (rows, columns) = factors;
    let lines =
        gradient.chunks_exact(axes.last_length).zip(update.chunks_exact_mut(axes.last_length));
    for (line, (gradient, update)) in lines.enumerate() {
        let index = start + line * axes.last_length;
        let first_row = axes.largest.drop_from(index);
        let first_column = axes.second_largest.drop_from(index);
        let pairs = gradient.iter().zip(update.iter_mut());
        if axes.largest.stride == 1 {
            let row = rows[first_row] * gradient_scale;
            for ((gradient, update), column) in pairs.zip(&columns[first_column..]) {
                *update = gradient * row * column;
            }
        } else if axes.second_largest.stride == 1 {
            let column = columns[first_column] * gradient_scale;
            for ((gradient, update), row) in pairs.zip(&rows[first_row..]) {
                *update = gradient * row * column;
            }
        } else {
            for (((gradient, update), row), column) in
                pairs.zip(&rows[first_row..]).zip(&columns[first_column..])
            {
                *update = gradient * gradient_scale * row * column;
            }
        }
    }
}

/// Multiplies the update by `factor` and replaces it by its moving average `mean`.
fn apply_momentum(mean: &mut [f32], update: &mut [f32], factor: f32, momentum: f32) {
    let blocks = mean.par_chunks_mut(BLOCK).zip(update.par_chunks_mut(BLOCK));
    blocks.for_each(|(mean, update)| {
        for (mean, update) in mean.iter_mut().zip(update) {
            *mean = momentum.mul_add(*mean, (1.0 - momentum) * (*update * factor));
            *update = *mean;
        }
    });
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
fn apply(values: &mut [f32], update: &[f32], update_factor: f32, decay_factor: f32) {
    for (value, update) in values.iter_mut().zip(update) {
        *value = update_factor.mul_add(*update, *value * decay_factor);
    }
}

fn root_mean_square(values: &[f32]) -> f64 {
    (sum_of_squares(values) / values.len().max(1) as f64).sqrt()
}
