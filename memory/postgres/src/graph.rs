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
        let searched: Vec<(&Group, usize)> = groups.iter().zip(limits.iter().copied()).collect();
        let Some(mut found) = self.graph_rows(connection, &searched, excluded)? else {
            return Ok(None);
        };
        loop {
            let mut best = self.ranking.best(query);
            found.iter().flatten().try_for_each(|row| add(&mut best, row))?;
            let mut is_done = true;
            for ((group, limit), found) in groups.iter().zip(&mut limits).zip(&mut found) {
                let Some([source]) = group.sources.as_deref() else { continue };
                if *limit < candidates && 2 * best.count_of(source.cast_unsigned()) > *limit {
                    *limit = candidates;
                    let rows = self.graph_rows(connection, &[(group, candidates)], excluded)?;
                    let Some(rows) = rows else { return Ok(None) };
                    *found = rows.into_iter().flatten().collect();
                    is_done = false;
                }
            }
            if is_done {
                return Ok(Some(best));
            }
        }
    }

    /// Returns candidates of groups, each with its limit; `None` if the graphs of a group return too
    /// few.
    fn graph_rows(
        &self,
        connection: &mut Connection,
        groups: &[(&Group, usize)],
        excluded: &[i64],
    ) -> Result<Option<Vec<Vec<Row>>>, Failure> {
        let statements = groups.iter().map(|(group, limit)| {
            // For several graphs, the server merges their candidates. A graph whose share is larger
            // is searched further.
            let ef_search = limit.div_ceil(group.graphs.max(1));
            let statement = self.statement(group, excluded, Order::Graph(*limit as i64));
            (ef_search.clamp(MIN_EF_SEARCH, MAX_EF_SEARCH), statement)
        });
        let statements: Vec<_> = statements.collect();
        let searches = statements.iter().map(|(ef_search, (sql, parameters))| {
            (*ef_search, sql.as_str(), parameters.references())
        });
        let found = connection.search_graphs(&searches.collect::<Vec<_>>())?;
        if found.iter().any(Vec::is_empty) {
            self.server.check_exists(connection)?;
        }
        let k = self.ranking.k();
        let is_enough = groups
            .iter()
            .zip(&found)
            .all(|((group, limit), rows)| rows.len() >= k.min(*limit).min(group.entries as usize));
        Ok(is_enough.then_some(found))
    }
}
