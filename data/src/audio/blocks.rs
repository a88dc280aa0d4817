//! Reads an audio file as blocks of samples, each with its sample rate and channels.
//!
//! The first bytes determine the format; the file extension does not. Sizes and counts in headers
//! are hints: a reader checks them against the bytes that are present.

use symphonia::core::formats::probe::Hint;

use super::flac::FlacBlocks;
use super::input::Input;
use super::mpeg::{MpegBlocks, mpeg_frame};
use super::packets::PacketBlocks;
use super::text::text_kind;
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
const UNSUPPORTED: [(&[u8], &str); 11] = [
    (b"#!AMR", "AMR"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media"),
    (b"wvpk", "WavPack"),
    (b"NIST_1A", "NIST SPHERE"),
    (b"FLV\x01", "FLV"),
    (b"TTA1", "True Audio"),
    (b"MAC ", "Monkey's Audio"),
    (b"Creative Voice File", "Creative Voice"),
    (b".SoX", "SoX"),
    (b"\x1f\x8b\x08", "gzip (unpack it)"),
    (b"PK\x03\x04", "ZIP (unpack it)"),
];
/// The first bytes of a Matroska or WebM file.
pub(super) const MATROSKA: &[u8; 4] = b"\x1a\x45\xdf\xa3";
/// The length of a packet of an MPEG transport stream, in bytes.
const TS_PACKET_BYTES: usize = 188;
/// The length of the longest header of an MPEG or AAC frame, in bytes.
const MAX_HEADER_BYTES: usize = 7;
/// The number of bytes that identify a format.
const HEAD_BYTES: usize = 3 * TS_PACKET_BYTES;
/// A shorter text is taken for samples.
const MIN_TEXT_BYTES: usize = 16;

/// Returns the name of the file format that begins with `head`; `None` for raw samples. `head` has
/// about 3,000 bytes, or all bytes of a shorter input.
///
/// Two samples can look like the header of an MPEG or AAC frame. So such a frame counts only if
/// others follow it: two, or one if the bytes end after it.
pub fn file_format(head: &[u8]) -> Option<&'static str> {
    let zeros = head.iter().take_while(|byte| **byte == 0).count();
    match head.first_chunk()? {
        b"RIFF" | b"RIFX" | b"RF64" | b"BW64" | b"riff" => Some("WAV or AVI"),
        b"fLaC" => Some("FLAC"),
        b"OggS" => Some("Ogg"),
        b"FORM" => Some("AIFF"),
        b"caff" => Some("CAF"),
        b".snd" => Some("AU"),
        MATROSKA => Some("Matroska or WebM"),
        _ if head.get(4..8) == Some(b"ftyp") => Some("MP4"),
        _ if id3v2_length(head).is_some() || has_frames(&head[zeros..], mpeg_frame) => Some("MP3"),
        _ if has_frames(head, aac_frame) => Some("AAC"),
        _ if head.len() >= MIN_TEXT_BYTES && text_kind(head).is_some() => Some("text"),
        _ => unsupported(head),
    }
}

/// Returns the name of a format that is not supported.
fn unsupported(head: &[u8]) -> Option<&'static str> {
    let is_ts = (0..3).all(|i| head.get(i * TS_PACKET_BYTES) == Some(&0x47));
    // The identification of the stream is 6, 8, or 16 for Enhanced AC-3.
    let is_ac3 = |kind: &u8| head.starts_with(b"\x0b\x77") && matches!(kind >> 3, 6 | 8 | 16);
    match head {
        _ if is_ts => Some("an MPEG transport stream"),
        _ if head.get(5).is_some_and(is_ac3) => Some("AC-3"),
        _ if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"AVI ") => Some("AVI"),
        _ if head.starts_with(b"OggS") => match head.get(28..47)? {
            [b'S', b'p', b'e', b'e', b'x', ..] => Some("Speex"),
            // Symphonia does not demux the other channel mappings.
            [b'O', b'p', b'u', b's', .., (2..)] => Some("Opus of an unusual channel mapping"),
            _ => None,
        },
        _ => UNSUPPORTED.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, name)| *name),
    }
}

/// Whether `head` begins with frames of one kind. `parse` returns the kind and the length of the
/// frame whose header starts its bytes.
fn has_frames(head: &[u8], parse: impl Fn(&[u8]) -> Option<(u32, usize)>) -> bool {
    let Some((kind, first_length)) = parse(head) else { return false };
    let mut next = first_length;
    for _ in 0..2 {
        let rest = head.get(next..).unwrap_or_default();
        if rest.len() < MAX_HEADER_BYTES {
            return next > first_length;
        }
        match parse(rest) {
            Some((next_kind, length)) if next_kind == kind => next += length,
            _ => return false,
        }
    }
    true
}

