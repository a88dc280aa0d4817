#!/usr/bin/env python3
"""Checks the report.json of `engram reproduce`: it has every claim once, with a value or as untested.

    python3 tests/reproduce_report.py runs/reproduce/report.json

With a second report, all claims of the first must be equal in the second, except the correction for all claims.

    python3 tests/reproduce_report.py runs/reproduce/report-of-claims.json runs/reproduce/report.json
"""

import json
import re
import sys

CLAIMS = """
patent.finetuned_over_zero_shot patent.context_helps patent.decoys_learnt
avformer.audio_only_under_frozen avformer.right_image_under_none avformer.right_image_under_wrong
avformer.clean_speech_kept avformer.trained_share avformer.curriculum_under_audio_only avformer.curriculum_under_joint
avformer.tokens_saturate avformer.alternating_hurts
reveal.memory_over_none reveal.knowledge_swap reveal.recall_at_10 reveal.end_to_end_over_frozen_retriever
reveal.attribution_beats_random reveal.needle reveal.cold_start_fails reveal.k_curve reveal.compression_cost
reveal.sources_complement reveal.refresh_matters reveal.learns_from_scratch avformer.learns_from_scratch
stamps.memory_over_none stamps.right_image stamps.right_values stamps.recall_at_1 stamps.trained_over_frozen
stamps.trained_over_frozen_at_10 stamps.other_photographs stamps.drawings stamps.end_to_end_recall stamps.knowledge_swap
forget.edits
""".split()


def problems(report):
    """Yields one line per problem."""
    for field in ("schema_version", "version", "seconds", "date", "machine", "commit", "totals", "claims"):
        if field not in report:
            yield f"no `{field}`"
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["date"]):
        yield f"the date is {report['date']!r}"
    if report["commit"] is not None and not re.fullmatch(r"[0-9a-f]{40,64}", report["commit"]):
        yield f"the commit is {report['commit']!r}"
    counted = dict.fromkeys(("holds", "fails", "not_decided", "untested"), 0)
    for claim in report["claims"]:
        is_undecided = claim["untested_because"] == "not decided"
        counted["not_decided" if is_undecided else claim["verdict"]] += 1
    if report["totals"] != counted:
        yield f"the totals are {report['totals']}, not {counted}"
    yield from holm_problems(report["claims"])
    ids = [claim["id"] for claim in report["claims"]]
    yield from (f"{claim}: not in the report" for claim in CLAIMS if claim not in ids)
    yield from (f"{name}: in the report twice" for name in set(ids) if ids.count(name) > 1)
    for claim in report["claims"]:
        name, verdict = claim["id"], claim["verdict"]
        if not claim["claim"]:
            yield f"{name}: its text is missing"
        if f"{claim['command']} ".split(" ")[:4] != ["engram", "reproduce", "--claim", name]:
            yield f"{name}: its command is {claim['command']!r}"
        reason = claim["untested_because"]
        if (verdict == "untested") != (reason in ("not trained", "not decided")):
            yield f"{name}: {verdict}, because {reason!r}"
        if verdict not in ("holds", "fails", "untested"):
            yield f"{name}: the verdict is {verdict!r}"
        elif reason == "not trained":
            if claim["value"] is not None:
                yield f"{name}: not trained, but has a value"
        elif not claim["n"] or claim["value"] is None:
            yield f"{name}: {verdict} without a value"
        elif claim["ci95"] is None and name != "avformer.trained_share":
            yield f"{name}: no interval"
        elif claim["ci95"] is not None and not claim["ci95"][0] <= claim["value"] <= claim["ci95"][1]:
            yield f"{name}: the value is outside its interval"
        for name_and_measure in [(name, claim)] + [(row["system"], row) for row in claim["compared"]]:
            yield from measure_problems(name, *name_and_measure)
        if (claim["rule"] is None) != (reason == "not trained"):
            yield f"{name}: its rule is {claim['rule']!r}"
        differs = "_difference" in claim["metric"] or "_minus_" in claim["metric"]
        if reason != "not trained" and differs and len(claim["compared"]) < 2:
            yield f"{name}: a difference without the values of both systems"
        if claim["expected"] and verdict != "holds":
            yield f"{name}: expected to hold, {verdict}"


def measure_problems(claim, name, measure):
    """Yields a line if a value has a point as its interval, or no direction."""
    if measure["ci95"] is not None and measure["ci95"][0] == measure["ci95"][1]:
        yield f"{claim}: the interval of {name} is a point"
    if measure["value"] is not None and measure["higher_is_better"] is None:
        yield f"{claim}: {name} has no direction"


def holm_problems(claims):
    """Yields one line per claim whose adjusted p-value or verdict is wrong."""
    tests = sorted((claim for claim in claims if claim["p_value"] is not None), key=lambda claim: claim["p_value"])
    largest = 0
    for rank, claim in enumerate(tests):
        largest = max(largest, min(1, (len(tests) - rank) * claim["p_value"]))
        own = claim["untested_because"] or claim["verdict"]
        verdict = own if largest <= 0.05 else "not decided"
        if abs(claim["holm"]["p_value"] - largest) > 1e-12 or claim["holm"]["verdict"] != verdict:
            yield f"{claim['id']}: after Holm's correction {claim['holm']}, not {verdict} with p {largest}"
    for claim in claims:
        if claim["p_value"] is None and claim["holm"] is not None:
            yield f"{claim['id']}: corrected without a p-value"
        if (claim["p_value"] is None) != (claim["ci95"] is None):
            yield f"{claim['id']}: an interval or a p-value is missing"


def differences(part, whole):
    """Yields one line per claim that differs between the reports."""
    if not part["claims"]:
        yield "no claims"
    claims = {claim["id"]: uncorrected(claim) for claim in whole["claims"]}
    for claim in part["claims"]:
        if claims.get(claim["id"]) != uncorrected(claim):
            yield f"{claim['id']}: differs"


def uncorrected(claim):
    """A claim without its correction, which depends on the number of claims."""
    return {name: value for name, value in claim.items() if name != "holm"}


reports = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]
messages = list(problems(*reports) if len(reports) == 1 else differences(*reports))
print("\n".join(messages) or ("all claims are in the report" if len(reports) == 1 else "equal claims"))
sys.exit(1 if messages else 0)
