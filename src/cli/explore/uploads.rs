//! Text and images that the page sends.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engram_data::image;
use tempfile::NamedTempFile;

use crate::cli::output;

/// Maximum length of a text, in characters.
const MAX_TEXT_CHARACTERS: usize = 2_000;
/// Maximum size of an image, in pixels: decoded it takes up to 300 MB with 16 bits per channel.
const MAX_PIXELS: u64 = 25_000_000;

/// The trimmed text; `None` if it is empty. An error if it is too long.
pub(super) fn trimmed(text: &str) -> anyhow::Result<Option<&str>> {
    let text = text.trim();
    let length = text.chars().count();
    anyhow::ensure!(
        length <= MAX_TEXT_CHARACTERS,
        "the text has {length} characters; send {MAX_TEXT_CHARACTERS} at most"
    );
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Returns a function that is true for texts that contain all the words; case is ignored.
pub(super) fn contains_all(words: &str) -> impl Fn(&str) -> bool {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    move |text| {
        let text = text.to_lowercase();
        words.iter().all(|word| text.contains(word))
    }
}

/// An uploaded image in a temporary file, which is deleted on drop.
pub(super) struct Upload(NamedTempFile);

impl Upload {
    /// Stores an image file given in base64; `None` if the text is empty.
    pub(super) fn of(base64: &str) -> anyhow::Result<Option<Self>> {
        if base64.is_empty() {
            return Ok(None);
        }
        let bytes = STANDARD.decode(base64).context("the image is not valid base64")?;
        Self::of_bytes(&bytes).map(Some)
    }

    /// Stores the bytes of an image file.
    pub(super) fn of_bytes(bytes: &[u8]) -> anyhow::Result<Self> {
        // Files that are not images are reported by the decoder.
        if let Some((width, height)) = image::size(bytes) {
            anyhow::ensure!(
                u64::from(width) * u64::from(height) <= MAX_PIXELS,
                "the image has {width} x {height} pixels; reduce it to {MAX_PIXELS} pixels at most"
            );
        }
        let mut file =
            NamedTempFile::new().context("cannot write a temporary file for the image")?;
        file.write_all(bytes).context("cannot write a temporary file for the image")?;
        Ok(Self(file))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Formats an error about the image, without the path of the temporary file.
    pub(super) fn without_path(&self, error: anyhow::Error) -> anyhow::Error {
        let path_text = self.path().display().to_string();
        anyhow::anyhow!("{}", output::with_causes(&error).replace(&path_text, "the image"))
    }
}
