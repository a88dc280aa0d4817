//! All keys of a recipe, as a JSON Schema for editors and as Markdown.
//!
//! Names, types, defaults and descriptions come from the structs into which recipes are parsed.

mod listing;
mod markdown;
#[cfg(test)]
mod tests;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::settings::RecipeSettings;

pub use listing::listing;
pub use markdown::markdown;

/// The description of `[tiny]`, which has no struct.
const TINY: &str = "`[tiny]`: overrides for `--tiny`. It may have any key of the other tables.";

/// The schema of one study's recipes.
#[derive(Debug, Clone)]
pub struct RecipeSchema {
    /// The study.
    pub study: &'static str,
    /// The schema without `[tiny]` and the keys of variants.
    recipe: Value,
}

/// The keys of a table that a study does not read: none.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, description = "No keys.")]
pub struct NoKeys {}

impl RecipeSchema {
    /// The schema of a study that reads `[data]`, `[model]`, `[memory]` and the `feed` of its
    /// phases as these types.
    pub fn new<Data, Model, Memory, Feed>(study: &'static str) -> Self
    where
        Data: JsonSchema,
        Model: JsonSchema,
        Memory: JsonSchema,
        Feed: JsonSchema,
    {
        let mut recipe = schema_of::<RecipeSettings>();
        recipe["properties"]["study"]["enum"] = json!([study]);
        set_table(&mut recipe, "data", schema_of::<Data>());
        set_table(&mut recipe, "model", schema_of::<Model>());
        set_table(&mut recipe, "memory", schema_of::<Memory>());
        set_table(&mut recipe["properties"]["phase"]["items"], "feed", schema_of::<Feed>());
        // `Recipe::validate` also requires a phase.
        require(&mut recipe, "phase");
        recipe["properties"]["phase"]["minItems"] = json!(1);
        Self { study, recipe }
    }

    /// The JSON Schema (draft 7) of a whole recipe.
    pub fn json_schema(&self) -> Value {
        let title = format!("Recipe of the study {}", self.study);
        let mut schema =
            json!({ "$schema": "http://json-schema.org/draft-07/schema#", "title": title });
        let mut recipe = self.recipe.clone();
        // A variant has neither variants nor `[tiny]`.
        let mut variant = recipe["properties"]["variant"]["items"].clone();
        for (key, value) in entries(&overrides(&recipe)["properties"]) {
            if key != "variant" {
                variant["properties"][key] = value.clone();
            }
        }
        recipe["properties"]["variant"]["items"] = variant;
        let mut tiny = overrides(&recipe);
        tiny["description"] = TINY.into();
        recipe["properties"]["tiny"] = tiny;
        for (key, value) in entries(&recipe) {
            schema[key] = value.clone();
        }
        schema
    }
}

/// The schema of one table, with all subschemas inlined.
fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let settings = settings.with_transform(RecursiveTransform(simplify));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.to_value()
}

/// Sets the schema of a table that the study reads. A table with required keys is required.
fn set_table(schema: &mut Value, key: &str, table: Value) {
    let is_required = table.get("required").is_some();
    schema["properties"][key] = table;
    if is_required {
        require(schema, key);
    }
}

/// Adds a key to the required keys.
fn require(schema: &mut Value, key: &str) {
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.push(key.into());
    }
}

/// The schema of overrides of a table: any of its keys, and list entries by position or name.
fn overrides(table: &Value) -> Value {
    let mut schema = table.clone();
    if let Some(keys) = schema.as_object_mut() {
        keys.shift_remove("required");
        keys.shift_remove("default");
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(|value| *value = overrides(value));
    }
    if is_list_of_tables(table) {
        let by_entry =
            json!({ "type": "object", "additionalProperties": overrides(&table["items"]) });
        schema = json!({ "anyOf": [table, by_entry], "description": table["description"] });
    }
    schema
}

/// Removes parts of the schema that recipes do not need: null, which TOML does not have, the bit
/// widths of numbers, line breaks in descriptions, and defaults of whole tables.
fn simplify(schema: &mut Schema) {
    let is_table = schema.get("type").is_some_and(|kind| kind == "object");
    let has_no_default = is_table || is_list_of_tables(schema.as_value());
    let Some(keys) = schema.as_object_mut() else { return };
    keys.shift_remove("format");
    if let Some(description) = keys.get("items").and_then(|items| items.get("description")).cloned()
    {
        keys.entry("description").or_insert(description);
    }
    if let Some(Value::Array(choices)) = keys.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        // This is the schema of an `Option`.
        if let [Value::Object(only)] = &choices[..] {
            let only = only.clone();
            keys.shift_remove("anyOf");
            for (key, value) in only {
                keys.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Array(kinds)) = keys.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [only] = &kinds[..] {
            keys["type"] = only.clone();
        }
    }
    // Without `kind`, a table has the default kind, so several choices may fit.
    if let Some(Value::Array(mut choices)) = keys.get("oneOf").cloned()
        && choices.iter().all(has_kind)
    {
        for choice in choices.iter_mut().filter_map(Value::as_object_mut) {
            choice.shift_remove("required");
            choice["properties"]["kind"]["description"] = choice["description"].clone();
        }
        keys.shift_remove("oneOf");
        keys.insert("anyOf".into(), Value::Array(choices));
    }
    // More editors support `enum` than `const`.
    if let Some(only) = keys.shift_remove("const") {
        keys.insert("enum".into(), json!([only]));
    }
    if let Some(Value::String(text)) = keys.get_mut("description") {
        let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
    if has_no_default || keys.get("default").is_some_and(Value::is_null) {
        keys.shift_remove("default");
    }
    keys.get_mut("default").into_iter().for_each(shorten_single_precision);
}

/// Writes single-precision numbers with their own digits: 0.01, not 0.009999999776482582.
fn shorten_single_precision(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(shorten_single_precision),
        Value::Number(number) if number.is_f64() => {
            let single = number.as_f64().map(|double| (double, double as f32));
            if let Some((_, single)) =
                single.filter(|(double, single)| f64::from(*single) == *double)
                && let Ok(short) = single.to_string().parse::<f64>()
            {
                *value = short.into();
            }
        }
        _ => {}
    }
}

fn is_list_of_tables(schema: &Value) -> bool {
    schema.get("items").is_some_and(|items| items["type"] == "object")
}

/// Whether this is a table whose keys depend on its `kind`.
fn is_tagged(schema: &Value) -> bool {
    list(schema, "anyOf").next().is_some() && list(schema, "anyOf").all(has_kind)
}

fn has_kind(choice: &Value) -> bool {
    choice["properties"].get("kind").is_some()
}

/// The items of the list with this key. Empty if the key is missing.
fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// The keys of a JSON object and their values.
fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}
