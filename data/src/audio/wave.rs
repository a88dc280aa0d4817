//! WAV and related formats: RIFF, RIFX, RF64, BW64 and Sony's W64.
//!
//! Programs that write to a pipe cannot fill in sizes afterwards. They leave 0, or an impossible
//! size: `0x7fff....`, `0x80000000` and above. Such a size means "to the end of the file". Any
//! other size beyond the end of the file means that the file is truncated.

use std::io;

use super::blocks::{Blocks, Format, cannot_read};
use super::input::Input;
use super::pcm::{Encoding, Pcm};

/// Samples per channel in a block.
const BLOCK: usize = 4096;
/// Sizes from here on are placeholders for an unknown size.
const MIN_PLACEHOLDER: u64 = 0x7fff_0000;
/// The same limit for 64-bit sizes.
const MIN_PLACEHOLDER_64: u64 = 1 << 62;
/// The bytes of a `fmt ` or `ds64` chunk that are read, whatever its length.
const MAX_CHUNK_BYTES: u64 = 64;
/// Valid channel counts in a header. Other counts mean a damaged header.
const CHANNELS: std::ops::RangeInclusive<u64> = 1..=255;
/// If more seconds of audio than this follow the declared samples, and more than a tenth of the
/// declared bytes, the header is wrong.
const MAX_EXTRA_SECONDS: u64 = 1;

/// The rest of the GUID at the start of a W64 file.
const W64_RIFF: &[u8] = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00";
/// The rest of the GUIDs of `WAVE_FORMAT_EXTENSIBLE`, after the two bytes of the format.
const EXTENSIBLE: &[u8] = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71";

/// A file of chunks. One or more chunks hold samples.
pub(super) struct WaveBlocks {
    input: Input,
    kind: Kind,
    data: Data,
    bytes: Vec<u8>,
}

/// The chunk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Riff { is_big_endian: bool, is_64: bool },
    W64,
}

/// The samples that are being read.
struct Data {
    pcm: Pcm,
    format: Format,
    /// The number of bytes according to the header; `None` means all bytes present.
    declared: Option<u64>,
    /// The number of bytes read.
    read: u64,
}

struct Chunk {
    id: [u8; 4],
    size: u64,
}

impl WaveBlocks {
    /// Whether a file begins with the header of one of these formats.
    pub(super) fn has_header(head: &[u8]) -> bool {
        Kind::of(head).is_some()
    }

    /// Reads the header, up to the samples.
    pub(super) fn open(mut input: Input) -> Result<Self, String> {
        let (kind, data) = read_header(&mut input)?;
        Ok(Self { input, kind, data, bytes: Vec::new() })
    }

    /// Finds the next samples after the current chunk; returns `false` at the end of the file.
    fn find_more_samples(&mut self) -> Result<bool, String> {
        let Some(declared) = self.data.declared else { return Ok(false) };
        skip_padding(&mut self.input, self.kind, declared).map_err(cannot_read)?;
        loop {
            let remaining = self.input.remaining();
            let head = self.input.peek(16).map_err(cannot_read)?;
            if Kind::of(head).is_some() {
                // Another file was appended to this file.
                (self.kind, self.data) = read_header(&mut self.input)?;
                return Ok(true);
            }
            let is_chunk = head.get(..4).is_some_and(is_id);
            match read_chunk(&mut self.input, self.kind).map_err(cannot_read)? {
                Some(Chunk { id, size }) if id == *b"data" => {
                    let declared = declared_size(size, self.kind, self.input.remaining());
                    self.data = Data { declared, read: 0, ..self.data };
                    return Ok(true);
                }
                Some(Chunk { size, .. }) if is_chunk => {
                    let is_complete = self.input.skip(size).map_err(cannot_read)?;
                    if is_complete {
                        skip_padding(&mut self.input, self.kind, size).map_err(cannot_read)?;
                    } else {
                        return Ok(false);
                    }
                }
                Some(_) => {
                    let Format { rate, channels } = self.data.format;
                    let bytes_per_second =
                        u64::from(rate) * channels as u64 * self.data.pcm.bytes_per_sample() as u64;
                    return match remaining {
                        Some(extra)
                            if extra > MAX_EXTRA_SECONDS * bytes_per_second
                                && extra > declared / 10 =>
                        {
                            Err(format!(
                                "has {extra} bytes after the {declared} bytes that its header \
                                 declares"
                            ))
                        }
                        _ => Ok(false),
                    };
                }
                None => return Ok(false),
            }
        }
    }
}

