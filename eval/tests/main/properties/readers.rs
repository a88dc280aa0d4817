//! Readers accept or refuse any text without a panic. The fuzzers (`eval/fuzz/`) change the files of
//! the corpus, and `fuzz_corpus` replays it.

use super::*;

#[test]
fn readers_survive_any_text() {
    check_property(cases(400), text(40), |text| {
        targets::TARGETS.iter().for_each(|(_, target)| target(text.as_bytes()));
    });
}

#[test]
fn a_line_of_many_megabytes_is_refused_with_a_short_message() {
    let huge = "x".repeat(16 << 20);
    for text in [
        format!("\"{huge}\""),
        format!("{{\"id\": \"{huge}\""),
        format!("{{\"{huge}\": 1}}"),
        format!("[{{\"image_id\": \"{huge}\"}}]"),
        format!("id\ttext\t{huge}\n\ta\n"),
        format!("id,score\n{huge},{huge}\n"),
        format!("({huge})\n({huge})\n"),
    ] {
        let readers = "aokvqa caption haystack items phrase retrieval vqa wer_labels \
                       wer_rare_words wer_texts";
        readers.split(' ').filter(|name| !name.is_empty()).for_each(|name| {
            targets::run(name, text.as_bytes());
        });
    }
}
