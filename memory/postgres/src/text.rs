//! Search in the texts of entries. The index is in main memory, as for a local memory, and is built
//! by the first search of a snapshot.

use std::collections::HashSet;

use engram_memory::retrieval::text::{TextIndex, TextRow};
use engram_memory::search::ranking::sources_with_entries;
use engram_memory::search::{Filter, SearchResults};
use engram_memory::{MemoryError, Row};

use crate::part::{Part, row_of};
use crate::search::check_ids;
use crate::snapshot::PostgresSnapshot;
use crate::tables::VISIBLE;

/// The number of entries that are read at a time.
const CHUNK_ROWS: i64 = 4096;

/// The words of all entries, and the fields that filters need.
pub(crate) struct Texts {
    /// Its rows are the positions in `rows`.
    index: TextIndex,
    rows: Vec<(Row, TextRow)>,
}

pub(crate) fn search(
    snapshot: &PostgresSnapshot,
    queries: &[&str],
    k: usize,
    filter: &Filter,
) -> Result<SearchResults, MemoryError> {
    let entries = snapshot.entries_by_source();
    let sources = sources_with_entries(&snapshot.description, &entries, filter)?;
    check_ids(snapshot, filter)?;
    let ids: Option<HashSet<i64>> = filter.ids.as_ref().map(|ids| ids.iter().copied().collect());
    let texts = match snapshot.texts.get() {
        Some(texts) => texts,
        None => {
            let texts = read(snapshot)?;
            snapshot.texts.get_or_init(|| texts)
        }
    };
    let row = |position: Row| texts.rows.get(position.number() as usize).copied();
    let mut results =
        texts.index.search(&snapshot.description, queries, k, filter, |position| {
            let allowed = |row: &TextRow| {
                sources.as_ref().is_none_or(|sources| sources.contains(&row.source))
                    && ids.as_ref().is_none_or(|ids| ids.contains(&row.id))
            };
            Ok(row(position).map(|(_, row)| row).filter(allowed))
        })?;
    for hit in results.hits.iter_mut().flatten() {
        if let Some((row, _)) = row(hit.row) {
            hit.row = row;
        }
    }
    Ok(results)
}

/// Reads the texts of all entries, from one server after the other.
fn read(snapshot: &PostgresSnapshot) -> Result<Texts, MemoryError> {
    let mut rows: Vec<(Row, TextRow)> = Vec::new();
    let mut parts = snapshot.present_parts()?.into_iter();
    let (mut part, mut last) = (parts.next(), -1i64);
    let batches = std::iter::from_fn(|| {
        loop {
            let batch = match read_batch(part?, last) {
                Ok(batch) => batch,
                Err(error) => {
                    part = None;
                    return Some(Err(error));
                }
            };
            let Some((number, ..)) = batch.last() else {
                (part, last) = (parts.next(), -1);
                continue;
            };
            last = *number;
            let texts = batch.into_iter().map(|(number, entry, text)| {
                let position = Row::new(rows.len() as u32);
                rows.push((row_of(number), entry));
                (position, text)
            });
            return Some(Ok(texts.collect()));
        }
    });
    let index = TextIndex::of_texts(snapshot.description.generation, batches)?;
    Ok(Texts { index, rows })
}

/// Reads the next entries after a row: their row numbers, fields and texts.
fn read_batch(part: &Part, last: i64) -> Result<Vec<(i64, TextRow, String)>, MemoryError> {
    let sql = format!(
        "SELECT row, id, source, document, entry::text FROM {} \
         WHERE row > $3 AND {VISIBLE} ORDER BY row LIMIT $4",
        part.table()
    );
    let (number, stamp) = part.parameters();
    part.read(|connection| {
        let found = connection.query(&sql, &[&number, &stamp, &last, &CHUNK_ROWS])?;
        if found.is_empty() {
            part.check_exists(connection)?;
        }
        let mut batch = Vec::with_capacity(found.len());
        for row in found {
            let text: &str = row.try_get(4)?;
            let text = part.parse_entry(text)?.text();
            let (source, document): (i32, i64) = (row.try_get(2)?, row.try_get(3)?);
            let entry = TextRow {
                id: row.try_get(1)?,
                source: source.cast_unsigned(),
                document: document.cast_unsigned(),
            };
            batch.push((row.try_get(0)?, entry, text));
        }
        Ok(batch)
    })
}
