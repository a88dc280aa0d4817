//! MPEG audio: MP3, and layers 1 and 2.
//!
//! This reader finds the frames, and Symphonia decodes them. The first frame may be an info frame
//! of Xing or LAME with the number of frames and the encoder's padding before and after the audio.
//! The padding at the end is removed only if the announced number of frames is present. A damaged
//! frame becomes silence, so that times stay correct.

mod frames;
mod header;

use std::collections::VecDeque;

use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_MP1, CODEC_ID_MP2, CODEC_ID_MP3};
use symphonia::core::packet::Packet;
use symphonia::core::units::{Duration, Timestamp};

use super::blocks::{Blocks, Format, cannot_read};
use super::input::Input;
use super::packets::Decoder;
use frames::{FrameEvent, Frames};
use header::{Header, Info};

/// A file is refused if more than one in ten of its frames is damaged, or if more than one in ten
/// of its bytes belongs to no frame.
const REFUSED_ONE_IN: u64 = 10;
/// A file with up to this number of damaged frames is always accepted.
const ALLOWED_DAMAGED: u64 = 5;

/// The kind and the length of the frame whose header starts `bytes`.
pub(super) fn mpeg_frame(bytes: &[u8]) -> Option<(u32, usize)> {
    Header::parse(bytes).map(|header| (header.kind, header.length))
}

/// The audio of a stream of frames.
pub(super) struct MpegBlocks {
    frames: Frames,
    /// Frames that were read ahead to see whether a format change lasts.
    ahead: VecDeque<FrameEvent>,
    /// The format of the preceding frames; `None` before the first.
    format: Option<Format>,
    /// Samples per channel of the last frame.
    frame_samples: usize,
    /// The decoder of the current part and format; `None` before their first frame.
    decoder: Option<Decoder>,
    part: Part,
    /// Decoded samples that may be the encoder's padding at the end of the part.
    possible_padding: Vec<f32>,
    seconds: Option<f64>,
    intact_frames: u64,
    damaged_frames: u64,
}

/// The frames from one info frame to the next; joined files have several parts.
#[derive(Default)]
struct Part {
    info: Info,
    /// The number of frames present.
    frames: u64,
    /// The number of samples per channel that were removed at the start.
    trimmed: usize,
}

impl MpegBlocks {
    /// Opens a stream; returns the input if it is not MPEG audio.
    pub(super) fn open(input: Input) -> std::io::Result<Result<Self, Input>> {
        let mut frames = match Frames::open(input)? {
            Ok(frames) => frames,
            Err(input) => return Ok(Err(input)),
        };
        let first = frames.next()?;
        let mut seconds = None;
        if let Some(FrameEvent::Frame(header, frame)) = &first {
            let frame_count = Info::parse(header, frame).and_then(|info| info.frames);
            let frame_count =
                frame_count.map(|frames| frames as f64).filter(|frames| *frames > 0.0);
            let estimated = frames.length().map(|length| length as f64 / header.length as f64);
            let seconds_per_frame = header.samples as f64 / f64::from(header.rate);
            seconds = frame_count.or(estimated).map(|frames| frames * seconds_per_frame);
        }
        Ok(Ok(Self {
            frames,
            ahead: first.into_iter().collect(),
            format: None,
            frame_samples: 0,
            decoder: None,
            part: Part::default(),
            possible_padding: Vec::new(),
            seconds,
            intact_frames: 0,
            damaged_frames: 0,
        }))
    }

    fn next_event(&mut self) -> Result<Option<FrameEvent>, String> {
        match self.ahead.pop_front() {
            Some(event) => Ok(Some(event)),
            None => self.frames.next().map_err(cannot_read),
        }
    }

    /// Ends a part. Removes the encoder's padding after the audio if the announced number of frames
    /// was present.
    fn end_part(&mut self, next: Info, samples: &mut Vec<f32>) {
        if self.part.info.frames != Some(self.part.frames) {
            samples.append(&mut self.possible_padding);
        }
        self.possible_padding.clear();
        self.decoder = None;
        self.part = Part { info: next, ..Part::default() };
    }

