//! `engram recipe`: the reference page of all keys, and schemas for editors.
#![allow(clippy::unwrap_used)]

mod running;

use std::path::Path;

use running::{done, refused};
use serde_json::Value;

const STUDIES: [&str; 5] = ["patent", "reveal", "speech", "avformer", "clip"];

#[test]
fn docs_recipes_equals_the_printed_reference() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(here.join("docs/recipes.md")).unwrap_or_default();
    let remedy = "docs/recipes.md differs from the code; run \
                  `cargo run --release -- recipe reference > docs/recipes.md`";
    assert!(done(here, "recipe reference") == page, "{remedy}");
}

#[test]
fn each_study_has_its_schema_and_its_part_of_the_page() {
    let folder = tempfile::tempdir().unwrap();
    for study in STUDIES {
        let schema = done(folder.path(), &format!("recipe schema {study}"));
        let schema: Value = serde_json::from_str(&schema).unwrap();
        assert_eq!(schema["properties"]["study"]["enum"], serde_json::json!([study]));
        let page = done(folder.path(), &format!("recipe reference {study}"));
        for other in STUDIES {
            assert_eq!(page.contains(&format!("\n## Study `{other}`\n")), other == study);
        }
    }
    refused(folder.path(), "recipe schema sppech", "speech");
}
