//! Edit lists of MP4 files. An edit list selects the decoded samples to play.
//!
//! The list skips the priming samples that an encoder prepends to the recording, and an editor
//! trims a track by changing only its list. A list that begins with a pause delays a track relative
//! to other tracks. Pauses are ignored, as in ffmpeg: the audio starts at its first sample.
//!
//! # Source   ISO/IEC 14496-12 §8.6.6; iTunes files have the tag `iTunSMPB` instead of a list

use std::io::{Seek, SeekFrom};

use super::blocks::{Format, cannot_read};
use super::input::Input;

/// The maximum number of samples per channel in a packet of AAC.
pub(super) const MAX_PACKET_SAMPLES: u64 = 2048;
/// The largest `moov` box that is read, in bytes.
const MAX_MOOV_BYTES: u64 = 1 << 28;
/// Container boxes that hold the boxes to read.
const CONTAINERS: [&[u8; 4]; 6] = [b"trak", b"edts", b"mdia", b"minf", b"stbl", b"mvex"];

/// The parts of a track that are played.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Edits {
    /// The parts in playing order; empty if the whole track is played.
    parts: Vec<Part>,
    /// The total length of all packets, and the number of its units per second. `None` for a
    /// fragmented file, and for a track without units.
    pub duration: Option<(u64, u32)>,
}

/// A part of a track: its start and its length, each with the number of its units per second.
/// Without a length, the part extends to the end of the track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    start: u64,
    timescale: u32,
    length: Option<(u64, u32)>,
}

/// Returns the id and the edits of each track.
///
/// # Errors
/// a description of the problem with the file
pub(super) fn tracks(input: &mut Input) -> Result<Vec<(u32, Edits)>, String> {
    let moov = read_moov(input).map_err(cannot_read);
    input.seek(SeekFrom::Start(0)).map_err(cannot_read)?;
    let Some(moov) = moov? else {
        return Err("is MP4 without a `moov` box, or is truncated before it".to_owned());
    };
    let (mut tracks, mut movie_timescale, mut is_fragmented) = (Vec::new(), 0, false);
    for (name, body) in boxes(&moov) {
        match &name {
            b"mvhd" => movie_timescale = timescale(body).unwrap_or(0),
            b"mvex" => is_fragmented = true,
            b"trak" => tracks.push(Track::read(body)),
            _ => {}
        }
    }
    let itunes = itunes_part(&moov);
    let edits = |track: Track| {
        let duration =
            (!is_fragmented && track.timescale > 0).then_some((track.units, track.timescale));
        let mut parts = track.parts(movie_timescale)?;
        if let (true, Some((start, length)), true) = (parts.is_empty(), itunes, track.timescale > 0)
        {
            let timescale = track.timescale;
            parts.push(Part { start, timescale, length: Some((length, timescale)) });
        }
        Ok((track.id, Edits { parts, duration }))
    };
    tracks.into_iter().map(edits).collect()
}

impl Edits {
    /// Whether the whole track is played.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Removes samples that are not played. `decoded` is the number of samples per channel
    /// before `samples`.
    pub(super) fn retain_played(&self, decoded: u64, format: Format, samples: &mut Vec<f32>) {
        if self.parts.is_empty() || format.channels == 0 {
            return;
        }
        let count = (samples.len() / format.channels) as u64;
        let (mut played, rate) = (0, u128::from(format.rate));
        for (i, part) in self.parts.iter().enumerate() {
            let to_samples = |units: u64, timescale: u32| {
                (u128::from(units) * rate / u128::from(timescale)) as u64
            };
            let start = to_samples(part.start, part.timescale);
            // The movie's time unit is coarse, so one more unit is played.
            let end = part.length.map_or(u64::MAX, |(length, timescale)| {
                start.saturating_add(to_samples(length.saturating_add(1), timescale))
            });
            let next_start =
                self.parts.get(i + 1).map(|next| to_samples(next.start, next.timescale));
            let end = next_start.map_or(end, |next| end.min(next));
            let from = start.clamp(decoded, decoded + count) - decoded;
            let to = end.clamp(decoded, decoded + count) - decoded;
            if from < to {
                let (from, to) = (from as usize * format.channels, to as usize * format.channels);
                samples.copy_within(from..to, played);
                played += to - from;
            }
        }
        samples.truncate(played);
    }
}

#[derive(Default)]
struct Track {
    id: u32,
    timescale: u32,
    /// The total length of all packets, in the track's units.
    units: u64,
    /// The length, the start and the rate of each edit; a start of -1 is a pause.
    edit_list: Vec<(u64, i64, u32)>,
}

impl Track {
    fn read(body: &[u8]) -> Self {
        let mut track = Self::default();
        track.visit(body);
        track
    }

    fn visit(&mut self, body: &[u8]) {
        for (name, body) in boxes(body) {
            match &name {
                b"tkhd" => {
                    self.id = number(body, if has_64_bit_times(body) { 20 } else { 12 }, 4) as u32
                }
                b"mdhd" => self.timescale = timescale(body).unwrap_or(0),
                b"elst" => self.edit_list = edit_list(body),
                b"stts" => self.units = total_length(body),
                name if CONTAINERS.contains(&name) => self.visit(body),
                _ => {}
            }
        }
    }

