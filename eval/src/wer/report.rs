//! The whole evaluation of an ASR model: error rates with intervals, breakdowns, worst utterances.

use std::borrow::Cow;

use engram_textfile::shortened;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::confusions::{Confusions, confusions};
use super::counts::EditCounts;
use super::rare_words::{RareWordErrors, RareWords, rare_word_errors};
use super::read::{LENGTH_REMEDY, Pairs};
use super::tokens::TokenUnit;
use super::{Alignment, ErrorCounts, PairAligner, count_errors};
use crate::bootstrap::{BootstrapOptions, Resampling, interval, intervals};
use crate::error::{EvalError, malformed};
use crate::groups::rows_by_label;
use crate::items::{Item, Statistic};
use crate::metric::{MetricInfo, Unit};
use crate::normalise::{Normaliser, without_article};
use crate::result::{Breakdown, Evaluation, Interval, Measure, SourceFile};

/// Word error rate.
pub const WER: MetricInfo = MetricInfo::lower("wer", Unit::Fraction);
/// Character error rate.
pub const CER: MetricInfo = MetricInfo::lower("cer", Unit::Fraction);
/// Match error rate.
pub const MER: MetricInfo = MetricInfo::lower("mer", Unit::Fraction);
/// Word information lost.
pub const WIL: MetricInfo = MetricInfo::lower("wil", Unit::Fraction);
/// Word information preserved.
pub const WIP: MetricInfo = MetricInfo::higher("wip", Unit::Fraction);
/// Share of utterances with an error.
pub const SENTENCE_ERROR_RATE: MetricInfo =
    MetricInfo::lower("sentence_error_rate", Unit::Fraction);

/// Options of [`evaluate`].
#[derive(Debug, Clone, Default)]
pub struct WerOptions {
    /// The unit of the primary metric, of counts and of alignments: words or characters.
    pub unit: TokenUnit,
    /// Number of resamples, confidence level and seed of the intervals.
    pub bootstrap: BootstrapOptions,
    /// The group of each pair, such as its speaker: the bootstrap draws whole groups. `None` draws
    /// single pairs.
    pub cluster: Option<Labels>,
    /// Labels of the pairs; the report has one breakdown of the primary metric for each `Labels`.
    pub by: Vec<Labels>,
    /// The definition of rare words, whose errors are counted separately; `None` for no such
    /// counts.
    pub rare_words: Option<RareWords>,
    /// Number of entries of [`WerReport::worst`].
    pub worst: usize,
    /// Number of confusions of each kind in [`WerReport::confusions`]; 0 for no confusions.
    pub confusions: usize,
    /// Whether to fill [`WerReport::items`].
    pub items: bool,
    /// The normaliser of references and hypotheses.
    pub normaliser: Normaliser,
    /// Articles that do not count at the start of a text; see [`without_article`].
    pub articles: Vec<String>,
    /// Other normalisers, for [`WerReport::normalisers`].
    pub other_normalisers: Vec<Normaliser>,
    /// The input files.
    pub sources: Vec<SourceFile>,
}

/// One label per pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Name of the kind of label, such as `speaker`.
    pub name: String,
    /// The label of each pair.
    pub of_pair: Vec<String>,
}

/// All values of an evaluation. The JSON form is [`Evaluation`] with more fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WerReport {
    /// WER (primary; CER if the unit is characters), the other rates, and the breakdowns.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// The edit counts in the chosen unit.
    pub counts: EditCounts,
    /// The alignment of words.
    #[serde(default, skip_serializing_if = "Alignment::is_jiwer")]
    pub alignment: Alignment,
    /// The number of pairs without reference words, and the number of words inserted in these pairs
    /// (or of characters, if these are the unit).
    pub empty_references: EmptyReferences,
    /// The errors of rare words and of the other words; `None` if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rare_words: Option<RareWordErrors>,
    /// The primary metric with each of [`WerOptions::other_normalisers`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub normalisers: Vec<NormaliserValue>,
    /// The most frequent confusions; `None` if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confusions: Option<Confusions>,
    /// The pairs with the most errors, worst first, without those that have no error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WorstPair>,
    /// The errors and the reference tokens of each pair, in the chosen unit; empty if
    /// [`WerOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
}

/// The primary metric with one normaliser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NormaliserValue {
    /// Name and version of the normaliser.
    pub normaliser: String,
    /// The value of the metric.
    #[serde(flatten)]
    pub measure: Measure,
}

