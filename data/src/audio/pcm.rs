//! Uncompressed (PCM) samples.

/// The encoding of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// From 0 to 255; 128 is silence.
    Unsigned8,
    /// Signed, of 1 to 8 bytes.
    Integer {
        bytes: usize,
    },
    Float32,
    Float64,
    ALaw,
    MuLaw,
}

/// An encoding and its byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pcm {
    pub encoding: Encoding,
    pub is_big_endian: bool,
}

impl Pcm {
    /// Returns the number of bytes per sample.
    pub(super) fn bytes_per_sample(&self) -> usize {
        match self.encoding {
            Encoding::Unsigned8 | Encoding::ALaw | Encoding::MuLaw => 1,
            Encoding::Integer { bytes } => bytes,
            Encoding::Float32 => 4,
            Encoding::Float64 => 8,
        }
    }

    /// Decodes bytes, and replaces `samples` with the values, from -1 to 1.
    pub(super) fn decode(&self, bytes: &[u8], samples: &mut Vec<f32>) {
        samples.clear();
        let values = bytes.chunks_exact(self.bytes_per_sample());
        match self.encoding {
            Encoding::Unsigned8 => {
                samples.extend(bytes.iter().map(|byte| (f32::from(*byte) - 128.0) / 128.0));
            }
            Encoding::ALaw => samples.extend(bytes.iter().map(|byte| a_law(*byte))),
            Encoding::MuLaw => samples.extend(bytes.iter().map(|byte| mu_law(*byte))),
            Encoding::Integer { bytes } => {
                // The sign is in the highest bit, for each number of bytes.
                let shift = 64 - 8 * bytes as u32;
                let value = |value| (self.bits(value) << shift).cast_signed() as f64;
                samples.extend(values.map(|bytes| (value(bytes) / 2f64.powi(63)) as f32));
            }
            Encoding::Float32 => {
                samples.extend(values.map(|value| f32::from_bits(self.bits(value) as u32)));
            }
            Encoding::Float64 => {
                samples.extend(values.map(|value| f64::from_bits(self.bits(value)) as f32));
            }
        }
    }

    fn bits(&self, value: &[u8]) -> u64 {
        let add = |bits: u64, byte: &u8| bits << 8 | u64::from(*byte);
        if self.is_big_endian { value.iter().fold(0, add) } else { value.iter().rev().fold(0, add) }
    }
}

/// Decodes an A-law byte to a sample from -1 to 1.
///
/// # Source   ITU-T G.711, table 1
fn a_law(byte: u8) -> f32 {
    let bits = byte ^ 0x55;
    let (segment, step) = (u32::from(bits >> 4 & 7), f32::from(bits & 15));
    let size = match segment {
        0 => 16.0 * step + 8.0,
        segment => (16.0 * step + 264.0) * f32::from(1u16 << (segment - 1)),
    };
    let value = size / 32_768.0;
    if bits & 0x80 == 0 { -value } else { value }
}

/// Decodes a mu-law byte to a sample from -1 to 1.
///
/// # Source   ITU-T G.711, table 2
fn mu_law(byte: u8) -> f32 {
    let bits = !byte;
    let (segment, step) = (u32::from(bits >> 4 & 7), f32::from(bits & 15));
    let value = ((8.0 * step + 132.0) * f32::from(1u16 << segment) - 132.0) / 32_768.0;
    if bits & 0x80 == 0 { value } else { -value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_encoding_decodes_to_the_expected_samples() {
        let decoded = |encoding, is_big_endian, bytes: &[u8]| {
            let mut samples = vec![9.0];
            Pcm { encoding, is_big_endian }.decode(bytes, &mut samples);
            samples
        };
        assert_eq!(decoded(Encoding::Unsigned8, false, &[0, 128, 192]), [-1.0, 0.0, 0.5]);
        let integer = |bytes| Encoding::Integer { bytes };
        assert_eq!(decoded(integer(1), false, &[0x80, 0, 0x40]), [-1.0, 0.0, 0.5]);
        assert_eq!(decoded(integer(2), false, &[0, 0x80, 0, 0x40, 7]), [-1.0, 0.5]);
        assert_eq!(decoded(integer(2), true, &[0x80, 0, 0x40, 0]), [-1.0, 0.5]);
        assert_eq!(decoded(integer(3), false, &[0, 0, 0xc0]), [-0.5]);
        assert_eq!(decoded(integer(4), true, &[0x20, 0, 0, 0]), [0.25]);
        assert_eq!(decoded(Encoding::Float32, true, &0.3f32.to_be_bytes()), [0.3]);
        assert_eq!(decoded(Encoding::Float64, false, &0.25f64.to_le_bytes()), [0.25]);
        let scaled = |values: [i32; 4]| values.map(|value| value as f32 / 32_768.0);
        // From the tables of G.711, as decoded by ffmpeg.
        let a_law = decoded(Encoding::ALaw, false, &[0xd5, 0x55, 0xaa, 0x2a]);
        assert_eq!(a_law, scaled([8, -8, 32_256, -32_256]));
        let mu_law = decoded(Encoding::MuLaw, false, &[0xff, 0x7f, 0x80, 0x00]);
        assert_eq!(mu_law, scaled([0, 0, 32_124, -32_124]));
    }
}
