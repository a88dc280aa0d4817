//! The transducer, RNN-T (Graves 2012).

use candle_core::Tensor;

use super::AlignedTargets;
use crate::kernels::lattice::{Lattice, lattice_loss};
use crate::kernels::wide::WideFloat;

/// Computes `-log p(target)` of each clip in nats, where `p` sums over all alignments of labels and
/// frames. `logits` `[Σ_b T_b (U_b + 1), V]` are unnormalised, one clip after the other → `[B]`.
/// Row `t (U_b + 1) + u` of a clip with `U_b` labels is frame `t` after `u` labels. The blank moves
/// to the next frame.
///
/// A target without a path has infinite loss and zero gradient. There is no path if the clip has no
/// frames, or if minus infinity masks a needed class. NaN logits give NaN loss and zero gradient.
/// Probabilities below `e^-1e12` count as 0.
///
/// On other devices and dtypes than f32 on the CPU, the loss is computed in f64 on the CPU, and
/// second-order gradients are wrong.
///
/// # Errors
/// If the lengths and targets do not match the number of rows. If the blank or a label is not below
/// `V`, or a label equals the blank.
///
/// # Source
/// Graves 2012, §2.4: equations 16 (`α`), 18 (`β`) and 20 (the gradient).
pub fn transducer_loss(logits: &Tensor, targets: AlignedTargets) -> candle_core::Result<Tensor> {
    targets.check(TransducerClip::NAME, logits)?;
    let clips = targets.lengths.iter().zip(&targets.targets);
    let clips = clips.map(|(frames, target)| TransducerClip::new(*frames, target, targets.blank));
    lattice_loss(logits, clips.collect())
}

/// The lattice of one clip. The emissions of a row are the blank and the next label.
struct TransducerClip {
    frames: usize,
    /// The classes after each number of labels. After the last label only the blank is used.
    classes: Vec<[u32; 2]>,
}

impl TransducerClip {
    fn new(frames: usize, target: &[u32], blank: u32) -> Self {
        let classes = target.iter().chain([&blank]).map(|label| [blank, *label]).collect();
        Self { frames, classes }
    }
}

impl Lattice for TransducerClip {
    const NAME: &'static str = "transducer loss";

    fn rows(&self) -> usize {
        // A saturated product cannot equal the number of rows of any tensor.
        self.frames.saturating_mul(self.classes.len())
    }

    fn classes(&self, row: usize) -> &[u32] {
        &self.classes[row % self.classes.len()]
    }

    fn forward(&self, emissions: &[WideFloat]) -> (WideFloat, Vec<WideFloat>) {
        let width = self.classes.len();
        let mut nodes = vec![WideFloat::ZERO; self.rows()];
        for i in 0..nodes.len() {
            let from_frame = match i.checked_sub(width) {
                Some(previous) => nodes[previous] * emissions[2 * previous],
                None if i == 0 => WideFloat::ONE,
                None => WideFloat::ZERO,
            };
            let from_label = match i % width {
                0 => WideFloat::ZERO,
                _ => nodes[i - 1] * emissions[2 * (i - 1) + 1],
            };
            // The product normalises the mantissa of the sum.
            nodes[i] = (from_frame + from_label) * WideFloat::ONE;
        }
        (nodes[nodes.len() - 1] * emissions[emissions.len() - 2], nodes)
    }

    fn posteriors(
        &self,
        emissions: &[WideFloat],
        total: WideFloat,
        forward: &[WideFloat],
    ) -> Vec<f64> {
        let (rows, width) = (self.rows(), self.classes.len());
        let mut posteriors = vec![0.0; emissions.len()];
        let mut later = vec![WideFloat::ZERO; rows];
        for i in (0..rows).rev() {
            let to_frame = match i + width {
                next if next < rows => later[next],
                next if next == rows + width - 1 => WideFloat::ONE,
                _ => WideFloat::ZERO,
            };
            let to_label = if i % width == width - 1 { WideFloat::ZERO } else { later[i + 1] };
            let blank = emissions[2 * i] * to_frame;
            let label = emissions[2 * i + 1] * to_label;
            posteriors[2 * i] = (forward[i] * blank).ratio(total);
            posteriors[2 * i + 1] = (forward[i] * label).ratio(total);
            later[i] = (blank + label) * WideFloat::ONE;
        }
        posteriors
    }
}
