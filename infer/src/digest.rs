//! SHA-256 hashes as lower-case hexadecimal digits.

use std::collections::HashSet;
use std::fs::File;
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
    let bytes = io::copy(&mut File::open(path)?, &mut hash)?;
    Ok((bytes, format!("{:x}", hash.finalize())))
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
    let hash = |path: &&Path| Ok(of_file(path).map_err(InferError::io(path))?.1);
    let hashes: Vec<String> = paths.par_iter().map(hash).collect::<Result<_>>()?;
    Ok(of_bytes(hashes.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_hashed_by_their_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let [a, b] = ["a.wav", "b.wav"].map(|name| folder.path().join(name));
        std::fs::write(&a, "music").expect("written");
        std::fs::write(&b, "noise").expect("written");
        let of = |paths: &[&Path]| of_files(paths.iter().copied());
        let before = of(&[&a, &b, &a]).expect("a hash");
        assert_eq!(before, of(&[&a, &b]).expect("a hash"));
        assert_ne!(before, of(&[&b, &a]).expect("a hash"));
        // Other content of the same size.
        std::fs::write(&b, "nOise").expect("written");
        assert_ne!(before, of(&[&a, &b]).expect("a hash"));
        std::fs::remove_file(&b).expect("removed");
        let error = of(&[&a, &b]).expect_err("is missing").to_string();
        assert!(error.contains("b.wav"), "{error}");
    }
}
