//! A text input as a stream of its uncompressed bytes: a file, standard input, or bytes in memory.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::GzDecoder;

use crate::{Location, TextError};

/// Limit on decompressed data: this factor times the compressed size, or `MAX_DECOMPRESSED_BYTES`
/// if that is more. Gzip rarely compresses text below 5 % of its size. Files that are made to
/// exhaust the memory compress to about 0.1 % of their unpacked size.
const MAX_COMPRESSION_RATIO: u64 = 100;
const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;
/// Limit of [`Input::read_bytes`] for a regular file, which may have a size without using the disk,
/// and for any other input. The size of a pipe or a device is unknown and may be infinite.
const MAX_FILE_BYTES: u64 = 8 << 30;
const MAX_PIPE_BYTES: u64 = 1 << 30;

/// The buffer size, in bytes.
const BUFFER_BYTES: usize = 1 << 18;
/// Limit on the white space at the start of a text: JSON may begin with blank lines.
const MAX_LEADING_SPACE_BYTES: u64 = 1 << 12;

/// The first bytes of gzip data.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// The byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = &[0xef, 0xbb, 0xbf];
/// The first bytes of files that are refused, with the reason and the remedy.
const REFUSED: [(&[u8], &str, &str); 11] = [
    (&[0xff, 0xfe], "is UTF-16 text", TO_UTF8),
    (&[0xfe, 0xff], "is UTF-16 text", TO_UTF8),
    (b"PK\x03\x04", "is a ZIP archive or a workbook of a spreadsheet", UNPACK_OR_SAVE),
    (&[0xd0, 0xcf, 0x11, 0xe0], "is an old workbook or document (.xls, .doc)", UNPACK_OR_SAVE),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "is xz-compressed", "unpack it with `unxz`"),
    (b"BZh", "is bzip2-compressed", "unpack it with `bunzip2`"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "is zstd-compressed", "unpack it with `unzstd`"),
    (b"\x93NUMPY", "is an array of NumPy (.npy)", "give a text file"),
    (b"PAR1", "is a Parquet file", "convert it to CSV or to JSON lines, for example with pandas"),
    (b"%PDF-", "is a PDF", "copy its text into a text file"),
    (b"\x89PNG", "is an image", "give a text file"),
];
const TO_UTF8: &str = "convert the file to UTF-8; in a spreadsheet, save it as CSV UTF-8";
const UNPACK_OR_SAVE: &str = "unpack it, or save the sheet of a workbook as CSV UTF-8";
/// The mark of a tar archive, and where it stands.
const TAR: (usize, &[u8]) = (257, b"ustar");
/// The first bytes of a Git LFS pointer. Git LFS keeps large files outside of the repository, so
/// a clone without it has a pointer, a short text, in the place of each large file.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1";
/// A Git LFS pointer has fewer bytes.
const MAX_LFS_POINTER_BYTES: u64 = 1024;

/// An open text input. Reading it returns uncompressed bytes without a byte order mark.
///
/// Gzip data may unpack to 256 MiB, or to 100 times their compressed size if that is more.
pub struct Input<'r> {
    file: String,
    reader: Box<dyn BufRead + 'r>,
    is_gzip: bool,
    /// Size in bytes of a regular file; `None` for any other input.
    size: Option<u64>,
}

