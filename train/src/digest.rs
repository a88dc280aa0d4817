//! SHA-256 as lower-case hexadecimal digits.

use std::fs::File;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The hash of bytes in memory.
pub(crate) fn of_bytes(bytes: impl AsRef<[u8]>) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Adds numbers to a hash.
pub(crate) fn add_numbers(hash: &mut Sha256, numbers: &[f32]) {
    numbers.iter().for_each(|number| hash.update(number.to_le_bytes()));
}

/// The size in bytes and the hash of a file.
pub(crate) fn of_file(path: &Path) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let bytes = io::copy(&mut File::open(path)?, &mut hash)?;
    Ok((bytes, format!("{:x}", hash.finalize())))
}
