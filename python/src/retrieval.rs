//! Retrieval measures of each query, equal to trec_eval.

use std::collections::HashMap;

use pyo3::exceptions::{PyNotImplementedError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyString};
use rayon::prelude::*;

use crate::process::detached;

/// The lowest average precision in the geometric mean.
const MIN_PRECISION: f64 = 1e-5;

/// A measure of a ranking. Most measures ignore the cut-off.
type Measure = fn(&Ranking, f64) -> f64;

/// Measures with their names in trec_eval; `iprec_at_recall` has a level of recall as its cut-off.
const MEASURES: [(&str, Measure); 21] = [
    ("runid", |_, _| 0.0),
    ("num_q", |_, _| 1.0),
    ("num_ret", |ranking, _| ranking.relevances.len() as f64),
    ("num_rel", |ranking, _| ranking.relevant as f64),
    ("num_rel_ret", |ranking, _| ranking.hits.len() as f64),
    ("map", |ranking, _| ranking.average_precision(f64::INFINITY)),
    ("gm_map", |ranking, _| ranking.average_precision(f64::INFINITY).max(MIN_PRECISION).ln()),
    ("Rprec", |ranking, _| ranking.recall(ranking.relevant as f64)),
    ("bpref", |ranking, _| ranking.binary_preference()),
    ("recip_rank", |ranking, _| ranking.hits.first().map_or(0.0, |rank| 1.0 / *rank as f64)),
    ("iprec_at_recall", Ranking::interpolated_precision),
    ("P", |ranking, cutoff| ratio(ranking.hits_within(cutoff), cutoff)),
    ("recall", Ranking::recall),
    ("11pt_avg", |ranking, _| {
        (0..=10).map(|level| ranking.interpolated_precision(level as f64 / 10.0)).sum::<f64>()
            / 11.0
    }),
    ("ndcg", |ranking, _| ranking.ndcg(f64::INFINITY)),
    ("ndcg_cut", Ranking::ndcg),
    ("map_cut", Ranking::average_precision),
    ("success", |ranking, cutoff| ranking.hits_within(cutoff).min(1.0)),
    ("set_P", |ranking, _| ranking.precision()),
    ("set_recall", |ranking, _| ranking.recall(f64::INFINITY)),
    ("set_F", |ranking, _| {
        let (precision, recall) = (ranking.precision(), ranking.recall(f64::INFINITY));
        ratio(2.0 * precision * recall, precision + recall)
    }),
];

/// A ranking of documents with the relevance of each.
struct Ranking {
    /// The relevance of each retrieved document; -1 if not judged.
    relevances: Vec<i64>,
    /// Ranks of the relevant documents, from 1 on.
    hits: Vec<usize>,
    /// All positive relevances, best first.
    ideal: Vec<i64>,
    /// Number of relevant documents and of documents judged as not relevant.
    relevant: usize,
    irrelevant: usize,
    level: i64,
}

/// A fraction that is 0 for 0 / 0.
fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator == 0.0 { 0.0 } else { numerator / denominator }
}

impl Ranking {
    fn hits_within(&self, cutoff: f64) -> f64 {
        self.hits.partition_point(|rank| *rank as f64 <= cutoff) as f64
    }

    fn precision(&self) -> f64 {
        ratio(self.hits.len() as f64, self.relevances.len() as f64)
    }

    fn recall(&self, cutoff: f64) -> f64 {
        ratio(self.hits_within(cutoff), self.relevant as f64)
    }

    fn average_precision(&self, cutoff: f64) -> f64 {
        let hits = self.hits.iter().take_while(|rank| **rank as f64 <= cutoff).enumerate();
        let sum = hits.fold(0.0, |sum, (index, rank)| sum + (index + 1) as f64 / *rank as f64);
        ratio(sum, self.relevant as f64)
    }

    /// The highest precision at a rank with at least this recall.
    fn interpolated_precision(&self, recall: f64) -> f64 {
        let first = ((recall * self.relevant as f64 + 0.9) as usize).max(1);
        let precisions = self.hits.iter().enumerate().skip(first - 1);
        precisions.map(|(index, rank)| (index + 1) as f64 / *rank as f64).fold(0.0, f64::max)
    }

    /// The share of documents judged as not relevant that are not ranked above a relevant one.
    fn binary_preference(&self) -> f64 {
        let most = self.irrelevant.min(self.relevant) as f64;
        let (mut sum, mut above) = (0.0, 0);
        for relevance in &self.relevances {
            if *relevance >= self.level {
                sum += 1.0 - ratio(self.relevant.min(above) as f64, most);
            } else if *relevance >= 0 {
                above += 1;
            }
        }
        ratio(sum, self.relevant as f64)
    }

