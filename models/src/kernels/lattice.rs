//! `-log p` of a target over all its paths through a lattice, with the log-softmax of the logits
//! fused in. CTC and the transducer differ in their [`Lattice`] only.

use candle_core::{DType, Device, Shape, Tensor};
use rayon::prelude::*;

use super::math::{exp, max, sum};
use super::operation::{Gradient, Input, Kernel, apply};
use super::wide::{Wide, exponentials};

/// The paths of one clip. Each row of logits has the same number of emissions: classes that a path
/// may emit there.
pub(crate) trait Lattice: Send + Sync + 'static {
    /// The name in error messages.
    const NAME: &'static str;

    /// Rows of logits.
    fn rows(&self) -> usize;

    /// The classes of a row's emissions.
    fn classes(&self, row: usize) -> &[u32];

    /// The probability of all paths, and what [`Lattice::posteriors`] wants of the way there, given
    /// the probability of each emission.
    fn forward(&self, emissions: &[Wide]) -> (Wide, Vec<Wide>);

    /// The share of each emission in the probability `total`, which is not 0.
    fn posteriors(&self, emissions: &[Wide], total: Wide, forward: &[Wide]) -> Vec<f64>;
}

/// `-log p` of each clip in nats: `logits` `[T, V]`, clip after clip → `[B]`.
///
/// # Errors
/// If the clips have more or fewer rows than the logits, or classes that these lack.
pub(crate) fn lattice_loss<L: Lattice>(
    logits: &Tensor,
    clips: Vec<L>,
) -> candle_core::Result<Tensor> {
    let &[rows, width] = logits.dims() else {
        candle_core::bail!("{}: logits of shape {:?}, wanted [T, V]", L::NAME, logits.dims());
    };
    let wanted = clips.iter().try_fold(0usize, |sum, clip| sum.checked_add(clip.rows()));
    if wanted != Some(rows) {
        candle_core::bail!("{}: {rows} rows of logits, {wanted:?} of all clips", L::NAME);
    }
    apply(LatticeLoss { clips, width, read: Vec::new() }, &[logits])
}

struct LatticeLoss<L> {
    clips: Vec<L>,
    width: usize,
    read: Vec<Read>,
}

/// What the forward pass keeps of a clip; nothing but the loss if that is not finite.
struct Read {
    loss: f64,
    softmaxes: Vec<Softmax>,
    emissions: Vec<Wide>,
    total: Wide,
    forward: Vec<Wide>,
}

/// The softmax of a row is `e^(logit - top) / sum`.
#[derive(Clone, Copy)]
struct Softmax {
    top: f64,
    sum: f64,
}

impl Read {
    fn new<T: Copy + Sync + Into<f64>>(
        (clip, logits, width): (&impl Lattice, &[T], usize),
        softmax: impl Fn(&[T]) -> Softmax + Sync,
    ) -> Self {
        let of_loss = |loss| Self {
            loss,
            softmaxes: Vec::new(),
            emissions: Vec::new(),
            total: Wide::ZERO,
            forward: Vec::new(),
        };
        if clip.rows() == 0 {
            return of_loss(f64::INFINITY);
        }
        let count = clip.classes(0).len();
        let mut logarithms = vec![0.0; clip.rows() * count];
        let rows = logarithms.par_chunks_mut(count).zip(logits.par_chunks(width)).enumerate();
        let softmaxes: Vec<Softmax> = rows
            .map(|(row, (logarithms, logits))| {
                let softmax = softmax(logits);
                let total = softmax.top + softmax.sum.ln();
                for (logarithm, &class) in logarithms.iter_mut().zip(clip.classes(row)) {
                    *logarithm = match softmax.is_possible() {
                        true => logits[class as usize].into() - total,
                        false => f64::NEG_INFINITY,
                    };
                }
                softmax
            })
            .collect();
        if softmaxes.iter().any(|softmax| softmax.sum.is_nan()) {
            return of_loss(f64::NAN);
        }
        let mut emissions = vec![Wide::ZERO; logarithms.len()];
        exponentials(&logarithms, &mut emissions);
        let (total, forward) = clip.forward(&emissions);
        match total.is_zero() {
            true => of_loss(f64::INFINITY),
            false => Self { loss: -total.ln(), softmaxes, emissions, total, forward },
        }
    }

