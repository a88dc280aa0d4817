//! Reads published files with the line of each record: JSON lines, a list, or an object of records.

use std::borrow::Cow;

use engram_textfile::{UniqueIds, non_blank_lines, parse_json_line, shortened};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{EvalError, Location, malformed};
use crate::ids::{FileIds, join};
use crate::json::{DistinctKeys, parse};

/// A record with its line in the file.
pub(super) struct Record<'a, T> {
    pub(super) line: u64,
    /// The key of a member of an object; otherwise the index of the record, from 0.
    pub(super) key: Cow<'a, str>,
    pub(super) value: T,
}

/// Parses a list of records, JSON lines or, if `has_keys`, an object whose members are the records.
pub(super) fn read_records<'a, T: Deserialize<'a> + Send>(
    file: &str,
    text: &'a str,
    has_keys: bool,
    remedy: &'static str,
) -> Result<Vec<Record<'a, T>>, EvalError> {
    let is_list = text.trim_start().starts_with('[');
    let parts: Vec<(u64, Cow<'a, str>, &'a str)> = if is_list || has_keys {
        let mut parts: Vec<(Option<String>, &'a RawValue)> = if is_list {
            let values: Vec<&RawValue> = parse(file, text, remedy)?;
            values.into_iter().map(|value| (None, value)).collect()
        } else {
            let DistinctKeys(members) = parse(file, text, remedy)?;
            members.into_iter().map(|(key, value)| (Some(key), value)).collect()
        };
        let offset = |value: &RawValue| value.get().as_ptr() as usize - text.as_ptr() as usize;
        parts.sort_by_key(|(_, value)| offset(value));
        let (mut line, mut counted) = (1, 0);
        let located = |(index, (key, value)): (usize, (Option<String>, &'a RawValue))| {
            let start = offset(value);
            let between = text.as_bytes()[counted..start].iter();
            line += between.filter(|byte| **byte == b'\n').count() as u64;
            counted = start;
            (line, key.unwrap_or_else(|| index.to_string()).into(), value.get())
        };
        parts.into_iter().enumerate().map(located).collect()
    } else {
        let lines = non_blank_lines(text).enumerate();
        lines.map(|(index, (line, json))| (line, index.to_string().into(), json)).collect()
    };
    let record = |(line, key, json)| {
        let value = parse_json_line(file, line, json, remedy)?;
        Ok(Record { line, key, value })
    };
    let records: Vec<Result<_, EvalError>> =
        parts.into_par_iter().with_min_len(64).map(record).collect();
    let records = records.into_iter().collect::<Result<Vec<_>, _>>()?;
    if records.is_empty() {
        return Err(malformed(file, None, "has no records", remedy));
    }
    Ok(records)
}

/// The ids of a file with their lines, which must differ.
pub(super) fn unique_ids<'f>(
    file: &'f str,
    rows: impl Iterator<Item = (&'f str, u64)>,
) -> Result<FileIds<'f>, EvalError> {
    let rows: Vec<(&str, Option<u64>)> = rows.map(|(id, line)| (id, Some(line))).collect();
    let mut ids = UniqueIds::with_capacity(rows.len());
    rows.iter().try_for_each(|(id, line)| ids.add(*id, Location::new(file, *line)))?;
    Ok(FileIds { file, rows })
}

/// Pairs the index of each case with the index of its prediction. Cases without a prediction are
/// left out if `with_result`, and otherwise an error.
pub(super) fn pairs(
    cases: &FileIds<'_>,
    predictions: &FileIds<'_>,
    with_result: bool,
) -> Result<Vec<(usize, usize)>, EvalError> {
    let joined = join(cases, predictions, with_result)?.into_iter().enumerate();
    let pairs: Vec<_> = joined.filter_map(|(case, prediction)| Some((case, prediction?))).collect();
    if pairs.is_empty() {
        let remedy = "give one line for each case";
        return Err(malformed(predictions.file, None, "has no predictions", remedy));
    }
    Ok(pairs)
}

/// The id of a case for a message.
pub(super) fn quoted(id: &str) -> String {
    format!("`{}`", shortened(id, 60))
}
