//! A recipe's text as a tree of values with their source locations.
//!
//! Overrides change the tree. Errors still point to the line or the option that set the value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engram_data::messages::{counted, without_secrets};
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::decode::{Fault, decode};
use crate::error::{Result, TrainError};

/// The parsed text of a recipe.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    file: PathBuf,
    table: Table,
    /// The location of each value, by its dotted path.
    locations: BTreeMap<String, Location>,
}

/// The source of a value.
#[derive(Debug, Clone)]
enum Location {
    /// The line in the recipe file, counted from 1.
    Line(usize),
    /// The command-line option, such as `--set seed=2`.
    Option(String),
}

impl Document {
    /// Parses a recipe's text. `file` only serves for error texts.
    pub(crate) fn parse(text: &str, file: &Path) -> Result<Self> {
        let error = |(offset, mut reason): (usize, String)| {
            if !reason.contains(BACKSLASH_REMEDY) {
                reason += "; a recipe is a TOML file";
            }
            recipe_error(format!("{}:{}", file.display(), line_at(text, offset)), reason)
        };
        let values = check_toml(text).map_err(error)?;
        let table = toml::from_str(text).map_err(|e| error(syntax_error(text, &e)))?;
        let mut locations = BTreeMap::new();
        record_lines(&values, "", text, &mut locations);
        Ok(Self { file: file.to_path_buf(), table, locations })
    }

    /// Returns an error if a value has a password or a token, because a run stores its recipe. The
    /// message has the key only.
    pub(crate) fn check_secrets(&self) -> Result<()> {
        fn find(value: &Value, path: &str) -> Option<String> {
            match value {
                Value::String(text) => (without_secrets(text) != *text).then(|| path.to_owned()),
                Value::Table(table) => {
                    table.iter().find_map(|(key, value)| find(value, &join(path, key)))
                }
                Value::Array(list) => list.iter().find_map(|value| find(value, path)),
                _ => None,
            }
        }
        let Some(key) = self.table.iter().find_map(|(key, value)| find(value, key)) else {
            return Ok(());
        };
        let reason = "the address has a password or a token, which all readers of the run could see; \
                      put it in PGPASSWORD, ~/.pgpass or HF_TOKEN";
        Err(recipe_error(key, reason))
    }

    /// Removes the `[tiny]` table and, if `apply`, overrides the other tables with it.
    pub(crate) fn take_tiny(&mut self, apply: bool) -> Result<()> {
        let tiny = match self.table.remove("tiny") {
            Some(Value::Table(tiny)) => tiny,
            Some(_) => return Err(self.error("tiny", "has to be a table of overrides")),
            None if apply => {
                let reason = "the recipe has no [tiny] section";
                return Err(recipe_error(self.file.display().to_string(), reason));
            }
            None => return Ok(()),
        };
        if apply {
            self.overlay("tiny", &[], tiny)?;
        }
        Ok(())
    }

    /// The document with the settings of one `[[variant]]` applied, and without any variants.
    pub(crate) fn variant(&self, index: usize) -> Result<Self> {
        let mut document = self.clone();
        let variants = document.table.remove("variant");
        let table = variants.as_ref().and_then(|list| list.get(index)).and_then(Value::as_table);
        let mut settings = table.cloned().unwrap_or_default();
        for key in ["name", "weight"] {
            settings.remove(key);
        }
        document.overlay(&format!("variant.{index}"), &[], settings)?;
        Ok(document)
    }

    /// Whether the top level has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Removes the `[[phase]]`s of 0 steps. An override sets 0 steps to remove a phase. If all have
    /// 0 steps, the last one remains, to evaluate the run in `[start]` as after this phase.
    pub(crate) fn skip_empty_phases(&mut self) {
        let has_start = self.has("start");
        let Some(Value::Array(phases)) = self.table.get_mut("phase") else { return };
        let has_steps = |phase: &Value| phase.get("steps").and_then(Value::as_integer) != Some(0);
        let positions = phases.iter().enumerate().filter(|(_, phase)| has_steps(phase));
        let mut remaining: Vec<usize> = positions.map(|(position, _)| position).collect();
        if remaining.len() == phases.len() {
            return;
        }
        if remaining.is_empty() && has_start {
            let last = phases.len() - 1;
            remaining.push(last);
            phases.drain(..last);
        } else {
            phases.retain(has_steps);
        }
        let renumbered = |(path, location): (String, Location)| {
            let Some(phase_path) = path.strip_prefix("phase.") else {
                return Some((path, location));
            };
            let (position, below) = phase_path.split_once('.').unwrap_or((phase_path, ""));
            let old_position: usize = position.parse().ok()?;
            let new_position = remaining.iter().position(|remaining| *remaining == old_position)?;
            Some((join(&format!("phase.{new_position}"), below), location))
        };
        self.locations =
            std::mem::take(&mut self.locations).into_iter().filter_map(renumbered).collect();
    }

