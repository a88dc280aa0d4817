"""The Python of the documents: each `>>>` is run, and its output compared."""

import doctest
import importlib
import json
import os
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/how-to/python.md"]
MODULES = ["engram", "engram.evaluation", "engram.memory"]


class DocumentsTest(unittest.TestCase):
    def test_pages(self):
        for page in PAGES:
            text = (ROOT / page).read_text(encoding="utf-8")
            lines = ("" if line.startswith("```") else line for line in text.splitlines())
            example = doctest.DocTestParser().get_doctest("\n".join(lines), {}, page, page, 0)
            self.assertTrue(example.examples, page)
            with tempfile.TemporaryDirectory() as folder:
                before = os.getcwd()
                os.chdir(folder)
                try:
                    result = doctest.DocTestRunner().run(example)
                finally:
                    os.chdir(before)
            self.assertEqual(result.failed, 0, page)

    def test_modules(self):
        for name in MODULES:
            result = doctest.testmod(importlib.import_module(name))
            self.assertGreater(result.attempted, 0, name)
            self.assertEqual(result.failed, 0, name)

    def test_the_notebook(self):
        notebook = json.loads((ROOT / "notebooks/05-python.ipynb").read_text(encoding="utf-8"))
        code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertGreater(len(code), 2)
        before, names = os.getcwd(), {}
        os.chdir(ROOT)
        try:
            for source in code:
                exec(compile("".join(source), "05-python.ipynb", "exec"), names)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    unittest.main()
