"""Makes phrase_scipy.json: inputs with ties, constants, NaN and extreme values, and scipy's three correlations.

Run:      python phrase_scipy.py   (writes phrase_scipy.json beside this file; a few seconds)
Versions: Python 3.11, scipy 1.17.1, numpy 2.4.6
Form:     one object per case: name, x, y, and the statistic of pearsonr, spearmanr and kendalltau (tau-b).
          Numbers are strings ("0.1", "nan", "-inf"), since JSON readers round. "error" stands for a call that raises.
"""

import json
import math
import pathlib
import warnings

import numpy as np
from scipy import stats


def correlations(x, y):
    calls = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    values = {}
    for name, call in calls.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values[name] = exact(float(call(x, y).statistic))
        except ValueError:
            values[name] = "error"
    return values


def exact(value):
    return repr(float(value))


def cases():
    rng = np.random.default_rng(2208_01171)
    classes = np.array([0, 0.25, 0.5, 0.75, 1])
    yield "golden", [0, 0.25, 0.5, 0.75, 1], [0.1, 0.2, 0.2, 0.9, 0.8]
    for n in (3, 7, 8, 9, 127, 128, 129, 300):
        x = rng.standard_normal(n)
        yield f"random_{n}", x, 0.6 * x + 0.8 * rng.standard_normal(n)
    for n in (10, 200):
        gold = rng.choice(classes, n, p=[0.2, 0.3, 0.35, 0.1, 0.05])
        yield f"classes_against_scale_{n}", gold, gold + 0.3 * rng.standard_normal(n)
        yield f"classes_against_classes_{n}", gold, rng.choice(classes, n)
        yield f"classes_rounded_{n}", gold, np.round(gold + 0.2 * rng.standard_normal(n), 1)
    x = rng.standard_normal(40)
    yield "perfect", x, 3 * x - 1
    yield "perfect_negative", x, -0.5 * x
    yield "monotone", x, np.exp(3 * x)
    yield "constant_x", np.full(20, 0.1), rng.standard_normal(20)
    yield "constant_y", rng.standard_normal(20), np.full(20, 0.7)
    yield "constant_both", np.ones(5), np.zeros(5)
    yield "signed_zeros", rng.standard_normal(6), [0.0, -0.0, 0.0, -0.0, 0.0, -0.0]
    yield "one_differs", rng.standard_normal(50), np.r_[np.zeros(49), 1.0]
    yield "nearly_constant", [1, 2, 3], [1e9, 1e9 + 1e-7, 1e9]
    yield "nearly_constant_20", rng.standard_normal(20), 1.0 + 1e-14 * rng.integers(0, 4, 20)
    yield "nearly_constant_100", rng.standard_normal(100), 0.3 + 1e-13 * rng.standard_normal(100)
    yield "offset", rng.standard_normal(60), 1e9 + rng.standard_normal(60)
    yield "scale", 1e-160 * rng.standard_normal(60), 1e150 * rng.standard_normal(60)
    yield "two_rising", [0.1, 0.3], [5, 7]
    yield "two_falling", [0.1, 0.3], [7, 5]
    yield "two_constant", [0.1, 0.3], [7, 7]
    yield "one", [0.1], [0.3]
    yield "nan", [0.1, math.nan, 0.3, 0.4], [1, 2, 3, 4]
    yield "nan_and_constant", [0.1, math.nan, 0.3, 0.4], [1, 1, 1, 1]
    yield "infinite", [0.1, 0.2, 0.3, 0.4], [1, 2, math.inf, -math.inf]


lines = []
for name, x, y in cases():
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    case = {"name": name, "x": [exact(v) for v in x], "y": [exact(v) for v in y]}
    lines.append(json.dumps(case | correlations(x, y)))
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
