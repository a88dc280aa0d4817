#!/usr/bin/env python3
"""Checks the report.json of `engram reproduce`: it has every claim once, with a value or as untested.

    python3 tests/reproduce_report.py runs/reproduce/report.json

With a second report, all claims of the first must be equal in the second.

    python3 tests/reproduce_report.py runs/reproduce/report-of-claims.json runs/reproduce/report.json
"""

import json
import sys

CLAIMS = """
patent.finetuned_over_zero_shot patent.context_helps patent.decoys_learnt
avformer.audio_only_under_frozen avformer.right_image_under_none avformer.right_image_under_wrong
avformer.clean_speech_kept avformer.trained_share avformer.curriculum_under_audio_only avformer.curriculum_under_joint
avformer.tokens_saturate avformer.alternating_hurts
reveal.memory_over_none reveal.knowledge_swap reveal.recall_at_10 reveal.end_to_end_over_frozen_retriever
reveal.attribution_beats_random reveal.needle reveal.cold_start_fails reveal.k_curve reveal.compression_cost
reveal.sources_complement reveal.refresh_matters
""".split()


def problems(report):
    """Yields one line per problem."""
    for field in ("version", "seconds", "claims"):
        if field not in report:
            yield f"no `{field}`"
    ids = [claim["id"] for claim in report["claims"]]
    yield from (f"{claim}: not in the report" for claim in CLAIMS if claim not in ids)
    yield from (f"{name}: in the report twice" for name in set(ids) if ids.count(name) > 1)
    for claim in report["claims"]:
        name, verdict = claim["id"], claim["verdict"]
        if not name.startswith(claim["study"] + ".") or not claim["claim"]:
            yield f"{name}: study or claim missing"
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
        if claim["expected"] and verdict != "holds":
            yield f"{name}: expected to hold, {verdict}"


def differences(part, whole):
    """Yields one line per claim that differs between the reports."""
    if not part["claims"]:
        yield "no claims"
    claims = {claim["id"]: claim for claim in whole["claims"]}
    yield from (f"{claim['id']}: differs" for claim in part["claims"] if claims.get(claim["id"]) != claim)


reports = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]
messages = list(problems(*reports) if len(reports) == 1 else differences(*reports))
print("\n".join(messages) or ("all claims are in the report" if len(reports) == 1 else "equal claims"))
sys.exit(1 if messages else 0)