    /// Applies one `--set path=value`. The value is parsed as TOML, or else taken as a string.
    ///
    /// An entry of a list of tables is addressed by its position or its `name`:
    /// `phase.warmup.steps=10`.
    pub(crate) fn set(&mut self, assignment: &str) -> Result<()> {
        let option = format!("--set {assignment}");
        let Some((path, text)) = assignment.split_once('=') else {
            return Err(recipe_error(option, "write it as section.key=value"));
        };
        let path: Vec<&str> = path.trim().split('.').collect();
        if path.iter().any(|key| key.is_empty()) {
            return Err(recipe_error(option, "the path has an empty part"));
        }
        let toml = format!("value = {text}");
        let parsed = toml::from_str::<Table>(&toml).ok().filter(|table| table.len() == 1);
        let is_path_in_quotes = text.trim_start().starts_with('"') && text.contains('\\');
        if parsed.is_some() || is_path_in_quotes {
            check_toml(&toml).map_err(|(_, reason)| recipe_error(option.clone(), reason))?;
        }
        let value = parsed.and_then(|mut table| table.remove("value"));
        let value = value.unwrap_or_else(|| Value::String(text.into()));
        self.set_value(&path, value, Location::Option(option))
    }

    /// Reads the tree as `T`. Unknown keys are errors.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        self.decode_section("", &self.table)
    }

    /// An error about the value at `path`.
    pub(crate) fn error(&self, path: &str, reason: impl std::fmt::Display) -> TrainError {
        recipe_error(self.location(path), format!("`{path}` {reason}"))
    }

    /// Reads one section, such as `data`, as `T`.
    pub(crate) fn decode_section<T: DeserializeOwned>(
        &self,
        section: &str,
        table: &Table,
    ) -> Result<T> {
        decode(&Value::Table(table.clone())).map_err(|(path, fault)| {
            let path = join(section, &path);
            match fault {
                Fault::UnknownKey { key, known } => self.unknown_key(&path, &key, known),
                Fault::Other(reason) if path.is_empty() => recipe_error(self.location(""), reason),
                Fault::Other(reason) => {
                    recipe_error(self.location(&path), format!("`{path}`: {reason}"))
                }
            }
        })
    }

    /// An error for an unknown key, with the most similar known key or all known keys. `path` is
    /// the path of the key, `known` has the keys of its table.
    fn unknown_key(&self, path: &str, key: &str, known: &[&str]) -> TrainError {
        let levels = path.strip_suffix(key).unwrap_or(path).split('.');
        let section = levels.filter(|level| !level.is_empty() && level.parse::<usize>().is_err());
        let section = section.collect::<Vec<_>>().join(".");
        let table_text = match section.as_str() {
            "" => "at the top level".to_owned(),
            section => format!("in [{section}]"),
        };
        let known_keys: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        let advice = match nearest(key, &known_keys) {
            Some(name) => format!("did you mean `{name}`?"),
            None if known_keys.is_empty() => "no key is allowed there".to_owned(),
            None => format!("the known keys are {}", known_keys.join(", ")),
        };
        recipe_error(self.location(path), format!("unknown key `{key}` {table_text}; {advice}"))
    }

    /// Replaces the names of list entries in a path by their positions.
    fn with_positions(&self, path: &str) -> String {
        let (mut value, mut levels): (Option<&Value>, Vec<String>) = (None, Vec::new());
        for level in path.split('.') {
            let level = match value {
                Some(Value::Array(list)) => position_of(list, "", level)
                    .map_or(level.to_owned(), |position| position.to_string()),
                _ => level.to_owned(),
            };
            value = match value {
                Some(Value::Array(list)) => {
                    level.parse().ok().and_then(|position: usize| list.get(position))
                }
                Some(above) => above.get(&level),
                None if levels.is_empty() => self.table.get(&level),
                None => None,
            };
            levels.push(level);
        }
        levels.join(".")
    }

    /// The location of the value at `path`, or of the nearest level above it.
    fn location(&self, path: &str) -> String {
        let path = self.with_positions(path);
        let mut path = path.as_str();
        loop {
            match self.locations.get(path) {
                Some(Location::Line(line)) => return format!("{}:{line}", self.file.display()),
                Some(Location::Option(option)) => return option.clone(),
                None => match path.rsplit_once('.') {
                    Some((above, _)) => path = above,
                    None => return self.file.display().to_string(),
                },
            }
        }
    }

    /// Overrides the values below `path` with the values of a table. In the recipe, the table is at
    /// the path `origin`.
    fn overlay(&mut self, origin: &str, path: &[&str], table: Table) -> Result<()> {
        for (key, value) in table {
            let mut path = path.to_vec();
            path.push(&key);
            match value {
                Value::Table(inner) if !inner.is_empty() => self.overlay(origin, &path, inner)?,
                value => {
                    let written = join(origin, &path.join("."));
                    let location =
                        self.locations.get(&written).cloned().unwrap_or(Location::Line(1));
                    self.set_value(&path, value, location)?;
                }
            }
        }
        Ok(())
    }

    /// Sets the value at `path` and records its location. Creates missing tables.
    fn set_value(&mut self, path: &[&str], value: Value, location: Location) -> Result<()> {
        let mut resolved: Vec<String> = Vec::new();
        let mut table = &mut self.table;
        let mut levels = path.iter().peekable();
        while let Some(level) = levels.next() {
            resolved.push((*level).to_string());
            if levels.peek().is_none() {
                table.insert((*level).to_string(), value);
                break;
            }
            let next_is_number = levels.peek().is_some_and(|next| next.parse::<usize>().is_ok());
            if next_is_number && !table.contains_key(*level) {
                let reason = format!("the recipe has no list `{}`", resolved.join("."));
                return Err(recipe_error(location_text(&location, &self.file), reason));
            }
            let child = table.entry(*level).or_insert_with(|| Value::Table(Table::new()));
            let next = match child {
                Value::Table(inner) => Some(inner),
                Value::Array(list) => {
                    let level = levels.next().copied().unwrap_or_default();
                    let position =
                        position_of(list, &resolved.join("."), level).map_err(|reason| {
                            recipe_error(location_text(&location, &self.file), reason)
                        })?;
                    resolved.push(position.to_string());
                    // A list entry cannot be replaced as a whole, only a key in it.
                    let entry = list.get_mut(position).filter(|_| levels.peek().is_some());
                    entry.and_then(Value::as_table_mut)
                }
                _ => None,
            };
            table = next.ok_or_else(|| {
                let reason = format!(
                    "`{}` is not a table of the recipe, or the path names no key in it",
                    resolved.join(".")
                );
                recipe_error(location_text(&location, &self.file), reason)
            })?;
        }
        let path = resolved.join(".");
        // Values below the path in the file no longer apply.
        let prefix = format!("{path}.");
        self.locations.retain(|existing, _| !existing.starts_with(&prefix));
        self.remove_from_variants(&path);
        self.locations.insert(path, location);
        Ok(())
    }

    /// Removes the settings at or below `path` from every `[[variant]]`: an override applies to all
    /// variants.
    fn remove_from_variants(&mut self, path: &str) {
        let base = Value::Table(self.table.clone());
        let variants = self.table.get_mut("variant").and_then(Value::as_array_mut);
        for variant in variants.into_iter().flatten().filter_map(Value::as_table_mut) {
            remove_overrides(variant, Some(&base), "", path);
        }
    }
}

