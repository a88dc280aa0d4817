//! The clips of all inputs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_data::folder::SkippedFiles;
use engram_data::speech::manifest::{Clip, InputClips, input_clips};
use serde::Serialize;

use super::streaming;
use crate::cli::output;

/// The clips of all inputs, in order.
pub(super) struct Inputs {
    pub(super) clips: Vec<Clip>,
    /// Each input's path and the number of clips up to its end.
    ends: Vec<(PathBuf, usize)>,
    pub(super) notes: InputNotes,
}

/// What was skipped in folders, and what was taken for what in lists, for the JSON summary.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct InputNotes {
    /// Counts of the files of all folders that were not read.
    skipped_files: SkippedFiles,
    /// The lists of other programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lists: Vec<ListNote>,
}

#[derive(Debug, Clone, Serialize)]
struct ListNote {
    path: PathBuf,
    taken_as: String,
}

impl Inputs {
    /// Reads the inputs and prints how many files of each folder were skipped, and what was taken
    /// for what in a list. Ids must differ between inputs.
    pub(super) fn read(paths: Vec<PathBuf>, is_streaming: bool) -> anyhow::Result<Self> {
        let mut inputs = Self { clips: Vec::new(), ends: Vec::new(), notes: InputNotes::default() };
        for path in paths {
            match streaming::stdin(&path, is_streaming)? {
                Some(clip) => inputs.clips.push(clip),
                None => {
                    let InputClips { clips, skipped, taken_as } = input_clips(&path)?;
                    inputs.clips.extend(clips);
                    if skipped != SkippedFiles::default() {
                        output::note(&format!("{}: skipped {skipped}", path.display()));
                    }
                    inputs.notes.skipped_files += skipped;
                    if let Some(taken_as) = taken_as {
                        output::note(&format!("{}: read as {taken_as}", path.display()));
                        inputs.notes.lists.push(ListNote { path: path.clone(), taken_as });
                    }
                }
            }
            inputs.ends.push((path, inputs.clips.len()));
        }
        inputs.check_ids()?;
        Ok(inputs)
    }

    /// The path of the input that a clip belongs to.
    pub(super) fn path_of<'a>(&'a self, clip: &'a Clip) -> &'a Path {
        let index = self.clips.iter().position(|other| other.id == clip.id).unwrap_or(0);
        let input = self.ends.iter().find(|(_, end)| index < *end);
        input.map_or(&clip.audio, |(path, _)| path)
    }

    /// Returns an error if two inputs have a clip with the same id.
    fn check_ids(&self) -> anyhow::Result<()> {
        let (mut start, mut input_by_id) = (0, HashMap::new());
        for (input, end) in &self.ends {
            for clip in &self.clips[start..*end] {
                if let Some(other) = input_by_id.insert(clip.id.as_str(), input) {
                    let (input, other, id) = (input.display(), other.display(), &clip.id);
                    anyhow::bail!(
                        "{input}: the clip id `{id}` is also in {other}; transcribe them \
                         separately, or give a manifest with ids"
                    );
                }
            }
            start = *end;
        }
        Ok(())
    }
}

/// The audio and image files of clips.
pub(in crate::cli) fn files_of(clips: &[Clip]) -> impl Iterator<Item = &Path> {
    clips.iter().flat_map(|clip| {
        let frames = clip.frames.iter().map(|frame| frame.image.as_path());
        std::iter::once(clip.audio.as_path()).chain(frames)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clips_belong_to_their_inputs_and_duplicate_ids_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("one.jsonl"), "{\"audio\": \"a.wav\"}\n{\"audio\": \"b.wav\"}\n")
            .expect("a manifest");
        let paths = [path("one.jsonl"), path("c.wav")];
        let inputs = Inputs::read(paths.to_vec(), false).expect("clips");
        let input_paths: Vec<&Path> =
            inputs.clips.iter().map(|clip| inputs.path_of(clip)).collect();
        assert_eq!(input_paths, [&paths[0], &paths[0], &paths[1]]);
        let result = Inputs::read(vec![path("one.jsonl"), path("b.mp3")], false).err();
        let error = result.expect("a refusal").to_string();
        assert!(error.contains("the clip id `b` is also in"), "{error}");
        std::fs::write(path("n.json"), "{\"audio_filepath\": \"a.wav\"}\n").expect("a list");
        std::fs::create_dir(path("f")).expect("a folder");
        for name in ["f/notes.txt", "f/.b.wav", "f/c.wav"] {
            std::fs::write(path(name), "x").expect("a file");
        }
        std::os::unix::fs::symlink(".", path("f/link")).expect("a link");
        let inputs = Inputs::read(vec![path("n.json"), path("f")], false).expect("clips");
        let notes = serde_json::to_value(&inputs.notes).expect("JSON");
        let skipped = serde_json::json!({"hidden": 1, "others": 1, "links": 1});
        assert_eq!(notes["skipped_files"], skipped);
        let taken_as = "a NeMo manifest: audio from `audio_filepath`";
        assert_eq!(notes["lists"][0]["taken_as"], taken_as);
    }
}
