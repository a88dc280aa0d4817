"""The steps of the official VQA script (GT-Vision-Lab/VQA a013f00) in Python 3.

No package contains the script. The table of contractions is read from Engram's source, so that both use the same one.
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


def process_punctuation(text):
    out = text
    for mark in PUNCTUATION:
        if mark + " " in text or " " + mark in text or COMMA.search(text) is not None:
            out = out.replace(mark, "")
        else:
            out = out.replace(mark, " ")
    return STOP.sub("", out, re.UNICODE)


def process_digit_article(text):
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    words = [word for word in words if word not in ("a", "an", "the")]
    return " ".join(CONTRACTIONS.get(word, word) for word in words)


def without_line_ends(text):
    return text.replace("\n", " ").replace("\t", " ").strip()


def accuracy(annotations, questions, results):
    """Overall accuracy in per cent, and by question type and answer type."""
    predicted = {row["question_id"]: row["answer"] for row in results}
    question_ids = {row["question_id"] for row in questions["questions"]}
    scores, by_question, by_answer = [], {}, {}
    for row in annotations["annotations"]:
        assert row["question_id"] in question_ids
        answers = [dict(answer, answer=without_line_ends(answer["answer"])) for answer in row["answers"]]
        result = without_line_ends(predicted[row["question_id"]])
        if len({answer["answer"] for answer in answers}) > 1:
            for answer in answers:
                answer["answer"] = process_digit_article(process_punctuation(answer["answer"]))
            result = process_digit_article(process_punctuation(result))
        answer_scores = []
        for answer in answers:
            others = [other for other in answers if other != answer]
            matching = [other for other in others if other["answer"] == result]
            answer_scores.append(min(1, float(len(matching)) / 3))
        score = float(sum(answer_scores)) / len(answer_scores)
        scores.append(score)
        by_question.setdefault(row["question_type"], []).append(score)
        by_answer.setdefault(row["answer_type"], []).append(score)

    def mean(values):
        return round(100 * float(sum(values)) / len(values), 2)

    groups = [{name: mean(values) for name, values in group.items()}
              for group in (by_question, by_answer)]
    return mean(scores), *groups
