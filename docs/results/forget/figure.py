"""Draws the rates of the audit for each topology beside the published ones, as `rates.svg`. Lines are 95 % intervals.

    engram eval forget --hyp results.jsonl --json > report.json
    python docs/results/forget/figure.py report.json DATA/lmlm-audit > docs/results/forget/rates.svg
"""

import csv
import json
import sys
from pathlib import Path
from statistics import mean

METRICS = [("full_exact_match", "right, whole memory (FULL)"), ("del_on_exact_match", "right, fact deleted (DEL-ON)")]
TOPOLOGIES = ["base", "alias", "collision", "noise"]
COLOURS = {"Engram": "#2b6cb0", "published": "#b7791f"}
WIDTH, HEIGHT, LEFT, TOP, BAR = 330, 200, 40, 46, 26


def published(folder, topology, state, databases):
    with open(Path(folder) / "per_state_metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["state"] == state]
    paths = [(row, Path(row["database_path"])) for row in rows]
    values = [float(row["exact_match"]) for row, path in paths if path.stem == topology and path.parts[-2] in databases]
    return mean(values)


def main(report, folder):
    report = json.loads(Path(report).read_text())
    databases = [path.name for path in Path(folder).iterdir() if path.is_dir()]
    tables = [table for table in report["breakdowns"] if table["name"] == "topology"]
    ours = {(table["metric"], row["name"]): row for table in tables for row in table["rows"]}
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (WIDTH + LEFT)} {HEIGHT + TOP + 40}" '
             'font-family="sans-serif" font-size="12">']
    for place, (system, colour) in enumerate(COLOURS.items()):
        x = LEFT + place * 110
        parts.append(f'<rect x="{x}" y="6" width="12" height="12" fill="{colour}"/>'
                     f'<text x="{x + 18}" y="16">{system}</text>')
    for panel, (metric, title) in enumerate(METRICS):
        left = LEFT + panel * (WIDTH + LEFT)
        y = lambda value: TOP + HEIGHT * (1 - value)
        parts.append(f'<text x="{left}" y="{TOP - 10}" font-weight="bold">{title}</text>')
        for tick in (0, 0.25, 0.5, 0.75, 1):
            parts.append(f'<line x1="{left}" x2="{left + WIDTH - 20}" y1="{y(tick)}" y2="{y(tick)}" stroke="#ccc"/>'
                         f'<text x="{left - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>')
        for index, topology in enumerate(TOPOLOGIES):
            x = left + 12 + index * 76
            state = "FULL" if metric.startswith("full") else "DEL-ON"
            row = ours[metric, topology]
            values = {"Engram": row["value"], "published": published(folder, topology, state, databases)}
            low, high = row["interval"]["low"], row["interval"]["high"]
            for bar, (system, value) in enumerate(values.items()):
                parts.append(f'<rect x="{x + bar * BAR}" y="{y(value)}" width="{BAR - 2}" height="{HEIGHT * value}" '
                             f'fill="{COLOURS[system]}"/>'
                             f'<text x="{x + bar * BAR + 12}" y="{y(value if bar else high) - 4}" '
                             f'text-anchor="middle" font-size="10">{value:.2f}</text>')
            middle = x + BAR / 2 - 1
            parts.append(f'<line x1="{middle}" x2="{middle}" y1="{y(low)}" y2="{y(high)}" stroke="black"/>')
            parts.append(f'<text x="{x + BAR}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{topology}</text>')
    print("\n".join([*parts, "</svg>"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
