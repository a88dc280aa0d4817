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
    /// Token type ids `[T]` (the segment ids of BERT).
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

    /// Adds branches, so that texts with a common prefix share its states. `branches` `[T]` holds
    /// the branch of each token; branch 0 is the shared prefix. Tokens attend to the prefix and to
    /// their own branch. The positions of each branch continue from the end of the prefix.
    ///
    /// # Panics
    /// If `branches` does not have one value per token.
    pub fn with_branches(mut self, branches: Arc<[u32]>) -> Self {
        assert_eq!(branches.len(), self.len(), "`branches` must have one value per token");
        let mut positions = Vec::with_capacity(branches.len());
        for span in self.sequences().iter() {
            let (mut prefix_length, mut branch, mut branch_length) = (0, 0, 0);
            for &token_branch in &branches[span.start..span.start + span.length] {
                if token_branch == 0 {
                    positions.push(prefix_length);
                    prefix_length += 1;
                } else {
                    branch_length = if token_branch == branch { branch_length + 1 } else { 1 };
                    branch = token_branch;
                    positions.push(prefix_length + branch_length - 1);
                }
            }
        }
        self.positions = positions.into();
        self.segments = self.segments.with_branches(branches);
        self
    }

    /// Returns the spans of the sequences.
    pub fn sequences(&self) -> &Arc<[Span]> {
        &self.segments.queries
    }

    /// Returns an error if a position is not below `max_positions`.
    pub(crate) fn check_positions(&self, max_positions: usize) -> Result<()> {
        match self.positions.iter().find(|position| **position as usize >= max_positions) {
            None => Ok(()),
            Some(position) => Err(ModelError::BadInput(format!(
                "a sequence has {} tokens, but this encoder takes at most {max_positions}: \
                 truncate it",
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