impl Blocks for WaveBlocks {
    fn next(&mut self, samples: &mut Vec<f32>) -> Result<Option<Format>, String> {
        let frame_bytes = (self.data.format.channels * self.data.pcm.bytes_per_sample()) as u64;
        let remaining = self.data.declared.map_or(u64::MAX, |declared| declared - self.data.read);
        if remaining < frame_bytes {
            self.input.skip(remaining).map_err(cannot_read)?;
            samples.clear();
            return Ok(self.find_more_samples()?.then_some(self.data.format));
        }
        let count = (BLOCK as u64 * frame_bytes).min(remaining / frame_bytes * frame_bytes);
        self.bytes = self.input.read_up_to(count as usize).map_err(cannot_read)?;
        self.data.read += self.bytes.len() as u64;
        if let Some(declared) = self.data.declared.filter(|_| (self.bytes.len() as u64) < count) {
            let (present, declared) = (self.data.read / frame_bytes, declared / frame_bytes);
            return Err(format!("is truncated: {present} of {declared} samples are present"));
        }
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let whole = self.bytes.len() - self.bytes.len() % frame_bytes as usize;
        self.data.pcm.decode(&self.bytes[..whole], samples);
        Ok(Some(self.data.format))
    }

    fn seconds(&self) -> Option<f64> {
        let Format { rate, channels } = self.data.format;
        let bytes_per_second =
            f64::from(rate) * (channels * self.data.pcm.bytes_per_sample()) as f64;
        let remaining = self.data.declared.map(|declared| declared - self.data.read);
        remaining.or(self.input.remaining()).map(|bytes| bytes as f64 / bytes_per_second)
    }
}

impl Kind {
    fn of(head: &[u8]) -> Option<Self> {
        if head.starts_with(W64_RIFF) {
            return Some(Self::W64);
        }
        let riff = |is_big_endian, is_64| Some(Self::Riff { is_big_endian, is_64 });
        match (head.get(..4)?, head.get(8..12)?) {
            (b"RIFF", b"WAVE") => riff(false, false),
            (b"RIFX", b"WAVE") => riff(true, false),
            (b"RF64" | b"BW64", b"WAVE") => riff(false, true),
            _ => None,
        }
    }

    fn is_big_endian(self) -> bool {
        self == Self::Riff { is_big_endian: true, is_64: false }
    }
}

/// Reads the chunks before the samples.
fn read_header(input: &mut Input) -> Result<(Kind, Data), String> {
    let head = input.peek(16).map_err(cannot_read)?;
    let Some(kind) = Kind::of(head) else { return Err("has no WAV header".to_owned()) };
    input.skip(if kind == Kind::W64 { 40 } else { 12 }).map_err(cannot_read)?;
    let (mut format, mut size_64) = (None, None);
    loop {
        let Some(Chunk { id, size }) = read_chunk(input, kind).map_err(cannot_read)? else {
            return Err("is WAV without a `data` chunk, or is truncated before it".to_owned());
        };
        match &id {
            b"data" => {
                let Some((pcm, format)) = format else {
                    return Err("is WAV without a `fmt ` chunk before its samples".to_owned());
                };
                let size = match kind {
                    Kind::Riff { is_64: true, .. } => size_64.unwrap_or(size),
                    _ => size,
                };
                let declared = declared_size(size, kind, input.remaining());
                return Ok((kind, Data { pcm, format, declared, read: 0 }));
            }
            b"fmt " | b"ds64" => {
                let count = size.min(MAX_CHUNK_BYTES);
                let bytes = input.read_up_to(count as usize).map_err(cannot_read)?;
                match &id {
                    b"fmt " => format = Some(read_format(&bytes, kind.is_big_endian())?),
                    _ => size_64 = bytes.get(8..16).map(|bytes| number(bytes, false)),
                }
                input.skip(size - count).map_err(cannot_read)?;
            }
            _ => drop(input.skip(size).map_err(cannot_read)?),
        }
        skip_padding(input, kind, size).map_err(cannot_read)?;
    }
}

