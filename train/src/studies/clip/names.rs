//! Frozen unit vectors of image names: the targets of the image encoder.

use std::collections::HashSet;

use candle_core::{Device, Tensor};
use engram_infer::InferError;
use engram_infer::digest;
use engram_infer::encode::{Encoder, Item, Prepared};
use engram_models::compute::Compute;
use rand::SeedableRng;
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::error::{Result, TrainError};

/// The width of hashed-word vectors, as in common small sentence encoders.
const HASHED_WIDTH: usize = 384;

/// The vectors of names.
pub struct NameVectors {
    /// Unit vectors `[N, E]`.
    pub vectors: Tensor,
    /// The name of the text encoder that computed the vectors, or `hashed words`.
    pub source: String,
    /// The SHA-256 of the vectors.
    pub sha256: String,
}

impl NameVectors {
    /// Encodes names with the text encoder at a location, or with [`hashed_words`] if the location
    /// is empty.
    ///
    /// # Errors
    /// The errors of [`Encoder::open`]; [`InferError::Encoder`] for a model without a text encoder.
    pub fn new(names: &[&str], text_encoder: &str) -> Result<Self> {
        let (vectors, width, source) = match text_encoder {
            "" => {
                let vectors: Vec<f32> = names.iter().flat_map(|name| hashed_words(name)).collect();
                (vectors, HASHED_WIDTH, "hashed words".to_owned())
            }
            location => {
                let encoder = Encoder::open(location, &Compute::cpu())?;
                if !encoder.modalities().text {
                    let (name, reason) = (location.to_owned(), "does not encode text".to_owned());
                    return Err(InferError::Encoder { name, reason }.into());
                }
                let prepare =
                    |name: &&str| encoder.prepare(Item { text: Some(*name), image: None });
                let prepared = names.iter().map(prepare).collect::<Result<Vec<Prepared>, _>>()?;
                let vectors = encoder.encode(&prepared.iter().collect::<Vec<_>>())?;
                (vectors, encoder.width(), encoder.name().to_owned())
            }
        };
        let bytes: Vec<u8> = vectors.iter().flat_map(|value| value.to_le_bytes()).collect();
        let sha256 = digest::of_bytes(bytes);
        let vectors = Tensor::from_vec(vectors, (names.len(), width), &Device::Cpu);
        let vectors = vectors.map_err(|error| TrainError::Model(error.into()))?;
        Ok(Self { vectors, source, sha256 })
    }

    /// The width `E`.
    pub fn width(&self) -> usize {
        self.vectors.dims().last().copied().unwrap_or(0)
    }
}

/// A unit vector of a name, computed without a model. Each word and each character trigram (with
/// spaces, so that word order counts) has a random vector seeded by its hash. All words together
/// weigh as much as all trigrams. Names that share words have similar vectors; the meanings of
/// words have no effect.
pub(crate) fn hashed_words(name: &str) -> Vec<f32> {
    let name = name.to_lowercase();
    let words: HashSet<String> = name.split_whitespace().map(str::to_owned).collect();
    let padded: Vec<char> = format!(" {name} ").chars().collect();
    let trigrams: HashSet<String> =
        padded.windows(3).map(|trigram| trigram.iter().collect()).collect();
    let mut sum = vec![0.0f64; HASHED_WIDTH];
    for (kind, features) in [("word", words), ("three", trigrams)] {
        let weight = (features.len().max(1) as f64).powf(-0.5);
        let mut features: Vec<String> = features.into_iter().collect();
        // Float sums depend on the order of their terms.
        features.sort_unstable();
        for feature in features {
            let hash = Sha256::digest(format!("{kind} {feature}"));
            let mut rng = ChaCha8Rng::from_seed(hash.into());
            let uniform = Uniform::new(-1.0, 1.0).ok();
            for value in &mut sum {
                *value += weight * uniform.map_or(0.0, |uniform| uniform.sample(&mut rng));
            }
        }
    }
    let norm = sum.iter().map(|value| value * value).sum::<f64>().sqrt().max(1e-12);
    sum.into_iter().map(|value| (value / norm) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_similar_for_common_words_and_distinct_for_all_names() {
        let cosine = |a: &str, b: &str| -> f32 {
            hashed_words(a).iter().zip(hashed_words(b)).map(|(a, b)| a * b).sum()
        };
        assert!((cosine("red apple", "red apple") - 1.0).abs() < 1e-5);
        assert!(cosine("red apple", "red heart") > 0.3);
        assert!(cosine("red apple", "flag of Peru").abs() < 0.25);
        // Names with different word order have different vectors.
        assert!(cosine("woman and man", "man and woman") < 0.99);
        let bits =
            |name: &str| -> Vec<u32> { hashed_words(name).into_iter().map(f32::to_bits).collect() };
        let images = engram_data::world::images::images().expect("the embedded images");
        let vectors: HashSet<Vec<u32>> = images.iter().map(|image| bits(&image.name)).collect();
        assert_eq!(vectors.len(), images.len());
    }
}
