"""Times `engram eval` and the reference tools in turns; started by run.sh.

Usage: compare.py ROUNDS
       compare.py make FOLDER      (writes the input files; the first form calls it)
Each line of the table has median wall times over ROUNDS processes on the same file: Engram with all
threads, Engram with one thread, the reference tool (peer). The ratios, the size of the input and the
peak memory follow.
"""
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGRAM = os.environ["ENGRAM"]
METRICS = Path(os.environ["ENGRAM_DATA"]) / "metrics"
HERE = Path(__file__).parent


def read(name):
    return gzip.open(METRICS / name, "rt").read()


def repeated_pairs(count):
    rows = [json.loads(line) for line in read("wer.jsonl.gz").splitlines()]
    for i in range(count):
        row = rows[i % len(rows)]
        yield {"id": i, "ref": row["ref"], "hyp": row["hyp"]}


def long_pair():
    return [json.loads(read("wer_long.jsonl.gz").splitlines()[0])]


def repeated_captions(count):
    """COCO's images under new ids; the last caption of each image is the result."""
    rows = json.loads(read("coco_captions_val2017.json.gz"))
    captions_by_image = {}
    for row in rows["annotations"]:
        captions_by_image.setdefault(row["image_id"], []).append(row["caption"])
    caption_lists = list(captions_by_image.values())
    annotations, results = {"images": [], "annotations": []}, []
    for i in range(count):
        captions = caption_lists[i % len(caption_lists)]
        annotations["images"].append({"id": i})
        for caption in captions[:-1]:
            entry = {"image_id": i, "id": len(annotations["annotations"]), "caption": caption}
            annotations["annotations"].append(entry)
        results.append({"image_id": i, "caption": captions[-1]})
    return annotations, results


def repeated_questions(count):
    annotations = json.loads(read("vqa.annotations.json.gz"))
    questions = json.loads(read("vqa.questions.json.gz"))
    results = {row["question_id"]: row["answer"] for row in json.loads(read("vqa.results.json.gz"))}
    rows, by_id = annotations["annotations"], {q["question_id"]: q for q in questions["questions"]}
    new_annotations, new_questions, new_results = [], [], []
    for i in range(count):
        row = rows[i % len(rows)]
        new_annotations.append({**row, "question_id": i})
        new_questions.append({**by_id[row["question_id"]], "question_id": i})
        new_results.append({"question_id": i, "answer": results[row["question_id"]]})
    return ({**annotations, "annotations": new_annotations},
            {**questions, "questions": new_questions}, new_results)


def repeated_strings(count):
    rows = [json.loads(line) for line in read("normalizer.jsonl.gz").splitlines()]
    texts = [row["raw"] for row in rows]
    texts = [" ".join(text.split()) for text in texts]
    return [texts[i % len(texts)] for i in range(count)]


def run(command, stdin=None):
    """Runs a process. Returns its wall time in seconds and its peak memory in MiB."""
    before = time.perf_counter()
    with open(stdin or os.devnull) as source:
        process = subprocess.Popen(
            command, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - before
    if status != 0:
        sys.exit(f"{command} failed")
    return seconds, usage.ru_maxrss / 1024


def print_row(name, engram, peer, files, stdin=None):
    """Times one task and prints its line of the table. `files` are the inputs whose size is given."""
    times = {"all": [], "one": [], "peer": []}
    memory = {}
    commands = {
        "all": [ENGRAM, *engram],
        "one": [ENGRAM, *engram, "--threads", "1"],
        "peer": [sys.executable, str(HERE / "peer.py"), *peer],
    }
    for _ in range(int(sys.argv[1])):
        for which, command in commands.items():
            seconds, peak = run(command, stdin)
            times[which].append(seconds)
            memory[which] = peak
    all_, one, peer_time = (statistics.median(times[w]) for w in ("all", "one", "peer"))
    size = sum(os.path.getsize(f) for f in files) / 2**20
    print(f"| {name} | {all_ * 1000:.0f} | {one * 1000:.0f} | {peer_time * 1000:.0f} | "
          f"{peer_time / all_:.1f}× | {peer_time / one:.1f}× | {size:.1f} | {memory['all']:.0f} | "
          f"{memory['peer']:.0f} |", flush=True)


def peer_loads(function):
    """Whether a function of peer.py without arguments succeeds."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import peer; peer.{function}()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def make(folder):
    """Writes all input files. Runs in a process of its own, so that no timed process inherits its memory."""
    def write(name, content):
        with open(Path(folder) / name, "w") as out:
            out.write(content)

    def lines(rows):
        return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)

    write("pairs.jsonl", lines(repeated_pairs(100_000)))
    write("long.jsonl", lines(long_pair()))
    for name, content in zip(("vqa_a", "vqa_q", "vqa_r"), repeated_questions(100_000)):
        write(f"{name}.json", json.dumps(content))
    write("texts.txt", "".join(text + "\n" for text in repeated_strings(100_000)))
    for name, content in zip(("cap_a", "cap_r"), repeated_captions(25_000)):
        write(f"{name}.json", json.dumps(content))


def main():
    folder = tempfile.mkdtemp()
    subprocess.run([sys.executable, __file__, "make", folder], check=True)
    pairs, long, annotations, questions, results, texts, references, captions = (
        f"{folder}/{name}" for name in ("pairs.jsonl", "long.jsonl", "vqa_a.json", "vqa_q.json", "vqa_r.json",
                                        "texts.txt", "cap_a.json", "cap_r.json"))
    print("| task | ms | ms, 1 thread | peer, ms | peer / ours | peer / 1 thread | input, MiB "
          "| peak, MiB | peer's peak, MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    no_intervals = ["--json", "--resamples", "0"]
    print_row("WER and CER, 100,000 pairs (jiwer 4.0.0)",
              ["eval", "wer", "--pairs", pairs, *no_intervals], ["wer", pairs], [pairs])
    print_row("the same with intervals of 1,000 resamples",
              ["eval", "wer", "--pairs", pairs, "--json"], ["wer", pairs], [pairs])
    print_row("WER and CER, a 10,000-word pair (jiwer 4.0.0)",
              ["eval", "wer", "--pairs", long, *no_intervals], ["wer", long], [long])
    print_row("VQA, 100,000 questions (the official script's steps, Python 3)",
              ["eval", "vqa", "--ref", annotations, "--hyp", results, *no_intervals],
              ["vqa", annotations, questions, results], [annotations, results])
    if peer_loads("whisper"):
        print_row("Whisper normaliser, 100,000 strings (openai-whisper 20250625)",
                  ["eval", "normalize", "--normalizer", "whisper-en"], ["normalize"], [texts], texts)
    else:
        print("SKIPPED: the Whisper normaliser; openai-whisper is not installed")
    if subprocess.run(["java", "-version"], capture_output=True).returncode == 0:
        print_row("captions, 25,000 images (pycocoevalcap 1.2: PTBTokenizer, BLEU, ROUGE-L, CIDEr)",
                  ["eval", "caption", "--ref", references, "--hyp", captions, *no_intervals],
                  ["caption", references, captions], [references, captions])
    else:
        print("SKIPPED: captions; Java is not installed")


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    main()
