"""REF SOUNDS OUT LONGEST_PAUSE: the recordings of REF's lines one after the other in OUT.wav, their texts in OUT.tsv."""

import array
import os
import random
import sys
import wave

ref, sounds, out, longest = *sys.argv[1:4], float(sys.argv[4])


def samples(path):
    """16 kHz, one channel: 16 bits, or floats, as `engram data speech` writes them and Python's `wave` does not read."""
    file = open(path, "rb").read()
    at = file.index(b"data")
    data = file[at + 8 : at + 8 + int.from_bytes(file[at + 4 : at + 8], "little")]
    if file[34] == 16:
        return data
    return array.array("h", [round(32767 * sample) for sample in array.array("f", data)]).tobytes()


rows = [line.rstrip("\n").split("\t") for line in open(ref)]
rows = [row for row in rows if os.path.exists(f"{sounds}/{row[0]}.wav")]
drawn = random.Random(1)
with wave.open(f"{out}.wav", "wb") as joined:
    joined.setparams((1, 2, 16000, 0, "NONE", None))
    for row in rows:
        joined.writeframes(samples(f"{sounds}/{row[0]}.wav"))
        if longest:
            joined.writeframes(bytes(2 * round(16000 * drawn.uniform(0.2, longest))))
with open(f"{out}.tsv", "w") as texts:
    print(os.path.basename(out), " ".join(row[1] for row in rows), sep="\t", file=texts)
