//! Compares the normalisers with openai-whisper 20250625. `ENGRAM_DATA` names the folder that
//! contains the fixture in `metrics/`, which is not in this repository.

use std::path::Path;

use engram_eval::normalise::{BasicOptions, Normaliser};
use engram_textfile::read_text;
use serde_json::Value;

#[test]
fn normalisers_equal_whisper_on_the_shared_fixture() {
    let Some(data) = std::env::var_os("ENGRAM_DATA") else {
        eprintln!(
            "SKIPPED: normalisers_equal_whisper_on_the_shared_fixture: ENGRAM_DATA is not set"
        );
        return;
    };
    let folder = Path::new(&data).join("metrics");
    let raw: Vec<Value> = read_text(folder.join("normalizer.jsonl.gz"))
        .expect("a fixture of text")
        .split_terminator('\n')
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected =
        read_text(folder.join("normalizer.expected.json.gz")).expect("a fixture of text");
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let expected = expected["items"].as_array().unwrap();
    assert_eq!(raw.len(), expected.len());
    assert!(raw.len() >= 2000);

    let basic = |remove_diacritics, split_letters| {
        Normaliser::Basic(BasicOptions { remove_diacritics, split_letters })
    };
    for (field, normaliser) in [
        ("english", Normaliser::WhisperEnglish),
        ("basic", basic(false, false)),
        ("basic_nodiac", basic(true, false)),
        ("basic_split", basic(false, true)),
    ] {
        let texts: Vec<&str> = raw.iter().map(|item| item["raw"].as_str().unwrap()).collect();
        let normalised = normaliser.normalise_all(&texts);
        for ((item, text), expected) in raw.iter().zip(&normalised).zip(expected) {
            assert_eq!(item["id"], expected["id"]);
            assert_eq!(text, expected[field].as_str().unwrap(), "{normaliser}: {item}");
        }
    }
}
