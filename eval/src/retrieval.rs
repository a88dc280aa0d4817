//! Retrieval metrics: recall, success, reciprocal rank, nDCG and average precision, equal to
//! trec_eval.
//!
//! ```
//! use engram_eval::retrieval::{evaluate, parse_queries};
//!
//! let queries = r#"{"id": "q1", "ranked": ["a", "b", "c"], "relevant": ["b", "x"]}
//! {"id": "q2", "ranked": ["d"], "relevant": ["d"]}"#;
//! let queries = parse_queries("queries.jsonl", queries)?;
//! let report = evaluate(&queries, &Default::default(), &Default::default())?;
//! assert_eq!(report.evaluation.detail["recall@5"], 0.75);
//! assert_eq!(report.evaluation.detail["mrr"], 0.75);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;

use engram_textfile::{UniqueIds, json_lines, non_blank_lines, shortened};
use rayon::prelude::*;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::bootstrap::measure_of_mean;
use crate::error::{EvalError, Location, malformed};
use crate::ids::Id;
use crate::items::{Item, mean_items};
use crate::json::{DistinctKeys, duplicate_key_error};
use crate::metric::{MetricInfo, Unit};
use crate::result::{Evaluation, Measure, ReportOptions};
use crate::text;

/// Recall, reported as `recall@k`: the share of the query's relevant entries that are among the
/// first `k` retrieved entries.
pub const RECALL: MetricInfo = MetricInfo::higher("recall", Unit::Fraction);
/// Success, reported as `success@k`: whether any relevant entry is among the first `k` retrieved
/// entries.
pub const SUCCESS: MetricInfo = MetricInfo::higher("success", Unit::Fraction);
/// Mean reciprocal rank.
pub const MRR: MetricInfo = MetricInfo::higher("mrr", Unit::Fraction);
/// Mean average precision.
pub const MAP: MetricInfo = MetricInfo::higher("map", Unit::Fraction);
/// Normalised discounted cumulative gain, reported as `ndcg@k`.
pub const NDCG: MetricInfo = MetricInfo::higher("ndcg", Unit::Fraction);

/// The remedy for files with other content.
const REMEDY: &str = "write one JSON object per query: {\"id\": \"q1\", \"ranked\": [\"d3\", \"d1\"], \
    \"relevant\": {\"d1\": 2}}, with the retrieved ids, best first, and the gains of relevant ids";

/// The remedy for a file of TREC in the place of JSON lines.
const TREC_REMEDY: &str = "give the run as the queries, and the qrels beside it";

/// Number of entries listed with each low-scoring query.
const LISTED_ENTRIES: usize = 10;

/// A query with its retrieved and its relevant entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Query<'a> {
    /// The query id; the line number if the file has none.
    pub id: Cow<'a, str>,
    /// Ids of the retrieved entries, best first.
    pub ranked: Vec<Id<'a>>,
    /// The relevant entries, each with its gain, which is above 0 (1 for a list of ids).
    pub relevant: HashMap<Id<'a>, f64>,
    line: u64,
}

#[derive(Deserialize)]
struct QueryLine<'a> {
    #[serde(borrow)]
    id: Option<Id<'a>>,
    #[serde(borrow)]
    ranked: Vec<Id<'a>>,
    #[serde(borrow)]
    relevant: Relevant<'a>,
}

/// The relevant entries in a file: a list of ids (gain 1), or the gain of each id. Entries with a
/// gain of 0 or less are dropped.
struct Relevant<'a>(HashMap<Id<'a>, f64>);

/// Upper limit on a gain, so that sums of gains stay finite.
const MAX_GAIN: f64 = 1e15;