impl<'r> Input<'r> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`TextError::Read`]; [`TextError::Malformed`] for a folder; as [`Input::new`]
    pub fn open(path: impl AsRef<Path>) -> Result<Input<'static>, TextError> {
        let path = path.as_ref();
        if path.is_dir() {
            let remedy = "give the path of a file in it";
            return Err(TextError::malformed(path, None, "is a folder, not a file", remedy));
        }
        let result = engram_durable::open_input(path).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, file) = result.map_err(|error| read_error(&name(path), false, error))?;
        let size = metadata.is_file().then_some(metadata.len());
        Ok(Input { size, ..Input::new(path, file)? })
    }

    /// Opens standard input.
    ///
    /// # Errors
    /// as [`Input::new`]
    pub fn stdin() -> Result<Input<'static>, TextError> {
        Input::new("standard input", io::stdin().lock())
    }

    /// Reads from an open file or from bytes in memory; error messages name `file`.
    ///
    /// # Errors
    /// [`TextError::Read`]; [`TextError::Malformed`] for damaged gzip data, data
    /// compressed twice, UTF-16, and files that are no text, such as archives and workbooks
    pub fn new(file: impl AsRef<Path>, reader: impl Read + 'r) -> Result<Self, TextError> {
        Self::with_limit(file.as_ref(), reader, MAX_DECOMPRESSED_BYTES)
    }

    fn with_limit(file: &Path, reader: impl Read + 'r, limit: u64) -> Result<Self, TextError> {
        let file = name(file);
        let compressed_bytes = Rc::new(Cell::new(0));
        let counting_reader = CountingReader { reader, compressed_bytes: compressed_bytes.clone() };
        let raw_reader = BufReader::with_capacity(BUFFER_BYTES, counting_reader);
        let (mut first, mut is_tar, raw_reader) =
            first_bytes(raw_reader).map_err(|error| read_error(&file, false, error))?;
        let is_gzip = first.starts_with(GZIP);
        let mut reader: Box<dyn BufRead + 'r> = Box::new(raw_reader);
        if is_gzip {
            let limited = LimitedReader {
                reader: GzipMembers(GzDecoder::new(reader)),
                decompressed_bytes: 0,
                compressed_bytes,
                limit,
            };
            let text = first_bytes(BufReader::with_capacity(BUFFER_BYTES, limited));
            let text = text.map_err(|error| read_error(&file, true, error))?;
            (first, is_tar, reader) = (text.0, text.1, Box::new(text.2));
        }
        let refuse = |reason: &str, remedy| Err(TextError::malformed(&file, None, reason, remedy));
        if is_gzip && first.starts_with(GZIP) {
            return refuse("is gzip-compressed twice", "unpack it with gunzip once");
        }
        if is_tar {
            return refuse("is a tar archive", "unpack it with `tar -xf`, and give a file of it");
        }
        if let Some((_, reason, remedy)) = REFUSED.iter().find(|(mark, ..)| first.starts_with(mark))
        {
            return refuse(reason, remedy);
        }
        refuse_lfs_pointer(&file, &first)?;
        if first.starts_with(BYTE_ORDER_MARK) {
            reader.consume(BYTE_ORDER_MARK.len());
        }
        Ok(Self { file, reader, is_gzip, size: None })
    }

    /// Returns the name of the file in error messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the first byte that is not white space. The read position does not change.
    ///
    /// # Errors
    /// [`TextError::Empty`] if the file, or its first 4 KiB, has only white space; as
    /// [`Input::error`]
    pub fn first_byte(&mut self) -> Result<u8, TextError> {
        let mut start = Vec::new();
        let mut first_byte = None;
        let mut bytes = self.reader.by_ref().take(MAX_LEADING_SPACE_BYTES).bytes();
        while first_byte.is_none()
            && let Some(byte) = bytes.next()
        {
            let byte = byte.map_err(|error| read_error(&self.file, self.is_gzip, error))?;
            start.push(byte);
            first_byte = (!byte.is_ascii_whitespace()).then_some(byte);
        }
        let reader = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        self.reader = Box::new(Cursor::new(start).chain(reader));
        first_byte.ok_or_else(|| TextError::Empty { file: self.file.clone() })
    }

    /// Reads all bytes.
    ///
    /// # Errors
    /// as [`Input::error`]; [`TextError::Malformed`] for a file of more than 8 GiB, and for more
    /// than 1 GiB from an input that is not a regular file
    pub fn read_bytes(mut self) -> Result<Vec<u8>, TextError> {
        let (limit, remedy) = match self.size {
            Some(_) => (MAX_FILE_BYTES, "check that this is the right file, or split it"),
            None => (MAX_PIPE_BYTES, DECOMPRESS_REMEDY),
        };
        let mut bytes = Vec::new();
        let size = self.size.unwrap_or(0);
        if size <= limit {
            let reserved = bytes.try_reserve_exact(size as usize + 1);
            reserved.map_err(|_| self.error(io::ErrorKind::OutOfMemory.into()))?;
            let result = self.reader.by_ref().take(limit + 1).read_to_end(&mut bytes);
            result.map_err(|error| self.error(error))?;
        }
        if size > limit || bytes.len() as u64 > limit {
            let reason = format!("has more than {} MiB", limit >> 20);
            return Err(TextError::malformed(self.file, None, reason, remedy));
        }
        Ok(bytes)
    }

    /// Converts an I/O error from reading this input: to [`TextError::Malformed`] for gzip data
    /// that are damaged or exceed the limit, otherwise to [`TextError::Read`].
    pub fn error(&self, source: io::Error) -> TextError {
        read_error(&self.file, self.is_gzip, source)
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }
}