/// The remedy for a path of Windows in double quotes.
const BACKSLASH_REMEDY: &str = "a backslash in double quotes begins an escape, so write a path in \
    single quotes, or with / instead";

/// Parses a TOML text.
///
/// # Errors
/// The byte offset and the reason of a syntax error, and of a string that begins like a path of
/// Windows and has an escaped control character, such as the tab in `"C:\temp"`.
pub(crate) fn check_toml(text: &str) -> Result<DeTable<'_>, (usize, String)> {
    let table = DeTable::parse(text).map_err(|e| syntax_error(text, &e))?.into_inner();
    match table.values().find_map(|value| control_character(value, text)) {
        Some(start) => {
            let reason = "a path with a control character (if it is no path, put it between three \
                          double quotes)";
            Err((start, format!("{reason}; {BACKSLASH_REMEDY}")))
        }
        None => Ok(table),
    }
}

/// The byte offset and the reason of a syntax error, with the remedy for a wrong escape.
fn syntax_error(text: &str, error: &toml::de::Error) -> (usize, String) {
    let span = error.span().unwrap_or(0..0);
    let before = text.get(..span.end).unwrap_or_default().lines().last().unwrap_or_default();
    let reason = error.message().trim();
    let is_escape = before.contains('"') && before.contains('\\');
    let remedy = if is_escape { format!("; {BACKSLASH_REMEDY}") } else { String::new() };
    (span.start, format!("{reason}{remedy}"))
}

