//! Word and character error rates, equal to jiwer 4; for transcripts with sclite markup, equal to
//! sclite.
//!
//! | File | Content |
//! |---|---|
//! | [`tokens`] | words and characters as in jiwer, mapped to integers |
//! | [`alignment`] | the alignment with the fewest edits; ties are broken as in RapidFuzz |
//! | `sclite` | markup and alignment of sclite |
//! | [`counts`] | hits, substitutions, deletions, insertions, and error rates |
//! | [`read`] | references and hypotheses from files |
//! | [`report`] | the whole evaluation with intervals, breakdowns and the worst pairs |
//! | [`confusions`] | the most frequent substitutions, deletions and insertions |
//! | [`rare_words`] | the errors of rare words, apart from other errors |
//!
//! ```
//! let references = ["the cat sat", "on the mat"];
//! let hypotheses = ["the cat sat", "on a mat mat"];
//! let words = engram_eval::wer::count_word_errors(&references, &hypotheses)?;
//! assert_eq!(words.total.errors(), 2);
//! assert_eq!(words.total.error_rate(), 2.0 / 6.0);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

pub mod alignment;
pub mod confusions;
pub mod counts;
pub mod labels;
pub mod rare_words;
pub mod read;
pub mod report;
mod sclite;
pub(crate) mod text;
pub mod tokens;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::EvalError;
use alignment::{Aligner, Edit};
use counts::EditCounts;
use tokens::{TokenUnit, Vocabulary};

/// Maximum number of cells of one alignment. 200,000 by 200,000 tokens with little in common need
/// this number, and so do longer texts that are more similar. Such an alignment takes about 10 s.
const MAX_CELLS: u64 = 40_000_000_000;

/// The alignment of a hypothesis to its reference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alignment {
    /// The fewest edits, as in jiwer.
    #[default]
    Jiwer,
    /// The lowest cost, as in sclite: a substitution costs 4, a deletion or an insertion 3.
    /// Characters are always aligned as in jiwer.
    Sclite,
}

impl Alignment {
    /// Whether this is jiwer's alignment.
    pub(crate) fn is_jiwer(&self) -> bool {
        *self == Self::Jiwer
    }
}

/// The edit counts of each pair and of all pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Counts of all pairs.
    pub total: EditCounts,
    /// Counts of each pair, in order.
    pub pairs: Vec<EditCounts>,
}

/// Counts the word errors of each hypothesis against the reference with the same index, aligned as
/// in jiwer.
///
/// # Errors
/// [`EvalError::LengthMismatch`]
pub fn count_word_errors(
    references: &[impl AsRef<str> + Sync],
    hypotheses: &[impl AsRef<str> + Sync],
) -> Result<ErrorCounts, EvalError> {
    count_errors(Alignment::Jiwer, TokenUnit::Word, references, hypotheses)
}

/// Counts the errors of hypotheses in words or characters. Runs in parallel over pairs; the result
/// does not depend on the number of threads.
///
/// # Errors
/// [`EvalError::LengthMismatch`]
pub fn count_errors(
    alignment: Alignment,
    unit: TokenUnit,
    references: &[impl AsRef<str> + Sync],
    hypotheses: &[impl AsRef<str> + Sync],
) -> Result<ErrorCounts, EvalError> {
    check_equal_lengths(references.len(), hypotheses.len())?;
    let pairs: Vec<EditCounts> = references
        .par_iter()
        .zip(hypotheses)
        .with_min_len(64)
        .map_init(
            || PairAligner::new(alignment),
            |aligner, (reference, hypothesis)| {
                EditCounts::of(aligner.align(unit, reference.as_ref(), hypothesis.as_ref()))
            },
        )
        .collect();
    Ok(ErrorCounts { total: pairs.iter().copied().sum(), pairs })
}

/// Returns an error if there is not one hypothesis for each reference.
pub(crate) fn check_equal_lengths(references: usize, hypotheses: usize) -> Result<(), EvalError> {
    let error = EvalError::LengthMismatch { references, hypotheses };
    if references == hypotheses { Ok(()) } else { Err(error) }
}

/// Returns the alignment of one pair, in text order.
///
/// ```
/// use engram_eval::wer::{align, alignment::Edit, tokens::TokenUnit};
///
/// let edits = align(TokenUnit::Word, "a b c", "a x c d");
/// assert_eq!(edits, [Edit::Hit, Edit::Substitution, Edit::Hit, Edit::Insertion]);
/// ```
pub fn align(unit: TokenUnit, reference: &str, hypothesis: &str) -> Vec<Edit> {
    PairAligner::default().align(unit, reference, hypothesis).to_vec()
}

