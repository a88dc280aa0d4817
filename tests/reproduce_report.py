#!/usr/bin/env python3
"""Checks the report.json of `engram reproduce`: every claim occurs once, with a value or as untested.

    python3 tests/reproduce_report.py runs/reproduce/report.json

With a second report, every claim of the first report must equal that claim in the second.

    python3 tests/reproduce_report.py runs/reproduce/report-of-rows.json runs/reproduce/report.json
"""

import json
import sys

CLAIMS = """
patent.finetuned_over_zero_shot patent.context_helps patent.decoys_learnt
avformer.audio_only_under_frozen avformer.right_picture_under_none avformer.right_picture_under_wrong
avformer.clean_speech_kept avformer.trained_share avformer.curriculum_under_audio_only avformer.curriculum_under_joint
avformer.tokens_saturate avformer.alternating_hurts
reveal.memory_over_none reveal.knowledge_swap reveal.recall_at_10 reveal.end_to_end_over_frozen_retriever
reveal.credit_beats_random reveal.needle reveal.cold_start_fails reveal.k_curve reveal.compression_cost
reveal.sources_complement reveal.refresh_matters
""".split()


def problems(report):
    """Yields the problems of a report, one line each."""
    for field in ("version", "seconds", "rows"):
        if field not in report:
            yield f"no `{field}`"
    ids = [row["id"] for row in report["rows"]]
    yield from (f"{claim}: not in the report" for claim in CLAIMS if claim not in ids)
    yield from (f"{name}: in the report twice" for name in set(ids) if ids.count(name) > 1)
    for row in report["rows"]:
        name, verdict = row["id"], row["verdict"]
        if not name.startswith(row["study"] + ".") or not row["claim"]:
            yield f"{name}: study or claim missing"
        if f"{row['command']} ".split(" ")[:4] != ["engram", "reproduce", "--row", name]:
            yield f"{name}: its command is {row['command']!r}"
        reason = row["untested_because"]
        if (verdict == "untested") != (reason in ("not trained", "not decided")):
            yield f"{name}: {verdict}, because {reason!r}"
        if verdict not in ("holds", "fails", "untested"):
            yield f"{name}: the verdict is {verdict!r}"
        elif reason == "not trained":
            if row["value"] is not None:
                yield f"{name}: not trained, but has a value"
        elif not row["n"] or row["value"] is None:
            yield f"{name}: {verdict} without a value"
        elif row["ci95"] is None and name != "avformer.trained_share":
            yield f"{name}: no interval"
        elif row["ci95"] is not None and not row["ci95"][0] <= row["value"] <= row["ci95"][1]:
            yield f"{name}: the value is outside its interval"
        if row["expected"] and verdict != "holds":
            yield f"{name}: expected to hold, {verdict}"


def differences(rows, whole):
    """Yields the claims that differ between two reports, one line each."""
    if not rows["rows"]:
        yield "no claims"
    known = {row["id"]: row for row in whole["rows"]}
    yield from (f"{row['id']}: differs from the other report" for row in rows["rows"] if known.get(row["id"]) != row)


reports = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]
found = list(problems(*reports) if len(reports) == 1 else differences(*reports))
print("\n".join(found) or ("every claim is present" if len(reports) == 1 else "the claims are equal"))
sys.exit(1 if found else 0)