impl<'de: 'a, 'a> Deserialize<'de> for Relevant<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RelevantVisitor;

        impl<'de> Visitor<'de> for RelevantVisitor {
            type Value = Relevant<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ids, or an object with the gain of each id")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<Relevant<'de>, A::Error> {
                let mut gains = HashMap::new();
                while let Some(id) = ids.next_element::<Id<'de>>()? {
                    match gains.entry(id) {
                        Entry::Vacant(entry) => entry.insert(1.0),
                        Entry::Occupied(entry) => return Err(duplicate_key_error(&entry.key().0)),
                    };
                }
                Ok(Relevant(gains))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Relevant<'de>, A::Error> {
                let DistinctKeys(gains) =
                    DistinctKeys::<f64>::deserialize(MapAccessDeserializer::new(map))?;
                if let Some((id, gain)) = gains.iter().find(|(_, gain)| **gain > MAX_GAIN) {
                    let id = shortened(id, 60);
                    return Err(A::Error::custom(format!(
                        "the gain {gain:e} of `{id}` is above {MAX_GAIN:e}"
                    )));
                }
                let positive = gains.into_iter().filter(|(_, gain)| *gain > 0.0);
                Ok(Relevant(positive.map(|(id, gain)| (Id(id.into()), gain)).collect()))
            }
        }
        deserializer.deserialize_any(RelevantVisitor)
    }
}

/// The numbers of first entries for which metrics are reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Cutoffs {
    /// For recall and success.
    pub recall: Vec<usize>,
    /// For nDCG.
    pub ndcg: Vec<usize>,
}

impl Default for Cutoffs {
    fn default() -> Self {
        Self { recall: vec![1, 5, 10, 20, 100], ndcg: vec![10] }
    }
}

/// All metrics of a retrieval evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetrievalReport {
    /// The primary metric is recall at the largest cut-off up to 10, or at the smallest cut-off if
    /// all exceed 10. The other metrics follow.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Warnings about the scores; empty if there are none.
    pub warnings: Vec<String>,
    /// The primary metric of each query; empty if [`ReportOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
    /// The queries with the lowest primary metric, worst first, without those that score 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WorstQuery>,
}

/// A query with a low score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorstQuery {
    /// The query id.
    pub id: String,
    /// The query's primary metric.
    pub value: f64,
    /// The rank of the first relevant entry retrieved, starting at 1; `None` if none was retrieved.
    pub first_rank: Option<usize>,
    /// Number of relevant entries.
    pub relevant: usize,
    /// Ids of the first ten retrieved entries, and whether each is relevant.
    pub retrieved: Vec<(String, bool)>,
    /// Ids of relevant entries that were not retrieved; at most ten, sorted.
    pub missed: Vec<String>,
    /// Number of all relevant entries that were not retrieved.
    pub missed_total: usize,
}

/// Reads JSON lines `{"id", "ranked": [best first], "relevant": [ids] or {id: gain}}`.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for a duplicate id, and for an entry listed twice as
/// retrieved or as relevant
pub fn parse_queries<'a>(file: &str, text: &'a str) -> Result<Vec<Query<'a>>, EvalError> {
    if let Some((line, first)) = non_blank_lines(text).next()
        && let Some(kind) = trec_kind(first)
    {
        return Err(malformed(file, line, format!("looks like {kind}"), TREC_REMEDY));
    }
    let queries = json_lines(file, text, REMEDY, |line, row: QueryLine<'a>| {
        let id = row.id.map_or_else(|| line.to_string().into(), |id| id.0);
        Query { id, ranked: row.ranked, relevant: row.relevant.0, line }
    })?;
    let queries: Vec<Query<'a>> = queries.into_iter().flatten().collect();
    if queries.is_empty() {
        return Err(malformed(file, None, "has no queries", "give one JSON object per line"));
    }
    let mut ids = UniqueIds::with_capacity(queries.len());
    for query in &queries {
        ids.add(&*query.id, Location::new(file, query.line))?;
        let mut retrieved = HashSet::with_capacity(query.ranked.len());
        if let Some(duplicate) = query.ranked.iter().find(|id| !retrieved.insert(*id)) {
            let reason = format!("retrieves `{}` twice", shortened(&duplicate.0, 60));
            return Err(malformed(file, query.line, reason, "keep the better of its ranks"));
        }
    }
    Ok(queries)
}

/// The kind of TREC's files that has such lines; `None` for another line.
fn trec_kind(line: &str) -> Option<&'static str> {
    let is_number = |field: &str| field.parse::<f64>().is_ok();
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, _, _, rank, score, _] if is_number(rank) && is_number(score) => {
            Some("a TREC run: query, Q0, entry, rank, score, name")
        }
        [_, _, _, gain] if is_number(gain) => Some("TREC qrels: query, 0, entry, gain"),
        _ => None,
    }
}

