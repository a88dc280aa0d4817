//! Does the trained model find a picture in the memory more often than the frozen image network
//! alone? The right picture is the one that a question shows another view of, or another picture
//! with the same name.

use std::collections::{BTreeSet, HashMap};

use candle_core::{DType, Tensor};
use engram_eval::items::{Item, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::corpus::{Corpus, Example, NamedPicture};
use engram_infer::reveal::encoding::Encoding;
use engram_models::kernels::Mode;
use engram_models::reveal::{BaseStates, Reveal};
use serde::{Deserialize, Serialize};

use super::super::reports::rank;
use super::corpus::held_out_images;
use crate::Stop;
use crate::study::{Evaluation, StudyResult};

/// Views per image in [`validation_recall`].
const RECALL_VIEWS: u32 = 4;
/// Images per batch.
const IMAGES_PER_BATCH: usize = 256;

/// [`Reveal::query`] or [`Reveal::key`].
type Head = fn(&Reveal, &BaseStates, &Mode) -> engram_models::Result<Tensor>;

/// The metrics: what is searched, and the number of first places that count.
pub(super) const METRICS: [(MetricInfo, Searched, usize); 6] = [
    (fraction("image_recall_at_1"), Searched::Things, 1),
    (fraction("image_recall_at_10"), Searched::Things, 10),
    (fraction("photograph_recall_at_1"), Searched::Photographs, 1),
    (fraction("photograph_recall_at_10"), Searched::Photographs, 10),
    (fraction("drawing_recall_at_1"), Searched::Drawings, 1),
    (fraction("drawing_recall_at_10"), Searched::Drawings, 10),
];
/// The systems: the trained model, the embeddings of the frozen network (`model.mobilenet`), and
/// pictures at random.
pub(super) const SYSTEMS: [&str; 3] = ["trained", "frozen", "chance"];

const fn fraction(name: &'static str) -> MetricInfo {
    MetricInfo::higher(name, Unit::Fraction)
}

/// What is searched for the right picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Searched {
    /// The pictures in the memory, with another view of one of them.
    Things,
    /// All other photographs, with a photograph that is not in training.
    Photographs,
    /// The graphics of the embedded world, with a photograph that is not in training.
    Drawings,
}

/// How the right picture was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoundImage {
    /// The question's id, or the number of the photograph.
    pub query: i64,
    /// The image or the name whose searches are resampled together.
    pub group: String,
    /// What is searched.
    pub searched: Searched,
    /// The number of pictures before the first right one; `None` if it is not among the retrieved
    /// ones.
    pub trained: Option<usize>,
    /// The number of pictures before the first right one, ranked by the frozen network.
    pub frozen: usize,
    /// The number of right pictures.
    pub right: usize,
    /// The number of pictures that are searched.
    pub candidates: usize,
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
        FoundImage {
            query: example.id,
            group: example.group.unwrap_or(*image).to_string(),
            searched: Searched::Things,
            trained: images.iter().position(|found| found == image),
            frozen: rank(&scores(query, &keys), row_of[image]),
            right: 1,
            candidates: keys.len(),
        }
    });
    Ok(found.collect())
}

/// Searches with each photograph that is not in training: among all other photographs, and among
/// the drawings. Photographs without another picture of the same name are left out. Empty without
/// `data.things.others`, and for a model without a frozen image network.
pub(super) fn found_by_name(encoding: &Encoding, model: &Reveal) -> StudyResult<Vec<FoundImage>> {
    let corpus = &encoding.corpus;
    let Some(maps) = &corpus.maps else { return Ok(Vec::new()) };
    let pictures = &corpus.named_pictures;
    let originals: Vec<(usize, u32)> = pictures.iter().map(|picture| (picture.image, 0)).collect();
    let encode = |head| encode_images(encoding, model, &originals, head, &Stop::default());
    let (queries, keys) = (encode(Reveal::query)?, encode(Reveal::key)?);
    let frozen = maps.embeddings(&corpus.images, &originals)?;
    let is_drawing = |picture: &NamedPicture| corpus.is_graphic(picture.image);
    let mut found = Vec::new();
    for (place, query) in pictures.iter().enumerate() {
        if query.in_training || is_drawing(query) {
            continue;
        }
        for searched in [Searched::Photographs, Searched::Drawings] {
            let is_searched = |other: &usize| {
                *other != place && is_drawing(&pictures[*other]) == (searched == Searched::Drawings)
            };
            let candidates: Vec<usize> = (0..pictures.len()).filter(is_searched).collect();
            let is_right = |row: &usize| pictures[candidates[*row]].name == query.name;
            let right: Vec<usize> = (0..candidates.len()).filter(is_right).collect();
            let first = |query: &[f32], keys: &[Vec<f32>]| {
                let keys: Vec<&Vec<f32>> = candidates.iter().map(|other| &keys[*other]).collect();
                let scores = scores(query, &keys);
                right.iter().map(|row| rank(&scores, *row)).min()
            };
            let Some(by_frozen) = first(&frozen[place], &frozen) else { continue };
            found.push(FoundImage {
                query: query.image as i64,
                group: query.name.clone(),
                searched,
                trained: first(&queries[place], &keys),
                frozen: by_frozen,
                right: right.len(),
                candidates: candidates.len(),
            });
        }
    }
    Ok(found)
}

