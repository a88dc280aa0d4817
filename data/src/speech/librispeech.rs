//! LibriSpeech, and corpora with its layout: `SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt` with
//! lines `ID TEXT`, and the audio beside it as `ID.flac`. The path may be the whole corpus, one
//! split or one speaker.
//!
//! # Source   Panayotov et al., "LibriSpeech: an ASR corpus based on public domain audio books"
//! (2015); test-clean has 2,620 clips, test-other 2,939

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::gather::{Gathering, NamedLine, Position, named_lines, refusal, refuse_audio};
use super::manifest::{Clip, ENDINGS};
use super::{SpeechClips, SpeechSource};
use crate::DataError;
use crate::folder::{self, FolderFiles};

const TRANSCRIPTS: &str = ".trans.txt";
const REMEDY: &str = "use lines `SPEAKER-CHAPTER-NUMBER TEXT`, as in LibriSpeech";

/// Reads the clips below a folder. Chapters are in the order of the paths, and clips of a chapter
/// in the order of the ids. The text is unchanged, in capitals. Each clip is a whole file. FLAC
/// files are preferred to other audio formats. Links to folders are not followed.
///
/// # Errors
/// `MissingAudio`; `Text`, also for a folder without transcripts, an id of another
/// chapter, a line without text, and a duplicate chapter
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    refuse_audio(source)?;
    let is_list = |path: &Path| chapter(path).is_some();
    let FolderFiles { files: lists, skipped } = folder::files(&source.path, &is_list)?;
    if lists.is_empty() {
        let remedy = "use the folder LibriSpeech, or the folder of a split or a speaker in it";
        return Err(refusal(&source.path, "has no file SPEAKER-CHAPTER.trans.txt", remedy));
    }
    let mut gathering = Gathering::new(source);
    gathering.found.hidden = skipped.hidden;
    let mut chapters: HashMap<String, &Path> = HashMap::new();
    for list in &lists {
        let chapter = chapter(list).unwrap_or_default();
        if let Some(first) = chapters.insert(chapter.clone(), list) {
            let reason = format!("chapter {chapter} is also in {}", first.display());
            return Err(refusal(list, &reason, "use a folder that has each chapter once"));
        }
        let mut lines = named_lines(list)?;
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        for NamedLine { number, name, rest } in lines {
            let position = Position::Line(number);
            let of_chapter = name.strip_prefix(&chapter).and_then(|rest| rest.strip_prefix('-'));
            if !of_chapter.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
                return Err(position.error(
                    list,
                    format!("{name:?} is not an id of this chapter"),
                    REMEDY,
                ));
            }
            if rest.is_empty() {
                return Err(position.error(list, format!("{name} has no text"), REMEDY));
            }
            let audio = beside(list, &name);
            let speaker = name.split('-').next().map(str::to_owned);
            let clip =
                Clip { id: name, text: Some(rest), speaker, line: number, ..Clip::default() };
            gathering.push(list, position, &chapter, clip, audio)?;
        }
    }
    gathering.finish()
}

/// Returns `SPEAKER-CHAPTER` from the path of a transcript file.
fn chapter(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(TRANSCRIPTS)?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Finds the audio file beside the transcript file.
fn beside(list: &Path, id: &str) -> Result<PathBuf, String> {
    let flac = list.with_file_name(format!("{id}.flac"));
    let others = ENDINGS.iter().map(|ending| list.with_file_name(format!("{id}.{ending}")));
    let mut all = std::iter::once(flac.clone()).chain(others);
    all.find(|path| path.is_file()).ok_or_else(|| flac.display().to_string())
}
