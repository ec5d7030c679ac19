"""What the CPU's comparison needs besides the judge: jobs, targets, and the rows that it makes of `flashattn bench`."""

import tempfile
import unittest
from pathlib import Path

from compare.cpu import ceilings, targets
from compare.cpu.work import SUITES, heads_for, job_name, jobs_of, parse_job, parse_threads
from compare.judge import Effort
from compare.table import table_of
from program import ProgramTests

INTEL, ZEN, PLAIN = (targets.Cpu(name, name == "Intel", name == "Zen") for name in ("Intel", "Zen", "plain"))


def found(share=0.5, suite="forward", name="[1,8,2048,64]", dtype="f32", unit="FLOP/s", shape=(1, 8, 2048, 64), cold=False):
    """A row of `flashattn bench --json`."""
    return {"suite": suite, "name": name, "dtype": dtype, "cold": cold, "shape": list(shape), "kernel": "cpu: kernel cpu_flash, tiles",
            "seconds": 2e-3, "best": 1e-3, "worst": 4e-3, "flops_per_second": share * 4e11, "kv_bytes_per_second": share * 4e11,
            "ceilings": [{"name": "unit", "unit": unit, "rate": 4e11, "share": share, "low": share / 2, "high": share * 2},
                         {"name": "other", "unit": "B/s", "rate": 4e12, "share": share / 10, "low": 0.0, "high": 1.0}]}


class Jobs(unittest.TestCase):
    def test_threads(self):
        self.assertEqual(parse_threads("1,all", 16), [1, 16])
        self.assertEqual(parse_threads("all,1,all", 1), [1])
        self.assertEqual(parse_threads(" 4 , 2", 16), [2, 4])
        for text in ("", "0", "-1", "one", "1,many"):
            with self.assertRaises(ValueError):
                parse_threads(text, 8)

    def test_suites_run_where_they_say_something(self):
        jobs = jobs_of(list(SUITES), [1, 16])
        self.assertEqual([job for job in jobs if job.endswith("1 thread")],
                         [job_name(s, 1) for s in ("ceilings", "prefill", "backward", "decode")])
        self.assertEqual([parse_job(job)[0] for job in jobs if job.endswith("16 threads")], list(SUITES))
        self.assertNotIn("scaling", [parse_job(job)[0] for job in jobs_of(list(SUITES), [2, 16])])
        self.assertEqual(jobs_of(["scaling", "options"], [1]), ["options, 1 thread"])
        self.assertEqual(jobs_of(["options", "scaling"], [1, 2])[0], "scaling, 2 threads")  # before any team of threads spins

    def test_every_thread_has_rows(self):
        for n in (512, 2048, 8192):
            for threads in (1, 2, 16):
                self.assertGreaterEqual(heads_for(n, threads) * n, threads * 512)
        self.assertEqual(heads_for(512, 1), 16)


