//! Search in keys. The server finds candidates. They are scored and ordered as in a local memory.
//!
//! **Exact search.** pgvector computes products in single precision. The query is scaled to length
//! 1, so each computed product differs from the true one by at most [`largest_error`]. The server
//! returns somewhat more than `k` rows in the order of their computed products. If a row that is
//! not among them might be among the best `k`, a second statement returns all rows that might. So
//! the entries, their order and their scores are the same as in a local memory with these keys.
//!
//! A gate changes the order between sources, and not within a source. So a search with gates has a
//! statement for each source. A negative gate reverses the order, and a gate of 0 makes all scores
//! equal: then the smallest ids are the best.
//!
//! A graph search takes the candidates of [`graph`](crate::graph).

use std::sync::atomic::{AtomicUsize, Ordering};

use engram_memory::search::ranking::{BestEntries, Ranking};
use engram_memory::search::{Filter, Queries, SearchResults};
use engram_memory::{MemoryError, Method, Snapshot};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::graph;
use crate::part::{Part, row_of};
use crate::snapshot::PostgresSnapshot;
use crate::tables::VISIBLE;
use crate::vector::{Vector, VectorRef};

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
    let ids = filter.ids.as_deref();
    let best = match method {
        Method::Graph { candidates } if description.has_graph && ids.is_none() => {
            graph::search(snapshot, &ranking, candidates, filter.sources.is_some())?
        }
        _ => {
            let queries: Vec<usize> = (0..ranking.queries()).collect();
            let found = snapshot.each_part(|part| {
                let search = Search { server: part, ranking: &ranking, ids };
                search.each_query(&queries, |query| search.exact(query))
            })?;
            let mut best: Vec<BestEntries<'_>> =
                queries.iter().map(|query| ranking.best(*query)).collect();
            for found in found {
                best.iter_mut().zip(found).for_each(|(best, found)| best.merge(found));
            }
            best
        }
    };
    let hits = best.into_iter().map(BestEntries::finish).collect();
    Ok(SearchResults { generation: description.generation, hits })
}

/// Returns an error if the filter has an id that no entry has.
pub(crate) fn check_ids(snapshot: &PostgresSnapshot, filter: &Filter) -> Result<(), MemoryError> {
    let Some(ids) = &filter.ids else { return Ok(()) };
    let rows = snapshot.find(ids)?;
    let unknown = ids.iter().zip(&rows).filter(|(_, row)| row.is_none());
    MemoryError::check_known(&unknown.map(|(id, _)| *id).collect::<Vec<_>>(), ids.len())
}

/// A search of several queries on a server.
pub(crate) struct Search<'a, 's> {
    pub(crate) server: &'s Part,
    pub(crate) ranking: &'a Ranking<'a>,
    pub(crate) ids: Option<&'a [i64]>,
}

/// The entries of some sources that share a statement, because no gate changes their order.
pub(crate) struct Group {
    /// The searched sources; `None` for all.
    pub(crate) sources: Option<Vec<i32>>,
    /// The query of length 1, times the sign of the gate; `None` if all scores are 0.
    vector: Option<Vec<f32>>,
    pub(crate) gate: f32,
    /// The number of entries of the sources.
    pub(crate) entries: u64,
    /// The number of graphs: of sources with entries.
    pub(crate) graphs: usize,
}

/// The number of rows to request for the best `k`: some more, because half-precision keys and
/// single-precision sums change the order a little.
pub(crate) fn with_margin(k: usize) -> usize {
    k + k / 4 + 16
}

/// The order of a statement's rows, and the limit on them.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// By the product in single precision.
    Product(i64),
    /// Rows whose negative product is at most this.
    Threshold(f64),
    /// In the order of the graphs. The limit is no parameter, so that a generic plan knows it.
    Graph(usize),
    Id(i64),
}

