"""Writes data/tests/fixtures/pictures/explore_test.rcc, a small Qt container laid out like those of GCompris.

    python3 tests/reference/rcc.py
"""
import pathlib
import struct
import zlib

ROOT = "gcompris/src/activities/"
FOLDER = ROOT + "explore_test/resource/"


def png(*pixels):
    """A PNG of one row of RGB pixels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"\0" + bytes(value for pixel in pixels for value in pixel)
    header = struct.pack(">IIBBBBB", len(pixels), 1, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


BOARD = f"""QtObject {{
    property var tab: [
        {{
            "image": "qrc:/{FOLDER}key.svg",
            "title": qsTr("Petra, Jordan"),
            "text": qsTr("A city in the \\"rock\\"."),
            "image2": "qrc:/{FOLDER}petra.webp",
            "text2": qsTr("Petra"),
            "x": 0.5
        }}
    ]
}}
"""
README = """Copyright: Ann
License: CC0-1.0
Source: https://example.org/petra.jpg
Files:
petra.webp
"""
SORTED = ROOT + "categorization/resource/images/"
FILES = {
    FOLDER + "board/board1.qml": BOARD.encode(),
    FOLDER + "README": README.encode(),
    FOLDER + "petra.webp": png((200, 100, 50), (10, 20, 30)),
    SORTED + "tools/measuringTape1.webp": png((1, 2, 3), (250, 250, 0)),
    SORTED + "tools/measuringTape2.webp": png((9, 9, 9), (0, 99, 0)),
    SORTED + "numbers/numbers.webp": png((9, 9, 9), (0, 99, 0)),
}


def container(files):
    """Version 3, breadth first, as `rcc` of Qt writes it; the board is compressed."""
    root = {}
    for path, content in files.items():
        *folders, name = path.split("/")
        folder = root
        for part in folders:
            folder = folder.setdefault(part, {})
        folder[name] = content
    order, position = [("", root)], 0
    tree, data, names = b"", b"", b""
    while position < len(order):
        name, node = order[position]
        position += 1
        offset = len(names)
        if name:
            names += struct.pack(">HI", len(name), 0) + name.encode("utf-16-be")
        if isinstance(node, dict):
            tree += struct.pack(">IHII", offset if name else 0, 2, len(node), len(order))
            order += node.items()
        else:
            packed = name.endswith(".qml")
            tree += struct.pack(">IHHHI", offset, int(packed), 0, 1, len(data))
            stored = struct.pack(">I", len(node)) + zlib.compress(node) if packed else node
            data += struct.pack(">I", len(stored)) + stored
        tree += bytes(8)
    start = 24
    header = struct.pack(">4sIIIII", b"qres", 3, start, start + len(tree), start + len(tree) + len(data), 0)
    return header + tree + data + names


target = pathlib.Path(__file__).parents[2] / "data/tests/fixtures/pictures/explore_test.rcc"
target.write_bytes(container(FILES))
