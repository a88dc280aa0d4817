//! `engram memory search`: finds the entries with the keys nearest to queries.

use engram_data::messages::counted;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use clap::{ArgGroup, Args, ValueEnum};
use engram_infer::reveal::answerer::recording;
use engram_memory::rows::with_location;
use engram_memory::search::{Filter, Gates, Hit, Queries, SearchResults};
use engram_memory::vectors::{VectorFile, npy_bytes};
use engram_memory::{Description, MemoryError, Method, Row, Snapshot};
use serde::Serialize;

use super::super::paths::{InputFile, InputFolder, InputPath, OutputFile};
use super::super::{Outcome, output};
use super::conditions::WhereOptions;
use super::location::{self, ServerOptions};
use super::query::QueryOptions;
use super::retrieval::{Chosen, Ranks, RetrievalOptions};

/// Maximum number of queries in the text output.
const SHOWN_QUERIES: usize = 10;
/// Maximum number of characters of an entry's text in the text output.
const SHOWN_CHARACTERS: usize = 70;
/// Maximum number of queries that are also searched exactly, to measure the recall of a graph.
const MEASURED_QUERIES: usize = 100;

/// Find the entries with the keys nearest to queries.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("search").args(["queries", "text", "image", "texts"])
    .required(true).multiple(true))]
#[command(after_help = "\
Examples:
  engram memory search memory --queries queries.npy -k 10
  engram memory search memory --queries queries.npy -k 100 --out ids.npy --scores scores.npy
  engram memory search memory --queries queries.npy --source wit --source kg --json
  engram memory search memory --queries queries.npy --exclude documents.txt --gates gates.npy
  engram memory search memory --text \"a bridge at night\"
  engram memory search memory --image photograph.jpg --model clip
  engram memory search memory --text \"a bridge at night\" --mmr 0.5
  engram memory search memory --text \"a bridge at night\" --min-score 0.4
  engram memory search memory --text \"error E0382\" --hybrid
  engram memory search memory --text \"a bridge\" --where 'source=wit,year>=2000'
  engram memory search 'postgres://ann@db.example/wiki?memory=birds' --text \"a red beak\"

A score is the cosine of query and key, or their dot product in a memory built with --no-normalize.
--gates multiplies scores by the gate of the entry's source. Entries with equal scores are sorted by
id. The .npy files have k columns, or one per entry in a smaller memory. If a filter leaves fewer
entries, ids.npy is filled with -1 and scores.npy with -inf.

--mmr lists entries in the order of choice, with the scores of the search. Its LAMBDA weighs the
score against the largest similarity to an entry listed before. With --hybrid, a score is
1 / (60 + rank), summed over the lists of keys and of texts. The JSON has an entry's rank and score in
both lists.

