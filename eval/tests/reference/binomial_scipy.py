"""Makes binomial_scipy.json: exact (Clopper-Pearson) upper limits of a proportion of 0, and exact p-values.

Run:      python binomial_scipy.py   (writes binomial_scipy.json beside this file; a second)
Versions: Python 3.11, scipy 1.17.1
Form:     one object per case: n, level, threshold; `high` is the upper limit of the interval for 0 of n; `p_value` is
          twice the one-sided p-value of 0 of n for the null hypothesis that the proportion is `threshold`, at most 1.
"""

import json
import pathlib

from scipy.stats import binomtest

lines = []
for n in (1, 2, 3, 10, 47, 276, 400, 100_000):
    for level, threshold in ((0.95, 0.01), (0.9, 0.5), (0.99, 1e-5)):
        high = binomtest(0, n).proportion_ci(level, "exact").high
        p_value = min(1.0, 2 * binomtest(0, n, threshold, alternative="less").pvalue)
        if p_value == 0:
            continue
        case = {"n": n, "level": level, "threshold": threshold, "high": float(high), "p_value": float(p_value)}
        lines.append(json.dumps(case))
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
