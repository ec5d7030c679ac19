"""Published tables, on rows that are made up; and the pages that hold them against the results."""

import json
import re
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import publish
from compare import plot, tables

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGES = sorted((ROOT / "docs" / "performance").glob("*.md"))


def row(name, rival="CUDNN", value=1.126, kind="speed", unit="TFLOP/s", rate=700.6, ours=11.23):
    return {"name": name, "kind": kind, "value": value, "low": value / 2, "high": value * 2,
            "ours": {"name": "ours", "rate": rate, "unit": unit, "microseconds": ours},
            "against": {"name": rival, "rate": 500.2, "unit": unit, "microseconds": 15.7}}


class Tables(unittest.TestCase):
    def test_rivals_have_columns_and_shapes_have_rows(self):
        lines = tables.beside_rivals([row("d 128"), row("d 128", "FLASH", 2.0), row("d 64", "FLASH causal", 0.5, ours=1234.5),
                                      row("d 64", "plain"), {"name": "d 256", "verdict": "failed"}]).splitlines()
        self.assertEqual(lines[0], "|  | µs | TFLOP/s | cuDNN: TFLOP/s | × cuDNN | PyTorch FLASH: TFLOP/s | × PyTorch FLASH |")
        self.assertEqual(lines[2:], ["| d 128 | 11.2 | 701 | 500 | 1.13 | 500 | 2.00 |", "| d 64 | 1234 | 701 |  |  | 500 | 0.50 |"])

    def test_ones_own_rows_are_times(self):
        lines = tables.beside_itself([row("window", "plain", 1.16, "time"), row("pages", "contiguous", 0.8), row("cuDNN's"),
                                      row("f16", "bf16", 0.2)]).splitlines()
        self.assertEqual(lines[2:], ["| window | plain | 11.2 | 1.16 |", "| pages | contiguous | 11.2 | 1.25 |"])

    def test_sizes_of_shared_memory_have_columns(self):
        name = "forward-mma"
        large = [row("d 64", "FLASH", 1.05, ours=9), row("d 512", "EFFICIENT", 3), row("int8", "bf16", 0.5, "time", ours=5)]
        small = [row("d 64", "FLASH", 1.0, ours=10, rate=650), row("int8", "bf16", 2.0, ours=6)]
        rivals = ["|  | compared with | 163 KB: TFLOP/s | times its speed | 99 KB: TFLOP/s | times its speed |",
                  "| --- | --- | ---: | ---: | ---: | ---: |",
                  "| d 64 | PyTorch FLASH | 701 | 1.05 | 650 | 1.00 |", "| d 512 | PyTorch EFFICIENT | 701 | 3.00 |  |  |"]
        itself = ["|  | compared with | 163 KB: µs | times its time | 99 KB: µs | times its time |",
                  "| --- | --- | ---: | ---: | ---: | ---: |", "| int8 | bf16 | 5.00 | 0.50 | 6.00 | 0.50 |"]
        with tempfile.TemporaryDirectory() as folder:
            result = {"suites": {f"{name}, 163 KB": large, f"{name}, 99 KB": small}}
            (Path(folder) / "one.json").write_text(json.dumps(result))
            for layout, lines in (("rivals", rivals), ("itself", itself)):
                marker = f"<!-- table one | {name} | {layout}-by-shared -->\n"
                self.assertEqual(tables.rewritten(marker, Path(folder)), marker + "\n".join(lines) + "\n")

    def test_shares_have_one_unit_a_row(self):
        share = row("f32", "AVX-512 FMA", 0.515, "share", rate=1.2545)
        self.assertEqual(tables.shares([share]).splitlines()[2], "| f32 | AVX-512 FMA | GFLOP/s | 1254 | 500200 | 52 |")

    def test_power_is_of_what_was_sampled(self):
        sampled, other = row("d 64"), row("d 128")
        sampled["ours"].update(sm_mhz=1412.4, watts=698.7)
        sampled["against"].update(sm_mhz=1330, watts=699.6)
        self.assertEqual(tables.power([sampled, other]).splitlines()[2:], ["| d 64 | 701 | 1412 | 699 | 500 | 1330 | 700 |"])

    def test_a_page_gets_its_tables_anew_and_keeps_the_rest(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "one.json").write_text(json.dumps({"suites": {"forward": [row("d 128")]}, "calls": {"launch": 3.078}}))
            old = "Before.\n\n<!-- table one | forward | rivals -->\n| stale |\n\nAfter.\n<!-- table one | calls -->\n"
            new = tables.rewritten(old, Path(folder))
        self.assertEqual(tables.results_of(old), {"one"})
        self.assertNotIn("stale", new)
        self.assertIn("| d 128 | 11.2 | 701 | 500 | 1.13 |\n\nAfter.", new)
        self.assertTrue(new.startswith("Before.\n\n") and new.endswith("| launch | 3.08 |\n"))


class Readme(unittest.TestCase):
    def test_its_table_says_what_the_results_say(self):
        text = publish.README.read_text()
        self.assertTrue(tables.MARKER.search(text))
        self.assertEqual(tables.rewritten(text, RESULTS), text, "run bench/publish.py")

    def test_its_picture_shows_the_results(self):
        """By its words, without matplotlib; tools/build_site draws it once more and compares the file. It shows no target of our own."""
        self.assertIn(f"]({publish.PICTURE.relative_to(ROOT)})", publish.README.read_text())
        self.assertLess(publish.PICTURE.stat().st_size, 60_000)
        texts = [e.text for e in xml.parse(publish.PICTURE).iter("{http://www.w3.org/2000/svg}text")]
        result = json.loads(publish.PICTURE.with_suffix(".json").read_text())
        panels = plot.readme_panels(result)
        self.assertEqual([text for text in texts if text in panels], list(panels), "run bench/publish.py")
        ratios = [plot.best_of(rows) for lengths in panels.values() for rows in lengths.values()]
        self.assertEqual([text for text in texts if text.endswith("×")], ratios, "run bench/publish.py")
        self.assertTrue({plot.title_of_results(publish.PICTURE, result), *panels["forward: bf16, d 64, dense"]} <= set(texts))
        self.assertFalse({"must", "aim", "not met"} & set(texts))


class Pages(unittest.TestCase):
    def test_what_pages_ask_for_is_there(self):
        """And is not in git: the site has it when it is built."""
        shown = set()
        for page in [ROOT / "docs" / "performance.md", *PAGES, ROOT / "docs" / "distributed.md"]:
            text = page.read_text()
            filled = tables.rewritten(text, RESULTS)
            for table in re.findall(r"<!-- table .* -->\n((?:\|.*\n)*)", filled):
                self.assertGreater(table.count("\n"), 2, page)
            self.assertIsNone(re.search(r"<!-- table .* -->\n\|", text), page)
            pictures = re.findall(r"<!-- picture (\w+) \| .+ -->", text)
            self.assertEqual(len(pictures), text.count("<!-- picture"), page)
            self.assertLessEqual(set(pictures), publish.PICTURES, page)
            shown |= set(pictures)
        self.assertEqual(shown, publish.PICTURES)

    def test_each_machine_has_a_page(self):
        self.assertEqual(sorted(name for page in PAGES for name in tables.results_of(page.read_text())), sorted(publish.MACHINES))


if __name__ == "__main__":
    unittest.main()
