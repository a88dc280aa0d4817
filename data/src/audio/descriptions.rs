//! The headers that describe uncompressed samples: of WAV, AIFF, CAF and AU.
//!
//! # Source   "Multimedia Programming Interface and Data Specifications 1.0" of IBM and Microsoft;
//! "AIFF-C" and "Core Audio Format Specification" of Apple; `audio/au.h` of Sun

use super::blocks::Format;
use super::pcm::{Encoding, Pcm};

/// Valid channel counts in a header. Other counts mean a damaged header.
const CHANNELS: std::ops::RangeInclusive<u64> = 1..=255;
/// The rest of the GUIDs of `WAVE_FORMAT_EXTENSIBLE`, after the two bytes of the format.
const EXTENSIBLE: &[u8] = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71";
/// The exponent of an AIFF sample rate whose mantissa is the rate.
const AIFF_EXPONENT: u64 = 16_383 + 63;

/// Reads the number of `length` bytes at an offset; `None` if its bytes are missing.
pub(super) fn number(bytes: &[u8], at: usize, length: usize, is_big_endian: bool) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?;
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    Some(if is_big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) })
}

/// Reads the `fmt ` chunk of a WAV file.
pub(super) fn wav(bytes: &[u8], is_big_endian: bool) -> Result<(Pcm, Format), String> {
    let field = |offset, length| number(bytes, offset, length, is_big_endian);
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
    let bits = field(14, 2).unwrap_or(8);
    let encoding = match (tag, bits) {
        (1, 1..=8) => Some(Encoding::Unsigned8),
        (1, _) => integer(bits),
        (3, _) => float(bits),
        (6, _) => Some(Encoding::ALaw),
        (7, _) => Some(Encoding::MuLaw),
        _ => None,
    };
    let name = format!("WAV of format {tag:#06x} with {bits} bits");
    described(encoding, &name, is_big_endian, (channels, rate, block_bytes))
}

/// Reads the `COMM` chunk of an AIFF or AIFF-C file.
pub(super) fn aiff(bytes: &[u8]) -> Result<(Pcm, Format), String> {
    let field = |offset, length| number(bytes, offset, length, true);
    let fields = (field(0, 2), field(6, 2), field(8, 2), field(10, 8));
    let (Some(channels), Some(bits), Some(exponent), Some(mantissa)) = fields else {
        return Err("has a truncated `COMM` chunk".to_owned());
    };
    let shift = AIFF_EXPONENT.saturating_sub(exponent) as u32;
    let compression = bytes.get(18..22).unwrap_or(b"NONE");
    let encoding = match &compression.to_ascii_lowercase()[..] {
        b"none" | b"twos" | b"sowt" => integer(bits),
        b"raw " => Some(Encoding::Unsigned8),
        b"in24" => integer(24),
        b"in32" => integer(32),
        b"fl32" => float(32),
        b"fl64" => float(64),
        b"alaw" => Some(Encoding::ALaw),
        b"ulaw" => Some(Encoding::MuLaw),
        _ => None,
    };
    let name = format!("AIFF with the compression {}", compression.escape_ascii());
    let rate = mantissa.checked_shr(shift).unwrap_or(0);
    described(encoding, &name, compression != b"sowt", (channels, rate, 0))
}

/// Reads the `desc` chunk of a CAF file.
pub(super) fn caf(bytes: &[u8]) -> Result<(Pcm, Format), String> {
    let field = |offset, length| number(bytes, offset, length, true);
    let fields = (field(0, 8), bytes.get(8..12), field(12, 4), field(16, 4), field(24, 4));
    let ((Some(rate), Some(kind), Some(flags), Some(block_bytes), Some(channels)), Some(bits)) =
        (fields, field(28, 4))
    else {
        return Err("has a truncated `desc` chunk".to_owned());
    };
    let encoding = match kind {
        b"lpcm" if flags & 1 == 0 => integer(bits),
        b"lpcm" => float(bits),
        b"alaw" => Some(Encoding::ALaw),
        b"ulaw" => Some(Encoding::MuLaw),
        _ => None,
    };
    let rate = f64::from_bits(rate) as u64;
    described(encoding, "CAF", flags & 2 == 0, (channels, rate, block_bytes))
}

/// Reads the header of an AU file.
pub(super) fn au(bytes: &[u8]) -> Result<(Pcm, Format), String> {
    let field = |offset| number(bytes, offset, 4, true);
    let (Some(kind), Some(rate), Some(channels)) = (field(12), field(16), field(20)) else {
        return Err("has a truncated header".to_owned());
    };
    let encoding = match kind {
        1 => Some(Encoding::MuLaw),
        2..=5 => integer(8 * (kind - 1)),
        6 => float(32),
        7 => float(64),
        27 => Some(Encoding::ALaw),
        _ => None,
    };
    described(encoding, &format!("AU of encoding {kind}"), true, (channels, rate, 0))
}

/// Signed integers of this many bits.
fn integer(bits: u64) -> Option<Encoding> {
    (1..=64).contains(&bits).then(|| Encoding::Integer { bytes: bits.div_ceil(8) as usize })
}

fn float(bits: u64) -> Option<Encoding> {
    match bits {
        32 => Some(Encoding::Float32),
        64 => Some(Encoding::Float64),
        _ => None,
    }
}

/// Checks the fields of a header: the channels, the sample rate, and the bytes of a sample of all
/// channels, 0 if unknown. `name` names an unknown encoding.
fn described(
    encoding: Option<Encoding>,
    name: &str,
    is_big_endian: bool,
    (channels, rate, block_bytes): (u64, u64, u64),
) -> Result<(Pcm, Format), String> {
    let encoding = encoding.ok_or_else(|| format!("is {name}, which is not supported"))?;
    if !CHANNELS.contains(&channels) {
        return Err(format!("has {channels} channels in its header"));
    }
    let pcm = Pcm { encoding, is_big_endian };
    let bytes = pcm.bytes_per_sample() as u64;
    if block_bytes != 0 && block_bytes != channels * bytes {
        return Err(format!(
            "has an inconsistent header: {channels} samples of {bytes} bytes in blocks of \
             {block_bytes} bytes"
        ));
    }
    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
    Ok((pcm, Format { rate, channels: channels as usize }))
}
