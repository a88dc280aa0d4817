//! Hashes of document names. Searches compare them to exclude the entries of a document.

use sha2::{Digest, Sha256};

/// Returns the first 8 bytes of the SHA-256 of a document's name. It is never 0, because 0 means no
/// document.
pub(crate) fn document_hash(document: &str) -> u64 {
    let digest = Sha256::digest(document.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(bytes).max(1)
}
