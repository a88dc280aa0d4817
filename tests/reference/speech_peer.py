"""The Python side of the speech benchmark: faster-whisper on a folder, greedy by default, in float32.

    python tests/reference/speech_peer.py MODEL FOLDER OUTPUT.tsv [beams]

MODEL is a folder with `model.bin`. Transcribes every .wav in FOLDER. Written for faster-whisper 1.2.1.
"""

import sys
from pathlib import Path

from faster_whisper import WhisperModel

model, folder, output = sys.argv[1:4]
beams = int(sys.argv[4]) if len(sys.argv) > 4 else 1
whisper = WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=2)
lines = ["id\ttext"]
for file in sorted(Path(folder).glob("*.wav")):
    segments, _ = whisper.transcribe(str(file), beam_size=beams, temperature=0, without_timestamps=True)
    text = "".join(segment.text for segment in segments).strip()
    lines.append(f"{file.stem}\t{text}")
Path(output).write_text("\n".join(lines) + "\n")
