//! `engram recipe`: the reference page of all keys, and schemas for editors.

use std::path::Path;

use crate::running::{Folder, refused, succeeds};
use serde_json::Value;

const STUDIES: [&str; 5] = ["patent", "reveal", "speech", "avformer", "clip"];

#[test]
fn the_reference_page_has_a_row_for_each_key_of_the_schemas() {
    let folder = &Folder::new();
    let page = succeeds(folder, "recipe reference");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    for row in &rows {
        let cells = row.replace("\\|", "").matches('|').count() - 1;
        assert_eq!(cells, 4, "a row has four cells: {row}");
    }
    for study in STUDIES {
        let schema = succeeds(folder, &format!("recipe schema {study}"));
        let schema: Value = serde_json::from_str(&schema).unwrap();
        let mut keys = Vec::new();
        keys_of(&schema, &mut keys);
        assert!(keys.len() > 20, "{study}: {keys:?}");
        for key in keys {
            let named = |row: &&&str| row.starts_with(&format!("| `{key}` |"));
            let table = page.contains(&format!("{key}]"));
            assert!(table || rows.iter().any(|row| named(&row)), "{study}: no row for `{key}`");
        }
    }
}

/// The names of all properties of a schema.
fn keys_of(schema: &Value, keys: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let ("properties", Some(properties)) = (name.as_str(), value.as_object()) {
                    keys.extend(properties.keys().cloned());
                }
                keys_of(value, keys);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys_of(item, keys)),
        _ => {}
    }
}

#[test]
fn each_study_has_its_schema_and_its_part_of_the_page() {
    let folder = &Folder::new();
    for study in STUDIES {
        let schema = succeeds(folder, &format!("recipe schema {study}"));
        let schema: Value = serde_json::from_str(&schema).unwrap();
        assert_eq!(schema["properties"]["study"]["enum"], serde_json::json!([study]));
        let page = succeeds(folder, &format!("recipe reference {study}"));
        for other in STUDIES {
            assert_eq!(page.contains(&format!("\n## Study `{other}`\n")), other == study);
        }
    }
    refused(folder, "recipe schema sppech", "speech");
}

#[test]
fn built_in_recipes_have_names() {
    let folder = &Folder::new();
    let list = succeeds(folder, "recipe list");
    let grids = list.split("Grids:\n").nth(1).unwrap();
    assert!(list.contains("\npatent/minilm") && grids.starts_with("avformer/ablations "), "{list}");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read_to_string(repository.join("train/recipes/patent/world.toml")).unwrap();
    assert_eq!(succeeds(folder, "recipe show patent/world"), file);
    refused(folder, "recipe show patent/wrld", "patent/world");

    let train = "train patent --run run --set data.dir=none --recipe";
    refused(folder, &format!("{train} patent/mini-lm"), "did you mean `patent/minilm`?");
    refused(folder, &format!("{train} patent/minilm"), "none");
    refused(folder, "grid reveal/seed --out g", "did you mean `reveal/seeds`?");
    refused(folder, "grid reveal/seeds --set seed=3 --out g", "the seeds of a grid are 1");
    // A file with the name of a built-in recipe takes precedence.
    std::fs::create_dir(folder.join("patent")).unwrap();
    std::fs::write(folder.join("patent/minilm"), "seeed = 1\n").unwrap();
    refused(folder, &format!("{train} patent/minilm"), "patent/minilm:1");
}

#[test]
fn completions_offer_recipes_and_files() {
    let folder = &Folder::new();
    let bash = succeeds(folder, "completions bash");
    assert!(bash.contains("compgen -f -W \"avformer/ablations "), "files are offered too");
    assert!(bash.contains("whisper-en") && bash.contains("chrf"));
    let zsh = succeeds(folder, "completions zsh");
    assert!(zsh.contains(r#"{_alternative "recipes\:recipe\:(avformer/ablations "#));
}
