//! Words and pictures that the page sends.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engram_data::image;
use tempfile::NamedTempFile;

use crate::cli::output;

/// Characters of the longest text that is read.
const LONGEST_TEXT: usize = 2_000;
/// Pixels of the largest picture: decoded it takes up to 300 MB, with 16 bits for each number.
const MOST_PIXELS: u64 = 25_000_000;

/// What was typed; none where that is nothing.
pub(super) fn words(text: &str) -> anyhow::Result<Option<&str>> {
    let text = text.trim();
    let length = text.chars().count();
    anyhow::ensure!(
        length <= LONGEST_TEXT,
        "the text has {length} characters; ask with {LONGEST_TEXT} at most"
    );
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// A test of texts for all of some words, whatever their case.
pub(super) fn has_all(words: &str) -> impl Fn(&str) -> bool {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    move |text| {
        let text = text.to_lowercase();
        words.iter().all(|word| text.contains(word))
    }
}

/// A picture, in a file for as long as this lives.
pub(super) struct Upload(NamedTempFile);

impl Upload {
    /// A picture's file in base64; none of an empty text.
    pub(super) fn of(base64: &str) -> anyhow::Result<Option<Self>> {
        if base64.is_empty() {
            return Ok(None);
        }
        let bytes = STANDARD.decode(base64).context("the picture is no base64")?;
        // What is no picture is told by who decodes it.
        if let Some((width, height)) = image::size(&bytes) {
            anyhow::ensure!(
                u64::from(width) * u64::from(height) <= MOST_PIXELS,
                "the picture has {width} x {height} pixels; the page takes {MOST_PIXELS} at most: make it smaller"
            );
        }
        let mut file = NamedTempFile::new().context("no file for the picture")?;
        file.write_all(&bytes).context("no file for the picture")?;
        Ok(Some(Self(file)))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// What went wrong with it, without the place where it lies for the moment.
    pub(super) fn told(&self, error: anyhow::Error) -> anyhow::Error {
        let place = self.path().display().to_string();
        anyhow::anyhow!("{}", output::with_causes(&error).replace(&place, "the picture"))
    }
}