/// Counts of the pairs whose reference has no words. The ASR model should transcribe no words
/// there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyReferences {
    /// Number of pairs without reference words.
    pub pairs: u64,
    /// Number of words, or of characters if these are the unit, inserted in these pairs. They are
    /// also in the counts of all pairs.
    pub insertions: u64,
}

/// A pair with many errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstPair {
    /// The id of the pair.
    pub id: String,
    /// The edit counts of the pair.
    pub counts: EditCounts,
    /// The reference after normalisation.
    pub reference: String,
    /// The hypothesis after normalisation.
    pub hypothesis: String,
}

/// Evaluates hypotheses against references.
///
/// # Errors
/// [`EvalError::InvalidOption`], also if the number of labels differs;
/// [`EvalError::LengthMismatch`]; [`EvalError::NothingToEvaluate`] without pairs
pub fn evaluate(pairs: &Pairs<'_>, options: &WerOptions) -> Result<WerReport, EvalError> {
    options.bootstrap.validate()?;
    if pairs.references.is_empty() && pairs.hypotheses.is_empty() {
        return Err(EvalError::NothingToEvaluate { items: "pairs" });
    }
    let rows = pairs.references.len();
    let labels = options.cluster.iter().chain(&options.by).map(|labels| labels.of_pair.len());
    for (option, value_count) in
        [("ids", pairs.ids.len())].into_iter().chain(labels.map(|n| ("labels", n)))
    {
        if value_count != rows {
            return Err(EvalError::InvalidOption {
                option,
                found: format!("{value_count} values for {rows} references"),
                expected: "one value per reference",
            });
        }
    }
    let mut normalisers = Vec::new();
    for normaliser in &options.other_normalisers {
        let scores =
            Scores::new(&*resolve_and_normalise(pairs, *normaliser, &options.articles)?, options)?;
        let measure = scores.measures(options).swap_remove(0);
        normalisers.push(NormaliserValue { normaliser: normaliser.name_and_version(), measure });
    }
    let pairs = &*resolve_and_normalise(pairs, options.normaliser, &options.articles)?;
    let scores = Scores::new(pairs, options)?;
    let Scores { words, chars, .. } = &scores;
    let (chosen, info, length_name) = match options.unit {
        TokenUnit::Word => (words, WER, "reference_words"),
        TokenUnit::Char => (chars, CER, "reference_characters"),
    };
    let mut measures = scores.measures(options);
    let breakdowns =
        options.by.iter().map(|grouping| breakdown(grouping, &info, chosen, options)).collect();
    let primary = measures.remove(0);
    let mut evaluation = Evaluation::new(primary, measures, breakdowns, options.sources.clone());
    evaluation.normaliser = options.normaliser.name_and_version();
    let counts = chosen.total;
    for (name, count) in [
        ("hits", counts.hits),
        ("substitutions", counts.substitutions),
        ("deletions", counts.deletions),
        ("insertions", counts.insertions),
        (length_name, counts.reference_tokens()),
    ] {
        evaluation.detail.insert(name.to_owned(), Value::from(count));
    }
    let rare_words = match &options.rare_words {
        Some(rare) => Some(rare_word_errors(pairs, rare)?),
        None => None,
    };
    Ok(WerReport {
        empty_references: count_empty_references(words, chosen),
        counts,
        alignment: pairs.alignment,
        rare_words,
        normalisers,
        confusions: (options.confusions > 0)
            .then(|| confusions(pairs, options.unit, options.confusions)),
        worst: worst_pairs(pairs, chosen, options.worst),
        items: if options.items { items(pairs, &info, chosen, options) } else { Vec::new() },
        evaluation,
    })
}

/// The pairs in the form in which they are compared: without markup, and normalised.
fn resolve_and_normalise<'p, 'a>(
    pairs: &'p Pairs<'a>,
    normaliser: Normaliser,
    articles: &[String],
) -> Result<Cow<'p, Pairs<'a>>, EvalError> {
    let mut resolved = Cow::Borrowed(pairs);
    if pairs.markup.references || pairs.markup.hypotheses {
        resolved = Cow::Owned(pairs.without_markup(normaliser)?);
    }
    if !articles.is_empty() {
        let resolved = resolved.to_mut();
        for text in resolved.references.iter_mut().chain(&mut resolved.hypotheses) {
            *text = Cow::Owned(without_article(text, articles).into_owned());
        }
    }
    if normaliser != Normaliser::None {
        resolved = Cow::Owned(resolved.normalised(normaliser));
    }
    check_lengths(&resolved)?;
    Ok(resolved)
}