/// Reads all bytes of a file, uncompressed and without a byte order mark.
///
/// # Errors
/// as [`Input::open`] and [`Input::read_bytes`]
pub fn read_bytes(path: impl AsRef<Path>) -> Result<Vec<u8>, TextError> {
    Input::open(path)?.read_bytes()
}

/// Returns the folder to which paths inside `file` are relative: the folder of `file`, or the
/// current folder if `file` is in `/dev`, such as `/dev/stdin`.
pub fn base_folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.starts_with("/dev") => folder,
        _ => Path::new(""),
    }
}

/// Reads a whole text file.
///
/// # Errors
/// as [`read_bytes`]; [`TextError::NotUtf8`]; [`TextError::Empty`] for an empty file
pub fn read_text(path: impl AsRef<Path>) -> Result<String, TextError> {
    let file = name(path.as_ref());
    let text = decode(&file, read_bytes(path)?)?;
    if text.is_empty() { Err(TextError::Empty { file }) } else { Ok(text) }
}

/// Decodes uncompressed bytes and removes a byte order mark; `file` is the name in error messages.
///
/// # Errors
/// [`TextError::NotUtf8`] with the first line that is not UTF-8
pub fn decode(file: &str, mut bytes: Vec<u8>) -> Result<String, TextError> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count() as u64;
        TextError::NotUtf8 { location: Location::new(file, line) }
    })
}

/// The remedy for an input above its size limit: uncompressed files have a larger one.
const DECOMPRESS_REMEDY: &str = "write its content to an uncompressed file and use that file";

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn read_error(file: &str, is_gzip: bool, source: io::Error) -> TextError {
    use io::ErrorKind::{FileTooLarge, InvalidData, InvalidInput, UnexpectedEof};
    match source.kind() {
        FileTooLarge if is_gzip => {
            TextError::malformed(file, None, source.to_string(), DECOMPRESS_REMEDY)
        }
        UnexpectedEof | InvalidInput | InvalidData if is_gzip => {
            let reason = format!("is gzip-compressed but cannot be unpacked: {source}");
            TextError::malformed(file, None, reason, "download or compress the file again")
        }
        _ => TextError::Read { file: file.to_owned(), source },
    }
}

/// Refuses a Git LFS pointer in the place of a file. `start` has the file's first bytes, at least
/// 42 if it has so many.
///
/// # Errors
/// [`TextError::Malformed`]
pub fn refuse_lfs_pointer(file: impl AsRef<Path>, start: &[u8]) -> Result<(), TextError> {
    if !start.starts_with(LFS_POINTER) {
        return Ok(());
    }
    let reason = "is a Git LFS pointer, not the file itself";
    Err(TextError::malformed(file, None, reason, "run `git lfs pull` in the folder of the clone"))
}

/// Like [`refuse_lfs_pointer`], for a path. A path that cannot be read is left to its reader.
///
/// # Errors
/// as [`refuse_lfs_pointer`]
pub fn refuse_lfs_pointer_at(path: &Path) -> Result<(), TextError> {
    let metadata = std::fs::metadata(path);
    if !metadata.is_ok_and(|data| data.is_file() && data.len() < MAX_LFS_POINTER_BYTES) {
        return Ok(());
    }
    refuse_lfs_pointer(path, &engram_durable::read_file(path).unwrap_or_default())
}

