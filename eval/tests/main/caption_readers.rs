//! Tests of the caption readers and of joining results with annotations: accepted inputs, and error
//! messages.

use engram_eval::EvalError;
use engram_eval::caption::{
    CaptionOptions, CaptionScores, evaluate, parse_annotations, parse_document_frequency,
    parse_results,
};
use engram_eval::metric::mean::mean;

const ANNOTATIONS: &str = r#"{"info": {}, "images": [
    {"id": 3, "domain": "out-domain"}, {"id": 1, "domain": "in-domain"}, {"id": "x"},
    {"id": 2, "domain": "in-domain"}],
  "annotations": [
    {"image_id": 1, "id": 1, "caption": "A dog runs in the park."},
    {"image_id": 3, "id": 2, "caption": "Two men ride a bus"},
    {"image_id": 1, "id": 3, "caption": "the dog is running"},
    {"image_id": 2, "id": 4, "caption": "a red bus on the street"},
    {"image_id": "x", "id": 5, "caption": "a cat sleeps on a couch"}]}"#;
const RESULTS: &str = r#"[{"image_id": "x", "caption": "a cat on a couch"}, {"image_id": 2, "caption": "a red bus"},
    {"image_id": 1, "caption": "a dog runs"}, {"image_id": 3, "caption": "two men on a bus"}]"#;

fn scores(results: &str, options: &CaptionOptions) -> Result<CaptionScores, EvalError> {
    let annotations = parse_annotations("a.json", ANNOTATIONS)?;
    evaluate(&annotations, &parse_results("r.json", results)?, options)
}

fn error_message(results: &str) -> String {
    scores(results, &CaptionOptions::default()).expect_err("a refusal").to_string()
}

fn annotation_error(text: &str) -> String {
    parse_annotations("a.json", text).expect_err("a refusal").to_string()
}

#[test]
fn images_keep_their_order_and_domains_are_parts_of_the_whole() {
    let all_scores = scores(RESULTS, &CaptionOptions::default()).unwrap();
    let ids: Vec<String> = all_scores.images.iter().map(|image| image.id.to_string()).collect();
    assert_eq!(ids, ["3", "1", "x", "2"]);
    let domains: Vec<_> =
        all_scores.domains.iter().map(|d| (d.name.as_str(), &*d.images)).collect();
    assert_eq!(domains, [("in-domain", &[1, 3][..]), ("out-domain", &[0][..])]);
    assert!(all_scores.warnings.is_empty(), "{:?}", all_scores.warnings);
    let expected =
        mean(&[all_scores.images[1].metrics.cider_d, all_scores.images[3].metrics.cider_d]);
    assert_eq!(all_scores.domains[0].metrics.cider_d, expected);
    assert_eq!(all_scores.domains[1].metrics.bleu, all_scores.images[0].metrics.bleu);

    // With its own document frequencies, a domain is scored as if its images were evaluated alone.
    let options = CaptionOptions { own_frequencies: true, ..Default::default() };
    let own_frequencies = scores(RESULTS, &options).unwrap();
    let mut annotations = parse_annotations("a.json", ANNOTATIONS).unwrap();
    let mut results = parse_results("r.json", RESULTS).unwrap();
    annotations.images.retain(|image| image.domain.as_deref() == Some("in-domain"));
    results.results.retain(|r| ["1", "2"].contains(&&*r.image_id.0));
    let domain_alone = evaluate(&annotations, &results, &CaptionOptions::default()).unwrap();
    assert_eq!(own_frequencies.domains[0].metrics, domain_alone.corpus);
    assert_eq!(
        own_frequencies.warnings,
        ["CIDEr-D and CIDEr of out-domain are 0: it has one image"]
    );
}

#[test]
fn missing_results_are_accepted_only_on_request() {
    let partial_results = r#"[{"image_id": 2, "caption": "a red bus"}]"#;
    assert_eq!(
        error_message(partial_results),
        "r.json: no prediction for id `3` (a.json), 3 of 4 ids are missing; give one row per gold row"
    );
    let options = CaptionOptions { only_with_result: true, ..Default::default() };
    let scored = scores(partial_results, &options).unwrap();
    assert_eq!((scored.images.len(), scored.corpus.cider_d), (1, 0.0));
    assert_eq!(scored.warnings.len(), 2);
    assert!(scored.warnings[0].starts_with("3 of 4 annotated images have no result"));
    assert!(scored.warnings[1].starts_with("CIDEr-D and CIDEr are 0: with a single image"));

    let frequency = r#"{"ref_len": 100, "df": {"a": 90, "bus": 10, "red bus": 2}}"#;
    let frequency = parse_document_frequency("df.json", frequency).unwrap();
    let options = CaptionOptions { document_frequency: Some(frequency), ..options };
    let scored = scores(partial_results, &options).unwrap();
    assert!(scored.corpus.cider_d > 0.0 && scored.warnings.len() == 1);
}

