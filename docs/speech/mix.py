"""SOUNDS NOISES DB OUT: each sound of a folder under a recording of noise, drawn by its name, into another folder."""

import array
import math
import os
import random
import sys
import wave

sounds, noises, db, out = *sys.argv[1:3], float(sys.argv[3]), sys.argv[4]


def read(folder, name):
    with wave.open(os.path.join(folder, name)) as file:
        return array.array("h", file.readframes(file.getnframes()))


for name in sorted(os.listdir(sounds)):
    drawn, sound = random.Random(name), read(sounds, name)
    noise = read(noises, drawn.choice([f"noise{n}.wav" for n in range(1, 6)]))
    begin = drawn.randrange(len(noise))
    noise = [noise[(begin + i) % len(noise)] for i in range(len(sound))]
    gain = math.sqrt(sum(s * s for s in sound) / sum(n * n for n in noise) / 10 ** (db / 10))
    mixed = [s + gain * n for s, n in zip(sound, noise)]
    scale = min(1, 32767 / max(map(abs, mixed)))
    with wave.open(os.path.join(out, name), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", None))
        file.writeframes(array.array("h", [round(scale * m) for m in mixed]).tobytes())
