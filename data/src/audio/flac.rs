//! FLAC files, including several files joined into one.
//!
//! Symphonia reads only one stream. A new stream begins at the marker `fLaC` with the header of a
//! metadata block. No frame contains these bytes.

use std::io::{self, Error, ErrorKind, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use symphonia::core::formats::probe::Hint;
use symphonia::core::io::MediaSource;

use super::blocks::{Blocks, Format, cannot_read};
use super::input::Input;
use super::packets::{Decoder, Demuxer, Next};

/// The number of bytes to search at a time.
const SEARCH_BYTES: usize = 1 << 16;
/// The marker and the header of the first metadata block, without and with the last-block flag.
const STREAM_STARTS: [&[u8; 8]; 2] = [b"fLaC\x00\x00\x00\x22", b"fLaC\x80\x00\x00\x22"];
/// The length of the marker, in bytes.
const MARKER_BYTES: u64 = 4;
/// The types of the metadata blocks for the stream information and for padding.
const STREAM_INFORMATION: u8 = 0;
const PADDING: u8 = 1;
/// A frame after more metadata is not examined.
const MAX_METADATA_BYTES: usize = 1 << 26;
/// A frame header has at most this many bytes.
const MAX_FRAME_HEADER_BYTES: usize = 16;
/// The range of block sizes in samples, of the format.
const BLOCK_SIZES: [u16; 2] = [16, u16::MAX];
/// The length of an ID3v1 tag, in bytes.
const ID3V1_BYTES: u64 = 128;

/// The audio of the streams of a file, one after the other.
pub(super) struct FlacBlocks {
    streams: Arc<Mutex<Streams>>,
    demuxer: Demuxer,
    decoder: Decoder,
    /// The position of the stream's first sample in the recording. It is above 0 if the stream is a
    /// part of a recording, cut out without encoding it again.
    start: u64,
    /// The number of samples per channel that were decoded from this stream.
    decoded: u64,
}

impl FlacBlocks {
    pub(super) fn open(mut input: Input) -> Result<Self, String> {
        exclude_id3v1_tag(&mut input).map_err(cannot_read)?;
        let streams = Arc::new(Mutex::new(Streams::new(input)));
        let (demuxer, decoder, start) = open_stream(&streams)?;
        Ok(Self { streams, demuxer, decoder, start, decoded: 0 })
    }

    /// Opens the next stream; returns `false` if this was the last.
    fn next_stream(&mut self) -> Result<bool, String> {
        let end = self.start + self.decoded;
        let expected = self.demuxer.frame_count.filter(|expected| *expected > end);
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
            (self.demuxer, self.decoder, self.start) = open_stream(&self.streams)?;
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
        let expected = self.start + self.decoded;
        if start > expected || (start < expected && self.decoded == 0) {
            let (missing, at) = (start.abs_diff(expected), self.decoded);
            return Err(format!("is damaged: {missing} samples are missing after the first {at}"));
        }
        let format = self.decoder.decode(&packet, samples)?;
        self.decoded += (samples.len() / format.channels.max(1)) as u64;
        Ok(Some(format))
    }

    fn seconds(&self) -> Option<f64> {
        self.demuxer.seconds
    }
}

type Stream = (Demuxer, Decoder, u64);

/// Opens a stream. Also returns the position of its first sample.
fn open_stream(streams: &Arc<Mutex<Streams>>) -> Result<Stream, String> {
    let mut hint = Hint::new();
    hint.with_extension("flac");
    let demuxer = Demuxer::open(Box::new(OneStream(Arc::clone(streams))), &hint)?;
    let decoder = Decoder::new(&demuxer.parameters, false)?;
    let start = streams.lock().unwrap_or_else(PoisonError::into_inner).start;
    Ok((demuxer, decoder, start))
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
    /// The position of the stream's first sample, from its first frame; 0 if it is unknown.
    start: u64,
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
            start: 0,
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
            match self.buffer.first().map(|first| first & 0x7f) {
                Some(STREAM_INFORMATION) => self.correct_stream_information()?,
                // Nothing else is used, so faults of other blocks do not matter.
                Some(_) => self.buffer[0] = self.buffer[0] & 0x80 | PADDING,
                None => {}
            }
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

    /// Replaces the block sizes in the stream information at the start of the buffer if the first
    /// frame contradicts them. Symphonia relies on them, but not every encoder knows them in time.
    fn correct_stream_information(&mut self) -> io::Result<()> {
        self.start = 0;
        let (mut frame, mut is_last) = (0, false);
        while !is_last && frame < MAX_METADATA_BYTES {
            self.read_ahead(frame + 4)?;
            let Some(head) = self.buffer.get(frame..).and_then(<[u8]>::first_chunk::<4>) else {
                return Ok(());
            };
            is_last = head[0] & 0x80 != 0;
            frame += 4 + (u32::from_be_bytes(*head) & 0x00ff_ffff) as usize;
        }
        self.read_ahead(frame + MAX_FRAME_HEADER_BYTES)?;
        let metadata_bytes = frame.min(self.buffer.len());
        let (metadata, frame) = self.buffer.split_at_mut(metadata_bytes);
        let (Some(information), Some(header)) = (metadata.get_mut(4..14), FrameHeader::read(frame))
        else {
            return Ok(());
        };
        let [min, max] =
            [0, 2].map(|at| u16::from_be_bytes([information[at], information[at + 1]]));
        let [min, max] = match header.block_size {
            None => BLOCK_SIZES,
            Some(size) if min == max && max >= size => [min, max],
            Some(size) => [size.max(BLOCK_SIZES[0]); 2],
        };
        information[..2].copy_from_slice(&min.to_be_bytes());
        information[2..4].copy_from_slice(&max.to_be_bytes());
        if information[4..7] > information[7..10] {
            // 0 means that the sizes of frames in bytes are unknown.
            information[4..].fill(0);
        }
        self.start = header.number * header.block_size.map_or(1, |_| u64::from(max));
        Ok(())
    }

    /// Reads until the buffer has `length` bytes, or to the end of the file.
    fn read_ahead(&mut self, length: usize) -> io::Result<()> {
        while self.buffer.len() < length {
            let bytes = self.input.read_up_to(SEARCH_BYTES)?;
            if bytes.is_empty() {
                break;
            }
            self.buffer.extend(bytes);
        }
        Ok(())
    }
}

/// The parts of a frame header that the stream information has to agree with.
struct FrameHeader {
    /// The number of samples per block if all blocks except the last have the same.
    block_size: Option<u16>,
    /// The number of the frame, or of its first sample if blocks have different sizes.
    number: u64,
}

impl FrameHeader {
    /// Reads the header at the start of `bytes`; returns `None` if there is none.
    fn read(bytes: &[u8]) -> Option<Self> {
        let [0xff, sync @ 0xf8..=0xf9, code, _, rest @ ..] = bytes else { return None };
        // The number is coded as in UTF-8, but in up to 7 bytes.
        let length = rest.first()?.leading_ones().max(1) as usize;
        let (number, rest) = rest.split_at_checked(length.min(7))?;
        let first = u64::from(number[0]) & if length == 1 { 0x7f } else { 0x7f >> length };
        let number = number[1..].iter().fold(first, |sum, byte| sum << 6 | u64::from(byte & 0x3f));
        let block_size = match code >> 4 {
            1 => 192,
            code @ 2..=5 => 576 << (code - 2),
            6 => u16::from(*rest.first()?) + 1,
            7 => u16::from_be_bytes(*rest.first_chunk()?).saturating_add(1),
            code @ 8.. => 256 << (code - 8),
            _ => return None,
        };
        Some(Self { block_size: (*sync == 0xf8).then_some(block_size), number })
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
        Err(Error::new(ErrorKind::Unsupported, "a stream of a joined file cannot seek"))
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
