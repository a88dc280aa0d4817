//! Second moments: one value for each value of the parameter, or only row and column means.

use candle_core::Tensor;
use multiversion::multiversion;
use rayon::prelude::*;

use super::super::BLOCK;
use super::super::lanes::StateValues;
use super::super::lanes::{ElementRule, Lane, MeanWeights, update_all};
use crate::error::Result as TrainResult;

/// The minimum length of both dimensions of a factored second moment.
const MIN_FACTORED_DIMENSION: usize = 128;

/// The number of partial sums of a reduction. It is fixed, so that results do not depend on the
/// thread count.
const PARTS: usize = 32;

/// The second moment of a parameter.
pub(super) enum SecondMoment {
    /// One value per value of the parameter.
    Full(StateValues),
    /// Means of rows and of columns.
    Factored { axes: Axes, rows: StateValues, columns: StateValues },
}

/// The two largest dimensions of a tensor. `rows` are means over the largest dimension, `columns`
/// over the second largest.
#[derive(Clone, Copy)]
pub(super) struct Axes {
    largest: Axis,
    second_largest: Axis,
    /// The length of the last dimension, whose elements are adjacent in memory.
    last_length: usize,
}

#[derive(Clone, Copy)]
struct Axis {
    /// The index of the dimension.
    dimension: usize,
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
            dimension,
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

impl SecondMoment {
    /// The initial moment of a parameter of this shape.
    pub(super) fn zeros(shape: &[usize]) -> Self {
        let count: usize = shape.iter().product();
        match Axes::of(shape) {
            None => Self::Full(StateValues::zeros(count)),
            Some(axes) => Self::Factored {
                rows: StateValues::zeros(count / axes.largest.length),
                columns: StateValues::zeros(count / axes.second_largest.length),
                axes,
            },
        }
    }

    /// Updates the moment, and returns the gradient divided by the moment's square root. Computes
    /// with tensors, for a parameter on a GPU.
    pub(super) fn scaled(
        &mut self,
        gradient: &Tensor,
        epsilon: f32,
        decay: f64,
    ) -> candle_core::Result<Tensor> {
        match self {
            Self::Full(moment) => {
                let moment = moment.tensor(gradient.dims(), gradient)?;
                let mean = MeanWeights::new(decay);
                let rule = FullMoment { gradient_scale: 1.0, epsilon, mean };
                let (scaled, [new]) = rule.apply(gradient, gradient, [&*moment])?;
                *moment = new;
                Ok(scaled)
            }
            Self::Factored { axes, rows, columns } => {
                let squares = gradient.square_plus(epsilon)?;
                let rows = rows.average(&squares.mean_keepdim(axes.largest.dimension)?, decay)?;
                let columns = columns
                    .average(&squares.mean_keepdim(axes.second_largest.dimension)?, decay)?;
                let mean = rows.mean_keepdim(axes.second_largest.dimension)?;
                let root = rows.broadcast_div(&mean)?.sqrt()?;
                gradient.broadcast_div(&root)?.broadcast_div(&columns.sqrt()?)
            }
        }
    }

    /// Updates the moment and writes the gradient, divided by the moment's square root, to
    /// `update`.
    pub(super) fn scale(
        &mut self,
        gradient: &[f32],
        update: &mut [f32],
        gradient_scale: f32,
        epsilon: f32,
        decay: f64,
    ) -> TrainResult<()> {
        let mean = MeanWeights::new(decay);
        match self {
            Self::Full(moment) => {
                let rule = FullMoment { gradient_scale, epsilon, mean };
                update_all(rule, update, gradient, [moment.host()?]);
            }
            Self::Factored { axes, rows, columns } => {
                let (rows, columns) = (rows.host()?, columns.host()?);
                let (row_means, column_means) = squared_means(
                    gradient,
                    *axes,
                    rows.len(),
                    columns.len(),
                    gradient_scale,
                    epsilon,
                );
                let update_means = |moment: &mut [f32], means: &[f64]| {
                    for (moment, new) in moment.iter_mut().zip(means) {
                        *moment = mean.decay.mul_add(*moment, mean.rest * *new as f32);
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
        Ok(())
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
    let second_largest = Axis { stride, ..axes.second_largest };
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

/// Divides gradients by the root of their second moment. The results replace the rule's values.
#[derive(Clone, Copy)]
struct FullMoment {
    gradient_scale: f32,
    epsilon: f32,
    mean: MeanWeights,
}

impl ElementRule<1> for FullMoment {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        _: &L,
        gradient: &L,
        [moment]: [&L; 1],
    ) -> Result<(L, [L; 1]), L::Error> {
        let gradient = gradient.times(self.gradient_scale)?;
        let moment = self.mean.mean(moment, &gradient.square_plus(self.epsilon)?)?;
        Ok((gradient.over(&moment.square_root()?)?, [moment]))
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
