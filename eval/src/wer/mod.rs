//! Word and character error rates, equal to jiwer 4 to the last count.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | [`tokens`] | jiwer's words and characters, as numbers |
//! | [`alignment`] | the alignment with the fewest edits, RapidFuzz's among them |
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
pub mod text;
pub mod tokens;

use rayon::prelude::*;

use crate::error::EvalError;
use alignment::{Aligner, Edit};
use counts::EditCounts;
use tokens::{Numbering, Unit};

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
        .map_init(PairAligner::default, |aligner, (reference, hypothesis)| {
            EditCounts::of(aligner.align(unit, reference.as_ref(), hypothesis.as_ref()))
        })
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
    numbering: Numbering<'a>,
    aligner: Aligner,
    reference: Vec<u32>,
    hypothesis: Vec<u32>,
}

impl<'a> PairAligner<'a> {
    fn align(&mut self, unit: Unit, reference: &'a str, hypothesis: &'a str) -> &[Edit] {
        // The numbers of one pair are few, and stay near the processor.
        self.numbering.clear();
        self.numbering.number(reference, unit, &mut self.reference);
        self.numbering.number(hypothesis, unit, &mut self.hypothesis);
        let vocabulary = self.numbering.vocabulary(unit);
        self.aligner.align(&self.reference, &self.hypothesis, vocabulary)
    }
}
