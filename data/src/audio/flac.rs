//! FLAC files, including several files joined into one.
//!
//! Symphonia reads only one stream. A new stream begins at the marker `fLaC` with the header of a
//! metadata block. No frame contains these bytes.

use std::io::{self, Error, ErrorKind, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use symphonia::core::codecs::audio::AudioDecoder;
use symphonia::core::formats::probe::Hint;
use symphonia::core::io::MediaSource;

use super::blocks::{Blocks, Format, cannot_read};
use super::input::Input;
use super::packets::{Demuxer, Next, decode, make_decoder};

/// The number of bytes to search at a time.
const SEARCH_BYTES: usize = 1 << 16;
/// The marker and the header of the first metadata block, without and with the last-block flag.
const STREAM_STARTS: [&[u8; 8]; 2] = [b"fLaC\x00\x00\x00\x22", b"fLaC\x80\x00\x00\x22"];
/// The length of the marker, in bytes.
const MARKER_BYTES: u64 = 4;
/// The length of an ID3v1 tag, in bytes.
const ID3V1_BYTES: u64 = 128;

/// The audio of the streams of a file, one after the other.
pub(super) struct FlacBlocks {
    streams: Arc<Mutex<Streams>>,
    demuxer: Demuxer,
    decoder: Box<dyn AudioDecoder>,
    /// The number of samples per channel that were decoded from this stream.
    decoded: u64,
}

impl FlacBlocks {
    pub(super) fn open(mut input: Input) -> Result<Self, String> {
        exclude_id3v1_tag(&mut input).map_err(cannot_read)?;
        let streams = Arc::new(Mutex::new(Streams::new(input)));
        let (demuxer, decoder) = open_stream(&streams)?;
        Ok(Self { streams, demuxer, decoder, decoded: 0 })
    }

    /// Opens the next stream; returns `false` if this was the last.
    fn next_stream(&mut self) -> Result<bool, String> {
        let expected = self.demuxer.frame_count.filter(|expected| *expected > self.decoded);
        if let Some(expected) = expected {
            return Err(format!(
                "is truncated: {} of {expected} samples are present",
                self.decoded
            ));
        }
        let has_next = {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.next_stream().map_err(cannot_read)?
        };
        if has_next {
            (self.demuxer, self.decoder) = open_stream(&self.streams)?;
            self.decoded = 0;
        }
        Ok(has_next)
    }
}

impl Blocks for FlacBlocks {
    fn next(&mut self, samples: &mut Vec<f32>) -> Result<Option<Format>, String> {
        samples.clear();
        let packet = loop {
            match self.demuxer.next()? {
                Next::Packet(packet) => break packet,
                Next::NewStream | Next::End | Next::Truncated => {
                    if self.next_stream()? {
                        continue;
                    } else {
                        return Ok(None);
                    }
                }
            }
        };
        let start = packet.pts.get().unsigned_abs();
        if start > self.decoded && self.decoded > 0 {
            let (missing, at) = (start - self.decoded, self.decoded);
            return Err(format!("is damaged: {missing} samples are missing after the first {at}"));
        }
        let format = decode(&mut *self.decoder, &packet, samples)?;
        self.decoded += (samples.len() / format.channels.max(1)) as u64;
        Ok(Some(format))
    }

    fn seconds(&self) -> Option<f64> {
        self.demuxer.seconds
    }
}

type Stream = (Demuxer, Box<dyn AudioDecoder>);

fn open_stream(streams: &Arc<Mutex<Streams>>) -> Result<Stream, String> {
    let mut hint = Hint::new();
    hint.with_extension("flac");
    let demuxer = Demuxer::open(Box::new(OneStream(Arc::clone(streams))), &hint)?;
    let decoder = make_decoder(&demuxer.parameters, false)?;
    Ok((demuxer, decoder))
}

/// Excludes an ID3v1 tag at the end. Otherwise the tag would be read as part of the last frame.
fn exclude_id3v1_tag(input: &mut Input) -> io::Result<()> {
    let Some(length) = input.length().filter(|length| *length > ID3V1_BYTES) else { return Ok(()) };
    let start = input.position();
    input.seek(SeekFrom::Start(length - ID3V1_BYTES))?;
    if input.peek(3)? == b"TAG" {
        input.end_at(length - ID3V1_BYTES);
    }
    input.seek(SeekFrom::Start(start))?;
    Ok(())
}

/// A file of one or more streams.
struct Streams {
    input: Input,
    buffer: Vec<u8>,
    /// The index in `buffer` of the next byte to return.
    position: usize,
    /// The number of bytes from `position` on that belong to this stream.
    searched: usize,
    /// The number of bytes that follow in this metadata block; they are not searched.
    metadata: u64,
    is_in_metadata: bool,
    is_at_next_stream: bool,
}

impl Streams {
    fn new(input: Input) -> Self {
        let (buffer, metadata) = (Vec::new(), MARKER_BYTES);
        Self {
            input,
            buffer,
            position: 0,
            searched: 0,
            metadata,
            is_in_metadata: true,
            is_at_next_stream: false,
        }
    }

    /// Skips the rest of this stream; returns `false` at the end of the file.
    fn next_stream(&mut self) -> io::Result<bool> {
        let mut bytes = vec![0; SEARCH_BYTES];
        while self.read(&mut bytes)? > 0 {}
        (self.metadata, self.is_in_metadata) = (MARKER_BYTES, true);
        Ok(std::mem::take(&mut self.is_at_next_stream))
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.is_at_next_stream || bytes.is_empty() {
            return Ok(0);
        }
        if self.searched == 0 {
            self.search()?;
        }
        let count = bytes.len().min(self.searched);
        bytes[..count].copy_from_slice(&self.buffer[self.position..self.position + count]);
        self.position += count;
        self.searched -= count;
        Ok(count)
    }

    /// Sets `searched`, and reads more bytes to do so.
    fn search(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.position);
        self.position = 0;
        self.buffer.extend(self.input.read_up_to(SEARCH_BYTES)?);
        let length = self.buffer.len();
        if self.metadata == 0 && self.is_in_metadata {
            // A block header holds a last-block flag, the block type and the length.
            let head = self.buffer.first_chunk::<4>().map_or(0, |head| u32::from_be_bytes(*head));
            self.is_in_metadata = head >> 31 == 0 && length >= 4;
            self.metadata = u64::from(head & 0x00ff_ffff) + 4;
        }
        if self.metadata > 0 {
            self.searched = length.min(self.metadata as usize);
            self.metadata -= self.searched as u64;
            return Ok(());
        }
        let is_start = |part: &[u8]| STREAM_STARTS.iter().any(|start| part == *start);
        let next_start = self.buffer.windows(8).position(is_start);
        self.is_at_next_stream = next_start == Some(0);
        self.searched = next_start.unwrap_or(if length < 8 { length } else { length - 7 });
        Ok(())
    }
}

/// One stream of a file, as a source for Symphonia.
struct OneStream(Arc<Mutex<Streams>>);

impl Read for OneStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(bytes)
    }
}

impl Seek for OneStream {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "a stream of a joined file does not support seeking",
        ))
    }
}

impl MediaSource for OneStream {
    fn is_seekable(&self) -> bool {
        false
    }

    fn byte_len(&self) -> Option<u64> {
        None
    }
}
