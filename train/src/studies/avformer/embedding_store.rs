//! A file of image embeddings, so that later runs need not encode the images again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engram_infer::digest;
use engram_infer::encode::Encoder;
use sha2::{Digest, Sha256};

use super::cache;
use crate::error::Result;

/// The SHA-256 of an image's preprocessed pixels.
pub(super) type ContentHash = [u8; 32];

/// The image embeddings of one encoder.
pub(super) struct EmbeddingStore {
    /// The cache file; `None` without a cache folder.
    file: Option<PathBuf>,
    pub(super) embeddings: BTreeMap<ContentHash, Vec<f32>>,
    /// The number of embeddings that are not in the file.
    num_unsaved: usize,
}

/// The SHA-256 of preprocessed pixels.
pub(super) fn content_hash(pixels: &[f32]) -> ContentHash {
    let mut hash = Sha256::new();
    digest::add_floats(&mut hash, pixels);
    hash.finalize().into()
}

impl EmbeddingStore {
    /// Opens the cache file of an encoder, and creates the folder. An empty `folder` disables the
    /// cache. An unreadable file gives a warning; the next save replaces it.
    pub(super) fn open(folder: &str, encoder: &Encoder) -> Result<Self> {
        let width = encoder.width();
        let mut store = Self { file: None, embeddings: BTreeMap::new(), num_unsaved: 0 };
        if folder.is_empty() {
            return Ok(store);
        }
        let name = format!("{}.{width}.embeddings", encoder.sha256());
        let (file, cached) = cache::open::<Vec<ContentHash>>(folder, &name, "embeddings")?;
        store.file = Some(file);
        if let Some((hashes, values)) = cached {
            let rows = values.chunks_exact(width.max(1)).map(<[f32]>::to_vec);
            store.embeddings = hashes.into_iter().zip(rows).collect();
        }
        Ok(store)
    }

    /// Adds an embedding.
    pub(super) fn insert(&mut self, hash: ContentHash, embedding: &[f32]) {
        self.embeddings.insert(hash, embedding.to_vec());
        self.num_unsaved += 1;
    }

    /// Writes the file if there are new embeddings.
    pub(super) fn save(&self) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.num_unsaved > 0) else { return Ok(()) };
        let hashes: Vec<&ContentHash> = self.embeddings.keys().collect();
        let values: Vec<f32> = self.embeddings.values().flatten().copied().collect();
        cache::save(file, &hashes, &values)
    }
}