    /// Calls `write` for each row of the gradient (what it holds, the logits, their softmax, the
    /// row's share of all paths, and its emissions with theirs). There is none if the loss is not
    /// finite.
    fn gradient<T: Sync, D: Send>(
        &self,
        (clip, logits, width): (&impl Lattice, &[T], usize),
        gradient: &mut [D],
        write: impl Fn(&mut [D], &[T], Softmax, f64, &mut dyn Iterator<Item = (usize, f64)>) + Sync,
    ) {
        let posteriors = clip.posteriors(&self.emissions, self.total, &self.forward);
        let rows = gradient.par_chunks_mut(width).zip(logits.par_chunks(width));
        let rows = rows.zip(&self.softmaxes).enumerate();
        rows.for_each(|(row, ((gradient, logits), softmax))| {
            let classes = clip.classes(row);
            let posteriors = &posteriors[row * classes.len()..][..classes.len()];
            let classes = classes.iter().map(|&class| class as usize);
            let mut emitted = classes.zip(posteriors.iter().copied());
            write(gradient, logits, *softmax, posteriors.iter().sum(), &mut emitted);
        });
    }
}

impl Softmax {
    fn new(row: &[f32]) -> Self {
        let (top, sum) = row_sum(row);
        Self { top: top.into(), sum: sum.into() }
    }

    fn in_f64(row: &[f64]) -> Self {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = match row.iter().all(|v| *v == f64::NEG_INFINITY) {
            true => 0.0,
            false => row.iter().map(|v| (v - top).exp()).sum(),
        };
        Self { top, sum }
    }

    /// Whether the row has a class that is not masked.
    fn is_possible(&self) -> bool {
        self.sum != 0.0
    }
}

impl<L: Lattice> LatticeLoss<L> {
    /// Splits rows of all clips into those of each.
    fn split<'a, T>(&self, rows: &'a [T]) -> Vec<&'a [T]> {
        let mut rest = rows;
        let clips = self.clips.iter().map(|clip| {
            let (first, others) = rest.split_at(clip.rows() * self.width);
            rest = others;
            first
        });
        clips.collect()
    }

    fn split_mut<'a, T>(&self, rows: &'a mut [T]) -> Vec<&'a mut [T]> {
        let mut rest = rows;
        let clips = self.clips.iter().map(|clip| {
            let (first, others) = std::mem::take(&mut rest).split_at_mut(clip.rows() * self.width);
            rest = others;
            first
        });
        clips.collect()
    }
}

