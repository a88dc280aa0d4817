//! The loss `-log p` of a target, where `p` is the sum of the probabilities of all paths through a
//! lattice. The log-softmax is fused into the kernel. The CTC and transducer losses differ only in
//! their [`Lattice`].

use candle_core::{DType, Device, Result, Shape, Tensor};
use rayon::prelude::*;

use super::device::{BackwardPass, DeviceKernel, Saved};
use super::math::{exp, max, sum};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::wide::{WideFloat, exponentials};
use crate::compute::full_precision;

/// The paths of one clip. At every row of logits, a path may emit one of a few classes, the
/// *emissions* of the row. All rows have the same number of emissions.
pub(crate) trait Lattice: Send + Sync + 'static {
    /// The name for error messages.
    const NAME: &'static str;

    /// Returns the number of rows of logits.
    fn rows(&self) -> usize;

    /// Returns the classes of a row's emissions.
    fn classes(&self, row: usize) -> &[u32];

    /// Returns the total probability of all paths and the forward values needed by
    /// [`Lattice::posteriors`], given the probability of each emission.
    fn forward(&self, emissions: &[WideFloat]) -> (WideFloat, Vec<WideFloat>);

    /// Returns the posterior of each emission: the probability of all paths through it, divided by
    /// the probability `total`, which must not be 0.
    fn posteriors(
        &self,
        emissions: &[WideFloat],
        total: WideFloat,
        forward: &[WideFloat],
    ) -> Vec<f64>;
}

/// Computes `-log p` of each clip in nats: `logits` `[T, V]`, one clip after the other → `[B]`.
///
/// # Errors
/// If the clips and the logits differ in the number of rows.
///
/// # Panics
/// If a class is not below `V`.
pub(crate) fn lattice_loss<L: Lattice>(logits: &Tensor, clips: Vec<L>) -> Result<Tensor> {
    let &[rows, width] = logits.dims() else {
        candle_core::bail!("{}: logits of shape {:?}, expected [T, V]", L::NAME, logits.dims());
    };
    let expected = clips.iter().try_fold(0usize, |sum, clip| sum.checked_add(clip.rows()));
    if expected != Some(rows) {
        candle_core::bail!("{}: {rows} rows of logits, but the clips need {expected:?}", L::NAME);
    }
    apply(LatticeLoss { clips, width }, &[logits])
}

struct LatticeLoss<L> {
    clips: Vec<L>,
    width: usize,
}

/// The values of a clip that the forward pass saves. Only `loss` is set if it is not finite.
pub(crate) struct ForwardState {
    loss: f64,
    softmaxes: Vec<Softmax>,
    emissions: Vec<WideFloat>,
    total: WideFloat,
    forward: Vec<WideFloat>,
}

/// The softmax of a row, `e^(logit - top) / sum`, where `top` is the largest logit.
#[derive(Clone, Copy)]
struct Softmax {
    top: f64,
    sum: f64,
}

impl ForwardState {
    /// Computes the loss of a clip from its logits, row by row.
    fn new<T: Copy + Sync + Into<f64>>(
        (clip, logits, width): (&impl Lattice, &[T], usize),
        softmax: impl Fn(&[T]) -> Softmax + Sync,
    ) -> Self {
        let loss_only = |loss| Self {
            loss,
            softmaxes: Vec::new(),
            emissions: Vec::new(),
            total: WideFloat::ZERO,
            forward: Vec::new(),
        };
        if clip.rows() == 0 {
            return loss_only(f64::INFINITY);
        }
        let num_emissions = clip.classes(0).len();
        let mut logarithms = vec![0.0; clip.rows() * num_emissions];
        let rows =
            logarithms.par_chunks_mut(num_emissions).zip(logits.par_chunks(width)).enumerate();
        let softmaxes: Vec<Softmax> = rows
            .map(|(row, (logarithms, logits))| {
                let softmax = softmax(logits);
                let total = softmax.top + softmax.sum.ln();
                for (logarithm, &class) in logarithms.iter_mut().zip(clip.classes(row)) {
                    *logarithm = if softmax.has_unmasked_class() {
                        logits[class as usize].into() - total
                    } else {
                        f64::NEG_INFINITY
                    };
                }
                softmax
            })
            .collect();
        if softmaxes.iter().any(|softmax| softmax.sum.is_nan()) {
            return loss_only(f64::NAN);
        }
        let mut emissions = vec![WideFloat::ZERO; logarithms.len()];
        exponentials(&logarithms, &mut emissions);
        let (total, forward) = clip.forward(&emissions);
        if total.is_zero() {
            loss_only(f64::INFINITY)
        } else {
            Self { loss: -total.ln(), softmaxes, emissions, total, forward }
        }
    }

