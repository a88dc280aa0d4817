//! Search in keys. The server finds candidates. They are scored and ordered as in a local memory.
//!
//! **Exact search.** pgvector computes products in single precision. The query is scaled to length
//! 1, so each computed product differs from the true one by at most [`largest_error`]. The server
//! returns somewhat more than `k` rows in the order of their computed products. If a row that is not
//! among them might be among the best `k`, a second statement returns all rows that might. So the
//! entries, their order and their scores are those of a local memory with the same keys.
//!
//! A gate changes the order between sources, and not within a source. So a search with gates has a
//! statement for each source. A negative gate reverses the order, and a gate of 0 makes all scores
//! equal: then the smallest ids are the best.
//!
//! **Graph search.** The graphs have half-precision keys. They return candidates, also one statement
//! a source if there are gates. A query whose graphs return too few candidates is searched exactly,
//! and so is a query with a gate of 0 or below.

use std::sync::atomic::{AtomicUsize, Ordering};

use engram_memory::search::ranking::{BestEntries, Ranking};
use engram_memory::search::{Filter, Queries, SearchResults};
use engram_memory::{MemoryError, Method, Snapshot};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::part::{Part, row_of};
use crate::snapshot::PostgresSnapshot;
use crate::tables::VISIBLE;
use crate::vector::{Vector, VectorRef};

/// The smallest number of candidates that pgvector collects at a time: its default.
const MIN_EF_SEARCH: usize = 40;
/// The largest number of candidates that pgvector can collect at a time.
const MAX_EF_SEARCH: usize = 1000;

/// Returns the best `k` entries for each query among the entries that the filter allows.
pub(crate) fn search(
    snapshot: &PostgresSnapshot,
    method: Method,
    queries: Queries<'_>,
    filter: &Filter,
) -> Result<SearchResults, MemoryError> {
    let description = snapshot.description();
    let entries = snapshot.entries_by_source();
    let longest_key = snapshot.longest_key();
    let ranking = Ranking::new(description, &entries, longest_key, queries, filter)?;
    check_ids(snapshot, filter)?;
    let candidates = match method {
        Method::Graph { candidates } if description.has_graph && filter.ids.is_none() => {
            Some(candidates.max(2 * ranking.k()))
        }
        _ => None,
    };
    let mut best: Vec<BestEntries<'_>> =
        (0..ranking.queries()).map(|query| ranking.best(query)).collect();
    let found = snapshot.each_part(|part| {
        let servers = part.generation.record.servers() as usize;
        let search = Search {
            server: part,
            ranking: &ranking,
            ids: filter.ids.as_deref(),
            table: part.table(),
            candidates: candidates.map(|candidates| share_of(candidates, servers)),
        };
        search.all()
    })?;
    for found in found {
        best.iter_mut().zip(found).for_each(|(best, found)| best.merge(found));
    }
    let hits = best.into_iter().map(BestEntries::finish).collect();
    Ok(SearchResults { generation: description.generation, hits })
}

/// The number of candidates of each server: its mean share of the candidates, and three standard
/// deviations more.
fn share_of(candidates: usize, servers: usize) -> usize {
    if servers == 1 {
        return candidates;
    }
    let mean = candidates as f64 / servers as f64;
    ((mean + 3.0 * mean.sqrt()).ceil() as usize).min(candidates)
}

/// Returns an error if the filter has an id that no entry has.
pub(crate) fn check_ids(snapshot: &PostgresSnapshot, filter: &Filter) -> Result<(), MemoryError> {
    let Some(ids) = &filter.ids else { return Ok(()) };
    let rows = snapshot.find(ids)?;
    let unknown = || ids.iter().zip(&rows).filter(|(_, row)| row.is_none());
    match unknown().next() {
        None => Ok(()),
        Some((id, _)) => {
            let (missing, requested) = (unknown().count(), ids.len());
            Err(MemoryError::UnknownId { id: *id, missing, requested })
        }
    }
}

/// A search of several queries on a server.
struct Search<'a, 's> {
    server: &'s Part,
    ranking: &'a Ranking<'a>,
    ids: Option<&'a [i64]>,
    table: String,
    /// The number of candidates from graphs; `None` for an exact search.
    candidates: Option<usize>,
}

/// A group of entries: those of some sources, whose order a gate does not change.
struct Group {
    /// The searched sources; `None` for all.
    sources: Option<Vec<i32>>,
    /// The query of length 1, times the sign of the gate; `None` if all scores are 0.
    vector: Option<Vec<f32>>,
    gate: f32,
    /// The number of entries of the sources.
    entries: u64,
    /// The number of graphs: of sources with entries.
    graphs: usize,
}