/// Returns the first bytes, which identify the format, whether they begin a tar archive, and a
/// reader that starts with these bytes again. Only bytes that agree with a format mark are read,
/// because a pipe may have no more yet.
fn first_bytes<R: Read>(mut reader: BufReader<R>) -> io::Result<(Vec<u8>, bool, impl BufRead)> {
    let marks = REFUSED.iter().map(|(mark, ..)| *mark);
    let marks: Vec<&[u8]> = marks.chain([GZIP, BYTE_ORDER_MARK, LFS_POINTER]).collect();
    let mut first = Vec::new();
    while marks.iter().any(|mark| mark.len() > first.len() && mark.starts_with(&first))
        && reader.by_ref().take(1).read_to_end(&mut first)? > 0
    {}
    let is_tar =
        reader.buffer().get(TAR.0 - first.len()..).is_some_and(|rest| rest.starts_with(TAR.1));
    Ok((first.clone(), is_tar, Cursor::new(first).chain(reader)))
}

/// A reader of gzip members, one after the other. It passes over zero bytes after a member: tapes
/// and some object stores fill their last block with them.
struct GzipMembers<'r>(GzDecoder<Box<dyn BufRead + 'r>>);

impl Read for GzipMembers<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.0.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let mut rest = std::mem::replace(self.0.get_mut(), Box::new(io::empty()));
            while rest.fill_buf()?.first() == Some(&0) {
                rest.consume(1);
            }
            if rest.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.0.reset(rest);
        }
    }
}

/// A reader that counts the compressed bytes read.
struct CountingReader<R> {
    reader: R,
    compressed_bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.compressed_bytes.set(self.compressed_bytes.get() + count as u64);
        Ok(count)
    }
}

