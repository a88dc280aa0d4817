//! HowTo100M: `caption.json`, `{video_id: {"start": [], "end": [], "text": []}}` with times in seconds,
//! and a folder of sound files named by video. The texts are what a recogniser heard, not what a person
//! wrote.
//!
//! The file is read video by video; of videos without their sound nothing is kept but the name.
//!
//! # Source   Miech et al., "HowTo100M" (2019); the form is from memory, not from the file

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;

use super::gather::{AudioFiles, Gathering, Place};
use super::manifest::Clip;
use super::{SpeechClips, SpeechSource};
use crate::DataError;
use crate::knowledge::Input;
use crate::knowledge::json::{Item, read_members};

const REMEDY: &str = "give caption.json: {\"video\": {\"start\": [0.5], \"end\": [2.0], \"text\": \
                      [\"…\"]}}, times in seconds";

#[derive(Deserialize)]
struct Captions<'a> {
    start: Vec<f64>,
    end: Vec<f64>,
    #[serde(borrow)]
    text: Vec<Cow<'a, str>>,
}

/// Reads the captions in the order of the file, plain or gzip. The id is `{video}-{n}`, by the caption's
/// place in the lists, from 0. Captions without a text, and of no length, are left out and counted.
/// A missing sound file is named once for its video.
///
/// # Errors   `Io`, `Gzip`, `EmptyFile`; `MissingAudio`; `Malformed` with the video: lists of other
/// lengths, an end before its start, a video that is there twice
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    let files = AudioFiles::of_source(source)?;
    let mut gathering = Gathering::new(source);
    gathering.found.hidden = files.hidden;
    let mut videos = HashSet::new();
    read_members(Input::open(&source.path)?, REMEDY, &mut |item| {
        let video = item.key.unwrap_or_default();
        if !videos.insert(video.to_owned()) {
            return Err(item.error("this video stands here a second time"));
        }
        let place = Place::Entry(video);
        let audio = files.find(video)?;
        let mut lacking = 0;
        let found = &mut gathering.found;
        let captions = captions(item, &mut found.without_text, &mut found.without_length)?;
        for (index, start, end, text) in captions {
            let Ok(audio) = &audio else {
                lacking += 1;
                continue;
            };
            let (id, end, text) = (format!("{video}-{index}"), Some(end), Some(text));
            let clip = Clip { id, start, end, text, ..Clip::default() };
            gathering.push(&source.path, place, video, clip, Ok(audio.clone()))?;
        }
        if let Err(wanted) = audio
            && lacking > 0
        {
            gathering.miss(video.to_owned(), place, wanted, lacking);
        }
        Ok(())
    })?;
    gathering.finish()
}

/// Place, start, end and text of the captions of a video that have both a text and a length.
fn captions(
    item: &Item<'_>,
    without_text: &mut usize,
    without_length: &mut usize,
) -> Result<Vec<(usize, f64, f64, String)>, DataError> {
    let Captions { start, end, text } = item.parse_object()?;
    if start.len() != end.len() || start.len() != text.len() {
        let (start, end, text) = (start.len(), end.len(), text.len());
        return Err(item.error(format!("{start} starts, {end} ends and {text} texts")));
    }
    let mut captions = Vec::with_capacity(text.len());
    for (index, ((start, end), text)) in start.into_iter().zip(end).zip(text).enumerate() {
        if start < 0.0 {
            return Err(item.error(format!("caption {index}: start {start} is no time")));
        }
        if end < start {
            return Err(item.error(format!("caption {index}: end {end} is before start {start}")));
        }
        match text.trim() {
            "" => *without_text += 1,
            _ if start == end => *without_length += 1,
            text => captions.push((index, start, end, text.to_owned())),
        }
    }
    Ok(captions)
}
