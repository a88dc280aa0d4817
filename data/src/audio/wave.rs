//! Uncompressed samples: WAV and related formats (RIFF, RIFX, RF64, BW64 and Sony's W64), AIFF, CAF
//! and AU.
//!
//! Programs that write to a pipe cannot fill in sizes afterwards. They leave 0, or an impossible
//! size: `0x7fff....`, `0x80000000` and above. Such a size means "to the end of the file". Any
//! other size beyond the end of the file means that the file is truncated.

use std::io;

use super::blocks::{Blocks, Format, cannot_read};
use super::descriptions::{self, number};
use super::input::Input;
use super::pcm::Pcm;

/// Samples per channel in a block.
const BLOCK: usize = 4096;
/// Sizes from here on are placeholders for an unknown size.
const MIN_PLACEHOLDER: u64 = 0x7fff_0000;
/// The same limit for 64-bit sizes.
const MIN_PLACEHOLDER_64: u64 = 1 << 62;
/// The bytes of a chunk with a description that are read, whatever its length.
const MAX_CHUNK_BYTES: u64 = 64;
/// The number of bytes that identify a format.
const HEAD_BYTES: usize = 32;
/// The shortest header of an AU file, in bytes.
const MIN_AU_BYTES: u64 = 24;
/// If more seconds of audio than this follow the declared samples, and more than a tenth of the
/// declared bytes, the header is wrong.
const MAX_EXTRA_SECONDS: u64 = 1;