/// Reads a TREC run (`query Q0 entry rank score name`) and its qrels (`query 0 entry gain`); the
/// names of the files are for messages. Returns the queries that are in both files, in the order of
/// the run, and warnings about the others. As in trec_eval, entries are ranked by their scores, not
/// by their ranks, and entries of equal score by their ids, the last first.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for an entry that a query has twice
pub fn parse_trec(
    [run_file, run]: [&str; 2],
    [qrels_file, qrels]: [&str; 2],
) -> Result<(Vec<Query<'static>>, Vec<String>), EvalError> {
    type Lists<'t> = Vec<(&'t str, u64, HashMap<&'t str, f64>)>;
    fn read<'t, const N: usize>(
        file: &str,
        text: &'t str,
        (value, remedy): (usize, &'static str),
    ) -> Result<Lists<'t>, EvalError> {
        let (mut lists, mut index_of) = (Lists::new(), HashMap::new());
        for (line, row) in non_blank_lines(text) {
            let fields: Vec<&str> = row.split_whitespace().collect();
            let number = fields.get(value).and_then(|field| field.parse().ok());
            let number = number.filter(|number: &f64| number.abs() <= MAX_GAIN);
            let Some(number) = number.filter(|_| fields.len() == N) else {
                let reason = format!("has not the {N} fields of this format");
                return Err(malformed(file, line, reason, remedy));
            };
            let index = *index_of.entry(fields[0]).or_insert(lists.len());
            if index == lists.len() {
                lists.push((fields[0], line, HashMap::new()));
            }
            if lists[index].2.insert(fields[2], number).is_some() {
                let [query, entry] = [fields[0], fields[2]].map(|id| shortened(id, 60));
                let reason = format!("the query `{query}` has the entry `{entry}` twice");
                return Err(malformed(file, line, reason, "keep one of the two lines"));
            }
        }
        Ok(lists)
    }
    let run = read::<6>(run_file, run, (4, "write `query Q0 entry rank score name`"))?;
    let qrels = read::<4>(qrels_file, qrels, (3, "write `query 0 entry gain`"))?;
    let (in_run, judged) = (run.len(), qrels.len());
    let mut gains: HashMap<&str, HashMap<&str, f64>> =
        qrels.into_iter().map(|(id, _, gains)| (id, gains)).collect();
    let mut queries = Vec::new();
    for (id, line, scores) in run {
        let Some(gains) = gains.remove(id) else { continue };
        let mut ranked: Vec<(&str, f64)> = scores.into_iter().collect();
        // trec_eval keeps scores as f32.
        ranked.sort_by(|(a, a_score), (b, b_score)| {
            (*b_score as f32).total_cmp(&(*a_score as f32)).then(b.cmp(a))
        });
        let owned = |id: &str| Id(id.to_owned().into());
        let relevant = gains.into_iter().filter(|(_, gain)| *gain > 0.0);
        queries.push(Query {
            id: id.to_owned().into(),
            ranked: ranked.into_iter().map(|(id, _)| owned(id)).collect(),
            relevant: relevant.map(|(id, gain)| (owned(id), gain)).collect(),
            line,
        });
    }
    if queries.is_empty() {
        let remedy = "give the qrels of the same queries";
        return Err(malformed(run_file, None, "has no query of the qrels", remedy));
    }
    let mut warnings = Vec::new();
    for (count, [file, other]) in [
        (in_run - queries.len(), [run_file, qrels_file]),
        (judged - queries.len(), [qrels_file, run_file]),
    ] {
        if count > 0 {
            let what = format!("queries of {file} that are not in {other} and do not count");
            warnings.push(format!("{what}: {count}"));
        }
    }
    Ok((queries, warnings))
}

/// The ranks and gains of the relevant entries of a query.
struct Ranking {
    /// Rank (starting at 1) and gain of each relevant entry retrieved, best first.
    hits: Vec<(usize, f64)>,
    /// Gains of all relevant entries, largest first.
    ideal_gains: Vec<f64>,
}

