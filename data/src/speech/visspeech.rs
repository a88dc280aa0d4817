//! VisSpeech: a CSV table `key,yt_id,start_time,end_time,annotation` with times in microseconds,
//! and a folder of audio files. A file named by `key` is the clip alone. Otherwise a file named by
//! `yt_id` is the whole video, and the times select the clip.
//!
//! A spreadsheet replaces video ids that begin with `-` by `#NAME?`. Rows with this text do not
//! name a video, and count as clips with missing audio.
//!
//! # Source   Gabeur et al., "AVATAR: unconstrained audiovisual speech recognition" (2022); 508
//! clips

use engram_textfile::{Input, Table, TextError, UniqueIds};

use super::gather::{AudioFiles, ClipCollector, Position};
use super::manifest::{Clip, check_times};
use super::{SpeechClips, SpeechSource};
use crate::DataError;

const MICROSECONDS_PER_SECOND: f64 = 1e6;

/// The spreadsheet's replacement for a text that begins with `-`.
const LOST_ID: &str = "#NAME?";

/// Reads the clips in the order of the table. The id is `key`.
///
/// # Errors
/// `Text`, also for an empty field, a duplicate key and invalid times; `MissingAudio`
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    let path = source.path.as_path();
    let mut table = Table::csv(Input::open(path)?)?;
    let columns = table.columns(["key", "yt_id", "start_time", "end_time", "annotation"])?;
    let files = AudioFiles::of_source(source)?;
    let mut collector = ClipCollector::new(source);
    collector.output.skipped = files.skipped;
    let mut ids = UniqueIds::with_capacity(0);
    while table.advance()? {
        let mut fields = [""; 5];
        for (field, column) in fields.iter_mut().zip(columns) {
            *field = table.required_field(column)?;
        }
        let [key, video, start, end, text] = fields;
        let line = table.line();
        let position = Position::Line(line);
        if key == LOST_ID || video == LOST_ID {
            let expected_file =
                format!("the video's id, which a spreadsheet replaced with {LOST_ID}");
            collector.add_missing(key.to_owned(), position, expected_file, 1);
            continue;
        }
        ids.add(key.to_owned(), table.location())?;
        let (start, end) = (seconds(&table, start)?, seconds(&table, end)?);
        let whole_file =
            Clip { id: key.to_owned(), text: Some(text.to_owned()), line, ..Clip::default() };
        let segment = Clip { start, end: Some(end), ..whole_file.clone() };
        check_times(&segment)
            .map_err(|reason| position.error(path, reason, "correct the times"))?;
        match files.find(key)? {
            Ok(audio) => collector.push(path, position, video, whole_file, Ok(audio))?,
            Err(_) => collector.push(path, position, video, segment, files.find(video)?)?,
        }
    }
    collector.finish()
}

fn seconds(table: &Table<'_>, text: &str) -> Result<f64, TextError> {
    let time: u64 = text.parse().map_err(|_| {
        let reason = format!("{text:?} is not an integer number of microseconds");
        table.error(reason, "correct the time")
    })?;
    Ok(time as f64 / MICROSECONDS_PER_SECOND)
}
