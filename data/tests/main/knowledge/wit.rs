//! Tests of WIT.

use std::collections::BTreeMap;

use engram_data::knowledge::{Counts, Reason, wit};

use super::reading::{assert_refused, read_line, skip_counts};

const COLUMNS: [&str; 17] = [
    "language",
    "page_url",
    "image_url",
    "page_title",
    "section_title",
    "hierarchical_section_title",
    "caption_reference_description",
    "caption_attribution_description",
    "caption_alt_text_description",
    "mime_type",
    "original_height",
    "original_width",
    "is_main_image",
    "attribution_passes_lang_id",
    "page_changed_recently",
    "context_page_description",
    "context_section_description",
];

/// Returns a WIT file with these fields; all others are empty.
fn wit_file(rows: &[&[(&str, &str)]]) -> String {
    let rows = rows.iter().map(|fields| {
        let fields: BTreeMap<_, _> = fields.iter().copied().collect();
        COLUMNS.map(|column| fields.get(column).copied().unwrap_or_default()).join("\t")
    });
    [COLUMNS.join("\t")].into_iter().chain(rows).map(|row| row + "\n").collect()
}

fn wit(file: &str, options: &str) -> Result<(Vec<String>, Counts), String> {
    read_line(&wit::DATA_SET, false, &format!("f {options}"), &[("f", file.as_bytes())])
}

#[test]
fn wit_rows_become_images_with_six_texts() {
    let file = wit_file(&[
        &[
            ("language", "en"),
            ("page_url", "https://en/Dog"),
            ("image_url", "https://u/dog.jpg"),
            ("page_title", "not used"),
            ("hierarchical_section_title", "Dog / Coat"),
            ("context_section_description", "\"Dogs have\n\"\"double\"\" coats.\""),
            ("context_page_description", "The dog is a mammal."),
            ("caption_alt_text_description", "a dog"),
            ("caption_attribution_description", "English: A dog in the snow"),
        ],
        &[("language", "de"), ("image_url", "https://u/hund.jpg"), ("page_title", "Hund")],
        &[
            ("language", "en"),
            ("page_url", "https://en/Cat"),
            ("caption_alt_text_description", "x"),
        ],
    ]);
    let (lines, counts) = wit(&file, "--language en").unwrap();
    assert_eq!(
        lines,
        [concat!(
            r#"{"source":"wit","document":"https://en/Dog","image":"https://u/dog.jpg","#,
            r#""text":"Dog / Coat <extra_id_99> Dogs have\n\"double\" coats. <extra_id_99> "#,
            r#"The dog is a mammal. <extra_id_99>  <extra_id_99> a dog <extra_id_99> A dog in the snow"}"#
        )]
    );
    assert_eq!((counts.records, counts.entries), (3, 1));
    assert_eq!(counts.skipped, skip_counts([(Reason::OtherLanguage, 1), (Reason::NoImage, 1)]));
    let (_, counts) = wit(&file, "").unwrap();
    assert_eq!(counts.skipped, skip_counts([(Reason::NoText, 1), (Reason::NoImage, 1)]));
}

#[test]
fn bad_wit_files_are_reported() {
    let wit = |file: &str| wit(file, "");
    assert_refused(
        wit("language\tpage_url\n"),
        ":1: column `image_url` is missing; the header has: language, page_url",
    );
    assert_refused(
        wit(&wit_file(&[]).replace("page_title", "language")),
        "column `language` occurs twice",
    );
    assert_refused(wit(&(wit_file(&[&[]]) + "en\tx\n")), ":3: 2 fields where the header has 17");
    assert_refused(wit(&wit_file(&[&[("page_title", "\"open")]])), ":2: a quote opened here");
}
