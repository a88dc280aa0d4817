"""What the official VQA script computes (GT-Vision-Lab/VQA a013f00), step by step in Python 3.

The script itself is in no package. The table of contractions is read from our own source, so that there is one.
"""
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "vqa" / "contractions.rs"
CONTRACTIONS = dict(re.findall(r'^    \("(.+)", "(.+)"\),$', SOURCE.read_text(), re.MULTILINE))
NUMBERS = {word: str(i) for i, word in enumerate(
    "zero one two three four five six seven eight nine ten".split())} | {"none": "0"}
PUNCTUATION = [";", "/", "[", "]", '"', "{", "}", "(", ")", "=", "+", "\\", "_", "-", ">", "<", "@",
               "`", ",", "?", "!"]
STOP = re.compile(r"(?!<=\d)(\.)(?!\d)")
COMMA = re.compile(r"(\d)(,)(\d)")


def without_punctuation(text):
    out = text
    for mark in PUNCTUATION:
        if mark + " " in text or " " + mark in text or COMMA.search(text) is not None:
            out = out.replace(mark, "")
        else:
            out = out.replace(mark, " ")
    return STOP.sub("", out, re.UNICODE)


def without_articles(text):
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    words = [word for word in words if word not in ("a", "an", "the")]
    return " ".join(CONTRACTIONS.get(word, word) for word in words)


def tidied(text):
    return text.replace("\n", " ").replace("\t", " ").strip()


def accuracy(annotations, questions, results):
    """Overall accuracy in per cent, and by question type and answer type."""
    given = {row["question_id"]: row["answer"] for row in results}
    asked = {row["question_id"] for row in questions["questions"]}
    scores, by_question, by_answer = [], {}, {}
    for row in annotations["annotations"]:
        assert row["question_id"] in asked
        answers = [dict(answer, answer=tidied(answer["answer"])) for answer in row["answers"]]
        result = tidied(given[row["question_id"]])
        if len({answer["answer"] for answer in answers}) > 1:
            for answer in answers:
                answer["answer"] = without_articles(without_punctuation(answer["answer"]))
            result = without_articles(without_punctuation(result))
        person_scores = []
        for answer in answers:
            others = [other for other in answers if other != answer]
            matching = [other for other in others if other["answer"] == result]
            person_scores.append(min(1, float(len(matching)) / 3))
        score = float(sum(person_scores)) / len(person_scores)
        scores.append(score)
        by_question.setdefault(row["question_type"], []).append(score)
        by_answer.setdefault(row["answer_type"], []).append(score)

    def mean(values):
        return round(100 * float(sum(values)) / len(values), 2)

    groups = [{name: mean(values) for name, values in group.items()}
              for group in (by_question, by_answer)]
    return mean(scores), *groups
