"""The tool and the examples on a GPU backend: the emulator, which runs the CUDA module's device text under the HIP module's name.

FLASHATTN_BACKEND_DIR names its folder, so that a program that asks for no backend gets it, too.
"""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np

import reference
from tool import ToolCase

ROOT = Path(__file__).resolve().parents[2]


class Tool(ToolCase):
    def test_a_program_that_asks_for_no_backend_gets_it(self):
        backends = {b["name"]: b["usable"] for b in json.loads(self.output_of("info", "--json"))["backends"]}
        self.assertTrue(backends["hip"])
        if backends["cuda"]:
            self.skipTest("a GPU of NVIDIA's comes first here")
        self.save(q=np.zeros((1, 2, 1, 4), "f4"))
        text = self.output_of("run", "--q", "q.npy", "--k", "q.npy", "--v", "q.npy", "--out", "o.npy", "--explain")
        self.assertIn("hip, device 0: kernel fwd_", text)

    def test_solve(self):
        exercise = ROOT / "examples" / "exercise.txt"
        for backend in ("auto", "hip", "cpu"):
            self.assertEqual(self.output_of("solve", exercise, "--backend", backend), "2.39 2.89 3.50 4.00\n2.50 3.00 3.50 4.00\n")

    def test_every_algorithm_runs(self):
        rng = np.random.default_rng(3)
        q, k, v = (rng.standard_normal((2, n, heads, 40)).astype("f4") for n, heads in ((70, 4), (150, 2), (150, 2)))
        self.save(q=q, k=k, v=v)
        want = reference.attention(q, k, v, causal="bottom-right")
        for algorithm in ("standard", "flash1", "flash"):
            o, lse = self.attention("--backend", "hip", "--algorithm", algorithm, "--causal", "bottom-right")
            np.testing.assert_allclose(o, want.out, rtol=0, atol=1e-5)
            np.testing.assert_allclose(lse, want.lse, rtol=0, atol=1e-5)

    def test_study_fills_its_table(self):
        options = ("study", "--shape", "1,2,130,64", "--shape", "1,1,64,100", "--rounds", "1")
        for row in json.loads(self.output_of(*options, "--backend", "hip", "--json"))["rows"]:
            self.assertIn("counted", row)
            self.assertEqual([time["backend"] for time in row["times"]], ["hip"])
            self.assertGreater(row["times"][0]["seconds"], 0)
        text = self.output_of(*options)
        for words in ("time, cpu", "time, hip", "standard", "flash1"):
            self.assertIn(words, text)
        self.assertNotIn("–", text)
        self.assertNotIn("skipped", text)

    def test_study_says_why_a_backend_cannot_be_timed(self):
        done = self.run_tool("study", "--backend", "hip", env={"FLASHATTN_BACKEND_DIR": str(self.folder)})
        self.assert_sentence(done, "libflashattn-hip.so")
        self.assert_sentence(self.run_tool("study", "--backend", "tpu"), "--backend", "tpu")

    def test_verify_counts_it_among_the_kernels(self):
        report = json.loads(self.run_tool("verify", "--json").stdout)
        results = [r["status"] for c in report["cases"] for r in c["results"] if r["kernel"].startswith("hip")]
        self.assertEqual(set(results), {"passed"})
        self.assertEqual(len(results), len(report["cases"]))


class Examples(ToolCase):
    def lines_of(self, *command, folder):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240,
                              env={**os.environ, "FLASHATTN_BACKEND_DIR": folder, "PYTHONPATH": str(ROOT / "bindings" / "python")})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def same_on_both(self, *command):
        on_gpu = self.lines_of(*command, folder=os.environ["FLASHATTN_BACKEND_DIR"])
        self.assertEqual(on_gpu, self.lines_of(*command, folder=str(self.folder)))  # an empty folder: the CPU
        return on_gpu

    def test_programs_in_c(self):
        folder = Path(os.environ["FLASHATTN_EXAMPLES"])
        self.assertEqual(len(self.same_on_both(folder / "minimal")), 8)
        self.assertEqual(self.same_on_both(folder / "solve"), ["2.39 2.89 3.50 4.00", "2.50 3.00 3.50 4.00"])

    def test_program_in_python(self):
        if "FLASHATTN_LIBRARY" not in os.environ:
            self.skipTest("an instrumented library cannot be loaded into Python")
        backend = "import flashattn; print(flashattn.Handle().backend)"
        self.assertEqual(self.lines_of(sys.executable, "-c", backend, folder=os.environ["FLASHATTN_BACKEND_DIR"]), ["hip"])
        self.assertEqual(self.lines_of(sys.executable, "-c", backend, folder=str(self.folder)), ["cpu"])
        self.assertEqual(len(self.same_on_both(sys.executable, ROOT / "examples" / "minimal.py")), 8)


if __name__ == "__main__":
    unittest.main()
