"""`info`, `study` and `verify`: their tables and their JSON."""

import json
import os
import re
import subprocess
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

from tool import TOOL, ToolCase


class Info(ToolCase):
    def test_json(self):
        info = json.loads(self.output_of("info", "--json"))
        self.assertRegex(info["version"], r"\A\d+\.\d+\.\d+\Z")
        self.assertEqual(self.output_of("--version"), f"flashattn {info['version']}\n")
        backends = {b["name"]: b for b in info["backends"]}
        self.assertEqual(set(backends), {"cpu", "cuda", "hip"})
        self.assertTrue(backends["cpu"]["usable"])
        for b in info["backends"]:
            self.assertEqual(b["usable"], b["status"] == "FA_OK")
            self.assertTrue(b["usable"] or b["reason"])
        self.assertIn("cpu", {d["backend"] for d in info["devices"]})
        self.assertTrue(info["instruction_sets"][0]["usable"])
        for p in info["parameters"]:
            self.assertTrue(p["name"] and p["doc"])
            self.assertLessEqual(p["min"], p["default"])
            self.assertLessEqual(p["default"], p["max"])
        self.assertTrue({"threads", "max_isa"} <= {p["name"] for p in info["parameters"]})
        for k in info["kernels"]:
            self.assertTrue(k["kernel"]["name"] if "kernel" in k else k["reason"])
            if k["backend"] == "cpu":
                self.assertEqual(k["status"], "FA_OK")

    def test_table(self):
        text = self.output_of("info")
        for word in ("cpu", "cuda", "hip", "generic", "threads", "flash"):
            self.assertIn(word, text)

    def test_a_backend_that_cannot_be_used_has_its_reason(self):
        done = self.run_tool("info", "--json", env={"FLASHATTN_MAX_ISA": "sse9"})
        cpu = json.loads(done.stdout)["backends"][0]
        self.assertEqual((cpu["name"], cpu["usable"]), ("cpu", False))
        self.assertIn("sse9", cpu["reason"])

    def test_kernels_follow_the_cap_of_the_environment(self):
        done = self.run_tool("info", "--json", env={"FLASHATTN_MAX_ISA": "generic"})
        self.assertIn("generic", json.loads(done.stdout)["kernels"][0]["kernel"]["name"])


