//! Edit lists of MP4 files. An edit list selects the decoded samples to play.
//!
//! The list skips the priming samples that an encoder prepends to the recording, and an editor
//! trims a track by changing only its list. A list that begins with a pause delays a track relative
//! to other tracks. As in ffmpeg, the audio then starts at its first sample.
//!
//! # Source   ISO/IEC 14496-12 §8.6.6; iTunes files have the tag `iTunSMPB` instead of a list

use std::io::{Seek, SeekFrom};

use super::blocks::{Format, cannot_read};
use super::input::Input;

/// The maximum number of samples per channel in an AAC packet.
pub(super) const PACKET: u64 = 2048;
/// The largest `moov` box that is read, in bytes.
const MAX_MOOV_BYTES: u64 = 1 << 28;
/// Container boxes that hold the boxes to read.
const CONTAINERS: [&[u8; 4]; 6] = [b"trak", b"edts", b"mdia", b"minf", b"stbl", b"mvex"];

/// The parts of a track that are played.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Edits {
    /// Parts in their order; empty if the whole track is played.
    parts: Vec<Part>,
    /// The total length of all packets, and the number of its units per second. `None` for a
    /// fragmented file.
    pub counted: Option<(u64, u32)>,
}

/// A part of a track: its start and its length, each with the number of its units per second.
/// Without a length, the part extends to the end of the track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    start: u64,
    scale: u32,
    length: Option<(u64, u32)>,
}

/// Returns the edits of each track, with the track id.
///
/// # Errors
/// a description of the problem with the file
pub(super) fn tracks(input: &mut Input) -> Result<Vec<(u32, Edits)>, String> {
    let found = movie(input).map_err(cannot_read);
    input.seek(SeekFrom::Start(0)).map_err(cannot_read)?;
    let Some(movie) = found? else {
        return Err("is MP4 without a `moov` box, or is truncated before it".to_owned());
    };
    let (mut found, mut movie_scale, mut is_fragmented) = (Vec::new(), 0, false);
    for (name, body) in boxes(&movie) {
        match &name {
            b"mvhd" => movie_scale = scale(body).unwrap_or(0),
            b"mvex" => is_fragmented = true,
            b"trak" => found.push(Track::read(body)),
            _ => {}
        }
    }
    let itunes = itunes(&movie);
    let edits = |track: Track| {
        let counted = (!is_fragmented && track.scale > 0).then_some((track.units, track.scale));
        let mut parts = track.parts(movie_scale)?;
        if let (true, Some((start, length)), true) = (parts.is_empty(), itunes, track.scale > 0) {
            let scale = track.scale;
            parts.push(Part { start, scale, length: Some((length, scale)) });
        }
        Ok((track.id, Edits { parts, counted }))
    };
    found.into_iter().map(edits).collect()
}

impl Edits {
    /// Removes samples that are not played. `before` samples per channel were decoded earlier.
    pub(super) fn keep(&self, before: u64, format: Format, samples: &mut Vec<f32>) {
        if self.parts.is_empty() || format.channels == 0 {
            return;
        }
        let count = (samples.len() / format.channels) as u64;
        let (mut played, rate) = (0, u128::from(format.rate));
        for (i, part) in self.parts.iter().enumerate() {
            let to_samples =
                |units: u64, scale: u32| (u128::from(units) * rate / u128::from(scale)) as u64;
            let start = to_samples(part.start, part.scale);
            // The movie's time unit is coarse, so one more unit is played.
            let end = part.length.map_or(u64::MAX, |(length, scale)| {
                start.saturating_add(to_samples(length.saturating_add(1), scale))
            });
            let next = self.parts.get(i + 1).map(|next| to_samples(next.start, next.scale));
            let end = next.map_or(end, |next| end.min(next));
            let from = start.clamp(before, before + count) - before;
            let to = end.clamp(before, before + count) - before;
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
    scale: u32,
    /// The total length of all packets, in the track's units.
    units: u64,
    /// Lengths, starts and rates; a start of -1 is a pause.
    list: Vec<(u64, i64, u32)>,
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
                b"tkhd" => self.id = number(body, if is_long(body) { 20 } else { 12 }, 4) as u32,
                b"mdhd" => self.scale = scale(body).unwrap_or(0),
                b"elst" => self.list = list(body),
                b"stts" => self.units = length(body),
                name if CONTAINERS.contains(&name) => self.visit(body),
                _ => {}
            }
        }
    }

    /// Returns the parts of an edit list.
    fn parts(&self, movie_scale: u32) -> Result<Vec<Part>, String> {
        let mut parts: Vec<Part> = Vec::new();
        for (length, start, rate) in self.list.iter().filter(|(_, start, _)| *start >= 0) {
            if *rate != 0x1_0000 {
                return Err("has an edit list that changes the speed".to_owned());
            }
            if self.scale == 0 || movie_scale == 0 {
                return Err("has an edit list but no time scale".to_owned());
            }
            let start = start.unsigned_abs();
            let starts_before_end_of = |before: &Part| {
                let units = before.length.map_or(u128::MAX, |(length, scale)| {
                    u128::from(length) * u128::from(self.scale) / u128::from(scale)
                });
                u128::from(start) < u128::from(before.start).saturating_add(units)
            };
            if parts.last().is_some_and(starts_before_end_of) {
                return Err("has an edit list that is not in time order".to_owned());
            }
            // A fragmented file is written before its length is known.
            let length = (*length > 0).then_some((*length, movie_scale));
            parts.push(Part { start, scale: self.scale, length });
        }
        Ok(parts)
    }
}

