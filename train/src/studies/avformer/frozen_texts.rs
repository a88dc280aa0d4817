//! A file of the frozen ASR model's transcripts, so that later runs of the same build of the
//! program need not transcribe again. The frozen Whisper pads each clip to 30 seconds, so its
//! transcription takes longer than the rest of the test.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engram_infer::asr::{AsrModel, TranscribeOptions};
use engram_infer::digest;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::cache;
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::program::Program;

/// Clips per batch.
const CLIPS_PER_BATCH: usize = 8;
/// Batches between two saves of the file. A stopped run loses at most this many batches.
const BATCHES_PER_SAVE: usize = 16;

/// The transcripts of a frozen ASR model. If several runs write the file, only the texts of the
/// last run remain.
pub(super) struct FrozenTexts {
    /// The cache file; `None` without a cache folder.
    file: Option<PathBuf>,
    /// The transcripts of each batch, by the SHA-256 of the batch's samples. A key covers a whole
    /// batch, because rounding may depend on the other clips of the batch.
    batches: BTreeMap<String, Vec<String>>,
    /// The number of batches that are not in the file.
    num_unsaved: usize,
}

impl FrozenTexts {
    /// Opens the cache file for an ASR model and this build of the program, and creates the folder.
    /// An empty `folder` disables the cache. An unreadable file gives a warning; the next save
    /// replaces it.
    pub(super) fn open(folder: &str, asr_model: &AsrModel) -> Result<Self> {
        let mut store = Self { file: None, batches: BTreeMap::new(), num_unsaved: 0 };
        if folder.is_empty() {
            return Ok(store);
        }
        let program = Program::running()?.sha256;
        let program = program.get(..12).unwrap_or(&program);
        let language = asr_model.language().map_or_else(String::new, |code| format!(".{code}"));
        let weights = asr_model.weights_sha256()?;
        let name = format!("{weights}{language}.{program}.texts.json");
        let (file, cached) = cache::open(folder, &name, "texts", read)?;
        (store.file, store.batches) = (Some(file), cached.unwrap_or_default());
        Ok(store)
    }

    /// The transcripts of clips at 16 kHz. Batches not in the cache are transcribed by the
    /// unmodified ASR model. `progress` receives the number of finished clips.
    ///
    /// # Errors
    /// Errors of the ASR model and of writing the file.
    pub(super) fn of(
        &mut self,
        asr_model: &AsrModel,
        clips: &[&[f32]],
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<String>> {
        let mut texts = Vec::with_capacity(clips.len());
        for batch in clips.chunks(CLIPS_PER_BATCH) {
            let key = sha256(batch);
            let cached = self.batches.get(&key).filter(|cached| cached.len() == batch.len());
            let transcripts = match cached {
                Some(cached) => cached.clone(),
                None => {
                    let transcripts =
                        asr_model.transcribe(batch, &[], &TranscribeOptions::default())?;
                    let texts: Vec<String> =
                        transcripts.into_iter().map(|transcript| transcript.text).collect();
                    self.batches.insert(key, texts.clone());
                    self.num_unsaved += 1;
                    texts
                }
            };
            texts.extend(transcripts);
            if self.num_unsaved >= BATCHES_PER_SAVE {
                self.save()?;
            }
            progress(texts.len());
        }
        self.save()?;
        Ok(texts)
    }

    /// Writes the file if there are new batches.
    fn save(&mut self) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.num_unsaved > 0) else { return Ok(()) };
        let write = || {
            let batches = RawValue::from_string(serde_json::to_string(&self.batches)?)?;
            serde_json::to_vec(&CacheFile { sha256: digest::of_bytes(batches.get()), batches })
        };
        let bytes = write().map_err(|error| TrainError::io(file)(error.into()))?;
        write_file(file, &bytes)?;
        self.num_unsaved = 0;
        Ok(())
    }
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct CacheFile {
    /// The SHA-256 of the bytes of `batches`.
    sha256: String,
    batches: Box<RawValue>,
}

/// Parses the file, and checks its checksum.
fn read(bytes: &[u8]) -> std::result::Result<BTreeMap<String, Vec<String>>, String> {
    let stored: CacheFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if digest::of_bytes(stored.batches.get()) != stored.sha256 {
        return Err(cache::WRONG_CHECKSUM.to_owned());
    }
    serde_json::from_str(stored.batches.get()).map_err(|error| error.to_string())
}

/// The SHA-256 of all clips' lengths and samples.
fn sha256(clips: &[&[f32]]) -> String {
    let mut hash = Sha256::new();
    for clip in clips {
        hash.update(clip.len().to_le_bytes());
        digest::add_floats(&mut hash, clip);
    }
    format!("{:x}", hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_truncated_file_is_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("texts.json");
        let batches =
            BTreeMap::from([("00ff".to_owned(), vec!["a cat".to_owned(), String::new()])]);
        let mut store = FrozenTexts { file: Some(file.clone()), batches, num_unsaved: 1 };
        store.save().expect("written");
        let bytes = std::fs::read(&file).expect("a file");
        assert_eq!(read(&bytes).as_ref(), Ok(&store.batches));
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            // A change of a key name must be an error, too.
            assert!(read(&changed).is_err(), "byte {position}");
            assert!(read(&bytes[..position]).is_err(), "cut at {position}");
        }
    }
}
