//! The keys of recipes as Markdown tables.

use std::fmt::Write;

use serde_json::Value;

use super::{RecipeSchema, TINY, entries, is_list_of_tables, is_tagged, list};

/// The text before the tables.
const HEAD: &str = include_str!("head.md");

/// The tables that each study reads as its own structs, with the paths of their schemas.
pub(super) const STUDY_TABLES: [(&str, &str); 4] = [
    ("data", "/properties/data"),
    ("model", "/properties/model"),
    ("memory", "/properties/memory"),
    ("phase.feed", "/properties/phase/items/properties/feed"),
];

/// All keys of recipes: the keys that all studies share, then the keys of each of `studies`.
pub fn markdown(studies: &[RecipeSchema]) -> String {
    let mut out = HEAD.to_owned();
    let Some(mut common) = studies.first().map(|first| first.recipe.clone()) else { return out };
    common["properties"]["study"]["enum"] = studies.iter().map(|study| study.study).collect();
    out += "\n## Every study\n";
    write_table(&mut out, "", &common, &STUDY_TABLES.map(|(path, _)| path));
    out += "\n### `[tiny]`\n";
    write_description(&mut out, "`[tiny]`", TINY);
    for study in studies {
        let _ = write!(out, "\n## Study `{}`\n", study.study);
        for (path, pointer) in STUDY_TABLES {
            let table = study.recipe.pointer(pointer);
            let with_keys = table.filter(|table| entries(&table["properties"]).next().is_some());
            with_keys.into_iter().for_each(|table| write_table(&mut out, path, table, &[]));
        }
    }
    out
}

/// The section of a table and the sections of its subtables, except the tables in `excluded`.
fn write_table(out: &mut String, path: &str, schema: &Value, excluded: &[&str]) {
    let table = if is_list_of_tables(schema) { &schema["items"] } else { schema };
    let heading = match path {
        "" => "Top-level keys".to_owned(),
        path if is_list_of_tables(schema) => format!("`[[{path}]]`"),
        path => format!("`[{path}]`"),
    };
    let _ = write!(out, "\n### {heading}\n");
    // The description of the whole recipe is for programmers, so it is omitted.
    let description = schema["description"].as_str().filter(|_| !path.is_empty());
    description.into_iter().for_each(|description| write_description(out, &heading, description));
    if is_tagged(schema) {
        for choice in list(schema, "anyOf") {
            let kind = literal(&choice["properties"]["kind"]["enum"][0]);
            let _ = write!(out, "\n#### `kind = {kind}`\n");
            let description = choice["description"].as_str().unwrap_or_default();
            write_description(out, "", description);
            let mut keys = choice.clone();
            if let Some(keys) = keys["properties"].as_object_mut() {
                keys.shift_remove("kind");
            }
            write_keys(out, &keys, entries(&keys["properties"]));
        }
        return;
    }
    // The update rules of groups have the keys of `[optimiser.rule]`.
    let is_section = |value: &Value| is_tagged(value) && ["optimiser", "model"].contains(&path);
    let is_table =
        |value: &Value| value["type"] == "object" || is_list_of_tables(value) || is_section(value);
    let (tables, keys): (Vec<_>, Vec<_>) =
        entries(&table["properties"]).partition(|(_, value)| is_table(value));
    write_keys(out, table, keys.into_iter());
    for (key, value) in tables {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if !excluded.contains(&path.as_str()) {
            write_table(out, &path, value, excluded);
        }
    }
}

/// Writes these keys of a table.
fn write_keys<'a>(
    out: &mut String,
    table: &Value,
    keys: impl Iterator<Item = (&'a String, &'a Value)>,
) {
    let mut keys = keys.peekable();
    if keys.peek().is_some() {
        *out += "\n| key | type or choices | default | description |\n|---|---|---|---|\n";
    }
    for (key, value) in keys {
        let is_required = list(table, "required").any(|required| required == key);
        let default = match value.get("default") {
            Some(default) => format!("`{}`", literal(default)),
            None if is_required => "required".to_owned(),
            None => "none".to_owned(),
        };
        let cells = [format!("`{key}`"), kind(value, ""), default, meaning(value)];
        let _ = writeln!(out, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
}

/// Writes a table's description without its name, which is in the heading.
fn write_description(out: &mut String, heading: &str, description: &str) {
    let without_name = description.strip_prefix(heading);
    let without_name = without_name.and_then(|text| text.strip_prefix(": "));
    let mut letters = without_name.unwrap_or(description).chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let _ = write!(out, "\n{first}{}\n", letters.as_str());
}

/// A value in TOML syntax.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(literal).collect();
            format!("[{}]", values.join(", "))
        }
        value => value.to_string(),
    }
}

/// The type of a value, or its choices. `plural` is `s` for the plural.
pub(super) fn kind(schema: &Value, plural: &str) -> String {
    if is_tagged(schema) {
        return "table".to_owned();
    }
    if is_choice(schema) {
        let names = choices(schema).map(|(name, _)| format!("`{}`", literal(name)));
        return names.collect::<Vec<_>>().join(", ");
    }
    match schema["type"].as_str().unwrap_or_default() {
        "array" => {
            let items = kind(&schema["items"], "s");
            match (&schema["minItems"], &schema["maxItems"]) {
                (Value::Number(min), Value::Number(max)) if min == max => {
                    format!("{max} {items}")
                }
                _ => format!("list of {items}"),
            }
        }
        "number" => format!("float{plural}"),
        "object" => format!("table{plural}"),
        kind => format!("{kind}{plural}"),
    }
}

/// The description of a key and of each of its choices.
fn meaning(schema: &Value) -> String {
    let mut text = schema["description"].as_str().unwrap_or_default().replace("\n\n", " ");
    let choice_schema = if schema["type"] == "array" { &schema["items"] } else { schema };
    for (name, description) in choices(choice_schema) {
        if let Some(description) = description {
            let _ = write!(text, "<br>`{}`: {description}", literal(name));
        }
    }
    text
}

/// Whether a value is one of a list of choices.
fn is_choice(schema: &Value) -> bool {
    choices(schema).next().is_some()
}

/// The allowed values with their descriptions.
fn choices(schema: &Value) -> impl Iterator<Item = (&Value, Option<&str>)> {
    let described = list(schema, "oneOf")
        .flat_map(|choice| list(choice, "enum").map(|name| (name, choice["description"].as_str())));
    described.chain(list(schema, "enum").map(|name| (name, None)))
}
