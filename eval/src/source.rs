//! Files as bytes, unpacked where they are gzip-compressed.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::error::{EvalError, Place};

/// The first two bytes of every gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];

/// Reads all of a file; if its first bytes are those of gzip, unpacks it, whatever its name.
///
/// # Errors   [`EvalError::Read`]; [`EvalError::Malformed`] if the packed file is cut off or damaged
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, EvalError> {
    let file = || path.display().to_string();
    let bytes = fs::read(path).map_err(|source| EvalError::Read { file: file(), source })?;
    if !bytes.starts_with(&GZIP_MAGIC) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).map_err(|error| {
        EvalError::Malformed {
            place: Place::new(&file(), None),
            reason: format!("is gzip-compressed but cannot be unpacked: {error}"),
            remedy: "fetch or pack the file again",
        }
    })?;
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn packed_and_plain_files_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("captions.json");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"[1, 2]").unwrap();
        let packed = encoder.finish().unwrap();
        for (bytes, expected) in [
            (b"[1, 2]".to_vec(), b"[1, 2]".to_vec()),
            (packed.clone(), b"[1, 2]".to_vec()),
            ([packed.clone(), packed.clone()].concat(), b"[1, 2][1, 2]".to_vec()),
            (Vec::new(), Vec::new()),
        ] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read_bytes(&path).unwrap(), expected);
        }
        fs::write(&path, &packed[..packed.len() - 5]).unwrap();
        let error = read_bytes(&path).unwrap_err().to_string();
        assert!(error.contains("captions.json: is gzip-compressed but"), "{error}");
        let error = read_bytes(&folder.path().join("none")).unwrap_err();
        assert!(matches!(error, EvalError::Read { .. }));
    }
}
