"""pytrec_eval 0.5: the measures of trec_eval for each query.

>>> from engram.compat import pytrec_eval
>>> evaluator = pytrec_eval.RelevanceEvaluator({"q": {"a": 1, "b": 0}}, {"map"})
>>> evaluator.evaluate({"q": {"a": 0.5, "b": 0.7}})
{'q': {'map': 0.5}}
"""

import math
import re

from engram import _engram

__all__ = [
    "RelevanceEvaluator",
    "compute_aggregated_measure",
    "parse_qrel",
    "parse_run",
    "supported_measures",
    "supported_nicknames",
]

_CUTOFFS = [5, 10, 15, 20, 30, 100, 200, 500, 1000]

#: The measures with cut-offs, and the cut-offs that trec_eval uses if none are given.
_DEFAULTS = {
    "P": _CUTOFFS,
    "iprec_at_recall": [tenth / 10 for tenth in range(11)],
    "map_cut": _CUTOFFS,
    "ndcg_cut": _CUTOFFS,
    "recall": _CUTOFFS,
    "success": [1, 5, 10],
}

#: The measures of trec_eval that are available, in its order.
_MEASURES = (
    "runid num_q num_ret num_rel num_rel_ret map gm_map Rprec bpref recip_rank iprec_at_recall P "
    "recall 11pt_avg ndcg ndcg_cut map_cut success set_P set_recall set_F"
).split()

#: The measures of trec_eval that are not available.
_MISSING = set(
    "G Rndcg Rprec_mult binG gm_bpref infAP ndcg_rel num_nonrel_judged_ret relative_P relstring "
    "set_map set_relative_P utility".split()
)

#: The measures that are available.
supported_measures = set(_MEASURES)

#: The names that stand for several measures.
supported_nicknames = {
    "official": set(_MEASURES[: _MEASURES.index("P") + 1]),
    "set": {"runid", "num_q", "num_ret", "num_rel", "num_rel_ret", "utility", "set_P"}
    | {"set_relative_P", "set_recall", "set_map", "set_F"},
    "all_trec": supported_measures | _MISSING,
}


class RelevanceEvaluator:
    """Evaluates runs against relevance judgements, `{query: {document: relevance}}`.

    A measure may have cut-offs, as in `P.5`, `ndcg_cut_10` and `recall.5,10`.
    """

    def __init__(
        self, query_relevance, measures, relevance_level=1, judged_docs_only_flag=False
    ):
        cutoffs = _cutoffs_by_measure(measures)
        judgements = {query: of for query, of in query_relevance.items() if len(of) > 0}
        if not isinstance(relevance_level, int):
            raise TypeError("Argument relevance_level should be an integer.")
        if relevance_level < 1:
            raise TypeError("Argument relevance_level should be positive.")
        results = []
        for measure in filter(cutoffs.__contains__, _MEASURES):
            for cutoff in sorted(cutoffs[measure]) or _DEFAULTS.get(measure, [None]):
                results.append(_result(measure, cutoff))
        self._evaluator = _engram.RelevanceEvaluator(
            judgements, results, relevance_level, bool(judged_docs_only_flag)
        )

    def evaluate(self, scores):
        """The measures `{query: {measure: value}}` of a run `{query: {document: score}}`."""
        if not scores:
            return {}
        if not isinstance(scores, dict):
            raise TypeError("Argument object scores should be of type dictionary.")
        return self._evaluator.evaluate(scores)


def _cutoffs_by_measure(measures):
    """The cut-offs that are given with each measure."""
    cutoffs = {}
    for name in measures:
        for measure in supported_nicknames.get(name, [name]):
            base, numbers = _parse(measure)
            if base in _MISSING:
                raise NotImplementedError(f"the measure {base} is not available")
            if numbers and base not in _DEFAULTS:
                raise NotImplementedError(f"the measure {base} takes no parameters here")
            is_share = base == "iprec_at_recall"
            numbers = {float(number) if is_share else int(float(number)) for number in numbers}
            if not is_share and 0 in numbers:
                raise ValueError(f"the measure {measure} has a cut-off of 0; give at least 1")
            cutoffs.setdefault(base, set()).update(numbers)
    return cutoffs


def _parse(measure):
    """The measure and the numbers of a name such as `P.5,10`."""
    known = supported_measures | _MISSING
    if measure in known:
        return measure, []
    match = re.match(r"(\w+?)[._]([0-9]+(?:\.[0-9]+)?(?:,[0-9]+(?:\.[0-9]+)?)*)", measure)
    if match is None or match[1] not in known:
        raise ValueError(f"unsupported measure {measure}")
    return match[1], match[2].split(",")


def _result(measure, cutoff):
    """The name of a result, its measure and its cut-off."""
    if cutoff is None:
        return measure, measure, 0.0
    number = f"{cutoff:.2f}" if measure == "iprec_at_recall" else cutoff
    return f"{measure}_{number}", measure, float(cutoff)


def compute_aggregated_measure(measure, values):
    """The sum of counts `num_…`, the geometric mean of `gm_…`, and the mean of others."""
    if measure.startswith("num_"):
        return float(sum(values))
    if len(values) == 0:
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.exp(mean) if measure.startswith("gm_") else mean


def parse_run(f_run):
    """The scores in the lines of a run: query, `Q0`, document, rank, score, name."""
    run = {}
    for line in f_run:
        query, _, document, _, score, _ = line.strip().split()
        _add(run, query, document, float(score))
    return run


def parse_qrel(f_qrel):
    """The relevance in the lines of judgements: query, `0`, document, relevance."""
    judgements = {}
    for line in f_qrel:
        query, _, document, relevance = line.strip().split()
        _add(judgements, query, document, int(relevance))
    return judgements


def _add(table, query, document, value):
    documents = table.setdefault(query, {})
    if document in documents:
        raise AssertionError(f"query {query} has document {document} twice")
    documents[document] = value
