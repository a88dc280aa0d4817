//! Reads input files whole, decompresses gzip and checks UTF-8.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use rayon::prelude::*;
use serde::Deserialize;

use crate::error::{EvalError, Location};
use crate::json::{Object, message_in_line};

/// Decompression limit: this factor times the compressed size, or `MAX_DECOMPRESSED_BYTES` bytes if
/// that is more. Text rarely compresses below 5 % of its size; a file below 0.1 % is made to exhaust
/// the memory.
const MAX_COMPRESSION_RATIO: u64 = 100;
const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;
/// Limit for a pipe or a device, whose size is unknown and may be infinite.
const MAX_PIPE_BYTES: u64 = 1 << 30;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a file; decompresses it if it begins with gzip's magic number.
///
/// # Errors   [`EvalError::Read`]; [`EvalError::Malformed`] for UTF-16 text, for a gzip file that
/// is truncated, corrupt, compressed twice or decompresses to more than 256 MiB and 100 times its
/// size, and for a pipe with more than 1 GiB
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, EvalError> {
    let file = path.display().to_string();
    let read = || -> io::Result<Option<Vec<u8>>> {
        let opened = File::open(path)?;
        if opened.metadata()?.is_file() {
            std::fs::read(path).map(Some)
        } else {
            at_most(opened, MAX_PIPE_BYTES, 0)
        }
    };
    let bytes = match read() {
        Ok(bytes) => bytes.ok_or_else(|| too_long(&file, "gives", MAX_PIPE_BYTES))?,
        Err(source) => return Err(EvalError::Read { file, source }),
    };
    let bytes = decompress(&file, bytes)?;
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let (location, reason) = (Location::new(&file, None), "is UTF-16 text".to_owned());
        return Err(EvalError::Malformed { location, reason, remedy: "convert the file to UTF-8" });
    }
    Ok(bytes)
}

/// Reads a text file like [`read_bytes`] and removes a byte order mark at the start.
///
/// # Errors   [`EvalError::Read`]; [`EvalError::Malformed`] with the line that is not UTF-8
pub fn read_text(path: &Path) -> Result<String, EvalError> {
    decode(&path.display().to_string(), read_bytes(path)?)
}

/// Decompresses a file in memory like [`read_bytes`]; `file` is its name in error messages.
///
/// # Errors   [`EvalError::Malformed`] for a gzip file that is truncated or corrupt, compressed
/// twice, or too large (see [`read_bytes`])
pub fn decompress(file: &str, bytes: Vec<u8>) -> Result<Vec<u8>, EvalError> {
    let most = (MAX_COMPRESSION_RATIO * bytes.len() as u64).max(MAX_DECOMPRESSED_BYTES);
    unpack_at_most(file, bytes, most)
}

fn unpack_at_most(file: &str, bytes: Vec<u8>, most: u64) -> Result<Vec<u8>, EvalError> {
    if !bytes.starts_with(&GZIP) {
        return Ok(bytes);
    }
    let malformed = |reason: String, remedy: &'static str| EvalError::Malformed {
        location: Location::new(file, None),
        reason,
        remedy,
    };
    // The last four bytes are the size of the last member, which is the only member of most files.
    let size = bytes.last_chunk().map_or(0, |size| u64::from(u32::from_le_bytes(*size)));
    let decompressed =
        at_most(MultiGzDecoder::new(bytes.as_slice()), most, size).map_err(|error| {
            let reason = format!("is gzip-compressed but cannot be unpacked: {error}");
            malformed(reason, "download or compress the file again")
        })?;
    let decompressed = decompressed.ok_or_else(|| too_long(file, "unpacks to", most))?;
    if decompressed.starts_with(&GZIP) {
        return Err(malformed("is gzip-compressed twice".to_owned(), "unpack it with gunzip once"));
    }
    Ok(decompressed)
}

