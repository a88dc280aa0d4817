//! Ego4D's audio-visual transcripts: `av_train.json` or `av_val.json`, and a folder of audio files
//! named by `clip_uid`. Times are in seconds from the beginning of the clip's file.
//!
//! # Source   `transcription/extract_transcripts_oracle.py` of github.com/EGO4D/audio-visual,
//! commit 860d6b6. The script orders the clips by `clip_uid`; this reader keeps the file's order.
//! Other content of the published file (face boxes for every video frame) is skipped.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Number;

use super::gather::{AudioFiles, ClipCollector, Position};
use super::manifest::Clip;
use super::{SpeechClips, SpeechSource};
use crate::DataError;
use crate::knowledge::Input;
use crate::knowledge::json::read_object;

const REMEDY: &str = "use av_train.json or av_val.json: {\"videos\": [{\"clips\": [{\"clip_uid\", \
                      \"transcriptions\": [{\"transcription\", \"start_time_sec\", \
                      \"end_time_sec\", \"person_id\"}]}]}]}";

/// The speaker if the file does not name one.
const UNKNOWN_SPEAKER: &str = "X";

#[derive(Deserialize)]
struct Annotations {
    videos: Vec<Video>,
}

#[derive(Deserialize)]
struct Video {
    clips: Vec<Recording>,
}

#[derive(Deserialize)]
struct Recording {
    clip_uid: String,
    transcriptions: Vec<Transcription>,
}

#[derive(Deserialize)]
struct Transcription {
    transcription: String,
    // Times stay as written, because they are part of the id.
    start_time_sec: Number,
    end_time_sec: Number,
    person_id: Option<String>,
}

/// Reads the utterances in the order of the file, plain or gzip. The id is
/// `{speaker}-{clip_uid}_1_{start}_{end}`. Utterances without text or of zero length are skipped
/// and counted.
///
/// # Errors
/// `Text` with the line; `MissingAudio`; `Malformed` with the `clip_uid` of invalid times,
/// a duplicate utterance or a duplicate clip
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    let path = source.path.as_path();
    let files = AudioFiles::of_source(source)?;
    let Annotations { videos } = read_object(Input::open(path)?, REMEDY)?;
    let mut collector = ClipCollector::new(source);
    collector.output.skipped = files.skipped;
    let mut uids = HashMap::new();
    for (number, recording) in (1..).zip(videos.into_iter().flat_map(|video| video.clips)) {
        let uid = recording.clip_uid;
        let position = Position::Entry(&uid);
        let error = |reason: String| position.error(path, reason, "download the file again");
        if let Some(first) = uids.insert(uid.clone(), number) {
            return Err(error(format!(
                "clips {first} and {number} of the file have this clip_uid"
            )));
        }
        let mut seen = HashMap::new();
        for (item, utterance) in (1..).zip(recording.transcriptions) {
            let text = utterance.transcription.trim();
            if text.is_empty() {
                collector.output.without_text += 1;
                continue;
            }
            let (start_time, end_time) = (utterance.start_time_sec, utterance.end_time_sec);
            let (Some(start), Some(end)) = (start_time.as_f64(), end_time.as_f64()) else {
                return Err(error(format!(
                    "transcription {item}: the times are not numbers of seconds"
                )));
            };
            if start == end {
                collector.output.zero_length += 1;
                continue;
            }
            let speaker = utterance.person_id.filter(|person| !person.is_empty());
            let speaker = speaker.unwrap_or_else(|| UNKNOWN_SPEAKER.to_owned());
            let id = format!("{speaker}-{uid}_1_{start_time}_{end_time}");
            if let Some(first) = seen.insert(id.clone(), item) {
                let reason = format!("transcriptions {first} and {item} are both {id}");
                return Err(error(reason));
            }
            let (end, text, speaker) = (Some(end), Some(text.to_owned()), Some(speaker));
            let clip = Clip { id, start, end, text, speaker, ..Clip::default() };
            collector.push(path, position, &uid, clip, files.find(&uid)?)?;
        }
    }
    collector.finish()
}