/// The kind and the length of a frame of AAC in ADTS, from its header.
fn aac_frame(bytes: &[u8]) -> Option<(u32, usize)> {
    let &[0xff, sync, kind, c, d, e, ..] = bytes else { return None };
    let length = usize::from(c & 3) << 11 | usize::from(d) << 3 | usize::from(e >> 5);
    let is_header = sync & 0xf6 == 0xf0 && kind >> 2 & 0xf < 13 && length > 7;
    is_header.then_some((u32::from(kind & 0xfd) << 8 | u32::from(sync), length))
}

/// Opens a file and detects its format from the first bytes.
///
/// # Errors
/// a description of the problem with the file
pub(super) fn open(mut input: Input, hint: &Hint) -> Result<Box<dyn Blocks>, String> {
    skip_tags(&mut input).map_err(cannot_read)?;
    let head = input.peek(HEAD_BYTES).map_err(cannot_read)?.to_vec();
    if let Some(name) = unsupported(&head) {
        return Err(format!("is {name}, which is not supported"));
    }
    if WaveBlocks::has_header(&head) {
        return Ok(Box::new(WaveBlocks::open(input)?));
    }
    if head.starts_with(b"fLaC") {
        return Ok(Box::new(FlacBlocks::open(input)?));
    }
    let is_container = head.starts_with(b"OggS")
        || head.starts_with(b"caff")
        || head.starts_with(MATROSKA)
        || head.get(4..8) == Some(b"ftyp");
    let input = if is_container {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_raw_samples() {
        let magics =
            ["RIFF", "RF64", "fLaC", "OggS", "ID3\x04\0\0\0\0\x01\0", "\0\0\0 ftyp", "FORM"];
        for magic in magics.into_iter().chain(["caff", ".snd"]) {
            assert!(file_format(magic.as_bytes()).is_some(), "{magic:?}");
            let samples = [&b"\0\0"[..], magic.as_bytes()].concat();
            assert_eq!(file_format(&samples), None, "{magic:?} after a sample");
        }
        assert_eq!(file_format(b"\x1a\x45\xdf\xa3"), Some("Matroska or WebM"));
        let ts = [&b"\x47"[..], &[0; 187]].concat().repeat(3);
        for (bytes, expected) in [
            (&b"FLV\x01\x05"[..], Some("FLV")),
            (b"\x0b\x77\0\0\x14\x40", Some("AC-3")),
            (b"\x0b\x77\0\0\x14\xe0", None),
            (b"TTA1", Some("True Audio")),
            (b"Creative Voice File\x1a", Some("Creative Voice")),
            (b".SoX", Some("SoX")),
            (b"\x1f\x8b\x08\0", Some("gzip (unpack it)")),
            (b"version https://git-lfs.github.com/spec/v1\n", Some("text")),
            (b"{\"audio\": \"a.wav\"}\n", Some("text")),
            (b"[\"\xc3\xa4.wav\", \"b.wav\"]", Some("text")),
            (&ts, Some("an MPEG transport stream")),
            (&ts[..376], None),
            (b"short text", None),
        ] {
            assert_eq!(file_format(bytes), expected, "{}", bytes.escape_ascii());
        }
        // MP3 with 128 kbit/s at 44.1 kHz, and AAC with frames of 100 bytes.
        let aac = b"\xff\xf1\x50\x80\x0c\x9f\xfc";
        for (name, header, length) in [("MP3", &b"\xff\xfb\x90\x64"[..], 417), ("AAC", aac, 100)] {
            let frame = [header, &vec![7; length - header.len()]].concat();
            let frames = frame.repeat(3);
            for (bytes, expected) in [
                (&frames[..], Some(name)),
                (&frames[..2 * length], Some(name)),
                (&[&[0; 99][..], &frames].concat(), Some(name).filter(|name| *name == "MP3")),
                // One header may be samples, and so may two that are not one frame apart.
                (&frames[..length], None),
                (&[&frame[..], &frame[..20], &frame[..]].concat(), None),
                (&[header; 200].concat(), None),
            ] {
                assert_eq!(file_format(bytes), expected, "{name}, {} bytes", bytes.len());
            }
        }
        for samples in [&[][..], b"RIF", &[0; 3200], &[0xff; 3200], b"\xff\xfb"] {
            assert_eq!(file_format(samples), None, "{} bytes", samples.len());
        }
    }
}
