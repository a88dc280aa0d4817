//! Web images with their captions (CC12M, CC3M): two tab-separated columns, without header and
//! quotes.
//!
//! # Source   `data/cc12m_table_dataset.py` of REVEAL's released code (google-research/scenic,
//! `projects/knowledge_visual_language`, commit 03c3032): the caption, unchanged. For its web pairs
//! in pre-training, REVEAL keeps captions of more than 32 characters
//! ([`WebOptions::min_characters`] = 33); its memory keeps all captions.

use engram_textfile::{Input, Lines, TextError};

use super::{Collector, Entry, Reason};
use crate::DataError;

const REMEDY: &str = "use lines `URL<TAB>caption` (CC12M), or say that captions come first (CC3M)";

/// Options for reading captions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOptions {
    /// The source name of the entries.
    pub source: String,
    /// Whether the caption comes before the URL, as in CC3M.
    pub caption_first: bool,
    /// The minimum number of characters of a caption; 0 keeps all captions.
    pub min_characters: usize,
}

impl Default for WebOptions {
    fn default() -> Self {
        Self { source: "cc12m".to_owned(), caption_first: false, min_characters: 0 }
    }
}

/// Passes each line to `collector`, as an image (by its URL) with its caption. The document of an
/// entry is the URL.
///
/// # Errors
/// [`DataError::Text`], and the errors of the collector's sink; see [`Collector::new`].
pub fn read(
    input: Input<'_>,
    options: &WebOptions,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let mut lines = Lines::new(input);
    while collector.next_record(|| lines.advance())? {
        let Some((image, caption)) =
            collector.accept(url_and_caption(&lines, options.caption_first))?
        else {
            continue;
        };
        if image.is_empty() {
            collector.skip(Reason::NoImage);
        } else if caption.is_empty() {
            collector.skip(Reason::NoText);
        } else if caption.chars().take(options.min_characters).count() < options.min_characters {
            collector.skip(Reason::TooShort);
        } else {
            collector
                .emit(Entry::image_text(&options.source, image, caption).of_document(image))?;
        }
    }
    Ok(())
}

/// Returns the URL and the caption of a line.
fn url_and_caption<'a>(
    lines: &'a Lines<'_>,
    caption_first: bool,
) -> Result<(&'a str, &'a str), TextError> {
    let mut fields = lines.text().split('\t').map(str::trim);
    let (Some(first), Some(second), None) = (fields.next(), fields.next(), fields.next()) else {
        let columns = lines.text().split('\t').count();
        return Err(lines.error(format!("expected 2 columns, found {columns}"), REMEDY));
    };
    let (image, caption) = if caption_first { (second, first) } else { (first, second) };
    if is_url(caption) && !is_url(image) {
        return Err(lines.error("found a URL in place of the caption", REMEDY));
    }
    Ok((image, caption))
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}
