//! The frames of an MPEG audio stream, found by their headers.
//!
//! Files are joined, cut and damaged, and hold tags between frames. A header counts as one if another
//! follows where its frame ends. Lost samples are reported, so that times stay right.

use std::io;

use super::header::{Header, LENGTH};
use crate::audio::blocks::id3v2_length;
use crate::audio::input::Input;

/// Bytes in which the first frame is searched for; a file without one is no MPEG audio.
const FIRST: usize = 1 << 17;
/// Bytes in which a frame is searched for behind another.
const NEXT: usize = 1 << 24;
/// Bytes that are read at a time.
const READ: usize = 1 << 16;
/// Lost bytes that stand for frames: as many as two of the longest. More is not sound.
const MOST_LOST: usize = 5_762;

/// What comes next in a stream.
pub(super) enum Found {
    Frame(Header, Vec<u8>),
    /// So many frames were there, and cannot be read.
    Lost(usize),
}

/// The frames of a stream.
pub(super) struct Frames {
    input: Input,
    buffer: Vec<u8>,
    at: usize,
    /// The header of the last frame.
    last: Option<Header>,
    /// Bytes that belong to no frame and no tag.
    pub junk: u64,
}

impl Frames {
    /// The stream of an input; the input again if its beginning has no frame.
    pub(super) fn open(input: Input) -> io::Result<Result<Self, Input>> {
        let mut frames = Self { input, buffer: Vec::new(), at: 0, last: None, junk: 0 };
        if frames.search(0, FIRST)?.is_some() {
            return Ok(Ok(frames));
        }
        let Self { mut input, buffer, .. } = frames;
        input.unread(buffer);
        Ok(Err(input))
    }

    /// Bytes of the whole; `None` for a pipe.
    pub(super) fn length(&self) -> Option<u64> {
        self.input.length()
    }

    /// The next frame; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Found>> {
        loop {
            self.fill(LENGTH)?;
            if self.rest().is_empty() {
                return Ok(None);
            }
            if self.skip_tag()? {
                continue;
            }
            let Some(header) = self.header(0)? else {
                match self.resume()? {
                    Some(lost) => return Ok(Some(lost)),
                    None => continue,
                }
            };
            if self.is_followed(0, &header)? {
                return self.frame(header);
            }
            // Either this header is damaged, or the next one.
            let next = self.search(LENGTH, header.length + MOST_LOST)?;
            if next.is_some_and(|next| next < header.length) {
                self.skip(next.unwrap_or(0));
                return Ok(Some(Found::Lost(1)));
            }
            let is_expected = self.last.is_none_or(|last| header.is_like(&last));
            if is_expected && self.fill(header.length)? {
                return self.frame(header);
            }
            if let Some(lost) = self.resume()? {
                return Ok(Some(lost));
            }
        }
    }

    /// Passes over what is no frame, and tells how many frames that were.
    fn resume(&mut self) -> io::Result<Option<Found>> {
        let found = self.search(1, NEXT)?;
        let skipped = found.unwrap_or(self.rest().len());
        // Zeros are filling.
        let junk = self.rest()[..skipped].iter().filter(|byte| **byte != 0).count();
        self.skip(skipped);
        if junk == 0 {
            return Ok(None);
        }
        self.junk += junk as u64;
        let last = self.last.filter(|_| found.is_some() && skipped <= MOST_LOST);
        Ok(last.map(|last| Found::Lost((skipped + last.length / 2) / last.length)))
    }

    fn frame(&mut self, header: Header) -> io::Result<Option<Found>> {
        if !self.fill(header.length)? {
            // The last frame is cut.
            self.at = self.buffer.len();
            return Ok(None);
        }
        let frame = self.rest()[..header.length].to_vec();
        self.skip(header.length);
        self.last = Some(header);
        Ok(Some(Found::Frame(header, frame)))
    }

    /// Where behind `from` and before `most` the next frame begins.
    fn search(&mut self, from: usize, most: usize) -> io::Result<Option<usize>> {
        let mut at = from;
        while at < most && self.fill(at + LENGTH)? {
            if self.rest()[at] == 0xff
                && let Some(header) = self.header(at)?
                && self.is_followed(at, &header)?
            {
                return Ok(Some(at));
            }
            at += 1;
        }
        Ok(None)
    }

    fn header(&mut self, at: usize) -> io::Result<Option<Header>> {
        self.fill(at + LENGTH)?;
        Ok(self.rest().get(at..).and_then(Header::parse))
    }

    /// Whether another frame, a tag or the end follows. A frame of another kind than those before needs two
    /// that follow, as does the first.
    fn is_followed(&mut self, at: usize, header: &Header) -> io::Result<bool> {
        let is_new = self.last.is_none_or(|last| !header.is_like(&last));
        let mut end = at + header.length;
        for _ in 0..if is_new { 2 } else { 1 } {
            if !self.fill(end + LENGTH)? {
                // A frame of a new kind must end with the file.
                let length = self.rest().len();
                return Ok(length == end || (!is_new && length > end));
            }
            if is_tag(&self.rest()[end..]) {
                return Ok(true);
            }
            match self.header(end)? {
                Some(next) if next.is_like(header) => end += next.length,
                // Of two streams that were joined, the other begins here.
                Some(next) if !is_new => {
                    self.fill(end + next.length + LENGTH)?;
                    let behind = self.rest().get(end + next.length..).and_then(Header::parse);
                    return Ok(behind.is_some_and(|behind| behind.is_like(&next)));
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Passes over a tag that begins here.
    fn skip_tag(&mut self) -> io::Result<bool> {
        self.fill(32)?;
        let rest = self.rest();
        let ape = |rest: &[u8]| {
            let size = rest.get(12..16)?.first_chunk().copied().map(u32::from_le_bytes)?;
            // The size is without the header.
            let is_header = rest.get(23).is_some_and(|flags| flags & 0x20 != 0);
            Some(32 + if is_header { u64::from(size) } else { 0 })
        };
        let length = match rest {
            [b'T', b'A', b'G', ..] => Some(128),
            rest if rest.starts_with(b"APETAGEX") => ape(rest),
            rest => id3v2_length(rest),
        };
        let Some(length) = length else { return Ok(false) };
        let there = (self.rest().len() as u64).min(length);
        self.skip(there as usize);
        self.input.skip(length - there)?;
        Ok(true)
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    fn skip(&mut self, count: usize) {
        self.at = (self.at + count).min(self.buffer.len());
    }

    /// Reads until so many bytes are there behind the position; `false` at the end.
    fn fill(&mut self, count: usize) -> io::Result<bool> {
        while self.rest().len() < count {
            self.buffer.drain(..self.at);
            self.at = 0;
            let more = self.input.read_up_to(READ.max(count - self.buffer.len()))?;
            if more.is_empty() {
                return Ok(false);
            }
            self.buffer.extend(more);
        }
        Ok(true)
    }
}

fn is_tag(bytes: &[u8]) -> bool {
    [&b"TAG"[..], b"ID3", b"APE", b"LYR"].iter().any(|tag| bytes.starts_with(tag))
}
