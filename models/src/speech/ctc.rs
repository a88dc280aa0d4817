//! Connectionist temporal classification (Graves et al. 2006).

use candle_core::Tensor;

use super::AlignedTargets;
use crate::kernels::lattice::{Lattice, lattice_loss};
use crate::kernels::wide::WideFloat;

/// Whether `frames` are enough for a target. Each label needs a frame, and so does the blank
/// between two equal neighbours. An empty target needs one frame.
pub fn is_feasible(frames: usize, target: &[u32]) -> bool {
    let repeats = target.windows(2).filter(|pair| pair[0] == pair[1]).count();
    frames >= (target.len() + repeats).max(1)
}

/// Computes `-log p(target)` of each clip in nats, where `p` sums over all alignments of labels and
/// frames. `logits` `[T, V]` are unnormalised, one clip after the other → `[B]`. Without labels,
/// the only path is all blank.
///
/// A target without a path has infinite loss and zero gradient. There is no path if there are too
/// few frames, or if minus infinity masks a needed class. NaN logits give NaN loss and zero
/// gradient. Probabilities below `e^-1e12` count as 0.
///
/// On other devices and dtypes than f32 on the CPU, the loss is computed in f64 on the CPU, and
/// second-order gradients are wrong.
///
/// # Errors
/// If the lengths do not sum to the number of frames, or the numbers of lengths and targets differ.
/// If the blank or a label is not below `V`, or a label equals the blank.
///
/// # Source
/// Graves et al. 2006, §4.1: equations 6 to 8 (`α`), 9 to 11 (`β`) and 16 (the gradient).
pub fn ctc_loss(logits: &Tensor, targets: AlignedTargets) -> candle_core::Result<Tensor> {
    targets.check(CtcClip::NAME, logits)?;
    let clips = targets.lengths.iter().zip(&targets.targets);
    let clips = clips.map(|(frames, target)| CtcClip::new(*frames, target, targets.blank));
    lattice_loss(logits, clips.collect())
}

/// The lattice of one clip. With `W` = number of labels + 1, a path is in one of `2 W` states after
/// each frame. State `i < W` is the blank after label `i`; state 0 is the blank before all labels.
/// State `W + i` is label `i`; state `W` is unused.
struct CtcClip {
    frames: usize,
    /// The blank, then the labels.
    classes: Vec<u32>,
    /// `[W + 1]`: whether a path may go from label `i - 1` to label `i` without a blank.
    may_skip_blank: Vec<bool>,
}

impl CtcClip {
    fn new(frames: usize, target: &[u32], blank: u32) -> Self {
        let mut may_skip_blank = vec![false; target.len() + 2];
        for (may_skip, pair) in may_skip_blank.iter_mut().skip(2).zip(target.windows(2)) {
            *may_skip = pair[0] != pair[1];
        }
        Self { frames, classes: [&[blank], target].concat(), may_skip_blank }
    }
}

impl Lattice for CtcClip {
    const NAME: &'static str = "CTC loss";

    fn rows(&self) -> usize {
        self.frames
    }

    fn classes(&self, _: usize) -> &[u32] {
        &self.classes
    }

    fn forward(&self, emissions: &[WideFloat]) -> (WideFloat, Vec<WideFloat>) {
        let width = self.classes.len();
        let mut states = vec![WideFloat::ZERO; 2 * width * self.frames];
        // The state before the first frame: a path starts before all labels.
        let mut start = vec![WideFloat::ZERO; 2 * width];
        start[0] = WideFloat::ONE;
        let mut last = &start[..];
        let frames = states.chunks_exact_mut(2 * width).zip(emissions.chunks_exact(width));
        for (next, emissions) in frames {
            forward_step(
                last.split_at(width),
                emissions,
                &self.may_skip_blank,
                next.split_at_mut(width),
            );
            last = next;
        }
        // The product normalises the mantissa of the sum.
        ((last[width - 1] + last[2 * width - 1]) * WideFloat::ONE, states)
    }