/// A reader that returns an error when the decompressed data exceed the limit.
struct LimitedReader<R> {
    reader: R,
    /// Decompressed bytes returned so far.
    decompressed_bytes: u64,
    /// Compressed bytes read so far.
    compressed_bytes: Rc<Cell<u64>>,
    limit: u64,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.decompressed_bytes > self.limit
            && self.decompressed_bytes / MAX_COMPRESSION_RATIO > self.compressed_bytes.get()
        {
            let reason = format!(
                "unpacks to more than {} MiB and {MAX_COMPRESSION_RATIO} times its size",
                self.limit >> 20
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        let count = self.reader.read(buffer)?;
        self.decompressed_bytes += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn text(bytes: &[u8]) -> Result<String, String> {
        let bytes = Input::new("f", bytes).and_then(Input::read_bytes);
        bytes.and_then(|bytes| decode("f", bytes)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gzip_file_reads_as_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.gz");
        // Two gzip members, as from `cat a.gz b.gz`.
        let packed = [gzip(b"\xef\xbb\xbfone\n"), gzip(b"two\n")].concat();
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(read_text(&path).unwrap(), "one\ntwo\n");
        let padded = [gzip(b"one\n"), vec![0; 3], gzip(b"two\n"), vec![0; 1 << 19]].concat();
        assert_eq!(text(&padded).unwrap(), "one\ntwo\n");
        assert!(text(&[&padded[..], b"more"].concat()).is_err());
        std::fs::write(&path, &packed[..packed.len() - 9]).unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("text.gz: is gzip-compressed but cannot be unpacked"), "{error}");
        let error = text(&gzip(&packed)).unwrap_err();
        assert_eq!(error, "f: is gzip-compressed twice; unpack it with gunzip once");
    }

    #[test]
    fn a_gzip_file_above_the_limit_is_refused() {
        let packed = gzip(&[b'a'; 3 << 20]);
        let read_with_limit = |mib: u64| {
            let input = Input::with_limit(Path::new("f"), &*packed, mib << 20);
            input.and_then(Input::read_bytes).map(|bytes| bytes.len())
        };
        assert_eq!(read_with_limit(3).unwrap(), 3 << 20);
        let error = read_with_limit(2).unwrap_err().to_string();
        assert!(error.starts_with("f: unpacks to more than 2 MiB and 100 times its size; write"));
        // A false size in the gzip trailer does not allocate memory.
        let mut with_false_size = packed.clone();
        with_false_size.splice(packed.len() - 4.., [0xff; 4]);
        assert!(text(&with_false_size).is_err());
    }

    #[test]
    fn encodings_other_than_utf8_are_named() {
        for bytes in [b"\xff\xfea\0", b"\xfe\xff\0a"] {
            let error = text(bytes).unwrap_err();
            assert!(error.starts_with("f: is UTF-16 text; convert the file to UTF-8"), "{error}");
        }
        let tar = [&[b'a'; 257][..], b"ustar\x0000"].concat();
        for (bytes, kind) in [
            (&b"PK\x03\x04x"[..], "a ZIP archive or a workbook"),
            (b"\xd0\xcf\x11\xe0\xa1\xb1", "an old workbook"),
            (b"\xfd7zXZ\0", "xz-compressed; unpack it with `unxz`"),
            (b"BZh91AY", "bzip2-compressed; unpack it with `bunzip2`"),
            (b"\x28\xb5\x2f\xfd\x04", "zstd-compressed; unpack it with `unzstd`"),
            (b"\x93NUMPY\x01\0", "an array of NumPy"),
            (b"PAR1\x15", "a Parquet file; convert it to CSV or to JSON lines"),
            (b"%PDF-1.7\n", "a PDF"),
            (&tar, "a tar archive; unpack it with `tar -xf`"),
            (&gzip(&tar), "a tar archive; unpack it with `tar -xf`"),
        ] {
            let error = text(bytes).unwrap_err();
            assert!(error.starts_with(&format!("f: is {kind}")), "{error}");
        }
        let folder = Input::open(std::env::temp_dir()).err().unwrap().to_string();
        assert!(folder.contains("is a folder, not a file; give the path of"), "{folder}");
        assert_eq!(text(b"PK\x03").unwrap(), "PK\x03");
        let error = text(b"\xef\xbb\xbfone\ntwo\xff\n").unwrap_err();
        assert_eq!(error, "f:2: is not UTF-8; convert the file to UTF-8");
        assert_eq!(text(b"\xef\xbb\xbfone").unwrap(), "one");
        for short_text in [&b""[..], b"\xef\xbb\xbf", b"e", b"\xc3\xa9"] {
            assert!(text(short_text).is_ok(), "{short_text:?}");
        }
    }

    #[test]
    fn a_git_lfs_pointer_is_refused_by_name() {
        let pointer = [LFS_POINTER, b"\noid sha256:bb\nsize 6219\n"].concat();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, &pointer).unwrap();
        for error in [
            text(&pointer).unwrap_err(),
            text(&gzip(&pointer)).unwrap_err(),
            read_text(&path).unwrap_err().to_string(),
            refuse_lfs_pointer_at(&path).unwrap_err().to_string(),
        ] {
            assert!(error.contains("f: is a Git LFS pointer") && error.contains("git lfs pull"));
        }
        assert_eq!(text(b"version https://example.org\n").unwrap().len(), 28);
        refuse_lfs_pointer_at(folder.path()).unwrap();
    }

    #[test]
    fn files_without_content_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for blank in ["", "\u{feff}", " \r\n", "\u{feff}\n"] {
            std::fs::write(&path, blank).unwrap();
            // A blank line is a text, such as an empty transcript.
            assert_eq!(read_text(&path).is_ok(), blank.contains('\n'), "{blank:?}");
            let mut input = Input::open(&path).unwrap();
            assert!(matches!(input.first_byte().unwrap_err(), TextError::Empty { .. }));
        }
        // A file that takes no room on the disk.
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("f: has more than 8192 MiB; check"), "{error}");
        let mut input = Input::new("f", &b" \n[1]"[..]).unwrap();
        assert_eq!(input.first_byte().unwrap(), b'[');
        assert_eq!(input.read_bytes().unwrap(), b" \n[1]");
    }
}
