//! The embeddings of a corpus's images by the frozen image encoder. Each image is encoded once.

use std::collections::{BTreeMap, HashMap};

use candle_core::{Device, Tensor};
use engram_infer::asr::embedding_scale;
use engram_infer::digest;
use engram_infer::encode::{Encoder, Prepared};
use engram_models::ModelError;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use super::embedding_store::{ContentHash, EmbeddingStore, content_hash};
use crate::error::{Result, TrainError};
use crate::log::Progress;

/// Images that are decoded and encoded together.
const IMAGES_PER_BATCH: usize = 64;

/// The embeddings of images.
pub struct Gallery {
    /// The width `E` of an embedding.
    pub width: usize,
    /// The row in `embeddings` of each image of the corpus. Images with equal pixels share a row.
    rows: Vec<usize>,
    /// The distinct embeddings, `[rows, E]`.
    embeddings: Vec<f32>,
}

impl Gallery {
    /// The embeddings of all images of a corpus that can be shown, and the images that do not
    /// decode. Embeddings that the store does not have are computed.
    pub(super) fn of(
        corpus: &Corpus,
        encoder: &Encoder,
        store: &mut EmbeddingStore,
        progress: &mut Progress,
    ) -> Result<(Self, Vec<(usize, TrainError)>)> {
        let mut gallery = Self { width: encoder.width(), rows: Vec::new(), embeddings: Vec::new() };
        let mut row_of: HashMap<ContentHash, usize> = HashMap::new();
        let mut broken = Vec::new();
        let indices: Vec<usize> = (0..corpus.num_images()).collect();
        for indices in indices.chunks(IMAGES_PER_BATCH) {
            let decode = |index: &usize| {
                let (image, name) = corpus.image(*index)?;
                let prepared = encoder.prepare_image(&image, &name)?;
                Ok((content_hash(prepared.pixels()), prepared))
            };
            let decoded: Vec<Result<(ContentHash, Prepared)>> =
                indices.par_iter().map(decode).collect();
            let missing: BTreeMap<ContentHash, &Prepared> = decoded
                .iter()
                .zip(indices)
                .filter(|(_, index)| corpus.is_shown(**index))
                .filter_map(|(decoded, _)| decoded.as_ref().ok())
                .filter(|(hash, _)| !store.embeddings.contains_key(hash))
                .map(|(hash, prepared)| (*hash, prepared))
                .collect();
            let embeddings = encoder.encode(&missing.values().copied().collect::<Vec<_>>())?;
            for (hash, embedding) in missing.into_keys().zip(embeddings.chunks(gallery.width)) {
                store.insert(hash, embedding);
            }
            for (index, decoded) in indices.iter().zip(decoded) {
                let row = match decoded {
                    Err(error @ TrainError::Data(_)) => {
                        broken.push((*index, error));
                        if corpus.stops_at_errors() {
                            return Ok((gallery, broken));
                        }
                        // This row is never used, because the clip is skipped.
                        0
                    }
                    Err(error) => return Err(error),
                    // This row is never used, because the image is not shown.
                    Ok(_) if !corpus.is_shown(*index) => 0,
                    Ok((hash, _)) => *row_of.entry(hash).or_insert_with(|| {
                        gallery
                            .embeddings
                            .extend(store.embeddings.get(&hash).into_iter().flatten());
                        gallery.embeddings.len() / gallery.width - 1
                    }),
                };
                gallery.rows.push(row);
            }
            progress.count(gallery.rows.len() as u64);
        }
        store.save()?;
        Ok((gallery, broken))
    }

    /// The embeddings of images, `[images, E]`, scaled for the projection.
    ///
    /// # Errors
    /// [`ModelError::Candle`] if the tensor cannot be created.
    pub fn embeddings(&self, indices: &[usize]) -> Result<Tensor> {
        let scale = embedding_scale(self.width);
        let mut values = Vec::with_capacity(indices.len() * self.width);
        for index in indices {
            let start = self.rows[*index] * self.width;
            let row = &self.embeddings[start..start + self.width];
            values.extend(row.iter().map(|value| value * scale));
        }
        let tensor = Tensor::from_vec(values, (indices.len(), self.width), &Device::Cpu);
        Ok(tensor.map_err(ModelError::from)?)
    }

    /// The SHA-256 of all embeddings.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        self.rows.iter().for_each(|row| hash.update(row.to_le_bytes()));
        digest::add_floats(&mut hash, &self.embeddings);
        format!("{:x}", hash.finalize())
    }
}
