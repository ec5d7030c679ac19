"""Long commands that are interrupted tell what is done, and end by the signal."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

from tool import TOOL, ToolCase

BENCH = ("bench", "--backend", "cpu", "--dtype", "f32", "--milliseconds", "4", *("--shape", "1,1,16,8") * 1000)
STUDY = ("study", "--backend", "cpu", "--rounds", "1000000", "--seconds", "0.05", *("--shape", "1,1,16,8") * 1000)


F_SETPIPE_SZ = 1031  # which the module fcntl has from Python 3.10 on


def end(process):
    process.kill()
    process.communicate()


class Interrupted(ToolCase):
    def start(self, *args):
        process = subprocess.Popen([TOOL, *args], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(end, process)
        return process

    def interrupted(self, number, *args):
        """Standard output of a command that gets the signal in its fourth step of a thousand, and how many steps were done."""
        process = self.start(*args)
        for line in process.stderr:
            self.assertRegex(line, r"\A\d+/1000 ")
            if line.startswith("4/"):
                break
        process.send_signal(number)
        out, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, -number, errors)
        done = int(re.search(r"^flashattn: interrupted: (\d+) of 1000 (?:rows|shapes) are done\n\Z", errors, re.MULTILINE)[1])
        self.assertGreaterEqual(done, 3)
        self.assertLess(done, 1000)
        return out, done

    def test_bench_prints_its_table_so_far(self):
        out, done = self.interrupted(signal.SIGINT, *BENCH)
        self.assertEqual(len(re.findall(r"^shapes  \[1,1,16,8\]  f32 .*FLOP/s", out, re.MULTILINE)), done)
        self.assertIn("÷ first: ", out)

    def test_bench_prints_its_json_so_far(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            out, done = self.interrupted(number, *BENCH, "--json")
            report = json.loads(out)
            self.assertTrue(report["interrupted"])
            self.assertEqual(len(report["rows"]), done)
            for row in report["rows"]:
                self.assertGreater(row["seconds"], 0)

    def test_study_prints_its_table_so_far(self):
        out, done = self.interrupted(signal.SIGTERM, *STUDY)
        self.assertEqual(len(re.findall(r"^\[1,1,16,8\]  (?:standard|flash1|flash) ", out, re.MULTILINE)), 3 * done)
        self.assertIn("Counts differ", out)

    def test_study_prints_its_json_so_far(self):
        out, done = self.interrupted(signal.SIGINT, *STUDY, "--json")
        report = json.loads(out)
        self.assertTrue(report["interrupted"])
        self.assertEqual(len(report["rows"]), 3 * done)

    def test_a_drawing_is_of_all_or_not_made(self):
        self.interrupted(signal.SIGINT, *BENCH, "--plot", "bench.svg")
        self.assertEqual(self.names(), [])

    def test_rows_are_printed_as_they_come(self):
        process = self.start(*BENCH)
        rows = [line for line, _ in zip(process.stdout, range(4))]
        self.assertIsNone(process.poll())
        self.assertRegex(rows[2], r"\Ashapes  \[1,1,16,8\]  f32 +\S")

    def test_a_second_signal_ends_at_once(self):
        """The tool cannot go on: nobody reads what it prints, and the pipe is full."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        size = fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
        with open(self.folder / "errors", "w+") as errors:
            process = subprocess.Popen([TOOL, *BENCH, "--rounds", "1"], cwd=self.folder, stdout=writer, stderr=errors)
            os.close(writer)
            self.addCleanup(end, process)
            while struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD,
                                                 b"\0" * 4))[0] < size - 300:  # less room than the notes below the table need
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            self.assertIsNone(process.poll(), "the first signal ended it")
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.01)
            self.assertEqual(process.returncode, -signal.SIGINT)
            errors.seek(0)
            self.assertNotIn("interrupted", errors.read())


if __name__ == "__main__":
    unittest.main()