    fn posteriors(
        &self,
        emissions: &[WideFloat],
        total: WideFloat,
        forward: &[WideFloat],
    ) -> Vec<f64> {
        let width = self.classes.len();
        let mut posteriors = vec![0.0; emissions.len()];
        // Each `β` includes the emission of its own frame. After the last frame, only `β` of the
        // last blank is 1.
        let mut later = SuffixProbabilities::new(width);
        later.blanks[width - 1] = WideFloat::ONE;
        let mut earlier = SuffixProbabilities::new(width);
        let frames = posteriors.chunks_exact_mut(width).zip(emissions.chunks_exact(width));
        for ((posteriors, emissions), states) in frames.zip(forward.chunks_exact(2 * width)).rev() {
            let states = (states.split_at(width), total);
            backward_step(
                &later,
                emissions,
                &self.may_skip_blank,
                states,
                (&mut earlier, posteriors),
            );
            std::mem::swap(&mut later, &mut earlier);
        }
        posteriors
    }
}

/// `β` of a frame: the probability of the rest of the path, from each state on.
struct SuffixProbabilities {
    /// `[W]`
    blanks: Vec<WideFloat>,
    /// `[W + 1]`
    labels: Vec<WideFloat>,
}

impl SuffixProbabilities {
    fn new(width: usize) -> Self {
        Self { blanks: vec![WideFloat::ZERO; width], labels: vec![WideFloat::ZERO; width + 1] }
    }
}

vectorised! {
    /// Computes `α` of a frame (blanks, labels) from `α` of the previous frame.
    fn forward_step(
        (blanks, labels): (&[WideFloat], &[WideFloat]),
        emissions: &[WideFloat],
        may_skip_blank: &[bool],
        (next_blanks, next_labels): (&mut [WideFloat], &mut [WideFloat]),
    ) {
        let width = emissions.len();
        let (blanks, labels) = (&blanks[..width], &labels[..width]);
        let may_skip_blank = &may_skip_blank[..width];
        let (next_blanks, next_labels) = (&mut next_blanks[..width], &mut next_labels[..width]);
        for i in 0..width {
            next_blanks[i] = (blanks[i] + labels[i]) * emissions[0];
        }
        for i in 1..width {
            let without_blank = if may_skip_blank[i] { labels[i - 1] } else { WideFloat::ZERO };
            next_labels[i] = (labels[i] + blanks[i - 1] + without_blank) * emissions[i];
        }
    }

    /// Computes `β` of a frame, with its emission, from `β` of the next frame. Also computes the
    /// posteriors of the frame's emissions.
    fn backward_step(
        later: &SuffixProbabilities,
        emissions: &[WideFloat],
        may_skip_blank: &[bool],
        ((blanks, labels), total): ((&[WideFloat], &[WideFloat]), WideFloat),
        (earlier, posteriors): (&mut SuffixProbabilities, &mut [f64]),
    ) {
        let width = emissions.len();
        let (blanks, labels) = (&blanks[..width], &labels[..width]);
        let may_skip_blank = &may_skip_blank[..=width];
        let (later_blanks, later_labels) = (&later.blanks[..width], &later.labels[..=width]);
        let earlier_blanks = &mut earlier.blanks[..width];
        let earlier_labels = &mut earlier.labels[..width];
        let posteriors = &mut posteriors[..width];
        let mut blank = 0.0;
        for i in 0..width {
            let after = later_blanks[i] + later_labels[i + 1];
            blank += (blanks[i] * after).ratio(total);
            earlier_blanks[i] = after * emissions[0];
        }
        posteriors[0] = blank;
        for i in 1..width {
            let without_blank =
                if may_skip_blank[i + 1] { later_labels[i + 1] } else { WideFloat::ZERO };
            let after = later_labels[i] + later_blanks[i] + without_blank;
            posteriors[i] = (labels[i] * after).ratio(total);
            earlier_labels[i] = after * emissions[i];
        }
    }
}
