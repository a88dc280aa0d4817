//! Opus packets, decoded at 48 kHz by libopus. All calls into libopus are here.
//!
//! # Source   RFC 6716; RFC 7845 §5.1 for the header; "Encapsulation of Opus in ISO Base Media File
//! Format" §4.3.2 for its form in MP4

use std::ptr::NonNull;

use unsafe_libopus::{
    OpusMSDecoder, opus_multistream_decode_float, opus_multistream_decoder_create,
    opus_multistream_decoder_destroy,
};

use super::blocks::Format;

/// The sample rate of the output, in Hz.
const RATE: u32 = 48_000;
/// The length of the longest packet, 120 ms, in samples per channel.
const MAX_PACKET_SAMPLES: usize = 5_760;

/// A decoder of one stream.
pub(super) struct Opus {
    decoder: NonNull<OpusMSDecoder>,
    format: Format,
    /// The factor of the samples.
    gain: f32,
    /// Samples per channel still to be removed at the start.
    skip: usize,
}

// SAFETY: No other value refers to the memory of the decoder, and only `&mut self` uses it.
unsafe impl Send for Opus {}
// SAFETY: as above
unsafe impl Sync for Opus {}

impl Opus {
    /// Makes a decoder for the stream with the header `OpusHead`. If `gapless` is set, it removes
    /// the samples at the start that the header announces.
    ///
    /// # Errors
    /// a description of the problem with the header
    pub(super) fn new(head: &[u8], gapless: bool) -> Result<Self, String> {
        let damaged = || "has no valid Opus header".to_owned();
        let Some([version, channels, a, b, _, _, _, _, c, d, family, rest @ ..]) =
            head.strip_prefix(b"OpusHead")
        else {
            return Err(damaged());
        };
        let (skip, gain) = match version {
            // MP4
            0 => (u16::from_be_bytes([*a, *b]), i16::from_be_bytes([*c, *d])),
            _ => (u16::from_le_bytes([*a, *b]), i16::from_le_bytes([*c, *d])),
        };
        let layout = match (family, channels) {
            (0, 1..=2) => &[1, channels - 1, 0, 1][..],
            (0, _) => return Err(damaged()),
            // One or more streams of one or two channels each, and the stream of each channel.
            (1 | 255, _) => rest,
            _ => return Err(format!("is Opus of the channel mapping {family}, which is not read")),
        };
        let channels = usize::from(*channels);
        let (Some([streams, coupled]), Some(mapping)) =
            (layout.first_chunk(), layout.get(2..2 + channels))
        else {
            return Err(damaged());
        };
        let mut error = 0;
        // SAFETY: `mapping` has `channels` bytes.
        let decoder = unsafe {
            opus_multistream_decoder_create(
                RATE as i32,
                channels as i32,
                i32::from(*streams),
                i32::from(*coupled),
                mapping.as_ptr(),
                &raw mut error,
            )
        };
        Ok(Self {
            decoder: NonNull::new(decoder).ok_or_else(damaged)?,
            format: Format { rate: RATE, channels },
            gain: 10f32.powf(f32::from(gain) / (20.0 * 256.0)),
            skip: if gapless { skip.into() } else { 0 },
        })
    }

    /// Replaces `samples` with the samples of a packet, channels interleaved, without the last
    /// `trim_end` samples of each channel.
    ///
    /// # Errors
    /// a description of the problem with the packet
    pub(super) fn decode(
        &mut self,
        packet: &[u8],
        trim_end: u64,
        samples: &mut Vec<f32>,
    ) -> Result<Format, String> {
        let channels = self.format.channels;
        samples.clear();
        // libopus would conceal the loss of a packet of the greatest length.
        if packet.is_empty() {
            return Ok(self.format);
        }
        samples.resize(MAX_PACKET_SAMPLES * channels, 0.0);
        // SAFETY: `packet` and `samples` have the lengths given here, and `new` made the decoder
        // for `channels` channels.
        let count = unsafe {
            opus_multistream_decode_float(
                self.decoder.as_ptr(),
                packet.as_ptr(),
                packet.len().try_into().map_err(|_| "has a damaged Opus packet")?,
                samples.as_mut_ptr(),
                MAX_PACKET_SAMPLES as i32,
                0,
            )
        };
        let count = usize::try_from(count).map_err(|_| "has a damaged Opus packet")?;
        let skipped = self.skip.min(count);
        self.skip -= skipped;
        let end = count.saturating_sub(trim_end as usize).max(skipped);
        samples.truncate(end * channels);
        samples.drain(..skipped * channels);
        samples.iter_mut().for_each(|sample| *sample *= self.gain);
        Ok(self.format)
    }
}

impl Drop for Opus {
    fn drop(&mut self) {
        // SAFETY: `opus_multistream_decoder_create` made the decoder, and nothing else destroys it.
        unsafe { opus_multistream_decoder_destroy(self.decoder.as_ptr()) }
    }
}
