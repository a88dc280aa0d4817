"""Makes holm_statsmodels.json: lists of p-values, and the same p-values adjusted by Holm's method.

Run:      python holm_statsmodels.py   (writes holm_statsmodels.json beside this file; a second)
Versions: Python 3.11, statsmodels 0.15.0, numpy 2.4.6
Form:     one object per case: `p_values`, and `adjusted` by multipletests(p_values, method="holm").
"""

import json
import pathlib

import numpy as np
from statsmodels.stats.multitest import multipletests

rng = np.random.default_rng(5)
cases = [[0.03], [1.0, 1.0], [0.01, 0.04, 0.03], [0.02, 0.02, 0.02, 0.5], [0.0002] * 30, [0.9, 0.001, 0.6, 0.0125]]
cases += [list(rng.uniform(0, 1, n) ** 3) for n in (2, 14, 27, 100)]
lines = []
for p_values in cases:
    adjusted = multipletests(p_values, method="holm")[1]
    lines.append(json.dumps({"p_values": [float(p) for p in p_values], "adjusted": [float(p) for p in adjusted]}))
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
