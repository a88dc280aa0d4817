//! Tests that the schemas match the recipes.

use super::*;
use crate::recipe::builtin::BUILT_IN;
use crate::studies::ALL;

/// The parts of a value that its schema does not allow, with their paths. Of several alternatives,
/// the one with the fewest faults counts.
fn faults(value: &Value, schema: &Value, path: &str) -> Vec<String> {
    if let Some(Value::Array(choices)) = schema.get("anyOf").or_else(|| schema.get("oneOf")) {
        let alternatives: Vec<_> =
            choices.iter().map(|choice| faults(value, choice, path)).collect();
        return alternatives.into_iter().min_by_key(Vec::len).unwrap_or_default();
    }
    let has_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        _ => false,
    };
    let is_allowed = schema["enum"].as_array().is_none_or(|choices| choices.contains(value));
    let mut faults_found = Vec::new();
    if !(has_type && is_allowed) {
        faults_found.push(format!("{path}: {value}"));
    }
    for key in list(schema, "required").filter_map(Value::as_str) {
        if value.get(key).is_none() {
            faults_found.push(format!("{path}.{key}: missing"));
        }
    }
    for (key, inner) in entries(value) {
        let path = format!("{path}.{key}");
        match schema["properties"].get(key).or(schema.get("additionalProperties")) {
            Some(Value::Object(schema)) => {
                faults_found.extend(faults(inner, &Value::Object(schema.clone()), &path));
            }
            _ => faults_found.push(format!("{path}: unknown")),
        }
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        faults_found.extend(faults(item, &schema["items"], &format!("{path}.{i}")));
    }
    faults_found
}

/// The JSON Schema of a study's recipes.
fn schema(study: &str) -> Value {
    let definition = crate::registry::find(ALL, study);
    let definition = definition.unwrap_or_else(|| panic!("{study} is not among the studies"));
    (definition.recipe_schema)().json_schema()
}

#[test]
fn the_schemas_allow_the_built_in_recipes() {
    for built_in in BUILT_IN.iter().filter(|built_in| !built_in.is_grid()) {
        let recipe: Value = toml::from_str(built_in.text).expect("TOML");
        let study = recipe["study"].as_str().expect("a study");
        assert_eq!(faults(&recipe, &schema(study), ""), [""; 0], "{}", built_in.name);
    }
}

#[test]
fn the_schemas_refuse_invalid_recipes() {
    let assert_fault = |change: Value, fault: &str| {
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
    assert_fault(json!({ "study": "patent" }), r#".study: "patent""#);
    assert_fault(json!({ "lgo": {} }), ".lgo: unknown");
    assert_fault(json!({ "data": { "trian": "" } }), ".data.trian: unknown");
    assert_fault(json!({ "model": { "best_rq": { "code": 1 } } }), ".model.best_rq.code: unknown");
    assert_fault(json!({ "memory": { "k": 1 } }), ".memory.k: unknown");
    assert_fault(json!({ "optimiser": { "kind": "sgd" } }), ".optimiser.kind: unknown");
    let rule = |rule: Value| json!({ "optimiser": { "rule": rule } });
    assert_fault(rule(json!({ "kind": "adam" })), r#".optimiser.rule.kind: "adam""#);
    assert_fault(rule(json!({ "kind": "sgd", "k": 1 })), ".optimiser.rule.k: unknown");
    let group = json!([{ "match": "**", "rate": 1, "rule": { "kind": "sgd", "k": 1 } }]);
    assert_fault(json!({ "group": group }), ".group.0.rule.k: unknown");
    assert_fault(json!({ "phase": [{ "name": "a", "steps": 1 }] }), ".phase.0.feed: missing");
    assert_fault(json!({ "variant": [{ "weight": 2 }] }), ".variant.0.name: missing");
    assert_fault(
        json!({ "tiny": { "phase": { "a": { "feed": { "k": 1 } } } } }),
        ".tiny.phase.a.feed.k: unknown",
    );
}

/// Adds each table at or below a schema, with its path.
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
    for study in ALL.iter().map(|study| (study.recipe_schema)()) {
        let mut all_tables = Vec::new();
        tables(&study.recipe, study.study, &mut all_tables);
        assert!(all_tables.len() > 15, "{all_tables:?}");
        for (path, table) in all_tables {
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
