"""Times the modules of `engram.compat` against the packages that they stand for.

    PYTHONPATH=python python3 python/benches/peers.py                # all cases
    PYTHONPATH=python python3 python/benches/peers.py words flat     # some

Each side runs in a process of its own, the two sides in turn, and a time is the median of the runs. Within a run, a
case is computed once before it is timed. The packages must be installed: jiwer, pycocoevalcap, faiss-cpu,
sentence-transformers, faster-whisper, threadpoolctl. `ENGRAM_MINILM`, `ENGRAM_WHISPER` and `ENGRAM_DATA` name the
weights and the speech; a case without them is skipped. Set `OPENBLAS_CORETYPE` to the fastest kernel of faiss.
"""

import importlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

WORDS = "the light is on in a small room near the old door of this house and garden".split()
RUNS = 5


def sentences(count, seed):
    """Sentences of about ten words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(6, 15))) for _ in range(count)]


def words(package):
    """100,000 pairs with 10 % errors: counts and error rates."""
    ref = sentences(100_000, 1)
    rng = np.random.default_rng(2)
    hyp = [" ".join("x" if rng.random() < 0.1 else word for word in text.split()) for text in ref]
    jiwer = importlib.import_module(package + "jiwer")
    return lambda: jiwer.process_words(ref, hyp).wer


def cider(package):
    """CIDEr-D of 5,000 images with 5 references, already tokenized."""
    texts = sentences(30_000, 3)
    references = {image: texts[5 * image : 5 * image + 5] for image in range(5000)}
    results = {image: [texts[25_000 + image]] for image in range(5000)}
    module = importlib.import_module(package + "pycocoevalcap.cider.cider")
    return lambda: module.Cider().compute_score(references, results)[0]


def flat(package):
    """1,000 queries, k 10, in 100,000 vectors of width 384, by inner product."""
    rng = np.random.default_rng(4)
    keys = rng.normal(size=(100_000, 384)).astype("float32")
    queries = rng.normal(size=(1000, 384)).astype("float32")
    faiss = importlib.import_module(package + "faiss")
    index = faiss.IndexFlatIP(384)
    index.add(keys)
    return lambda: index.search(queries, 10)


def encode(package):
    """1,000 sentences by MiniLM."""
    texts = sentences(1000, 5)
    module = importlib.import_module(package + "sentence_transformers")
    model = module.SentenceTransformer(os.environ["ENGRAM_MINILM"])
    return lambda: model.encode(texts)


def transcribe(package):
    """Eight clips by Whisper tiny.en, beam 5."""
    folder = pathlib.Path(os.environ["ENGRAM_DATA"]) / "speech/wav16k"
    clips = sorted(map(str, folder.glob("*.wav")))[:8]
    module = importlib.import_module(package + "faster_whisper")
    model = module.WhisperModel(os.environ["ENGRAM_WHISPER"], compute_type="float32")
    return lambda: [list(model.transcribe(clip, beam_size=5)[0]) for clip in clips]


CASES = {case.__name__: case for case in [words, cider, flat, encode, transcribe]}
NEEDED = {"encode": ["ENGRAM_MINILM"], "transcribe": ["ENGRAM_WHISPER", "ENGRAM_DATA"]}


def kernels():
    """The kernels of the loaded BLAS libraries."""
    try:
        import threadpoolctl
    except ImportError:
        return ""
    pools = threadpoolctl.threadpool_info()
    return ",".join(sorted({str(pool.get("architecture")) for pool in pools if "architecture" in pool}))


def measure(case, package):
    """Prints the seconds of a case, and the kernels."""
    run = CASES[case](package)
    run()
    start = time.perf_counter()
    run()
    print(time.perf_counter() - start, kernels() or "-")


def main(cases):
    """Prints the times of both sides."""
    print(f"{'case':12} {'peer s':>8} {'ours s':>8} {'ours / peer':>12}  BLAS kernel of the peer")
    for case in cases or CASES:
        missing = [name for name in NEEDED.get(case, []) if name not in os.environ]
        if missing:
            print(f"{case:12} SKIPPED: set {', '.join(missing)}")
            continue
        seconds, kernel = {"": [], "engram.compat.": []}, "-"
        for _ in range(RUNS):
            for package, times in seconds.items():
                command = [sys.executable, __file__, "--run", case, package]
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                *_, time_of_run, kernel_of_run = output.split()
                times.append(float(time_of_run))
                kernel = kernel if package else kernel_of_run
        peer, ours = map(statistics.median, seconds.values())
        print(f"{case:12} {peer:8.3f} {ours:8.3f} {ours / peer:12.3f}  {kernel}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        measure(*sys.argv[2:])
    else:
        main(sys.argv[1:])
