//! Comparisons with the reference tools. The fixtures of most of them are not in this repository:
//! `ENGRAM_DATA` names their folder.

mod caption;
mod chrf;
mod normalise;
mod phrase;
mod ptb;
mod sclite;
mod vqa;
mod wer;

use std::path::Path;

use serde_json::Value;

/// The text of a fixture, which may be gzipped.
fn text(name: &str) -> String {
    let data =
        std::env::var_os("ENGRAM_DATA").expect("ENGRAM_DATA names the folder of the fixtures");
    engram_textfile::read_text(Path::new(&data).join(name))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The content of a JSON fixture.
fn json(name: &str) -> Value {
    serde_json::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The values of a fixture of JSON lines.
fn json_lines(name: &str) -> Vec<Value> {
    text(name).lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn string(value: &Value) -> &str {
    value.as_str().expect("a text in the fixture")
}

/// Checks that a value equals the number of a fixture, with a relative tolerance.
fn assert_close(computed: f64, expected: &Value, tolerance: f64, description: &str) {
    let expected = expected.as_f64().unwrap_or_else(|| panic!("{description}: no number"));
    let is_close = (computed - expected).abs() <= tolerance * expected.abs() + 4.0 * f64::EPSILON;
    assert!(is_close, "{description}: {computed}, the reference has {expected}");
}
