//! The pictures of a corpus as the frozen image encoder sees them: each is encoded once.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use engram_data::image::Picture;
use engram_models::ModelError;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use crate::encode::{Encoder, Prepared};
use crate::error::{Result, TrainError};
use crate::log::Progress;
use crate::recognise::embedding_scale;

/// Pictures that are decoded and encoded together.
const AT_ONCE: usize = 64;

/// The embeddings of pictures.
pub struct Gallery {
    width: usize,
    /// The row of each picture of the corpus: pictures of the same pixels share one.
    rows: Vec<usize>,
    /// `[N, E]`.
    embeddings: Vec<f32>,
}

impl Gallery {
    /// Encodes all pictures of a corpus; those that do not decode are given back with the reason.
    ///
    /// # Errors
    /// Those of encoding a picture.
    pub(super) fn of(
        corpus: &Corpus,
        encoder: &Encoder,
        progress: &Progress,
    ) -> Result<(Self, Vec<(usize, TrainError)>)> {
        let mut gallery = Self { width: encoder.width(), rows: Vec::new(), embeddings: Vec::new() };
        let mut known: HashMap<[u8; 32], usize> = HashMap::new();
        let mut broken = Vec::new();
        let places: Vec<usize> = (0..corpus.pictures()).collect();
        for places in places.chunks(AT_ONCE) {
            let decode = |place: &usize| {
                let (picture, name) = corpus.picture(*place)?;
                let hash = content_hash(&picture);
                Ok((hash, encoder.prepare_picture(&picture, &name)?))
            };
            let decoded: Vec<Result<([u8; 32], Prepared)>> =
                places.par_iter().map(decode).collect();
            let mut fresh = Vec::new();
            for (place, decoded) in places.iter().zip(decoded) {
                match decoded {
                    Err(error) => {
                        broken.push((*place, error));
                        gallery.rows.push(0);
                    }
                    Ok((hash, prepared)) => {
                        let next = known.len();
                        let row = *known.entry(hash).or_insert(next);
                        if row == next {
                            fresh.push(prepared);
                        }
                        gallery.rows.push(row);
                    }
                }
            }
            gallery.embeddings.extend(encoder.encode(&fresh.iter().collect::<Vec<_>>())?);
            progress.step(gallery.rows.len() as u64);
        }
        Ok((gallery, broken))
    }

    /// The width `E` of an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The embeddings of pictures, `[N, E]`, as the projection takes them.
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
        self.embeddings.iter().for_each(|value| hash.update(value.to_le_bytes()));
        format!("{:x}", hash.finalize())
    }
}

fn content_hash(picture: &Picture) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(picture.width().to_le_bytes());
    hash.update(picture.height().to_le_bytes());
    hash.update(picture.pixels());
    hash.finalize().into()
}
