//! Computations of several studies: ranks, means with intervals over groups, word error rates and
//! hashes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::path::Path;

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::MetricInfo;
use engram_eval::metric::mean::{mean, weighted_mean};
use engram_eval::result::Measure;
use engram_eval::wer::read::Pairs;
use engram_eval::wer::report::{WerOptions, WerReport, evaluate};
use engram_infer::digest;
use sha2::{Digest, Sha256};

use crate::checkpoint::write_file;
use crate::study::StudyResult;

/// The rank of candidate `own`, counted from 0: the number of other candidates that it does not
/// surpass. A tie counts against it, and so does NaN: if all vectors are equal, nothing is found.
pub(crate) fn rank(scores: &[f32], own: usize) -> usize {
    let is_surpassed = |score: &f32| score.partial_cmp(&scores[own]) == Some(Ordering::Less);
    let others = scores.iter().enumerate().filter(|(candidate, _)| *candidate != own);
    others.filter(|(_, score)| !is_surpassed(score)).count()
}

/// The mean of values. The interval resamples whole groups, which `unit` names.
pub(crate) fn mean_by_group<G: Eq + std::hash::Hash>(
    info: &MetricInfo,
    unit: &'static str,
    groups: &[G],
    values: &[f64],
) -> Measure {
    let resampling = Resampling::by_group(unit, groups);
    let options = BootstrapOptions::default();
    let interval = interval(&resampling, &options, |counts| weighted_mean(values, counts));
    let none = || "undefined (there is no such item)".to_owned();
    let value = (!values.is_empty()).then(|| mean(values)).ok_or_else(none);
    Measure::new(info, values.len(), value, interval)
}

/// The word error rate of hypotheses. `utterances` are ids with reference texts.
pub(crate) fn word_errors<'a>(
    utterances: impl Iterator<Item = (&'a str, &'a str)>,
    hypotheses: &'a [String],
    options: &WerOptions,
) -> StudyResult<WerReport> {
    let utterances = utterances.map(|(id, text)| (Cow::Borrowed(id), Cow::Borrowed(text)));
    let (ids, references) = utterances.unzip();
    let hypotheses = hypotheses.iter().map(|text| Cow::Borrowed(text.as_str())).collect();
    let pairs = Pairs { ids, references, hypotheses, ..Pairs::default() };
    Ok(evaluate(&pairs, options)?)
}

/// Writes lines of id, tab and text.
pub(crate) fn write_texts<'a>(
    file: &Path,
    texts: impl Iterator<Item = (&'a str, &'a str)>,
) -> StudyResult<()> {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: String = texts.map(|(id, text)| format!("{id}\t{}\n", one_line(text))).collect();
    Ok(write_file(file, lines.as_bytes())?)
}

/// The SHA-256 of the texts and the samples of clips.
pub(crate) fn hash_of_clips<'a>(clips: impl Iterator<Item = (&'a str, &'a [f32])>) -> String {
    let mut hash = Sha256::new();
    for (text, samples) in clips {
        hash.update(text);
        digest::add_floats(&mut hash, samples);
    }
    format!("{:x}", hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn ties_and_nan_count_against_a_candidate() {
        assert_eq!(rank(&[0.1, 0.9, 0.5], 1), 0);
        assert_eq!(rank(&[0.1, 0.9, 0.5], 0), 2);
        assert_eq!(rank(&[0.5, 0.5, 0.5], 1), 2);
        assert_eq!(rank(&[0.1, f32::NAN, 0.5], 1), 2);
        assert_eq!(rank(&[f32::NAN, 0.9, 0.5], 1), 1);
    }
}
