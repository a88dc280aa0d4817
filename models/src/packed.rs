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

    /// Sequences that branch: `branches` `[T]` says the branch of each token, 0 for the trunk.
    /// Branches see the trunk but not each other, and each takes its places from where the trunk
    /// ends: many sequences with a common beginning, which is computed once.
    ///
    /// # Panics
    /// If there is not one branch for each token.
    pub fn with_branches(mut self, branches: Arc<[u32]>) -> Self {
        assert_eq!(branches.len(), self.len(), "one branch for each token");
        let mut positions = Vec::with_capacity(branches.len());
        for run in self.sequences().iter() {
            let (mut trunk, mut branch, mut length) = (0, 0, 0);
            for &own in &branches[run.start..run.start + run.length] {
                if own == 0 {
                    positions.push(trunk);
                    trunk += 1;
                } else {
                    length = if own == branch { length + 1 } else { 1 };
                    branch = own;
                    positions.push(trunk + length - 1);
                }
            }
        }
        self.positions = positions.into();
        self.segments = self.segments.with_branches(branches);
        self
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
