//! LibriSpeech, and corpora with its layout: `SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt` with
//! lines `ID TEXT`, and the audio beside it as `ID.flac`. The path may be the whole corpus, one
//! split or one speaker.
//!
//! # Source   Panayotov et al., "LibriSpeech: an ASR corpus based on public domain audio books"
//! (2015); test-clean has 2,620 clips, test-other 2,939

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::gather::{
    ClipCollector, NamedLine, Position, file_error, named_lines, refuse_audio_folder,
};
use super::manifest::{Clip, EXTENSIONS};
use super::{SpeechClips, SpeechSource};
use crate::DataError;
use crate::folder::{self, FolderFiles};

const TRANSCRIPT_SUFFIX: &str = ".trans.txt";
const REMEDY: &str = "use lines `SPEAKER-CHAPTER-NUMBER TEXT`, as in LibriSpeech";

/// Reads the clips below a folder. Chapters are in the order of the paths, and clips of a chapter
/// in the order of the ids. The text is unchanged, in capitals. Each clip is a whole file. FLAC
/// files are preferred to other audio formats. Links to folders are not followed.
///
/// # Errors
/// `MissingAudio`; `Text`, also for a folder without transcripts, an id of another
/// chapter, a line without text, and a duplicate chapter
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    refuse_audio_folder(source)?;
    let remedy = "use the folder LibriSpeech, or the folder of a split or a speaker in it";
    if source.path.is_file() {
        return Err(file_error(&source.path, "is a file", remedy));
    }
    let is_transcript_file = |path: &Path| chapter(path).is_some();
    let FolderFiles { files: transcript_files, skipped } =
        folder::files(&source.path, &is_transcript_file)?;
    if transcript_files.is_empty() {
        return Err(file_error(&source.path, "has no file SPEAKER-CHAPTER.trans.txt", remedy));
    }
    let mut collector = ClipCollector::new(source);
    collector.output.skipped = skipped;
    let mut chapters: HashMap<String, &Path> = HashMap::new();
    for transcript_file in &transcript_files {
        let chapter = chapter(transcript_file).unwrap_or_default();
        if let Some(first) = chapters.insert(chapter.clone(), transcript_file) {
            let reason = format!("chapter {chapter} is also in {}", first.display());
            return Err(file_error(
                transcript_file,
                &reason,
                "use a folder with each chapter once",
            ));
        }
        let mut lines = named_lines(transcript_file)?;
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        for NamedLine { number, name, value } in lines {
            let position = Position::Line(number);
            let number_in_chapter =
                name.strip_prefix(&chapter).and_then(|suffix| suffix.strip_prefix('-'));
            if !number_in_chapter
                .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
            {
                return Err(position.error(
                    transcript_file,
                    format!("{name:?} is not an id of this chapter"),
                    REMEDY,
                ));
            }
            if value.is_empty() {
                return Err(position.error(transcript_file, format!("{name} has no text"), REMEDY));
            }
            let audio = audio_beside(transcript_file, &name);
            let speaker = name.split('-').next().map(str::to_owned);
            let clip =
                Clip { id: name, text: Some(value), speaker, line: number, ..Clip::default() };
            collector.push(transcript_file, position, &chapter, clip, audio)?;
        }
    }
    collector.finish()
}

/// Returns `SPEAKER-CHAPTER` from the path of a transcript file; `None` for other files.
fn chapter(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(TRANSCRIPT_SUFFIX)?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Returns the audio file beside the transcript file, or the name of the missing FLAC file as the
/// error.
fn audio_beside(transcript_file: &Path, id: &str) -> Result<PathBuf, String> {
    let flac = transcript_file.with_file_name(format!("{id}.flac"));
    let others = EXTENSIONS
        .iter()
        .map(|extension| transcript_file.with_file_name(format!("{id}.{extension}")));
    let mut candidates = std::iter::once(flac.clone()).chain(others);
    candidates.find(|path| path.is_file()).ok_or_else(|| flac.display().to_string())
}