    /// Calls `write` for each row of logits; the loss must be finite. The arguments are the row of
    /// the gradient, the logits, their softmax, the sum of the row's posteriors, and the class and
    /// posterior of each emission.
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
            let mut class_posteriors = classes.zip(posteriors.iter().copied());
            write(gradient, logits, *softmax, posteriors.iter().sum(), &mut class_posteriors);
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
        let sum = if row.iter().all(|v| *v == f64::NEG_INFINITY) {
            0.0
        } else {
            row.iter().map(|v| (v - top).exp()).sum()
        };
        Self { top, sum }
    }

    /// Whether at least one logit of the row is not minus infinity.
    fn has_unmasked_class(&self) -> bool {
        self.sum != 0.0
    }
}

impl<L: Lattice> LatticeLoss<L> {
    /// Splits a matrix of all clips into one slice per clip.
    fn split<'a, T>(&self, rows: &'a [T]) -> Vec<&'a [T]> {
        let mut remaining = rows;
        let clips = self.clips.iter().map(|clip| {
            let (first, others) = remaining.split_at(clip.rows() * self.width);
            remaining = others;
            first
        });
        clips.collect()
    }

    /// Splits a mutable matrix of all clips into one slice per clip.
    fn split_mut<'a, T>(&self, rows: &'a mut [T]) -> Vec<&'a mut [T]> {
        let mut remaining = rows;
        let clips = self.clips.iter().map(|clip| {
            let (first, others) =
                std::mem::take(&mut remaining).split_at_mut(clip.rows() * self.width);
            remaining = others;
            first
        });
        clips.collect()
    }
}

impl<L: Lattice> Kernel for LatticeLoss<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let clips = self.clips.par_iter().zip(self.split(inputs[0].data));
        let states: Vec<ForwardState> = clips
            .map(|(clip, logits)| ForwardState::new((clip, logits, self.width), Softmax::new))
            .collect();
        let losses = states.iter().map(|state| state.loss as f32).collect();
        Ok((losses, Shape::from(self.clips.len()), Box::new(states)))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let states = pass.saved::<Vec<ForwardState>>()?;
        let Some(dx) = &mut input_gradients[0] else { return Ok(()) };
        let accumulate = dx.beta() != 0.0;
        let clips = self.clips.par_iter().zip(states).zip(gradient);
        let clips = clips.zip(self.split(inputs[0].data)).zip(self.split_mut(&mut dx.data));
        clips.for_each(|((((clip, state), &dy), logits), dx)| {
            if !state.loss.is_finite() {
                if !accumulate {
                    dx.fill(0.0);
                }
                return;
            }
            state.gradient(
                (clip, logits, self.width),
                dx,
                |dx, logits, softmax, posterior_sum, class_posteriors| {
                    let scale = if softmax.has_unmasked_class() {
                        (f64::from(dy) * posterior_sum / softmax.sum) as f32
                    } else {
                        0.0
                    };
                    row_gradient(logits, softmax.top as f32, scale, dx, accumulate);
                    for (class, posterior) in class_posteriors {
                        dx[class] -= (f64::from(dy) * posterior) as f32;
                    }
                },
            );
        });
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}

