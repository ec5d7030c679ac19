"""convert against NumPy's own assignment."""

import unittest

import flashattn
import numpy as np
from support import Case, ml_dtypes


class Conversions(Case):
    def setUp(self):
        self.random = np.random.default_rng(5)

    def test_layouts_and_types(self):
        names = [np.float32, np.float16, *([ml_dtypes.bfloat16] if ml_dtypes else [])]
        for to, of in ((to, of) for to in names for of in names):
            x = self.random.standard_normal((2, 5, 3, 8)).astype(of)
            out = np.full((2, 3, 5, 8), 7, to)
            seen = out.transpose(0, 2, 1, 3)
            flashattn.convert(seen, x)
            np.testing.assert_array_equal(seen, x.astype(np.float32).astype(to))

    def test_parts_and_what_is_broadcast(self):
        out = np.full((6, 4), 7, np.float32)
        flashattn.convert(out[::2], np.broadcast_to(np.arange(4, dtype=np.float16), (3, 4)))
        np.testing.assert_array_equal(out[::2], np.broadcast_to(np.arange(4), (3, 4)))
        np.testing.assert_array_equal(out[1::2], 7)
        flashattn.convert(out[1:3], None)
        np.testing.assert_array_equal(out[1:3], 0)
        flashattn.convert(out[:0], out[:0])
        turned = np.empty_like(out)
        flashattn.convert(turned, out[..., ::-1])  # which is copied first
        np.testing.assert_array_equal(turned, out[..., ::-1])

    def test_sums(self):
        out, x = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float16)
        flashattn.convert(out, x, accumulate=True)
        np.testing.assert_array_equal(out, np.arange(1, 7).reshape(2, 3))

    def test_bits_of_blocks_and_of_8_bits(self):
        blocks = flashattn.block_dtype("q8_0")
        x = np.frombuffer(self.random.bytes(5 * 3 * blocks.itemsize), blocks).reshape(5, 3)
        out = np.zeros((5, 3), blocks)
        flashattn.convert(out, x)
        self.assertEqual(out.tobytes(), x.tobytes())
        small = np.arange(-8, 8, dtype=np.int8)
        into = np.zeros(16, np.int8)
        flashattn.convert(into, small)
        np.testing.assert_array_equal(into, small)

    def test_refusals(self):
        x, out = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
        for error, sentence, arguments, options in (
            (ValueError, r"x has shape \(3,\): expected out's, \(2, 3\)", (out, x[0]), {}),
            (ValueError, "expected 4 axes at most", (out[None, None, None], None), {}),
            (ValueError, "out is written in place", (out[:, ::2], x[:, ::2]), {}),
            (ValueError, "read-only", (np.broadcast_to(out[0], (2, 3)), x), {}),
            (TypeError, "out is written in place: expected a numpy.ndarray", ([0.0], x[0, :1]), {}),
            (TypeError, "x has dtype float64", (out, x.astype(np.float64)), {}),
            (flashattn.UnsupportedError, "x_dtype is i8", (out, x.astype(np.int8)), {}),
            (flashattn.InvalidArgumentError, "out_dtype is f16", (out.astype(np.float16), x), {"accumulate": True}),
            (flashattn.InvalidArgumentError, "shares elements", (out, out), {}),
        ):
            with self.subTest(sentence), self.assertRaisesRegex(error, sentence):
                flashattn.convert(*arguments, **options)
        np.testing.assert_array_equal(out, 0)


if __name__ == "__main__":
    unittest.main()
