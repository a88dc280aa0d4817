//! Readers, tokenizers, normalisers and alignments keep their guarantees for any text. The fuzzers
//! (`eval/fuzz/`) also change the files of the corpus, and `fuzz_corpus` replays it.

use super::*;

#[test]
fn every_fuzz_target_accepts_any_text() {
    check_property(cases(400), vec(text(25), 1..5), |lines| {
        targets::TARGETS.iter().for_each(|(_, target)| target(lines.join("\n").as_bytes()));
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
        for name in [
            "aokvqa",
            "caption",
            "haystack",
            "items",
            "phrase",
            "retrieval",
            "vqa",
            "wer_labels",
            "wer_rare_words",
            "wer_texts",
        ] {
            targets::run(name, text.as_bytes());
        }
    }
}
