//! Finds the frames of an MPEG audio stream by their headers.
//!
//! Files may be joined, truncated or damaged, and may hold tags between frames. A header is valid
//! if another header, a tag or the end of the file follows its frame. Lost frames are reported, so
//! that times stay correct.

use std::io;

use super::header::{HEADER_BYTES, Header};
use crate::audio::blocks::id3v2_length;
use crate::audio::input::Input;

/// The number of bytes in which the first frame must begin. Otherwise the file is not MPEG audio.
const FIRST_WITHIN: usize = 1 << 17;
/// The number of bytes to search for the frame after a gap.
const NEXT_WITHIN: usize = 1 << 24;
/// Bytes to read at a time.
const READ_BYTES: usize = 1 << 16;
/// A gap of at most this many bytes, two of the longest frames, counts as lost frames. A longer gap
/// is not audio.
const MAX_LOST_BYTES: usize = 5_762;

/// The next event of a stream.
pub(super) enum FrameEvent {
    Frame(Header, Vec<u8>),
    /// This number of frames is present but cannot be read.
    Lost(usize),
}

/// The frames of a stream.
pub(super) struct Frames {
    input: Input,
    buffer: Vec<u8>,
    /// The index in `buffer` of the next byte. Other offsets are relative to it.
    position: usize,
    /// The header of the last frame.
    last: Option<Header>,
    /// The number of bytes that belong to no frame and no tag.
    pub junk: u64,
}

impl Frames {
    /// Opens the stream of an input; returns the input if no frame begins in its first
    /// [`FIRST_WITHIN`] bytes.
    pub(super) fn open(input: Input) -> io::Result<Result<Self, Input>> {
        let mut frames = Self { input, buffer: Vec::new(), position: 0, last: None, junk: 0 };
        if frames.search(0, FIRST_WITHIN)?.is_some() {
            return Ok(Ok(frames));
        }
        let Self { mut input, buffer, .. } = frames;
        input.unread(buffer);
        Ok(Err(input))
    }

    /// Returns the total length; `None` for a pipe.
    pub(super) fn length(&self) -> Option<u64> {
        self.input.length()
    }

