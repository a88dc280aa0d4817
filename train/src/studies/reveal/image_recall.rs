//! Does the trained model find a question's picture in the memory more often than the frozen image
//! network alone?

use std::collections::HashMap;

use engram_eval::items::{Item, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::corpus::{Corpus, Example};
use serde::{Deserialize, Serialize};

use super::super::reports::rank;
use crate::study::StudyResult;

/// The fraction of questions whose own picture is the first one that is found.
pub(super) const IMAGE_RECALL_AT_1: MetricInfo =
    MetricInfo::higher("image_recall_at_1", Unit::Fraction);
/// The fraction of questions whose own picture is among the first ten.
pub(super) const IMAGE_RECALL_AT_10: MetricInfo =
    MetricInfo::higher("image_recall_at_10", Unit::Fraction);
/// The systems: the pictures of the retrieved entries, and all pictures in the memory, ranked by
/// the embeddings of the frozen network (`model.mobilenet`).
pub(super) const SYSTEMS: [&str; 2] = ["trained", "frozen"];

/// How a test question's picture was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoundImage {
    /// The question's id.
    pub question: i64,
    /// The image whose questions are resampled together.
    pub group: usize,
    /// The number of pictures before the right one among the retrieved entries; `None` if it is not
    /// among them.
    pub trained: Option<usize>,
    /// The number of pictures before the right one, ranked by the frozen network.
    pub frozen: usize,
}

/// Ranks the picture of each question. Empty for a model without a frozen image network.
pub(super) fn found_images(
    corpus: &Corpus,
    examples: &[&Example],
    answers: &Answers,
) -> StudyResult<Vec<FoundImage>> {
    let Some(maps) = &corpus.maps else { return Ok(Vec::new()) };
    let mut stored: Vec<usize> =
        corpus.items[..corpus.stored].iter().filter_map(|item| item.image).collect();
    stored.dedup();
    let originals: Vec<(usize, u32)> = stored.iter().map(|image| (*image, 0)).collect();
    let keys = maps.embeddings(&corpus.images, &originals)?;
    let row_of: HashMap<usize, usize> = stored.iter().copied().zip(0..).collect();
    let asked = examples.iter().zip(&answers.retrieved);
    let asked: Vec<(&Example, &Vec<i64>, usize)> = asked
        .filter_map(|(example, retrieved)| Some((*example, retrieved, example.image?)))
        .collect();
    let views: Vec<(usize, u32)> =
        asked.iter().map(|(example, _, image)| (*image, example.view)).collect();
    let queries = maps.embeddings(&corpus.images, &views)?;
    let found = asked.iter().zip(&queries).map(|((example, retrieved, image), query)| {
        let mut images: Vec<usize> = Vec::new();
        let retrieved = retrieved.iter().filter_map(|id| corpus.index_of(*id));
        for image in retrieved.filter_map(|index| corpus.items[index].image) {
            if !images.contains(&image) {
                images.push(image);
            }
        }
        let score = |key: &Vec<f32>| query.iter().zip(key).map(|(q, k)| q * k).sum();
        let scores: Vec<f32> = keys.iter().map(score).collect();
        FoundImage {
            question: example.id,
            group: example.group.unwrap_or(*image),
            trained: images.iter().position(|found| found == image),
            frozen: rank(&scores, row_of[image]),
        }
    });
    Ok(found.collect())
}

impl FoundImage {
    /// Whether one of [`SYSTEMS`] finds the picture, as an item of one of the two metrics.
    pub(super) fn item(&self, metric: &MetricInfo, system: &str) -> Item {
        let k = if *metric == IMAGE_RECALL_AT_1 { 1 } else { 10 };
        let rank = if system == SYSTEMS[0] { self.trained } else { Some(self.frozen) };
        let value = f64::from(u8::from(rank.is_some_and(|rank| rank < k)));
        let (id, group) = (self.question.to_string(), self.group.to_string());
        Item::new(metric, "", &id, Some(&group), Statistic::Mean { value })
    }
}
