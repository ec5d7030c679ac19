"""What a comparison's command line owes its user before anything is measured: a mixin for test cases."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


class ProgramTests:
    program = ""    # in bench/
    help_word = ""  # that its help has
    refused = ()    # arguments that it refuses, each with the word that its message must name

    def run_program(self, *arguments):
        return subprocess.run([sys.executable, str(BENCH / self.program), *arguments], capture_output=True, text=True, timeout=60)

    def test_help_needs_no_torch(self):
        done = self.run_program("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(self.help_word, done.stdout)

    def test_bad_options(self):
        for arguments, word in self.refused:
            done = self.run_program(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(word, done.stderr)
