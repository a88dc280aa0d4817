//! The embeddings of a corpus's images by the frozen image encoder. Each image is encoded once.

use std::collections::{BTreeMap, HashMap};

use candle_core::{Device, Tensor};
use engram_models::ModelError;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use super::embedding_store::{ContentHash, EmbeddingStore, content_hash};
use crate::digest;
use crate::encode::{Encoder, Prepared};
use crate::error::{Result, TrainError};
use crate::log::Progress;
use crate::recognise::embedding_scale;

/// Images that are decoded and encoded together.
const AT_ONCE: usize = 64;

/// The embeddings of images.
pub struct Gallery {
    width: usize,
    /// The embedding row of each image of the corpus. Images with equal pixels share one.
    rows: Vec<usize>,
    /// Embeddings `[N, E]`.
    embeddings: Vec<f32>,
}

impl Gallery {
    /// Returns the embeddings of all images of a corpus that can be shown, and the images that do
    /// not decode. Embeddings missing in the store are computed.
    ///
    /// # Errors
    /// Errors of encoding an image and of writing the store.
    pub(super) fn of(
        corpus: &Corpus,
        encoder: &Encoder,
        store: &mut EmbeddingStore,
        progress: &mut Progress,
    ) -> Result<(Self, Vec<(usize, TrainError)>)> {
        let mut gallery = Self { width: encoder.width(), rows: Vec::new(), embeddings: Vec::new() };
        let mut known: HashMap<ContentHash, usize> = HashMap::new();
        let mut broken = Vec::new();
        let places: Vec<usize> = (0..corpus.num_images()).collect();
        for places in places.chunks(AT_ONCE) {
            let decode = |place: &usize| {
                let (picture, name) = corpus.image(*place)?;
                let prepared = encoder.prepare_image(&picture, &name)?;
                Ok((content_hash(prepared.pixels()), prepared))
            };
            let decoded: Vec<Result<(ContentHash, Prepared)>> =
                places.par_iter().map(decode).collect();
            let fresh: BTreeMap<ContentHash, &Prepared> = decoded
                .iter()
                .zip(places)
                .filter(|(_, place)| corpus.is_shown(**place))
                .filter_map(|(decoded, _)| decoded.as_ref().ok())
                .filter(|(hash, _)| !store.has(hash))
                .map(|(hash, prepared)| (*hash, prepared))
                .collect();
            let made = encoder.encode(&fresh.values().copied().collect::<Vec<_>>())?;
            for (hash, embedding) in fresh.into_keys().zip(made.chunks(gallery.width)) {
                store.insert(hash, embedding);
            }
            for (place, decoded) in places.iter().zip(decoded) {
                let row = match decoded {
                    Err(error @ TrainError::Data(_)) => {
                        broken.push((*place, error));
                        if corpus.stops_at_errors() {
                            return Ok((gallery, broken));
                        }
                        // Its clip is skipped.
                        0
                    }
                    Err(error) => return Err(error),
                    // It is never used.
                    Ok(_) if !corpus.is_shown(*place) => 0,
                    Ok((hash, _)) => *known.entry(hash).or_insert_with(|| {
                        gallery.embeddings.extend(store.get(&hash).unwrap_or_default());
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

    /// The width `E` of an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The embeddings of images, `[N, E]`, scaled for the projection.
    ///
    /// # Errors
    /// [`ModelError::Candle`]
    pub fn embeddings(&self, places: &[usize]) -> Result<Tensor> {
        let scale = embedding_scale(self.width);
        let mut values = Vec::with_capacity(places.len() * self.width);
        for place in places {
            let start = self.rows[*place] * self.width;
            let row = &self.embeddings[start..start + self.width];
            values.extend(row.iter().map(|value| value * scale));
        }
        let tensor = Tensor::from_vec(values, (places.len(), self.width), &Device::Cpu);
        Ok(tensor.map_err(ModelError::from)?)
    }

    /// The SHA-256 of all embeddings.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        self.rows.iter().for_each(|row| hash.update(row.to_le_bytes()));
        digest::add_numbers(&mut hash, &self.embeddings);
        format!("{:x}", hash.finalize())
    }
}
