//! Reads an audio file as blocks of samples, each with its sample rate and channels.
//!
//! The first bytes determine the format; the file extension does not. Sizes and counts in headers
//! are hints: a reader checks them against the bytes that are present.

use symphonia::core::formats::probe::Hint;

use super::flac::FlacBlocks;
use super::input::Input;
use super::mpeg::MpegBlocks;
use super::packets::PacketBlocks;
use super::wave::WaveBlocks;

/// The sample rate and the number of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    /// In Hz.
    pub rate: u32,
    pub channels: usize,
}

/// The samples of a file, in blocks.
pub(super) trait Blocks: Send + Sync {
    /// Replaces `samples` with the next block, channels interleaved; returns `None` at the end. A
    /// block may be empty.
    ///
    /// # Errors
    /// a description of the problem with the file
    fn next(&mut self, samples: &mut Vec<f32>) -> Result<Option<Format>, String>;

    /// Returns the approximate duration in seconds, or `None` if it is unknown.
    fn seconds(&self) -> Option<f64>;
}

/// The first bytes and the names of formats that are not supported.
const UNSUPPORTED: [(&[u8], &str); 6] = [
    (b"FORM", "AIFF"),
    (b"caff", "CAF"),
    (b".snd", "AU"),
    (b"#!AMR", "AMR"),
    (b"\x1a\x45\xdf\xa3", "Matroska or WebM"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media"),
];
/// The number of bytes that identify a format.
const HEAD_BYTES: usize = 16;

/// Opens a file and detects its format from the first bytes.
///
/// # Errors
/// a description of the problem with the file
pub(super) fn open(mut input: Input, hint: &Hint) -> Result<Box<dyn Blocks>, String> {
    skip_tags(&mut input).map_err(cannot_read)?;
    let head = input.peek(HEAD_BYTES).map_err(cannot_read)?.to_vec();
    if let Some((_, name)) = UNSUPPORTED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(format!("is {name}, which is not supported"));
    }
    if WaveBlocks::has_header(&head) {
        return Ok(Box::new(WaveBlocks::open(input)?));
    }
    if head.starts_with(b"fLaC") {
        return Ok(Box::new(FlacBlocks::open(input)?));
    }
    let is_ogg_or_mp4 = head.starts_with(b"OggS") || head.get(4..8) == Some(b"ftyp");
    let input = if is_ogg_or_mp4 {
        input
    } else {
        match MpegBlocks::open(input).map_err(cannot_read)? {
            Ok(blocks) => return Ok(Box::new(blocks)),
            Err(input) => input,
        }
    };
    Ok(Box::new(PacketBlocks::open(input, hint)?))
}

/// Skips ID3v2 tags.
fn skip_tags(input: &mut Input) -> std::io::Result<()> {
    while let Some(length) = id3v2_length(input.peek(10)?) {
        if !input.skip(length)? {
            break;
        }
    }
    Ok(())
}

/// Returns the length of the ID3v2 tag at the start of `bytes`; `None` if there is no tag.
pub(super) fn id3v2_length(bytes: &[u8]) -> Option<u64> {
    let &[b'I', b'D', b'3', version, _, flags, a, b, c, d, ..] = bytes else { return None };
    if version == 0xff || [a, b, c, d].iter().any(|byte| *byte > 0x7f) {
        return None;
    }
    let size = [a, b, c, d].iter().fold(0, |size, byte| size << 7 | u64::from(*byte));
    let footer = if flags & 0x10 == 0 { 0 } else { 10 };
    Some(10 + size + footer)
}

pub(super) fn cannot_read(error: std::io::Error) -> String {
    format!("cannot be read ({error})")
}
