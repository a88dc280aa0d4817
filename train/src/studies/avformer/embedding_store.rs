//! A file of image embeddings, so that later runs need not encode the images again.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use engram_data::DataError;
use engram_infer::digest;
use engram_infer::encode::Encoder;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

use super::cache;
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};

/// The metadata key with the SHA-256 of all tensors.
const CHECKSUM: &str = "sha256";

/// The SHA-256 of an image's preprocessed pixels.
pub(super) type ContentHash = [u8; 32];

/// The image embeddings of one encoder. If several runs write the file, only the embeddings of the
/// last run remain.
pub(super) struct EmbeddingStore {
    /// The cache file; `None` without a cache folder.
    file: Option<PathBuf>,
    /// The width of an embedding.
    width: usize,
    embeddings: BTreeMap<ContentHash, Vec<f32>>,
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
        let mut store = Self { file: None, width, embeddings: BTreeMap::new(), num_unsaved: 0 };
        if folder.is_empty() {
            return Ok(store);
        }
        let name = format!("{}.safetensors", encoder.sha256());
        let (file, cached) = cache::open(folder, &name, "embeddings", |bytes| read(bytes, width))?;
        (store.file, store.embeddings) = (Some(file), cached.unwrap_or_default());
        Ok(store)
    }

    /// Whether the store has an image's embedding.
    pub(super) fn has(&self, hash: &ContentHash) -> bool {
        self.embeddings.contains_key(hash)
    }

    /// The embedding of an image, `[E]`; `None` if the store does not have it.
    pub(super) fn get(&self, hash: &ContentHash) -> Option<&[f32]> {
        self.embeddings.get(hash).map(Vec::as_slice)
    }

    /// Adds an embedding.
    pub(super) fn insert(&mut self, hash: ContentHash, embedding: &[f32]) {
        self.embeddings.insert(hash, embedding.to_vec());
        self.num_unsaved += 1;
    }

    /// Writes the file if there are new embeddings.
    pub(super) fn save(&self) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.num_unsaved > 0) else { return Ok(()) };
        let hashes: Vec<u8> = self.embeddings.keys().flatten().copied().collect();
        let values: Vec<u8> =
            self.embeddings.values().flatten().flat_map(|v| v.to_le_bytes()).collect();
        let count = self.embeddings.len();
        let write = || {
            let checksum = HashMap::from([(CHECKSUM.to_owned(), sha256(&hashes, &values))]);
            let hashes = TensorView::new(Dtype::U8, vec![count, 32], &hashes)?;
            let values = TensorView::new(Dtype::F32, vec![count, self.width], &values)?;
            safetensors::serialize([("hashes", hashes), ("embeddings", values)], Some(checksum))
        };
        let bytes = write().map_err(|error| {
            let (path, reason) = (file.clone(), error.to_string());
            TrainError::from(DataError::Image { path, reason })
        })?;
        write_file(file, &bytes)
    }
}

/// The SHA-256 of both tensors.
fn sha256(hashes: &[u8], values: &[u8]) -> String {
    format!("{:x}", Sha256::new().chain_update(hashes).chain_update(values).finalize())
}

/// Parses the file, and checks its checksum.
fn read(bytes: &[u8], width: usize) -> Result<BTreeMap<ContentHash, Vec<f32>>, String> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let tensor = |name: &str| tensors.tensor(name).map_err(|error| error.to_string());
    let (hashes, values) = (tensor("hashes")?, tensor("embeddings")?);
    let count = hashes.shape().first().copied().unwrap_or(0);
    let has_expected_tensors = hashes.dtype() == Dtype::U8
        && values.dtype() == Dtype::F32
        && hashes.shape() == [count, 32]
        && values.shape() == [count, width];
    if !has_expected_tensors {
        return Err(format!("does not hold hashes with embeddings of width {width}"));
    }
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let checksum = metadata.metadata().as_ref().and_then(|entries| entries.get(CHECKSUM));
    if checksum != Some(&sha256(hashes.data(), values.data())) {
        return Err(cache::WRONG_CHECKSUM.to_owned());
    }
    let floats = |row: &[u8]| {
        row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let embeddings =
        hashes.data().chunks_exact(32).zip(values.data().chunks_exact(4 * width.max(1)));
    let embeddings = embeddings.map(|(hash, row)| {
        let hash = hash.try_into().map_err(|_| "does not hold hashes".to_string())?;
        let row: Vec<f32> = floats(row);
        if row.iter().all(|value| value.is_finite()) {
            Ok((hash, row))
        } else {
            Err("holds values that are not finite".to_string())
        }
    });
    embeddings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_truncated_file_is_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("embeddings.safetensors");
        let embeddings = BTreeMap::from([([1; 32], vec![0.5, -2.0]), ([7; 32], vec![0.0, 3.0])]);
        let store =
            EmbeddingStore { file: Some(file.clone()), width: 2, embeddings, num_unsaved: 1 };
        store.save().expect("written");
        let bytes = std::fs::read(&file).expect("a file");
        assert_eq!(read(&bytes, 2).as_ref(), Ok(&store.embeddings));
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            let embeddings = read(&changed, 2);
            // A change of the header's padding may go unnoticed.
            assert!(
                embeddings.is_err() || embeddings.as_ref() == Ok(&store.embeddings),
                "byte {position}"
            );
            assert!(read(&bytes[..position], 2).is_err(), "cut at {position}");
        }
    }
}