impl<L: Lattice> Kernel for LatticeLoss<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn forward(&mut self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape)> {
        let clips = self.clips.par_iter().zip(self.split(inputs[0].data));
        let read = clips.map(|(clip, logits)| Read::new((clip, logits, self.width), Softmax::new));
        self.read = read.collect();
        let losses = self.read.iter().map(|read| read.loss as f32).collect();
        Ok((losses, Shape::from(self.clips.len())))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        wanted: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        let Some(dx) = &mut wanted[0] else { return Ok(()) };
        let add = dx.beta() != 0.0;
        let clips = self.clips.par_iter().zip(&self.read).zip(gradient);
        let clips = clips.zip(self.split(inputs[0].data)).zip(self.split_mut(&mut dx.data));
        clips.for_each(|((((clip, read), &dy), logits), dx)| {
            if !read.loss.is_finite() {
                if !add {
                    dx.fill(0.0);
                }
                return;
            }
            read.gradient((clip, logits, self.width), dx, |dx, logits, softmax, share, emitted| {
                let scale = match softmax.is_possible() {
                    true => (f64::from(dy) * share / softmax.sum) as f32,
                    false => 0.0,
                };
                row_slope(logits, softmax.top as f32, scale, dx, add);
                for (class, posterior) in emitted {
                    dx[class] -= (f64::from(dy) * posterior) as f32;
                }
            });
        });
        Ok(())
    }

    /// Loss and gradient are computed in f64 on the CPU; a product of the logits and the gradient,
    /// from which its own value is taken, brings the gradient into the graph. Gradients of it (of
    /// second order) would be wrong.
    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let logits = &inputs[0];
        let cpu = logits.detach().to_dtype(DType::F64)?.to_device(&Device::Cpu)?;
        let values = cpu.flatten_all()?.to_vec1::<f64>()?;
        let mut gradient = vec![0.0; values.len()];
        let clips = self.clips.par_iter().zip(self.split(&values));
        let losses: Vec<f64> = clips
            .zip(self.split_mut(&mut gradient))
            .map(|((clip, logits), gradient)| {
                let read = Read::new((clip, logits, self.width), Softmax::in_f64);
                if read.loss.is_finite() {
                    read.gradient((clip, logits, self.width), gradient, slope_in_f64);
                }
                read.loss
            })
            .collect();
        let (clips, like) = (self.clips.len(), (logits.dtype(), logits.device()));
        let tensor = |values: Vec<f64>, dims: (usize, usize)| {
            Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(like.0)?.to_device(like.1)
        };
        let finite: Vec<u8> = losses.iter().map(|loss| u8::from(loss.is_finite())).collect();
        let losses = tensor(losses, (clips, 1))?;
        if !logits.track_op() || !finite.contains(&1) {
            return losses.squeeze(1);
        }
        let mut clip_of_row = vec![0.0; clips * logits.dim(0)?];
        let mut place = 0;
        for (clip, lattice) in self.clips.iter().enumerate() {
            clip_of_row[clip * logits.dim(0)? + place..][..lattice.rows()].fill(1.0);
            place += lattice.rows();
        }
        let clip_of_row = tensor(clip_of_row, (clips, logits.dim(0)?))?;
        let gradient = tensor(gradient, logits.dims2()?)?;
        // A masked class would give infinity times 0.
        let kept = gradient.ne(0.0)?.where_cond(logits, &gradient.zeros_like()?)?;
        let rows = (kept * gradient)?.sum_keepdim(1)?;
        let nothing = clip_of_row.matmul(&(&rows - rows.detach())?)?;
        // So that no gradient of a loss that is not finite gets past, whatever it is.
        let finite = Tensor::from_vec(finite, (clips, 1), &Device::Cpu)?.to_device(like.1)?;
        finite.where_cond(&(nothing + &losses)?, &losses)?.squeeze(1)
    }
}

fn slope_in_f64(
    dx: &mut [f64],
    logits: &[f64],
    softmax: Softmax,
    share: f64,
    emitted: &mut dyn Iterator<Item = (usize, f64)>,
) {
    if softmax.is_possible() {
        for (dx, logit) in dx.iter_mut().zip(logits) {
            *dx = share * (logit - softmax.top).exp() / softmax.sum;
        }
    }
    for (class, posterior) in emitted {
        dx[class] -= posterior;
    }
}

vectorised! {
    /// The largest logit and the sum of the exponentials of the differences to it; 0 if all are
    /// masked.
    fn row_sum(row: &[f32]) -> (f32, f32) {
        let top = max(row);
        if top == f32::NEG_INFINITY && row.iter().all(|v| *v == top) {
            return (top, 0.0);
        }
        (top, sum(row, |v| exp(v - top)))
    }

    fn row_slope(logits: &[f32], top: f32, scale: f32, dx: &mut [f32], add: bool) {
        if top == f32::NEG_INFINITY {
            if !add {
                dx.fill(0.0);
            }
        } else if add {
            for (dx, v) in dx.iter_mut().zip(logits) {
                *dx += scale * exp(v - top);
            }
        } else {
            for (dx, v) in dx.iter_mut().zip(logits) {
                *dx = scale * exp(v - top);
            }
        }
    }
}
