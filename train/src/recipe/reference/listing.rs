//! A study's own recipe keys as text, for `engram train STUDY --help`.

use serde_json::Value;

use super::markdown::{STUDY_TABLES, kind, literal};
use super::{RecipeSchema, entries, is_list_of_tables};

/// The keys that only this study has, one per line: `data.folds=5  description`.
pub fn listing(study: &RecipeSchema) -> String {
    let mut lines = Vec::new();
    for (path, pointer) in STUDY_TABLES {
        if let Some(table) = study.recipe.pointer(pointer) {
            add_keys(path, table, &mut lines);
        }
    }
    lines.join("\n")
}

fn add_keys(path: &str, table: &Value, lines: &mut Vec<String>) {
    let table = if is_list_of_tables(table) { &table["items"] } else { table };
    for (key, schema) in entries(&table["properties"]) {
        let path = format!("{path}.{key}");
        if schema["type"] == "object" || is_list_of_tables(schema) {
            add_keys(&path, schema, lines);
            continue;
        }
        let value = match schema.get("default") {
            Some(default) => literal(default),
            None => format!("<{}>", kind(schema, "").replace('`', "")),
        };
        let description = schema["description"].as_str().unwrap_or_default();
        let summary = description.split_once(". ").map_or(description, |(first, _)| first);
        lines.push(format!("  {path}={value}  {}", summary.trim_end_matches('.')));
    }
}
