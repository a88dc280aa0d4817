//! A batch of token sequences packed one after the other, without padding.

use std::sync::Arc;

use crate::error::{ModelError, Result};
use crate::kernels::{Segments, Span};

/// Packed sequences: the input of every text encoder. `T` is the total number of tokens.
#[derive(Debug, Clone)]
pub struct PackedTokens {
    /// Token ids `[T]`.
    pub ids: Arc<[u32]>,
    /// Positions within the sequence `[T]`.
    pub positions: Arc<[u32]>,
    /// BERT's token type ids `[T]`.
    pub types: Arc<[u32]>,
    /// The spans of the sequences.
    pub segments: Segments,
}

impl PackedTokens {
    /// Packs sequences. Positions start at 0 and all types are 0.
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

    /// Splits each sequence into branches: `branches` `[T]` holds the branch of each token, and
    /// branch 0 is the shared prefix. Branches attend to the prefix but not to each other. The
    /// positions of each branch continue from the end of the prefix. So texts with the same prefix
    /// can be encoded in one sequence that has the prefix only once.
    ///
    /// # Panics
    /// If `branches` does not have one item per token.
    pub fn with_branches(mut self, branches: Arc<[u32]>) -> Self {
        assert_eq!(branches.len(), self.len(), "one branch for each token");
        let mut positions = Vec::with_capacity(branches.len());
        for span in self.sequences().iter() {
            let (mut prefix, mut branch, mut length) = (0, 0, 0);
            for &own in &branches[span.start..span.start + span.length] {
                if own == 0 {
                    positions.push(prefix);
                    prefix += 1;
                } else {
                    length = if own == branch { length + 1 } else { 1 };
                    branch = own;
                    positions.push(prefix + length - 1);
                }
            }
        }
        self.positions = positions.into();
        self.segments = self.segments.with_branches(branches);
        self
    }

    /// Returns the spans of the sequences.
    pub fn sequences(&self) -> &Arc<[Span]> {
        self.segments.queries()
    }

    /// Returns an error if a position is not below `longest`.
    pub(crate) fn check_positions(&self, longest: usize) -> Result<()> {
        match self.positions.iter().find(|position| **position as usize >= longest) {
            None => Ok(()),
            Some(position) => Err(ModelError::BadInput(format!(
                "a sequence has {} tokens, but this encoder takes at most {longest}: truncate it",
                u64::from(*position) + 1
            ))),
        }
    }

    /// Returns the number of tokens `T`.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
