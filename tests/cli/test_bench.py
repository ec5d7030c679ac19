"""`bench`: what it counts, its reports, and what it refuses. How fast anything is, is nobody's promise."""

import json
import os
import unittest
import xml.etree.ElementTree as xml

from tool import ToolCase

SHORT = ("--milliseconds", "0", "--rounds", "2")
EMULATOR = os.environ["FLASHATTN_EMULATOR"]


class Bench(ToolCase):
    def rows(self, *options):
        return json.loads(self.output_of("bench", "--json", "--backend", "cpu", *SHORT, *options))["rows"]

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
            self.assertRegex(row["kernel"], r"\Acpu.*flash")

    def test_work_is_that_of_the_pairs_that_are_left(self):
        for rows, keys, options, kept in (
                (16, 16, "", lambda i, j: True), (16, 40, "", lambda i, j: True), (16, 16, "--causal top-left", lambda i, j: j <= i),
                (16, 40, "--causal bottom-right", lambda i, j: j <= i + 24), (40, 16, "--causal bottom-right", lambda i, j: j <= i - 24),
                (16, 40, "--causal top-left --window 3,-1", lambda i, j: i - 3 <= j <= i),
                (16, 40, "--align bottom-right --window 3,5", lambda i, j: i + 21 <= j <= i + 29)):
            with self.subTest(options=options, rows=rows, keys=keys):
                pairs = sum(kept(i, j) for i in range(rows) for j in range(keys))
                self.assertEqual(self.work_of("--shape", f"2,4,{rows},8", "--keys", keys, *options.split()), (pairs, 2 * 2 * keys * 4 * 8 * 4))

    def test_every_option_is_heard(self):
        for options in ("--heads-kv 1", "--dim-v 20", "--page-size 5", "--cold", "--alibi --align top-left", "--softcap 20", "--num-splits 2",
                        "--dtype e4m3", "--dtype f16 --kv-dtype i8", "--algorithm standard --dtype f32", "--threads 1"):
            with self.subTest(options=options):
                for row in self.rows("--shape", "2,4,16,8", *options.split()):
                    self.assertGreater(row["seconds"], 0)
        self.assertEqual(self.work_of("--shape", "1,4,1,8", "--keys", "12", "--heads-kv", "2")[1], 12 * 2 * 16 * 4)
        self.assertIn("standard", self.rows("--shape", "1,1,16,8", "--algorithm", "standard", "--dtype", "f32")[0]["kernel"])

    def test_a_suite(self):
        rows = self.rows("--suite", "small", "--dtype", "f32")
        self.assertEqual([row["name"] for row in rows], ["[16,12,64,64]", "[8,12,64,64]", "[16,12,256,64]"])
        self.assertEqual({row["suite"] for row in rows}, {"small"})

    def test_what_cannot_be_run_is_skipped_with_the_reason(self):
        row = self.rows("--shape", "1000000,1000,1000,1000", "--dtype", "f32")[0]
        self.assertRegex(row["skipped"], r"needs .* are available")
        self.assertRegex(self.rows("--shape", "1,1,8,2000", "--dtype", "f32")[0]["skipped"], "2000.*1024")
        text = self.output_of("bench", "--backend", "cpu", *SHORT, "--shape", "1000000,1000,1000,1000", "--shape", "1,1,4,4")
        self.assertRegex(text, r"\n\[1000000,1000,1000,1000\] f32 skipped: needs .* are available\n")

    def test_table_and_plot(self):
        text = self.output_of("bench", "--backend", "cpu", *SHORT, "--shape", "1,1,16,8", "--shape", "1,2,16,8", "--plot", "bench.svg")
        self.assertRegex(text, r"\Acpu: ")
        self.assertEqual(len([line for line in text.splitlines() if line.startswith("shapes")]), 4)
        self.assertNotIn("CPU time", text)
        tree = xml.parse(self.folder / "bench.svg")
        texts = {e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")}
        self.assertTrue({"f32", "bf16", "shapes", "[1,1,16,8]", "[1,2,16,8]"} <= texts, texts)

    @unittest.skipUnless(EMULATOR, "no emulator in this build")
    def test_a_device_of_its_own_memory(self):
        """As on a GPU: a module of its own, device memory, calls that are only enqueued."""
        done = self.run_tool("bench", "--backend", "hip", *SHORT, "--shape", "1,2,16,8", "--page-size", "4", "--cold", "--alibi", "--align",
                             "top-left", env={"FLASHATTN_BACKEND_DIR": EMULATOR})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\Ahip: ")
        self.assertIn("CPU time", done.stdout)
        self.assertEqual(len([line for line in done.stdout.splitlines() if line.startswith("shapes")]), 2)

    def test_bad_options(self):
        shape = ["--shape", "1,1,8,8"]
        for options, *words in (
                (["--shape", "1,2,3"], "--shape"), (["--shape", "1,2,3,0"], "--shape"), (["--suite", "fast"], "--suite", "fast"),
                (["--suite", "small", *shape], "--suite", "--shape"), (["--keys", "5"], "--shape"), (["--alibi"], "--shape"),
                ([*shape, "--keys", "-1"], "--keys", "-1"), ([*shape, "--page-size", "-4"], "--page-size"), ([*shape, "--rounds", "0"], "--rounds"),
                ([*shape, "--milliseconds", "-1"], "--milliseconds"), ([*shape, "--milliseconds", "nan"], "--milliseconds"),
                ([*shape, "--dtype", "i8"], "--dtype"), ([*shape, "--alibi"], "--alibi", "--align"), ([*shape, "--window", "3"], "--align"),
                ([*shape, "--heads-kv", "3"], "heads_kv", "3"), ([*shape, "--softcap", "-1"], "--softcap"),
                ([*shape, "--plot", "none/x.svg"], "none/x.svg"), ([*shape, "--backend", "tpu"], "tpu")):
            with self.subTest(options=options):
                self.assert_sentence(self.run_tool("bench", *options), *words)
                self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