/// Computes the losses and the gradients in f64 on the CPU.
impl<L: Lattice> DeviceKernel for LatticeLoss<L> {
    fn forward(&self, inputs: &[Tensor], wanted: &[bool]) -> Result<(Tensor, Saved)> {
        let (device, dtype) = (inputs[0].device(), full_precision(&inputs[0])?.dtype());
        let logits = inputs[0].to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        let mut gradient = vec![0.0; if wanted[0] { logits.len() } else { 0 }];
        let gradients = if wanted[0] { self.split_mut(&mut gradient) } else { Vec::new() };
        let clips = self.clips.par_iter().zip(self.split(&logits));
        let states: Vec<ForwardState> = clips
            .clone()
            .map(|(clip, logits)| ForwardState::new((clip, logits, self.width), Softmax::in_f64))
            .collect();
        clips.zip(&states).zip(gradients).for_each(|(((clip, logits), state), gradient)| {
            if state.loss.is_finite() {
                state.gradient((clip, logits, self.width), gradient, gradient_in_f64);
            }
        });
        let losses: Vec<f64> = states.iter().map(|state| state.loss).collect();
        let tensor = |values: Vec<f64>, shape: &[usize]| {
            Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        let saved = if wanted[0] {
            // A loss that is not finite gets no gradient, whatever the gradient of the loss is.
            let is_finite = losses.iter().map(|loss| u8::from(loss.is_finite()));
            let clip_of_row = self.clips.iter().zip(0u32..);
            let clip_of_row = clip_of_row.flat_map(|(clip, i)| vec![i; clip.rows()]);
            Saved::tensors([
                tensor(gradient, inputs[0].dims())?,
                Tensor::from_iter(is_finite, device)?,
                Tensor::from_iter(clip_of_row, device)?,
            ])
        } else {
            Saved::default()
        };
        Ok((tensor(losses, &[self.clips.len()])?, saved))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let [gradient, is_finite, clip_of_row] = &pass.saved.tensors[..] else {
            candle_core::bail!("{}: no saved gradient", L::NAME);
        };
        let dy = is_finite.where_cond(pass.gradient, &pass.gradient.zeros_like()?)?;
        let dy = dy.index_select(clip_of_row, 0)?.unsqueeze(1)?;
        Ok(vec![Some(gradient.broadcast_mul(&dy)?)])
    }
}

/// Writes the gradient of a row's logits to `dx`.
fn gradient_in_f64(
    dx: &mut [f64],
    logits: &[f64],
    softmax: Softmax,
    posterior_sum: f64,
    class_posteriors: &mut dyn Iterator<Item = (usize, f64)>,
) {
    if softmax.has_unmasked_class() {
        for (dx, logit) in dx.iter_mut().zip(logits) {
            *dx = posterior_sum * (logit - softmax.top).exp() / softmax.sum;
        }
    }
    for (class, posterior) in class_posteriors {
        dx[class] -= posterior;
    }
}

vectorised! {
    /// Returns the largest logit and the sum of exponentials relative to it; the sum is 0 if all
    /// logits are minus infinity.
    fn row_sum(row: &[f32]) -> (f32, f32) {
        let top = max(row);
        if top == f32::NEG_INFINITY && row.iter().all(|v| *v == top) {
            return (top, 0.0);
        }
        (top, sum(row, |v| exp(v - top)))
    }

    /// Writes `scale exp(logits - top)` to `dx`, or adds it to `dx` if `accumulate`. If all logits
    /// are minus infinity, the gradient is 0.
    fn row_gradient(logits: &[f32], top: f32, scale: f32, dx: &mut [f32], accumulate: bool) {
        if top == f32::NEG_INFINITY {
            if !accumulate {
                dx.fill(0.0);
            }
        } else if accumulate {
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
