//! Container files that Symphonia demuxes: Ogg, MP4, Matroska, CAF with compressed samples, and ADTS.
//! All calls into Symphonia are here; a panic in a decoder becomes an error.

use std::io::ErrorKind;

use symphonia::core::codecs::audio::well_known::{
    CODEC_ID_AC3, CODEC_ID_ADPCM_IMA_QT, CODEC_ID_DCA, CODEC_ID_EAC3, CODEC_ID_OPUS,
    CODEC_ID_TRUEHD,
};
use symphonia::core::codecs::audio::{
    AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions,
};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use super::blocks::{Blocks, Format, cannot_read};
use super::input::Input;
use super::mp4::{self, Edits};
use super::opus::Opus;
use crate::guard::guarded;

const PANICKED: &str = "is damaged: the decoder panicked";
/// Codecs that are not supported, and their names.
const UNSUPPORTED: [(AudioCodecId, &str); 5] = [
    (CODEC_ID_AC3, "AC-3"),
    (CODEC_ID_ADPCM_IMA_QT, "ADPCM"),
    (CODEC_ID_EAC3, "Enhanced AC-3"),
    (CODEC_ID_DCA, "DTS"),
    (CODEC_ID_TRUEHD, "TrueHD"),
];
/// An Ogg stream with a gap of more samples is refused. A Vorbis block has at most this many.
const MAX_GAP_SAMPLES: i64 = 8192;

/// The audio of a file in a container.
pub(super) struct PacketBlocks {
    demuxer: Demuxer,
    decoder: Decoder,
    /// The parts of an MP4 track to play; `None` for other formats.
    edits: Option<Edits>,
    /// The number of decoded samples per channel.
    decoded: u64,
    format: Option<Format>,
    container: Container,
    /// The expected start of the next packet in an Ogg stream, in samples; `None` if it is unknown.
    expected_start: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Mp4,
    Ogg,
    Other,
}

impl PacketBlocks {
    pub(super) fn open(mut input: Input, hint: &Hint) -> Result<Self, String> {
        let head = input.peek(8).map_err(cannot_read)?;
        let container = match head {
            [_, _, _, _, b'f', b't', b'y', b'p'] => Container::Mp4,
            head if head.starts_with(b"OggS") => Container::Ogg,
            _ => Container::Other,
        };
        let mut tracks = Vec::new();
        if container == Container::Mp4 {
            input = input.in_memory().map_err(cannot_read)?;
            tracks = mp4::tracks(&mut input)?;
        }
        let demuxer = Demuxer::open(Box::new(input), hint)?;
        let edits = tracks.into_iter().find(|(id, _)| *id == demuxer.track).map(|(_, edits)| edits);
        let gapless = edits.as_ref().is_none_or(Edits::is_empty);
        let decoder = Decoder::new(&demuxer.parameters, gapless)?;
        let (decoded, format, expected_start) = (0, None, None);
        Ok(Self { demuxer, decoder, edits, decoded, format, container, expected_start })
    }

    /// Refuses an Ogg stream with a gap.
    fn check_continuity(&mut self, packet: &Packet, format: Format) -> Result<(), String> {
        if self.container != Container::Ogg {
            return Ok(());
        }
        let (start, length) = (packet.pts.get(), packet.block_dur().get() as i64);
        let missing = self.expected_start.map_or(0, |expected| start.saturating_sub(expected));
        if missing > MAX_GAP_SAMPLES {
            let seconds = start.saturating_sub(missing) as f64 / f64::from(format.rate);
            return Err(format!("is damaged: {missing} samples are missing at {seconds:.2} s"));
        }
        self.expected_start = Some(start.saturating_add(length));
        Ok(())
    }

    /// Returns `None`, or an error if samples are missing at the end of an MP4 track.
    fn end(&self) -> Result<Option<Format>, String> {
        let (decoded, format) = (self.decoded, self.format);
        match (self.edits.as_ref().and_then(|edits| edits.duration), format) {
            (Some((units, scale)), Some(format)) => {
                let expected =
                    (u128::from(units) * u128::from(format.rate) / u128::from(scale)) as u64;
                // The header's length of the last packet may differ from its real length.
                if decoded + mp4::MAX_PACKET_SAMPLES < expected {
                    Err(format!("is truncated: {decoded} of {expected} samples are present"))
                } else {
                    Ok(None)
                }
            }
            _ => Ok(None),
        }
    }
}

