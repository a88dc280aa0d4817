//! Captions in a CSV with the columns `image` and `caption`, and optionally `split`.

use std::collections::HashMap;

use engram_textfile::{Input, Table, TextError};

use super::super::json::Id;
use super::{CocoOptions, Collector, Reason, give};
use crate::DataError;

const REMEDY: &str = "write one image and one caption on each row";

/// Whether the file has this format, by its extension.
pub(super) fn is_table(file: &str) -> bool {
    let file = file.to_ascii_lowercase();
    file.ends_with(".csv") || file.ends_with(".csv.gz")
}

/// Reads the rows; an image may have several. Its document is its name.
pub(super) fn read(
    input: Input<'_>,
    options: &CocoOptions,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let mut table = Table::csv(input)?;
    let [image, caption] = table.columns(["image", "caption"])?;
    let split = table.optional_column("split")?;
    if split.is_none() && !options.splits.is_empty() {
        let remedy = "request no split, or add a column `split`";
        return Err(
            TextError::malformed(table.file(), table.line(), "has no splits", remedy).into()
        );
    }
    let (mut images, mut index_of) = (Vec::<(String, Vec<String>)>::new(), HashMap::new());
    while collector.next_record(|| table.advance())? {
        let of_split = split.map(|column| table.field(column).trim());
        if of_split.is_some_and(|found| {
            !options.splits.is_empty() && !options.splits.iter().any(|wanted| wanted == found)
        }) {
            collector.skip(Reason::OtherSplit);
            continue;
        }
        let name = table.field(image).trim();
        let checked = if name.is_empty() {
            Err(table.error("has no image", REMEDY))
        } else {
            Ok(name.to_owned())
        };
        let caption = table.field(caption).to_owned();
        let Some(name) = collector.accept(checked)? else { continue };
        let index = *index_of.entry(name.clone()).or_insert(images.len());
        if index == images.len() {
            images.push((name, Vec::new()));
        }
        images[index].1.push(caption);
    }
    images.into_iter().try_for_each(|(name, captions)| {
        give(&Id(name.clone()), &name, captions, options, collector)
    })
}
