"""Makes the fixtures beside this file: made-up cases in the published layouts, and the values of the published scorers.

Run:      python -m venv /tmp/venv && /tmp/venv/bin/pip install numpy==2.4.6 scipy==1.17.1 ranx==0.3.21
          /tmp/venv/bin/python make.py SNAPSHOTS [NAME...]   (seconds; NAME: only these data sets)
          SNAPSHOTS: a folder with clones of the repositories in REPOSITORIES, each as OWNER+NAME/repo
Versions: Python 3.11; the newest commits of November 2026
Form:     one gzipped JSON per data set: "files" (the texts of the published files and of the predictions), "expected" (the
          value of each metric) and "items" (the value of each case in the order of the reference, for some metrics)

The scorers run as published. Modules that they import but do not need for these values (torch, datasets, …) are
replaced by mocks.
"""

import ast
import csv
import gzip
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import types
from unittest.mock import MagicMock

import numpy as np
import ranx

HERE = pathlib.Path(__file__).parent
SNAPSHOTS = pathlib.Path(sys.argv[1])
REPOSITORIES = {
    "rome": "kmeng01+rome",
    "mquake": "princeton-nlp+MQuAKE",
    "devqa": "sev777+DE-VQA",
    "evqa": "Go2Heart+EchoSight",
    "infoseek": "edchengg+infoseek_eval",
    "flmr": "LinWeizheDragon+FLMR",
    "kilt": "facebookresearch+KILT",
    "viquae": "PaulLerner+ViQuAE",
    "webqa": "WebQnA+WebQA_Baseline",
    "forget": "raeesiarya+LMLMAudit",
}
MOCKED = set(
    "tensorflow tensorflow_hub tensorflow_text torch colbert easydict PIL transformers flmr docopt datasets rouge "
    "jsonargparse util editor dataset torchvision faiss tokenizers".split()
)
CASES = 320


class MockFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds mocks for the modules in MOCKED."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MOCKED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__all__ = [], spec, []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, MockFinder())


def source(repository, path, commit="HEAD"):
    folder = SNAPSHOTS / REPOSITORIES[repository] / "repo"
    return subprocess.run(
        ["git", "-C", folder, "show", f"{commit}:{path}"], check=True, capture_output=True, text=True
    ).stdout


def module(repository, path, commit="HEAD", **names):
    loaded = types.ModuleType(path.replace("/", "_"))
    loaded.__dict__.update(names)
    exec(compile(source(repository, path, commit), path, "exec"), loaded.__dict__)
    return loaded


def package(repository, name, paths):
    """Modules with relative imports, in the order of their imports."""
    for path in paths:
        full = path.removesuffix(".py").replace("/", ".")
        parts = full.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            if parent not in sys.modules:
                sys.modules[parent] = types.ModuleType(parent)
                sys.modules[parent].__path__ = []
        loaded = types.ModuleType(full)
        loaded.__package__ = ".".join(parts[:-1])
        sys.modules[full] = loaded
        setattr(sys.modules[loaded.__package__], parts[-1], loaded)
        exec(compile(source(repository, path), path, "exec"), loaded.__dict__)
    return sys.modules[name]


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(name, files, expected, items):
    for metric, values in items.items():
        expected.setdefault(metric, float(np.mean(values)))
    content = {"files": files, "expected": expected, "items": {k: list(map(float, v)) for k, v in items.items()}}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


WORDS = (
    "the a an The answer is one two ten none true false dont isnt don't U.S. 3.5 1,000 red-blue (left) it's Paris Übergröße "
    "ΣΑΣ İstanbul 東京 «voilà» a\u0301 the_x _ – ’tis `x` ´y² and & , entailment yes no naïve a.b e-mail oclock"
).split(" ")
SPACES = [" "] * 12 + ["  ", "\t", "\n", "\u00a0", "\u3000", "\u001c"]


def phrase(rng, count=None):
    words = [rng.choice(WORDS) for _ in range(rng.choice([1, 1, 2, 3, 4]) if count is None else count)]
    return "".join(word + rng.choice(SPACES) for word in words).rstrip(" ")


