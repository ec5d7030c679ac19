"""One broken suite must not cost the others: the runner with workers that end, crash, fall silent and talk nonsense."""

import contextlib
import io
import json
import sys
import unittest

from compare.runner import run_suites
from program import ProgramTests

# Takes jobs as the real one does. Each suite has three groups; the name of the suite says what its second one does.
WORKER = r"""
import json, os, sys, time
say = lambda **event: print(json.dumps(event), flush=True)
jobs = json.loads(sys.argv[1])
if jobs[0][0] == "no-start": sys.exit("nothing works here")
say(event="machine", device="a GPU")
print("a library says hello", flush=True)
for suite, first in jobs:
    if suite == "other" and jobs[0][0] != suite: break
    for index in range(first, 3):
        say(event="group", suite=suite, index=index, name=f"group {index}")
        if index == 1 and suite == "crash": os.abort()
        if index == 1 and suite == "stuck": time.sleep(60)
        if index == 1 and suite == "refuse": say(event="failed", suite=suite, name="group 1", reason="too large")
        else: say(event="rows", suite=suite, rows=[{"name": f"group {index}", "verdict": "aim"}])
        if index == 2 and suite in ("harm", "last"): sys.exit(3)
    say(event="done", suite=suite)
"""


class Runner(unittest.TestCase):
    def run_all(self, *suites):
        self.starts, self.heard = [], []

        def command(jobs):
            self.starts.append([tuple(job) for job in jobs])
            return [sys.executable, "-c", WORKER, json.dumps(jobs)]

        with contextlib.redirect_stdout(io.StringIO()):
            machine, rows = run_suites(list(suites), command, 3, lambda _, suite, found: self.heard.append((suite, len(found))))
        self.assertEqual([suite for suite, _ in self.heard], list(suites))
        self.assertEqual(list(rows), list(suites))
        return machine, {suite: [row["verdict"] for row in found] for suite, found in rows.items()}, rows

    def test_all_well(self):
        machine, verdicts, _ = self.run_all("one", "two")
        self.assertEqual(machine, {"device": "a GPU"})
        self.assertEqual(verdicts, {"one": ["aim"] * 3, "two": ["aim"] * 3})
        self.assertEqual(len(self.starts), 1)

    def test_a_failed_group_is_one_row(self):
        _, verdicts, rows = self.run_all("refuse", "two")
        self.assertEqual(verdicts, {"refuse": ["aim", "failed", "aim"], "two": ["aim"] * 3})
        self.assertEqual(rows["refuse"][1], {"name": "group 1", "verdict": "failed", "reason": "too large"})

    def test_a_crash_costs_its_group_alone(self):
        _, verdicts, rows = self.run_all("one", "crash", "two")
        self.assertEqual(verdicts, {"one": ["aim"] * 3, "crash": ["aim", "failed", "aim"], "two": ["aim"] * 3})
        self.assertEqual(self.starts[1], [("crash", 2), ("two", 0)])
        self.assertIn("-6", rows["crash"][1]["reason"])

    def test_so_does_a_kernel_that_never_ends(self):
        _, verdicts, rows = self.run_all("stuck", "two")
        self.assertEqual(verdicts, {"stuck": ["aim", "failed", "aim"], "two": ["aim"] * 3})
        self.assertIn("3 s", rows["stuck"][1]["reason"])

    def test_a_worker_that_ends_between_groups(self):
        _, verdicts, _ = self.run_all("harm", "two")
        self.assertEqual(verdicts, {"harm": ["aim"] * 3, "two": ["aim"] * 3})

    def test_a_worker_leaves_suites_to_another(self):
        """Also one that has only ended the suite whose last group stopped the worker before it."""
        for before in ("one", "last"):
            _, verdicts, _ = self.run_all(before, "other", "two")
            self.assertEqual(verdicts, {before: ["aim"] * 3, "other": ["aim"] * 3, "two": ["aim"] * 3})
            self.assertEqual(self.starts[-1], [("other", 0), ("two", 0)])

    def test_a_worker_that_cannot_begin_is_not_asked_again(self):
        _, verdicts, _ = self.run_all("no-start", "two")
        self.assertEqual(verdicts, {"no-start": ["failed"], "two": ["failed"]})
        self.assertEqual(len(self.starts), 1)


class Program(ProgramTests, unittest.TestCase):
    program = "compare_gpu.py"
    help_word = "speculative"
    refused = ((["--suite", "speed"], "speed"), (["--rivals", "CUBLAS"], "CUBLAS"), (["--fast", "--quick"], "--fast"))


if __name__ == "__main__":
    unittest.main()
