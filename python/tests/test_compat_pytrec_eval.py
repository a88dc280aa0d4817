"""engram.compat.pytrec_eval against values of pytrec_eval-terrier 0.5.11."""

import math
import unittest

from engram.compat import pytrec_eval

JUDGEMENTS = {"q": {"a": -1, "b": 3, "c": 0, "d": 1, "e": 2}}
RUN = {"q": {"a": 5.0, "b": 4.0, "x": 3.5, "c": 3.0, "d": 2.0}, "unknown": {"a": 1.0}}


def values(measures, *options, run=RUN):
    return pytrec_eval.RelevanceEvaluator(JUDGEMENTS, measures, *options).evaluate(run)


class Measures(unittest.TestCase):
    def test_values(self):
        expected = {
            "num_ret": 5.0, "num_rel": 3.0, "num_rel_ret": 2.0, "map": 0.3,
            "gm_map": -1.2039728043259361, "Rprec": 0.3333333333333333,
            "bpref": 0.3333333333333333, "recip_rank": 0.5, "P_2": 0.5,
            "11pt_avg": 0.32727272727272727, "recall_1": 0.0, "recall_2": 0.3333333333333333,
            "ndcg": 0.47872938387396574, "ndcg_cut_3": 0.39748952229168844,
            "map_cut_3": 0.16666666666666666, "success_2": 1.0, "set_P": 0.4,
            "set_recall": 0.6666666666666666, "set_F": 0.5,
            "iprec_at_recall_0.10": 0.5, "iprec_at_recall_0.70": 0.4,
        }  # fmt: skip
        measures = {
            *"num_ret num_rel num_rel_ret map gm_map Rprec bpref recip_rank 11pt_avg ndcg".split(),
            *"set_P set_recall set_F P.2 recall_1,2 ndcg_cut.3 map_cut_3 success.2".split(),
            "iprec_at_recall.0.1,0.7",
        }
        found = values(measures)
        self.assertEqual(list(found), ["q"])
        self.assertEqual(set(found["q"]), set(expected))
        for name, value in found["q"].items():
            self.assertAlmostEqual(value, expected[name], 14, name)

    def test_level_and_judged_documents(self):
        self.assertEqual(values({"map"}, 2)["q"]["map"], 0.25)
        self.assertEqual(values({"map"}, 4)["q"]["map"], 0.0)
        self.assertEqual(values({"map"}, 1, True)["q"]["map"], 0.5555555555555555)

    def test_ties_and_nan(self):
        of = lambda scores: values({"recip_rank"}, run={"q": scores})["q"]["recip_rank"]
        self.assertEqual(of({"b": 1.0, "c": 1.0}), 0.5)
        self.assertEqual(of({"b": 0.0, "a": -0.0}), 1.0)
        self.assertEqual(of({"b": 1.0, "c": math.nan}), 1.0)
        self.assertEqual(of({}), 0.0)

    def test_names_of_measures(self):
        self.assertEqual(len(values({"P"})["q"]), 9)
        self.assertEqual(set(values(["P", "P_3", "P.4,6"])["q"]), {"P_3", "P_4", "P_6"})
        self.assertEqual(len(values({"official"})["q"]), 30)
        for measure in ["Rndcg", "all_trec", "relative_P.5", "map.5"]:
            with self.assertRaises(NotImplementedError):
                values([measure])

    def test_errors(self):
        for error, judgements, measures, run in [
            (ValueError, JUDGEMENTS, {"mop"}, RUN),
            (ValueError, JUDGEMENTS, {"P.0"}, RUN),
            (TypeError, JUDGEMENTS, None, RUN),
            (TypeError, {"q": {"a": 1.5}}, {"map"}, RUN),
            (TypeError, {1: {"a": 1}}, {"map"}, RUN),
            (AttributeError, [], {"map"}, RUN),
            (TypeError, JUDGEMENTS, {"map"}, [1]),
            (TypeError, JUDGEMENTS, {"map"}, {"q": [1]}),
            (TypeError, JUDGEMENTS, {"map"}, {"q": {"a": None}}),
            (TypeError, JUDGEMENTS, {"map"}, {"q": {1: 1.0}}),
        ]:
            with self.assertRaises(error):
                pytrec_eval.RelevanceEvaluator(judgements, measures).evaluate(run)
        self.assertEqual(values({"map"}, run={}), {})

    def test_means_and_files(self):
        mean = pytrec_eval.compute_aggregated_measure
        self.assertEqual(mean("num_rel", [1.0, 2.0]), 3.0)
        self.assertAlmostEqual(mean("gm_map", [-1, -2]), 0.22313016014842982, 15)
        self.assertEqual(mean("map", [0.25, 0.5]), 0.375)
        self.assertEqual(pytrec_eval.parse_run(["q Q0 d 1 0.5 s\n"]), {"q": {"d": 0.5}})
        with self.assertRaises(AssertionError):
            pytrec_eval.parse_qrel(["q 0 d 1", "q 0 d 2"])


if __name__ == "__main__":
    unittest.main()