/// Returns the content of the box `moov`.
fn movie(input: &mut Input) -> std::io::Result<Option<Vec<u8>>> {
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
            0 => input.left().unwrap_or(0),
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
    let mut rest = body;
    std::iter::from_fn(move || {
        let name = *rest.get(4..8)?.first_chunk()?;
        let size = match number(rest, 0, 4) {
            0 => rest.len(),
            size => (size as usize).min(rest.len()),
        };
        let body = rest.get(8..size)?;
        rest = &rest[size..];
        Some((name, body))
    })
}

/// Reads a big-endian number of `length` bytes; returns 0 if they are missing.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let bytes = bytes.get(at..at + length).unwrap_or_default();
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Whether a box has 64-bit times.
fn is_long(body: &[u8]) -> bool {
    body.first() == Some(&1)
}

/// Returns the units per second of `mvhd` and `mdhd`.
fn scale(body: &[u8]) -> Option<u32> {
    let scale = number(body, if is_long(body) { 20 } else { 12 }, 4) as u32;
    (scale > 0).then_some(scale)
}

/// Returns the entries of `elst`: length, start and rate.
fn list(body: &[u8]) -> Vec<(u64, i64, u32)> {
    let rows = body.get(8..).unwrap_or_default();
    let entry = |row: &[u8]| {
        if is_long(body) {
            (number(row, 0, 8), number(row, 8, 8).cast_signed(), number(row, 16, 4) as u32)
        } else {
            let start = i64::from((number(row, 4, 4) as u32).cast_signed());
            (number(row, 0, 4), start, number(row, 8, 4) as u32)
        }
    };
    let count = number(body, 4, 4) as usize;
    rows.chunks_exact(if is_long(body) { 20 } else { 12 }).take(count).map(entry).collect()
}

/// Returns the total length in `stts`.
fn length(body: &[u8]) -> u64 {
    let rows = body.get(8..).unwrap_or_default().chunks_exact(8);
    let length_of = |row: &[u8]| number(row, 0, 4).saturating_mul(number(row, 4, 4));
    rows.take(number(body, 4, 4) as usize).map(length_of).fold(0, u64::saturating_add)
}

/// Returns the first sample and the number of samples from the tag `iTunSMPB`.
fn itunes(movie: &[u8]) -> Option<(u64, u64)> {
    let at = |bytes: &[u8], name: &[u8]| bytes.windows(name.len()).position(|part| part == name);
    let tag = &movie[at(movie, b"iTunSMPB")?..];
    let data = &tag[at(&tag[..tag.len().min(64)], b"data")? + 12..];
    let text = String::from_utf8_lossy(&data[..data.len().min(120)]);
    let mut fields = text.split_ascii_whitespace().skip(1);
    let mut field = || u64::from_str_radix(fields.next()?, 16).ok();
    let (start, _, length) = (field()?, field()?, field()?);
    (length > 0).then_some((start, length))
}
