//! A batch of token sequences laid one after the other, without padding.

use std::sync::Arc;

use crate::error::{ModelError, Result};
use crate::kernels::{Segments, Span};

/// Packed sequences: the input of every text encoder. `T` is the number of tokens of all
/// sequences together.
#[derive(Debug, Clone)]
pub struct PackedTokens {
    /// Token ids `[T]`.
    pub ids: Arc<[u32]>,
    /// Places within the sequence `[T]`.
    pub positions: Arc<[u32]>,
    /// Segment ids (BERT's token types) `[T]`.
    pub types: Arc<[u32]>,
    /// The sequences' runs.
    pub segments: Segments,
}

impl PackedTokens {
    /// Packs sequences; places count from 0 and all types are 0.
    pub fn new<S: AsRef<[u32]>>(sequences: &[S]) -> Self {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.as_ref().len()).collect();
        let ids: Vec<u32> = sequences.iter().flat_map(|s| s.as_ref().iter().copied()).collect();
        let positions: Vec<u32> = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        Self {
            types: vec![0; ids.len()].into(),
            ids: ids.into(),
            positions: positions.into(),
            segments: Segments::packed(&lengths),
        }
    }

    /// The sequences' runs of rows.
    pub fn sequences(&self) -> &Arc<[Span]> {
        self.segments.queries()
    }

    /// Fails for a place that a table of `longest` rows does not have.
    pub(crate) fn check_positions(&self, longest: usize) -> Result<()> {
        match self.positions.iter().find(|place| **place as usize >= longest) {
            None => Ok(()),
            Some(place) => Err(ModelError::BadInput(format!(
                "a sequence of {} tokens; this encoder takes {longest}: truncate it",
                u64::from(*place) + 1
            ))),
        }
    }

    /// The number of tokens `T`.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