    fn ndcg(&self, cutoff: f64) -> f64 {
        let gain = |gains: &[i64]| -> f64 {
            let within = gains.iter().enumerate().take_while(|(rank, _)| (*rank as f64) < cutoff);
            let positive = within.filter(|(_, gain)| **gain > 0);
            positive.fold(0.0, |sum, (rank, gain)| sum + *gain as f64 / ((rank + 2) as f64).log2())
        };
        ratio(gain(&self.relevances), gain(&self.ideal))
    }
}

/// Relevance judgements and the measures to compute with them.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct RelevanceEvaluator {
    judgements: HashMap<String, HashMap<String, i64>>,
    /// Name of the result, measure, and cut-off.
    measures: Vec<(Py<PyString>, Measure, f64)>,
    level: i64,
    judged_only: bool,
}

/// The scores of the documents of a query.
type Scores = Vec<(PyBackedStr, f64)>;

#[pymethods]
impl RelevanceEvaluator {
    /// `measures` has the name of the result, the measure and its cut-off.
    #[new]
    fn new(
        py: Python<'_>,
        judgements: HashMap<String, HashMap<String, i64>>,
        measures: Vec<(String, String, f64)>,
        level: i64,
        judged_only: bool,
    ) -> PyResult<Self> {
        let measure = |(result, name, cutoff): (String, String, f64)| {
            let known = MEASURES.iter().find(|(known, _)| *known == name);
            let (_, measure) = known.ok_or_else(|| {
                PyNotImplementedError::new_err(format!("the measure {name} is not available"))
            })?;
            Ok((PyString::new(py, &result).unbind(), *measure, cutoff))
        };
        let measures = measures.into_iter().map(measure).collect::<PyResult<_>>()?;
        Ok(Self { judgements, measures, level, judged_only })
    }

    /// The measures of each query of the run that has judgements.
    fn evaluate<'py>(&self, run: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        let py = run.py();
        let mut queries = Vec::with_capacity(run.len());
        for (query, documents) in run {
            let query: PyBackedStr = query.extract()?;
            let documents = documents.cast::<PyDict>().map_err(|_| {
                PyTypeError::new_err(format!("the scores of query {} are no dictionary", &*query))
            })?;
            let scores = documents.iter().map(|(id, score)| Ok((id.extract()?, score.extract()?)));
            let scores: Scores = scores.collect::<PyResult<_>>()?;
            if let Some(judgements) = self.judgements.get(&*query) {
                queries.push((query, scores, judgements));
            }
        }
        let measures: Vec<(Measure, f64)> =
            self.measures.iter().map(|(_, measure, cutoff)| (*measure, *cutoff)).collect();
        let values: Vec<Vec<f64>> = detached(py, || {
            let queries = queries.par_iter().with_min_len(4);
            let values = queries.map(|(_, scores, judgements)| {
                let ranking = self.ranking(scores, judgements);
                measures.iter().map(|(measure, cutoff)| measure(&ranking, *cutoff)).collect()
            });
            values.collect()
        });
        let results = PyDict::new(py);
        for ((query, ..), values) in queries.iter().zip(values) {
            let result = PyDict::new(py);
            for ((name, ..), value) in self.measures.iter().zip(values) {
                result.set_item(name, value)?;
            }
            results.set_item(query, result)?;
        }
        Ok(results)
    }
}

impl RelevanceEvaluator {
    /// Ranks documents by score, and documents of equal score by their ids, the last first.
    fn ranking(&self, scores: &Scores, judgements: &HashMap<String, i64>) -> Ranking {
        // trec_eval keeps scores as f32. Adding 0 makes -0 equal to 0, and NaN is last.
        let sortable = |score: f64| (score as f32 + 0.0).max(f32::NEG_INFINITY);
        let document = |(id, score): &(PyBackedStr, f64)| (sortable(*score), judgements.get(&**id));
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let documents: Vec<(f32, Option<&i64>)> = scores.iter().map(document).collect();
        order.sort_unstable_by(|a, b| {
            documents[*b]
                .0
                .total_cmp(&documents[*a].0)
                .then_with(|| scores[*b].0.cmp(&scores[*a].0))
        });
        let relevances = order.iter().map(|index| documents[*index].1.map_or(-1, |r| (*r).max(-1)));
        let relevances: Vec<i64> =
            relevances.filter(|relevance| !self.judged_only || *relevance >= 0).collect();
        let is_relevant = |relevance: &i64| *relevance >= self.level;
        let ranks = relevances.iter().enumerate();
        let hits = ranks.filter(|(_, relevance)| is_relevant(relevance)).map(|(rank, _)| rank + 1);
        let mut ideal: Vec<i64> = judgements.values().copied().filter(|gain| *gain > 0).collect();
        ideal.sort_unstable_by(|a, b| b.cmp(a));
        let judged = judgements.values().filter(|relevance| **relevance >= 0).count();
        let relevant = judgements.values().filter(|relevance| is_relevant(relevance)).count();
        Ranking {
            hits: hits.collect(),
            ideal,
            relevant,
            irrelevant: judged - relevant,
            level: self.level,
            relevances,
        }
    }
}