With --index graph, up to 100 queries are also searched exactly. The recall and both speeds are
printed to standard error and in the JSON.")]
pub struct Search {
    /// Folder or address of the memory
    folder: InputFolder,
    #[command(flatten)]
    server: ServerOptions,
    /// With a memory on several servers, skip unreachable servers, and name them
    #[arg(long, hide = !cfg!(feature = "postgres"))]
    partial: bool,
    /// Query vectors: .npy or safetensors, [queries, width]
    #[arg(long, value_name = "FILE")]
    queries: Option<InputPath>,
    #[command(flatten)]
    query: QueryOptions,
    #[command(flatten)]
    retrieval: RetrievalOptions,
    /// Number of entries to find for each query
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Search method
    #[arg(long, value_enum, default_value = "exact")]
    index: IndexName,
    /// Number of candidates of `--index graph`; more give higher recall and take longer
    #[arg(long, value_name = "N", default_value_t = Method::CANDIDATES)]
    ef_search: usize,
    /// Search only this source (repeatable)
    #[arg(long = "source", value_name = "NAME")]
    sources: Vec<String>,
    #[command(flatten)]
    conditions: WhereOptions,
    /// File with one line per query: tab-separated names of documents to exclude; empty for none
    #[arg(long, value_name = "FILE")]
    exclude: Option<InputFile>,
    /// Weights of the sources, [queries, sources], in the order of `engram memory info`
    #[arg(long, value_name = "FILE")]
    gates: Option<InputPath>,
    /// Write the ids to a .npy file: i64, [queries, k], best first
    #[arg(long, value_name = "FILE")]
    out: Option<OutputFile>,
    /// Write the scores to a .npy file: f32, [queries, k]
    #[arg(long, value_name = "FILE")]
    scores: Option<OutputFile>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum IndexName {
    /// Compare with all keys
    Exact,
    /// Approximate search in a graph from `engram memory index`; faster on large memories
    Graph,
}

/// The JSON output.
#[derive(Serialize)]
struct Report {
    generation: u64,
    k: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<GraphMetrics>,
    /// The servers whose entries are missing from the results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
    queries: Vec<QueryHits>,
}

/// The recall and speed of a graph search.
#[derive(Debug, Clone, Copy, Serialize)]
struct GraphMetrics {
    /// The share of the exact results that the graph search found, over `measured_queries` queries.
    recall: f64,
    measured_queries: usize,
    queries_per_second: f64,
    exact_queries_per_second: f64,
}

/// The entries found for a query.
#[derive(Serialize)]
struct QueryHits {
    query: usize,
    hits: Vec<RankedHit>,
}

/// An entry, with its ranks if two lists were fused.
#[derive(Serialize)]
struct RankedHit {
    #[serde(flatten)]
    hit: ShownHit,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<Ranks>,
}

/// An entry in the output.
#[derive(Serialize)]
pub(in crate::cli) struct ShownHit {
    pub(in crate::cli) id: i64,
    pub(in crate::cli) score: f32,
    pub(in crate::cli) source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) document: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) recording: Option<String>,
    pub(in crate::cli) text: String,
}

