//! A file of the frozen ASR model's transcripts, so that later runs of the same build of the
//! program need not transcribe again. The frozen Whisper pads each clip to 30 seconds, so its
//! transcription takes longer than the rest of the test.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engram_infer::asr::{AsrModel, TranscribeOptions};
use engram_infer::digest;
use sha2::{Digest, Sha256};

use super::cache;
use crate::error::Result;
use crate::program::Program;

const CLIPS_PER_BATCH: usize = 8;
/// Batches between two saves of the file. A stopped run loses at most this many batches.
const BATCHES_PER_SAVE: usize = 16;

/// The transcripts of a frozen ASR model.
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
        let name = format!("{weights}{language}.{program}.texts");
        let (file, cached) = cache::open(folder, &name, "texts")?;
        (store.file, store.batches) = (Some(file), cached.unwrap_or_default().0);
        Ok(store)
    }

    /// The transcripts of clips at 16 kHz. Batches not in the cache are transcribed by the
    /// unmodified ASR model. `progress` receives the number of finished clips.
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
        if let Some(file) = self.file.as_ref().filter(|_| self.num_unsaved > 0) {
            cache::save(file, &self.batches, &[])?;
            self.num_unsaved = 0;
        }
        Ok(())
    }
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