/// The order of a statement's rows, and the limit on them.
#[derive(Clone, Copy)]
enum Order {
    /// By the product in single precision.
    Product(i64),
    /// Rows whose negative product is at most this.
    Threshold(f64),
    /// From the graphs.
    Graph(i64),
    Id(i64),
}

impl<'a> Search<'a, '_> {
    /// Searches for all queries, on several connections.
    fn all(&self) -> Result<Vec<BestEntries<'a>>, MemoryError> {
        let queries = self.ranking.queries();
        let connections = self.server.server.options.connections.clamp(1, queries.max(1));
        if connections == 1 {
            return (0..queries).map(|query| self.one(query)).collect();
        }
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<(usize, BestEntries<'a>)>, MemoryError> {
            let mut found = Vec::new();
            loop {
                let query = next.fetch_add(1, Ordering::Relaxed);
                if query >= queries {
                    return Ok(found);
                }
                found.push((query, self.one(query)?));
            }
        };
        let mut all = Vec::with_capacity(queries);
        for found in each(0..connections, |_, _| work()) {
            all.extend(found?);
        }
        all.sort_unstable_by_key(|(query, _)| *query);
        Ok(all.into_iter().map(|(_, best)| best).collect())
    }

    /// Searches for one query.
    fn one(&self, query: usize) -> Result<BestEntries<'a>, MemoryError> {
        let excluded: Vec<i64> =
            self.ranking.excluded_documents(query).map(u64::cast_signed).collect();
        let groups = self.groups(query);
        self.server.read(|connection| {
            if self.candidates.is_some()
                && let Some(best) = self.graph_hits(connection, query, &groups, &excluded)?
            {
                return Ok(best);
            }
            let mut best = self.ranking.best(query);
            for group in &groups {
                self.exactly(connection, group, &excluded, &mut best)?;
            }
            Ok(best)
        })
    }

    /// Divides the searched sources into groups.
    fn groups(&self, query: usize) -> Vec<Group> {
        let entries = self.server.generation.record.entries_by_source();
        let all: Vec<u32> = match self.ranking.sources() {
            Some(sources) => sources.to_vec(),
            None => (0..entries.len() as u32).collect(),
        };
        let counts = |sources: &[u32]| -> Vec<u64> {
            let counts = sources.iter().map(|source| entries[*source as usize]);
            counts.filter(|count| *count > 0).collect()
        };
        let group = |sources: &[u32], names_sources: bool, gate: f32| Group {
            sources: names_sources
                .then(|| sources.iter().map(|source| source.cast_signed()).collect()),
            vector: unit(self.ranking.query(query), gate),
            gate,
            entries: counts(sources).iter().sum(),
            graphs: counts(sources).len(),
        };
        if all.first().is_none_or(|source| self.ranking.gate(query, *source).is_none()) {
            return vec![group(&all, self.ranking.sources().is_some(), 1.0)];
        }
        let with_entries = all.iter().filter(|source| entries[**source as usize] > 0);
        let groups = with_entries.map(|source| {
            let gate = self.ranking.gate(query, *source).unwrap_or(1.0);
            group(&[*source], true, gate)
        });
        groups.collect()
    }

    /// Adds all entries of a group that may be among the best `k`.
    fn exactly(
        &self,
        connection: &mut Connection,
        group: &Group,
        excluded: &[i64],
        best: &mut BestEntries<'_>,
    ) -> Result<(), Failure> {
        let k = self.ranking.k();
        if group.vector.is_none() {
            let order = Order::Id(k as i64);
            return self.each_row(connection, group, excluded, order, |row| add(best, &row));
        }
        let limit = k + k / 4 + 16;
        let rows = self.rows(connection, group, excluded, Order::Product(limit as i64))?;
        let distance = |row: &Row| row.try_get::<_, f64>(4);
        if rows.len() == limit {
            let error = largest_error(self.server.generation.record.longest_key, group);
            let threshold = distance(&rows[k - 1])? + 2.0 * error;
            if distance(&rows[limit - 1])? <= threshold {
                let order = Order::Threshold(threshold);
                return self.each_row(connection, group, excluded, order, |row| add(best, &row));
            }
        }
        rows.iter().try_for_each(|row| add(best, row))
    }

    /// Returns the best candidates from the graphs; `None` if they are too few, or if gates do not
    /// allow a graph search.
    fn graph_hits(
        &self,
        connection: &mut Connection,
        query: usize,
        groups: &[Group],
        excluded: &[i64],
    ) -> Result<Option<BestEntries<'a>>, Failure> {
        let Some(candidates) = self.candidates else { return Ok(None) };
        if groups.iter().any(|group| group.gate <= 0.0) {
            return Ok(None);
        }
        let mut best = self.ranking.best(query);
        for group in groups {
            // The server merges the candidates of the graphs. A graph whose share is larger is
            // searched further.
            let ef_search = candidates.div_ceil(group.graphs.max(1));
            connection.set_candidates(ef_search.clamp(MIN_EF_SEARCH, MAX_EF_SEARCH))?;
            let rows = self.rows(connection, group, excluded, Order::Graph(candidates as i64))?;
            if rows.len() < self.ranking.k().min(candidates).min(group.entries as usize) {
                return Ok(None);
            }
            rows.iter().try_for_each(|row| add(&mut best, row))?;
        }
        Ok(Some(best))
    }

    /// Returns rows of a group that the filter allows.
    fn rows(
        &self,
        connection: &mut Connection,
        group: &Group,
        excluded: &[i64],
        order: Order,
    ) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        self.each_row(connection, group, excluded, order, |row| {
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Calls `each` with rows of a group that the filter allows: row, id, source, key, negative
    /// product.
    fn each_row(
        &self,
        connection: &mut Connection,
        group: &Group,
        excluded: &[i64],
        order: Order,
        mut each: impl FnMut(Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (number, stamp) = self.server.parameters();
        let vector = group.vector.as_deref().map(VectorRef);
        let mut conditions = VISIBLE.to_owned();
        let mut parameters = Parameters(vec![&number, &stamp]);
        if let Some(sources) = &group.sources {
            conditions += &format!(" AND source = ANY({})", parameters.add(sources));
        }
        if let Some(ids) = &self.ids {
            conditions += &format!(" AND id = ANY({})", parameters.add(ids));
        }
        if !excluded.is_empty() {
            conditions += &format!(" AND document <> ALL({})", parameters.add(&excluded));
        }
        let vector = vector.as_ref().map(|vector| parameters.add(vector)).unwrap_or_default();
        // The sum defeats an index on the keys, which would return rows in an approximate order.
        let product =
            if vector.is_empty() { "0::float8".into() } else { format!("(key <#> {vector}) + 0") };
        let end = match &order {
            Order::Product(limit) => format!("ORDER BY 5 LIMIT {}", parameters.add(limit)),
            Order::Id(limit) => format!("ORDER BY id LIMIT {}", parameters.add(limit)),
            Order::Threshold(threshold) => {
                conditions += &format!(" AND {product} <= {}", parameters.add(threshold));
                String::new()
            }
            Order::Graph(limit) => {
                let width = self.server.generation.record.width;
                let key = format!("key::halfvec({width})");
                let limit = parameters.add(limit);
                format!("ORDER BY {key} <#> {vector}::vector::halfvec({width}) LIMIT {limit}")
            }
        };
        let table = &self.table;
        let sql =
            format!("SELECT row, id, source, key, {product} FROM {table} WHERE {conditions} {end}");
        let mut is_empty = true;
        connection.for_each(&sql, &parameters.0, |row| {
            is_empty = false;
            each(row)
        })?;
        if is_empty {
            self.server.check_exists(connection)?;
        }
        Ok(())
    }
}

/// The parameters of a statement.
struct Parameters<'a>(Vec<&'a (dyn ToSql + Sync)>);

impl<'a> Parameters<'a> {
    /// Adds a parameter, and returns its place in the statement, such as `$3`.
    fn add(&mut self, parameter: &'a (dyn ToSql + Sync)) -> String {
        self.0.push(parameter);
        format!("${}", self.0.len())
    }
}

/// Adds the candidate of a row.
fn add(best: &mut BestEntries<'_>, row: &Row) -> Result<(), Failure> {
    let (number, id, source): (i64, i64, i32) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let Vector(key) = row.try_get(3)?;
    best.add(row_of(number), id, source.cast_unsigned(), &key);
    Ok(())
}

/// Returns the query of length 1, times the sign of the gate; `None` if all scores are 0.
fn unit(query: &[f32], gate: f32) -> Option<Vec<f32>> {
    let norm = query.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    if norm == 0.0 || gate == 0.0 {
        return None;
    }
    let factor = f64::from(gate.signum()) / norm;
    Some(query.iter().map(|number| (f64::from(*number) * factor) as f32).collect())
}

/// The largest difference of a computed product from the true product of a key and the query of
/// length 1. A sum of `n` products in single precision, in any order, has a relative error below
/// `n u / (1 - n u)` of the norms, with `u = 2^-24`. The rounding of the query adds `u`. The last
/// summand is for numbers below the smallest normal number.
///
/// Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1.
fn largest_error(longest_key: f32, group: &Group) -> f64 {
    let width = group.vector.as_ref().map_or(0, Vec::len) as f64;
    let unit = 2f64.powi(-24);
    // Keys of unit length may be longer by rounding.
    let longest_key = f64::from(longest_key) * (1.0 + 1e-6);
    (width + 4.0) * unit * 1.01 * longest_key + width * 2f64.powi(-148) * (1.0 + longest_key)
}
