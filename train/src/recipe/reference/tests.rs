//! Tests that the schemas match the recipes.

use std::path::{Path, PathBuf};

use super::*;
use crate::studies::ALL;

/// The recipes of a folder and its subfolders, without grids, which are not recipes.
fn recipes(folder: &Path) -> Vec<(PathBuf, Value)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(recipes(&path));
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).expect("a text");
            let value: Value = toml::from_str(&text).expect("TOML");
            if value.get("recipe").is_none() {
                found.push((path, value));
            }
        }
    }
    found
}

/// The parts of a value that its schema does not allow, with their paths.
fn faults(value: &Value, schema: &Value, path: &str) -> Vec<String> {
    if let Some(Value::Array(choices)) = schema.get("anyOf").or_else(|| schema.get("oneOf")) {
        let all: Vec<_> = choices.iter().map(|choice| faults(value, choice, path)).collect();
        return all.into_iter().min_by_key(Vec::len).unwrap_or_default();
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        _ => false,
    };
    let chosen = schema["enum"].as_array().is_none_or(|choices| choices.contains(value));
    let mut found = Vec::new();
    if !(fits && chosen) {
        found.push(format!("{path}: {value}"));
    }
    for key in list(schema, "required").filter_map(Value::as_str) {
        if value.get(key).is_none() {
            found.push(format!("{path}.{key}: missing"));
        }
    }
    for (key, inner) in entries(value) {
        let path = format!("{path}.{key}");
        match schema["properties"].get(key).or(schema.get("additionalProperties")) {
            Some(Value::Object(schema)) => {
                found.extend(faults(inner, &Value::Object(schema.clone()), &path));
            }
            _ => found.push(format!("{path}: unknown")),
        }
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(faults(item, &schema["items"], &format!("{path}.{i}")));
    }
    found
}

fn schema(study: &str) -> Value {
    let found = crate::registry::find(ALL, study);
    let found = found.unwrap_or_else(|| panic!("{study} is not among the studies"));
    found.recipe_schema().json_schema()
}

#[test]
fn the_schemas_allow_the_recipes() {
    let found = recipes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes"));
    assert!(found.len() > 8, "{} recipes", found.len());
    for (path, recipe) in found {
        let study = recipe["study"].as_str().expect("a study");
        assert_eq!(faults(&recipe, &schema(study), ""), [""; 0], "{}", path.display());
    }
}

#[test]
fn the_schemas_refuse_invalid_recipes() {
    let refused = |change: Value, fault: &str| {
        let mut recipe = json!({
            "study": "speech",
            "phase": [{ "name": "a", "steps": 1, "feed": { "objective": "ctc" } }],
            "check": { "files": [] },
        });
        assert_eq!(faults(&recipe, &schema("speech"), ""), [""; 0]);
        for (key, value) in entries(&change) {
            recipe[key] = value.clone();
        }
        assert_eq!(faults(&recipe, &schema("speech"), ""), [fault]);
    };
    refused(json!({ "study": "patent" }), r#".study: "patent""#);
    refused(json!({ "lgo": {} }), ".lgo: unknown");
    refused(json!({ "data": { "trian": "" } }), ".data.trian: unknown");
    refused(json!({ "model": { "best_rq": { "code": 1 } } }), ".model.best_rq.code: unknown");
    refused(json!({ "memory": { "k": 1 } }), ".memory.k: unknown");
    refused(json!({ "optimiser": { "kind": "sgd" } }), ".optimiser.kind: unknown");
    let rule = |rule: Value| json!({ "optimiser": { "rule": rule } });
    refused(rule(json!({ "kind": "adam" })), r#".optimiser.rule.kind: "adam""#);
    refused(rule(json!({ "kind": "sgd", "betas": [0, 0] })), ".optimiser.rule.betas: unknown");
    let group = json!([{ "match": "**", "rate": 1, "rule": { "kind": "sgd", "k": 1 } }]);
    refused(json!({ "group": group }), ".group.0.rule.k: unknown");
    refused(json!({ "phase": [{ "name": "a", "steps": 1 }] }), ".phase.0.feed: missing");
    refused(json!({ "variant": [{ "weight": 2 }] }), ".variant.0.name: missing");
    refused(
        json!({ "tiny": { "phase": { "a": { "feed": { "k": 1 } } } } }),
        ".tiny.phase.a.feed.k: unknown",
    );
}

/// Each table below a schema, with its path.
fn tables<'a>(schema: &'a Value, path: &str, found: &mut Vec<(String, &'a Value)>) {
    let is_table = schema["type"] == "object";
    if is_table {
        found.push((path.to_owned(), schema));
    }
    for (key, inner) in entries(&schema["properties"]) {
        let below = format!("{path}.{key}");
        tables(inner, &below, found);
        tables(&inner["items"], &below, found);
        for choice in list(inner, "anyOf") {
            tables(choice, &below, found);
        }
    }
}

#[test]
fn each_table_is_closed_and_each_key_has_a_description() {
    for study in ALL.iter().map(|study| study.recipe_schema()) {
        let mut found = Vec::new();
        tables(&study.recipe, study.study(), &mut found);
        assert!(found.len() > 15, "{found:?}");
        for (path, table) in found {
            assert_eq!(table["additionalProperties"], false, "{path}");
            for (key, value) in entries(&table["properties"]) {
                let description = value["description"].as_str();
                let text = description.unwrap_or_else(|| panic!("{path}.{key} has no doc comment"));
                // Descriptions appear outside of rustdoc, where links do not work.
                assert!(!text.contains("[`"), "{path}.{key}: {text}");
                for choice in list(value, "oneOf").chain(list(&value["items"], "oneOf")) {
                    let text = choice["description"].as_str().unwrap_or_default();
                    assert!(!text.is_empty() && !text.contains("[`"), "{path}.{key}: {choice}");
                }
            }
        }
    }
}