/// Returns an error for a pair whose alignment would take too long.
fn check_lengths(pairs: &Pairs<'_>) -> Result<(), EvalError> {
    let mut aligner = PairAligner::new(pairs.alignment);
    let texts = pairs.ids.iter().zip(pairs.references.iter().zip(&pairs.hypotheses));
    for (id, (reference, hypothesis)) in texts {
        for unit in [TokenUnit::Word, TokenUnit::Char] {
            if let Some(reason) = aligner.too_long_reason(unit, reference, hypothesis) {
                let utterance = format!("utterance {}", shortened(id, 60));
                return Err(malformed(&utterance, None, reason, LENGTH_REMEDY));
            }
        }
    }
    Ok(())
}

/// The edit counts of all pairs, and the resampling of the intervals.
struct Scores {
    words: ErrorCounts,
    chars: ErrorCounts,
    resampling: Resampling,
}

impl Scores {
    fn new(pairs: &Pairs<'_>, options: &WerOptions) -> Result<Self, EvalError> {
        let (references, hypotheses) = (&pairs.references, &pairs.hypotheses);
        let measure = |unit| count_errors(pairs.alignment, unit, references, hypotheses);
        // Words and characters in parallel, so that a single long pair uses two threads.
        let (words, chars) = rayon::join(|| measure(TokenUnit::Word), || measure(TokenUnit::Char));
        Ok(Self {
            words: words?,
            chars: chars?,
            resampling: resampling(options, 0..pairs.ids.len()),
        })
    }

    /// All rates with their intervals; the error rate of the chosen unit is first.
    fn measures(&self, options: &WerOptions) -> Vec<Measure> {
        let (chosen, other) = match options.unit {
            TokenUnit::Word => ((&self.words, WER), (&self.chars, CER)),
            TokenUnit::Char => ((&self.chars, CER), (&self.words, WER)),
        };
        let pairs = chosen.0.pairs.len();
        let infos = [chosen.1, other.1, MER, WIL, WIP, SENTENCE_ERROR_RATE];
        let values = rates(chosen.0, other.0, &vec![1; pairs]);
        let intervals = intervals(&self.resampling, &options.bootstrap, |counts| {
            rates(chosen.0, other.0, counts)
        });
        let measure = |((info, value), interval): ((&MetricInfo, f64), Option<Interval>)| {
            Measure::new(info, pairs, Ok(value), interval)
        };
        infos.iter().zip(values).zip(intervals).map(measure).collect()
    }
}

/// The sampling units of some of the pairs: groups of pairs, or single pairs.
fn resampling(options: &WerOptions, pairs: impl ExactSizeIterator<Item = usize>) -> Resampling {
    match &options.cluster {
        Some(labels) => {
            let labels_of_pairs: Vec<&String> = pairs.map(|pair| &labels.of_pair[pair]).collect();
            Resampling::by_group(&labels.name, &labels_of_pairs)
        }
        None => Resampling::by_named_row("utterance", pairs.len()),
    }
}

/// The rates of a resample in which pair `i` occurs `counts[i]` times, in the order of the
/// measures.
fn rates(chosen: &ErrorCounts, other: &ErrorCounts, counts: &[u32]) -> [f64; 6] {
    let edits = EditCounts::sum(&chosen.pairs, counts);
    let (mut wrong_pairs, mut all_pairs) = (0u64, 0u64);
    for (pair, count) in chosen.pairs.iter().zip(counts) {
        all_pairs += u64::from(*count);
        wrong_pairs += u64::from(*count) * u64::from(pair.errors() > 0);
    }
    [
        edits.error_rate(),
        EditCounts::sum(&other.pairs, counts).error_rate(),
        edits.match_error_rate(),
        edits.information_lost(),
        edits.information_preserved(),
        wrong_pairs as f64 / all_pairs as f64,
    ]
}

