"""Plots recall and speed of graphs: one curve for each output of benches/graph.rs and graph_peers.py.

Usage: graph_plot.py OUT.svg FILE ... Needs matplotlib. The speed is in queries per processor second.
"""
import re
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "engram"})
from matplotlib import pyplot

out, *files = sys.argv[1:]
figure, axes = pyplot.subplots(figsize=(7, 4))
for file in files:
    text = open(file).read()
    rows, width, name, seconds = re.search(r"^(\d+) x (\d+), (.*?): built in .* processor ([\d.]+) s", text, re.M).groups()
    points = re.findall(r"recall@10 ([\d.]+), .* (\d+) queries per processor second", text)
    recalls, speeds = zip(*[(float(recall), int(speed)) for recall, speed in points])
    name = "Engram" if "Vamana" in name else name.split()[0]
    axes.plot(recalls, speeds, marker="o", label=f"{name}, built in {float(seconds):.0f} s")
axes.set(xlabel="recall@10", ylabel="queries per processor second", yscale="log", xlim=(0.9, 1.001))
axes.set_title(f"{int(rows):,} keys of {width} components")
axes.grid(True, which="both", alpha=0.3)
axes.legend()
figure.savefig(out, bbox_inches="tight", metadata={"Date": None})