impl Blocks for PacketBlocks {
    fn next(&mut self, samples: &mut Vec<f32>) -> Result<Option<Format>, String> {
        samples.clear();
        let packet = match self.demuxer.next()? {
            Next::Packet(packet) => packet,
            Next::NewStream => {
                // Another recording was appended to this recording.
                self.decoder = Decoder::new(&self.demuxer.parameters, true)?;
                self.expected_start = None;
                return self.next(samples);
            }
            Next::End => return self.end(),
            Next::Truncated if self.container == Container::Mp4 && self.edits.is_some() => {
                return match self.end()? {
                    None => Err("is truncated within its last packets".to_owned()),
                    some => Ok(some),
                };
            }
            Next::Truncated => return Ok(None),
        };
        let format = self.decoder.decode(&packet, samples)?;
        self.check_continuity(&packet, format)?;
        self.format = Some(format);
        let count = (samples.len() / format.channels.max(1)) as u64;
        if let Some(edits) = &mut self.edits {
            edits.retain_played(self.decoded, format, samples);
        }
        self.decoded += count;
        Ok(Some(format))
    }

    fn seconds(&self) -> Option<f64> {
        self.demuxer.seconds
    }
}

/// The next event of a demuxer.
pub(super) enum Next {
    Packet(Packet),
    /// Another stream with its own parameters.
    NewStream,
    End,
    /// An unexpected end of the file.
    Truncated,
}

/// The packets of one track.
pub(super) struct Demuxer {
    format: Box<dyn FormatReader>,
    /// The track id.
    track: u32,
    pub parameters: AudioCodecParameters,
    /// The number of samples per channel according to the header; `None` if it is not given.
    pub frame_count: Option<u64>,
    /// The approximate duration; `None` if it is unknown.
    pub seconds: Option<f64>,
}

impl Demuxer {
    pub(super) fn open(source: Box<dyn MediaSource>, hint: &Hint) -> Result<Self, String> {
        let stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
        let (options, metadata) = (FormatOptions::default(), MetadataOptions::default());
        let probe = || symphonia::default::get_probe().probe(hint, stream, options, metadata);
        let format = guarded(probe)
            .map_err(|_| PANICKED)?
            .map_err(|error| format!("not a readable audio file ({error})"))?;
        let parameters = AudioCodecParameters::new();
        let mut demuxer = Self { format, track: 0, parameters, frame_count: None, seconds: None };
        demuxer.find_track()?;
        Ok(demuxer)
    }

    fn find_track(&mut self) -> Result<(), String> {
        let Some(track) = self.format.default_track(TrackType::Audio) else {
            return Err("has no audio track of a supported codec".to_owned());
        };
        let Some(parameters) = track.codec_params.as_ref().and_then(|codec| codec.audio()) else {
            return Err("its audio codec is unknown".to_owned());
        };
        let rate = parameters.sample_rate;
        self.seconds =
            track.num_frames.zip(rate).map(|(count, rate)| count as f64 / f64::from(rate));
        (self.track, self.frame_count) = (track.id, track.num_frames);
        self.parameters = parameters.clone();
        Ok(())
    }

    pub(super) fn next(&mut self) -> Result<Next, String> {
        loop {
            match guarded(|| self.format.next_packet()).map_err(|_| PANICKED)? {
                Ok(Some(packet)) if packet.track_id == self.track => {
                    return Ok(Next::Packet(packet));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Next::End),
                Err(Error::ResetRequired) => {
                    self.find_track()?;
                    return Ok(Next::NewStream);
                }
                Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(Next::Truncated);
                }
                Err(error) => return Err(format!("cannot be decoded ({error})")),
            }
        }
    }
}

/// A decoder of packets.
pub(super) enum Decoder {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Opus),
}

impl Decoder {
    /// Makes a decoder. If `gapless` is set, the decoder removes the padding that the packets or the
    /// header announce.
    pub(super) fn new(parameters: &AudioCodecParameters, gapless: bool) -> Result<Self, String> {
        if parameters.codec == CODEC_ID_OPUS {
            let head = parameters.extra_data.as_deref().unwrap_or_default();
            return Ok(Self::Opus(Opus::new(head, gapless)?));
        }
        if let Some((_, name)) = UNSUPPORTED.iter().find(|(id, _)| *id == parameters.codec) {
            return Err(format!("has {name} audio, which is not supported"));
        }
        let options = AudioDecoderOptions::default().gapless(gapless);
        let make = || symphonia::default::get_codecs().make_audio_decoder(parameters, &options);
        let decoder = guarded(make).map_err(|_| PANICKED)?;
        let decoder = decoder.map_err(|error| format!("its audio cannot be decoded ({error})"))?;
        Ok(Self::Symphonia(decoder))
    }

    /// Replaces `samples` with the samples of a packet, channels interleaved.
    pub(super) fn decode(
        &mut self,
        packet: &Packet,
        samples: &mut Vec<f32>,
    ) -> Result<Format, String> {
        let decoded = guarded(|| match self {
            Self::Symphonia(decoder) => {
                let decoded = decoder
                    .decode(packet)
                    .map_err(|error| format!("cannot be decoded ({error})"))?;
                samples.clear();
                decoded.copy_to_vec_interleaved(samples);
                let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
                Ok(Format { rate, channels })
            }
            Self::Opus(decoder) => decoder.decode(&packet.data, packet.trim_end.get(), samples),
        });
        decoded.map_err(|_| PANICKED)?
    }
}
