//! HowTo100M: `caption.json`, `{video_id: {"start": [], "end": [], "text": []}}` with times in
//! seconds, and a folder of audio files named by video. The texts are the output of an ASR model,
//! not human transcripts.
//!
//! The file is read video by video. For videos without audio, only the name is stored.
//!
//! # Source   Miech et al., "HowTo100M" (2019); the format was not verified on the published file

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;

use super::gather::{AudioFiles, ClipCollector, Position};
use super::manifest::Clip;
use super::{SpeechClips, SpeechSource};
use crate::DataError;
use crate::knowledge::Input;
use crate::knowledge::json::{Item, read_members};

const REMEDY: &str = "use caption.json: {\"video\": {\"start\": [0.5], \"end\": [2.0], \"text\": \
                      [\"…\"]}}, times in seconds";

#[derive(Deserialize)]
struct Captions<'a> {
    start: Vec<f64>,
    end: Vec<f64>,
    #[serde(borrow)]
    text: Vec<Cow<'a, str>>,
}

/// Reads the captions in the order of the file, plain or gzip. The id is `{video}-{n}`, where `n`
/// is the caption's index in the lists, from 0. Captions without text or of zero length are skipped
/// and counted. A missing audio file is listed once per video.
///
/// # Errors
/// `Text`; `MissingAudio`; `Malformed` with the video: lists of different lengths, an end
/// before its start, a duplicate video
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    let files = AudioFiles::of_source(source)?;
    let mut collector = ClipCollector::new(source);
    collector.output.skipped = files.skipped;
    let mut videos = HashSet::new();
    read_members(Input::open(&source.path)?, REMEDY, &mut |item| {
        let video = item.key.unwrap_or_default();
        if !videos.insert(video.to_owned()) {
            return Err(item.error("this video appears twice"));
        }
        let position = Position::Entry(video);
        let audio = files.find(video)?;
        let mut num_missing = 0;
        let output = &mut collector.output;
        let captions = parse_captions(item, &mut output.without_text, &mut output.zero_length)?;
        for (index, start, end, text) in captions {
            let Ok(audio) = &audio else {
                num_missing += 1;
                continue;
            };
            let (id, end, text) = (format!("{video}-{index}"), Some(end), Some(text));
            let clip = Clip { id, start, end, text, ..Clip::default() };
            collector.push(&source.path, position, video, clip, Ok(audio.clone()))?;
        }
        if let Err(expected_file) = audio
            && num_missing > 0
        {
            collector.add_missing(video.to_owned(), position, expected_file, num_missing);
        }
        Ok(())
    })?;
    collector.finish()
}

/// Returns index, start, end and text of a video's captions. Skips and counts captions without text
/// or of zero length.
fn parse_captions(
    item: &Item<'_>,
    without_text: &mut usize,
    zero_length: &mut usize,
) -> Result<Vec<(usize, f64, f64, String)>, DataError> {
    let Captions { start, end, text } = item.parse_object()?;
    if start.len() != end.len() || start.len() != text.len() {
        let (start, end, text) = (start.len(), end.len(), text.len());
        return Err(item.error(format!(
            "the lists differ in length: {start} starts, {end} ends and {text} texts"
        )));
    }
    let mut captions = Vec::with_capacity(text.len());
    for (index, ((start, end), text)) in start.into_iter().zip(end).zip(text).enumerate() {
        if start < 0.0 {
            return Err(item.error(format!("caption {index}: start {start} is negative")));
        }
        if end < start {
            return Err(item.error(format!("caption {index}: end {end} is before start {start}")));
        }
        match text.trim() {
            "" => *without_text += 1,
            _ if start == end => *zero_length += 1,
            text => captions.push((index, start, end, text.to_owned())),
        }
    }
    Ok(captions)
}
