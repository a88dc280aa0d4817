//! WIT: Wikipedia images with the texts around them, in tab-separated files of 17 columns and
//! several gigabytes each.
//!
//! # Source   `data/wit_table_dataset.py` of REVEAL's released code (google-research/scenic,
//! `projects/knowledge_visual_language`, commit 03c3032): six texts, including empty ones, joined
//! by [`SEPARATOR`]. A leading `english ` of the attribution is removed. That code reads
//! canonicalised captions, which are not in the published files. Here the texts are as published,
//! and the prefix to remove is `English:`. Fields are quoted as by Python's `csv`, which TensorFlow
//! Datasets uses to read them.

use engram_textfile::{Input, Table, TextError};

use super::{
    Argument, ArgumentKind, Collector, DataSet, Entry, Reason, Request, Rule, SEPARATOR, Sample,
};
use crate::DataError;

/// The data set for the command and the tests.
pub const DATA_SET: DataSet = DataSet {
    name: "wit",
    about: "Convert WIT: images of Wikipedia with the texts around them",
    source: "wit",
    arguments: &[
        Argument::new(ArgumentKind::Files, "files", "FILES", "WIT files, .tsv or .tsv.gz")
            .rule(Rule::Required),
        Argument::new(
            ArgumentKind::Text,
            "language",
            "CODE",
            "Keep only this language, for example en; default: all",
        ),
    ],
    formats: "",
    examples: &["wit_v1.train.all-0000*.tsv.gz --language en --out wit.jsonl"],
    samples: &[
        Sample { line: "wit.tsv", files: &[("wit.tsv", SAMPLE)] },
        Sample { line: "wit.tsv --language en", files: &[("wit.tsv", SAMPLE)] },
    ],
    read: |request, collector| {
        request.inputs("files").try_for_each(|input| read(input?, request, collector))
    },
};

const SAMPLE: &str = "\
language\tpage_url\timage_url\thierarchical_section_title\tcontext_section_description\t\
context_page_description\tcaption_reference_description\tcaption_alt_text_description\t\
caption_attribution_description
en\thttps://a/Camel\thttps://a/c.jpg\tCamel\t\t\"A \"\"large\"\"\nanimal\"\t\t\tEnglish: A camel
de\thttps://a/Kamel\thttps://a/c.jpg\t\t\t\t\t\t
";

/// The indices of the columns to read.
struct Columns {
    language: usize,
    page_url: usize,
    image_url: usize,
    /// The texts in REVEAL's order; the attribution is last.
    texts: [usize; 6],
}

impl Columns {
    fn find(table: &Table<'_>) -> Result<Self, TextError> {
        let [language, page_url, image_url] =
            table.columns(["language", "page_url", "image_url"])?;
        let texts = table.columns([
            "hierarchical_section_title",
            "context_section_description",
            "context_page_description",
            "caption_reference_description",
            "caption_alt_text_description",
            "caption_attribution_description",
        ])?;
        Ok(Self { language, page_url, image_url, texts })
    }

    /// Returns the text of a row; `None` if all six are blank.
    fn text(&self, row: &Table<'_>) -> Option<String> {
        let [title, section, page, reference, alt, attribution] =
            self.texts.map(|column| row.field(column).trim());
        let texts = [title, section, page, reference, alt, without_language(attribution)];
        texts.iter().any(|text| !text.is_empty()).then(|| texts.join(SEPARATOR))
    }
}

/// Passes each row to `collector`, as an image (by its URL) with its text. The document of an entry
/// is the page.
fn read(
    input: Input<'_>,
    request: &Request<'_>,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let mut table = Table::tsv(input, true)?;
    let columns = Columns::find(&table)?;
    let requested = request.text("language");
    while collector.next_record(|| table.advance())? {
        let row = &table;
        let language = row.field(columns.language);
        if requested.as_deref().is_some_and(|requested| requested != language) {
            collector.skip(Reason::OtherLanguage);
            continue;
        }
        let image = row.field(columns.image_url).trim();
        if image.is_empty() {
            collector.skip(Reason::NoImage);
            continue;
        }
        let Some(text) = columns.text(row) else {
            collector.skip(Reason::NoText);
            continue;
        };
        let entry = Entry::image_text(&request.source, image, text);
        collector.emit(match row.field(columns.page_url).trim() {
            "" => entry,
            page => entry.of_document(page),
        })?;
    }
    Ok(())
}

/// Removes the language prefix `English:` of an attribution, in any case.
fn without_language(attribution: &str) -> &str {
    const PREFIX: &str = "english:";
    match attribution.split_at_checked(PREFIX.len()) {
        Some((start, rest)) if start.eq_ignore_ascii_case(PREFIX) => rest.trim_start(),
        _ => attribution,
    }
}

#[cfg(test)]
mod tests {
    use super::without_language;

    #[test]
    fn only_the_language_prefix_is_removed() {
        for (attribution, expected) in [
            ("English: A dog", "A dog"),
            ("english:a dog", "a dog"),
            ("English Heritage", "English Heritage"),
            ("Englisch", "Englisch"),
            ("Deutsch: Ein Hund", "Deutsch: Ein Hund"),
            ("", ""),
        ] {
            assert_eq!(without_language(attribution), expected);
        }
    }
}
