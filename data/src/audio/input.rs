//! The bytes of an audio file, from a file, a pipe or memory.

use std::io::{self, Cursor, Error, ErrorKind, Read, Seek, SeekFrom};

use symphonia::core::io::MediaSource;

/// The maximum number of bytes of a pipe in memory, for formats that need seeking.
const MAX_IN_MEMORY: usize = 1 << 29;

/// A source of bytes.
pub(super) trait Source: Read + Seek + Send + Sync {}
impl<S: Read + Seek + Send + Sync> Source for S {}

/// A byte source with lookahead.
pub(super) struct Input {
    source: Box<dyn Source>,
    /// Bytes that were peeked but not yet read.
    ahead: Vec<u8>,
    /// The position of the next byte, from the start.
    position: u64,
    /// The total length; `None` for a pipe, which also does not support seeking.
    length: Option<u64>,
}

impl Input {
    /// Creates an input from a file or memory of this length, or from a pipe.
    pub(super) fn new(source: Box<dyn Source>, length: Option<u64>) -> Self {
        Self { source, ahead: Vec::new(), position: 0, length }
    }

    /// Returns the next `count` bytes without reading them, or fewer at the end.
    pub(super) fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.ahead.len() < count {
            let missing = (count - self.ahead.len()) as u64;
            self.source.by_ref().take(missing).read_to_end(&mut self.ahead)?;
        }
        Ok(&self.ahead[..count.min(self.ahead.len())])
    }

    /// Reads `count` bytes, or fewer at the end.
    pub(super) fn read_up_to(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.by_ref().take(count as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Puts back `bytes`, which were read last.
    pub(super) fn unread(&mut self, bytes: Vec<u8>) {
        self.position -= bytes.len() as u64;
        self.ahead.splice(..0, bytes);
    }

    /// Skips `count` bytes; returns `false` if the end comes first.
    pub(super) fn skip(&mut self, count: u64) -> io::Result<bool> {
        if let Some(length) = self.length {
            let target = self.position.saturating_add(count);
            self.seek(SeekFrom::Start(target.min(length)))?;
            return Ok(target <= length);
        }
        Ok(io::copy(&mut self.by_ref().take(count), &mut io::sink())? == count)
    }

    /// Returns a seekable input with the same bytes.
    pub(super) fn in_memory(mut self) -> io::Result<Self> {
        if self.length.is_some() {
            return Ok(self);
        }
        let bytes = self.read_up_to(MAX_IN_MEMORY)?;
        if !self.peek(1)?.is_empty() {
            return Err(Error::new(ErrorKind::FileTooLarge, "too large for a pipe; use a file"));
        }
        let length = bytes.len() as u64;
        Ok(Self::new(Box::new(Cursor::new(bytes)), Some(length)))
    }

    /// Returns the position of the next byte, from the start.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the total length; `None` for a pipe.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns the number of bytes up to the end; `None` for a pipe.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.length.map(|length| length.saturating_sub(self.position))
    }

    /// Ends the input at this position; has no effect on a pipe.
    pub(super) fn end_at(&mut self, position: u64) {
        self.length = self.length.map(|length| length.min(position));
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let available =
            self.remaining().map_or(bytes.len(), |count| bytes.len().min(count as usize));
        let bytes = &mut bytes[..available];
        let count = if self.ahead.is_empty() {
            self.source.read(bytes)?
        } else {
            let count = bytes.len().min(self.ahead.len());
            bytes[..count].copy_from_slice(&self.ahead[..count]);
            self.ahead.drain(..count);
            count
        };
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let Some(length) = self.length else {
            return Err(Error::new(ErrorKind::Unsupported, "a pipe does not support seeking"));
        };
        let target = match to {
            SeekFrom::Start(target) => Some(target),
            SeekFrom::End(offset) => length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let target = target.ok_or(ErrorKind::InvalidInput)?;
        let distance = target.checked_sub(self.position).map(|distance| distance as usize);
        match distance.filter(|distance| *distance <= self.ahead.len()) {
            Some(distance) => drop(self.ahead.drain(..distance)),
            None => {
                self.source.seek(SeekFrom::Start(target))?;
                self.ahead.clear();
            }
        }
        self.position = target;
        Ok(target)
    }
}

impl MediaSource for Input {
    fn is_seekable(&self) -> bool {
        self.length.is_some()
    }

    fn byte_len(&self) -> Option<u64> {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_and_files_peek_read_unread_and_skip_alike() {
        for length in [None, Some(10)] {
            let mut input = Input::new(Box::new(Cursor::new((0..10).collect::<Vec<u8>>())), length);
            assert_eq!(input.peek(3).expect("bytes"), [0, 1, 2]);
            assert_eq!(input.read_up_to(2).expect("bytes"), [0, 1]);
            assert_eq!(input.peek(1).expect("bytes"), [2]);
            input.unread(vec![0, 1]);
            assert_eq!((input.position(), input.read_up_to(3).expect("bytes")), (0, vec![0, 1, 2]));
            input.unread(vec![2]);
            assert!(input.skip(4).expect("bytes"));
            assert_eq!((input.position(), input.peek(99).expect("bytes")), (6, &[6, 7, 8, 9][..]));
            assert!(!input.skip(5).expect("the end"));
            assert!(input.read_up_to(1).expect("the end").is_empty());
            assert_eq!(input.seek(SeekFrom::Start(1)).is_ok(), length.is_some());
        }
    }
}
