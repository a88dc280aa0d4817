//! Web images with their captions (CC12M, CC3M): two tab-separated columns, without header and
//! quotes.
//!
//! # Source   `data/cc12m_table_dataset.py` of REVEAL's released code (google-research/scenic,
//! `projects/knowledge_visual_language`, commit 03c3032): the caption, unchanged. For its web pairs
//! in pre-training, REVEAL keeps captions of more than 32 characters
//! (`min-characters` = 33); its memory keeps all captions.

use engram_textfile::{Input, Lines, TextError};

use super::{Argument, ArgumentKind, Collector, DataSet, Entry, Reason, Request, Rule, Sample};
use crate::DataError;

/// The data set for the command and the tests.
pub const DATA_SET: DataSet = DataSet {
    name: "web",
    about: "Convert web images with captions: CC12M, CC3M",
    source: "cc12m",
    arguments: &[
        Argument::new(ArgumentKind::Files, "files", "FILES", "Files with lines `URL TAB caption`")
            .rule(Rule::Required),
        Argument::switch("caption-first", "Read lines `caption TAB URL`, as in CC3M"),
        Argument::new(
            ArgumentKind::Number,
            "min-characters",
            "N",
            "Skip captions with fewer than N characters; REVEAL's code uses 33 for web pairs in \
             pre-training",
        ),
    ],
    formats: "",
    examples: &[
        "cc12m.tsv --out cc12m.jsonl",
        "Train_GCC-training.tsv --caption-first --source cc3m --out cc3m.jsonl",
    ],
    samples: &[
        Sample { line: "web.tsv", files: &[("web.tsv", "http://a/1.jpg\ta dog\nhttp://b\tx\n")] },
        Sample {
            line: "web.tsv --caption-first --min-characters 5",
            files: &[("web.tsv", "a dog\thttp://a/1.jpg\nx\thttp://b\n")],
        },
    ],
    read: |request, collector| {
        request.inputs("files").try_for_each(|input| read(input?, request, collector))
    },
};

const REMEDY: &str = "use lines `URL<TAB>caption` (CC12M), or say that captions come first (CC3M)";

/// Passes each line to `collector`, as an image (by its URL) with its caption. The document of an
/// entry is the URL.
fn read(
    input: Input<'_>,
    request: &Request<'_>,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let caption_first = request.has("caption-first");
    let min_characters = request.number("min-characters");
    let mut lines = Lines::new(input);
    while collector.next_record(|| lines.advance())? {
        let Some((image, caption)) = collector.accept(url_and_caption(&lines, caption_first))?
        else {
            continue;
        };
        if image.is_empty() {
            collector.skip(Reason::NoImage);
        } else if caption.is_empty() {
            collector.skip(Reason::NoText);
        } else if caption.chars().take(min_characters).count() < min_characters {
            collector.skip(Reason::TooShort);
        } else {
            collector
                .emit(Entry::image_text(&request.source, image, caption).of_document(image))?;
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
