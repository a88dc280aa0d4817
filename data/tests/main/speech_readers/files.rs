//! Files written by tests, and readers for them.

use std::fs;
use std::path::PathBuf;

use engram_data::DataError;
use engram_data::speech::{self, SpeechClips, SpeechSource};
use tempfile::TempDir;

use crate::assert_has;

/// Test files in a temporary folder. Audio files have any content, because readers do not open
/// them.
pub struct Files(pub TempDir);

impl Files {
    pub fn new<const N: usize>(files: [(&str, &str); N]) -> Self {
        let test_files = Self(TempDir::new().unwrap());
        files.into_iter().for_each(|(name, text)| test_files.write(name, text));
        test_files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    pub fn source(&self, path: &str) -> SpeechSource {
        SpeechSource::new(self.path(path))
    }

    /// Returns a source with the folder `audio`.
    pub fn with_audio(&self, path: &str) -> SpeechSource {
        SpeechSource { audio: Some(self.path("audio")), ..self.source(path) }
    }
}

pub fn read(format: &str, source: &SpeechSource) -> Result<SpeechClips, DataError> {
    speech::read(format.parse().unwrap(), source)
}

#[track_caller]
pub fn ids(data_set: &SpeechClips) -> Vec<&str> {
    data_set.clips.iter().map(|clip| clip.id.as_str()).collect()
}

#[track_caller]
pub fn assert_refused(format: &str, source: &SpeechSource, expected: &[&str]) {
    let error = read(format, source).unwrap_err().to_string();
    assert_has(&error, expected);
    assert!(error.contains(';') || error.contains('?'), "no remedy: {error}");
}

pub fn skip_missing(source: SpeechSource) -> SpeechSource {
    SpeechSource { skip_missing: true, ..source }
}
