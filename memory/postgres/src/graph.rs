//! Graph search. There is one graph of half-precision keys per source and server. Graphs return
//! candidates, which are scored and ordered as in a local memory.
//!
//! Each graph is first searched for its share of the candidates, and returns its share of the best
//! entries and some more. If a graph turns out to have more of the best entries than its share, it
//! is searched again for more candidates. So a memory on several servers needs hardly more work
//! than on one.
//!
//! A small graph, or one that returns too few candidates, is replaced by an exact search of its
//! entries. A query with a gate of 0 or below is searched exactly.

use std::collections::BTreeMap;

use engram_memory::MemoryError;
use engram_memory::search::ranking::{BestEntries, Ranking};

use crate::failure::Failure;
use crate::part::Part;
use crate::search::{Group, Order, Search, add, with_margin};
use crate::snapshot::PostgresSnapshot;

/// The smallest number of candidates that a graph collects.
const MIN_EF_SEARCH: usize = 40;
/// The largest number of candidates that pgvector can collect at a time.
const MAX_EF_SEARCH: usize = 1000;
/// The maximum number of statements for a query without gates. More sources share a statement.
const MAX_STATEMENTS: usize = 16;

/// If a graph has at most this many entries for each candidate, an exact search replaces it,
/// because it takes no longer (`cargo bench`, 5,000 keys of width 384).
const EXACT: usize = 25;

/// How far a graph is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    /// The number of candidates that the graph collects.
    collected: usize,
    /// The number of the best of them that it returns.
    returned: usize,
}

/// The entries that a group of a server returned for a query.
struct GroupResult<'a> {
    extent: Extent,
    /// Whether the result has all entries that may be among the best.
    is_exact: bool,
    best: BestEntries<'a>,
}

/// For a query, the indices of some groups of a server, and how far they are searched.
type Task = (usize, Vec<(usize, Extent)>);

/// Returns the best of the candidates from the graphs of all servers, for each query. `is_part`
/// says that only some sources are searched.
pub(crate) fn search<'a>(
    snapshot: &PostgresSnapshot,
    ranking: &'a Ranking<'a>,
    candidates: usize,
    is_part: bool,
) -> Result<Vec<BestEntries<'a>>, MemoryError> {
    // The best entries of some sources are farther from the query, and so harder to find.
    let least = if is_part { 4 } else { 2 };
    let candidates = candidates.max(least * ranking.k());
    let queries: Vec<usize> = (0..ranking.queries()).collect();
    let entries =
        snapshot.parts().map(|server| Search { server, ranking, ids: None }.entries()).sum();
    let found = snapshot.each_part(|part| {
        let graphs = Graphs::new(part, ranking, candidates);
        let found = graphs.search.each_query(&queries, |query| graphs.first(query, entries))?;
        Ok((part.index(), found))
    })?;
    // For each server, the groups of each query.
    let mut found: BTreeMap<u32, Vec<Vec<GroupResult<'a>>>> = found.into_iter().collect();
    loop {
        let tasks = further(&found, &queries, candidates, ranking.k());
        if tasks.is_empty() {
            break;
        }
        let again = snapshot.each_part(|part| {
            let Some(tasks) = tasks.get(&part.index()) else { return Ok(Vec::new()) };
            let graphs = Graphs::new(part, ranking, candidates);
            let indices: Vec<usize> = (0..tasks.len()).collect();
            let again = graphs.search.each_query(&indices, |index| {
                let (query, extents) = &tasks[index];
                graphs.further(*query, extents)
            })?;
            Ok(vec![(part.index(), again)])
        })?;
        let mut again: BTreeMap<u32, _> = again.into_iter().flatten().collect();
        for (server, tasks) in tasks {
            let Some(found) = found.get_mut(&server) else { continue };
            match again.remove(&server) {
                Some(again) => {
                    for ((query, extents), again) in tasks.into_iter().zip(again) {
                        for ((group, _), again) in extents.into_iter().zip(again) {
                            found[query][group] = again;
                        }
                    }
                }
                // The server is unreachable, and partial results are allowed: no search of it is
                // left.
                None => found.iter_mut().flatten().for_each(|found| found.is_exact = true),
            }
        }
    }
    let mut best: Vec<BestEntries<'a>> = queries.iter().map(|query| ranking.best(*query)).collect();
    for found in found.into_values() {
        for (best, found) in best.iter_mut().zip(found) {
            found.into_iter().for_each(|found| best.merge(found.best));
        }
    }
    Ok(best)
}

/// The groups of each server to be searched further, because they have many of the best entries.
fn further(
    found: &BTreeMap<u32, Vec<Vec<GroupResult<'_>>>>,
    queries: &[usize],
    candidates: usize,
    k: usize,
) -> BTreeMap<u32, Vec<Task>> {
    let mut tasks: BTreeMap<u32, Vec<Task>> = BTreeMap::new();
    for query in queries {
        let lists = || found.values().flat_map(|found| &found[*query]);
        let counts = BestEntries::counts(&lists().map(|found| &found.best).collect::<Vec<_>>());
        let mut counts = counts.into_iter();
        for (server, found) in found {
            let groups = found[*query].iter().zip(counts.by_ref()).enumerate();
            let further = groups.filter_map(|(group, (found, count))| {
                let extent = found.extent.for_count(count, candidates, k);
                (extent != found.extent && !found.is_exact).then_some((group, extent))
            });
            let further: Vec<(usize, Extent)> = further.collect();
            if !further.is_empty() {
                tasks.entry(*server).or_default().push((*query, further));
            }
        }
    }
    tasks
}

