//! Word and character error rates, equal to jiwer 4 to the last count; for texts with sclite's mark-up, to sclite.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | [`tokens`] | jiwer's words and characters, as numbers |
//! | [`alignment`] | the alignment with the fewest edits, RapidFuzz's among them |
//! | `sclite` | sclite's mark-up, and its alignment |
//! | [`counts`] | hits, substitutions, deletions, insertions, and the rates made of them |
//! | [`read`] | references and hypotheses from files |
//! | [`report`] | everything in one evaluation, with intervals, breakdowns and the worst pairs |
//! | [`confusions`], [`rare_words`] | which words are confused; the errors of rare words apart |
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

/// The largest alignment that an evaluation makes, in cells: 200,000 by 200,000 tokens with little in common, or longer
/// texts that are more alike. It takes about 10 s.
const MOST_CELLS: u64 = 40_000_000_000;

/// Which of all alignments of a hypothesis to its reference is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alignment {
    /// The one with the fewest edits, as in jiwer.
    #[default]
    Jiwer,
    /// The one that costs least where a substitution costs 4, a deletion and an insertion 3, as in sclite. Characters
    /// are aligned as in jiwer all the same.
    Sclite,
}

impl Alignment {
    /// Whether it is that of jiwer.
    pub(crate) fn is_jiwer(&self) -> bool {
        *self == Self::Jiwer
    }
}

/// The edits of each pair of texts and of all together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors {
    /// Of all pairs.
    pub total: EditCounts,
    /// Of each pair, in order.
    pub pairs: Vec<EditCounts>,
}

/// The word errors of hypotheses, each against the reference at its place.
///
/// # Errors   [`EvalError::UnequalLengths`]
pub fn measure<R, H>(references: &[R], hypotheses: &[H]) -> Result<Errors, EvalError>
where
    R: AsRef<str> + Sync,
    H: AsRef<str> + Sync,
{
    measure_by(Unit::Word, references, hypotheses)
}

/// The errors of hypotheses in words or characters. Pairs are divided among the threads; the result does not depend on
/// their number.
///
/// # Errors   [`EvalError::UnequalLengths`]
pub fn measure_by<R, H>(unit: Unit, references: &[R], hypotheses: &[H]) -> Result<Errors, EvalError>
where
    R: AsRef<str> + Sync,
    H: AsRef<str> + Sync,
{
    measure_aligned(Alignment::Jiwer, unit, references, hypotheses)
}

/// As [`measure_by`], with any alignment.
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

/// The alignment of one pair, in the order of the text.
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

/// Aligns pairs one after the other.
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

    /// Numbers the tokens of a pair. The numbers of one pair are few, and stay near the processor.
    fn number(&mut self, unit: Unit, reference: &'a str, hypothesis: &'a str) {
        self.numbering.clear();
        self.numbering.number(reference, unit, &mut self.reference);
        self.numbering.number(hypothesis, unit, &mut self.hypothesis);
    }

    /// Why a pair takes too long to align, or `None`.
    fn too_long(&mut self, unit: Unit, reference: &'a str, hypothesis: &'a str) -> Option<String> {
        // No text has more tokens than bytes.
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
        Some(format!("has {said} and {heard} {tokens}{few}: more than {most} cells to align"))
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
