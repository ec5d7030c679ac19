"""`bench`: what it counts, its reports, and what it refuses. How fast anything is, is nobody's promise."""

import json
import os
import re
import unittest
import xml.etree.ElementTree as xml

from tool import ToolCase

SHORT = ("--milliseconds", "0", "--rounds", "2")
EMULATOR = os.environ["FLASHATTN_EMULATOR"]


class Bench(ToolCase):
    def rows(self, *options, short=SHORT):
        return json.loads(self.output_of("bench", "--json", "--backend", "cpu", *short, *options))["rows"]

    def skipped(self, *options):
        """Why the only row is: a report that holds nothing but such is no success."""
        done = self.run_tool("bench", "--json", "--backend", "cpu", *SHORT, *options)
        self.assertEqual(self.without_progress(done), "flashattn: every row is skipped: nothing was timed\n")
        self.assertEqual(done.returncode, 1)
        row, = json.loads(done.stdout)["rows"]
        return row["skipped"]

    def work_of(self, *options):
        """Pairs of row and key of a head, and bytes of k and v, as the report counts them."""
        row, = self.rows("--dtype", "f32", *options)
        batch, heads, _, dim = row["shape"]
        return round(row["flops_per_second"] * row["seconds"]) // (4 * batch * heads * dim), round(row["kv_bytes_per_second"] * row["seconds"])

    def test_a_row_for_each_shape_and_type(self):
        rows = self.rows("--shape", "1,2,16,8", "--shape", "2,1,8,40")
        self.assertEqual([(row["name"], row["dtype"]) for row in rows],
                         [("[1,2,16,8]", "f32"), ("[1,2,16,8]", "bf16"), ("[2,1,8,40]", "f32"), ("[2,1,8,40]", "bf16")])
        for row in rows:
            self.assertLessEqual(row["best"], row["seconds"])
            self.assertLessEqual(row["seconds"], row["worst"])
            self.assertGreater(row["best"], 0)
            self.assertEqual(row["calls"], 1)
            self.assertRegex(row["kernel"]["name"], r"\Acpu.*flash")

    def test_work_is_that_of_the_pairs_that_are_left(self):
        for rows, keys, options, kept in (
                (16, 16, "", lambda i, j: True), (16, 40, "", lambda i, j: True), (16, 16, "--causal top-left", lambda i, j: j <= i),
                (16, 40, "--causal bottom-right", lambda i, j: j <= i + 24), (40, 16, "--causal bottom-right", lambda i, j: j <= i - 24),
                (16, 40, "--causal top-left --window 3,-1", lambda i, j: i - 3 <= j <= i),
                (16, 40, "--align bottom-right --window 3,5", lambda i, j: i + 21 <= j <= i + 29)):
            with self.subTest(options=options, rows=rows, keys=keys):
                pairs = sum(kept(i, j) for i in range(rows) for j in range(keys))
                self.assertEqual(self.work_of("--shape", f"2,4,{rows},8", "--keys", keys, *options.split()),
                                 (pairs, 2 * 2 * keys * 4 * 8 * 4))

    def test_every_option_is_heard(self):
        for options in ("--heads-kv 1", "--dim-v 20", "--heads-kv 1 --v-in-k --dim-v 4 --cold", "--kv-dtype i8 --v-in-k", "--page-size 5",
                        "--cold", "--alibi --align top-left", "--softcap 20", "--num-splits 2", "--dtype e4m3",
                        "--dtype f16 --kv-dtype i8", "--algorithm standard --dtype f32", "--threads 1"):
            with self.subTest(options=options):
                for row in self.rows("--shape", "2,4,16,8", *options.split()):
                    self.assertGreater(row["seconds"], 0)
        self.assertEqual(self.work_of("--shape", "1,4,1,8", "--keys", "12", "--heads-kv", "2")[1], 12 * 2 * 16 * 4)
        self.assertEqual(self.work_of("--shape", "1,4,1,8", "--keys", "12", "--heads-kv", "2", "--v-in-k", "--dim-v", "4")[1],
                         12 * 2 * 8 * 4)
        self.assertIn("standard", self.rows("--shape", "1,1,16,8", "--algorithm", "standard", "--dtype", "f32")[0]["kernel"]["name"])

    def test_gradients_are_five_products_for_two(self):
        options = ("--shape", "2,4,16,8", "--keys", "40", "--heads-kv", "2", "--dim-v", "20", "--dtype", "f32")
        forward, = self.rows(*options)
        for more in ((), ("--causal", "bottom-right"), ("--softcap", "5"), ("--deterministic",)):
            backward, = self.rows(*options, "--backward", *more)
            self.assertEqual((forward["pass"], backward["pass"]), ("forward", "backward"))
            self.assertRegex(backward["kernel"]["name"], r"\Acpu.*backward")
            self.assertGreater(backward["seconds"], 0)
        self.assertAlmostEqual(self.rows(*options, "--backward")[0]["flops"] / forward["flops"], (3 * 8 + 2 * 20) / (8 + 20))
        self.assertRegex(self.skipped(*options[:2], "--dtype", "e4m3", "--backward"), "q_dtype")

    def test_a_suite(self):
        rows = self.rows("--suite", "small", "--dtype", "f32")
        self.assertEqual([row["name"] for row in rows], ["[1,1,16,64]", "[16,12,64,64]", "[8,12,64,64]", "[16,12,256,64]"])
        self.assertEqual({row["suite"] for row in rows}, {"small"})
        self.assertFalse(any("cost" in row for row in rows))

    def test_every_suite_has_kernels(self):
        """Nothing is timed: whole suites take minutes."""
        rows = self.rows("--list")
        self.assertEqual({row["suite"] for row in rows}, {"forward", "backward", "decode", "models", "packed", "options", "small"})
        for row in rows:
            self.assertRegex(row["kernel"]["name"], r"\Acpu.*" + ("backward" if row["suite"] == "backward" else "flash"), row["name"])
            self.assertNotIn("seconds", row)
        text = self.output_of("bench", "--backend", "cpu", "--list")
        self.assertEqual(len(text.splitlines()), 2 + len(rows))
        decode = [row for row in rows if row["suite"] == "decode"]
        self.assertEqual({row["dtype"] for row in decode}, {"bf16", "bf16, i8", "bf16, e4m3", "f16"})
        self.assertEqual({(row["name"].rsplit()[-1], row["cold"]) for row in decode}, {("hot", False), ("cold", True)})
        self.assertEqual([row["kv_bytes"] for row in decode if row["name"] == "B1 32/8 16384 hot" and row["dtype"] != "f16"],
                         [2 * 16384 * 8 * 128 * size for size in (2, 1, 1)])

    def test_variants_cost_a_multiple_of_their_groups_first(self):
        """For equal work: a triangle has half of it."""
        plain, *variants = self.rows("--suite", "options", "--dtype", "f32",
                                     short=("--milliseconds", "0", "--rounds", "1", "--threads", "1"))
        self.assertNotIn("cost", plain)
        pairs = {row["name"]: row["flops"] / (4 * row["shape"][1] * 128) for row in variants}
        for row in variants:
            work = row["flops"] / plain["flops"]
            self.assertAlmostEqual(row["cost"] / (row["seconds"] / plain["seconds"] / work), 1, places=9, msg=row["name"])
        self.assertEqual(pairs["mask, 7 of 10"], 1024 * 1024)
        self.assertEqual(pairs["mask, triangle"], 1024 * 1025 // 2)
        self.assertEqual(pairs["causal"], 1024 * 1025 // 2)
        self.assertEqual(pairs["packed sequences"], 700 ** 2 + 300 ** 2 + 1000 ** 2 + 450 ** 2)
        self.assertEqual(pairs["window of 1024 in 32768"], 1024 * 1025 // 2 + (32768 - 1024) * 1024)

    def test_ceilings_stand_beside_the_calls(self):
        """Of arithmetic always, and of reading where caches do not hide it. No kernel is faster than its machine, but for what other
        work does to one of the two."""
        for dtype in ("f32", "bf16"):
            row, = self.rows("--shape", "1,2,256,64", "--keys", "16384", "--dtype", dtype, short=("--milliseconds", "20"))
            self.assertEqual([c["unit"] for c in sorted(row["ceilings"], key=lambda c: c["unit"])], ["B/s", "FLOP/s"])
            self.assertEqual(row["ceilings"], sorted(row["ceilings"], key=lambda c: -c["share"]))
            for ceiling in row["ceilings"]:
                self.assertGreater(ceiling["share"], 0)
                self.assertLess(ceiling["share"], 2)
                amount = row["flops_per_second"] if ceiling["unit"] == "FLOP/s" else row["kv_bytes_per_second"]
                self.assertLess(ceiling["share"] * ceiling["rate"] / amount, 5)
        tiny, = self.rows("--shape", "1,1,16,8", "--dtype", "f32")
        self.assertEqual([c["unit"] for c in tiny["ceilings"]], ["FLOP/s"])

    def test_a_lower_instruction_set_has_a_lower_ceiling(self):
        rates = []
        for isa in ("generic", "avx2", "avx512"):
            done = self.run_tool("bench", "--json", "--backend", "cpu", "--shape", "1,1,64,32", "--dtype", "f32", "--milliseconds", "20",
                                 "--threads", "1", env={"FLASHATTN_MAX_ISA": isa})
            if done.returncode == 0:
                rates.append(json.loads(done.stdout)["rows"][0]["ceilings"][0]["name"])
        self.assertEqual(len(rates), len(set(rates)))

    def test_what_cannot_be_run_is_skipped_with_the_reason(self):
        self.assertRegex(self.skipped("--shape", "1000000,1000,1000,1000", "--dtype", "f32"), r"needs .* are available")
        self.assertRegex(self.skipped("--shape", "1,1,8,2000", "--dtype", "f32"), "2000.*1024")
        done = self.run_tool("bench", "--backend", "cpu", "--shape", "1,1,8,2000", "--plot", "none.svg")
        self.assertEqual(done.returncode, 1)
        self.assertIn("[1,1,8,2000] f32 skipped: ", done.stdout)
        self.assertEqual(self.names(), [])
        text = self.output_of("bench", "--backend", "cpu", *SHORT, "--shape", "1000000,1000,1000,1000", "--shape", "1,1,4,4")
        self.assertRegex(text, r"\n\[1000000,1000,1000,1000\] f32 skipped: needs .* are available\n")

    def test_table_and_plot(self):
        text = self.output_of("bench", "--backend", "cpu", *SHORT, "--shape", "1,1,16,8", "--shape", "1,2,16,8", "--plot", "bench.svg")
        self.assertRegex(text, r"\Acpu: .*, \d+ threads?\n")
        self.assertIn("what the machine can do", text)
        self.assertEqual(len([line for line in text.splitlines() if line.startswith("shapes")]), 4)
        self.assertNotIn("CPU time", text)
        tree = xml.parse(self.folder / "bench.svg")
        texts = {e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")}
        self.assertTrue({"f32", "bf16", "shapes", "[1,1,16,8]", "[1,2,16,8]", "the machine's ceiling"} <= texts, texts)

    def test_columns_line_up_though_rows_are_printed_as_they_come(self):
        text = self.output_of("bench", "--backend", "cpu", *SHORT, "--shape", "1,1,16,8", "--shape", "16,12,64,64")
        lines = text.splitlines()[1:6]
        self.assertEqual(len({line.index("f") for line in lines[1::2]}), 1)
        ends = {re.search("median", lines[0]).end(), *(re.search(r"\S+ .?s\b", line).end() for line in lines[1:])}
        self.assertEqual(len(ends), 1, lines)

    def test_a_plot_may_take_the_place_of_the_table(self):
        tree = xml.fromstring(self.output_of("bench", "--backend", "cpu", *SHORT, "--shape", "1,1,16,8", "--plot", "-"))
        self.assertIn("[1,1,16,8]", {e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")})
        self.assertEqual(self.names(), [])

    def test_a_png_or_pdf_is_what_rsvg_convert_makes_of_the_drawing(self):
        converter = self.folder / "rsvg-convert"
        converter.write_text('#!/bin/sh\n[ "$1" = --version ] || { printf "%s:" "$1"; cat; }\n')
        converter.chmod(0o755)
        for kind in ("png", "pdf"):
            done = self.run_tool("bench", "--backend", "cpu", *SHORT, "--shape", "1,1,16,8", "--plot", f"bench.{kind}",
                                 env={"PATH": f"{self.folder}:{os.environ['PATH']}"})
            self.assertEqual(done.returncode, 0, done.stderr)
            option, _, drawing = (self.folder / f"bench.{kind}").read_text().partition(":")
            self.assertEqual(option, f"--format={kind}")
            xml.fromstring(drawing)

    def test_a_plot_may_be_a_png(self):
        done = self.run_tool("bench", "--backend", "cpu", *SHORT, "--shape", "1,1,16,8", "--plot", "bench.png")
        if done.returncode == 0:
            self.assertEqual((self.folder / "bench.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        else:
            self.assert_sentence(done, "bench.png", "rsvg-convert")
            self.assertEqual(list(self.folder.iterdir()), [])
        done = self.run_tool("bench", "--backend", "cpu", *SHORT, "--shape", "1,1,16,8", "--plot", "none.png", env={"PATH": ""})
        self.assert_sentence(done, "none.png", "rsvg-convert")
        self.assertFalse((self.folder / "none.png").exists())

    @unittest.skipUnless(EMULATOR, "no emulator in this build")
    def test_a_device_of_its_own_memory(self):
        """As on a GPU: a module of its own, device memory, calls that are only enqueued."""
        done = self.run_tool("bench", "--backend", "hip", *SHORT, "--shape", "1,2,16,8", "--page-size", "4", "--cold", "--alibi", "--align",
                             "top-left", env={"FLASHATTN_BACKEND_DIR": EMULATOR})
        self.assertEqual((done.returncode, self.without_progress(done)), (0, ""))
        self.assertRegex(done.stdout, r"\Ahip: ")
        self.assertIn("CPU time", done.stdout)
        self.assertEqual(len([line for line in done.stdout.splitlines() if line.startswith("shapes")]), 2)

    def test_bad_options(self):
        shape = ["--shape", "1,1,8,8"]
        for options, *words in (
                (["--shape", "1,2,3"], "--shape"), (["--shape", "1,2,3,0"], "--shape"), (["--suite", "fast"], "--suite", "fast"),
                (["--suite", "small", *shape], "--suite", "--shape"), (["--keys", "5"], "--shape"), (["--backward"], "--shape"),
                ([*shape, "--backward", "--cold"], "--backward", "--cold"), (["--alibi"], "--shape"),
                ([*shape, "--keys", "-1"], "--keys", "-1"), ([*shape, "--page-size", "-4"], "--page-size"),
                ([*shape, "--rounds", "0"], "--rounds"),
                ([*shape, "--milliseconds", "-1"], "--milliseconds"), ([*shape, "--milliseconds", "nan"], "--milliseconds"),
                ([*shape, "--dtype", "i8"], "--dtype"), ([*shape, "--alibi"], "--alibi", "--align"), ([*shape, "--window", "3"], "--align"),
                ([*shape, "--heads-kv", "3"], "heads_k", "3"), ([*shape, "--softcap", "-1"], "--softcap"),
                ([*shape, "--plot", "none/x.svg"], "none/x.svg"), ([*shape, "--plot", "x.svg", "--list"], "--list", "--plot"),
                ([*shape, "--plot", "x.eps"], "x.eps", ".svg", ".png"), ([*shape, "--plot", "svg"], "'svg'"),
                ([*shape, "--plot", "-", "--json"], "--json", "--plot"), ([*shape, "--backend", "tpu"], "tpu")):
            with self.subTest(options=options):
                self.assert_sentence(self.run_tool("bench", *options), *words)
                self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
