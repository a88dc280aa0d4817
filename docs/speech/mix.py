"""Mixes each recording of a folder with a recording of noise, and writes the mixtures to another folder.

    python3 mix.py RECORDINGS NOISES SNR_DB OUT

The file name of a recording seeds the choice of the noise, NOISES/noise1.wav to noise5.wav, and of its start.
"""

import array
import math
import os
import random
import sys
import wave

recordings, noises, snr_db, out = *sys.argv[1:3], float(sys.argv[3]), sys.argv[4]


def read(folder, name):
    with wave.open(os.path.join(folder, name)) as file:
        return array.array("h", file.readframes(file.getnframes()))


for name in sorted(os.listdir(recordings)):
    generator, speech = random.Random(name), read(recordings, name)
    noise = read(noises, generator.choice([f"noise{n}.wav" for n in range(1, 6)]))
    start = generator.randrange(len(noise))
    noise = [noise[(start + i) % len(noise)] for i in range(len(speech))]
    gain = math.sqrt(sum(s * s for s in speech) / sum(n * n for n in noise) / 10 ** (snr_db / 10))
    mixed = [s + gain * n for s, n in zip(speech, noise)]
    scale = min(1, 32767 / max(map(abs, mixed)))
    with wave.open(os.path.join(out, name), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", None))
        file.writeframes(array.array("h", [round(scale * m) for m in mixed]).tobytes())
