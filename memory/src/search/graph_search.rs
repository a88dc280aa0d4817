//! Search through graphs of any kind: faster than scoring all keys, and nearly exact.
//!
//! A graph search returns candidates that the filter allows. The candidates are scored as in the
//! exact search. Segments without a graph, or with a small fraction of searchable rows, are
//! searched exactly. So are queries with a gate of 0 or below, and queries for which a graph
//! returns too few candidates.

use rayon::prelude::*;

use super::exact::QueryBatch;
use super::graph::{Beam, GraphQueries, GraphQuery};
use super::top_k::Candidate;
use super::{Filter, Hidden, Hit, PreparedFilter, Queries, SearchResults};
use crate::error::MemoryError;
use crate::generation::{Bits, Generation, Part};

/// The smallest fraction of searchable rows for which a segment's graph is used. With gates, it
/// applies to the searchable rows of each source.
const MIN_FRACTION: f64 = 0.05;

/// Returns the best `k` entries for each query. The graphs return `candidates` candidates, but at
/// least `2 k`.
pub(crate) fn search(
    generation: &Generation,
    candidates: usize,
    queries: Queries<'_>,
    filter: &Filter,
) -> Result<SearchResults, MemoryError> {
    let prepared = PreparedFilter::new(generation, queries, filter)?;
    let plan = plan(generation, &prepared, candidates)?;
    let exact_filter =
        PreparedFilter { hidden: plan.hidden_from_exact.clone(), ..prepared.clone() };
    let mut hits = Vec::with_capacity(prepared.queries);
    for batch in QueryBatch::batches(generation, &exact_filter, queries) {
        let (first, count) = (batch.first_query, batch.norms.len());
        let vectors = GraphQueries::new(batch.vectors, prepared.width);
        let from_graphs: Vec<Option<Vec<Candidate>>> = (0..count)
            .into_par_iter()
            .map_init(Beam::default, |beam, i| {
                let query = (first + i, vectors.get(i));
                graph_candidates(generation, &prepared, &plan, query, beam)
            })
            .collect::<Result<_, _>>()?;
        let mut candidates = batch.candidates()?;
        let mut without_graphs = Vec::new();
        for (i, from_graphs) in from_graphs.into_iter().enumerate() {
            match from_graphs {
                Some(from_graphs) => candidates[i].extend(from_graphs),
                None => without_graphs.push(i),
            }
        }
        let mut batch_hits = batch.rank_all(candidates)?;
        for i in without_graphs {
            batch_hits[i] = search_exactly(generation, &prepared, queries, first + i)?;
        }
        hits.extend(batch_hits);
    }
    Ok(SearchResults { generation: generation.manifest().generation, hits })
}

/// The search method of each row.
struct Plan {
    /// The number of candidates that a graph returns.
    candidates: usize,
    /// The rows to search through graphs.
    groups: Vec<Group>,
    /// For each segment, the rows that the exact search skips.
    hidden_from_exact: Vec<Hidden>,
}

/// Rows that are searched through a graph.
struct Group {
    /// The index of the part.
    part: usize,
    /// The only source of the group; `None` if the group has rows of all searched sources.
    source: Option<u32>,
    /// The number of searchable rows.
    rows: usize,
}

/// Divides the rows of each segment between graph search and exact search.
fn plan(
    generation: &Generation,
    prepared: &PreparedFilter<'_>,
    candidates: usize,
) -> Result<Plan, MemoryError> {
    let candidates = candidates.max(2 * prepared.k);
    let hidden_from_exact = prepared.hidden.clone();
    let mut plan = Plan { candidates, groups: Vec::new(), hidden_from_exact };
    for (number, part) in generation.parts().iter().enumerate() {
        if part.graph()?.is_none() {
            continue;
        }
        let (hidden, rows) = (&prepared.hidden[number], part.segment.rows);
        if matches!(hidden, Hidden::Nothing) && prepared.gates.is_none() {
            plan.hidden_from_exact[number] = Hidden::Everything;
            plan.groups.push(Group { part: number, source: None, rows });
            continue;
        }
        let sources = part.segment.sources()?;
        // With gates, the best entries of each source are needed, because a gate does not
        // change the order within a source.
        let by_source = prepared.gates.is_some();
        let num_groups = if by_source { prepared.sources } else { 1 };
        let group_of = |row: usize| if by_source { sources[row] as usize } else { 0 };
        // The number of searchable rows of each group.
        let mut visible = vec![0; num_groups];
        (0..rows).filter(|row| !hidden.has(*row)).for_each(|row| visible[group_of(row)] += 1);
        let uses_graph =
            |visible: usize| visible > 0 && visible as f64 >= MIN_FRACTION * rows as f64;
        let mut skipped = Bits::zeros(rows);
        let is_skipped = |row: &usize| hidden.has(*row) || uses_graph(visible[group_of(*row)]);
        (0..rows).filter(is_skipped).for_each(|row| skipped.set(row));
        plan.hidden_from_exact[number] = Hidden::Rows(skipped);
        for (group, rows) in visible.iter().enumerate().filter(|(_, rows)| uses_graph(**rows)) {
            let source = by_source.then_some(group as u32);
            plan.groups.push(Group { part: number, source, rows: *rows });
        }
    }
    Ok(plan)
}

/// Returns the graphs' candidates for a query; `None` if the query must be searched exactly.
fn graph_candidates(
    generation: &Generation,
    prepared: &PreparedFilter<'_>,
    plan: &Plan,
    (query, vector): (usize, GraphQuery<'_>),
    beam: &mut Beam,
) -> Result<Option<Vec<Candidate>>, MemoryError> {
    let k = prepared.k;
    let excluded = prepared.excluded.get(query);
    let mut candidates = Vec::new();
    for group in &plan.groups {
        let gate = group.source.map_or(1.0, |source| prepared.gate(query, source));
        // With a gate of 0 all scores are equal, and a negative gate reverses their order.
        if gate <= 0.0 {
            return Ok(None);
        }
        let part: &Part = &generation.parts()[group.part];
        let hidden = &prepared.hidden[group.part];
        let (sources, documents) = (part.segment.sources()?, part.segment.documents()?);
        let is_visible = |row: usize| {
            !hidden.has(row)
                && group.source.is_none_or(|source| sources[row] == source)
                && !excluded.is_some_and(|excluded| excluded.contains(&documents[row]))
        };
        let Some(graph) = part.graph()? else { return Ok(None) };
        let found = graph.search(&part.segment, vector, plan.candidates, is_visible, beam)?;
        if found.len() < k.min(group.rows) {
            return Ok(None);
        }
        candidates.extend(found.into_iter().map(|Candidate { score, error, row }| Candidate {
            score: gate * score,
            // The multiplication by the gate adds one rounding error.
            error: (gate * error).next_up() + gate * f32::EPSILON,
            row: part.start as u32 + row,
        }));
    }
    Ok(Some(candidates))
}

/// Runs the exact search for the query with this index.
fn search_exactly(
    generation: &Generation,
    prepared: &PreparedFilter<'_>,
    queries: Queries<'_>,
    query: usize,
) -> Result<Vec<Hit>, MemoryError> {
    let vector = &queries.keys[query * prepared.width..][..prepared.width];
    let batch = QueryBatch::new(generation, prepared, vector, query);
    let mut hits = batch.rank_all(batch.candidates()?)?;
    Ok(hits.pop().unwrap_or_default())
}
