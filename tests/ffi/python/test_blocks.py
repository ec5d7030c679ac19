"""Keys and values in ggml's blocks: what is appended is what is read, and v may differ from k."""

import unittest

import flashattn
import numpy as np

import reference
from support import Case, random

TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def values(blocks):
    """The stored numbers, by the table in flashattn.h."""
    d = blocks["d"].astype(np.float64)[..., None]
    if blocks.dtype == flashattn.block_dtype("q8_0"):
        x = d * blocks["qs"]
    else:
        x = np.concatenate((blocks["qs"] & 15, blocks["qs"] >> 4), -1).astype(np.float64)
        names = blocks.dtype.names
        if "qh" in names:
            x += 16 * np.unpackbits(blocks["qh"], axis=-1, bitorder="little")
        x = d * x + blocks["m"].astype(np.float64)[..., None] if "m" in names else d * (x - (16 if "qh" in names else 8))
    return x.reshape(*blocks.shape[:-1], -1)


class Blocks(Case):
    def setUp(self):
        self.rng = np.random.default_rng(31)
        self.q = random(self.rng, (2, 3, 4, 64))

    def cache(self, name, slots, heads, dim):
        return np.zeros((2, slots, heads, dim // 32), flashattn.block_dtype(name))

    def test_append_then_attend(self):
        for k_type, v_type in zip(TYPES, TYPES[1:] + TYPES[:1]):
            with self.subTest(k=k_type, v=v_type):
                k, v = self.cache(k_type, 9, 2, 64), self.cache(v_type, 9, 4, 32)
                k_new, v_new = random(self.rng, (2, 9, 2, 64)), random(self.rng, (2, 9, 4, 32))
                flashattn.append_kv(k_new, v_new, k, v)
                wide = values(k)
                self.assertLess(np.abs(wide - k_new).max(), 0.35)
                self.assertGreater(np.abs(wide - k_new).max(), 0)
                out = flashattn.attention(self.q, k, v, causal="bottom-right")
                heads = np.repeat(wide, 2, 2)  # as many as v's, and q's
                self.assert_out(out, reference.attention(self.q, heads, values(v), causal="bottom-right").out, 1e-5)

    def test_native_precision(self):
        k, v = self.cache("q8_0", 70, 2, 64), self.cache("q4_1", 70, 2, 64)
        flashattn.append_kv(random(self.rng, (2, 70, 2, 64)), random(self.rng, (2, 70, 2, 64)), k, v)
        q = random(self.rng, (2, 40, 4, 64))
        want = reference.attention(q, values(k), values(v), causal="top-left").out
        self.assert_out(flashattn.attention(q, k, v, causal="top-left", precision="native"), want, 1e-2)
        self.assert_out(flashattn.attention(q, k, v, causal="top-left", precision="default"), want, 1e-5)

    def test_a_view_of_bytes_and_of_every_second_slot(self):
        k = self.cache("q8_0", 8, 4, 64)
        flashattn.append_kv(*(random(self.rng, (2, 8, 4, 64)) for _ in range(2)), k, self.cache("q8_0", 8, 4, 64))
        seen = k.view(np.uint8).view(k.dtype)[:, ::2]
        out = flashattn.attention(self.q, seen, seen)
        self.assert_out(out, reference.attention(self.q, values(k)[:, ::2], values(k)[:, ::2]).out, 1e-5)

    def test_what_is_refused(self):
        k = self.cache("q4_0", 5, 4, 64)
        with self.assertRaisesRegex(ValueError, "name is 'q6_K': expected 'q4_0' or"):
            flashattn.block_dtype("q6_K")
        with self.assertRaisesRegex(ValueError, "k has head dimension 96: expected q's, 64"):
            flashattn.attention(self.q, self.cache("q4_0", 5, 4, 96), k)
        with self.assertRaisesRegex(TypeError, "q has dtype"):
            flashattn.attention(k, k, k)
        with self.assertRaisesRegex(flashattn.InvalidArgumentError, "expected no FA_OPERAND_K_DESCALE"):
            flashattn.attention(self.q, k, k, k_descale=1.0)


if __name__ == "__main__":
    unittest.main()
