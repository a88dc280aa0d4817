"""Makes chrf.json: texts with one to three references, and sacrebleu's chrF and chrF++.

Run:      python -m venv /tmp/sacrebleu && /tmp/sacrebleu/bin/pip install sacrebleu==2.5.1
          /tmp/sacrebleu/bin/python chrf.py   (writes chrf.json beside this file; about a second)
Versions: Python 3.11, sacrebleu 2.5.1
Form:     one object per case: name, hypotheses, references (a list per text), and for "chrf" and "chrf++" the score of
          the corpus and of each text. Signatures: case:mixed|eff:yes|nc:6|nw:0|space:no, and with nw:2.
"""

import json
import pathlib
import random

from sacrebleu.metrics import CHRF

WORDS = (
    "the a cat dogs sat runs on mat under table quickly don't well-known (see 3.5 U.S. 'quoted' \"so\" yes, no; what? "
    "!!! ... — «voilà» naïve Übergröße straße Παρίσι οδός Москва ёлка 東京 大阪に行く 猫。 你好，世界！ 안녕하세요 "
    "नमस्ते सुप्रभात مرحبا، שלום 👩‍👩‍👧 🇫🇷 😀 é é ﬁne ½ 10,000.00 x=1 a/b e-mail@host.org #tag _under_ 𝒳𝒴"
).split(" ")
SPACES = [" "] * 12 + ["  ", "\t", "\u00a0", "\u3000", "\u2009", "\u001c", "\u0085"]


def text(rng, word_count):
    pieces = [rng.choice(WORDS)]
    for _ in range(word_count - 1):
        pieces += [rng.choice(SPACES), rng.choice(WORDS)]
    return "".join(pieces) if word_count else ""


def edited(rng, reference):
    """The reference with some words replaced, removed or moved, and some characters changed."""
    words = reference.split(" ")
    for index in range(len(words)):
        draw = rng.random()
        if draw < 0.15:
            words[index] = rng.choice(WORDS)
        elif draw < 0.25:
            words[index] = ""
        elif draw < 0.35 and words[index]:
            at = rng.randrange(len(words[index]))
            words[index] = words[index][:at] + rng.choice("eaé.,-東") + words[index][at + 1 :]
    if rng.random() < 0.3:
        rng.shuffle(words)
    return " ".join(words)


def random_case(name, seed, text_count, reference_count):
    rng = random.Random(seed)
    hypotheses, all_references = [], []
    for _ in range(text_count):
        source = text(rng, rng.choice([0, 1, 1, 2, 3, 5, 8, 13, 21]))
        hypotheses.append(edited(rng, source))
        all_references.append([source] + [edited(rng, source) for _ in range(reference_count - 1)])
    return name, hypotheses, all_references


CASES = [
    random_case("one reference", 1, 60, 1),
    random_case("two references", 2, 40, 2),
    random_case("three references", 3, 25, 3),
    ("equal texts", ["the cat sat.", "東京", "a"], [["the cat sat."], ["東京"], ["a"]]),
    ("empty texts", ["", "a b", "", " \t"], [["a b"], [""], [""], ["\u3000"]]),
    ("only empty texts", [""], [[""]]),
    ("nothing in common", ["abc"], [["xyz"]]),
    ("no n-gram of the reference matches a longer one", ["a b c"], [["a"]]),
    ("equal scores of two references", ["ab"], [["abx", "abyz", "xab"]]),
    ("an empty reference beside another", ["a cat", "a dog"], [["", "a cat sat"], ["a dog", ""]]),
    ("punctuation", ["(hi) !?", "\"a\" ,b c. . --", "...", "'tis 'n'"], [["( hi )!?"], ["a b, c."], [".."], ["'tis n"]]),
    ("case and composed letters", ["Été ÉTÉ"], [["été e\u0301te\u0301"]]),
]


def scores(metric, hypotheses, references):
    streams = [list(stream) for stream in zip(*references)]
    sentences = [metric.sentence_score(h, r).score for h, r in zip(hypotheses, references)]
    return {"corpus": metric.corpus_score(hypotheses, streams).score, "sentences": sentences}


lines = []
for name, hypotheses, references in CASES:
    case = {"name": name, "hypotheses": hypotheses, "references": references}
    for key, word_order in [("chrf", 0), ("chrf++", 2)]:
        case[key] = scores(CHRF(word_order=word_order), hypotheses, references)
    lines.append(json.dumps(case, ensure_ascii=True))
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
