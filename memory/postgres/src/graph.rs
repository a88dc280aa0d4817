//! Graph search. The graphs have half-precision keys, one graph a source. They return candidates,
//! which are scored and ordered as in a local memory.
//!
//! Each source is searched by its own statement, for its share of the candidates. If it has many of
//! the best entries, it may have more of them, and is searched for all candidates.

use tokio_postgres::Row;

use engram_memory::search::ranking::BestEntries;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::search::{Group, Order, Search, add};

/// The smallest number of candidates that pgvector collects at a time: its default.
const MIN_EF_SEARCH: usize = 40;
/// The largest number of candidates that pgvector can collect at a time.
const MAX_EF_SEARCH: usize = 1000;
/// The maximum number of statements for a query without gates. More sources share a statement.
const MAX_STATEMENTS: usize = 16;

/// The number of candidates of a part with this fraction of the entries: its mean share, and three
/// standard deviations more.
pub(crate) fn share_of(candidates: usize, fraction: f64) -> usize {
    if fraction >= 1.0 {
        return candidates;
    }
    let mean = candidates as f64 * fraction;
    ((mean + 3.0 * mean.sqrt()).ceil() as usize).clamp(1, candidates)
}

impl<'a> Search<'a, '_> {
    /// Returns the best of the candidates from the graphs; `None` if they are too few, or if gates do
    /// not allow a graph search.
    pub(crate) fn graph_hits(
        &self,
        connection: &mut Connection,
        query: usize,
        excluded: &[i64],
    ) -> Result<Option<BestEntries<'a>>, Failure> {
        let Some(candidates) = self.candidates else { return Ok(None) };
        let mut groups = self.groups_of_sources(query);
        if groups.iter().any(|group| group.gate <= 0.0) {
            return Ok(None);
        }
        if groups.len() > MAX_STATEMENTS {
            groups = self.groups(query);
        }
        let entries: u64 = groups.iter().map(|group| group.entries).sum();
        let fraction = |group: &Group| group.entries as f64 / entries as f64;
        let mut limits: Vec<usize> =
            groups.iter().map(|group| share_of(candidates, fraction(group))).collect();
        let mut found = Vec::with_capacity(groups.len());
        for (group, limit) in groups.iter().zip(&limits) {
            match self.graph_rows(connection, group, excluded, *limit)? {
                Some(rows) => found.push(rows),
                None => return Ok(None),
            }
        }
        loop {
            let mut best = self.ranking.best(query);
            found.iter().flatten().try_for_each(|row| add(&mut best, row))?;
            let mut is_done = true;
            for ((group, limit), found) in groups.iter().zip(&mut limits).zip(&mut found) {
                let Some([source]) = group.sources.as_deref() else { continue };
                if *limit < candidates && 2 * best.count_of(source.cast_unsigned()) > *limit {
                    *limit = candidates;
                    match self.graph_rows(connection, group, excluded, candidates)? {
                        Some(rows) => *found = rows,
                        None => return Ok(None),
                    }
                    is_done = false;
                }
            }
            if is_done {
                return Ok(Some(best));
            }
        }
    }

    /// Returns `limit` candidates of a group; `None` if its graphs return too few.
    fn graph_rows(
        &self,
        connection: &mut Connection,
        group: &Group,
        excluded: &[i64],
        limit: usize,
    ) -> Result<Option<Vec<Row>>, Failure> {
        // For several graphs, the server merges their candidates. A graph whose share is larger is
        // searched further.
        let ef_search = limit.div_ceil(group.graphs.max(1));
        connection.set_candidates(ef_search.clamp(MIN_EF_SEARCH, MAX_EF_SEARCH))?;
        let rows = self.rows(connection, group, excluded, Order::Graph(limit as i64))?;
        let enough = self.ranking.k().min(limit).min(group.entries as usize);
        Ok((rows.len() >= enough).then_some(rows))
    }
}
