//! MPEG audio frame headers, and the info frames of Xing, LAME and Fraunhofer, which hold no audio.
//!
//! # Source   ISO/IEC 11172-3 §2.4.1.3, ISO/IEC 13818-3 §2.4.1.3; "Mp3 Info Tag revision 1
//! Specifications" of LAME, which also gives the decoder delay of 529 samples

/// The length of a header, in bytes.
pub(super) const HEADER_BYTES: usize = 4;
/// The delay of a decoder, in samples.
const DECODER_DELAY: u32 = 529;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The bits of version, layer and sample rate, which are constant in a stream.
    pub kind: u32,
    pub layer: u32,
    /// The sample rate, in Hz.
    pub rate: u32,
    pub channels: usize,
    /// Length of the frame with its header, in bytes.
    pub length: usize,
    /// Samples per channel.
    pub samples: usize,
    is_version_1: bool,
}

/// Sample rates of version 1, in Hz; version 2 has half of them, version 2.5 a quarter.
const RATES: [u32; 3] = [44_100, 48_000, 32_000];
/// Kilobits per second: version 1 by layer, then version 2 in layer 1, then version 2 in the other
/// layers.
const BITRATES: [[u32; 15]; 5] = [
    [0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
    [0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
    [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
    [0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
    [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
];

impl Header {
    /// Parses the header in the first four bytes. Returns `None` if there is no header, and for
    /// free-format frames, which are not supported.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = u32::from_be_bytes(*bytes.first_chunk()?);
        let bits = |offset: u32, count: u32| (word >> offset) & ((1 << count) - 1);
        let version = bits(19, 2);
        if bits(21, 11) != 0x7ff || version == 1 || bits(17, 2) == 0 {
            return None;
        }
        let (layer, is_version_1) = (4 - bits(17, 2), version == 3);
        let table = match (is_version_1, layer) {
            (true, layer) => layer as usize - 1,
            (false, 1) => 3,
            (false, _) => 4,
        };
        let bitrate = 1000 * BITRATES[table].get(bits(12, 4) as usize)?;
        let rate = RATES.get(bits(10, 2) as usize)?
            >> match version {
                3 => 0,
                2 => 1,
                _ => 2,
            };
        if bitrate == 0 {
            return None;
        }
        let samples = match (layer, is_version_1) {
            (1, _) => 384,
            (3, false) => 576,
            _ => 1152,
        };
        let padding = bits(9, 1);
        let length = match layer {
            1 => (12 * bitrate / rate + padding) * 4,
            _ => samples / 8 * bitrate / rate + padding,
        };
        let channels = if bits(6, 2) == 3 { 1 } else { 2 };
        let (length, samples) = (length as usize, samples as usize);
        let kind = word & 0x001e_0c00;
        Some(Self { kind, layer, rate, channels, length, samples, is_version_1 })
    }

    /// Whether two frames can belong to the same stream.
    pub(super) fn is_same_kind(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// The content of an info frame of Xing, LAME or VBRI.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Info {
    /// The number of frames that follow; `None` if it is not given.
    pub frames: Option<u64>,
    /// Samples per channel to remove at the start and at the end.
    pub trim_start: usize,
    pub trim_end: usize,
}

impl Info {
    /// Parses an info frame; returns `None` for a frame with audio.
    pub(super) fn parse(header: &Header, frame: &[u8]) -> Option<Self> {
        if header.layer != 3 {
            return None;
        }
        let number = |offset: usize| {
            frame.get(offset..offset + 4)?.first_chunk().copied().map(u32::from_be_bytes)
        };
        if frame.get(36..40) == Some(b"VBRI") {
            return Some(Self { frames: number(36 + 14).map(u64::from), ..Self::default() });
        }
        let side_info_bytes = match (header.is_version_1, header.channels) {
            (true, 2) => 32,
            (true, _) | (false, 2) => 17,
            (false, _) => 9,
        };
        let mut offset = HEADER_BYTES + side_info_bytes;
        if !matches!(frame.get(offset..offset + 4)?, b"Xing" | b"Info") {
            return None;
        }
        let flags = number(offset + 4).unwrap_or(0);
        offset += 8;
        let frames = (flags & 1 != 0).then(|| number(offset)).flatten().map(u64::from);
        // Frames, bytes, the table of contents and the quality.
        for (bit, length) in [(1, 4), (2, 4), (4, 100), (8, 4)] {
            offset += if flags & bit != 0 { length } else { 0 };
        }
        let is_lame = matches!(frame.get(offset..offset + 4), Some(b"LAME" | b"Lavf" | b"Lavc"));
        let trim = number(offset + 21).filter(|_| is_lame).map(|trim| trim >> 8);
        let (trim_start, trim_end) = trim.map_or((0, 0), |trim| {
            (DECODER_DELAY + (trim >> 12), (trim & 0xfff).saturating_sub(DECODER_DELAY))
        });
        Some(Self { frames, trim_start: trim_start as usize, trim_end: trim_end as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_headers_are_parsed() {
        let header = Header::parse(&[0xff, 0xfb, 0x90, 0x64]).expect("128 kb/s, 44,100 Hz, stereo");
        let Header { layer, rate, channels, length, samples, .. } = header;
        assert_eq!((layer, rate, channels, length, samples), (3, 44_100, 2, 417, 1152));
        let header = Header::parse(&[0xff, 0xf3, 0x48, 0xc4]).expect("32 kb/s, 16,000 Hz, mono");
        assert_eq!((header.rate, header.channels, header.length), (16_000, 1, 144));
        assert_eq!(header.samples, 576);
        let header = Header::parse(&[0xff, 0xfd, 0x84, 0xc0]).expect("layer 2");
        assert_eq!((header.layer, header.rate, header.length), (2, 48_000, 384));
        for invalid in [
            [0xff, 0xdb, 0x90, 0x64],
            [0xff, 0xeb, 0x90, 0x64],
            [0xff, 0xf9, 0x90, 0x64],
            [0xff, 0xfb, 0xf0, 0x64],
            [0xff, 0xfb, 0x00, 0x64],
            [0xff, 0xfb, 0x9c, 0x64],
        ] {
            assert_eq!(Header::parse(&invalid), None, "{invalid:x?}");
        }
        assert_eq!(Header::parse(&[0xff, 0xfb]), None);
    }

    #[test]
    fn an_info_frame_has_a_frame_count_and_a_delay() {
        let header = Header::parse(&[0xff, 0xfb, 0x90, 0x64]).expect("a header");
        let mut frame = vec![0; header.length];
        assert_eq!(Info::parse(&header, &frame), None);
        frame[36..40].copy_from_slice(b"Info");
        frame[43] = 0x0f;
        frame[44..48].copy_from_slice(&100u32.to_be_bytes());
        assert_eq!(
            Info::parse(&header, &frame),
            Some(Info { frames: Some(100), ..Info::default() })
        );
        frame[156..160].copy_from_slice(b"LAME");
        frame[177..180].copy_from_slice(&[0x24, 0x05, 0x00]);
        let info = Info { frames: Some(100), trim_start: 576 + 529, trim_end: 1280 - 529 };
        assert_eq!(Info::parse(&header, &frame), Some(info));
        assert_eq!(Info::parse(&header, &frame[..170]).expect("a short frame").trim_start, 0);
        frame[36..40].copy_from_slice(b"VBRI");
        assert!(Info::parse(&header, &frame).is_some());
    }
}