/// The rest of the GUID at the start of a W64 file.
const W64_RIFF: &[u8] = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00";

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
    Riff {
        is_big_endian: bool,
        is_64: bool,
    },
    W64,
    Aiff,
    Caf,
    /// A header and samples, without chunks.
    Au,
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
            let head = self.input.peek(HEAD_BYTES).map_err(cannot_read)?;
            if Kind::of(head).is_some() {
                // Another file was appended to this file.
                (self.kind, self.data) = read_header(&mut self.input)?;
                return Ok(true);
            }
            let is_chunk = head.get(..4).is_some_and(is_id);
            match read_chunk(&mut self.input, self.kind).map_err(cannot_read)? {
                Some(Chunk { id, size }) if id == *b"data" => {
                    let declared = start_samples(&mut self.input, self.kind, size);
                    let declared = declared.map_err(cannot_read)?;
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
            (b"FORM", b"AIFF" | b"AIFC") => Some(Self::Aiff),
            (b".snd", _) => Some(Self::Au),
            // Compressed samples are left to Symphonia.
            (b"caff", _) => match head.get(28..32)? {
                b"lpcm" | b"alaw" | b"ulaw" => Some(Self::Caf),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the numbers of its chunks are big-endian.
    fn is_big_endian(self) -> bool {
        !matches!(self, Self::W64 | Self::Riff { is_big_endian: false, .. })
    }

    /// The names of the chunks with the description and with the samples.
    fn chunks(self) -> (&'static [u8; 4], &'static [u8; 4]) {
        match self {
            Self::Aiff => (b"COMM", b"SSND"),
            Self::Caf => (b"desc", b"data"),
            _ => (b"fmt ", b"data"),
        }
    }
}

/// Reads the header, up to the samples.
fn read_header(input: &mut Input) -> Result<(Kind, Data), String> {
    let head = input.peek(HEAD_BYTES).map_err(cannot_read)?.to_vec();
    let Some(kind) = Kind::of(&head) else { return Err("has no WAV header".to_owned()) };
    if kind == Kind::Au {
        let (pcm, format) = descriptions::au(&head)?;
        let header = number(&head, 4, 4, true).unwrap_or(0).max(MIN_AU_BYTES);
        input.skip(header).map_err(cannot_read)?;
        let size = number(&head, 8, 4, true).unwrap_or(0);
        let declared = start_samples(input, kind, size).map_err(cannot_read)?;
        return Ok((kind, Data { pcm, format, declared, read: 0 }));
    }
    let header = match kind {
        Kind::W64 => 40,
        Kind::Caf => 8,
        _ => 12,
    };
    input.skip(header).map_err(cannot_read)?;
    let (description, samples) = kind.chunks();
    let name = |id: &[u8; 4]| id.escape_ascii().to_string();
    let (mut format, mut size_64) = (None, None);
    loop {
        let Some(Chunk { id, size }) = read_chunk(input, kind).map_err(cannot_read)? else {
            return Err(format!("has no `{}` chunk, or is truncated before it", name(samples)));
        };
        match &id {
            id if id == samples => {
                let Some((pcm, format)) = format else {
                    return Err(format!("has no `{}` chunk before its samples", name(description)));
                };
                let size = match kind {
                    Kind::Riff { is_64: true, .. } => size_64.unwrap_or(size),
                    _ => size,
                };
                let declared = start_samples(input, kind, size).map_err(cannot_read)?;
                return Ok((kind, Data { pcm, format, declared, read: 0 }));
            }
            id if id == description || id == b"ds64" => {
                let count = size.min(MAX_CHUNK_BYTES);
                let bytes = input.read_up_to(count as usize).map_err(cannot_read)?;
                match kind {
                    _ if id == b"ds64" => size_64 = number(&bytes, 8, 8, false),
                    Kind::Aiff => format = Some(descriptions::aiff(&bytes)?),
                    Kind::Caf => format = Some(descriptions::caf(&bytes)?),
                    _ => format = Some(descriptions::wav(&bytes, kind.is_big_endian())?),
                }
                input.skip(size - count).map_err(cannot_read)?;
            }
            _ => drop(input.skip(size).map_err(cannot_read)?),
        }
        skip_padding(input, kind, size).map_err(cannot_read)?;
    }
}

/// Skips the fields before the samples of a chunk of this size. Returns the number of bytes of its
/// samples; `None` means all bytes up to the end of the file.
fn start_samples(input: &mut Input, kind: Kind, size: u64) -> io::Result<Option<u64>> {
    let fields = match kind {
        // The number of bytes before the first sample, and the size of blocks.
        Kind::Aiff => 8 + number(input.peek(4)?, 0, 4, true).unwrap_or(0),
        // The number of edits.
        Kind::Caf => 4,
        _ => 0,
    };
    input.skip(fields)?;
    Ok(declared_size(size.saturating_sub(fields), kind, input.remaining()))
}

/// Returns the number of sample bytes that a size in a header means; `None` means all bytes up to
/// the end of the file.
fn declared_size(size: u64, kind: Kind, remaining: Option<u64>) -> Option<u64> {
    let is_64 = matches!(kind, Kind::W64 | Kind::Caf | Kind::Riff { is_64: true, .. });
    let min_placeholder =
        if is_64 && size > u64::from(u32::MAX) { MIN_PLACEHOLDER_64 } else { MIN_PLACEHOLDER };
    let is_present = remaining.is_some_and(|remaining| size <= remaining);
    let is_unknown = size == 0 || (size >= min_placeholder && !is_present);
    (!is_unknown).then_some(size)
}

/// Reads the next chunk header; returns `None` at the end.
fn read_chunk(input: &mut Input, kind: Kind) -> io::Result<Option<Chunk>> {
    let length = match kind {
        Kind::W64 => 24,
        Kind::Caf => 12,
        _ => 8,
    };
    let bytes = input.read_up_to(length)?;
    let (Some(&id), true) = (bytes.first_chunk::<4>(), bytes.len() == length) else {
        return Ok(None);
    };
    let size = match kind {
        // The size includes the header.
        Kind::W64 => number(&bytes, 16, 8, false).map(|size| size.saturating_sub(24)),
        _ => number(&bytes, 4, length - 4, kind.is_big_endian()),
    };
    Ok(size.map(|size| Chunk { id, size }))
}

/// Skips the padding of a chunk: W64 pads to a multiple of 8 bytes, CAF not at all, the other
/// formats to a multiple of 2. Some programs omit the padding in the other formats.
fn skip_padding(input: &mut Input, kind: Kind, size: u64) -> io::Result<()> {
    if kind == Kind::W64 {
        input.skip(size.wrapping_neg() % 8)?;
    } else if size % 2 == 1 && kind != Kind::Caf {
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