impl Ranking {
    fn new(query: &Query<'_>) -> Self {
        let gain = |(rank, id): (usize, &Id<'_>)| Some((rank + 1, *query.relevant.get(id)?));
        let mut ideal_gains: Vec<f64> = query.relevant.values().copied().collect();
        ideal_gains.sort_by(|a, b| b.total_cmp(a));
        Self { hits: query.ranked.iter().enumerate().filter_map(gain).collect(), ideal_gains }
    }

    fn hit_count(&self, cutoff: usize) -> usize {
        self.hits.iter().take_while(|(rank, _)| *rank <= cutoff).count()
    }

    /// The share of the relevant entries that are among the first `cutoff` retrieved entries; 0 if
    /// no entry is relevant.
    fn recall(&self, cutoff: usize) -> f64 {
        self.hit_count(cutoff) as f64 / self.ideal_gains.len().max(1) as f64
    }

    /// 1 if any relevant entry is among the first `cutoff`, otherwise 0.
    fn success(&self, cutoff: usize) -> f64 {
        f64::from(u8::from(self.hit_count(cutoff) > 0))
    }

    fn reciprocal_rank(&self) -> f64 {
        self.hits.first().map_or(0.0, |(rank, _)| 1.0 / *rank as f64)
    }

    fn average_precision(&self) -> f64 {
        let precisions = self.hits.iter().enumerate();
        // Not `sum`, which gives −0 for no numbers.
        let sum = precisions.fold(0.0, |sum, (i, (rank, _))| sum + (i + 1) as f64 / *rank as f64);
        sum / self.ideal_gains.len().max(1) as f64
    }

    /// The sum of gains divided by `log2(1 + rank)`, relative to the ideal ranking.
    fn ndcg(&self, cutoff: usize) -> f64 {
        let discounted = |(rank, gain): (usize, f64)| gain / (1.0 + rank as f64).log2();
        let hits = self.hits.iter().take_while(|(rank, _)| *rank <= cutoff);
        let ideal = (1..=cutoff).zip(&self.ideal_gains).map(|(rank, gain)| (rank, *gain));
        let ideal_sum: f64 = ideal.map(discounted).sum();
        if ideal_sum == 0.0 {
            0.0
        } else {
            hits.copied().map(discounted).fold(0.0, |sum, gain| sum + gain) / ideal_sum
        }
    }
}

/// Computes the metrics; each is the mean over all queries. A query without relevant entries scores
/// 0.
///
/// # Errors
/// [`EvalError::InvalidOption`], also without cut-offs or for a cut-off of 0;
/// [`EvalError::NothingToEvaluate`] without queries
pub fn evaluate(
    queries: &[Query<'_>],
    cutoffs: &Cutoffs,
    options: &ReportOptions,
) -> Result<RetrievalReport, EvalError> {
    options.bootstrap.validate()?;
    if queries.is_empty() {
        return Err(EvalError::NothingToEvaluate { items: "queries" });
    }
    let all_cutoffs = [&cutoffs.recall[..], &cutoffs.ndcg].concat();
    if cutoffs.recall.is_empty() || all_cutoffs.contains(&0) {
        return Err(EvalError::InvalidOption {
            option: "k",
            found: format!("{all_cutoffs:?}"),
            expected: "at least one cut-off, each at least 1",
        });
    }
    let rankings: Vec<Ranking> = queries.par_iter().map(Ranking::new).collect();
    let primary_cutoff = cutoffs.recall.iter().filter(|k| **k <= 10).max();
    let primary_cutoff = primary_cutoff.or(cutoffs.recall.iter().min()).copied().unwrap_or(1);
    let mut scores_by_metric: Vec<(MetricInfo, Vec<f64>)> = Vec::new();
    let mut add_metric = |info: MetricInfo, metric: &dyn Fn(&Ranking) -> f64| {
        scores_by_metric.push((info, rankings.iter().map(metric).collect()));
    };
    let at_cutoff = |info: MetricInfo, k: usize| info.renamed(format!("{}@{k}", info.name));
    add_metric(at_cutoff(RECALL, primary_cutoff), &|ranking| ranking.recall(primary_cutoff));
    let recall_cutoffs = distinct(&cutoffs.recall);
    for k in recall_cutoffs.iter().filter(|k| **k != primary_cutoff) {
        add_metric(at_cutoff(RECALL, *k), &|ranking| ranking.recall(*k));
    }
    for k in &recall_cutoffs {
        add_metric(at_cutoff(SUCCESS, *k), &|ranking| ranking.success(*k));
    }
    add_metric(MRR, &Ranking::reciprocal_rank);
    add_metric(MAP, &Ranking::average_precision);
    for k in distinct(&cutoffs.ndcg) {
        add_metric(at_cutoff(NDCG, k), &|ranking| ranking.ndcg(k));
    }
    let measure = |(info, values): &(MetricInfo, Vec<f64>)| {
        measure_of_mean(info, "query", values, &options.bootstrap)
    };
    let mut measures: Vec<Measure> = scores_by_metric.iter().map(measure).collect();
    let primary = measures.remove(0);
    let (info, values) = &scores_by_metric[0];
    let items = mean_items(options, info, "none", queries.iter().map(|query| &query.id), values);
    let without_relevant = rankings.iter().filter(|ranking| ranking.ideal_gains.is_empty()).count();
    let warnings = match without_relevant {
        0 => Vec::new(),
        n => vec![format!("{n} queries have no relevant entry and score 0")],
    };
    let evaluation = Evaluation::new(primary, measures, Vec::new(), options.sources.clone());
    let worst = worst_queries(queries, &rankings, values, options.worst);
    Ok(RetrievalReport { evaluation, warnings, items, worst })
}

/// The distinct cut-offs, in their original order.
fn distinct(cutoffs: &[usize]) -> Vec<usize> {
    let mut seen = HashSet::new();
    cutoffs.iter().copied().filter(|cutoff| seen.insert(*cutoff)).collect()
}

/// The queries with the lowest scores, without those that score 1. Of equal scores, the query with
/// the worse rank of the first relevant entry is first; then file order decides.
fn worst_queries(
    queries: &[Query<'_>],
    rankings: &[Ranking],
    values: &[f64],
    count: usize,
) -> Vec<WorstQuery> {
    let mut order: Vec<usize> = (0..queries.len()).filter(|query| values[*query] < 1.0).collect();
    order.sort_by(|a, b| {
        let reciprocal = |query: usize| rankings[query].reciprocal_rank();
        let by_rank = reciprocal(*a).total_cmp(&reciprocal(*b));
        values[*a].total_cmp(&values[*b]).then(by_rank)
    });
    order.truncate(count);
    let worst_query = |index: usize| {
        let (query, ranking) = (&queries[index], &rankings[index]);
        let retrieved: HashSet<&Id<'_>> = query.ranked.iter().collect();
        let missed = query.relevant.keys().filter(|id| !retrieved.contains(id));
        let mut missed: Vec<String> = missed.map(|id| id.0.to_string()).collect();
        missed.sort_unstable();
        let missed_total = missed.len();
        missed.truncate(LISTED_ENTRIES);
        let with_relevance = |id: &Id<'_>| (id.0.to_string(), query.relevant.contains_key(id));
        WorstQuery {
            id: query.id.to_string(),
            value: values[index],
            first_rank: ranking.hits.first().map(|(rank, _)| *rank),
            relevant: ranking.ideal_gains.len(),
            retrieved: query.ranked.iter().take(LISTED_ENTRIES).map(with_relevance).collect(),
            missed,
            missed_total,
        }
    };
    order.into_iter().map(worst_query).collect()
}

impl RetrievalReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        let heading = format!("Retrieval, {} queries", self.evaluation.primary.n);
        text::report(&heading, &self.evaluation, &self.warnings, [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str, cutoffs: &Cutoffs) -> RetrievalReport {
        evaluate(&parse_queries("q", text).unwrap(), cutoffs, &Default::default()).unwrap()
    }

    #[test]
    fn gains_order_the_ideal_ranking() {
        let text = r#"{"id": 1, "ranked": ["a", "b"], "relevant": {"b": 3, "c": 1, "a": 0}}"#;
        let detail = report(text, &Cutoffs::default()).evaluation.detail;
        let log3 = 3f64.log2();
        let expected = (3.0 / log3) / (3.0 + 1.0 / log3);
        assert!((detail["ndcg@10"].as_f64().unwrap() - expected).abs() < 1e-15);
        assert_eq!(detail["recall@10"], 0.5);
        assert_eq!(detail["success@1"], 0.0);
        assert_eq!(detail["map"], 0.25);
    }

    #[test]
    fn errors_name_the_line_of_an_invalid_query() {
        let line = r#"{"id": 1, "ranked": [], "relevant": []}"#;
        let relevant = |relevant: &str| format!(r#"{{"ranked": [], "relevant": {relevant}}}"#);
        for (text, expected) in [
            (r#"{"id": 1, "ranked": ["a", "a"], "relevant": []}"#, "q:1: retrieves `a` twice"),
            (&*format!("{line}\n{line}"), "q:2: id `1` was already given"),
            ("", "q: has no queries"),
            ("{}", "q:1: is not as expected: missing field `ranked`"),
            (&*relevant(r#"["a", "a"]"#), "q:1: is not as expected: `a` appears twice"),
            (&*relevant(r#"{"a": 1, "a": 2}"#), "`a` appears twice"),
            (&*relevant(r#"{"a": 1e300}"#), "the gain 1e300 of `a` is above 1e15"),
            (&*relevant("7"), "expected a list of ids, or an object with the gain"),
            ("q1 Q0 d1 1 1.0 sys\n", "q:1: looks like a TREC run: query, Q0, entry, rank"),
            ("q1 0 d3 1\n", "q:1: looks like TREC qrels"),
            ("query-id\tcorpus-id\n", "begins with `query-id corpus-id`; write one JSON object"),
            ("[1, [], []]", "invalid type: sequence, expected an object"),
        ] {
            let error = parse_queries("q", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(evaluate(&[], &Cutoffs::default(), &Default::default()).is_err());
        let zero = Cutoffs { recall: vec![0], ..Cutoffs::default() };
        let queries = parse_queries("q", line).unwrap();
        assert!(evaluate(&queries, &zero, &Default::default()).is_err());
        let repeated = Cutoffs { recall: vec![5, 1, 5], ndcg: vec![3, 3] };
        let measures = 1 + report(line, &repeated).evaluation.secondary.len();
        assert_eq!(
            measures,
            "recall@5 recall@1 success@5 success@1 mrr map ndcg@3".split(' ').count()
        );
        let report_with_warning = report(line, &Cutoffs::default());
        assert_eq!(report_with_warning.warnings, ["1 queries have no relevant entry and score 0"]);
    }

    #[test]
    fn a_trec_run_is_ranked_by_score_and_joined_with_its_qrels() {
        let run = "q1 Q0 d1 1 1.0 sys\nq1 Q0 d3 2 0.5 sys\nq1\tQ0\td2\t9\t0.5\tsys\n\
                   q2 Q0 d1 1 1e-9 sys\nq2 Q0 d2 2 2 sys\nq9 Q0 d1 1 1 sys\n";
        let qrels = "q1 0 d2 2\nq1 0 d1 0\nq2 0 d1 1\nq2 0 d2 -1\nq3 0 d1 1\n";
        let parsed = |run, qrels| parse_trec(["r", run], ["q", qrels]).map_err(|e| e.to_string());
        let (queries, warnings) = parsed(run, qrels).unwrap();
        let ranked = |query: &Query<'_>| {
            query.ranked.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(queries.iter().map(ranked).collect::<Vec<_>>(), ["d1 d3 d2", "d2 d1"]);
        let of =
            |[a, b]: [&str; 2]| format!("queries of {a} that are not in {b} and do not count: 1");
        assert_eq!(warnings, [of(["r", "q"]), of(["q", "r"])]);
        let report = evaluate(&queries, &Default::default(), &Default::default()).unwrap();
        let mrr = report.evaluation.detail["mrr"].as_f64().unwrap();
        assert!((mrr - (1.0 / 3.0 + 0.5) / 2.0).abs() < 1e-12, "{mrr}");
        for (run, qrels, expected) in [
            ("q1 Q0 d1 1 x sys\n", qrels, "r:1: has not the 6 fields"),
            (run, "q1 0 d1\n", "q:1: has not the 4 fields of this format; write `query 0 entry"),
            ("q1 Q0 d1 1 1 s\nq1 Q0 d1 2 0 s\n", qrels, "r:2: the query `q1` has the entry `d1`"),
            ("q8 Q0 d1 1 1 s\n", qrels, "r: has no query of the qrels"),
        ] {
            let error = parsed(run, qrels).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
