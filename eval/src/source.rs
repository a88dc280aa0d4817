//! Input files: read whole, un-gzipped, checked to be UTF-8.

use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use rayon::prelude::*;
use serde::Deserialize;

use crate::error::{EvalError, Place};
use crate::json::{Object, message_in_line};

/// The bytes of a file; one that begins with gzip's magic number is unpacked.
///
/// # Errors   [`EvalError::Read`]; [`EvalError::Malformed`] for a gzip file that is cut or broken
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, EvalError> {
    let file = path.display().to_string();
    match std::fs::read(path) {
        Ok(bytes) => unpack(&file, bytes),
        Err(source) => Err(EvalError::Read { file, source }),
    }
}

/// The text of a file, as [`read_bytes`]; a byte order mark at its start is left out.
///
/// # Errors   [`EvalError::Read`]; [`EvalError::Malformed`] with the line that is not UTF-8
pub fn read_text(path: &Path) -> Result<String, EvalError> {
    decode(&path.display().to_string(), read_bytes(path)?)
}

/// [`read_bytes`] of a file in memory; `file` is its name in messages.
///
/// # Errors   [`EvalError::Malformed`] for a gzip file that is cut or broken
pub fn unpack(file: &str, bytes: Vec<u8>) -> Result<Vec<u8>, EvalError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).map_err(|error| {
        EvalError::Malformed {
            place: Place::new(file, None),
            reason: format!("is gzip-compressed but cannot be unpacked: {error}"),
            remedy: "fetch or pack the file again",
        }
    })?;
    Ok(unpacked)
}

/// [`read_text`] of unpacked bytes in memory; `file` is the name in messages.
///
/// # Errors   [`EvalError::Malformed`] with the line that is not UTF-8
pub fn decode(file: &str, mut bytes: Vec<u8>) -> Result<String, EvalError> {
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64;
        EvalError::Malformed {
            place: Place::new(file, line),
            reason: "is not UTF-8".to_owned(),
            remedy: "convert the file to UTF-8",
        }
    })
}

/// Lines with their numbers; the last line end closes a line and opens none.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let some = (!text.is_empty()).then(|| text.strip_suffix('\n').unwrap_or(text));
    let lines = some.into_iter().flat_map(|text| text.split('\n'));
    (1..).zip(lines.map(|line| line.strip_suffix('\r').unwrap_or(line)))
}

/// Refuses a text of several lines that end in `\r` alone, as on old Macs: it would be taken for a single line.
pub(crate) fn check_line_ends(file: &str, text: &str) -> Result<(), EvalError> {
    if text.contains('\n') || !text.trim_end_matches('\r').contains('\r') {
        return Ok(());
    }
    Err(EvalError::Malformed {
        place: Place::new(file, 1),
        reason: "ends its lines with a carriage return alone".to_owned(),
        remedy: "end each line with a line feed, or with both",
    })
}

/// Lines that are not blank, with their numbers.
pub(crate) fn not_blank(text: &str) -> impl Iterator<Item = (u64, &str)> {
    lines(text).filter(|(_, line)| !line.trim().is_empty())
}

/// The rows of a file of JSON lines, read by all threads; blank lines are passed over.
pub(crate) fn json_lines<'a, T, R>(
    file: &str,
    text: &'a str,
    make: impl Fn(u64, T) -> R + Sync,
) -> Result<Vec<R>, EvalError>
where
    T: Deserialize<'a>,
    R: Send,
{
    let rows: Vec<(u64, &str)> = not_blank(text).collect();
    let parse = |(line, row): (u64, &'a str)| {
        let parsed = serde_json::from_str(row).map_err(|error| {
            let reason = format!("is not as expected: {}", message_in_line(&error));
            let remedy = "write one JSON object a line, its texts as strings";
            EvalError::Malformed { place: Place::new(file, line), reason, remedy }
        });
        parsed.map(|Object(parsed)| make(line, parsed))
    };
    rows.into_par_iter().with_min_len(256).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_gzip_file_reads_as_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.gz");
        let mut packed = Vec::new();
        for part in ["one\n", "two\n"] {
            // Two members, as `cat a.gz b.gz` makes them.
            let mut encoder = flate2::write::GzEncoder::new(&mut packed, Default::default());
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.finish().unwrap();
        }
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(read_text(&path).unwrap(), "one\ntwo\n");
        std::fs::write(&path, &packed[..packed.len() - 9]).unwrap();
        assert!(
            read_text(&path)
                .unwrap_err()
                .to_string()
                .contains("text.gz: is gzip-compressed but cannot")
        );
    }

    #[test]
    fn a_line_that_is_no_utf8_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, b"\xef\xbb\xbfone\ntwo\xff\n").unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.ends_with("text:2: is not UTF-8; convert the file to UTF-8"), "{error}");
        std::fs::write(&path, b"\xef\xbb\xbfone").unwrap();
        assert_eq!(read_text(&path).unwrap(), "one");
    }

    #[test]
    fn an_empty_line_is_a_line() {
        let of = |text| lines(text).collect::<Vec<_>>();
        assert_eq!(of(""), []);
        assert_eq!(of("\n"), [(1, "")]);
        assert_eq!(of("\r\n\n"), [(1, ""), (2, "")]);
        assert_eq!(of("a\r\nb"), [(1, "a"), (2, "b")]);
    }

    #[test]
    fn line_ends_of_old_macs_are_refused() {
        for good in ["", "a", "a\r", "a\r\nb\rc\r\n", "a\n"] {
            assert!(check_line_ends("f", good).is_ok(), "{good:?}");
        }
        let error = check_line_ends("f", "a\rb\r").unwrap_err().to_string();
        assert!(error.starts_with("f:1: ends its lines with a carriage return"), "{error}");
    }
}