def variant(rng, text):
    """An answer that is often equal to the text after normalisation."""
    draw = rng.random()
    if draw < 0.2:
        return text
    if draw < 0.4:
        return rng.choice(["The ", "a ", " An  ", "the answer is ", "<extra_id_0> "]) + text.upper()
    if draw < 0.6:
        return text.replace(" ", " , ") + rng.choice([".", "!", "’", "_", " the", ""])
    if draw < 0.7:
        return text.replace("one", "1").replace("dont", "don't").replace("true", "yes").replace("none", "zero")
    return rng.choice([phrase(rng), "", "the", text + " " + phrase(rng)])


def nll(rng):
    return rng.choice([0.0, 0.5, 1.0, 1.0, rng.random() * 12, rng.random() * 12, 800.0])


def summaries(rows):
    """The sums of the published script for the results of cases: as now, and as first published."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run_000"
        run.mkdir()
        for row in rows:
            (run / f"case_{row['case_id']}.json").write_text(json.dumps({"time": 1, **row}))
        found = []
        for commit in ["HEAD", "8b50435"]:
            script = module("rome", "experiments/summarize.py", commit)
            for uncompressed in [True, False]:
                arguments = dict(runs=None, get_uncompressed=uncompressed, abs_path=True)
                found.append(script.main(pathlib.Path(folder), **arguments)[0])
    return found


def counterfact():
    rng = random.Random(1)
    cases, results = [], []
    for case in range(CASES):
        new, true = phrase(rng), phrase(rng)
        rewrite = {
            "prompt": "{} is", "subject": f"subject {case}", "relation_id": "P1",
            "target_new": {"str": new, "id": "Q1"}, "target_true": {"str": true, "id": "Q2"},
        }
        counts = [1, rng.randint(1, 3), rng.randint(1, 10)]
        keys = ["paraphrase_prompts", "neighborhood_prompts"]
        cases.append(
            {"case_id": 3 * case, "pararel_idx": case, "requested_rewrite": rewrite}
            | {key: ["x"] * count for key, count in zip(keys, counts[1:])}
            | {"attribute_prompts": [], "generation_prompts": ["y"]}
        )
        probs = [[{"target_new": nll(rng), "target_true": nll(rng)} for _ in range(count)] for count in counts]
        post = dict(zip(["rewrite_prompts_probs", "paraphrase_prompts_probs", "neighborhood_prompts_probs"], probs))
        results.append({"case_id": 3 * case, "post": post | {"attribute_prompts_probs": [], "ngram_entropy": 1.5}})
    lists, summary, _, old = summaries(results)
    parts = [("rewrite", "efficacy"), ("paraphrase", "generality"), ("neighborhood", "locality")]
    items = {metric: lists[f"post_{part}_success"] for part, metric in parts}
    items |= {f"{metric}_magnitude": lists[f"post_{part}_diff"] for part, metric in parts}
    rng.shuffle(results)
    predictions = lines({"id": row["case_id"]} | row["post"] for row in results)
    expected = {
        "edit_score": float(summary["post_score"][0]) / 100,
        "edit_score_without_efficacy": float(old["post_score"][0]) / 100,
    }
    write("counterfact", {"reference": json.dumps(cases, indent=1), "predictions": predictions}, expected, items)


def zsre():
    rng = random.Random(2)
    cases, results = [], []
    for case in range(CASES):
        record = {"subject": "s", "src": f"What is {case}?", "pred": "x", "rephrase": "Which?", "alt": phrase(rng)}
        cases.append(record | {"answers": [phrase(rng)], "loc": "nq question: who", "loc_ans": "he", "cond": "x"})
        tokens = rng.randint(1, 6)
        post = {
            "rewrite_prompts_correct": [rng.random() < 0.8 for _ in range(tokens)],
            "paraphrase_prompts_correct": [rng.random() < 0.6 for _ in range(tokens)],
            "neighborhood_prompts_correct": [rng.random() < 0.4 for _ in range(rng.randint(1, 4))],
        }
        results.append({"case_id": case, "post": post})
    lists, summary, *_ = summaries(results)
    parts = [("rewrite", "efficacy"), ("paraphrase", "generality"), ("neighborhood", "locality")]
    items = {metric: lists[f"post_{part}_acc"] for part, metric in parts}
    predictions = lines({"id": row["case_id"]} | row["post"] for row in results)
    expected = {"edit_score": float(summary["post_score"][0]) / 100}
    write("zsre", {"reference": json.dumps(cases), "predictions": predictions}, expected, items)


def mquake():
    rng = random.Random(3)
    notebook = json.loads(source("mquake", "run_mello.ipynb"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"]]
    cell = next(cell for cell in cells if "Multi-hop acc" in cell)
    cases, rows, scores = [], [], []
    for case in range(CASES):
        answers = [rng.choice(["London", "Oderzo", "the U.S.", "Ünïcode", "london", "New York"]) for _ in range(3)]
        hops = [{"question": "q", "cloze": "c", "answer": f"hop {n}", "answer_alias": ["h"]} for n in range(rng.randint(2, 4))]
        edits = [
            {
                "prompt": "{} is", "relation_id": f"P{n}", "subject": f"s{case}", "question": "q",
                "target_new": {"str": f"new {n}", "id": "Q1"}, "target_true": {"str": "old", "id": "Q2"},
            }
            for n in range(rng.randint(1, 3))
        ]
        cases.append(
            {
                "case_id": case + 1, "requested_rewrite": edits, "questions": [f"question {case} {n}?" for n in range(3)],
                "answer": "x", "answer_alias": [], "new_answer": answers[0], "new_answer_alias": answers[1:2] * rng.randint(0, 1),
                "single_hops": [], "new_single_hops": hops, "orig": {},
            }
        )
        given = [rng.choice([answers[0], answers[1], answers[1].lower(), "Rome", "Rome", "Rome", None]) for _ in range(3)]
        rows.append(
            {
                "id": case + 1, "questions": given,
                "hops": [rng.choice([f"hop {n}", "h", f"hop {n}", "no"]) for n in range(len(hops))],
                "edits": [rng.choice([f"new {n}", "old"]) for n in range(len(edits))],
            }
        )

        def call_gpt(prompt, stop):
            answer = next(a for q, a in zip(cases[-1]["questions"], given) if prompt.endswith(q))
            return "Unknown" if answer is None else f"Subquestion: x\nFinal answer: {answer}"

        names = dict(dataset=[cases[-1]], tqdm=lambda x: x, call_gpt=call_gpt, task_prompt="", stop=[], print=lambda *_: None)
        exec(cell, names)
        scores.append(names["cor"] / names["tot"])
    write("mquake", {"reference": json.dumps(cases), "predictions": lines(rows)}, {}, {"multi_hop": scores})


def vlkeb():
    rng = random.Random(4)
    evaluation = module("devqa", "DE-VQA/evaluation/vllm_editor_eval.py").VLLMEditorEvaluation
    cases, rows, results = [], [], []
    hop_values = {}
    localities = {
        "locality": "locality", "image_locality": "image_locality", "random_image": "random_image_locality",
        "no_image": "no_image_locality", "consistent_image": "consistent_image_locality",
    }
    for case in range(CASES):
        hops = rng.sample([1, 2, 3, 4], rng.randint(0, 4))
        record = {
            "src": "What is it?", "rephrase": "Which?", "pred": "x", "alt": "" if case % 40 == 39 else phrase(rng),
            "image": f"{case}.jpg", "image_rephrase": "b.jpg", "loc": "q", "loc_ans": "a", "m_loc": "c.jpg",
            "m_loc_q": "q", "m_loc_a": "a",
        }
        if hops:
            record["port_new"] = [{"port_type": f"{h}-hop", "Q&A": {"Question": "q", "Answer": "a"}} for h in hops]
        cases.append(record)
        if not record["alt"]:
            continue
        accuracies = [rng.choice([0.0, 0.25, 1 / 3, 0.5, 1.0]) for _ in range(3)]
        pairs = {}
        for part in localities:
            before = [rng.randrange(9) for _ in range(rng.randint(1, 5))]
            pairs[part] = {"before": before, "after": [rng.choice([token, 0]) for token in before]}
        ports = [rng.choice([0.0, 0.5, 1.0]) for _ in hops]
        for hop, value in zip(hops, ports):
            hop_values.setdefault(hop, []).append(value)
        row = {"id": case} | dict(zip(["rewrite", "rephrase", "image_rephrase"], accuracies)) | pairs
        rows.append(row | ({"portability": ports} if hops else {}))
        agreement = lambda pair: float(np.mean(np.equal(pair["after"], pair["before"])))
        results.append(
            {
                "reliability": [{"acc": accuracies[0]}],
                "generality": {"text": [{"acc": accuracies[1]}], "image": [{"acc": accuracies[2]}]},
                "locality": {part: [{"acc": agreement(pair)}] for part, pair in pairs.items()},
            }
        )
    means = evaluation.get_mean_results(None, results)
    expected = {
        "efficacy": means["reliability"]["acc"],
        "generality": means["generality"]["text"]["acc"],
        "image_generality": means["generality"]["image"]["acc"],
    }
    expected |= {metric: means["locality"][part]["acc"] for part, metric in localities.items()}
    expected |= {f"portability@{hop}": float(np.mean(values)) for hop, values in hop_values.items()}
    write("vlkeb", {"reference": json.dumps(cases), "predictions": lines(rows)}, expected, {})


def evqa():
    rng = random.Random(5)
    utils = module("evqa", "utils/evaluation_utils.py")
    table, rows, exact, with_bem = io.StringIO(), [], [], []
    writer = csv.writer(table)
    writer.writerow(["question", "answer", "dataset_image_ids", "question_type", "wikipedia_url"])
    for case in range(2 * CASES):
        kind = rng.choice(["templated", "automatic", "multi_answer", "2_hop"])
        references = []
        while len(references) < rng.randint(1, 3):
            parts = [phrase(rng).replace("|", "") for _ in range(rng.randint(1, 4) if kind == "multi_answer" else 1)]
            # The script stops at a reference that is empty after normalisation.
            if any(utils.preprocess_answer(part) for part in parts):
                references.append("&&".join(parts))
        writer.writerow([f"Question {case}?", "|".join(references), "1|2", kind, "https://a"])
        reference = rng.choice(references)
        if kind == "multi_answer":
            parts = reference.split("&&")
            parts = rng.sample(parts, rng.randint(1, len(parts))) + [phrase(rng)] * rng.randint(0, 1)
            answer = rng.choice([", ", " and ", " & ", ","]).join(parts)
        else:
            answer = variant(rng, reference)
        bem = rng.choice([0.0, 0.49, 0.5, 0.9])
        rows.append({"id": case, "answer": answer, "bem": bem})
        examples = [dict(question="q", reference=r, candidate=answer, question_type=kind) for r in references]
        exact.append(max(float(utils.exact_match_scoring_function(example)) for example in examples))
        model = lambda example, threshold_score: float(bem >= 0.5)
        with_bem.append(max(utils.encyclopedic_vqa_evaluation_function(example, model) for example in examples))
    files = {"reference": table.getvalue(), "predictions": lines(rows)}
    write("evqa", files, {}, {"evqa_em": exact, "evqa": with_bem})


def infoseek():
    rng = random.Random(6)
    script = module("infoseek", "infoseek_eval.py")
    reference, kinds, rows = [], [], []
    numbers = "5 12 1,234.5 .5 -3 1e3 9-10 9 - 10 10-9 5²-6 ٣ 1.5.2 +7 12, 3.0.0 2-3-4 1e-2 0 100".split(" ")
    for case in range(2 * CASES):
        kind = rng.choice(["String", "Numerical", "Numerical", "Time"])
        split = rng.choice(["val_unseen_question", "val_unseen_entity"])
        if kind == "Numerical":
            low = rng.choice([-1.0, 0.0, 4.5, 9.0, 11.5, 1200.0, 900.0])
            value = [{"wikidata": low, "range": [low, low + rng.choice([0.0, 1.0, 2.0, 300.0])]}]
            answer = " ".join(rng.choice([*numbers, "about", "km", "to", "and"]) for _ in range(rng.randint(1, 4)))
            if rng.random() < 0.3:
                answer = f"{low}{rng.choice(['-', ' to ', ' '])}{low + rng.choice([0.5, 1.0, 2.5, 400.0])}"
            if rng.random() < 0.05:
                answer = rng.choice(["", "none"])
        else:
            value = [phrase(rng) for _ in range(rng.randint(1, 3))]
            answer = variant(rng, rng.choice(value))
        name = f"infoseek_val_{case:08}"
        reference.append({"data_id": name, "image_id": "oven_1", "question": "q", "answer": ["x"], "answer_eval": value, "data_split": split})
        kinds.append({"data_id": name, "question": "q", "question_type": kind})
        rows.append({"data_id": name, "prediction": answer})
    files = {"reference": lines(reference), "types": lines(kinds), "predictions": lines(rows)}
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name in ["predictions", "reference", "types"]:
            paths.append(pathlib.Path(folder) / name)
            paths[-1].write_text(files[name])
        results = script.evaluate(*paths)
        examples = script.prepare_qid2example(script.load_jsonl(paths[1]), script.load_jsonl(paths[2]))
    items = [sum(sum(script.evaluation([row], examples), [])) for row in rows]
    expected = {
        "infoseek_final": results["final_score"] / 100,
        "infoseek_unseen_question": results["unseen_question_score"]["score"] / 100,
        "infoseek_unseen_entity": results["unseen_entity_score"]["score"] / 100,
    }
    write("infoseek", files, expected, {"infoseek": items})


def m2kr():
    rng = random.Random(7)
    script = module("flmr", "examples/example_use_preflmr.py")
    passages = [{"passage_id": f"p{n}", "passage_content": phrase(rng, 6)} for n in range(200)]
    cutoffs = [1, 5, 10, 20]
    questions, rows = [], []
    for case in range(CASES):
        ranked = rng.sample(range(200), 20)
        relevant = [f"p{n}" for n in rng.sample(ranked, rng.randint(0, 1)) + rng.sample(range(200), 1)]
        answers = [rng.choice([" ", ""]) + phrase(rng, rng.choice([1, 2, 2])) for _ in range(rng.randint(1, 2))]
        questions.append({"question_id": f"q{case}", "question": "q", "answers": answers, "pos_item_ids": relevant})
        rows.append({"id": f"q{case}", "ranked": [f"p{n}" for n in ranked]})
    script.search_custom_collection = lambda **_: types.SimpleNamespace(
        todict=lambda: {row["id"]: [(int(p[1:]), rank, 1.0) for rank, p in enumerate(row["ranked"])] for row in rows}
    )
    batch = {key: [question[key] for question in questions] for key in questions[0]}
    batch |= {key: [0] * CASES for key in ["input_ids", "attention_mask", "pixel_values"]}
    data = types.SimpleNamespace(map=lambda function, fn_kwargs, **_: function(batch, **fn_kwargs))
    arguments = MagicMock(Ks=cutoffs, compute_pseudo_recall=True)
    contents, ids = [p["passage_content"] for p in passages], [p["passage_id"] for p in passages]
    scored = script.query_index(arguments, data, contents, ids, MagicMock())
    items = {f"success@{k}": scored[f"Recall@{k}"] for k in cutoffs}
    items |= {f"pseudo_recall@{k}": scored[f"Pseudo Recall@{k}"] for k in cutoffs}
    files = {"reference": lines(questions), "passages": lines(passages), "predictions": lines(rows)}
    write("m2kr", files, {}, items)


def viquae():
    rng = random.Random(8)
    sys.modules["rouge"] = types.ModuleType("rouge")
    sys.modules["rouge"].Rouge = lambda: types.SimpleNamespace(get_scores=lambda *_, **__: {"rouge-l": {"f": 0.0}})
    sys.modules["kilt"] = types.ModuleType("kilt")
    sys.modules["kilt"].__path__ = []
    sys.modules["kilt"].kilt_utils = MagicMock()
    retrieval = types.ModuleType("kilt.eval_retrieval")
    sys.modules["kilt.eval_retrieval"] = sys.modules["kilt"].eval_retrieval = retrieval
    retrieval.rprecision = lambda *_, **__: 0
    kilt = module("kilt", "kilt/eval_downstream.py")
    for name in ["mm", "qa", "rr"]:
        sys.modules[f"meerqat.models.{name}"] = MagicMock()
    loading = types.ModuleType("meerqat.data.loading")
    tree = ast.parse(source("viquae", "meerqat/data/loading.py"))
    wanted = {"remove_articles", "white_space_fix", "remove_punc", "answer_preprocess"}
    tree.body = [node for node in tree.body if getattr(node, "name", "") in wanted]
    exec("import re, string", loading.__dict__)
    exec(compile(tree, "loading", "exec"), loading.__dict__)
    for name in ["meerqat", "meerqat.data", "meerqat.train", "meerqat.ir"]:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["meerqat.data.loading"] = loading
    sys.modules["meerqat.data.utils"] = MagicMock()
    paths = ["meerqat/train/metrics.py", "meerqat/data/infoseek.py", "meerqat/ir/metrics.py"]
    metrics = package("viquae", "meerqat.ir.metrics", paths)
    passages = [phrase(rng, 8) for _ in range(200)]
    base = [{"passage": passage} for passage in passages]
    questions, rows, items = [], [], {"exact_match": [], "f1": []}
    qrels, run = {}, {}
    for case in range(CASES):
        answers = []
        while not any(answer.strip() for answer in answers):
            answers = [phrase(rng, rng.choice([1, 2])) for _ in range(rng.randint(1, 3))]
        answer = variant(rng, rng.choice(answers))
        ranked = rng.sample(range(200), 120)
        output = {"answer": answers, "original_answer": answers[0]}
        questions.append({"id": f"{case:032x}", "input": "q", "image": "i.jpg", "output": output})
        rows.append({"id": f"{case:032x}", "answer": answer, "ranked": ranked})
        gold = {"id": case, "output": [{"answer": a} for a in answers]}
        found = kilt._calculate_metrics([gold], [{"id": case, "output": [{"answer": answer}]}])["downstream"]
        items["exact_match"].append(found["em"])
        items["f1"].append(found["f1"])
        _, relevant = metrics.find_relevant(ranked, answers[0], answers, base)
        # A question without relevant passages has one that is not retrieved.
        qrels[f"{case:04}"] = {str(n): 1 for n in relevant} or {"none": 1}
        run[f"{case:04}"] = {str(n): 1.0 - rank / 1000 for rank, n in enumerate(ranked)}
    names = {"mrr@100": "mrr@100", "precision@1": "precision@1", "precision@20": "precision@20", "hit_rate@20": "success@20"}
    found = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), list(names), return_mean=False)
    items |= {ours: list(map(float, found[theirs])) for theirs, ours in names.items()}
    kb = lines({"id": n, "passage": passage} for n, passage in enumerate(passages))
    write("viquae", {"reference": lines(questions), "passages": kb, "predictions": lines(rows)}, {}, items)


class Tensor(np.ndarray):
    """The part of torch's tensors that the script uses."""

    def transpose(self, a, b):
        return np.swapaxes(self, a, b)

    def float(self):
        return self.astype(np.float64)

    def detach(self):
        return self

    cpu = detach


