//! Search in the texts of entries. The index is in main memory, as for a local memory, and is built
//! by the first search of a snapshot.

use std::collections::{HashMap, HashSet};

use engram_memory::retrieval::text::{TextIndex, TextRow};
use engram_memory::search::ranking::sources_with_entries;
use engram_memory::search::{Filter, SearchResults};
use engram_memory::{MemoryError, Row};

use crate::search::check_ids;
use crate::snapshot::{PostgresSnapshot, row_of};
use crate::tables::VISIBLE;

/// The number of entries that are read at a time.
const CHUNK_ROWS: i64 = 4096;

/// The words of all entries, and the fields that filters need.
pub(crate) struct Texts {
    index: TextIndex,
    rows: HashMap<Row, TextRow>,
}

pub(crate) fn search(
    snapshot: &PostgresSnapshot,
    queries: &[&str],
    k: usize,
    filter: &Filter,
) -> Result<SearchResults, MemoryError> {
    let entries = snapshot.generation.record.entries_by_source();
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
    texts.index.search_rows(&snapshot.description, queries, k, filter, |row| {
        let allowed = |row: &TextRow| {
            sources.as_ref().is_none_or(|sources| sources.contains(&row.source))
                && ids.as_ref().is_none_or(|ids| ids.contains(&row.id))
        };
        Ok(texts.rows.get(&row).copied().filter(allowed))
    })
}

/// Reads the texts of all entries in the order of their rows.
fn read(snapshot: &PostgresSnapshot) -> Result<Texts, MemoryError> {
    let sql = format!(
        "SELECT row, id, source, document, entry::text FROM {} \
         WHERE row > $3 AND {VISIBLE} ORDER BY row LIMIT $4",
        snapshot.table()
    );
    let (number, stamp) = snapshot.parameters();
    let (mut rows, mut last, mut is_done) = (HashMap::new(), -1i64, false);
    let batches = std::iter::from_fn(|| {
        if is_done {
            return None;
        }
        let batch = snapshot.read(|connection| {
            let found = connection.query(&sql, &[&number, &stamp, &last, &CHUNK_ROWS])?;
            if found.is_empty() {
                snapshot.check_exists(connection)?;
            }
            let mut batch = Vec::with_capacity(found.len());
            for row in found {
                let text: &str = row.try_get(4)?;
                let text = snapshot.parse_entry(text)?.text();
                let (source, document): (i32, i64) = (row.try_get(2)?, row.try_get(3)?);
                let entry = TextRow {
                    id: row.try_get(1)?,
                    source: source.cast_unsigned(),
                    document: document.cast_unsigned(),
                };
                batch.push((row.try_get::<_, i64>(0)?, entry, text));
            }
            Ok(batch)
        });
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                is_done = true;
                return Some(Err(error));
            }
        };
        last = batch.last()?.0;
        let texts = batch.into_iter().map(|(number, entry, text)| {
            let row = row_of(number);
            rows.insert(row, entry);
            (row, text)
        });
        Some(Ok(texts.collect()))
    });
    let index = TextIndex::of_texts(number.cast_unsigned(), batches)?;
    Ok(Texts { index, rows })
}
