//! Word and character error rates, equal to jiwer 4; for transcripts with sclite mark-up, equal to
//! sclite.
//!
//! | File | Content |
//! |---|---|
//! | [`tokens`] | words and characters as in jiwer, mapped to integers |
//! | [`alignment`] | the alignment with the fewest edits, with RapidFuzz's tie-breaking |
//! | `sclite` | mark-up and alignment of sclite |
//! | [`counts`] | hits, substitutions, deletions, insertions, and error rates |
//! | [`read`] | references and hypotheses from files |
//! | [`report`] | the whole evaluation with intervals, breakdowns and the worst pairs |
//! | [`confusions`], [`rare_words`] | the most confused words; separate errors of rare words |
//!
//! ```
//! let references = ["the cat sat", "on the mat"];
//! let hypotheses = ["the cat sat", "on a mat mat"];
//! let words = engram_eval::wer::measure(&references, &hypotheses)?;
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
pub mod text;
pub mod tokens;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::EvalError;
use alignment::{Aligner, Edit};
use counts::EditCounts;
use tokens::{Numbering, Unit};

/// Limit of one alignment, in cells: 200,000 by 200,000 tokens with little in common, or longer
/// texts that are more similar. An alignment of this size takes about 10 s.
const MOST_CELLS: u64 = 40_000_000_000;

/// The alignment of a hypothesis to its reference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alignment {
    /// The fewest edits, as in jiwer.
    #[default]
    Jiwer,
    /// The lowest cost, where a substitution costs 4, a deletion or an insertion 3, as in sclite.
    /// Characters are always aligned as in jiwer.
    Sclite,
}

impl Alignment {
    /// Whether the alignment is that of jiwer.
    pub(crate) fn is_jiwer(&self) -> bool {
        *self == Self::Jiwer
    }
}

/// The edit counts of each pair and of all pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors {
    /// Counts of all pairs.
    pub total: EditCounts,
    /// Counts of each pair, in order.
    pub pairs: Vec<EditCounts>,
}

/// Counts the word errors of each hypothesis against the reference with the same index.
///
/// # Errors   [`EvalError::UnequalLengths`]
pub fn measure<R, H>(references: &[R], hypotheses: &[H]) -> Result<Errors, EvalError>
where
    R: AsRef<str> + Sync,
    H: AsRef<str> + Sync,
{
    measure_by(Unit::Word, references, hypotheses)
}

/// Counts the errors of hypotheses in words or characters. Runs in parallel over pairs; the result
/// does not depend on the number of threads.
///
/// # Errors   [`EvalError::UnequalLengths`]
pub fn measure_by<R, H>(unit: Unit, references: &[R], hypotheses: &[H]) -> Result<Errors, EvalError>
where
    R: AsRef<str> + Sync,
    H: AsRef<str> + Sync,
{
    measure_aligned(Alignment::Jiwer, unit, references, hypotheses)
}

/// Like [`measure_by`], with either alignment.
fn measure_aligned<R, H>(
    alignment: Alignment,
    unit: Unit,
    references: &[R],
    hypotheses: &[H],
) -> Result<Errors, EvalError>
where
    R: AsRef<str> + Sync,
    H: AsRef<str> + Sync,
{
    if references.len() != hypotheses.len() {
        return Err(EvalError::UnequalLengths {
            references: references.len(),
            hypotheses: hypotheses.len(),
        });
    }
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
    Ok(Errors { total: pairs.iter().copied().sum(), pairs })
}

/// Returns the alignment of one pair, in text order.
///
/// ```
/// use engram_eval::wer::{align, alignment::Edit, tokens::Unit};
///
/// let edits = align(Unit::Word, "a b c", "a x c d");
/// assert_eq!(edits, [Edit::Hit, Edit::Substitution, Edit::Hit, Edit::Insertion]);
/// ```
pub fn align(unit: Unit, reference: &str, hypothesis: &str) -> Vec<Edit> {
    PairAligner::default().align(unit, reference, hypothesis).to_vec()
}

/// Aligns pairs one after the other, with reused buffers.
#[derive(Default)]
struct PairAligner<'a> {
    alignment: Alignment,
    edits: Vec<Edit>,
    numbering: Numbering<'a>,
    aligner: Aligner,
    reference: Vec<u32>,
    hypothesis: Vec<u32>,
}

impl<'a> PairAligner<'a> {
    fn new(alignment: Alignment) -> Self {
        Self { alignment, ..Self::default() }
    }

    /// Maps the tokens of a pair to integers. The vocabulary of one pair is small and stays in the
    /// cache.
    fn number(&mut self, unit: Unit, reference: &'a str, hypothesis: &'a str) {
        self.numbering.clear();
        self.numbering.number(reference, unit, &mut self.reference);
        self.numbering.number(hypothesis, unit, &mut self.hypothesis);
    }

    /// The reason why the alignment of a pair would take too long, or `None`.
    fn too_long(&mut self, unit: Unit, reference: &'a str, hypothesis: &'a str) -> Option<String> {
        // A text never has more tokens than bytes.
        let bytes = reference.len() as u64 * hypothesis.len() as u64;
        let sclite = (self.alignment, unit) == (Alignment::Sclite, Unit::Word);
        if bytes <= MOST_CELLS.min(sclite::MOST_CELLS as u64) {
            return None;
        }
        self.number(unit, reference, hypothesis);
        let (said, heard) = (self.reference.len(), self.hypothesis.len());
        let vocabulary = self.numbering.vocabulary(unit);
        let most = match sclite {
            true if sclite::too_long(said, heard) => sclite::MOST_CELLS as u64,
            false if said as u64 * heard as u64 <= MOST_CELLS => return None,
            false
                if self.aligner.cells(&self.reference, &self.hypothesis, vocabulary)
                    > MOST_CELLS =>
            {
                MOST_CELLS
            }
            _ => return None,
        };
        let tokens = match unit {
            Unit::Word => "words",
            Unit::Char => "characters",
        };
        let few = if sclite { "" } else { ", with little in common" };
        Some(format!("has {said} and {heard} {tokens}{few}: needs more than {most} cells"))
    }

    fn align(&mut self, unit: Unit, reference: &'a str, hypothesis: &'a str) -> &[Edit] {
        self.number(unit, reference, hypothesis);
        if (self.alignment, unit) == (Alignment::Sclite, Unit::Word) {
            self.edits = sclite::edits(&self.reference, &self.hypothesis);
            return &self.edits;
        }
        let vocabulary = self.numbering.vocabulary(unit);
        self.aligner.align(&self.reference, &self.hypothesis, vocabulary)
    }
}