impl Search {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let snapshot = location::open(&self.folder, self.server, self.partial)?.snapshot();
        let (snapshot, memory) = (snapshot.as_ref(), snapshot.description());
        let (queries, texts) = match &self.queries {
            None => {
                let queries = self.query.queries()?;
                self.retrieval.check_queries(&queries)?;
                (self.query.encode(&queries, memory)?, queries)
            }
            Some(path) => {
                let (queries, found) = read_vectors(path, "queries")?;
                let expected = memory.width;
                if found != expected {
                    let what = format!("{}: queries", path.display());
                    return Err(MemoryError::Width { what, expected, found }.into());
                }
                (queries, Vec::new())
            }
        };
        let filter = self.filter(snapshot, queries.len() / memory.width)?;
        let k = self.k.min(memory.entries.max(1));
        let candidates = self.retrieval.candidates(self.k).min(memory.entries.max(1));
        let queries = Queries { keys: &queries, k: candidates };
        let result = match self.index {
            IndexName::Exact => {
                let results = snapshot.search(Method::Exact, queries, &filter);
                results.map(|results| (results, None))
            }
            IndexName::Graph => self.search_graph(snapshot, queries, &filter),
        };
        let (found, graph) =
            result.map_err(|error| with_location(error, self.queries.as_deref(), None, None))?;
        let chosen = self.retrieval.choose(snapshot, found, k, &texts, &filter)?;
        let results = &chosen.results;
        let missing = snapshot.missing();
        for server in &missing {
            output::warn(&format!(
                "{server}: cannot be reached; its entries are missing from the results"
            ));
        }
        if let Some(path) = &self.out {
            output::write_atomic(path, &npy_bytes(&matrix(results, k, |hit| hit.id, -1), k)?)?;
        }
        if let Some(path) = &self.scores {
            let scores = matrix(results, k, |hit| hit.score, f32::NEG_INFINITY);
            output::write_atomic(path, &npy_bytes(&scores, k)?)?;
        }
        if self.json {
            let queries = query_hits(snapshot, &chosen, usize::MAX)?;
            let report = Report { generation: results.generation, k, graph, missing, queries };
            output::print_json(&report)?;
        } else if self.out.is_none() && self.scores.is_none() {
            output::print(
                &self.to_text(&query_hits(snapshot, &chosen, SHOWN_QUERIES)?, results.hits.len()),
            )?;
        }
        Ok(Outcome::Done)
    }

    /// Searches the graph. Also searches some of the queries exactly, to measure the recall.
    fn search_graph(
        &self,
        snapshot: &dyn Snapshot,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<(SearchResults, Option<GraphMetrics>), MemoryError> {
        let (method, memory) =
            (Method::Graph { candidates: self.ef_search }, snapshot.description());
        if !memory.has_graph {
            let folder = self.folder.display();
            let note = format!(
                "warning: {folder} has no graph, so all keys are searched; \
                 build one with `engram memory index {folder}`"
            );
            output::warn(&note);
            return Ok((snapshot.search(method, queries, filter)?, None));
        }
        let start = Instant::now();
        let results = snapshot.search(method, queries, filter)?;
        let seconds = start.elapsed().as_secs_f64();
        let query_count = results.hits.len();
        let measured: Vec<usize> =
            (0..query_count).step_by(query_count.div_ceil(MEASURED_QUERIES).max(1)).collect();
        let (keys, filter) = select_queries(&measured, memory, queries, filter);
        let start = Instant::now();
        let queries = Queries { keys: &keys, ..queries };
        let exact = snapshot.search(Method::Exact, queries, &filter)?;
        let exact_seconds = start.elapsed().as_secs_f64();
        let hits = measured.iter().map(|query| results.hits[*query].clone()).collect();
        let metrics = GraphMetrics {
            recall: SearchResults { generation: results.generation, hits }.recall(&exact),
            measured_queries: measured.len(),
            queries_per_second: query_count as f64 / seconds,
            exact_queries_per_second: measured.len() as f64 / exact_seconds,
        };
        let note = format!(
            "recall@{} {:.4} against exact search, on {}; {:.0} queries/s, exact search \
             {:.0} queries/s",
            queries.k,
            metrics.recall,
            counted(metrics.measured_queries, "query"),
            metrics.queries_per_second,
            metrics.exact_queries_per_second,
        );
        output::note(&note);
        Ok((results, Some(metrics)))
    }

    /// Reads the filter options for this number of queries.
    fn filter(&self, snapshot: &dyn Snapshot, queries: usize) -> anyhow::Result<Filter> {
        let rows = self.conditions.rows(snapshot)?;
        let ids = rows.map(|rows| rows.into_iter().map(|(_, id)| id).collect());
        let mut filter = Filter { ids, ..Filter::default() };
        if !self.sources.is_empty() {
            filter.sources = Some(self.sources.clone());
        }
        if let Some(path) = &self.exclude {
            filter.excluded_documents = read_excluded_documents(path, queries)?;
        }
        if let Some(path) = &self.gates {
            filter.gates = Some(read_gates(path, queries, &snapshot.description().sources)?);
        }
        Ok(filter)
    }

    /// The results as text; `queries` is the number of all queries, listed or not.
    fn to_text(&self, listed: &[QueryHits], queries: usize) -> String {
        let mut text = String::new();
        for QueryHits { query, hits } in listed {
            text.push_str(&format!("query {query}\n"));
            for (rank, RankedHit { hit, ranks }) in (1..).zip(hits) {
                let label = match (&hit.image, hit.text.is_empty()) {
                    (Some(image), true) => image,
                    _ => &hit.text,
                };
                // Line ends and terminal control characters would break the table.
                let visible = |c: char| if c.is_control() { ' ' } else { c };
                let shown_text: String =
                    label.chars().take(SHOWN_CHARACTERS).map(visible).collect();
                let (id, score, source) = (hit.id, hit.score, &hit.source);
                let ranks = ranks.map_or(String::new(), |ranks| format!("{}  ", ranks.to_text()));
                text.push_str(&format!(
                    "{rank:>5}  {score:>9.6}  {id:>9}  {source}  {ranks}{shown_text}\n"
                ));
            }
        }
        if queries > listed.len() {
            text.push_str(&format!(
                "{}; --json prints all, --out writes all\n",
                counted(queries - listed.len(), "more query")
            ));
        }
        text
    }
}

/// A matrix with one row per query and one column per rank; `filler` fills empty ranks.
fn matrix<T: Copy>(
    results: &SearchResults,
    k: usize,
    value: impl Fn(&Hit) -> T,
    filler: T,
) -> Vec<T> {
    let mut matrix = Vec::with_capacity(results.hits.len() * k);
    for hits in &results.hits {
        matrix.extend(hits.iter().map(&value));
        matrix.extend(std::iter::repeat_n(filler, k - hits.len()));
    }
    matrix
}

