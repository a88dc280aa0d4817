"""Runs one reference tool on its input files. `compare.py` times this script.

Usage: peer.py wer PAIRS | vqa ANNOTATIONS QUESTIONS RESULTS | normalize < LINES | caption REFERENCES RESULTS
"""
import json
import sys


def wer(path):
    import jiwer

    rows = [json.loads(line) for line in open(path)]
    references, hypotheses = [r["ref"] for r in rows], [r["hyp"] for r in rows]
    words = jiwer.process_words(references, hypotheses)
    chars = jiwer.process_characters(references, hypotheses)
    print(words.wer, words.mer, words.wil, words.wip, chars.cer)


def whisper():
    """Whisper's normaliser, loaded without the rest of the package."""
    import importlib.util
    import types
    from pathlib import Path

    root = Path(importlib.util.find_spec("whisper").submodule_search_locations[0])
    package = types.ModuleType("whisper")
    package.__path__ = [str(root)]
    sys.modules["whisper"] = package
    from whisper.normalizers import EnglishTextNormalizer

    return EnglishTextNormalizer()


def normalize():
    normalizer = whisper()
    for line in sys.stdin:
        print(normalizer(line.rstrip("\n")))


def vqa(annotations, questions, results):
    from vqa_eval import accuracy

    print(accuracy(json.load(open(annotations)), json.load(open(questions)), json.load(open(results))))


def caption(references, results):
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    annotations = json.load(open(references))
    gts = {image["id"]: [] for image in annotations["images"]}
    for row in annotations["annotations"]:
        gts[row["image_id"]].append({"caption": row["caption"]})
    by_image = {row["image_id"]: [{"caption": row["caption"]}] for row in json.load(open(results))}
    res = {image: by_image[image] for image in gts}
    tokenizer = PTBTokenizer()
    gts, res = tokenizer.tokenize(gts), tokenizer.tokenize(res)
    for scorer in (Bleu(4), Rouge(), Cider()):
        print(scorer.compute_score(gts, res)[0])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
