"""What mypy --strict makes of programs that use the package, and of the package itself. Skipped where mypy is not installed."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import flashattn

# A line that mypy has to refuse says so.
PROGRAM = """
from typing import Any

import flashattn
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

Array = NDArray[Any]
Floats = NDArray[np.float32]
q: Array = np.zeros((1, 2, 3, 4), np.float32)

o = flashattn.attention(q, q, q)
o.shape
assert_type(o, Array)
assert_type(flashattn.attention(q, q, q, causal="top-left", window=(3, None), return_lse=True), tuple[Array, Floats])
assert_type(flashattn.attention(q, q, q, layout="bhsd", return_scores="raw"), tuple[Array, Floats])
assert_type(flashattn.attention(q, q, q, return_lse=True, return_scores="biased"), tuple[Array, Floats, Floats])
out, lse = flashattn.attention(q, q, q, causal=False, algorithm="flash1", out_dtype="float32", return_lse=True, backend="cpu")
dq, dk, dv = flashattn.attention_backward(out, q, q, q, out, lse, causal="bottom-right", layout="bshd")
assert_type(dq, Array)
assert_type(flashattn.merge([out, out], [lse, lse]), Array)
assert_type(flashattn.merge([out, out], [lse, lse], return_lse=True), tuple[Array, Floats])
assert_type(flashattn.rotary(q, lse, lse, layout="bhsd"), Array)
assert_type(flashattn.explain(q, q, q, chunk=3), str)
assert_type(flashattn.Plan(q, q, q, chunk=3)(q, q, q), Array)
assert_type(flashattn.Plan(q, q, None, return_lse=True)(q, q), tuple[Array, Floats])
assert_type(flashattn.Plan(q, q, q, return_lse=True, return_scores="raw")(q, q, q, mask=q), tuple[Array, ...])
flashattn.convert(q, q.astype(np.float16), accumulate=True)
assert_type(flashattn.backends()["cpu"].devices[0].memory_bytes, int)
with flashattn.Handle("cpu", threads=2, max_isa="generic") as handle:
    flashattn.append_kv(q, q, q, q, backend=handle)

def maybe(with_lse: bool) -> None:
    flashattn.attention(q, q, q, return_lse=with_lse).shape  # refused
    flashattn.attention(q, q, q, return_lse=True).shape  # refused
    flashattn.attention(q, q, q, causal="nope")  # refused
    flashattn.attention(q, q, q, causal=True)  # refused
    flashattn.attention(q, q, q, casual="top-left")  # refused
    flashattn.attention(q, q, q, layout="bdhs")  # refused
    flashattn.attention(q, q, q, return_scores="all")  # refused
    flashattn.attention(q, q, q, backend="gpu")  # refused
    flashattn.attention_backward(out, q, q, q, out, lse, algorithm="fast")  # refused
    flashattn.explain(q, q, q, chunk="3")  # refused
    flashattn.merge(out, lse, return_lse=True).shape  # refused
    flashattn.Plan(q, q, q, casual="top-left")  # refused
    flashattn.Plan(q, q, q, return_lse=True)(q, q, q).shape  # refused
    flashattn.Handle("gpu")  # refused
    flashattn.Handle(memory="gpu")  # refused
"""


@unittest.skipIf(importlib.util.find_spec("mypy") is None, "mypy is not installed: types are not checked")
class Typing(unittest.TestCase):
    def test_strict(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            program.write_text(PROGRAM)
            result = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder, "--no-error-summary", program.name],
                capture_output=True,
                text=True,
                cwd=folder,
                env={**os.environ, "MYPYPATH": str(Path(flashattn.__file__).parents[1])},
            )
        errors = [line for line in result.stdout.splitlines() if ": error: " in line]
        lines = {int(found[1]) for error in errors if (found := re.match(r"program\.py:(\d+): ", error))}
        expected = {n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# refused")}
        self.assertEqual(lines, expected, result.stdout + result.stderr)
        self.assertEqual([error for error in errors if not error.startswith("program.py:")], [], "in the package itself")


if __name__ == "__main__":
    unittest.main()