/// Returns the number of sample bytes that a size in a header means; `None` means all bytes up to
/// the end of the file.
fn declared_size(size: u64, kind: Kind, remaining: Option<u64>) -> Option<u64> {
    let is_64 = matches!(kind, Kind::W64 | Kind::Riff { is_64: true, .. });
    let min_placeholder =
        if is_64 && size > u64::from(u32::MAX) { MIN_PLACEHOLDER_64 } else { MIN_PLACEHOLDER };
    let is_present = remaining.is_some_and(|remaining| size <= remaining);
    let is_unknown = size == 0 || (size >= min_placeholder && !is_present);
    (!is_unknown).then_some(size)
}

/// Reads the next chunk header; returns `None` at the end.
fn read_chunk(input: &mut Input, kind: Kind) -> io::Result<Option<Chunk>> {
    let length = if kind == Kind::W64 { 24 } else { 8 };
    let bytes = input.read_up_to(length)?;
    let (Some(&id), true) = (bytes.first_chunk::<4>(), bytes.len() == length) else {
        return Ok(None);
    };
    let size = match kind {
        // The size includes the header.
        Kind::W64 => number(&bytes[16..], false).saturating_sub(24),
        _ => number(&bytes[4..], kind.is_big_endian()),
    };
    Ok(Some(Chunk { id, size }))
}

/// Skips the padding of a chunk: W64 pads to a multiple of 8 bytes, the other formats to a multiple
/// of 2. Some programs omit the padding in the other formats.
fn skip_padding(input: &mut Input, kind: Kind, size: u64) -> io::Result<()> {
    if kind == Kind::W64 {
        input.skip(size.wrapping_neg() % 8)?;
    } else if size % 2 == 1 {
        let next = input.peek(4)?;
        if !is_id(next) {
            input.skip(1)?;
        }
    }
    Ok(())
}

/// Whether the bytes are four printable characters, as in the name of a chunk.
fn is_id(bytes: &[u8]) -> bool {
    bytes.len() == 4 && bytes.iter().all(|byte| (0x20..0x7f).contains(byte))
}

fn number(bytes: &[u8], is_big_endian: bool) -> u64 {
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    if is_big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) }
}

/// Reads the sample format from a `fmt ` chunk.
fn read_format(bytes: &[u8], is_big_endian: bool) -> Result<(Pcm, Format), String> {
    let field = |offset: usize, length: usize| {
        bytes.get(offset..offset + length).map(|bytes| number(bytes, is_big_endian))
    };
    let fields = (field(0, 2), field(2, 2), field(4, 4), field(12, 2));
    let (Some(mut tag), Some(channels), Some(rate), Some(block_bytes)) = fields else {
        return Err("has a truncated `fmt ` chunk".to_owned());
    };
    if tag == 0xfffe {
        tag = match bytes.get(26..40) {
            Some(EXTENSIBLE) => field(24, 2).unwrap_or(tag),
            _ => tag,
        };
    }
    if !CHANNELS.contains(&channels) {
        return Err(format!("has {channels} channels in its header"));
    }
    let bits = field(14, 2).unwrap_or(8);
    let encoding = match (tag, bits) {
        (1, 1..=8) => Encoding::Unsigned8,
        (1, 9..=64) => Encoding::Integer { bytes: bits.div_ceil(8) as usize },
        (3, 32) => Encoding::Float32,
        (3, 64) => Encoding::Float64,
        (6, _) => Encoding::ALaw,
        (7, _) => Encoding::MuLaw,
        _ => {
            return Err(format!(
                "is WAV of format {tag:#06x} with {bits} bits, which is not supported"
            ));
        }
    };
    let pcm = Pcm { encoding, is_big_endian };
    if block_bytes != 0 && block_bytes != channels * pcm.bytes_per_sample() as u64 {
        return Err(format!(
            "has an inconsistent `fmt ` chunk: {channels} samples of {bits} bits in blocks of \
             {block_bytes} bytes"
        ));
    }
    Ok((pcm, Format { rate: rate as u32, channels: channels as usize }))
}
