//! Text files that are given in place of audio, such as the lists of other programs.

use std::io::Read;
use std::path::Path;

use engram_textfile::{TextError, refuse_lfs_pointer, shortened};

use crate::DataError;

/// A mark of each kind of text file, and the name of the kind.
const KINDS: [(&str, &str); 7] = [
    ("\"audio_filepath\"", "a NeMo manifest"),
    ("#EXTM3U", "a playlist"),
    ("-->", "subtitles"),
    ("ooTextFile", "a Praat TextGrid"),
    ("<ANNOTATION_DOCUMENT", "an ELAN file"),
    ("path\tsentence", "a table of Common Voice"),
    ("file_name,", "metadata of an AudioFolder of Hugging Face"),
];

/// Returns an error if the file is a text and so has no audio. Other errors are left to the reader
/// of the audio.
pub(crate) fn check_is_not_text(path: &Path) -> Result<(), DataError> {
    let mut start = Vec::new();
    if !path.is_file()
        || engram_durable::open_file(path)
            .and_then(|f| f.take(512).read_to_end(&mut start))
            .is_err()
    {
        return Ok(());
    }
    refuse_lfs_pointer(path, &start)?;
    let Some((kind, text)) = text_kind(&start) else { return Ok(()) };
    let first = shortened(text.lines().next().unwrap_or_default(), 60);
    let reason = format!("is {kind}, not audio; it begins with `{first}`");
    let remedy = "write a list of clips as JSON lines, into a .jsonl file: {\"audio\": \"a.wav\", \
                  \"start\": 0.5, \"end\": 1.5, \"text\": \"…\"}; only `audio` is required; lists of \
                  other programs end in .json, .tsv, .csv or .scp";
    Err(TextError::malformed(path, None, reason, remedy).into())
}

/// Returns the kind and the text of bytes that begin a text; `None` for audio, which has other bytes
/// at its start.
pub(super) fn text_kind(start: &[u8]) -> Option<(&'static str, &str)> {
    // The last character may be incomplete.
    let valid = std::str::from_utf8(start).map_or_else(|error| error.valid_up_to(), str::len);
    let text = std::str::from_utf8(&start[..valid]).ok()?.trim_start_matches('\u{feff}').trim();
    let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
    if start.len() - valid > 3 || text.is_empty() || !text.chars().all(is_text) {
        return None;
    }
    let kind = KINDS.iter().find(|(mark, _)| text.contains(mark));
    Some((kind.map_or("a text file", |(_, kind)| kind), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audio::AudioReader;

    #[test]
    fn a_text_file_is_not_taken_for_audio() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text, kind) in [
            ("p.wav", "version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
            ("m.json", "{\"audio_filepath\": \"a.wav\"}\n", "a NeMo manifest, not audio"),
            ("wav.scp", "u1 a.wav\n", "a text file, not audio; it begins with `u1 a.wav`; write"),
            ("a.srt", "1\n00:00:00,000 --> 00:00:01,000\nä\n", "subtitles"),
            ("list.wav", &*"ä".repeat(400), "a text file"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            let error = AudioReader::open(&path, 16_000).err().expect("a refusal").to_string();
            assert!(error.contains(&format!("{name}: is {kind}")), "{error}");
        }
        std::fs::write(folder.path().join("a.wav"), b"RIFF\0\0\0\0").expect("a file");
        assert!(check_is_not_text(&folder.path().join("a.wav")).is_ok());
    }
}