/// Selects some queries and their part of the filter.
fn select_queries(
    selected: &[usize],
    memory: &Description,
    queries: Queries<'_>,
    filter: &Filter,
) -> (Vec<f32>, Filter) {
    let rows = |vectors: &[f32], width: usize| -> Vec<f32> {
        selected.iter().flat_map(|query| &vectors[query * width..][..width]).copied().collect()
    };
    let excluded = |query: &usize| filter.excluded_documents.get(*query).cloned();
    let filter = Filter {
        sources: filter.sources.clone(),
        ids: filter.ids.clone(),
        excluded_documents: selected.iter().filter_map(excluded).collect(),
        gates: filter.gates.as_ref().map(|Gates { sources, weights }| Gates {
            sources: sources.clone(),
            weights: rows(weights, sources.len()),
        }),
    };
    (rows(queries.keys, memory.width), filter)
}

/// Reads the documents to exclude, one line per query.
fn read_excluded_documents(path: &Path, queries: usize) -> anyhow::Result<Vec<Vec<String>>> {
    let text = engram_durable::read_input_text(path)
        .with_context(|| format!("{}: cannot be read as text", path.display()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let documents =
        |line: &str| line.split('\t').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let excluded: Vec<Vec<String>> = text.lines().map(documents).collect();
    if excluded.len() != queries {
        let reason =
            format!("has {} for {}", counted(excluded.len(), "line"), counted(queries, "query"));
        let remedy = "write one line per query, an empty line to exclude nothing";
        return Err(malformed(path, reason, remedy).into());
    }
    Ok(excluded)
}

/// Reads the weights of these sources, `[queries, sources]`.
fn read_gates(path: &Path, queries: usize, sources: &[String]) -> Result<Gates, MemoryError> {
    let (weights, width) = read_vectors(path, "gates")?;
    let rows = weights.len() / width;
    if (rows, width) != (queries, sources.len()) {
        let reason = format!(
            "has the shape [{rows}, {width}], but queries and sources need [{queries}, {}]",
            sources.len()
        );
        let remedy =
            "give one row per query, with the sources in the order of `engram memory info`";
        return Err(malformed(path, reason, remedy));
    }
    if let Some(index) = weights.iter().position(|gate| !gate.is_finite()) {
        let reason = format!("row {} has a NaN or infinite weight", index / width);
        return Err(malformed(path, reason, "give finite weights, for example from a softmax"));
    }
    Ok(Gates { sources: sources.to_vec(), weights })
}

fn malformed(path: &Path, reason: String, remedy: &'static str) -> MemoryError {
    MemoryError::Malformed { file: path.to_owned(), line: None, reason, remedy }
}

/// Reads all vectors of a file. Returns them with their width.
fn read_vectors(path: &Path, name: &str) -> Result<(Vec<f32>, usize), MemoryError> {
    let mut file = VectorFile::open(path, name)?;
    let (rows, width) = (file.shape()[0], file.row_len());
    Ok((file.read_rows(rows)?, width))
}

impl ShownHit {
    /// The entry of a row.
    pub(in crate::cli) fn of(
        snapshot: &dyn Snapshot,
        row: Row,
        score: f32,
    ) -> Result<Self, MemoryError> {
        let entry = snapshot.entry(row)?;
        Ok(Self {
            image: entry.image().map(str::to_owned),
            recording: recording(&entry).map(str::to_owned),
            text: entry.text(),
            id: entry.id,
            score,
            source: entry.source,
            document: entry.document,
        })
    }
}

/// The entries chosen for the first `max_queries` queries.
fn query_hits(
    snapshot: &dyn Snapshot,
    chosen: &Chosen,
    max_queries: usize,
) -> Result<Vec<QueryHits>, MemoryError> {
    let hits = |(query, hits): (usize, &Vec<Hit>)| {
        let ranks = chosen.ranks.as_ref().map(|ranks| &ranks[query]);
        let hit = |(place, hit): (usize, &Hit)| {
            let shown = ShownHit::of(snapshot, hit.row, hit.score)?;
            Ok(RankedHit { hit: shown, ranks: ranks.map(|ranks| ranks[place]) })
        };
        let hits = hits.iter().enumerate().map(hit).collect::<Result<_, MemoryError>>()?;
        Ok(QueryHits { query, hits })
    };
    chosen.results.hits.iter().take(max_queries).enumerate().map(hits).collect()
}
