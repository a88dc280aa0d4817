//! Captions in a CSV with the columns `image` and `caption`, and optionally `split`.

use std::collections::HashMap;

use engram_textfile::{Input, Table, TextError};

use super::super::json::Id;
use super::{CocoOptions, Collector, Reason, emit_captions};
use crate::DataError;

const REMEDY: &str = "write one image and one caption on each row";

/// Whether the file has this format, by its extension.
pub(super) fn is_table(file: &str) -> bool {
    let file = file.to_ascii_lowercase();
    file.ends_with(".csv") || file.ends_with(".csv.gz")
}

/// Reads the rows; an image may have several rows. The document of an entry is the image name.
pub(super) fn read(
    input: Input<'_>,
    options: &CocoOptions,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let mut table = Table::csv(input)?;
    let [image, caption] = table.columns(options.columns.each_ref().map(String::as_str))?;
    let split = table.optional_column("split")?;
    if split.is_none() && !options.splits.is_empty() {
        let remedy = "request no split, or add a column `split`";
        return Err(
            TextError::malformed(table.file(), table.line(), "has no splits", remedy).into()
        );
    }
    let (mut images, mut index_of_image) = (Vec::<(String, Vec<String>)>::new(), HashMap::new());
    while collector.next_record(|| table.advance())? {
        let row_split = split.map(|column| table.field(column).trim());
        if row_split.is_some_and(|row_split| {
            !options.splits.is_empty() && !options.splits.iter().any(|split| split == row_split)
        }) {
            collector.skip(Reason::OtherSplit);
            continue;
        }
        let (name, caption) = (table.field(image).trim(), table.field(caption));
        let checked_row = match (name, caption.trim()) {
            ("", _) => Err(table.error("has no image", REMEDY)),
            (_, "") => Err(table.error("has no caption", REMEDY)),
            _ => Ok((name.to_owned(), caption.to_owned())),
        };
        let Some((name, caption)) = collector.accept(checked_row)? else { continue };
        let index = *index_of_image.entry(name.clone()).or_insert(images.len());
        if index == images.len() {
            images.push((name, Vec::new()));
        }
        images[index].1.push(caption);
    }
    images.into_iter().try_for_each(|(name, captions)| {
        emit_captions(&Id(name.clone()), &name, captions, options, collector)
    })
}

/// The line of a CSV with the first caption of an image, by the path that its entry has; `None` for
/// another format or an unreadable file.
pub fn line_of_image(input: Input<'_>, options: &CocoOptions, image: &str) -> Option<u64> {
    if !is_table(input.file()) {
        return None;
    }
    let mut table = Table::csv(input).ok()?;
    let column = table.column(&options.columns[0]).ok()?;
    while table.advance().ok()? {
        if options.image_path(table.field(column).trim()) == image {
            return Some(table.line());
        }
    }
    None
}