class Study(ToolCase):
    def rows(self, *options):
        return json.loads(self.output_of("study", "--json", "--rounds", "1", *options))["rows"]

    def test_counts_are_what_the_formulas_say(self):
        for row in self.rows("--shape", "2,3,64,64", "--shape", "1,2,200,40", "--shape", "1,1,1,1", "--shape", "3,1,97,128"):
            batch, heads, n, d = row["shape"]
            self.assertEqual(row["counted"]["flops"], 4 * batch * heads * n * n * d)
            for name, value in row["formula"].items():
                lines = 3 * 64 if name == "extra_bytes" else 0  # arrays begin at cache lines, which not all tiles fill
                self.assertLessEqual(abs(row["counted"][name] - value), 0.01 * value + lines, (row["shape"], row["algorithm"], name))
            for time in row["times"]:
                self.assertGreater(time["seconds"], 0)
                self.assertEqual(time["rounds"], 1)

    def test_algorithms_rank_as_they_should(self):
        rows = self.rows("--shape", "1,2,512,64")
        cost = {row["algorithm"]: row["counted"] for row in rows}
        traffic = {name: c["bytes_read"] + c["bytes_written"] for name, c in cost.items()}
        if all(row["tile_rows"] >= row["tile_keys"] for row in rows):  # a lower tile reads k and v more often than flash1 does q and o
            self.assertLess(traffic["flash"], traffic["flash1"])
        self.assertLess(traffic["flash1"], traffic["standard"])
        self.assertEqual(cost["flash"]["extra_bytes"], 0)
        self.assertLess(cost["flash1"]["extra_bytes"], cost["standard"]["extra_bytes"])
        # What standard attention moves beside what flash does is S and P, each written once and read once.
        self.assertEqual(traffic["standard"] - traffic["flash"], 2 * 4 * 4 * 512 * 512)

    def test_too_large_is_skipped_with_the_reason(self):
        row = self.rows("--shape", "1000000,1000,1000,1000")[0]
        self.assertRegex(row["skipped"], r"needs .* are available")
        self.assertRegex(row["times"][0]["skipped"], r"needs .* are available")
        text = self.output_of("study", "--shape", "1000000,1000,1000,1000")
        self.assertRegex(text, r"standard skipped on cpu: needs .* are available\n")

    def test_table_has_a_line_for_each_algorithm(self):
        text = self.output_of("study", "--shape", "1,1,16,8", "--rounds", "1")
        self.assertEqual(len([line for line in text.splitlines() if line.startswith("[1,1,16,8]")]), 3)
        self.assertIn("Counts differ from formulas by at most 0 %.", text)

    def test_plot(self):
        self.output_of("study", "--shape", "1,2,64,16", "--shape", "1,2,128,16", "--rounds", "1", "--plot", "study.svg")
        tree = xml.parse(self.folder / "study.svg")
        texts = {e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")}
        self.assertTrue({"standard", "flash1", "flash", "Memory traffic", "Extra space", "Time on cpu", "[1,2,64,16]"} <= texts)
        self.assertGreaterEqual(len(list(tree.iter("{http://www.w3.org/2000/svg}rect"))), 3 * 2 * 3)

    def test_costs_over_ranks_are_what_the_library_sends(self):
        # What fa_cp_traffic told of bench/context_parallel.c with these shapes.
        text = self.output_of("study", "--ranks", "2", "--shape", "1,8,8192,64", "--link-rate", "10")
        cells = {row[1]: row[2:] for row in (re.split(r"  +", line) for line in text.splitlines()) if len(row) > 4}
        self.assertEqual(cells["ulysses"][2:6], ["8.45 MB", "4", "16.8 MB", "4"])
        self.assertEqual(cells["all-gather"][2:6], ["8.39 MB", "3", "21 MB", "4"])
        self.assertEqual(cells["ring"][2:6], ["8.39 MB", "3", "25.2 MB", "4"])
        self.assertEqual({row[1] for row in cells.values()} - {"work"}, {"120 GFLOP"})

    def test_ranks_beyond_the_key_heads_have_no_ulysses(self):
        text = self.output_of("study", "--ranks", "16", "--kv-heads", "8", "--plot", "ranks.svg", "--shape", "1,64,8192,128")
        self.assertRegex(text, r"ulysses +16 +–\n")
        texts = {e.text for e in xml.parse(self.folder / "ranks.svg").iter("{http://www.w3.org/2000/svg}text")}
        self.assertTrue({"nvlink, 8192 rows", "ethernet, 8192 rows", "ring", "16"} <= texts)

    def test_a_plot_may_take_the_place_of_the_table(self):
        xml.fromstring(self.output_of("study", "--shape", "1,1,16,8", "--rounds", "1", "--plot", "-"))

    def test_bad_options(self):
        for options in (["--plot", "x.eps"], ["--plot", "-", "--json"], ["--shape", "1,2,3"],
                        ["--shape", "1,2,3,0"], ["--shape", "a,b,c,d"], ["--shape", "1,1,8,2000"], ["--rounds", "0"],
                        ["--ranks", "0"], ["--ranks", "2,x"], ["--ranks", "2", "--json"], ["--ranks", "2", "--kv-heads", "3"],
                        ["--speed", "2"], ["--ranks", "2", "--speed", "0"], ["--ranks", "2", "--memory", "0"], ["--memory", "2"],
                        ["--ranks", "2", "--latency", "1"],
                        ["--ranks", "2", "--link-rate", "-1"], ["--rounds", "nan"], ["--seconds", "nan"], ["--seconds", "-1"],
                        ["--plot", "none/x.svg"], ["--shape", ""]):
            with self.subTest(options=options):
                self.assert_sentence(self.run_tool("study", *(options if "--shape" in options else ["--shape", "1,1,8,8", *options])))
                self.assertEqual(list(self.folder.iterdir()), [])


def documented():
    """{command: {path of a field: (must it be there, its type)}}, as docs/reference/json.md has them."""
    row = re.compile(r"^\| `([\w.\[\]]+)`(\??) \| ([\w ]+) \|", re.M)
    common, *sections = re.split(r"^## ", (Path(__file__).parents[2] / "docs/reference/json.md").read_text(), flags=re.M)
    shared = {path: (not optional, kind) for path, optional, kind in row.findall(common)}
    commands = {}
    for section in sections:
        fields = {path: field for path, field in shared.items() if path[1] != "."}
        for path, optional, kind in row.findall(section):
            inner = {p[1:]: field for p, field in shared.items() if p.startswith(f"{kind}.")}  # of D or K
            for end, (needed, type_) in (inner or {"": (True, kind)}).items():
                fields[path + end] = (needed and not optional, type_)
        commands[section.split()[0]] = fields
    return commands


TYPES = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "4 integers": list}


