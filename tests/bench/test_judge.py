"""Ratios, bounds, verdicts and the table of the comparison, on times that are made up."""

import ast
import itertools
import math
import unittest

from compare import targets
from compare.judge import Comparison, Contestant, Times, failed_row, is_fault, keeps, row_of, take_turns
from compare.table import aligned, cells_of, kernel_name, summary_of, table_of
from compare.work import SUITES, flops_of, jobs_of, kept_pairs, parse_job, parse_suites, sets_for
from program import BENCH


def contestants(error=1e-3, **work):
    kernel = "cuda: kernel fwd_mma, tiles"
    return {name: Contestant(None, amount, "TFLOP/s", error=error if name == "ours" else None, limit=4e-3, kernel=kernel)
            for name, amount in work.items()}


def row(kind="speed", must=None, aim=None, ours=(1.0, 1.0, 1.0), other=(1.0, 1.0, 1.0), against="FLASH", **options):
    work = {"ours": 4e12, "FLASH": 4e12, **options.pop("work", {})}
    times = Times({"ours": list(ours), "FLASH": list(other)})
    return row_of(Comparison("shape", against, kind, must, aim), contestants(**options, **work), times)


class Judge(unittest.TestCase):
    def test_the_value_is_the_median_of_the_rounds_ratios(self):
        """Not the ratio of medians: rounds are what a drift of the clock spares."""
        found = row(ours=(1, 2, 8), other=(2, 2, 4))
        self.assertEqual((found["value"], found["low"], found["high"], found["rounds"]), (1, 0.5, 2, [2, 1, 0.5]))
        self.assertEqual(found["ours"]["microseconds"], 2e6)
        self.assertEqual(found["ours"]["rate"], 2)

    def test_speed_and_time_count_work(self):
        self.assertEqual(row(work={"ours": 2e12})["value"], 0.5)
        self.assertEqual(row("time", work={"ours": 2e12})["value"], 2)
        self.assertEqual(row("time", ours=(3, 3, 3))["value"], 3)

    def test_clock_and_power_stand_beside_the_figures(self):
        both = contestants(ours=4e12, FLASH=4e12)
        both["ours"].samples = [(1400, 690), (1500, 700)]
        found = row_of(Comparison("shape", "FLASH"), both, Times({"ours": [1], "FLASH": [1]}))
        self.assertEqual((found["ours"]["sm_mhz"], found["ours"]["watts"]), (1450, 695))
        self.assertNotIn("watts", found["against"])
        self.assertEqual(cells_of(found)[1:8], ["1000 ms", "4 TFLOP/s", "1450 MHz 695 W", "FLASH", "1000 ms", "4 TFLOP/s", ""])

    def test_microseconds_need_no_rival(self):
        found = row("microseconds", 12.5, 9.5, ours=(11e-6, 10e-6, 12e-6), against=None)
        self.assertAlmostEqual(found["value"], 11)
        self.assertEqual(found["verdict"], "must")
        self.assertNotIn("against", found)

    def test_bounds(self):
        speed, time, clock = (Comparison("", "", kind) for kind in ("speed", "time", "microseconds"))
        self.assertTrue(keeps(speed, 0.885, 0.9))
        self.assertFalse(keeps(speed, 0.875, 0.9))
        self.assertTrue(keeps(time, 1.16, 1.15))
        self.assertFalse(keeps(time, 1.18, 1.15))
        self.assertFalse(keeps(clock, 12.51, 12.5))  # a time has no tolerance: it is no ratio

    def test_verdicts(self):
        self.assertEqual(row()["verdict"], "")
        self.assertEqual(row(must=0.9, aim=1.2)["verdict"], "must")
        self.assertEqual(row(must=0.9, aim=1.0)["verdict"], "aim")
        self.assertEqual(row(must=1.1)["verdict"], "not met")
        self.assertEqual(row("time", must=1.1, aim=1.0)["verdict"], "aim")
        self.assertEqual(row("time", must=0.9)["verdict"], "not met")

    def test_a_wrong_number_is_wrong_however_fast(self):
        for error in (5e-3, math.inf, math.nan):
            found = row(must=0.1, error=error)
            self.assertEqual(found["verdict"], "WRONG")
            self.assertTrue(is_fault(found))
        self.assertTrue(is_fault(failed_row("shape", "no memory")))
        self.assertFalse(is_fault(row(must=2)))

    def test_a_rival_that_does_not_take_the_shape_is_not_hidden(self):
        found = row(must=0.9, against="CUDNN")
        self.assertEqual(found["verdict"], "no rival")
        self.assertNotIn("value", found)
        self.assertEqual(found["ours"]["microseconds"], 1e6)
        self.assertEqual(row(must=0.9, against="CUDNN", error=1)["verdict"], "WRONG")

    def test_turns_alternate(self):
        order, clock = [], itertools.count(1)

        def block(name):
            return lambda milliseconds: (order.append((name, milliseconds)), next(clock))[1]

        times = take_turns({name: Contestant(block(name)) for name in "ab"}, 3, 50)
        self.assertEqual(order, [(name, 50) for name in "abbaab"])
        self.assertEqual(times.seconds, {"a": [1, 4, 5], "b": [2, 3, 6]})


