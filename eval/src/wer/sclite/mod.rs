//! sclite's markup of transcripts, and its alignment.
//!
//! | File | Content |
//! |---|---|
//! | [`markup`] | alternatives, the null word, optionally deletable words |
//! | [`lattice`] | the alignment of two lattices with the lowest cost |
//! | [`choice`] | the chosen alternatives of a pair |
//!
//! Costs and tie-breaking equal those of sclite 2.10 (SCTK 2.4.10).

mod choice;
mod lattice;
mod markup;

use super::alignment::Edit;
use lattice::{EncodedLattice, align};

pub(crate) use choice::choose;
pub(crate) use markup::{Lattice, has_markup};

/// Maximum size of an alignment, in cells: two texts of 5,800 words. It takes 128 MiB.
pub(super) const MAX_CELLS: usize = 1 << 25;

/// Whether texts with these numbers of words are too long for the alignment.
pub(crate) fn is_too_long(reference: usize, hypothesis: usize) -> bool {
    (reference + 1).saturating_mul(hypothesis + 1) > MAX_CELLS
}

/// Aligns two texts without markup.
pub(crate) fn align_without_markup(reference: &[u32], hypothesis: &[u32]) -> Vec<Edit> {
    let edit = |step| match step {
        (Some(i), Some(j)) if reference[i] == hypothesis[j] => Edit::Hit,
        (Some(_), Some(_)) => Edit::Substitution,
        (Some(_), None) => Edit::Deletion,
        (None, _) => Edit::Insertion,
    };
    align(&EncodedLattice::linear(reference), &EncodedLattice::linear(hypothesis))
        .into_iter()
        .map(edit)
        .collect()
}
