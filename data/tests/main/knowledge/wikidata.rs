//! Tests of Wikidata labels, descriptions and edges.

use engram_data::knowledge::{Counts, Note, Reason, wikidata};
use proptest::prelude::*;

use super::reading::{assert_refused, read_line, skip_counts};
use crate::real_data;

const EDGES: [&str; 3] = [
    r#"[["Q1", "P31", "Q5"], ["Q2", "P31", "Q5"], ["Q5", "P31", "Q5"]]"#,
    "\n\n    \n[[\"Q1\", \"P31\", \"Q5\"], [\"Q2\", \"P31\", \"Q5\"],\n [\"Q5\", \"P31\", \"Q5\"]]",
    "\u{feff}Q1\tP31\tQ5\r\n\nQ2\tP31\tQ5\r\nQ5\tP31\tQ5",
];

/// Reads triples with two files of labels, `l` and `more`.
fn triples(
    triples: &str,
    labels: [&str; 2],
    options: &str,
    skip_malformed: bool,
) -> Result<(Vec<String>, Counts), String> {
    let files = [("data.file", triples), ("l", labels[0]), ("more", labels[1])];
    let files = files.map(|(name, text)| (name, text.as_bytes()));
    read_line(&wikidata::DATA_SET, skip_malformed, &format!("data.file {options}"), &files)
}

/// Reads the descriptions of labels.
fn descriptions(labels: &str) -> Result<(Vec<String>, Counts), String> {
    let files = [("data.file", labels.as_bytes())];
    read_line(&wikidata::DATA_SET, false, "--labels data.file --descriptions", &files)
}

#[test]
fn edges_become_triples_with_labels() {
    let labels = [
        "Q1\tAda\tAda L.\nQ1\tAgain\nQ9\t\nP31\tis a\n",
        r#"{"Q5": {"label": "human", "description": null}, "Q2": "Bob"}"#,
    ];
    for edges in EDGES {
        let (lines, counts) =
            triples(edges, labels, "--labels l --labels more --reverse", false).unwrap();
        assert_eq!(
            lines,
            [
                r#"{"source":"wikidata","document":"Q1","subject":"Ada","relation":"is a","object":"human"}"#,
                r#"{"source":"wikidata","document":"Q5","subject":"human","relation":"is a_R","object":"Ada"}"#,
                r#"{"source":"wikidata","document":"Q2","subject":"Bob","relation":"is a","object":"human"}"#,
                r#"{"source":"wikidata","document":"Q5","subject":"human","relation":"is a_R","object":"Bob"}"#,
            ]
        );
        assert_eq!((counts.records, counts.entries), (3, 4));
        assert_eq!(counts.skipped, skip_counts([(Reason::SelfLoop, 1)]));
        assert!(counts.notes.is_empty());
    }
}

#[test]
fn ids_without_labels_are_counted() {
    let (lines, counts) =
        triples(EDGES[0], ["Q1\tAda\n", ""], "--labels l --keep-ids", false).unwrap();
    assert!(lines[0].ends_with(r#""subject":"Ada","relation":"P31","object":"Q5"}"#), "{lines:?}");
    let notes = [(Note::EntityWithoutLabel, 3), (Note::RelationWithoutLabel, 2)];
    assert_eq!(counts.notes, notes.into());
}

#[test]
fn a_triple_with_an_unlabelled_entity_is_reported_or_counted() {
    for edges in EDGES {
        let triples = |skips| triples(edges, ["Q1\tAda\nQ5\thuman\n", ""], "--labels l", skips);
        let error = triples(false).unwrap_err().to_string();
        assert!(error.contains("the subject Q2 has no label"), "{error}");
        assert!(error.contains("item 2") || error.contains("data.file:"), "{error}");
        assert!(error.contains("keep ids in place of labels"), "{error}");
        let (lines, counts) = triples(true).unwrap();
        assert_eq!((lines.len(), counts.skipped[&Reason::Malformed]), (1, 1));
    }
}

#[test]
fn frequent_objects_get_no_reverse_edge() {
    for (count, reverse_edges) in [(9_999, 9_999), (10_000, 0)] {
        let edges: String = (0..count).map(|i| format!("Q{i}\tP31\thuman\n")).collect();
        let edges = edges + "Q1\tP1\tother\n";
        let (_, counts) = triples(&edges, ["", ""], "--reverse", false).unwrap();
        assert_eq!(counts.entries, count + 2 + reverse_edges);
        let notes = counts.notes.get(&Note::TooFrequentToReverse).copied();
        assert_eq!(notes.unwrap_or(0), count - reverse_edges);
    }
}

#[test]
fn descriptions_become_passages() {
    let labels = r#"{"Q1": {"label": "Bern", "description": "capital"}, "Q2": {"label": "x"},
        "Q3": {"description": "nameless"}, "Q4": "y"}"#;
    let (lines, counts) = descriptions(labels).unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"wikidata","document":"Q1","text":"Bern: capital"}"#,
            r#"{"source":"wikidata","document":"Q3","text":"Q3: nameless"}"#,
        ]
    );
    assert_eq!(counts.skipped, skip_counts([(Reason::NoDescription, 2)]));
}