    /// Whether the format change lasts: the next frame has the new format too, is lost, or does not
    /// exist. Otherwise the header of this frame is damaged.
    fn is_lasting_change(&mut self, format: Format) -> Result<bool, String> {
        if self.ahead.is_empty() {
            self.ahead.extend(self.frames.next().map_err(cannot_read)?);
        }
        Ok(match self.ahead.front() {
            Some(FrameEvent::Frame(next, _)) => format_of(next) == format,
            _ => true,
        })
    }

    /// Decodes a frame; returns `None` if it is damaged.
    fn decode(&mut self, header: &Header, frame: Vec<u8>) -> Result<Option<Vec<f32>>, String> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            None => {
                let codec = match header.layer {
                    1 => CODEC_ID_MP1,
                    2 => CODEC_ID_MP2,
                    _ => CODEC_ID_MP3,
                };
                let mut parameters = AudioCodecParameters::new();
                parameters.for_codec(codec).with_sample_rate(header.rate);
                self.decoder.insert(Decoder::new(&parameters, false)?)
            }
        };
        let packet = Packet::new(0, Timestamp::ZERO, Duration::from(header.samples as u64), frame);
        let mut decoded = Vec::new();
        let result = decoder.decode(&packet, &mut decoded);
        Ok(result.ok().filter(|format| *format == format_of(header)).map(|_| decoded))
    }

    /// Appends decoded audio, or silence for damaged frames. Holds back samples that may be padding
    /// at the end of the part.
    fn output(&mut self, decoded: Option<Vec<f32>>, frames: usize, samples: &mut Vec<f32>) {
        let channels = self.format.map_or(1, |format| format.channels);
        match &decoded {
            Some(_) => self.intact_frames += 1,
            None => self.damaged_frames += frames as u64,
        }
        let decoded = decoded.unwrap_or_else(|| vec![0.0; frames * self.frame_samples * channels]);
        self.part.frames += frames as u64;
        let trim = (self.part.info.trim_start - self.part.trimmed).min(decoded.len() / channels);
        self.part.trimmed += trim;
        self.possible_padding.extend_from_slice(&decoded[trim * channels..]);
        let ready = self.possible_padding.len().saturating_sub(self.part.info.trim_end * channels);
        samples.extend(self.possible_padding.drain(..ready));
    }

    fn check_damage(&self) -> Result<(), String> {
        let damaged = self.damaged_frames;
        let total = self.intact_frames + damaged;
        if damaged > ALLOWED_DAMAGED && damaged * REFUSED_ONE_IN > total {
            return Err(format!("is damaged: {damaged} of {total} frames cannot be decoded"));
        }
        let junk = self.frames.junk;
        match self.frames.length().filter(|length| junk * REFUSED_ONE_IN > *length) {
            Some(length) => Err(format!("is damaged: {junk} of {length} bytes belong to no frame")),
            None => Ok(()),
        }
    }
}

impl Blocks for MpegBlocks {
    fn next(&mut self, samples: &mut Vec<f32>) -> Result<Option<Format>, String> {
        samples.clear();
        let (header, frame) = match self.next_event()? {
            Some(FrameEvent::Frame(header, frame)) => (header, frame),
            Some(FrameEvent::Lost(frames)) => {
                self.output(None, frames, samples);
                return Ok(self.format);
            }
            None => {
                self.end_part(Info::default(), samples);
                self.check_damage()?;
                return Ok(self.format.filter(|_| !samples.is_empty()));
            }
        };
        let format = format_of(&header);
        let previous = *self.format.get_or_insert(format);
        self.frame_samples = header.samples;
        if let Some(info) = Info::parse(&header, &frame) {
            self.end_part(info, samples);
            self.format = Some(format);
            return Ok(Some(previous));
        }
        if format == previous {
            let decoded = self.decode(&header, frame)?;
            self.output(decoded, 1, samples);
        } else if self.is_lasting_change(format)? {
            // A block has one format, so the new format begins with the next block.
            self.end_part(Info::default(), samples);
            self.ahead.push_front(FrameEvent::Frame(header, frame));
            self.format = Some(format);
        } else {
            self.output(None, 1, samples);
        }
        Ok(Some(previous))
    }

    fn seconds(&self) -> Option<f64> {
        self.seconds
    }
}

fn format_of(header: &Header) -> Format {
    Format { rate: header.rate, channels: header.channels }
}
