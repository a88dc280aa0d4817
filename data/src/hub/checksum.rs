//! Checks a file's content against its etag.

use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Returns the name of an etag's hash function.
pub(super) fn hash_name(etag: &str) -> &'static str {
    if etag.len() == 64 { "SHA-256" } else { "SHA-1" }
}

/// Whether the file's hash is `etag`: the SHA-256 of large files, or the SHA-1 of small files. Git
/// hashes a small file with a prefix that holds its size; some mirrors hash the file alone.
pub(super) fn matches(path: &Path, etag: &str) -> io::Result<bool> {
    let mut file = engram_durable::open_file(path)?;
    let size = file.metadata()?.len();
    let mut chunk = vec![0; 64 << 10];
    let mut for_each_chunk = |call: &mut dyn FnMut(&[u8])| loop {
        match file.read(&mut chunk)? {
            0 => return io::Result::Ok(()),
            length => call(&chunk[..length]),
        }
    };
    if etag.len() == 64 {
        let mut hasher = Sha256::new();
        for_each_chunk(&mut |chunk| hasher.update(chunk))?;
        return Ok(format!("{:x}", hasher.finalize()) == etag);
    }
    let mut git = Sha1::new();
    git.update(format!("blob {size}\0"));
    let mut plain = Sha1::new();
    for_each_chunk(&mut |chunk| {
        git.update(chunk);
        plain.update(chunk);
    })?;
    Ok([git, plain].into_iter().any(|hasher| format!("{:x}", hasher.finalize()) == etag))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are from `git hash-object`, `sha1sum` and `sha256sum`.
    #[test]
    fn an_etag_matches_a_sha_256_a_git_sha_1_or_a_plain_sha_1() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "hello\n").unwrap();
        for (etag, expected) in [
            ("ce013625030ba8dba906f756967f9e9ca394464a", true),
            ("f572d396fae9206628714fb2ce00f72e94f2258f", true),
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03", true),
            ("0000000000000000000000000000000000000000", false),
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be04", false),
        ] {
            assert_eq!(matches(&path, etag).unwrap(), expected, "{etag}");
        }
    }
}
