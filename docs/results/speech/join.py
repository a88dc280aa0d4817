"""Joins the recordings of a reference file to one recording, with a pause after each, and joins their texts.

    python3 join.py REFERENCES RECORDINGS OUT LONGEST_PAUSE

REFERENCES has lines of `id<TAB>text`, and RECORDINGS/ID.wav are the recordings; lines without a recording are skipped.
Writes OUT.wav, and OUT.tsv with one line. Pauses are random, from 0.2 to LONGEST_PAUSE seconds; 0 for no pauses.
"""

import array
import os
import random
import sys
import wave

references, recordings, out, longest_pause = *sys.argv[1:4], float(sys.argv[4])


def samples(path):
    """Returns the 16-bit samples of a file with one channel at 16 kHz, as bytes.

    The file has 16-bit samples, or the floats of `engram data speech`, which Python's `wave` does not read.
    """
    file = open(path, "rb").read()
    start = file.index(b"data")
    data = file[start + 8 : start + 8 + int.from_bytes(file[start + 4 : start + 8], "little")]
    if file[34] == 16:
        return data
    return array.array("h", [round(32767 * sample) for sample in array.array("f", data)]).tobytes()


rows = [line.rstrip("\n").split("\t") for line in open(references)]
rows = [row for row in rows if os.path.exists(f"{recordings}/{row[0]}.wav")]
generator = random.Random(1)
with wave.open(f"{out}.wav", "wb") as joined:
    joined.setparams((1, 2, 16000, 0, "NONE", None))
    for row in rows:
        joined.writeframes(samples(f"{recordings}/{row[0]}.wav"))
        if longest_pause:
            joined.writeframes(bytes(2 * round(16000 * generator.uniform(0.2, longest_pause))))
with open(f"{out}.tsv", "w") as texts:
    print(os.path.basename(out), " ".join(row[1] for row in rows), sep="\t", file=texts)