/// Aligns pairs one after the other, with reused buffers.
#[derive(Default)]
pub(crate) struct PairAligner<'a> {
    alignment: Alignment,
    edits: Vec<Edit>,
    vocabulary: Vocabulary<'a>,
    aligner: Aligner,
    reference: Vec<u32>,
    hypothesis: Vec<u32>,
}

impl<'a> PairAligner<'a> {
    pub(crate) fn new(alignment: Alignment) -> Self {
        Self { alignment, ..Self::default() }
    }

    /// Maps the tokens of a pair to integers. The vocabulary of one pair is small and stays in the
    /// cache.
    fn encode(&mut self, unit: TokenUnit, reference: &'a str, hypothesis: &'a str) {
        self.vocabulary.clear();
        self.vocabulary.encode(reference, unit, &mut self.reference);
        self.vocabulary.encode(hypothesis, unit, &mut self.hypothesis);
    }

    /// The reason why the alignment of a pair would take too long; `None` if it would not.
    fn too_long_reason(
        &mut self,
        unit: TokenUnit,
        reference: &'a str,
        hypothesis: &'a str,
    ) -> Option<String> {
        // A text never has more tokens than bytes.
        let bytes = reference.len() as u64 * hypothesis.len() as u64;
        let is_sclite = (self.alignment, unit) == (Alignment::Sclite, TokenUnit::Word);
        if bytes <= MAX_CELLS.min(sclite::MAX_CELLS as u64) {
            return None;
        }
        self.encode(unit, reference, hypothesis);
        let (reference_tokens, hypothesis_tokens) = (self.reference.len(), self.hypothesis.len());
        let vocabulary = self.vocabulary.size(unit);
        let limit = if is_sclite {
            let is_too_long = sclite::is_too_long(reference_tokens, hypothesis_tokens);
            is_too_long.then_some(sclite::MAX_CELLS as u64)
        } else {
            let is_too_long = reference_tokens as u64 * hypothesis_tokens as u64 > MAX_CELLS
                && self.aligner.estimate_cells(&self.reference, &self.hypothesis, vocabulary)
                    > MAX_CELLS;
            is_too_long.then_some(MAX_CELLS)
        }?;
        let tokens = unit.plural();
        let qualifier = if is_sclite { "" } else { ", with little in common" };
        Some(format!(
            "has {reference_tokens} and {hypothesis_tokens} {tokens}{qualifier}: needs more \
             than {limit} cells"
        ))
    }

    fn align(&mut self, unit: TokenUnit, reference: &'a str, hypothesis: &'a str) -> &[Edit] {
        self.encode(unit, reference, hypothesis);
        if (self.alignment, unit) == (Alignment::Sclite, TokenUnit::Word) {
            self.edits = sclite::align_without_markup(&self.reference, &self.hypothesis);
            return &self.edits;
        }
        let vocabulary = self.vocabulary.size(unit);
        self.aligner.align(&self.reference, &self.hypothesis, vocabulary)
    }

    /// Aligns a pair; returns the steps with their tokens, in text order.
    pub(crate) fn align_tokens(
        &mut self,
        unit: TokenUnit,
        reference: &'a str,
        hypothesis: &'a str,
    ) -> Vec<Step<'a>> {
        let [references, hypotheses] =
            [reference, hypothesis].map(|text| tokens::tokens(text, unit));
        let (mut i, mut j) = (0, 0);
        let step = |edit: &Edit| {
            let step = Step {
                edit: *edit,
                reference: if *edit == Edit::Insertion { "" } else { references[i] },
                hypothesis: if *edit == Edit::Deletion { "" } else { hypotheses[j] },
            };
            i += usize::from(*edit != Edit::Insertion);
            j += usize::from(*edit != Edit::Deletion);
            step
        };
        self.align(unit, reference, hypothesis).iter().map(step).collect()
    }
}

/// A step of an alignment: the edit, the reference token and the hypothesis token. The reference
/// token of an insertion and the hypothesis token of a deletion are empty.
pub(crate) struct Step<'a> {
    pub(crate) edit: Edit,
    pub(crate) reference: &'a str,
    pub(crate) hypothesis: &'a str,
}
