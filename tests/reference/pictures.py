"""Reference fixtures for images, made by Pillow.

Writes to data/tests/fixtures/pictures:
- source.png, palette.png, grey.png, alpha.webp, source.gif, source.bmp, turned.jpg: one small image with smooth colours,
  lines and noise in several formats (the JPEG has an EXIF orientation, which Pillow's `open` ignores);
- resized.png: the image resized by each filter to several sizes, one below the other on a black background;
- expected.json: the positions of the sizes in resized.png, and the mean colours of each decoded file;
- coco.json: sizes of some COCO photographs and their 8 x 8 thumbnails, if `--coco` is given.

    python tests/reference/pictures.py [--coco FOLDER]

Made with Python 3.11, Pillow 13.0.0.
"""

import argparse
import json
import random
from pathlib import Path

from PIL import Image

FIXTURES = Path(__file__).resolve().parents[2] / "data" / "tests" / "fixtures" / "pictures"
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
# For (60, 20), Pillow resizes the columns first.
SIZES = [(24, 24), (31, 7), (60, 20), (96, 80), (61, 43), (61, 9), (5, 43), (1, 1)]


def source():
    """Returns an image of 61 x 43 pixels."""
    random_source = random.Random(3)
    image = Image.new("RGB", (61, 43))
    for y in range(43):
        for x in range(61):
            smooth = (4 * x, 255 - 5 * y, (x * y) % 256)
            line = (255, 255, 255) if (x + 2 * y) % 17 == 0 else smooth
            noise = random_source.randint(-20, 20) if y > 21 else 0
            image.putpixel((x, y), tuple(max(0, min(255, c + noise)) for c in line))
    return image


def write_coco(folder):
    """Writes the size and bicubic thumbnail of every twentieth photograph."""
    thumbnails = {}
    for path in sorted(Path(folder).glob("*.jpg"))[::20]:
        opened = Image.open(path).convert("RGB")
        pixels = opened.resize((8, 8), Image.Resampling.BICUBIC).tobytes()
        thumbnails[path.name] = {"size": list(opened.size), "pixels": pixels.hex()}
    (FIXTURES / "coco.json").write_text(json.dumps(thumbnails, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coco", help="folder of COCO's val2017 photographs")
    arguments = parser.parse_args()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    image = source()
    alpha = image.copy()
    alpha.putalpha(Image.linear_gradient("L").resize(image.size))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(FIXTURES / "source.png", optimize=True)
    image.quantize(32).save(FIXTURES / "palette.png", optimize=True)
    image.convert("L").save(FIXTURES / "grey.png", optimize=True)
    alpha.save(FIXTURES / "alpha.webp", lossless=True, exact=True)
    image.quantize(32).save(FIXTURES / "source.gif")
    image.save(FIXTURES / "source.bmp")
    image.save(FIXTURES / "turned.jpg", quality=90, subsampling=0, exif=exif)

    positions, top = [], 0
    canvas = Image.new("RGB", (96, 2 * sum(height for _, height in SIZES)))
    for name, resample in FILTERS.items():
        for size in SIZES:
            canvas.paste(image.resize(size, resample), (0, top))
            positions.append({"filter": name, "width": size[0], "height": size[1], "top": top})
            top += size[1]
    canvas.save(FIXTURES / "resized.png", optimize=True)

    decoded = {}
    for path in sorted(FIXTURES.iterdir()):
        if path.suffix != ".json" and path.name != "resized.png":
            opened = Image.open(path).convert("RGB")
            pixels = list(opened.getdata())
            means = [sum(pixel[c] for pixel in pixels) / len(pixels) for c in range(3)]
            decoded[path.name] = {"size": list(opened.size), "mean": [round(m, 4) for m in means]}
    if arguments.coco:
        write_coco(arguments.coco)
    expected = {"resized": positions, "decoded": decoded}
    (FIXTURES / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
