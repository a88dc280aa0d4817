//! Writes transcripts to files.

use engram_data::messages::counted;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use engram_data::speech::manifest::{Clip, manifest};
use engram_infer::asr::{FinalWord, StreamResult, Transcript, Word};
use serde::Serialize;

use super::Transcribe;
use super::inputs::files_of;
use super::subtitles::{one_line, subtitles};
use crate::cli::{output, paths};

/// The output format of transcripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// JSON lines: id, text, times and probabilities of each clip
    Jsonl,
    /// `id<TAB>text`, for `engram eval wer`
    Tsv,
    /// One text per line
    Txt,
    /// A manifest for training: the input clips with the transcripts as texts
    Manifest,
    /// SubRip subtitles; for several clips, --out is a folder with one file per clip
    Srt,
    /// WebVTT subtitles, as for srt
    Vtt,
}

/// One line of the JSON lines output.
#[derive(Debug, Serialize)]
struct Line<'a> {
    id: &'a str,
    audio: &'a Path,
    start: f64,
    #[serde(flatten)]
    transcript: &'a Transcript,
    /// Replaces the transcript's words; adds the time at which each word was final.
    #[serde(rename = "words", skip_serializing_if = "<[_]>::is_empty")]
    final_words: &'a [FinalWord],
}

impl Transcribe {
    /// Writes the transcripts to `--out`, in this format, or to a folder with one subtitle file per
    /// clip. `streams` is empty without `--stream`.
    pub(super) fn write_transcripts(
        &self,
        (format, is_folder): (Format, bool),
        transcripts: &[(&Clip, Transcript)],
        streams: &[StreamResult],
    ) -> anyhow::Result<()> {
        if self.writes_subtitles() {
            let max_length = self.max_line_length.map_or(usize::MAX, usize::from);
            return transcripts.iter().enumerate().try_for_each(|(i, (clip, transcript))| {
                let streamed = streams.get(i).filter(|_| self.decoding.word_times);
                let streamed = streamed.map(|stream| &stream.words[..]).unwrap_or_default();
                let words = streamed.iter().map(|word| &word.word).chain(&transcript.words);
                let words: Vec<Word> = words.cloned().collect();
                let subtitles = subtitles(format, &transcript.segments, &words, max_length);
                let path = self.subtitle_path(clip, (format, is_folder));
                output::write_atomic(&path, subtitles.as_bytes())
            });
        }
        let lines = transcripts.iter().enumerate().map(|(i, (clip, transcript))| {
            let (id, audio, start) = (clip.id.as_str(), clip.audio.as_path(), clip.start);
            let final_words = streams.get(i).map_or(&[][..], |stream| &stream.words);
            let line = Line { id, audio, start, transcript, final_words };
            (*clip, transcript.text.as_str(), line)
        });
        self.write_lines(format, lines)
    }

    /// Writes a line for each clip to `--out`. `lines` has the clip, its text and its JSON line.
    pub(super) fn write_lines<'c>(
        &self,
        format: Format,
        lines: impl Iterator<Item = (&'c Clip, &'c str, impl Serialize)>,
    ) -> anyhow::Result<()> {
        if format == Format::Manifest {
            return write_labelled(&self.out, lines.map(|(clip, text, _)| (clip, text)));
        }
        let mut file = String::new();
        for (clip, text, line) in lines {
            if format == Format::Tsv && file.is_empty() {
                file += "id\ttext\n";
            }
            file += &match format {
                Format::Tsv => format!("{}\t{}\n", clip.id, one_line(text)),
                Format::Txt => format!("{}\n", one_line(text)),
                _ => serde_json::to_string(&line)? + "\n",
            };
        }
        output::write_atomic(&self.out, file.as_bytes())
    }

    /// Returns an error if two clips have the same subtitle file, or if a subtitle file would
    /// replace an input or, without `--force`, another file. Runs before any transcription.
    pub(super) fn check_subtitle_files(
        &self,
        clips: &[Clip],
        target: (Format, bool),
    ) -> anyhow::Result<()> {
        let mut files = HashMap::new();
        for clip in clips {
            let file = self.subtitle_path(clip, target);
            if let Some(other) = files.insert(file.clone(), &clip.id) {
                let (file, id) = (file.display(), &clip.id);
                anyhow::bail!(
                    "{file}: clips `{other}` and `{id}` have the same subtitle file; change one id"
                );
            }
        }
        files.keys().try_for_each(|file| {
            paths::check_not_overwritten(file, files_of(clips))?;
            paths::check_may_write(file)
        })
    }

    fn subtitle_path(&self, clip: &Clip, (format, is_folder): (Format, bool)) -> PathBuf {
        if !is_folder {
            return self.out.to_path_buf();
        }
        let extension = if format == Format::Srt { "srt" } else { "vtt" };
        let relative: PathBuf = Path::new(&clip.id)
            .components()
            .filter(|part| matches!(part, std::path::Component::Normal(_)))
            .collect();
        self.out.join(format!("{}.{extension}", relative.display()))
    }
}

/// Writes a training manifest: the clips with their transcripts as texts. Skips clips with an empty
/// transcript.
fn write_labelled<'c>(
    path: &Path,
    transcribed: impl Iterator<Item = (&'c Clip, &'c str)>,
) -> anyhow::Result<()> {
    let label = |(clip, text): (&Clip, &str)| {
        let text = one_line(text);
        let text = (!text.is_empty()).then_some(text);
        Clip { text, ..clip.clone() }
    };
    let (labelled, without_text): (Vec<Clip>, Vec<Clip>) =
        transcribed.map(label).partition(|clip| clip.text.is_some());
    if labelled.is_empty() {
        anyhow::bail!("all transcripts are empty: there is nothing to write to {}", path.display());
    }
    if !without_text.is_empty() {
        let (clips, first) = (counted(without_text.len(), "clip"), &without_text[0].id);
        let note = format!("skipped {clips} with an empty transcript, first `{first}`");
        output::note(&note);
    }
    output::write_atomic(path, &manifest(path, &labelled)?)
}

#[cfg(test)]
mod tests {
    use engram_data::speech::manifest::read_manifest;

    use super::*;

    #[test]
    fn clips_are_written_with_their_transcripts() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = "{\"audio\": \"a.wav\", \"start\": 1.5, \"text\": \"old\", \"frames\": [\"a.png\"]}\n\
                    {\"audio\": \"b.wav\"}\n{\"audio\": \"c.wav\"}\n";
        std::fs::write(folder.path().join("in.jsonl"), text).expect("a manifest");
        let clips = read_manifest(&folder.path().join("in.jsonl")).expect("clips");
        let out = folder.path().join("out.jsonl");
        let transcribed = |texts: [&'static str; 3]| clips.iter().zip(texts);
        write_labelled(&out, transcribed(["a cat", "  ", "two\nlines"])).expect("written");
        let labelled = read_manifest(&out).expect("labelled clips");
        let texts: Vec<Option<&str>> = labelled.iter().map(|clip| clip.text.as_deref()).collect();
        assert_eq!(texts, [Some("a cat"), Some("two lines")]);
        assert_eq!((labelled[0].start, &labelled[0].frames), (1.5, &clips[0].frames));
        assert_eq!(labelled[1].audio, clips[2].audio);
        let error = write_labelled(&out, transcribed([""; 3])).expect_err("no texts").to_string();
        assert!(error.contains("all transcripts are empty"), "{error}");
    }
}
