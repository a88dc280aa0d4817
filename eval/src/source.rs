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

/// Bytes that a thread reads at a time.
const BLOCK: usize = 1 << 16;

/// Whole lines, at least [`BLOCK`] bytes together where there are as many, with the number of lines before them.
fn blocks(text: &str) -> Vec<(u64, &str)> {
    let mut blocks = Vec::with_capacity(text.len() / BLOCK + 1);
    let (mut rest, mut before) = (text, 0);
    while !rest.is_empty() {
        let ends = rest.as_bytes().iter().skip(BLOCK).position(|byte| *byte == b'\n');
        let (block, next) = rest.split_at(ends.map_or(rest.len(), |end| BLOCK + end + 1));
        blocks.push((before, block));
        before += block.bytes().filter(|byte| *byte == b'\n').count() as u64;
        rest = next;
    }
    blocks
}

/// The rows of a file of JSON lines, in blocks as all threads read them; blank lines are passed over. Of several faults
/// the first one is told, whatever the number of threads.
pub(crate) fn json_lines<'a, T, R>(
    file: &str,
    text: &'a str,
    make: impl Fn(u64, T) -> R + Sync,
) -> Result<Vec<Vec<R>>, EvalError>
where
    T: Deserialize<'a>,
    R: Send,
{
    let parse = |(line, row): (u64, &'a str)| {
        let parsed = serde_json::from_str(row).map_err(|error| {
            let reason = format!("is not as expected: {}", message_in_line(&error));
            let remedy = "write one JSON object a line, its texts as strings";
            EvalError::Malformed { place: Place::new(file, line), reason, remedy }
        });
        parsed.map(|Object(parsed)| make(line, parsed))
    };
    let parsed: Vec<Result<Vec<R>, EvalError>> = blocks(text)
        .into_par_iter()
        .map(|(before, block)| {
            not_blank(block).map(|(line, row)| parse((before + line, row))).collect()
        })
        .collect();
    parsed.into_iter().collect()
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

    #[derive(Deserialize)]
    struct Row {
        id: u64,
    }

    #[test]
    fn json_lines_come_in_order_with_their_numbers() {
        let mut text = String::new();
        for id in 0..30_000 {
            text += &format!("{{\"id\": {id}}}\n{}", ["", "\r\n", "  \n"][id % 3]);
        }
        assert!(text.len() > 4 * BLOCK);
        let rows = json_lines("f", &text, |line, row: Row| (line, row.id)).unwrap();
        let wanted: Vec<(u64, &str)> = not_blank(&text).collect();
        for ((line, id), (wanted_line, row)) in rows.into_iter().flatten().zip(&wanted) {
            assert_eq!((line, format!("{{\"id\": {id}}}").as_str()), (*wanted_line, *row));
        }
        let broken = text.replace("1}", "}");
        for _ in 0..20 {
            let error = json_lines("f", &broken, |_, row: Row| row.id).err().unwrap();
            assert!(error.to_string().starts_with("f:2: is not as expected"), "{error}");
        }
        assert_eq!(json_lines("f", "", |_, row: Row| row.id).unwrap().len(), 0);
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