impl Extent {
    /// The share of a graph with this fraction of the entries.
    fn of(fraction: f64, candidates: usize, k: usize) -> Self {
        let collected = share_of(candidates, fraction).max(MIN_EF_SEARCH);
        Self { collected, returned: share_of(with_margin(k), fraction) }.checked()
    }

    /// The next extent for a graph that has `count` of the best `k` entries: with twice the
    /// candidates if `count` is more than half of them, and twice the results if it is nearly all
    /// of them.
    fn for_count(self, count: usize, candidates: usize, k: usize) -> Self {
        let Self { mut collected, mut returned } = self;
        if 2 * count > collected {
            collected = (2 * collected).min(candidates);
        }
        if 8 * count > 7 * returned {
            returned = (2 * returned).min(with_margin(k));
        }
        Self { collected, returned }.checked()
    }

    fn checked(self) -> Self {
        // Few different numbers need few prepared statements. pgvector collects further candidates
        // only if it has to return them.
        let returned = match self.collected {
            ..=MAX_EF_SEARCH => self.returned.next_multiple_of(8),
            _ => self.collected,
        };
        Self { collected: self.collected.max(returned), returned }
    }
}

/// The number of candidates of a part with this fraction of the entries: its mean share, and three
/// standard deviations more.
fn share_of(candidates: usize, fraction: f64) -> usize {
    let mean = candidates as f64 * fraction;
    ((mean + 3.0 * mean.sqrt()).ceil() as usize).clamp(1, candidates)
}

/// The graphs of a server.
struct Graphs<'a, 's> {
    search: Search<'a, 's>,
    candidates: usize,
}

impl<'a, 's> Graphs<'a, 's> {
    fn new(server: &'s Part, ranking: &'a Ranking<'a>, candidates: usize) -> Self {
        Self { search: Search { server, ranking, ids: None }, candidates }
    }

    /// Searches each group for its share of all `entries`.
    fn first(&self, query: usize, entries: u64) -> Result<Vec<GroupResult<'a>>, MemoryError> {
        let groups = self.groups(query);
        if groups.iter().any(|group| group.gate <= 0.0) {
            let best = self.search.exact(query)?;
            let extent = Extent { collected: 0, returned: 0 };
            return Ok(vec![GroupResult { extent, is_exact: true, best }]);
        }
        let k = self.search.ranking.k();
        let extents = groups.iter().enumerate().map(|(index, group)| {
            let fraction = group.entries as f64 / entries as f64;
            (index, Extent::of(fraction, self.candidates, k))
        });
        self.search_groups(query, &groups, &extents.collect::<Vec<_>>())
    }

    /// Searches some groups again.
    fn further(
        &self,
        query: usize,
        extents: &[(usize, Extent)],
    ) -> Result<Vec<GroupResult<'a>>, MemoryError> {
        self.search_groups(query, &self.groups(query), extents)
    }

    fn groups(&self, query: usize) -> Vec<Group> {
        let groups = self.search.groups_of_sources(query);
        if groups.len() > MAX_STATEMENTS { self.search.groups(query) } else { groups }
    }

    fn search_groups(
        &self,
        query: usize,
        groups: &[Group],
        extents: &[(usize, Extent)],
    ) -> Result<Vec<GroupResult<'a>>, MemoryError> {
        let search = &self.search;
        let excluded = search.excluded(query);
        search.server.read(|connection| {
            let is_small = |(index, extent): &&(usize, Extent)| {
                groups[*index].entries <= (EXACT * extent.collected) as u64
            };
            let graphs = || extents.iter().filter(|group| !is_small(group));
            let statements = graphs().map(|(index, extent)| {
                let group = &groups[*index];
                // For several graphs, the server merges their candidates. A graph whose share is
                // larger is searched further.
                let ef_search = extent.collected.div_ceil(group.graphs.max(1));
                let statement = search.statement(group, &excluded, Order::Graph(extent.returned));
                (ef_search.clamp(MIN_EF_SEARCH, MAX_EF_SEARCH), statement)
            });
            let statements: Vec<_> = statements.collect();
            let searches = statements.iter().map(|(ef_search, (sql, parameters))| {
                (*ef_search, sql.as_str(), parameters.references())
            });
            let rows = connection.search_graphs(&searches.collect::<Vec<_>>())?;
            if rows.iter().any(Vec::is_empty) {
                search.server.check_exists(connection)?;
            }
            let (mut rows, k) = (rows.into_iter(), search.ranking.k());
            let found = extents.iter().map(|task| {
                let (group, extent) = (&groups[task.0], task.1);
                let least = k.min(extent.returned).min(group.entries as usize);
                let rows = if is_small(&task) { None } else { rows.next() };
                let rows = rows.filter(|rows| rows.len() >= least);
                let (mut best, is_exact) = (search.ranking.best(query), rows.is_none());
                match rows {
                    Some(rows) => rows.iter().try_for_each(|row| add(&mut best, row))?,
                    None => search.exactly(connection, group, &excluded, &mut best)?,
                }
                Ok(GroupResult { extent, is_exact, best })
            });
            found.collect::<Result<Vec<_>, Failure>>()
        })
    }
}
