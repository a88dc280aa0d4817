//! SHA-256 hashes as lower-case hexadecimal digits.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::error::{InferError, Result};

/// The SHA-256 of bytes in memory.
pub fn of_bytes(bytes: impl AsRef<[u8]>) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Adds floats to a hash, as little-endian bytes.
pub fn add_floats(hash: &mut Sha256, values: &[f32]) {
    values.iter().for_each(|value| hash.update(value.to_le_bytes()));
}

/// A file's size in bytes and its SHA-256.
///
/// # Errors
/// The I/O error of a file that cannot be read.
pub fn of_file(path: &Path) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let size = io::copy(&mut engram_durable::open_file(path)?, &mut hash)?;
    Ok((size, format!("{:x}", hash.finalize())))
}

/// The SHA-256 of the hashes of several files, in order. A repeated path counts once. Files are
/// read in parallel.
///
/// # Errors
/// [`InferError::Io`] if a file cannot be read.
pub fn of_files<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<String> {
    let mut paths: Vec<&Path> = paths.collect();
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(*path));
    let sha256 = |path: &&Path| Ok(of_file(path).map_err(InferError::io(path))?.1);
    let hashes: Vec<String> = paths.par_iter().map(sha256).collect::<Result<_>>()?;
    Ok(of_bytes(hashes.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_files_depends_on_content_and_order_but_not_on_repeated_paths() {
        let folder = tempfile::tempdir().expect("a folder");
        let [music, noise] = ["music.wav", "noise.wav"].map(|name| folder.path().join(name));
        std::fs::write(&music, "music").expect("written");
        std::fs::write(&noise, "noise").expect("written");
        let sha256 = |paths: &[&Path]| of_files(paths.iter().copied());
        let original = sha256(&[&music, &noise, &music]).expect("a hash");
        assert_eq!(original, sha256(&[&music, &noise]).expect("a hash"));
        assert_ne!(original, sha256(&[&noise, &music]).expect("a hash"));
        // Other content of the same size.
        std::fs::write(&noise, "nOise").expect("written");
        assert_ne!(original, sha256(&[&music, &noise]).expect("a hash"));
        std::fs::remove_file(&noise).expect("removed");
        let error = sha256(&[&music, &noise]).expect_err("a missing file").to_string();
        assert!(error.contains("noise.wav"), "{error}");
    }
}