/// The recall@1 and recall@10 of validation images that no training example shows. Each query is a
/// view of such an image. The candidates are these images and all images in the memory.
pub(super) fn validation_recall(
    encoding: &Encoding,
    model: &Reveal,
    stop: &Stop,
) -> StudyResult<Evaluation> {
    let corpus = &encoding.corpus;
    let encode = |views: &[(usize, u32)], head| encode_images(encoding, model, views, head, stop);
    let held_out = held_out_images(corpus);
    // With files, an image may have no entry, and an entry's image may be missing.
    let in_memory = corpus.items.iter().filter_map(|item| item.image);
    let candidates: BTreeSet<usize> = in_memory.chain(held_out.iter().copied()).collect();
    let originals: Vec<(usize, u32)> = candidates.iter().map(|index| (*index, 0)).collect();
    let keys = encode(&originals, Reveal::key)?;
    let row_of: HashMap<usize, usize> = candidates.into_iter().zip(0..).collect();
    let views: Vec<(usize, u32)> = held_out
        .into_iter()
        .flat_map(|index| (1..=RECALL_VIEWS).map(move |view| (index, view)))
        .collect();
    let queries = encode(&views, Reveal::query)?;
    let found = queries.iter().zip(&views);
    let ranks: Vec<usize> =
        found.map(|(query, (index, _))| rank(&scores(query, &keys), row_of[index])).collect();
    let recall_at = |k: usize| {
        ranks.iter().filter(|rank| **rank < k).count() as f64 / ranks.len().max(1) as f64
    };
    Ok(Evaluation {
        metrics: vec![
            ("recall_at_1/images".to_owned(), recall_at(1)),
            ("recall_at_10/images".to_owned(), recall_at(10)),
        ],
        counts: vec![("images".to_owned(), views.len() as u64)],
    })
}

/// The vectors of views of images without text, by the query head or the key head.
fn encode_images(
    encoding: &Encoding,
    model: &Reveal,
    views: &[(usize, u32)],
    head: Head,
    stop: &Stop,
) -> StudyResult<Vec<Vec<f32>>> {
    let Encoding { corpus, sequencer, .. } = encoding;
    let mode = Mode::inference();
    let mut vectors = Vec::new();
    for views in views.chunks(IMAGES_PER_BATCH) {
        stop.check()?;
        let texts = vec![[sequencer.tokens().begin]; views.len()];
        let views: Vec<_> = views.iter().copied().map(Some).collect();
        let input = sequencer.input(corpus, &texts, &views)?;
        let encoded = head(model, &model.encode(&input, &mode)?, &mode)?;
        vectors.extend(encoded.to_dtype(DType::F32)?.to_vec2()?);
    }
    Ok(vectors)
}

/// The scalar products of a vector with keys.
fn scores<K: AsRef<[f32]>>(query: &[f32], keys: &[K]) -> Vec<f32> {
    let score = |key: &K| query.iter().zip(key.as_ref()).map(|(q, k)| q * k).sum();
    keys.iter().map(score).collect()
}

/// The index in [`METRICS`] of a metric of pictures.
pub(super) fn index_of(metric: &MetricInfo) -> Option<usize> {
    METRICS.iter().position(|(info, ..)| info == metric)
}

/// Whether a system finds the right pictures, as items of the metric `index`.
pub(super) fn items(found: &[FoundImage], index: usize, system: &str) -> Vec<Item> {
    let (metric, searched, k) = &METRICS[index];
    let of_metric = found.iter().filter(|image| image.searched == *searched);
    let item = |image: &FoundImage| {
        let value = match SYSTEMS.iter().position(|name| *name == system) {
            Some(0) => f64::from(u8::from(image.trained.is_some_and(|rank| rank < *k))),
            Some(1) => f64::from(u8::from(image.frozen < *k)),
            _ => image.chance(*k),
        };
        let (id, group) = (image.query.to_string(), &image.group);
        Item::new(metric, "", &id, Some(group), Statistic::Mean { value })
    };
    of_metric.map(item).collect()
}

impl FoundImage {
    /// The probability that a right picture is among `k` pictures at random.
    fn chance(&self, k: usize) -> f64 {
        let wrong = self.candidates - self.right;
        let none = (0..k.min(self.candidates))
            .map(|drawn| wrong.saturating_sub(drawn) as f64 / (self.candidates - drawn) as f64);
        1.0 - none.product::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_exact() {
        let found = |right, candidates| FoundImage {
            query: 0,
            group: String::new(),
            searched: Searched::Drawings,
            trained: None,
            frozen: 0,
            right,
            candidates,
        };
        assert!((found(1, 20).chance(10) - 0.5).abs() < 1e-12);
        assert!((found(2, 4).chance(2) - (1.0 - 2.0 / 4.0 * 1.0 / 3.0)).abs() < 1e-12);
        assert!((found(3, 4).chance(2) - 1.0).abs() < 1e-12);
        assert!((found(1, 4).chance(10) - 1.0).abs() < 1e-12);
    }
}
