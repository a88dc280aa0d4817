//! Compares the normalisers with openai-whisper 20250625.

use engram_eval::normalise::{BasicOptions, Normaliser};

use super::{json, json_lines, string};

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/normalizer.*"]
fn normalisers_equal_whisper() {
    let raw = json_lines("metrics/normalizer.jsonl.gz");
    let expected = json("metrics/normalizer.expected.json.gz");
    let expected = expected["items"].as_array().unwrap();
    assert!(raw.len() >= 2000 && raw.len() == expected.len());
    let texts: Vec<&str> = raw.iter().map(|item| string(&item["raw"])).collect();
    let basic = |remove_diacritics, split_letters| {
        Normaliser::Basic(BasicOptions { remove_diacritics, split_letters })
    };
    for (field, normaliser) in [
        ("english", Normaliser::WhisperEnglish),
        ("basic", basic(false, false)),
        ("basic_nodiac", basic(true, false)),
        ("basic_split", basic(false, true)),
    ] {
        let normalised = normaliser.normalise_all(&texts);
        for ((item, text), expected) in raw.iter().zip(&normalised).zip(expected) {
            assert_eq!(item["id"], expected["id"]);
            assert_eq!(text, string(&expected[field]), "{normaliser}: {item}");
        }
    }
}