fn breakdown(
    grouping: &Labels,
    info: &MetricInfo,
    errors: &ErrorCounts,
    options: &WerOptions,
) -> Breakdown {
    let mut groups = rows_by_label(grouping.of_pair.iter().map(String::as_str));
    groups.sort_unstable();
    let measure = |(label, rows): &(&str, Vec<usize>)| {
        let pairs: Vec<EditCounts> = rows.iter().map(|pair| errors.pairs[*pair]).collect();
        let value = pairs.iter().copied().sum::<EditCounts>().error_rate();
        let resampling = resampling(options, rows.iter().copied());
        let interval = interval(&resampling, &options.bootstrap, |counts| {
            EditCounts::sum(&pairs, counts).error_rate()
        });
        ((*label).to_owned(), Measure::new(info, pairs.len(), Ok(value), interval))
    };
    Breakdown::new(&grouping.name, info, groups.iter().map(measure).collect())
}

/// Counts the pairs without reference words, and the insertions of the chosen unit in them.
fn count_empty_references(words: &ErrorCounts, chosen: &ErrorCounts) -> EmptyReferences {
    let pairs = words.pairs.iter().zip(&chosen.pairs);
    let empty = pairs.filter(|(words, _)| words.reference_tokens() == 0);
    let insertions = empty.clone().map(|(_, pair)| pair.insertions).sum();
    EmptyReferences { pairs: empty.count() as u64, insertions }
}

/// The pairs with the most errors. Ties: the higher rate first, then the earlier pair.
fn worst_pairs(pairs: &Pairs<'_>, errors: &ErrorCounts, count: usize) -> Vec<WorstPair> {
    let mut order: Vec<usize> = (0..errors.pairs.len()).collect();
    order.retain(|pair| errors.pairs[*pair].errors() > 0);
    order.sort_by(|a, b| {
        let (a, b) = (&errors.pairs[*a], &errors.pairs[*b]);
        let by_rate = b.error_rate().total_cmp(&a.error_rate());
        b.errors().cmp(&a.errors()).then(by_rate)
    });
    order.truncate(count);
    let worst_pair = |pair: usize| WorstPair {
        id: pairs.ids[pair].to_string(),
        counts: errors.pairs[pair],
        reference: pairs.references[pair].to_string(),
        hypothesis: pairs.hypotheses[pair].to_string(),
    };
    order.into_iter().map(worst_pair).collect()
}

fn items(
    pairs: &Pairs<'_>,
    info: &MetricInfo,
    errors: &ErrorCounts,
    options: &WerOptions,
) -> Vec<Item> {
    let normaliser = options.normaliser.name_and_version();
    let item = |(pair, counts): (usize, &EditCounts)| {
        let group = options.cluster.as_ref().map(|labels| labels.of_pair[pair].as_str());
        let (numerator, denominator) = (counts.errors() as f64, counts.reference_tokens() as f64);
        let statistic = Statistic::Ratio { numerator, denominator };
        Item::new(info, &normaliser, &pairs.ids[pair], group, statistic)
    };
    errors.pairs.iter().enumerate().map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random characters.
    fn noise(seed: u64, length: usize) -> String {
        let mut random = crate::random::SplitMix64::stream(seed, 0);
        (0..length).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
    }

    #[test]
    fn insertions_in_empty_references_have_the_chosen_unit() {
        let pairs = Pairs::new(&["a cat", "", " "], &["a cat", "two dogs", "x"]).unwrap();
        for (unit, insertions) in [(TokenUnit::Word, 3), (TokenUnit::Char, 9)] {
            let options = WerOptions { unit, ..WerOptions::default() };
            let report = evaluate(&pairs, &options).unwrap();
            assert_eq!(report.empty_references, EmptyReferences { pairs: 2, insertions });
            assert_eq!(report.counts.insertions, insertions);
        }
    }

    #[test]
    fn pairs_that_need_too_many_cells_are_refused() {
        let (reference, hypothesis) = (noise(1, 400_000), noise(2, 400_000));
        let options = WerOptions { unit: TokenUnit::Char, ..WerOptions::default() };
        let pairs = Pairs::new(std::slice::from_ref(&reference), std::slice::from_ref(&hypothesis));
        let error = evaluate(&pairs.unwrap(), &options).unwrap_err().to_string();
        assert_eq!(
            error,
            "utterance 1: has 400000 and 400000 characters, with little in common: needs more than \
             40000000000 cells; divide it into shorter utterances"
        );
        // Long similar texts are accepted.
        let similar = reference.replacen("ab", "x", 400);
        let pairs = Pairs::new(std::slice::from_ref(&reference), std::slice::from_ref(&similar));
        let counts = evaluate(&pairs.unwrap(), &options).unwrap().counts;
        assert_eq!((counts.substitutions, counts.deletions), (400, 400));
    }
}
