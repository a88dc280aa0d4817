//! A file of image embeddings, so that later runs need not encode the images again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engram_data::DataError;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

use super::cache;
use crate::checkpoint::write_file;
use crate::digest;
use crate::encode::Encoder;
use crate::error::{Result, TrainError};

/// The SHA-256 of an image's preprocessed pixels.
pub(super) type ContentHash = [u8; 32];

/// The image embeddings of one encoder. If several runs write the file, the last one wins.
pub(super) struct EmbeddingStore {
    /// `None` without a cache folder.
    file: Option<PathBuf>,
    width: usize,
    rows: BTreeMap<ContentHash, Vec<f32>>,
    fresh: usize,
}

/// The SHA-256 of preprocessed pixels.
pub(super) fn content_hash(pixels: &[f32]) -> ContentHash {
    let mut hash = Sha256::new();
    digest::add_numbers(&mut hash, pixels);
    hash.finalize().into()
}

impl EmbeddingStore {
    /// Opens an encoder's file in a folder, which is created; an empty path disables the cache. An
    /// unreadable file is replaced, with a warning.
    pub(super) fn open(folder: &str, encoder: &Encoder) -> Result<Self> {
        let width = encoder.width();
        let mut store = Self { file: None, width, rows: BTreeMap::new(), fresh: 0 };
        if folder.is_empty() {
            return Ok(store);
        }
        let name = format!("{}.safetensors", encoder.sha256());
        let (file, known) = cache::open((folder, &name), "embeddings", |bytes| read(bytes, width))?;
        (store.file, store.rows) = (Some(file), known.unwrap_or_default());
        Ok(store)
    }

    /// Whether the store has an image's embedding.
    pub(super) fn has(&self, hash: &ContentHash) -> bool {
        self.rows.contains_key(hash)
    }

    /// The embedding of an image, `[E]`.
    pub(super) fn get(&self, hash: &ContentHash) -> Option<&[f32]> {
        self.rows.get(hash).map(Vec::as_slice)
    }

    /// Adds an embedding.
    pub(super) fn insert(&mut self, hash: ContentHash, embedding: &[f32]) {
        self.rows.insert(hash, embedding.to_vec());
        self.fresh += 1;
    }

    /// Writes the file if there are new embeddings.
    pub(super) fn save(&self) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.fresh > 0) else { return Ok(()) };
        let hashes: Vec<u8> = self.rows.keys().flatten().copied().collect();
        let values: Vec<u8> = self.rows.values().flatten().flat_map(|v| v.to_le_bytes()).collect();
        let rows = self.rows.len();
        let write = || {
            let hashes = TensorView::new(Dtype::U8, vec![rows, 32], &hashes)?;
            let values = TensorView::new(Dtype::F32, vec![rows, self.width], &values)?;
            safetensors::serialize([("hashes", hashes), ("embeddings", values)], None)
        };
        let bytes = write().map_err(|error| {
            let (path, reason) = (file.clone(), error.to_string());
            TrainError::from(DataError::Picture { path, reason })
        })?;
        write_file(file, &bytes)
    }
}

fn read(bytes: &[u8], width: usize) -> Result<BTreeMap<ContentHash, Vec<f32>>, String> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let tensor = |name: &str| tensors.tensor(name).map_err(|error| error.to_string());
    let (hashes, values) = (tensor("hashes")?, tensor("embeddings")?);
    let rows = hashes.shape().first().copied().unwrap_or(0);
    let fits = hashes.dtype() == Dtype::U8
        && values.dtype() == Dtype::F32
        && hashes.shape() == [rows, 32]
        && values.shape() == [rows, width];
    if !fits {
        return Err(format!("does not hold hashes with embeddings of width {width}"));
    }
    let numbers = |row: &[u8]| {
        row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let rows = hashes.data().chunks_exact(32).zip(values.data().chunks_exact(4 * width.max(1)));
    let rows = rows.map(|(hash, row)| {
        let hash = hash.try_into().map_err(|_| "does not hold hashes".to_string())?;
        let row: Vec<f32> = numbers(row);
        match row.iter().all(|number| number.is_finite()) {
            true => Ok((hash, row)),
            false => Err("holds values that are not finite".to_string()),
        }
    });
    rows.collect()
}
