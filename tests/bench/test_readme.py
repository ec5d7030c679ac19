"""The README's tables of GPU figures, on rows that are made up; and the README itself against the results."""

import json
import unittest
from pathlib import Path

from compare import readme


def row(name, rival="CUDNN", value=1.126, rate=700.6, ours=11.23, other=11.57):
    return {"name": name, "value": value, "ours": {"rate": rate, "microseconds": ours}, "against": {"name": rival, "microseconds": other}}


class Readme(unittest.TestCase):
    def test_speeds(self):
        lines = readme.speeds([row("bf16 B4 H16 S4k d128 dense", "FLASH", 2.0), row("bf16 B4 H16 S4k d128 dense"),
                               row("f16 B4 H32 S4k d64 dense"), {"name": "bf16 B1 H8 S16k d256 causal", "failed": "no memory"}]).splitlines()
        self.assertEqual(lines[0], "| | S 512 | 1k | 4k | 16k |")
        self.assertIn("| d 128, dense |  |  | 701, 1.13× |  |", lines)
        self.assertEqual("".join(lines).count("×"), 1)

    def test_powers(self):
        sampled, not_sampled = row("bf16 B1 H32 S16k d64 dense"), row("bf16 B1 H32 S16k d64 causal")
        sampled["ours"].update(sm_mhz=1412.4, watts=698.7)
        sampled["against"].update(rate=455.2, sm_mhz=1330, watts=699.6)
        lines = readme.powers([row("bf16 B4 H32 S4k d64 dense"), sampled, not_sampled]).splitlines()
        self.assertIn("| d 64, dense | 701, 1412, 699 | 455, 1330, 700 |", lines)
        self.assertIn("| d 64, causal |  |  |", lines)
        self.assertIn("| d 128, dense |  |  |", lines)
        self.assertEqual(len(lines), 8)

    def test_decoding(self):
        alone = {key: value for key, value in row("B1 32/8 S4k d128").items() if key != "against"}
        suites = {"decode-latency": [alone, row("B1 32/8 S4k d128"), row("B1 32/8 S16k d128", ours=23.32, other=22.84)],
                  "paged": [row("pages of 16, B1 32/8 S64k d128", "contiguous", ours=74.76), row("pages of 64, B1 32/8 S64k d128", "contiguous")]}
        lines = readme.decoding(suites).splitlines()
        self.assertIn("| batch 1, 32 on 8, 4k / 16k | 11.2 / 23.3 | 11.6 / 22.8 |", lines)
        self.assertIn("| the same over shuffled pages of 64 / 16 | 11.2 / 74.8 | |", lines)

    def test_the_readme_has_what_the_results_say(self):
        root = Path(__file__).resolve().parents[2]
        text = (root / "README.md").read_text()
        for table in readme.tables_of(json.loads((root / "bench" / "results" / "gpu_h200.json").read_text())):
            self.assertIn(table, text)