/// The byte offset of the first string on one line that begins like a path of Windows and has an
/// escaped control character.
fn control_character(value: &Spanned<DeValue<'_>>, text: &str) -> Option<usize> {
    let quoted = &text[value.span()];
    let is_like_a_path = match quoted.as_bytes() {
        [b'"', drive, b':', b'\\', ..] => drive.is_ascii_alphabetic(),
        start => start.starts_with(br#""\\"#),
    };
    match value.get_ref() {
        DeValue::String(string) if is_like_a_path => {
            string.contains(char::is_control).then_some(value.span().start)
        }
        DeValue::Array(list) => list.iter().find_map(|value| control_character(value, text)),
        DeValue::Table(table) => table.values().find_map(|value| control_character(value, text)),
        _ => None,
    }
}

/// Removes the values at or below `path` from a table of overrides. The table overrides the value
/// `base` at the path `base_path`. List entries are identified by position or name.
fn remove_overrides(overrides: &mut Table, base: Option<&Value>, base_path: &str, path: &str) {
    let keys: Vec<String> = overrides.keys().cloned().collect();
    for key in keys {
        let level = match base {
            Some(Value::Array(list)) => position_of(list, base_path, &key)
                .map_or(key.clone(), |position| position.to_string()),
            _ => key.clone(),
        };
        let base_value = match base {
            Some(Value::Array(list)) => level.parse().ok().and_then(|at: usize| list.get(at)),
            Some(value) => value.get(&level),
            None => None,
        };
        let base_path = join(base_path, &level);
        if base_path == path || base_path.starts_with(&format!("{path}.")) {
            overrides.remove(&key);
        } else if let Some(Value::Table(inner)) = overrides.get_mut(&key) {
            remove_overrides(inner, base_value, &base_path, path);
            if inner.is_empty() {
                overrides.remove(&key);
            }
        }
    }
}

/// The position of the entry with this name or number in the list at `path`.
///
/// # Errors
/// An error text with the valid names or the number of entries.
fn position_of(list: &[Value], path: &str, name_or_number: &str) -> Result<usize, String> {
    let name_of = |entry: &Value| entry.get("name").and_then(Value::as_str).map(str::to_string);
    let position_of_name =
        list.iter().position(|entry| name_of(entry).as_deref() == Some(name_or_number));
    if let Some(position) = position_of_name {
        return Ok(position);
    }
    match name_or_number.parse() {
        Ok(position) if position < list.len() => Ok(position),
        Ok(_) => Err(format!(
            "there is no `{path}.{name_or_number}`: `{path}` has {}, counted from 0",
            counted(list.len(), "entry")
        )),
        Err(_) => {
            let names: Vec<String> = list.iter().filter_map(name_of).collect();
            if names.is_empty() {
                let first = format!("write `{path}.0` for the first");
                return Err(format!("the entries of `{path}` have no names: {first}"));
            }
            let closest = nearest(name_or_number, &names);
            let advice = closest.map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            Err(format!(
                "there is no `{path}.{name_or_number}`; the names are {}{advice}",
                names.join(", ")
            ))
        }
    }
}

/// The known name that is most similar to `key`; `None` if no name is similar.
pub(super) fn nearest<'a>(key: &str, known: &'a [String]) -> Option<&'a String> {
    let similarity = |name: &String| strsim::jaro_winkler(key, name);
    let closest =
        known.iter().map(|name| (similarity(name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    closest.filter(|(similarity, _)| *similarity > 0.7).map(|(_, name)| name)
}

/// Records the line number of every path below `table`.
fn record_lines(
    table: &DeTable<'_>,
    path: &str,
    text: &str,
    locations: &mut BTreeMap<String, Location>,
) {
    for (key, value) in table {
        let path = join(path, key.get_ref());
        locations.insert(path.clone(), Location::Line(line_at(text, key.span().start)));
        match value.get_ref() {
            DeValue::Table(inner) => record_lines(inner, &path, text, locations),
            DeValue::Array(list) => {
                for (position, entry) in list.iter().enumerate() {
                    let path = join(&path, &position.to_string());
                    locations
                        .insert(path.clone(), Location::Line(line_at(text, entry.span().start)));
                    if let DeValue::Table(inner) = entry.get_ref() {
                        record_lines(inner, &path, text, locations);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The line of a byte offset, counted from 1.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// Joins two dotted paths; either can be empty.
fn join(above: &str, key: &str) -> String {
    match (above, key) {
        ("", key) => key.to_string(),
        (above, "") => above.to_string(),
        (above, key) => format!("{above}.{key}"),
    }
}

fn location_text(location: &Location, file: &Path) -> String {
    match location {
        Location::Line(line) => format!("{}:{line}", file.display()),
        Location::Option(option) => option.clone(),
    }
}

fn recipe_error(location: String, reason: impl Into<String>) -> TrainError {
    TrainError::Recipe { location, reason: reason.into() }
}
