//! ROUGE-L: the longest common subsequence of words.

use rayon::prelude::*;

use super::{CaptionCorpus, ImageCaptions};
use crate::metric::MetricInfo;

/// Name, version and direction stored with every figure.
pub const INFO: MetricInfo =
    MetricInfo { name: "rouge_l", version: 1, higher_is_better: Some(true) };

/// Weight of recall against precision.
const BETA: f64 = 1.2;

/// ROUGE-L of each image; the figure of a corpus is their mean.
///
/// Precision and recall are each the best over the references, not always of the same one. Words are what stands
/// between single spaces, so an empty caption is one empty word, and equals another empty caption.
///
/// # Source   C.-Y. Lin, 2004; pycocoevalcap `rouge/rouge.py`
pub fn rouge_l(corpus: &CaptionCorpus) -> Vec<f64> {
    corpus.images.par_iter().map_init(Vec::new, |row, image| of_image(image, row)).collect()
}

fn of_image(image: &ImageCaptions, row: &mut Vec<u32>) -> f64 {
    let hypothesis = &image.hypothesis.words;
    let (mut precision, mut recall) = (0.0_f64, 0.0_f64);
    for reference in &image.references {
        let common = f64::from(common_subsequence(hypothesis, &reference.words, row));
        precision = precision.max(common / hypothesis.len() as f64);
        recall = recall.max(common / reference.words.len() as f64);
    }
    if precision == 0.0 || recall == 0.0 {
        return 0.0;
    }
    (1.0 + BETA * BETA) * precision * recall / (recall + BETA * BETA * precision)
}

/// Length of the longest common subsequence; `row` is room to work in.
fn common_subsequence(a: &[u32], b: &[u32], row: &mut Vec<u32>) -> u32 {
    row.clear();
    row.resize(b.len() + 1, 0);
    for word in a {
        // What stood at the left in the row above.
        let mut diagonal = 0;
        for (column, other) in b.iter().enumerate() {
            let above = row[column + 1];
            row[column + 1] = if word == other { diagonal + 1 } else { above.max(row[column]) };
            diagonal = above;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::tests_data::golden;
    use super::*;
    use crate::metric::mean::mean;

    #[test]
    fn golden_values() {
        let values = rouge_l(&golden());
        let expected = [0.8714285714285713, 0.5366568914956013, 1.0];
        for (ours, expected) in values.iter().zip(expected) {
            assert!((ours - expected).abs() < 1e-15, "{ours} {expected}");
        }
        assert!((mean(&values) - 0.8026951543080575).abs() < 1e-15);
    }

    #[test]
    fn empty_equals_empty() {
        let corpus = CaptionCorpus::new(&["", "", "a"], &[[""], ["a"], [""]]).unwrap();
        assert_eq!(rouge_l(&corpus), [1.0, 0.0, 0.0]);
    }
}
