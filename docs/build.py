#!/usr/bin/env python3
"""Builds the book from the pages in docs/, and checks all links of the repository's documents.

    python3 docs/build.py                                  # target/book/index.html; needs mdbook
    python3 docs/build.py --links                          # only checks the links

All links work in the repository, where a reader sees only its files. The book has more pages, which the program
`engram` prints (`PRINTED` below). mdBook:
`cargo install mdbook --version 0.5.4 --locked --no-default-features --features search`.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
# The pages that the program prints: title, file, arguments.
PRINTED = [
    ("Commands", "reference/cli.md", ["man", "--markdown"]),
    ("Recipe keys", "reference/recipes.md", ["recipe", "reference"]),
    ("Models", "reference/models.md", ["models", "--markdown"]),
]
# Documents outside the book.
OTHERS = ("*.md", "notebooks/*.ipynb", "train/bundled/*.md", "tests/torture/*.md", "data/assets/*/*.md")
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


def without_code(text):
    """A text without code blocks and code spans."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text):
    """The anchors of all headings of a page, as mdBook and GitHub name them."""
    found = set()
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)
    for heading in re.findall(r"^#+ +(.*?) *$", text, flags=re.M):
        kept = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count, anchor = 0, kept
        while anchor in found:
            count += 1
            anchor = f"{kept}-{count}"
        found.add(anchor)
    return found


def internal_links(text):
    """The links of a page to files and headings of the repository."""
    return [link for link in LINK.findall(without_code(text)) if not re.match(r"[a-z]+:", link)]


def broken_links(pages):
    """The links without a target. `pages` has the text of each document."""
    broken, targets = [], {page: anchors(text) for page, text in pages.items()}
    for page, text in pages.items():
        for link in internal_links(text):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            exists = target in pages or target.exists()
            if not exists or (anchor and anchor not in targets.get(target, ())):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    return broken


def unlisted(pages):
    """The pages of the book that SUMMARY.md does not list."""
    listed = {(DOCS / link).resolve() for link in internal_links(pages[DOCS / "SUMMARY.md"])}
    book = {page for page in pages if page.is_relative_to(DOCS)} - {DOCS / "SUMMARY.md"}
    return sorted(str(page.relative_to(DOCS)) for page in book - listed)


def check(pages):
    """Ends the program with a message if a link is broken or the book lacks a page."""
    broken = [f"broken link: {link}" for link in broken_links(pages)]
    broken += [f"not in docs/SUMMARY.md: {page}" for page in unlisted(pages)]
    if broken:
        sys.exit("\n".join(broken))


def with_source_links(page, text):
    """A page of the book. Its links to files outside the book lead to the files of this clone."""

    def address(match):
        path, mark, anchor = match[0].partition("#")
        target = (page.parent / path).resolve()
        inside = not path or re.match(r"[a-z]+:", match[0]) or target.is_relative_to(DOCS)
        return match[0] if inside else target.as_uri() + mark + anchor

    return LINK.sub(address, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engram", type=pathlib.Path, default=ROOT / "target/release/engram")
    parser.add_argument("--mdbook", default="mdbook", help="the program mdbook")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/book")
    parser.add_argument("--links", action="store_true", help="only check the links")
    arguments = parser.parse_args()

    files = [*DOCS.rglob("*.md"), *(file for form in OTHERS for file in ROOT.glob(form))]
    pages = {file: file.read_text(encoding="utf-8") for file in files}
    check(pages)
    print(f"{len(pages)} documents: all links have targets")
    if arguments.links:
        return

    summary = pages[DOCS / "SUMMARY.md"]
    for title, name, command in PRINTED:
        printed = subprocess.run([arguments.engram, *command], check=True, capture_output=True)
        pages[DOCS / name] = printed.stdout.decode("utf-8")
        summary += f"- [{title}]({name})\n"
    pages[DOCS / "SUMMARY.md"] = summary
    check(pages)
    with tempfile.TemporaryDirectory() as work:
        book = pathlib.Path(work, "book")
        shutil.copytree(DOCS, book, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        for page, text in pages.items():
            if page.is_relative_to(DOCS):
                target = book / page.relative_to(DOCS)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(with_source_links(page, text), encoding="utf-8")
        out = arguments.out.resolve()
        subprocess.run([arguments.mdbook, "build", book, "--dest-dir", out], check=True)
        print(out / "index.html")


if __name__ == "__main__":
    main()