/// Reads all bytes of a reader, about `size` bytes; `None` if there are more than `most`.
fn at_most(reader: impl Read, most: u64, size: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::with_capacity(size.min(most) as usize + 1);
    reader.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

fn too_long(file: &str, gives: &str, most: u64) -> EvalError {
    EvalError::Malformed {
        location: Location::new(file, None),
        reason: format!("{gives} more than {} MiB", most >> 20),
        remedy: "write its content to an uncompressed file and give that file",
    }
}

/// A reader that decompresses if the content begins with gzip's magic number.
///
/// # Errors   The errors of the reader
pub fn decompress_reader<'r>(mut reader: impl BufRead + 'r) -> io::Result<Box<dyn BufRead + 'r>> {
    Ok(match reader.fill_buf()?.starts_with(&GZIP) {
        true => Box::new(BufReader::new(MultiGzDecoder::new(reader))),
        false => Box::new(reader),
    })
}

/// Decodes uncompressed bytes in memory like [`read_text`]; `file` is the name in error messages.
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
            location: Location::new(file, line),
            reason: "is not UTF-8".to_owned(),
            remedy: "convert the file to UTF-8",
        }
    })
}

/// Lines with their numbers. A line end at the end of the text starts no further line.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let some = (!text.is_empty()).then(|| text.strip_suffix('\n').unwrap_or(text));
    let lines = some.into_iter().flat_map(|text| text.split('\n'));
    (1..).zip(lines.map(|line| line.strip_suffix('\r').unwrap_or(line)))
}

/// Returns an error for text of several lines that all end in `\r` (classic Mac OS), since it would
/// be read as one line.
pub(crate) fn check_line_ends(file: &str, text: &str) -> Result<(), EvalError> {
    if text.contains('\n') || !text.trim_end_matches('\r').contains('\r') {
        return Ok(());
    }
    Err(EvalError::Malformed {
        location: Location::new(file, 1),
        reason: "ends its lines with a carriage return only".to_owned(),
        remedy: "end each line with a line feed, or with carriage return and line feed",
    })
}

/// Lines that are not blank, with their numbers.
pub(crate) fn not_blank(text: &str) -> impl Iterator<Item = (u64, &str)> {
    lines(text).filter(|(_, line)| !line.trim().is_empty())
}

/// Minimum size in bytes of the block that a thread reads at a time.
const BLOCK: usize = 1 << 16;

/// Splits text into blocks of whole lines of at least [`BLOCK`] bytes (the last may be shorter).
/// Each block comes with the number of lines before it.
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

/// Parses a JSON Lines file on all threads; returns the records in blocks and skips blank lines. If
/// several lines are invalid, the error names the first, for any number of threads.
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
            let remedy = "write one JSON object per line, with texts as strings";
            EvalError::Malformed { location: Location::new(file, line), reason, remedy }
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
            // Two gzip members, as from `cat a.gz b.gz`.
            let mut encoder = flate2::write::GzEncoder::new(&mut packed, Default::default());
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.finish().unwrap();
        }
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(read_text(&path).unwrap(), "one\ntwo\n");
        for bytes in [&packed[..], b"one\ntwo\n"] {
            let mut text = String::new();
            decompress_reader(bytes).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "one\ntwo\n");
        }
        std::fs::write(&path, &packed[..packed.len() - 9]).unwrap();
        assert!(
            read_text(&path)
                .unwrap_err()
                .to_string()
                .contains("text.gz: is gzip-compressed but cannot")
        );
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        let pack = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let packed = pack(&[b'a'; 3 << 20]);
        assert_eq!(unpack_at_most("f", packed.clone(), 3 << 20).unwrap().len(), 3 << 20);
        let error = unpack_at_most("f", packed.clone(), 2 << 20).unwrap_err().to_string();
        assert!(error.starts_with("f: unpacks to more than 2 MiB; write its content"), "{error}");
        // A false size in the trailer allocates no memory.
        let mut lies = packed.clone();
        lies.splice(packed.len() - 4.., [0xff; 4]);
        assert!(decompress("f", lies).is_err());
        let error = decompress("f", pack(&packed)).unwrap_err().to_string();
        assert!(error.starts_with("f: is gzip-compressed twice; unpack it"), "{error}");
    }

    #[test]
    fn utf_16_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for bytes in [b"\xff\xfea\0", b"\xfe\xff\0a"] {
            std::fs::write(&path, bytes).unwrap();
            let error = read_text(&path).unwrap_err().to_string();
            assert!(error.ends_with("text: is UTF-16 text; convert the file to UTF-8"), "{error}");
        }
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
