"""Clock and power beside the figures, from a program that takes the place of nvidia-smi."""

import os
import shutil
import subprocess
import sys
import time
import unittest
from contextlib import closing

from compare.judge import Contestant
from compare.sensors import Sensors, sample_of

TALKS = r"""
import sys, time
print("clocks in MHz, power in W, of", sys.argv[2], flush=True)
print("[N/A], [N/A]", flush=True)
while True:
    print("1410, 690.5", flush=True)
    time.sleep(0.01)
"""


def until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class SensorsTest(unittest.TestCase):
    def test_lines(self):
        self.assertEqual(sample_of("1980, 698.12\n"), (1980, 698.12))
        for line in ("", "\n", "1980", "1980, [N/A]", "Unable to determine the device handle", "1, 2, 3"):
            self.assertIsNone(sample_of(line))

    def test_samples_are_of_the_part_of_a_block_that_counts(self):
        with closing(Sensors("GPU-1", [sys.executable, "-c", TALKS])) as sensors:
            asked = []

            def block(milliseconds):
                asked.append(milliseconds)
                self.assertTrue(until(lambda: sensors.samples))
                time.sleep(0.03)
                sensors.samples.clear()
                begin = time.perf_counter()
                sensors.samples.append((begin - 100, 1980.0, 200.0))  # from before
                sensors.samples.append((begin, 1500.0, 700.0))
                return 3.0

            contestant = Contestant(block)
            sensors.watch(contestant, 50)
            self.assertEqual(asked, [50])
            self.assertIn((1500, 700), contestant.samples)
            self.assertNotIn((1980, 200), contestant.samples)

    @unittest.skipUnless(shutil.which("setpriv"), "setpriv is not installed")
    def test_it_ends_with_a_process_that_is_killed(self):
        program = f"""import sys, time
from compare.judge import Contestant
from compare.sensors import Sensors
sensors = Sensors('GPU-1', [sys.executable, '-c', {TALKS!r}])
sensors.watch(Contestant(lambda milliseconds: [time.sleep(0.01) for _ in range(1000) if not sensors.samples]), 1)
print(sensors.process.pid, flush=True)
input()"""
        with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                              stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as owner:
            pid = int(owner.stdout.readline())
            os.kill(pid, 0)
            owner.kill()

        def gone():
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    return stat.read().rpartition(")")[2].split()[0] == "Z"  # nobody may wait for it
            except FileNotFoundError:
                return True

        self.assertTrue(until(gone))

    def test_nothing_is_asked_but_while_it_watches(self):
        with closing(Sensors("GPU-1", [sys.executable, "-c", TALKS])) as sensors:
            contestant = Contestant(lambda milliseconds: until(lambda: len(sensors.samples) > 3))
            sensors.watch(contestant, 1)
            self.assertIn((1410, 690.5), contestant.samples)
            time.sleep(0.1)  # what was on its way
            count = len(sensors.samples)
            time.sleep(0.2)
            self.assertEqual(len(sensors.samples), count)
        self.assertIsNotNone(sensors.process.returncode)

    def test_without_a_program_there_is_nothing(self):
        for query in (["no-such-program"], [sys.executable, "-c", "raise SystemExit(9)"]):
            with closing(Sensors("GPU-1", query)) as sensors:
                contestant = Contestant(lambda milliseconds: 1.0)
                sensors.watch(contestant, 1)
                self.assertEqual(contestant.samples, [])


if __name__ == "__main__":
    unittest.main()
