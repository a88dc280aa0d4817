//! A data set file, read as a stream: plain or gzip, with or without a byte order mark.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;

use crate::DataError;

/// The buffer size, in bytes.
const BUFFER: usize = 1 << 18;

/// Bytes to peek at to detect the format: JSON may begin with blank lines.
const LOOKED_AT: usize = 1 << 12;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
const UTF_16: [[u8; 2]; 2] = [[0xff, 0xfe], [0xfe, 0xff]];

/// An open file. The first bytes identify gzip; the file name does not.
pub struct Input<'r> {
    pub(super) path: PathBuf,
    pub(super) reader: BufReader<Box<dyn Read + 'r>>,
    /// Bytes read from the file, before decompression.
    pub(super) taken: Rc<Cell<u64>>,
    pub(super) is_gzip: bool,
}

impl<'r> Input<'r> {
    /// Opens a file.
    ///
    /// # Errors   `Io`; as [`Input::new`]
    pub fn open(path: impl Into<PathBuf>) -> Result<Input<'static>, DataError> {
        let path = path.into();
        match File::open(&path) {
            Ok(file) => Input::new(path, file),
            Err(source) => Err(DataError::Io { path, source }),
        }
    }

    /// Reads from an open file or from bytes in memory; error messages name `path`.
    ///
    /// # Errors   `Io`, `EmptyFile`, `Gzip`; `Malformed` for UTF-16 and for data compressed twice
    pub fn new(path: impl Into<PathBuf>, reader: impl Read + 'r) -> Result<Self, DataError> {
        let path = path.into();
        let taken = Rc::new(Cell::new(0));
        let counted = Counted { reader, taken: taken.clone() };
        let (first, packed) = first_bytes(counted).map_err(|e| read_error(&path, false, e))?;
        let is_gzip = first.starts_with(&GZIP);
        let plain: Box<dyn Read + 'r> = if is_gzip {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, packed)))
        } else {
            Box::new(packed)
        };
        let (first, mut text) = first_bytes(plain).map_err(|e| read_error(&path, is_gzip, e))?;
        if first.is_empty() {
            return Err(DataError::EmptyFile { path });
        }
        let refuse = |path, reason: &str, remedy| {
            Err(DataError::Malformed { path, place: None, reason: reason.to_owned(), remedy })
        };
        if is_gzip && first.starts_with(&GZIP) {
            return refuse(path, "is gzip-compressed twice", "decompress it once with gunzip");
        }
        if UTF_16.iter().any(|mark| first.starts_with(mark)) {
            return refuse(path, "is UTF-16 text", "convert the file to UTF-8");
        }
        if first.starts_with(&BYTE_ORDER_MARK) {
            text.get_mut().0.set_position(BYTE_ORDER_MARK.len() as u64);
        }
        Ok(Self { path, reader: BufReader::with_capacity(BUFFER, Box::new(text)), taken, is_gzip })
    }

    /// Returns the first byte in the buffer that is not white space.
    pub(super) fn first_byte(&mut self) -> Result<Option<u8>, DataError> {
        match self.reader.fill_buf() {
            Ok(bytes) => Ok(bytes.iter().copied().find(|byte| !byte.is_ascii_whitespace())),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Converts a read error: a damaged gzip file gets its own error.
    pub(super) fn error(&self, source: io::Error) -> DataError {
        read_error(&self.path, self.is_gzip, source)
    }
}

/// Converts an error from reading a file.
pub(super) fn read_error(path: &Path, is_gzip: bool, source: io::Error) -> DataError {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    let path = path.to_owned();
    match source.kind() {
        UnexpectedEof | InvalidInput | InvalidData if is_gzip => {
            DataError::Gzip { path, reason: source.to_string() }
        }
        _ => DataError::Io { path, source },
    }
}

/// The bytes read so far, followed by the rest.
type Again<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// Reads at most [`LOOKED_AT`] bytes, and returns them with a reader that starts with them again.
fn first_bytes<R: Read>(mut reader: R) -> io::Result<(Vec<u8>, Again<R>)> {
    let mut first = Vec::with_capacity(LOOKED_AT);
    reader.by_ref().take(LOOKED_AT as u64).read_to_end(&mut first)?;
    Ok((first.clone(), Cursor::new(first).chain(reader)))
}

struct Counted<R> {
    reader: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.taken.set(self.taken.get() + count as u64);
        Ok(count)
    }
}
