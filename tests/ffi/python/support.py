"""What the tests share: tolerances, comparison, random arrays, and the optional types."""

from __future__ import annotations

import unittest

import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

needs_ml_dtypes = unittest.skipIf(ml_dtypes is None, "ml_dtypes is not installed: bfloat16 and 8-bit floats are not tested")

# Relative Frobenius error on benign data, by the coarser of out's type and the type that probabilities are rounded to (q's).
LIMITS = {"float32": 4e-6, "float16": 5e-4, "bfloat16": 4e-3, "float8_e4m3fn": 5e-2, "float8_e5m2": 1e-1}
LSE_LIMIT = 1e-5  # times max(1, |LSE|)


def dtype(name):
    return np.dtype(getattr(ml_dtypes, name)) if name not in ("float32", "float16", "int8") else np.dtype(name)


def types():
    """Names of the types that this interpreter can make."""
    return list(LIMITS) if ml_dtypes else ["float32", "float16"]


def random(rng, shape, name="float32"):
    return rng.standard_normal(shape).astype(dtype(name))


def packed_lengths(rng, batch, longest):
    """Cumulative lengths of a few sequences, an empty one now and then."""
    return np.concatenate([[0], np.cumsum(rng.integers(0, longest + 1, batch))]).astype(np.int32)


class Case(unittest.TestCase):
    """assert_out and assert_lse take NaN and infinity for what they are: equal only to themselves."""

    def assert_out(self, out, expected, limit):
        out = np.asarray(out).astype(np.float64)
        self.assertEqual(out.shape, expected.shape)
        self.assertTrue(np.isfinite(out).all(), "out is not finite")
        error = np.linalg.norm(out - expected)
        self.assertLessEqual(
            error, limit * np.linalg.norm(expected), f"relative error {error / (np.linalg.norm(expected) or 1):.2e}"
        )

    def assert_lse(self, lse, expected, limit=LSE_LIMIT):
        self.assertEqual(lse.dtype, np.float32)
        self.assertEqual(lse.shape, expected.shape)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(lse[~finite], expected[~finite])
        error = np.abs(lse[finite] - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
        self.assertTrue((error <= limit).all(), f"LSE is off by {error.max(initial=0):.2e}")
