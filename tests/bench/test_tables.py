"""Published tables, on rows that are made up; and the pages that hold them against the results."""

import json
import re
import tempfile
import unittest
from pathlib import Path

from compare import tables

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")


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


class Pages(unittest.TestCase):
    def test_pages_say_what_the_results_say(self):
        for page in PAGES:
            text = page.read_text()
            self.assertTrue(tables.MARKER.search(text), page)
            self.assertEqual(tables.rewritten(text, RESULTS), text, f"{page}: run bench/publish.py")

    def test_pictures_show_results_that_are_there(self):
        """And no target of our own."""
        for page in PAGES:
            for picture in re.findall(r"!\[.*?\]\((.*?\.svg)\)", page.read_text()):
                path = (page.parent / picture).resolve()
                self.assertTrue(path.exists(), path)
                if path.parent == RESULTS:
                    self.assertTrue(path.with_name(path.stem.removesuffix("_ratios") + ".json").exists(), path)
                    self.assertIsNone(re.search(r">(must|aim|not met)<", path.read_text()), path)

    def test_every_table_of_a_suite_that_is_published_is_of_a_file_that_is_there(self):
        for page in PAGES:
            for name in tables.results_of(page.read_text()):
                self.assertTrue((RESULTS / f"{name}.json").exists(), name)