#[test]
fn invalid_results_are_refused() {
    let with_entry = |entry: &str| RESULTS.replacen('[', &format!("[{entry}, "), 1);
    assert_eq!(
        error_message(&with_entry(r#"{"image_id": 1, "caption": "b"}"#)),
        "r.json: entries 1 and 4 are both for image 1; give one caption per image"
    );
    // The string "1" equals the integer 1; "01" does not.
    assert_eq!(
        error_message(&with_entry(r#"{"image_id": "1", "caption": "b"}"#)),
        "r.json: entries 1 and 4 are both for image 1; give one caption per image"
    );
    assert_eq!(
        error_message(&with_entry(r#"{"image_id": "01", "caption": "b"}"#)),
        "r.json: id `01` is not in a.json, 1 of 5 predictions have no gold row; \
         check that both files belong to the same split"
    );
    let remedy = "; expected [{\"image_id\": 1, \"caption\": \"a dog\"}, …]";
    for (text, reason) in [
        ("[]", "r.json: has no results"),
        (
            r#"[{"caption": "b"}]"#,
            "r.json:1: is not as expected: missing field `image_id` at line 1 column 17",
        ),
        (
            "[\n{\"image_id\": 7}]",
            "r.json:2: is not as expected: missing field `caption` at line 2 column 15",
        ),
        (
            "{}",
            "r.json:1: is not as expected: invalid type: map, expected a sequence at line 1 column 0",
        ),
        (
            "[\n{\"image_id\": 1.5, \"caption\": \"\"}]",
            "r.json:2: is not as expected: the id 1.5 is not an integer at line 2 column 16",
        ),
        ("", "r.json:1: is not as expected: EOF while parsing a value at line 1 column 0"),
    ] {
        assert_eq!(error_message(text), format!("{reason}{remedy}"), "{text}");
    }
}

#[test]
fn invalid_annotations_are_refused() {
    for (text, reason) in [
        ("{}", "a.json:1: is not as expected: missing field `annotations` at line 1 column 2"),
        (r#"{"annotations": []}"#, "a.json: has no images"),
        (
            r#"{"images": [{}], "annotations": []}"#,
            "a.json:1: is not as expected: missing field `id` at line 1 column 14",
        ),
        (
            r#"{"images": [{"id": 1}, {"id": 2}, {"id": 1}], "annotations": []}"#,
            "a.json: entry 3 of `images` has the same id 1 as entry 1",
        ),
        (
            r#"{"images": [{"id": 1}], "annotations": [{"image_id": "01", "caption": "a"}]}"#,
            "a.json: entry 1 of `annotations` is for image 01, not in `images`",
        ),
    ] {
        let remedy = "; expected {\"images\": [{\"id\": 1}, …], \"annotations\": [{\"image_id\": 1, \
                     \"caption\": \"a dog\"}, …]}";
        assert_eq!(annotation_error(text), format!("{reason}{remedy}"), "{text}");
    }
    let without_caption =
        r#"{"images": [{"id": 1}, {"id": 2}], "annotations": [{"image_id": 1, "caption": "a"}]}"#;
    let annotations = parse_annotations("a.json", without_caption).unwrap();
    let results = r#"[{"image_id": 1, "caption": "a"}, {"image_id": 2, "caption": "a"}]"#;
    let results = parse_results("r.json", results).unwrap();
    let error = evaluate(&annotations, &results, &CaptionOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("a.json: image 2 has no captions"), "{error}");

    // Without `images`, images are ordered by their first caption.
    let without_image_list = r#"{"annotations": [{"image_id": 5, "caption": "a"}, {"image_id": 1, "caption": "b"},
        {"image_id": 5, "caption": "c"}]}"#;
    let without_image_list = parse_annotations("a.json", without_image_list).unwrap();
    let ids: Vec<_> =
        without_image_list.images.iter().map(|i| (&*i.id.0, i.references.len())).collect();
    assert_eq!(ids, [("5", 2), ("1", 1)]);
}

#[test]
fn invalid_document_frequencies_are_refused() {
    let remedy =
        "; expected {\"num_documents\": 5000, \"document_frequency\": {\"a dog\": 120, …}}";
    for (text, reason) in [
        (
            r#"{"num_documents": 0, "df": {}}"#,
            "df.json: `num_documents` is 0, but must be at least 1",
        ),
        (
            r#"{"num_documents": 3, "df": {"b": 5, "a b": 4}}"#,
            "df.json: `a b` is in 4 of 3 documents",
        ),
        (r#"{"num_documents": 3, "df": {"b": -1}}"#, "df.json: `b` is in -1 of 3 documents"),
        (
            r#"{"df": {}}"#,
            "df.json:1: is not as expected: missing field `num_documents` at line 1 column 10",
        ),
    ] {
        let error = parse_document_frequency("df.json", text).unwrap_err();
        assert_eq!(error.to_string(), format!("{reason}{remedy}"));
    }
}

#[test]
fn line_ends_in_captions_give_a_warning() {
    let results = RESULTS.replace("a red bus", "a red\\r bus");
    let scored = scores(&results, &CaptionOptions::default()).unwrap();
    assert!(scored.warnings[0].starts_with("r.json: captions with a line end other than"));
}