def fields_of(value, path=""):
    """(path, value) of each leaf; objects of a list share theirs."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from fields_of(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and not all(isinstance(x, int) for x in value):
        for inner in value:
            yield from fields_of(inner, path + "[]")
    else:
        yield path, value


class ReportCase(ToolCase):
    def assert_documented(self, report, absent=()):
        """absent: beginnings of paths that this report has not, though such reports may."""
        fields, found = documented()[report["command"]], set()
        for path, value in fields_of(report):
            self.assertIn(path, fields)
            self.assertIsInstance(value, TYPES[fields[path][1]], path)
            found.add(path)
        self.assertEqual({p for p, (needed, _) in fields.items() if needed} - found, set())
        self.assertEqual({p for p in set(fields) - found if not p.startswith(tuple(absent))}, set())
        self.assertEqual(report["schema"], 1)


class Documented(ReportCase):
    SHORT = ("--rounds", "1", "--shape", "1,1,16,8")

    def report(self, *options):
        return json.loads(self.output_of(*options, "--json"))

    def test_info(self):
        self.assert_documented(self.report("info"), ["kernels[].reason"])

    def test_bench(self):
        shape, long = ("bench", *self.SHORT), "100000,1000,1000,1000"
        self.assert_documented(self.report(*shape, "--backend", "cpu", "--milliseconds", "30", "--shape", long),
                               ["interrupted", "rows[].cost"])
        timed = [p for p in documented()["bench"] if re.match(r"rows\[\]\.(seconds|best|worst|enq|calls|.*_per_second|ceil)", p)]
        self.assert_documented(self.report(*shape, "--backend", "cpu", "--list"),
                               [*timed, "interrupted", "rows[].cost", "rows[].skipped"])

    def test_study(self):
        long = "1000000,1000,1000,1000"
        self.assert_documented(self.report("study", *self.SHORT, "--shape", long, "--backend", "cpu"), ["interrupted"])


class Verify(ReportCase):
    def test_everything_passes(self):
        done = self.run_tool("verify", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assert_documented(report, ["cases[].results[].reason"])
        self.assertEqual(report["failed"], 0)
        kernels = {r["kernel"] for c in report["cases"] for r in c["results"]}
        self.assertIn("cpu generic", kernels)
        self.assertGreater(len(report["cases"]), 60)
        self.assertEqual(report["passed"] + report["unsupported"], len(kernels) * len(report["cases"]))
        for c in report["cases"]:
            for r in c["results"]:
                if "norm" in r:
                    self.assertLessEqual(r["norm"], r["norm_bound"], c["name"])
                self.assertTrue(r["status"] == "passed" or not r["kernel"].startswith("cpu"), c["name"])
        self.assertNotIn("\r", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), len(report["cases"]))

    def test_only_some(self):
        report = json.loads(self.run_tool("verify", "--json", "--only", "bf16*causal").stdout)
        names = [c["name"] for c in report["cases"]]
        self.assertTrue(names)
        for name in names:
            self.assertRegex(name, "bf16.*causal")
        done = self.run_tool("verify", "--only", "no such case")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "flashattn: --only no such case: no case has such a name\n")

    def test_verdicts_come_one_by_one(self):
        with subprocess.Popen([TOOL, "verify"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self.assertRegex(process.stdout.readline(), "^case +bound +cpu generic")
            self.assertRegex(process.stdout.readline(), "✓")
            self.assertIsNone(process.poll(), "the second line came with the last")
            process.kill()

    def test_a_bar_on_a_terminal(self):
        try:
            terminal, its_end = os.openpty()
        except OSError as reason:  # a bare container may have no terminals to give
            self.skipTest(f"no terminal: {reason}")
        with subprocess.Popen([TOOL, "verify", "--only", "bf16*"], stdout=subprocess.DEVNULL, stderr=its_end) as process:
            os.close(its_end)
            drawn = b""
            while True:
                try:
                    piece = os.read(terminal, 65536)
                except OSError:  # how a terminal says that nobody is left
                    break
                if not piece:
                    break
                drawn += piece
        os.close(terminal)
        self.assertEqual(process.returncode, 0)
        self.assertGreater(drawn.count(b"\r\x1b[K["), 3)
        self.assertNotIn(b"\n", drawn)
        self.assertTrue(drawn.endswith(b"\r\x1b[K"))

    def test_a_wrong_number_is_seen(self):
        done = self.run_tool("verify", "--only", "f*plain*", env={"LD_PRELOAD": os.environ["FLASHATTN_WRONG_NUMBER"],
                                                                  "ASAN_OPTIONS": "verify_asan_link_order=0"})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"\nf32 plain .* FAIL")
        self.assertRegex(done.stdout, r"\nFAIL f32 plain, cpu generic: o: sequence 0, head 0, row 0, index 0 is ")
        self.assertRegex(done.stdout, r"\nf16 plain .*✓")
        self.assertRegex(done.stderr, r"\nflashattn: \d+ of \d+ checks failed\n\Z")


if __name__ == "__main__":
    unittest.main()