impl<'a> Search<'a, '_> {
    /// Calls `work` for these queries, on several connections. Returns the results in the order of
    /// the queries.
    pub(crate) fn each_query<T: Send>(
        &self,
        queries: &[usize],
        work: impl Fn(usize) -> Result<T, MemoryError> + Sync,
    ) -> Result<Vec<T>, MemoryError> {
        let connections = self.server.server.options.connections.clamp(1, queries.len().max(1));
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<(usize, T)>, MemoryError> {
            let mut found = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(query) = queries.get(index) else { return Ok(found) };
                found.push((index, work(*query)?));
            }
        };
        let mut all = Vec::with_capacity(queries.len());
        for found in each(0..connections, |_, _| work()) {
            all.extend(found?);
        }
        all.sort_unstable_by_key(|(index, _)| *index);
        Ok(all.into_iter().map(|(_, found)| found).collect())
    }

    /// Searches for one query exactly.
    pub(crate) fn exact(&self, query: usize) -> Result<BestEntries<'a>, MemoryError> {
        let (excluded, groups) = (self.excluded(query), self.groups(query));
        self.server.read(|connection| {
            let mut best = self.ranking.best(query);
            for group in &groups {
                self.exactly(connection, group, &excluded, &mut best)?;
            }
            Ok(best)
        })
    }

    /// The documents that a query excludes.
    pub(crate) fn excluded(&self, query: usize) -> Vec<i64> {
        self.ranking.excluded_documents(query).map(u64::cast_signed).collect()
    }

    /// Divides the searched sources into groups.
    pub(crate) fn groups(&self, query: usize) -> Vec<Group> {
        let sources = self.sources_with_entries();
        if sources.first().is_some_and(|(source, _)| self.ranking.gate(query, *source).is_some()) {
            return self.groups_of_sources(query);
        }
        let names = || sources.iter().map(|(source, _)| source.cast_signed()).collect();
        vec![Group {
            sources: self.ranking.sources().map(|_| names()),
            vector: unit(self.ranking.query(query), 1.0),
            gate: 1.0,
            entries: sources.iter().map(|(_, entries)| entries).sum(),
            graphs: sources.len(),
        }]
    }

    /// Makes each searched source a group.
    pub(crate) fn groups_of_sources(&self, query: usize) -> Vec<Group> {
        let group = |(source, entries): (u32, u64)| {
            let gate = self.ranking.gate(query, source).unwrap_or(1.0);
            let vector = unit(self.ranking.query(query), gate);
            Group { sources: Some(vec![source.cast_signed()]), vector, gate, entries, graphs: 1 }
        };
        self.sources_with_entries().into_iter().map(group).collect()
    }

    /// The searched sources that have entries on this server, with their numbers of entries.
    fn sources_with_entries(&self) -> Vec<(u32, u64)> {
        let sources = (0..).zip(self.server.generation.record.entries_by_source());
        let is_searched =
            |source: u32| self.ranking.sources().is_none_or(|searched| searched.contains(&source));
        sources.filter(|(source, entries)| *entries > 0 && is_searched(*source)).collect()
    }

    /// The number of searched entries on this server.
    pub(crate) fn entries(&self) -> u64 {
        self.sources_with_entries().iter().map(|(_, entries)| entries).sum()
    }

    /// Adds all entries of a group that may be among the best `k`.
    pub(crate) fn exactly(
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
        let limit = with_margin(k);
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

    /// The statement for rows of a group that the filter allows: row, id, source, key, negative
    /// product.
    pub(crate) fn statement<'q>(
        &'q self,
        group: &'q Group,
        excluded: &'q [i64],
        order: Order,
    ) -> (String, Parameters<'q>) {
        let (number, stamp) = self.server.parameters();
        let mut conditions = VISIBLE.to_owned();
        let mut parameters = Parameters(vec![Box::new(number), Box::new(stamp)]);
        let mut table = self.server.table();
        if let Some([source]) = group.sources.as_deref() {
            table = format!("{table}_{source}");
        } else if let Some(sources) = group.sources.as_deref() {
            conditions += &format!(" AND source = ANY({})", parameters.add(sources));
        }
        if let Some(ids) = self.ids {
            conditions += &format!(" AND id = ANY({})", parameters.add(ids));
        }
        if !excluded.is_empty() {
            conditions += &format!(" AND document <> ALL({})", parameters.add(excluded));
        }
        let vector = group.vector.as_deref().map(VectorRef);
        let vector = vector.map(|vector| parameters.add(vector)).unwrap_or_default();
        // The sum defeats an index on the keys, which would return rows in an approximate order.
        let product = match order {
            Order::Product(_) | Order::Threshold(_) => format!("(key <#> {vector}) + 0"),
            Order::Graph(_) | Order::Id(_) => "0::float8".to_owned(),
        };
        let end = match order {
            Order::Product(limit) => format!("ORDER BY 5 LIMIT {}", parameters.add(limit)),
            Order::Id(limit) => format!("ORDER BY id LIMIT {}", parameters.add(limit)),
            Order::Threshold(threshold) => {
                conditions += &format!(" AND {product} <= {}", parameters.add(threshold));
                String::new()
            }
            Order::Graph(limit) => {
                let width = self.server.generation.record.width;
                let key = format!("key::halfvec({width})");
                format!("ORDER BY {key} <#> {vector}::vector::halfvec({width}) LIMIT {limit}")
            }
        };
        let sql =
            format!("SELECT row, id, source, key, {product} FROM {table} WHERE {conditions} {end}");
        (sql, parameters)
    }

    /// Calls `each` with rows of a group that the filter allows.
    fn each_row(
        &self,
        connection: &mut Connection,
        group: &Group,
        excluded: &[i64],
        order: Order,
        mut each: impl FnMut(Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (sql, parameters) = self.statement(group, excluded, order);
        let mut is_empty = true;
        connection.for_each(&sql, &parameters.references(), |row| {
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
pub(crate) struct Parameters<'a>(Vec<Box<dyn ToSql + Sync + 'a>>);

impl<'a> Parameters<'a> {
    /// Adds a parameter, and returns its placeholder, such as `$3`.
    fn add(&mut self, parameter: impl ToSql + Sync + 'a) -> String {
        self.0.push(Box::new(parameter));
        format!("${}", self.0.len())
    }

    pub(crate) fn references(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.0.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect()
    }
}

/// Adds the candidate of a row.
pub(crate) fn add(best: &mut BestEntries<'_>, row: &Row) -> Result<(), Failure> {
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
