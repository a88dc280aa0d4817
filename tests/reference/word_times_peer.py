"""Writes the word times of faster-whisper on a folder, or compares Engram's word times with them.

    python tests/reference/word_times_peer.py MODEL FOLDER THEIRS.jsonl [--timestamps]
    python tests/reference/word_times_peer.py --compare OURS.jsonl THEIRS.jsonl

MODEL is a folder with `model.bin`. Transcribes every .wav in FOLDER greedily in float32 on one thread, without timestamps
by default, and writes one JSON line with id and words for each. faster-whisper transcribes the audio after the last word
again; only its first window is used. Compares only clips with equal words. faster-whisper splits `well-known` into `well`
and `-known`; this script joins such words, without a probability. Written for faster-whisper 1.2.1.
"""

import json
import sys
from pathlib import Path


def transcribe(model, folder, output, timestamps):
    from faster_whisper import WhisperModel

    whisper = WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=1)
    lines = []
    for file in sorted(Path(folder).glob("*.wav")):
        segments, _ = whisper.transcribe(
            str(file), beam_size=1, temperature=0, without_timestamps=not timestamps, word_timestamps=True
        )
        words = []
        for segment in segments:
            if segment.seek > 0:
                break
            for i, word in enumerate(segment.words):
                if words and i > 0 and not word.word.startswith(" "):
                    words[-1]["text"] += word.word
                    words[-1] |= {"end": word.end, "probability": None}
                else:
                    probability = round(word.probability, 6)
                    words.append({"text": word.word, "start": word.start, "end": word.end, "probability": probability})
            if not timestamps:
                break
        for word in words:
            word["text"] = word["text"].strip()
        lines.append(json.dumps({"id": file.stem, "words": words}))
        print(len(lines), end=" ", flush=True)
    Path(output).write_text("\n".join(lines) + "\n")


def compare(ours, theirs):
    def read(path):
        lines = map(json.loads, Path(path).read_text().splitlines())
        return {line["id"]: line.get("words", []) for line in lines}

    ours, theirs = read(ours), read(theirs)
    starts, ends, probabilities, different_clips, large_differences = [], [], [], [], []
    for clip, words in theirs.items():
        our_words = ours.get(clip, [])
        if [word["text"] for word in our_words] != [word["text"] for word in words]:
            different_clips.append(clip)
            continue
        for our_word, word in zip(our_words, words):
            starts.append(abs(our_word["start"] - word["start"]))
            ends.append(abs(our_word["end"] - word["end"]))
            if word["probability"] is not None:
                probabilities.append(abs(our_word["probability"] - word["probability"]))
            if max(starts[-1], ends[-1]) > 0.021:
                our_time = f"{our_word['start']}-{our_word['end']}"
                large_differences.append(f"{clip}: {word['text']} {word['start']}-{word['end']}, ours {our_time}")
    equal = len(theirs) - len(different_clips)
    print(f"{equal} of {len(theirs)} clips have equal words ({len(starts)} words); others: {different_clips}")
    for name, values in (("start", starts), ("end", ends)):
        shares = [f"{sum(v < limit for v in values) / len(values):.4f} < {limit} s" for limit in (0.005, 0.02, 0.05, 0.1)]
        print(f"{name}: {', '.join(shares)}; largest difference {max(values):.3f} s")
    print(f"probability: largest difference {max(probabilities):.5f}")
    print("\n".join(large_differences))


arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
if "--compare" in sys.argv:
    compare(*arguments)
else:
    transcribe(*arguments, "--timestamps" in sys.argv)