class Targets(unittest.TestCase):
    def test_a_cpu_is_read(self):
        for text, cpu in (("vendor_id : GenuineIntel\nmodel name\t: X: 9\nflags : fpu amx_bf16 avx512_bf16\n",
                           targets.Cpu("X: 9", True, False)),
                          ("vendor_id : AuthenticAMD\nmodel name : Y\nflags : avx512_bf16\n", targets.Cpu("Y", False, True)),
                          ("CPU implementer : 0x41\n", targets.Cpu("unknown", False, False))):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(text)
                file.flush()
                self.assertEqual(targets.Cpu.read(file.name), cpu)

    def test_bounds_belong_to_their_kind_of_cpu_and_thread_count(self):
        self.assertEqual(targets.prefill(INTEL, "bf16", 64, 2048, 1), (4.5, 6.0))
        self.assertEqual(targets.prefill(INTEL, "bf16", 128, 512, 16), (1.6, 2.5))
        self.assertEqual(targets.prefill(ZEN, "bf16", 128, 2048, 1), (2.0, 2.5))
        self.assertEqual(targets.prefill(INTEL, "f32", 64, 512, 16), (1.15, 1.3))
        self.assertEqual([targets.backward(PLAIN, "f32", dim, threads) for dim in (64, 128) for threads in (1, 16)],
                         [(1.05, 1.2), (1.1, 1.3), (1.0, 1.15), (1.1, 1.3)])
        self.assertEqual(targets.backward(INTEL, "bf16", 64, 1), (2.5, 4.0))
        for nothing in (targets.backward(PLAIN, "bf16", 64, 1), targets.backward(INTEL, "f16", 64, 1),
                        targets.backward(INTEL, "bf16", 64, 2),
                        targets.prefill(PLAIN, "bf16", 64, 2048, 1), targets.prefill(INTEL, "f32", 64, 2048, 2), targets.causal(512),
                        targets.option(PLAIN, "bf16", "sinks"), targets.option(INTEL, "bf16", "softcap"),
                        targets.decode(32, 32, 4096, 16, False), targets.f16_beside_bf16("cpu_flash_tile_avx512")):
            self.assertIsNone(nothing)

    def test_shares_of_ceilings(self):
        bounds = targets.ceiling_share
        self.assertEqual(bounds(INTEL, found()), (0.80, 0.87))
        self.assertEqual(bounds(ZEN, found()), (0.86, 0.90))
        self.assertEqual(bounds(INTEL, found(), avx2=True), (0.75, 0.85))
        self.assertEqual(bounds(INTEL, found(dtype="bf16")), (0.40, 0.55))
        self.assertIsNone(bounds(ZEN, found(dtype="bf16")))
        self.assertIsNone(bounds(INTEL, found(name="[1,8,2048,64] causal")))
        cache = {"suite": "decode", "shape": (1, 32, 1, 128), "dtype": "bf16"}
        self.assertEqual(bounds(INTEL, found(name="B1 32/32 4096 cold", cold=True, **cache)), (0.92, 0.97))
        self.assertEqual(bounds(INTEL, found(name="B1 32/8 16384 cold", cold=True, **cache)), (0.85, 0.93))
        self.assertEqual(bounds(INTEL, found(name="B1 32/8 16384 cold", cold=True, **{**cache, "dtype": "bf16, i8"})), (0.75, 0.90))
        self.assertIsNone(bounds(INTEL, found(name="B1 32/8 16384 hot", **cache)))


class Ceilings(unittest.TestCase):
    def test_a_share_is_judged(self):
        row = ceilings.share_row(found(0.82), (0.8, 0.87))
        self.assertEqual((row["kind"], row["value"], row["verdict"], row["against"]["name"]), ("share", 0.82, "must", "unit"))
        self.assertEqual((row["ours"]["unit"], row["ours"]["microseconds"]), ("GFLOP/s", 2000))
        self.assertAlmostEqual(row["ours"]["rate"], 328)
        self.assertEqual(ceilings.share_row(found(0.5), (0.8, 0.87))["verdict"], "not met")
        self.assertEqual(ceilings.share_row(found(0.5), None)["verdict"], "")
        self.assertIn("≥ 0.8", table_of([row]))

    def test_tiny_calls_are_judged_by_their_time(self):
        row = ceilings.tiny_row({**found(), "seconds": 1e-6})
        self.assertEqual((row["value"], row["verdict"]), (1, "must"))
        self.assertIn("≤ 2", table_of([row]))

    def test_scaling_is_the_ratio_of_two_shares_of_one_ceiling(self):
        row, = ceilings.scaling_rows([found(0.8)], [found(0.72)])
        self.assertAlmostEqual(row["value"], 0.9)
        self.assertEqual(row["verdict"], "must")
        other = found(0.72)
        other["ceilings"] = other["ceilings"][1:]
        self.assertEqual(ceilings.scaling_rows([found(0.8)], [other]), [])

    def test_the_tool(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = Path(folder) / "flashattn"
            tool.write_text('#!/bin/sh\n[ "$FLASHATTN_MAX_ISA" != avx2 ] || { echo "flashattn: none here" >&2; exit 1; }\n'
                            'echo "{\\"rows\\": [{\\"seconds\\": 1, \\"options\\": \\"$*\\", \\"kernel\\": '
                            '{\\"name\\": \\"k\\", \\"explanation\\": \\"cpu: kernel k, tiles\\"}}, {\\"skipped\\": \\"\\"}]}"\n')
            tool.chmod(0o755)
            row, = ceilings.run_tool(tool, 3, Effort(7, 40, False), "--suite", "forward")
            self.assertEqual(row["kernel"], "cpu: kernel k, tiles")
            self.assertIn("--threads 3 --rounds 7 --milliseconds 40 --suite forward", row["options"])
            with self.assertRaisesRegex(RuntimeError, "none here"):
                ceilings.run_tool(tool, 3, Effort(7, 40, False), isa="avx2")


class Program(ProgramTests, unittest.TestCase):
    program = "compare_cpu.py"
    help_word = "ceilings"
    refused = ((["--suite", "f32"], "f32"), (["--threads", "none"], "none"), (["--threads", "0"], "'0'"))


if __name__ == "__main__":
    unittest.main()