    /// Reads the next frame; returns `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<FrameEvent>> {
        loop {
            self.fill(HEADER_BYTES)?;
            if self.remaining().is_empty() {
                return Ok(None);
            }
            if self.skip_tag()? {
                continue;
            }
            let Some(header) = self.parse_header(0)? else {
                match self.skip_junk()? {
                    Some(lost) => return Ok(Some(lost)),
                    None => continue,
                }
            };
            if self.is_followed(0, &header)? {
                return self.take_frame(header);
            }
            // Either this header or the next is damaged.
            let next = self.search(HEADER_BYTES, header.length + MAX_LOST_BYTES)?;
            if next.is_some_and(|next| next < header.length) {
                self.skip(next.unwrap_or(0));
                return Ok(Some(FrameEvent::Lost(1)));
            }
            let is_expected = self.last.is_none_or(|last| header.is_same_kind(&last));
            if is_expected && self.fill(header.length)? {
                return self.take_frame(header);
            }
            if let Some(lost) = self.skip_junk()? {
                return Ok(Some(lost));
            }
        }
    }

    /// Skips bytes that belong to no frame. Returns the number of lost frames, or `None` if the
    /// bytes are not audio.
    fn skip_junk(&mut self) -> io::Result<Option<FrameEvent>> {
        let next_frame = self.search(1, NEXT_WITHIN)?;
        let skipped = next_frame.unwrap_or(self.remaining().len());
        // Zeros are padding.
        let junk = self.remaining()[..skipped].iter().filter(|byte| **byte != 0).count();
        self.skip(skipped);
        if junk == 0 {
            return Ok(None);
        }
        self.junk += junk as u64;
        let last = self.last.filter(|_| next_frame.is_some() && skipped <= MAX_LOST_BYTES);
        Ok(last.map(|last| FrameEvent::Lost((skipped + last.length / 2) / last.length)))
    }

    fn take_frame(&mut self, header: Header) -> io::Result<Option<FrameEvent>> {
        if !self.fill(header.length)? {
            // The last frame is truncated.
            self.position = self.buffer.len();
            return Ok(None);
        }
        let frame = self.remaining()[..header.length].to_vec();
        self.skip(header.length);
        self.last = Some(header);
        Ok(Some(FrameEvent::Frame(header, frame)))
    }

    /// Returns the offset of the next frame, at `from` or later and before `end`.
    fn search(&mut self, from: usize, end: usize) -> io::Result<Option<usize>> {
        let mut offset = from;
        while offset < end && self.fill(offset + HEADER_BYTES)? {
            if self.remaining()[offset] == 0xff
                && let Some(header) = self.parse_header(offset)?
                && self.is_followed(offset, &header)?
            {
                return Ok(Some(offset));
            }
            offset += 1;
        }
        Ok(None)
    }

    fn parse_header(&mut self, offset: usize) -> io::Result<Option<Header>> {
        self.fill(offset + HEADER_BYTES)?;
        Ok(self.remaining().get(offset..).and_then(Header::parse))
    }

    /// Whether another frame, a tag or the end of the file follows. A frame of a new kind, and the
    /// first frame of the file, must be followed by two frames or by a tag.
    fn is_followed(&mut self, offset: usize, header: &Header) -> io::Result<bool> {
        let is_new = self.last.is_none_or(|last| !header.is_same_kind(&last));
        let mut end = offset + header.length;
        for _ in 0..if is_new { 2 } else { 1 } {
            if !self.fill(end + HEADER_BYTES)? {
                // A frame of a new kind must end at the end of the file.
                let length = self.remaining().len();
                return Ok(length == end || (!is_new && length > end));
            }
            if is_tag(&self.remaining()[end..]) {
                return Ok(true);
            }
            match self.parse_header(end)? {
                Some(next) if next.is_same_kind(header) => end += next.length,
                // Two streams were joined, and the second begins here.
                Some(next) if !is_new => {
                    self.fill(end + next.length + HEADER_BYTES)?;
                    let after_next =
                        self.remaining().get(end + next.length..).and_then(Header::parse);
                    return Ok(after_next.is_some_and(|after_next| after_next.is_same_kind(&next)));
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Skips a tag that begins here; returns `false` if there is none.
    fn skip_tag(&mut self) -> io::Result<bool> {
        self.fill(32)?;
        let bytes = self.remaining();
        let ape_length = |bytes: &[u8]| {
            let size = bytes.get(12..16)?.first_chunk().copied().map(u32::from_le_bytes)?;
            // The size excludes the header.
            let is_header = bytes.get(23).is_some_and(|flags| flags & 0x20 != 0);
            Some(32 + if is_header { u64::from(size) } else { 0 })
        };
        let length = match bytes {
            [b'T', b'A', b'G', ..] => Some(128),
            bytes if bytes.starts_with(b"APETAGEX") => ape_length(bytes),
            bytes => id3v2_length(bytes),
        };
        let Some(length) = length else { return Ok(false) };
        let buffered = (self.remaining().len() as u64).min(length);
        self.skip(buffered as usize);
        self.input.skip(length - buffered)?;
        Ok(true)
    }

    fn remaining(&self) -> &[u8] {
        &self.buffer[self.position..]
    }

    fn skip(&mut self, count: usize) {
        self.position = (self.position + count).min(self.buffer.len());
    }

    /// Reads until `count` bytes are buffered; returns `false` if the file ends before.
    fn fill(&mut self, count: usize) -> io::Result<bool> {
        while self.remaining().len() < count {
            self.buffer.drain(..self.position);
            self.position = 0;
            let bytes = self.input.read_up_to(READ_BYTES.max(count - self.buffer.len()))?;
            if bytes.is_empty() {
                return Ok(false);
            }
            self.buffer.extend(bytes);
        }
        Ok(true)
    }
}

fn is_tag(bytes: &[u8]) -> bool {
    [&b"TAG"[..], b"ID3", b"APE", b"LYR"].iter().any(|tag| bytes.starts_with(tag))
}
