//! Compares the tokenizer with the original PTBTokenizer. `ENGRAM_DATA` names the folder that
//! contains the fixtures in `metrics/`, which are not in this repository.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_eval::tokenize::ptb::{tokenize, tokenize_raw};
use engram_textfile::read_bytes;
use serde_json::Value;

/// The folder of the fixtures. Without it, the test prints a note and is skipped.
fn fixtures(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ENGRAM_DATA").map(|data| PathBuf::from(data).join("metrics"));
    if folder.is_none() {
        eprintln!("SKIPPED: {test}: set ENGRAM_DATA to the folder that contains `metrics`");
    }
    folder
}

fn json(folder: &Path, file: &str) -> Value {
    let bytes = read_bytes(folder.join(file)).expect("a fixture");
    serde_json::from_slice(&bytes).expect("a fixture")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text in the fixture")
}

#[test]
fn tokens_equal_the_reference_on_tricky_strings() {
    let Some(folder) = fixtures("tokens_equal_the_reference_on_tricky_strings") else { return };
    let bytes = read_bytes(folder.join("ptb.jsonl")).unwrap();
    let lines: Vec<Value> = bytes
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let captions: Vec<&str> = lines.iter().map(|line| text(&line["caption"])).collect();
    let expected = json(&folder, "ptb.expected.json.gz");
    let expected = expected["items"].as_array().unwrap();
    assert!(captions.len() > 1_000 && captions.len() == expected.len());

    // In the fixture, `tokens` are from all captions as one file, and `raw` from each caption
    // followed by a line in lower case.
    let tokens = tokenize(&captions);
    let with_next_lines: Vec<&str> = captions.iter().flat_map(|caption| [*caption, "x"]).collect();
    let raw = tokenize_raw(&with_next_lines);
    for (index, item) in expected.iter().enumerate() {
        assert_eq!(item["id"], lines[index]["id"]);
        assert_eq!(tokens[index], text(&item["tokens"]), "{:?}", captions[index]);
        assert_eq!(raw[2 * index], text(&item["raw"]), "{:?}", captions[index]);
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
    println!("{} lines and {checked} contexts are equal", captions.len());
}

#[test]
fn tokens_equal_the_reference_on_captions() {
    let Some(folder) = fixtures("tokens_equal_the_reference_on_captions") else { return };
    let mut compared = 0;
    for set in ["coco", "fakecap", "synth"] {
        let annotations = json(&folder, &format!("captions_{set}.annotations.json.gz"));
        let results = json(&folder, &format!("captions_{set}.results.json.gz"));
        let expected = json(&folder, &format!("captions_{set}.tokenized.json.gz"));
        for (name, captions) in [("refs", &annotations["annotations"]), ("hyp", &results)] {
            let mut captions_by_image: HashMap<String, Vec<&str>> = HashMap::new();
            for caption in captions.as_array().unwrap() {
                let image_captions =
                    captions_by_image.entry(caption["image_id"].to_string()).or_default();
                image_captions.push(text(&caption["caption"]));
            }
            let (mut set_captions, mut expected_tokens): (Vec<&str>, Vec<&str>) =
                (Vec::new(), Vec::new());
            for image in annotations["images"].as_array().unwrap() {
                let id = image["id"].to_string();
                set_captions.extend(&captions_by_image[&id]);
                match &expected[name][&id] {
                    Value::Array(captions) => expected_tokens.extend(captions.iter().map(text)),
                    caption => expected_tokens.push(text(caption)),
                }
            }
            assert_eq!(tokenize(&set_captions), expected_tokens, "{set} {name}");
            compared += expected_tokens.len();
        }
    }
    assert!(compared > 10_000, "{compared}");
    println!("{compared} captions are equal");
}
