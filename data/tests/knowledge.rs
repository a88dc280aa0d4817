//! The readers of published data sets: small files written here, faults, and the real files where `ENGRAM_DATA` is set.

#![allow(clippy::unwrap_used)] // In helpers too, not only in `#[test]` functions.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use engram_data::DataError;
use engram_data::knowledge::coco::CocoOptions;
use engram_data::knowledge::vqa::VqaOptions;
use engram_data::knowledge::web::WebOptions;
use engram_data::knowledge::wikidata::{Labels, ObjectCounts, TOO_FREQUENT, TripleOptions};
use engram_data::knowledge::wit::WitOptions;
use engram_data::knowledge::{
    Collector, Content, Counts, Input, Knowledge, Note, Reason, coco, vqa, web, wikidata, wit,
};
use proptest::prelude::*;

fn input(text: &(impl AsRef<[u8]> + ?Sized)) -> Input<'_> {
    Input::new("data.file", text.as_ref()).unwrap()
}

/// What a reader gives, as lines of `entries.jsonl`, and its counts.
fn read(
    skip: bool,
    read: impl FnOnce(&mut Collector<'_>) -> Result<(), DataError>,
) -> Result<(Vec<String>, Counts), String> {
    let mut lines = Vec::new();
    let mut to = Collector::new(|knowledge: Knowledge| {
        lines.push(serde_json::to_string(&knowledge).unwrap());
        Ok(())
    })
    .skipping_bad_rows(skip);
    let result = read(&mut to);
    let counts = to.counts().clone();
    drop(to);
    result.map(|()| (lines, counts)).map_err(|error| error.to_string())
}

fn left_out<const N: usize>(reasons: [(Reason, u64); N]) -> BTreeMap<Reason, u64> {
    reasons.into()
}

#[track_caller]
fn refused(result: Result<(Vec<String>, Counts), String>, wanted: &str) {
    let error = result.unwrap_err();
    assert!(error.contains(wanted) && error.contains("; "), "{error}");
}

const EDGES: [&str; 3] = [
    r#"[["Q1", "P31", "Q5"], ["Q2", "P31", "Q5"], ["Q5", "P31", "Q5"]]"#,
    "\n\n    \n[[\"Q1\", \"P31\", \"Q5\"], [\"Q2\", \"P31\", \"Q5\"],\n [\"Q5\", \"P31\", \"Q5\"]]",
    "\u{feff}Q1\tP31\tQ5\r\n\nQ2\tP31\tQ5\r\nQ5\tP31\tQ5",
];

#[test]
fn edges_become_triples_with_labels() {
    let mut labels = Labels::default();
    let mut to = Collector::new(|_| Ok(()));
    labels.read(input("Q1\tAda\tAda L.\nQ1\tAgain\nQ9\t\nP31\tis a\n"), &mut to).unwrap();
    assert_eq!(to.counts().left_out, left_out([(Reason::NoText, 1), (Reason::SecondLabel, 1)]));
    assert_eq!((labels.len(), labels.get("Q1")), (2, Some("Ada")));
    labels
        .read(input(r#"{"Q5": {"label": "human", "description": null}, "Q2": "Bob"}"#), &mut to)
        .unwrap();
    for edges in EDGES {
        let mut counts = ObjectCounts::default();
        counts.read(input(edges), &mut to).unwrap();
        let options = TripleOptions {
            labels: Some(&labels),
            reverse: Some(&counts),
            ..TripleOptions::default()
        };
        let (lines, counts) =
            read(false, |to| wikidata::read_triples(input(edges), &options, to)).unwrap();
        assert_eq!(
            lines,
            [
                r#"{"source":"wikidata","document":"Q1","subject":"Ada","relation":"is a","object":"human"}"#,
                r#"{"source":"wikidata","document":"Q5","subject":"human","relation":"is a_R","object":"Ada"}"#,
                r#"{"source":"wikidata","document":"Q2","subject":"Bob","relation":"is a","object":"human"}"#,
                r#"{"source":"wikidata","document":"Q5","subject":"human","relation":"is a_R","object":"Bob"}"#,
            ]
        );
        assert_eq!((counts.rows, counts.entries), (3, 4));
        assert_eq!(counts.left_out, left_out([(Reason::Loop, 1)]));
        assert!(counts.notes.is_empty());
    }
}

#[test]
fn ids_without_labels_are_counted() {
    let mut labels = Labels::default();
    labels.read(input("Q1\tAda\n"), &mut Collector::new(|_| Ok(()))).unwrap();
    let options =
        TripleOptions { labels: Some(&labels), keep_ids: true, ..TripleOptions::default() };
    let (lines, counts) =
        read(false, |to| wikidata::read_triples(input(EDGES[0]), &options, to)).unwrap();
    assert!(lines[0].ends_with(r#""subject":"Ada","relation":"P31","object":"Q5"}"#), "{lines:?}");
    let notes = [(Note::EntityWithoutLabel, 3), (Note::RelationWithoutLabel, 2)];
    assert_eq!(counts.notes, notes.into());
}

#[test]
fn a_triple_with_an_unknown_entity_is_named_or_counted() {
    let mut labels = Labels::default();
    labels.read(input("Q1\tAda\nQ5\thuman\n"), &mut Collector::new(|_| Ok(()))).unwrap();
    let options = TripleOptions { labels: Some(&labels), ..TripleOptions::default() };
    for edges in EDGES {
        let triples = |skips| read(skips, |to| wikidata::read_triples(input(edges), &options, to));
        let error = triples(false).unwrap_err().to_string();
        assert!(error.contains("the subject Q2 is no entity"), "{error}");
        assert!(error.contains("item 2") || error.contains("line "), "{error}");
        assert!(error.contains("--keep-ids"), "{error}");
        let (lines, counts) = triples(true).unwrap();
        assert_eq!((lines.len(), counts.left_out[&Reason::Malformed]), (1, 1));
    }
}

#[test]
fn what_is_too_frequent_is_not_turned_round() {
    for (count, reverse) in [(TOO_FREQUENT - 1, TOO_FREQUENT - 1), (TOO_FREQUENT, 0)] {
        let edges: String = (0..count).map(|i| format!("Q{i}\tP31\thuman\n")).collect();
        let edges = edges + "Q1\tP1\tother\n";
        let mut counts = ObjectCounts::default();
        counts.read(input(&edges), &mut Collector::new(|_| Ok(()))).unwrap();
        let options = TripleOptions { reverse: Some(&counts), ..TripleOptions::default() };
        let (_, counts) =
            read(false, |to| wikidata::read_triples(input(&edges), &options, to)).unwrap();
        assert_eq!(counts.entries, count + 2 + reverse);
        let noted = counts.notes.get(&Note::TooFrequentToReverse).copied();
        assert_eq!(noted.unwrap_or(0), count - reverse);
    }
}

#[test]
fn descriptions_become_passages() {
    let labels = r#"{"Q1": {"label": "Bern", "description": "capital"}, "Q2": {"label": "x"},
        "Q3": {"description": "nameless"}, "Q4": "y"}"#;
    let (lines, counts) =
        read(false, |to| wikidata::read_descriptions(input(labels), "wikidata", to)).unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"wikidata","document":"Q1","text":"Bern: capital"}"#,
            r#"{"source":"wikidata","document":"Q3","text":"Q3: nameless"}"#,
        ]
    );
    assert_eq!(counts.left_out, left_out([(Reason::NoDescription, 2)]));
}

#[test]
fn bad_edges_and_labels_are_named_or_counted() {
    for (edges, wanted) in [
        ("a\tb\tc\na\tb\n", "data.file, line 2: 2 ids between tabs where three are expected"),
        ("a\t\tc\n", "line 1: 2 ids between tabs"),
        (r#"[["a","b","c"],["a","b"]]"#, "data.file, item 2: invalid length 2"),
        (r#"[["a","b","c"],["a","b",3]]"#, "item 2: invalid type"),
        (
            r#"[["a","b","c"],{"subject":"a","relation":"b","object":"c"}]"#,
            "item 2: no list of three",
        ),
    ] {
        let triples = |skip| {
            let options = TripleOptions::default();
            read(skip, |to| wikidata::read_triples(input(edges), &options, to))
        };
        refused(triples(false), wanted);
        let (lines, counts) = triples(true).unwrap();
        assert_eq!(lines.len() as u64, counts.rows - 1);
        assert_eq!(counts.left_out, left_out([(Reason::Malformed, 1)]));
    }
    // The file itself is broken: nothing to skip.
    for (edges, wanted) in [
        (r#"[["a","b","c"],"#, "line 1, column 15: the file ends in the middle"),
        (r#"[["a","b","c"]] x"#, "line 1, column 17: trailing characters"),
        (r#"{"a": 1}"#, "invalid type: map, expected a list"),
    ] {
        let options = TripleOptions::default();
        refused(read(true, |to| wikidata::read_triples(input(edges), &options, to)), wanted);
    }
    let labels = "{\"Q1\": \"a\",\n \"Q2\": 5}";
    let result = read(false, |to| wikidata::read_descriptions(input(labels), "w", to));
    refused(result, "data.file, entry `Q2`: 5 where an object is expected");
}

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

/// A file of WIT with these fields, all others empty.
fn wit_file(rows: &[&[(&str, &str)]]) -> String {
    let rows = rows.iter().map(|fields| {
        let fields: BTreeMap<_, _> = fields.iter().copied().collect();
        COLUMNS.map(|column| fields.get(column).copied().unwrap_or_default()).join("\t")
    });
    [COLUMNS.join("\t")].into_iter().chain(rows).map(|row| row + "\n").collect()
}

#[test]
fn wit_rows_become_pictures_with_six_texts() {
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
    let options = WitOptions { language: Some("en".to_owned()), ..WitOptions::default() };
    let (lines, counts) = read(false, |to| wit::read(input(&file), &options, to)).unwrap();
    assert_eq!(
        lines,
        [concat!(
            r#"{"source":"wit","document":"https://en/Dog","image":"https://u/dog.jpg","#,
            r#""text":"Dog / Coat <extra_id_99> Dogs have\n\"double\" coats. <extra_id_99> "#,
            r#"The dog is a mammal. <extra_id_99>  <extra_id_99> a dog <extra_id_99> A dog in the snow"}"#
        )]
    );
    assert_eq!((counts.rows, counts.entries), (3, 1));
    assert_eq!(counts.left_out, left_out([(Reason::OtherLanguage, 1), (Reason::NoImage, 1)]));
    let (_, counts) =
        read(false, |to| wit::read(input(&file), &WitOptions::default(), to)).unwrap();
    assert_eq!(counts.left_out, left_out([(Reason::NoText, 1), (Reason::NoImage, 1)]));
}

#[test]
fn bad_wit_files_are_named() {
    let wit = |file: &str| read(false, |to| wit::read(input(file), &WitOptions::default(), to));
    refused(
        wit("language\tpage_url\n"),
        "line 1: no column \"image_url\", found: language, page_url",
    );
    refused(wit(&wit_file(&[]).replace("page_title", "language")), "\"language\" appears twice");
    refused(wit(&(wit_file(&[&[]]) + "en\tx\n")), "line 3: 2 fields where the header has 17");
    refused(wit(&wit_file(&[&[("page_title", "\"open")]])), "line 2: a quote opened here");
}

#[test]
fn web_pairs_become_pictures_with_captions() {
    let file = "http://a/1.jpg\ta dog\r\nhttp://a/2.jpg\t\n\thttp\nhttp://a/3.jpg\té\"é\n\n";
    let web = |text, options: &WebOptions| read(false, |to| web::read(input(text), options, to));
    let (lines, counts) = web(file, &WebOptions::default()).unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"cc12m","document":"http://a/1.jpg","image":"http://a/1.jpg","text":"a dog"}"#,
            r#"{"source":"cc12m","document":"http://a/3.jpg","image":"http://a/3.jpg","text":"é\"é"}"#,
        ]
    );
    assert_eq!(counts.left_out, left_out([(Reason::NoText, 1), (Reason::NoImage, 1)]));
    for (least, entries) in [(3, 2), (4, 1), (5, 1), (6, 0)] {
        let options = WebOptions { least_characters: least, ..WebOptions::default() };
        let (lines, counts) = web(file, &options).unwrap();
        assert_eq!(lines.len(), entries);
        assert_eq!(
            counts.left_out.get(&Reason::TooShort).copied().unwrap_or(0),
            2 - entries as u64
        );
    }
    let options =
        WebOptions { caption_first: true, source: "cc3m".to_owned(), ..WebOptions::default() };
    let (lines, _) = web("a cat\thttp://a/4.jpg\n", &options).unwrap();
    assert!(lines[0].starts_with(r#"{"source":"cc3m","document":"http://a/4.jpg""#), "{lines:?}");
    refused(
        web("x\ty\na cat\thttp://a\n", &WebOptions::default()),
        "line 2: the address stands where",
    );
    refused(web("http://a\tb\tc\n", &WebOptions::default()), "line 1: 3 columns where two");
}

#[test]
fn web_lines_that_are_no_utf8_are_named_or_counted() {
    let file = b"http://a\tb\nhttp://c\t\xff\nhttp://d\te\n";
    let web = |skip| read(skip, |to| web::read(input(file), &WebOptions::default(), to));
    refused(web(false), "data.file, line 2: not UTF-8");
    let (lines, counts) = web(true).unwrap();
    assert_eq!((lines.len(), counts.rows), (2, 3));
    assert_eq!(counts.left_out, left_out([(Reason::Malformed, 1)]));
}

const COCO: &str = r#"{"info": {"deep": [[1]]}, "annotations": [
        {"image_id": 7, "id": 1, "caption": "a dog "}, {"image_id": 5, "id": 2, "caption": "a cat"},
        {"image_id": 7, "id": 3, "caption": "two dogs"}, {"image_id": 8, "id": 4, "caption": "lost"}],
    "images": [{"id": 5, "file_name": "5.jpg", "height": 1}, {"id": 7, "file_name": "7.jpg"},
        {"id": 9, "file_name": "9.jpg"}]}"#;

#[test]
fn captions_become_pictures_with_texts() {
    let mut options = CocoOptions { folder: Some("val2017".to_owned()), ..CocoOptions::default() };
    let (lines, counts) = read(false, |to| coco::read(input(COCO), &options, to)).unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"coco","document":"5","image":"val2017/5.jpg","text":"a cat"}"#,
            r#"{"source":"coco","document":"7","image":"val2017/7.jpg","text":"a dog"}"#,
            r#"{"source":"coco","document":"7","image":"val2017/7.jpg","text":"two dogs"}"#,
        ]
    );
    assert_eq!(counts.rows, 4);
    assert_eq!(counts.left_out, left_out([(Reason::NoText, 1), (Reason::NoImage, 1)]));
    options.join = true;
    let (lines, _) = read(false, |to| coco::read(input(COCO), &options, to)).unwrap();
    assert!(lines[1].ends_with(r#""text":"a dog <extra_id_99> two dogs"}"#), "{lines:?}");
    options.splits = vec!["val".to_owned()];
    refused(read(false, |to| coco::read(input(COCO), &options, to)), "data.file: tells no splits");
}

#[test]
fn karpathys_file_has_splits() {
    let file = r#"{"dataset": "coco", "images": [
        {"filepath": "val2014", "filename": "a.jpg", "imgid": 0, "cocoid": 522418, "split": "restval",
         "sentences": [{"raw": "A woman.", "tokens": ["a"]}, {"raw": " "}]},
        {"filename": "b.jpg", "imgid": 1, "split": "test", "sentences": [{"raw": "A man."}]}]}"#;
    let coco = |splits: &[&str]| {
        let splits = splits.iter().map(ToString::to_string).collect();
        let options = CocoOptions { splits, ..CocoOptions::default() };
        read(false, |to| coco::read(input(file), &options, to)).unwrap()
    };
    let (lines, counts) = coco(&["train", "restval"]);
    assert_eq!(
        lines,
        [r#"{"source":"coco","document":"522418","image":"val2014/a.jpg","text":"A woman."}"#]
    );
    assert_eq!(counts.left_out, left_out([(Reason::OtherSplit, 1), (Reason::NoText, 1)]));
    let (lines, _) = coco(&[]);
    assert_eq!(lines[1], r#"{"source":"coco","document":"1","image":"b.jpg","text":"A man."}"#);
}

#[test]
fn bad_caption_files_are_named() {
    let coco = |file: &str| read(false, |to| coco::read(input(file), &CocoOptions::default(), to));
    refused(coco(r#"{"images": []}"#), "data.file: has no list `annotations`");
    refused(coco(r#"{"annotations": []}"#), "data.file: has no list `images`");
    refused(coco(r#"{"images": [], "images": []}"#), "`images` stands twice");
    refused(
        coco(&COCO.replace("\"id\": 7", "\"id\": 5")),
        "item 2 of `images`: image 5 is item 1 too",
    );
    refused(coco(&COCO.replace("\"a cat\"", "3")), "item 2 of `annotations`: invalid type");
    refused(coco("[]"), "line 1, column 2: invalid type: sequence, expected an object");
}

const QUESTIONS: &str = r#"{"questions": [{"image_id": 42, "question": "What?", "question_id": 1},
    {"image_id": 7, "question": "Who?", "question_id": 2},
    {"image_id": 42, "question": "Why?", "question_id": 3},
    {"image_id": 42, "question": "How?", "question_id": 4}]}"#;
const ANSWERS: &str = r#"{"annotations": [
    {"question_id": 3, "answers": [{"answer": "fun"}]},
    {"question_id": 1, "image_id": 42, "answers": [{"answer": "cat", "answer_id": 1},
        {"answer": "dog"}, {"answer": "dog"}, {"answer": ""}]},
    {"question_id": 2, "answers": [{"answer": "Ada"}]}, {"question_id": 9, "answers": []}]}"#;

#[test]
fn questions_come_with_their_answers() {
    let name = Some("COCO_val2014_%012d.jpg".parse().unwrap());
    let mut options = VqaOptions { image_name: name, ..VqaOptions::default() };
    let vqa = |options: &VqaOptions| {
        read(false, |to| vqa::read(input(QUESTIONS), input(ANSWERS), options, to)).unwrap()
    };
    let (lines, counts) = vqa(&options);
    assert_eq!(
        lines[0],
        concat!(
            r#"{"source":"vqa","document":"42","image":"COCO_val2014_000000000042.jpg","#,
            r#""question":"What?","answer":["dog","cat"]}"#
        )
    );
    assert_eq!((lines.len(), counts.rows), (3, 4));
    assert_eq!(counts.left_out, left_out([(Reason::NoAnswer, 1), (Reason::NoQuestion, 1)]));
    options = VqaOptions { per_image: true, ..VqaOptions::default() };
    let (lines, _) = vqa(&options);
    // By the string operations of REVEAL's `get_vqa_knowledge`.
    assert_eq!(
        lines,
        [
            concat!(
                r#"{"source":"vqa","document":"42","text":"Question: What? Answer: dog, cat,  <extra_id_99> "#,
                r#"Question: Why? Answer: fun,  <extra_id_99> "}"#
            ),
            r#"{"source":"vqa","document":"7","text":"Question: Who? Answer: Ada,  <extra_id_99> "}"#,
        ]
    );
}

#[test]
fn bad_question_files_are_named() {
    let options = VqaOptions::default();
    let vqa = |questions: &str, answers: &str| {
        read(false, |to| vqa::read(input(questions), input(answers), &options, to))
    };
    refused(vqa(QUESTIONS, QUESTIONS), "has no list `annotations`");
    refused(vqa(ANSWERS, ANSWERS), "has no list `questions`");
    let doubled = QUESTIONS.replace("\"question_id\": 2", "\"question_id\": 1");
    refused(vqa(&doubled, ANSWERS), "item 2 of `questions`: question 1 stands there a second time");
    let doubled = ANSWERS.replace("\"question_id\": 2", "\"question_id\": 1");
    refused(vqa(QUESTIONS, &doubled), "item 3 of `annotations`: question 1 stands there");
    let named = VqaOptions { image_name: Some("%d".parse().unwrap()), ..options.clone() };
    let odd = QUESTIONS.replace("7", "\"x\"");
    let result = read(false, |to| vqa::read(input(&odd), input(ANSWERS), &named, to));
    refused(result, "item 2 of `questions`: image id x is no number");
}

#[test]
fn aokvqa_is_one_list() {
    let file = r#"[{"split": "val", "image_id": 1, "question_id": "a", "question": "What?",
        "choices": ["x"], "correct_choice_idx": 0, "direct_answers": ["x", "y", "y"]},
        {"image_id": 1, "question_id": "b", "question": "Who?"}]"#;
    let options = VqaOptions { source: "aokvqa".to_owned(), ..VqaOptions::default() };
    let (lines, counts) = read(false, |to| vqa::read_aokvqa(input(file), &options, to)).unwrap();
    assert_eq!(
        lines,
        [r#"{"source":"aokvqa","document":"1","question":"What?","answer":["y","x"]}"#]
    );
    assert_eq!(counts.left_out, left_out([(Reason::NoAnswer, 1)]));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn gzip_is_unpacked_and_a_broken_file_named() {
    let text = "http://a\tb\n".repeat(1000);
    let web = |bytes: &[u8]| {
        read(true, |to| web::read(Input::new("data.file", bytes)?, &WebOptions::default(), to))
    };
    let packed = gzip(text.as_bytes());
    assert_eq!(web(&packed).unwrap().0.len(), 1000);
    let both = [gzip(b"http://a\tb\n"), packed.clone()].concat();
    assert_eq!(web(&both).unwrap().0.len(), 1001);
    for cut in 2..packed.len() {
        refused(web(&packed[..cut]), "data.file: is gzip-compressed but cannot be unpacked");
    }
    refused(web(&[&packed[..], b"junk"].concat()), "cannot be unpacked");
    refused(web(&gzip(&packed)), "data.file: is gzip-compressed twice");
    refused(web(b""), "data.file: the file is empty");
    refused(web(b"\xff\xfea\0"), "data.file: is UTF-16 text");
}

#[test]
fn a_bomb_does_not_fill_the_memory() {
    // 300 MiB of small captions in 300 KiB.
    let item = br#"{"image_id":1,"caption":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},"#;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(br#"{"annotations":["#).unwrap();
    let block = item.repeat(4096);
    for _ in 0..(300 << 20) / block.len() {
        encoder.write_all(&block).unwrap();
    }
    let packed = encoder.finish().unwrap();
    assert!(packed.len() < 3 << 20, "{}", packed.len());
    let result = read(false, |to| coco::read(input(&packed), &CocoOptions::default(), to));
    refused(result, "data.file: unpacks to more than 100 times its size");
    let long = format!("[\"{}\"]", "a".repeat(17 << 20));
    let result =
        read(true, |to| wikidata::read_triples(input(&long), &TripleOptions::default(), to));
    refused(result, "data.file: an item of more than 16 MiB");
}

/// Corpora of the fuzzer: the files named `good`.
fn good_files() -> Vec<(&'static str, Vec<u8>)> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let read = |name| std::fs::read(corpus.join(name).join("good")).unwrap();
    targets::TARGETS.iter().map(|(name, _)| (*name, read(name))).collect()
}

#[test]
fn cut_and_flipped_files_are_read_or_refused() {
    for (name, bytes) in good_files() {
        for cut in 0..bytes.len() {
            targets::run(name, &bytes[..cut]);
        }
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[place] ^= 1 << bit;
                targets::run(name, &flipped);
            }
        }
    }
}

proptest! {
    #[test]
    fn web_pairs_come_back(pairs in prop::collection::vec(("[a-z/.:%é]{1,20}", "[^\t\r\n\u{0}-\u{1f}]{0,40}"), 1..30)) {
        let file: String = pairs.iter().map(|(image, caption)| format!("{image}\tx{caption}x\n")).collect();
        let (lines, counts) = read(false, |to| web::read(input(&file), &WebOptions::default(), to)).unwrap();
        prop_assert_eq!(counts.rows, pairs.len() as u64);
        let found: Vec<Knowledge> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        for ((image, caption), found) in pairs.into_iter().zip(found) {
            prop_assert_eq!(found.content, Content::ImageText { image, text: format!("x{caption}x") });
        }
    }

    #[test]
    fn edges_read_the_same_in_both_forms(edges in prop::collection::vec(("Q[0-9]", "[PX\"\\\\é]{1,3}", "Q[0-9]"), 1..30)) {
        let lines: String = edges.iter().map(|(s, r, o)| format!("{s}\t{r}\t{o}\n")).collect();
        let json = serde_json::to_string(&edges).unwrap();
        let triples = |text: &str| {
            let mut counts = ObjectCounts::default();
            counts.read(input(text), &mut Collector::new(|_| Ok(()))).unwrap();
            let options = TripleOptions { reverse: Some(&counts), ..TripleOptions::default() };
            read(false, |to| wikidata::read_triples(input(text), &options, to)).unwrap()
        };
        let (found, counts) = triples(&lines);
        let loops = edges.iter().filter(|(s, _, o)| s == o).count();
        prop_assert_eq!(found.len(), 2 * (edges.len() - loops));
        prop_assert_eq!(triples(&json), (found, counts));
    }
}

/// The folder of a real data set, unless there is none.
fn real(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ENGRAM_DATA").map(|root| PathBuf::from(root).join(name));
    let folder = folder.filter(|folder| folder.is_dir());
    if folder.is_none() {
        // To the terminal itself: the harness hides what a passing test prints.
        let message = format!("SKIPPED: set ENGRAM_DATA to the folder that holds {name}\n");
        let _ = std::io::stderr().write_all(message.as_bytes());
    }
    folder
}

#[test]
fn real_captions() {
    let Some(folder) = real("coco-captions") else { return };
    let coco = |name: &str, join| {
        let options = CocoOptions { join, ..CocoOptions::default() };
        read(false, |to| coco::read(Input::open(folder.join(name))?, &options, to)).unwrap()
    };
    let (lines, counts) = coco("captions_val2017.json", false);
    assert_eq!((lines.len(), counts.rows, counts.left_out.len()), (25_014, 25_014, 0));
    assert_eq!(coco("captions_val2017.json", true).0.len(), 5_000);
    assert_eq!(coco("captions_train2017_mini.json", false).0.len(), 400);
}

#[test]
fn real_questions() {
    if let Some(folder) = real("aokvqa") {
        let aokvqa = |name: &str, per_image| {
            let image_name = Some("val2017/%012d.jpg".parse().unwrap());
            let options = VqaOptions { image_name, per_image, ..VqaOptions::default() };
            let input = Input::open(folder.join(name)).unwrap();
            read(false, |to| vqa::read_aokvqa(input, &options, to)).unwrap()
        };
        assert_eq!(aokvqa("aokvqa_v1p0_val.json", false).0.len(), 1_145);
        assert_eq!(aokvqa("aokvqa_v1p0_val.json", true).0.len(), 1_122);
        let (lines, counts) = aokvqa("aokvqa_v1p0_test.json", false);
        assert_eq!((lines.len(), counts.rows), (0, 6_702));
        assert_eq!(counts.left_out, left_out([(Reason::NoAnswer, 6_702)]));
    }
    if let Some(folder) = real("okvqa") {
        // The official answers are not there: every question has the answer "x".
        let path = folder.join("OpenEnded_mscoco_val2014_questions.json");
        let questions: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let answer = |question: &serde_json::Value| serde_json::json!({"question_id": question["question_id"], "answers": [{"answer": "x"}]});
        let answers: Vec<_> =
            questions["questions"].as_array().unwrap().iter().map(answer).collect();
        let answers = serde_json::json!({ "annotations": answers }).to_string();
        for (per_image, entries) in [(false, 5_046), (true, 5_033)] {
            let options = VqaOptions { per_image, ..VqaOptions::default() };
            let questions = Input::open(&path).unwrap();
            let (lines, counts) =
                read(false, |to| vqa::read(questions, input(&answers), &options, to)).unwrap();
            assert_eq!((lines.len(), counts.left_out.len()), (entries, 0));
        }
    }
}

#[test]
fn real_labels() {
    let Some(folder) = real("wikidata-sample") else { return };
    let path = folder.join("entity2wikidata.json");
    let mut labels = Labels::default();
    labels.read(Input::open(&path).unwrap(), &mut Collector::new(|_| Ok(()))).unwrap();
    assert_eq!((labels.len(), labels.get("/m/010016")), (14_515, Some("Denton")));
    let (lines, counts) =
        read(false, |to| wikidata::read_descriptions(Input::open(&path)?, "wikidata", to)).unwrap();
    assert_eq!((lines.len(), counts.rows), (13_666, 14_515));
    assert_eq!(counts.left_out, left_out([(Reason::NoDescription, 849)]));
    let first = r#"{"source":"wikidata","document":"/m/010016","text":"Denton: city in Texas, United States"}"#;
    assert_eq!(lines[0], first);
}
