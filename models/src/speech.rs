//! Components shared by the ASR models: input frames, losses, decoding and pre-training.

pub mod best_rq;
pub mod ctc;
pub mod ctc_beam;
pub mod decode;
pub mod log_mel;
pub(crate) mod prefixes;
pub(crate) mod text_losses;
pub mod transducer;

use candle_core::Tensor;

use crate::error::{Result, bail};
use crate::kernels::{Span, packed_spans};

/// The hidden states of packed clips: an encoder's output, or the tokens that its blocks take.
#[derive(Debug, Clone)]
pub struct AudioStates {
    /// Hidden states `[T, D]`.
    pub states: Tensor,
    /// The number of states of each clip.
    pub lengths: Vec<usize>,
}

impl AudioStates {
    /// Returns the states of each clip alone.
    ///
    /// # Errors
    /// The errors of candle if there are fewer states than the lengths sum to.
    pub fn clips(&self) -> Result<Vec<Self>> {
        let clip = |span: Span| {
            let states = self.states.narrow(0, span.start, span.length)?;
            Ok(Self { states, lengths: vec![span.length] })
        };
        packed_spans(&self.lengths).into_iter().map(clip).collect()
    }

    /// Checks that there is one text for each clip.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers differ.
    pub(crate) fn check_texts(&self, texts: &[Vec<u32>]) -> Result<()> {
        let (clips, found) = (self.lengths.len(), texts.len());
        if clips != found {
            bail!("{found} texts for {clips} clips");
        }
        Ok(())
    }
}

/// The clips of a loss over alignments ([`ctc::ctc_loss`], [`transducer::transducer_loss`]), and
/// their target labels.
#[derive(Debug, Clone)]
pub struct AlignedTargets {
    /// The number of frames of each of `B` clips.
    pub lengths: Vec<usize>,
    /// The labels of each clip; may be empty.
    pub targets: Vec<Vec<u32>>,
    /// The class of a step without a label.
    pub blank: u32,
}

impl AlignedTargets {
    /// Checks that each clip has a target, that the blank and all labels are classes of the logits
    /// `[T, V]`, and that no label is the blank.
    fn check(&self, name: &str, logits: &Tensor) -> candle_core::Result<()> {
        let Self { lengths, targets, blank } = self;
        let classes = logits.dims().last().copied().unwrap_or(0);
        if lengths.len() != targets.len() {
            candle_core::bail!("{name}: {} clips but {} targets", lengths.len(), targets.len());
        }
        if *blank as usize >= classes {
            candle_core::bail!("{name}: blank {blank} is out of range for {classes} classes");
        }
        let is_invalid = |label: &&u32| *label == blank || **label as usize >= classes;
        if let Some(label) = targets.iter().flatten().find(is_invalid) {
            candle_core::bail!(
                "{name}: label {label} is the blank or out of range for {classes} classes"
            );
        }
        Ok(())
    }
}