def webqa():
    rng = random.Random(9)
    tree = ast.parse(source("webqa", "pytorch_pretrained_bert/modeling.py"))
    function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "filter_metric")
    functional = types.SimpleNamespace(softmax=lambda x, dim: x)
    names = {"F": functional, "torch": types.SimpleNamespace(sum=lambda x, dim=None: np.sum(x, axis=dim))}
    exec(compile(ast.Module([function], []), "filter_metric", "exec"), names)
    tensor = lambda values: np.array(values, dtype=np.float64).view(Tensor)
    questions, rows = {}, []
    items = {"retrieval_f1": [], "retrieval_precision": [], "retrieval_recall": []}
    for case in range(CASES):
        images, snippets = rng.randint(0, 2), rng.randint(0, 2)
        facts = [(n, 30000000 + case * 10 + n) for n in range(images)] + [(n, f"d{case}_{n}") for n in range(snippets)]
        gold = [identifier for _, identifier in facts] or ["d_none"]
        others = [f"x{case}_{n}" for n in range(6)]
        guid = f"d5{case:04x}"
        questions[guid] = {
            "Q": "q", "A": ["a"], "Qcate": rng.choice(["text", "color", "YesNo"]), "split": "val", "topic": "t",
            "img_posFacts": [{"image_id": g, "title": "t"} for g in gold if isinstance(g, int)],
            "txt_posFacts": [{"snippet_id": g, "fact": "f"} for g in gold if isinstance(g, str)],
            "img_negFacts": [], "txt_negFacts": [],
        }
        sources = [s for s in gold + others if rng.random() < (0.6 if s in gold else 0.2)]
        rows.append({"id": guid, "sources": sources, "answer": "x"})
        chosen = [[0.9, 0.1] if s in sources else [0.1, 0.9] for s in gold + others]
        label = [[1, 0] if s in gold else [0, 1] for s in gold + others]
        mask = tensor([[1] * len(label)])
        found, _ = names["filter_metric"](tensor([chosen]), tensor([label]), mask, [0.5])
        for metric, value in zip(["retrieval_precision", "retrieval_recall", "retrieval_f1"], found[0.5]):
            items[metric].append(value)
    write("webqa", {"reference": json.dumps(questions), "predictions": lines(rows)}, {}, items)


