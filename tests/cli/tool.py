"""What the tests share: running the tool in a folder of its own, and arrays as the files have them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import support

TOOL = os.environ["FLASHATTN_TOOL"]


def bf16_bits(x):
    """float32 to the bits of bfloat16, to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


class ToolCase(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_tool(self, *args, stdin=None, env=None, text=True):
        return subprocess.run([TOOL, *map(str, args)], cwd=self.folder, input=stdin, capture_output=True, text=text, timeout=240,
                              env={**os.environ, **(env or {})})

    def output_of(self, *args, stdin=None):
        done = self.run_tool(*args, stdin=stdin)
        self.assertEqual((done.returncode, self.without_progress(done)), (0, ""))
        return done.stdout

    def without_progress(self, done):
        """What is on standard error beside the lines that say how far a long command is."""
        return re.sub(r"^\d+/\d+ .+\n", "", done.stderr, flags=re.MULTILINE) if done.args[1] in ("bench", "study") else done.stderr

    def names(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def save(self, **arrays):
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)

    def load(self, name):
        return np.load(self.folder / f"{name}.npy")

    def attention(self, *options):
        """Runs q, k and v as they were saved; gives what --out and --lse then hold."""
        files = [option for name in "qkv" for option in (f"--{name}", f"{name}.npy")]
        self.assertEqual(self.output_of("run", *files, "--out", "o.npy", "--lse", "lse.npy", *options), "")
        return self.load("o"), self.load("lse")

    def assert_sentence(self, done, *words):
        """A failure: nothing printed, and one sentence that has the words."""
        self.assertNotEqual(done.returncode, 0)
        self.assertGreater(done.returncode, 0, "ended by a signal")
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Aflashattn: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)