    /// Returns the parts of an edit list.
    fn parts(&self, movie_timescale: u32) -> Result<Vec<Part>, String> {
        let mut parts: Vec<Part> = Vec::new();
        for (length, start, rate) in self.edit_list.iter().filter(|(_, start, _)| *start >= 0) {
            if *rate != 0x1_0000 {
                return Err("has an edit list that changes the speed".to_owned());
            }
            if self.timescale == 0 || movie_timescale == 0 {
                return Err("has an edit list but no timescale".to_owned());
            }
            let start = start.unsigned_abs();
            let starts_before_end_of = |previous: &Part| {
                let units = previous.length.map_or(u128::MAX, |(length, timescale)| {
                    u128::from(length) * u128::from(self.timescale) / u128::from(timescale)
                });
                u128::from(start) < u128::from(previous.start).saturating_add(units)
            };
            if parts.last().is_some_and(starts_before_end_of) {
                return Err("has an edit list that is not in time order".to_owned());
            }
            // In a fragmented file, a length of 0 is unknown: the list precedes the audio.
            let length = (*length > 0).then_some((*length, movie_timescale));
            parts.push(Part { start, timescale: self.timescale, length });
        }
        Ok(parts)
    }
}

/// Returns the content of the box `moov`; `None` if there is none.
fn read_moov(input: &mut Input) -> std::io::Result<Option<Vec<u8>>> {
    loop {
        let head = input.read_up_to(8)?;
        if head.len() < 8 {
            return Ok(None);
        }
        let (mut size, mut header) = (number(&head, 0, 4), 8);
        if size == 1 {
            (size, header) = (number(&input.read_up_to(8)?, 0, 8), 16);
        }
        let body = match size {
            0 => input.remaining().unwrap_or(0),
            size => size.saturating_sub(header),
        };
        if head.ends_with(b"moov") {
            return Ok(Some(input.read_up_to(body.min(MAX_MOOV_BYTES) as usize)?));
        }
        if (size != 0 && size < header) || !input.skip(body)? {
            return Ok(None);
        }
    }
}

/// Iterates over the boxes in a body, with their names.
fn boxes(body: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut remaining = body;
    std::iter::from_fn(move || {
        let name = *remaining.get(4..8)?.first_chunk()?;
        let size = match number(remaining, 0, 4) {
            0 => remaining.len(),
            size => (size as usize).min(remaining.len()),
        };
        let body = remaining.get(8..size)?;
        remaining = &remaining[size..];
        Some((name, body))
    })
}

/// Reads a big-endian number of `length` bytes; returns 0 if they are missing.
fn number(bytes: &[u8], offset: usize, length: usize) -> u64 {
    let bytes = bytes.get(offset..offset + length).unwrap_or_default();
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Whether a box has 64-bit times.
fn has_64_bit_times(body: &[u8]) -> bool {
    body.first() == Some(&1)
}

/// Returns the units per second of a box `mvhd` or `mdhd`; `None` for 0.
fn timescale(body: &[u8]) -> Option<u32> {
    let timescale = number(body, if has_64_bit_times(body) { 20 } else { 12 }, 4) as u32;
    (timescale > 0).then_some(timescale)
}

/// Returns the entries of `elst`: length, start and rate.
fn edit_list(body: &[u8]) -> Vec<(u64, i64, u32)> {
    let entries = body.get(8..).unwrap_or_default();
    let parse = |entry: &[u8]| {
        if has_64_bit_times(body) {
            (number(entry, 0, 8), number(entry, 8, 8).cast_signed(), number(entry, 16, 4) as u32)
        } else {
            let start = i64::from((number(entry, 4, 4) as u32).cast_signed());
            (number(entry, 0, 4), start, number(entry, 8, 4) as u32)
        }
    };
    let count = number(body, 4, 4) as usize;
    entries
        .chunks_exact(if has_64_bit_times(body) { 20 } else { 12 })
        .take(count)
        .map(parse)
        .collect()
}

/// Returns the total length of the packets in `stts`, in units of the track.
fn total_length(body: &[u8]) -> u64 {
    let entries = body.get(8..).unwrap_or_default().chunks_exact(8);
    let length = |entry: &[u8]| number(entry, 0, 4).saturating_mul(number(entry, 4, 4));
    entries.take(number(body, 4, 4) as usize).map(length).fold(0, u64::saturating_add)
}

/// Returns the first sample and the number of samples from the tag `iTunSMPB`.
fn itunes_part(moov: &[u8]) -> Option<(u64, u64)> {
    let find = |bytes: &[u8], name: &[u8]| bytes.windows(name.len()).position(|part| part == name);
    let tag = &moov[find(moov, b"iTunSMPB")?..];
    let data = &tag[find(&tag[..tag.len().min(64)], b"data")? + 12..];
    let text = String::from_utf8_lossy(&data[..data.len().min(120)]);
    let mut fields = text.split_ascii_whitespace().skip(1);
    let mut field = || u64::from_str_radix(fields.next()?, 16).ok();
    let (start, _, length) = (field()?, field()?, field()?);
    (length > 0).then_some((start, length))
}
