//! VisSpeech: a CSV table `key,yt_id,start_time,end_time,annotation` with times in microseconds,
//! and a folder of audio files. A file named by `key` is the clip itself, already cut. Otherwise a
//! file named by `yt_id` is the whole video, and the times select the clip.
//!
//! If the table went through a spreadsheet, it has `#NAME?` in place of video ids that begin with
//! `-`. Such rows do not name a video, and count as clips with missing audio.
//!
//! # Source   Gabeur et al., "AVATAR: unconstrained audiovisual speech recognition" (2022); 508 clips

use std::collections::HashMap;

use super::gather::{AudioFiles, Gathering, Place};
use super::manifest::{Clip, check_times};
use super::{SpeechClips, SpeechSource};
use crate::DataError;
use crate::table::{Row, Table, read_text};

const MICROSECONDS: f64 = 1e6;

/// The spreadsheet's replacement for a text that begins with `-`.
const LOST: &str = "#NAME?";

/// Reads the clips in the order of the table. The id is `key`.
///
/// # Errors   `Io`, `NotUtf8`, `EmptyFile`, `NoRows`, `MissingColumn` and the other table errors;
/// `EmptyField`; `DuplicateId`; `MissingAudio`; `Malformed` for invalid times
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    let path = source.path.as_path();
    let table = Table::parse(path, &read_text(path)?, b',')?;
    let mut columns = [0; 5];
    let names = ["key", "yt_id", "start_time", "end_time", "annotation"];
    for (column, name) in columns.iter_mut().zip(names) {
        *column = table.required_column(name)?;
    }
    let files = AudioFiles::of_source(source)?;
    let mut gathering = Gathering::new(source);
    gathering.found.hidden = files.hidden;
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for row in &table.rows {
        let line = row.line;
        if let Some(blank) = (0..columns.len()).find(|i| row.field(columns[*i]).is_empty()) {
            return Err(DataError::EmptyField { path: path.into(), line, column: names[blank] });
        }
        let [key, video, start, end, text] = columns.map(|column| row.field(column));
        let place = Place::Line(line);
        if key == LOST || video == LOST {
            let wanted = format!("the video's id, which a spreadsheet replaced with {LOST}");
            gathering.miss(key.to_owned(), place, wanted, 1);
            continue;
        }
        if let Some(first) = seen.insert(key, line) {
            let (path, id) = (path.to_owned(), key.to_owned());
            return Err(DataError::DuplicateId { path, id, first, second: line });
        }
        let (start, end) = (seconds(source, row, start)?, seconds(source, row, end)?);
        let whole =
            Clip { id: key.to_owned(), text: Some(text.to_owned()), line, ..Clip::default() };
        let part = Clip { start, end: Some(end), ..whole.clone() };
        check_times(&part).map_err(|reason| place.error(path, reason, "correct the times"))?;
        match files.find(key)? {
            Ok(cut) => gathering.push(path, place, video, whole, Ok(cut))?,
            Err(_) => gathering.push(path, place, video, part, files.find(video)?)?,
        }
    }
    gathering.finish()
}

fn seconds(source: &SpeechSource, row: &Row, text: &str) -> Result<f64, DataError> {
    let time: u64 = text.parse().map_err(|_| {
        let reason = format!("{text:?} is not an integer number of microseconds");
        Place::Line(row.line).error(&source.path, reason, "correct the time")
    })?;
    Ok(time as f64 / MICROSECONDS)
}
