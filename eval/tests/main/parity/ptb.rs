//! Compares the tokenizer with the original PTBTokenizer.

use std::collections::HashMap;

use engram_eval::tokenize::ptb::{tokenize, tokenize_raw};
use serde_json::Value;

use super::{json, json_lines, string};

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/ptb.*"]
fn tokens_equal_the_reference_on_tricky_strings() {
    let lines = json_lines("metrics/ptb.jsonl");
    let captions: Vec<&str> = lines.iter().map(|line| string(&line["caption"])).collect();
    let expected = json("metrics/ptb.expected.json.gz");
    let expected = expected["items"].as_array().unwrap();
    assert!(captions.len() > 1_000 && captions.len() == expected.len());

    // In the fixture, `tokens` are from all captions as one file, and `raw` from each caption
    // followed by a line in lower case.
    let tokens = tokenize(&captions);
    let with_next_lines: Vec<&str> = captions.iter().flat_map(|caption| [*caption, "x"]).collect();
    let raw = tokenize_raw(&with_next_lines);
    for (index, item) in expected.iter().enumerate() {
        assert_eq!(item["id"], lines[index]["id"]);
        assert_eq!(tokens[index], string(&item["tokens"]), "{:?}", captions[index]);
        assert_eq!(raw[2 * index], string(&item["raw"]), "{:?}", captions[index]);
    }

    let contexts =
        [("next_lower", "two cats sit"), ("next_upper", "Two cats sit"), ("next_A", "A cat sits")];
    let mut checked = 0;
    for (caption, item) in captions.iter().zip(expected) {
        for (name, next) in contexts {
            if let Value::String(raw) = &item["raw_by_context"][name] {
                assert_eq!(tokenize_raw(&[*caption, next])[0], *raw, "{caption:?}, {name}");
                checked += 1;
            }
            if let Value::String(tokens) = &item["tokens_by_context"][name] {
                assert_eq!(tokenize(&[*caption, next])[0], *tokens, "{caption:?}, {name}");
                checked += 1;
            }
        }
    }
    assert!(checked > 200, "{checked}");
}

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/captions_*"]
fn tokens_equal_the_reference_on_captions() {
    let mut compared = 0;
    for set in ["coco", "fakecap", "synth"] {
        let [annotations, results, expected] = ["annotations", "results", "tokenized"]
            .map(|kind| json(&format!("metrics/captions_{set}.{kind}.json.gz")));
        for (name, captions) in [("refs", &annotations["annotations"]), ("hyp", &results)] {
            let mut captions_by_image: HashMap<String, Vec<&str>> = HashMap::new();
            for caption in captions.as_array().unwrap() {
                let image_captions =
                    captions_by_image.entry(caption["image_id"].to_string()).or_default();
                image_captions.push(string(&caption["caption"]));
            }
            let (mut set_captions, mut expected_tokens): (Vec<&str>, Vec<&str>) =
                (Vec::new(), Vec::new());
            for image in annotations["images"].as_array().unwrap() {
                let id = image["id"].to_string();
                set_captions.extend(&captions_by_image[&id]);
                match &expected[name][&id] {
                    Value::Array(captions) => expected_tokens.extend(captions.iter().map(string)),
                    caption => expected_tokens.push(string(caption)),
                }
            }
            assert_eq!(tokenize(&set_captions), expected_tokens, "{set} {name}");
            compared += expected_tokens.len();
        }
    }
    assert!(compared > 10_000, "{compared}");
}