#[test]
fn bad_edges_and_labels_are_reported_or_counted() {
    for (edges, expected) in [
        ("a\tb\tc\na\tb\n", "data.file:2: expected 3 tab-separated ids, found 2"),
        ("a\t\tc\n", ":1: expected 3 tab-separated ids"),
        (r#"[["a","b","c"],["a","b"]]"#, "data.file, item 2: invalid length 2"),
        (r#"[["a","b","c"],["a","b",3]]"#, "item 2: invalid type"),
        (
            r#"[["a","b","c"],{"subject":"a","relation":"b","object":"c"}]"#,
            "item 2: not a list of 3 ids",
        ),
    ] {
        let triples = |skips| triples(edges, ["", ""], "", skips);
        assert_refused(triples(false), expected);
        let (lines, counts) = triples(true).unwrap();
        assert_eq!(lines.len() as u64, counts.records - 1);
        assert_eq!(counts.skipped, skip_counts([(Reason::Malformed, 1)]));
    }
    // The file itself is broken, so there is no row to skip.
    for (edges, expected) in [
        (r#"[["a","b","c"],"#, ":1: the file ends in the middle"),
        (r#"[["a","b","c"]] x"#, ":1: trailing characters (column 17)"),
        (r#"{"a": 1}"#, "invalid type: map, expected a list"),
    ] {
        assert_refused(triples(edges, ["", ""], "", true), expected);
    }
    let labels = "{\"Q1\": \"a\",\n \"Q2\": 5}";
    assert_refused(descriptions(labels), "data.file, entry `Q2`: expected an object, found 5");
}

proptest! {
    #[test]
    fn both_formats_of_edges_give_the_same_triples(edges in prop::collection::vec(("Q[0-9]", "[PX\"\\\\é]{1,3}", "Q[0-9]"), 1..30)) {
        let lines: String = edges.iter().map(|(s, r, o)| format!("{s}\t{r}\t{o}\n")).collect();
        let json = serde_json::to_string(&edges).unwrap();
        let triples = |text: &str| triples(text, ["", ""], "--reverse", false).unwrap();
        let (triples_of_lines, counts) = triples(&lines);
        let loops = edges.iter().filter(|(s, _, o)| s == o).count();
        prop_assert_eq!(triples_of_lines.len(), 2 * (edges.len() - loops));
        prop_assert_eq!(triples(&json), (triples_of_lines, counts));
    }
}

#[test]
#[ignore = "needs ENGRAM_DATA: wikidata-sample"]
fn real_labels_are_read() {
    let path = real_data("wikidata-sample/entity2wikidata.json");
    let line = format!("--labels {} --descriptions", path.display());
    let (lines, counts) = read_line(&wikidata::DATA_SET, false, &line, &[]).unwrap();
    assert_eq!((lines.len(), counts.records), (13_666, 14_515));
    assert_eq!(counts.skipped, skip_counts([(Reason::NoDescription, 849)]));
    let first = r#"{"source":"wikidata","document":"/m/010016","text":"Denton: city in Texas, United States"}"#;
    assert_eq!(lines[0], first);
}