def forget():
    rng = random.Random(10)
    sys.modules["equivalence"] = module("forget", "src/lmlm-audit/equivalence.py")
    metrics = module("forget", "src/lmlm-audit/metrics.py")
    right = ["Washington, D.C.", "US Dollar", ".us", "1.5", "Straße", "D'Arcy", "O''Hara", "ΟΔΟΣ", "ISTANBUL", "x_1-y", "1946", "?!"]
    odd = ["", "unknown", "N/A", "I don\u2019t know", "I don't know.", "None", "washington d c", "the us dollar", "us", "STRASSE",
           "οδος", "ıstanbul", "istanbul", "o hara", "d'arcy-", "12.5", "1.5.", "٣.٤", "!?", "dollar us", "X_1-Y z"]
    files, results, cases = {}, [], []
    for style in ["cloze", "direct_questions"]:
        rows = []
        for fact in range(CASES // 2):
            answer = rng.choice(right)
            base = {
                "fact_id": fact, "subject": f"S {fact}", "subject_aliases": [f"s-{fact}"], "relation": "Capital",
                "relation_aliases": ["Seat"], "ground_truth": answer, "prompt": f"{style} {fact} {answer}",
                "object_aliases": rng.sample(["USD", "Eur", "?"], rng.randint(0, 2)),
            }
            case = []
            for state in ["FULL", "DEL-ON", "DEL-OFF"]:
                output = rng.choice([answer, answer.upper(), rng.choice(right), rng.choice(odd), "usd", f"It is {answer}!"])
                candidate = {
                    "subject": rng.choice([f"S {fact}", f"S-{fact}", f"{fact}"]), "relation": rng.choice(["seat", "CAPITAL", "x"]),
                    "object": rng.choice([answer, "usd", "x"]),
                }
                if rng.random() < 0.1:
                    candidate["supports_target_fact"] = rng.random() < 0.5
                trace = rng.choice([None, {"retained_candidates": []}, {"retained_candidates": [candidate]}])
                case.append({**base, "state": state, "model_output": output, "retrieval_trace": trace})
            rows += case
            cases.append(case)
        files[f"made/up/prompts_{style}_results.jsonl"] = lines(rows)
        results += rows
    names = {"FULL": "full", "DEL-ON": "del_on", "DEL-OFF": "del_off"}
    expected = {}
    for state, name in names.items():
        total = metrics.metrics_total([row for row in results if row["state"] == state])
        for metric in ["exact_match", "contains_match", "unknown_rate", "f1"]:
            expected[f"{name}_{metric}"] = total[metric]
    del expected["del_off_exact_match"]
    crossed = ["parametric_leakage", "retrieval_mediated_correctness", "retrieval_artifact_rate"]
    expected.update({metric: metrics.metrics_total(results)[metric] for metric in crossed})
    items = {metric: [metrics.metrics_total(case)[metric] for case in cases] for metric in crossed}
    write("forget", files, expected, items)


for make in [counterfact, zsre, mquake, vlkeb, evqa, infoseek, m2kr, viquae, webqa, forget]:
    if len(sys.argv) < 3 or make.__name__ in sys.argv[2:]:
        make()