class Work(unittest.TestCase):
    def test_suites(self):
        self.assertEqual(parse_suites("f32,forward"), ["forward", "f32"])
        self.assertEqual(parse_suites(" decode , decode"), ["decode"])
        self.assertEqual(parse_suites("all"), list(SUITES))
        for text in ("", ",", "decoding", "decode,fast"):
            with self.assertRaises(ValueError):
                parse_suites(text)

    def test_kernels_of_every_gpu_run_with_each_size_of_shared_memory(self):
        jobs = jobs_of(list(SUITES))
        self.assertEqual(jobs[-8:], [f"{suite}-mma, {kb} KB" for kb in (163, 99) for suite in ("forward", "decode", "prefill", "backward")])
        self.assertEqual(jobs_of(["forward-mma", "f32"]), ["f32", "forward-mma, 163 KB", "forward-mma, 99 KB"])
        self.assertEqual([parse_job(job) for job in ("forward", "forward-mma, 99 KB")], [("forward", None), ("forward-mma", 99)])
        self.assertEqual({parse_job(job)[0] for job in jobs}, set(SUITES))

    def test_smaller_tiles_have_easier_bounds(self):
        bounds = targets.FORWARD_MMA[128, True][4096]
        shape = ("bf16", 4, 4096, 16, 128, True)
        self.assertEqual(targets.of_shape(targets.FORWARD_MMA, shape, 163), bounds)
        self.assertEqual(targets.of_shape(targets.FORWARD_MMA, shape, 99), (bounds[0] * 0.97, bounds[1]))
        self.assertEqual(targets.of_shape(targets.FORWARD_MMA, (*shape, None, 4), 163), (None, None))
        self.assertEqual(targets.of_shape(targets.FORWARD_MMA, ("bf16", 4, 4096, 21, 96, True), 99), (None, None))
        self.assertEqual(targets.of_less_shared((0.97, 0.8), 99, is_time=True), (1.0, 0.8))

    def test_every_suite_is_made(self):
        """By the worker's text, which needs torch to run."""
        tree = ast.parse((BENCH / "compare" / "worker.py").read_text())
        made = {target.id: node.value for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
        self.assertEqual({key.value for key in made["MAKERS"].keys}, set(SUITES))
        self.assertLessEqual(ast.literal_eval(made["LIGHT"]), set(SUITES))

    def test_pairs_are_those_of_the_mask(self):
        for rows, keys, left in itertools.product((0, 1, 3, 7), (0, 1, 5, 7), (None, 0, 2, 50)):
            kept = sum(j <= i + keys - rows and (left is None or j >= i + keys - rows - left) for i in range(rows) for j in range(keys))
            self.assertEqual(kept_pairs(rows, keys, True, left), kept, (rows, keys, left))
        self.assertEqual(kept_pairs(3, 7), 21)

    def test_a_backward_has_five_products_for_two(self):
        self.assertEqual(flops_of(10, 64, 64), 2 * 10 * 128)
        self.assertEqual(flops_of(10, 64, 64, backward=True), 2.5 * flops_of(10, 64, 64))
        self.assertEqual(flops_of(10, 192, 128, backward=True), 2 * 10 * (192 + 128 + 128 + 192 + 192))

    def test_sets_escape_the_cache(self):
        self.assertEqual([sets_for(n) for n in (1e9, 300e6, 299e6, 1e6)], [1, 1, 2, 300])


class Tables(unittest.TestCase):
    def test_columns_line_up(self):
        lines = table_of([row(must=0.9, aim=1), row("microseconds", against=None), failed_row("long name of a shape", "out of memory"),
                          row(against="CUDNN")]).splitlines()
        self.assertEqual(len(lines), 6)
        self.assertEqual({lines[0].find("verdict")}, {lines[1].find("aim"), lines[3].find("failed"), lines[4].find("no rival")})
        self.assertEqual(lines[-1], "long name of a shape: out of memory")
        self.assertIn("fwd_mma", lines[1])
        self.assertIn("≥ 0.9", lines[1])

    def test_every_row_has_every_cell(self):
        for found in (row(), row("time", must=1), failed_row("a", "b"), row(against="CUDNN"), row("microseconds", against=None)):
            self.assertEqual(len(cells_of(found)), 15)
        self.assertEqual(aligned([["a", "b"], ["ccc", "dd"]]), "a     b\nccc  dd")

    def test_kernel_names(self):
        self.assertEqual(kernel_name("cuda, device 0: kernel fwd_simt_64x64 on NVIDIA H200 (sm_90), tiles"), "fwd_simt_64x64")
        self.assertEqual(kernel_name("something else"), "something else")

    def test_summary(self):
        text = summary_of({"a": [row(must=0.9, aim=1), row(must=3)], "b": [failed_row("x", "y"), row(error=1), row(must=0.9, aim=2)]})
        self.assertEqual(text, "5 rows: 1 reach the aim, 1 the must, 1 neither; 1 WRONG, 1 failed")


if __name__ == "__main__":
    unittest.main()
