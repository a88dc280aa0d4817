"""Synthesizes the image names of the embedded world: one FLAC file per voice, and clips.tsv.

Needs espeak-ng 1.51 and `pip install numpy scipy soundfile`. Run in this folder: `python3 make.py`.

Clips are trimmed, scaled to the same peak, resampled to 16 kHz and rounded to 8 bits. The rounding noise is 37 dB below
the speech, and lets 1,460 clips fit into 6 MB. A tenth of a second of silence separates consecutive clips.
"""

import subprocess
import tempfile
from math import gcd
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

RATE = 16_000
BITS = 8
GAP = RATE // 10

# Split, voice and variant of espeak-ng, words per minute, pitch.
VOICES = [
    ("train", "en-us+m1", 175, 45),
    ("train", "en-us+f2", 185, 55),
    ("train", "en-gb+m3", 180, 40),
    ("train", "en-gb+f1", 190, 60),
    ("train", "en-gb-scotland+m5", 180, 50),
    ("train", "en-gb-x-gbclan+f3", 175, 50),
    ("train", "en-029+m4", 185, 35),
    ("train", "en-gb-x-gbcwmd+f5", 180, 45),
    ("validation", "en-us-nyc+m7", 180, 50),
    ("test", "en-gb-x-rp+f4", 180, 50),
]

# Phrases before and between names.
OPENERS = ["this is a", "look at the", "i can see the", "here is a", "show me the", "where is the"]
JOINERS = ["and the", "next to a"]

NAMES = """
abacus accordion airplane alien ambulance anchor ant avocado axe baby backpack badger balloon banana banjo basket
bathtub battery bear beaver bell bicycle blueberries bomb boomerang bread broccoli broom burrito butterfly cactus camel
candle canoe carrot castle cat chair cherries chicken coconut cookie crab crocodile cucumber dolphin donkey
door doughnut dragon drum duck eagle elephant envelope falafel feather fire flamingo flashlight flute fountain fox frog
garlic ghost giraffe goat gorilla grapes guitar hamburger hammer harp hedgehog helicopter hippopotamus honeybee horse
jellyfish kangaroo key kite koala ladder lemon lion lizard lobster magnet mango microphone mirror monkey mosquito
mountain mouse mushroom ninja octopus onion owl panda parrot peacock pencil penguin pineapple pizza potato
rabbit rainbow robot rocket rose saxophone scissors shark snail snowman spider squid strawberry sunflower telescope tiger
tomato tractor trumpet turtle umbrella unicorn violin volcano watermelon whale wolf zebra
""".split()

CLIPS = [("opener", text) for text in OPENERS] + [("joiner", text) for text in JOINERS] + [("name", text) for text in NAMES]


def synthesize(text, voice, words_per_minute, pitch, folder):
    """Returns the samples of a text, trimmed, at 16 kHz, with a peak of 0.95."""
    path = Path(folder) / "clip.wav"
    command = ["espeak-ng", "-v", voice, "-s", str(words_per_minute), "-p", str(pitch), "-w", str(path), text]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    samples, source_rate = soundfile.read(path)
    audible = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    samples = samples[audible[0] : audible[-1] + 1]
    divisor = gcd(source_rate, RATE)
    samples = resample_poly(samples, RATE // divisor, source_rate // divisor)
    return samples * (0.95 / np.abs(samples).max())


def main():
    lines = ["voice\tsplit\tkind\ttext\tstart\tlength"]
    with tempfile.TemporaryDirectory() as folder:
        for split, voice, words_per_minute, pitch in VOICES:
            parts, position = [], 0
            for kind, text in CLIPS:
                samples = synthesize(text, voice, words_per_minute, pitch, folder)
                lines.append(f"{voice}\t{split}\t{kind}\t{text}\t{position}\t{len(samples)}")
                parts += [samples, np.zeros(GAP)]
                position += len(samples) + GAP
            step = 2 ** (16 - BITS)
            rounded = np.round(np.concatenate(parts) * 32768 / step) * step
            rounded = rounded.clip(-32768, 32767).astype(np.int16)
            soundfile.write(f"{voice}.flac", rounded, RATE, subtype="PCM_16", compression_level=1.0)
    Path("clips.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
