"""Factors of blocks, shifts, pairs of 4 bits and tails: attention over what they stand for."""

import unittest

import flashattn
import numpy as np

import reference
from support import Case, random

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def codes(pairs):
    """The 4-bit codes of an array of pairs, by dims."""
    byte = pairs.view(np.uint8)
    return np.stack((byte & 15, byte >> 4), -1).reshape(*byte.shape[:-1], -1)


class Factors(Case):
    def setUp(self):
        self.rng = np.random.default_rng(47)
        self.q = random(self.rng, (2, 3, 4, 64))

    def pairs(self, name, slots, heads, dim):
        return self.rng.integers(0, 256, (2, slots, heads, dim // 2), np.uint8).view(flashattn.block_dtype(name))

    def factors(self, *shape, dtype=np.float16):
        return self.rng.uniform(0.05, 0.2, shape).astype(dtype)

    def test_kivi(self):
        k, v = self.pairs("u4", 70, 2, 64), self.pairs("u4", 70, 2, 64)
        of_k, of_v = self.factors(2, 3, 2, 64), self.factors(2, 70, 2, 1)
        more = [-8 * f + self.factors(*f.shape) for f in (of_k, of_v)]
        out = flashattn.attention(
            self.q, k, v, k_descale=of_k, k_descale_block=(32, 1), v_descale=of_v, v_descale_block=(0, 64), k_shift=more[0], v_shift=more[1]
        )
        wide = [np.repeat(x.astype(np.float64), 32, 1)[:, :70] for x in (of_k, more[0])]
        want = reference.attention(self.q, codes(k) * wide[0] + wide[1], codes(v) * of_v.astype(np.float64) + more[1]).out
        self.assert_out(out, want, 1e-5)

    def test_pairs_by_blocks_of_dims(self):
        k, v = self.pairs("e2m1", 20, 2, 64), self.pairs("i4", 20, 2, 64)
        of_k, of_v = self.factors(2, 20, 2, 4, dtype=np.float32), self.factors(2, 1, 1, 2, dtype=np.float32)
        out = flashattn.attention(self.q, k, v, k_descale=of_k, k_descale_block=(0, 16), v_descale=of_v, v_descale_block=(0, 32))
        signed = (codes(v) ^ 8).astype(np.float64) - 8
        want = reference.attention(self.q, E2M1[codes(k)] * np.repeat(of_k, 16, -1), signed * np.repeat(of_v, 32, -1)).out
        self.assert_out(out, want, 1e-5)

    def test_append_then_attend(self):
        k, v = np.zeros((2, 9, 2, 32), np.uint8).view(flashattn.block_dtype("u4")), np.zeros((2, 9, 2, 64), np.int8)
        of_k, shift, of_v = np.zeros((2, 9, 2, 2), np.float16), np.zeros((2, 9, 2, 2), np.float16), np.zeros((2, 9, 2), np.float32)
        k_new, v_new = random(self.rng, (2, 9, 2, 64)), random(self.rng, (2, 9, 2, 64))
        flashattn.append_kv(
            k_new, v_new, k, v, dynamic_scale=True, k_descale=of_k, k_descale_block=(0, 32), k_shift=shift, v_descale=of_v
        )
        wide = codes(k) * np.repeat(of_k, 32, -1).astype(np.float64) + np.repeat(shift, 32, -1)
        self.assertLess(np.abs(wide - k_new).max(), 0.3)
        out = flashattn.attention(self.q, k, v, k_descale=of_k, k_descale_block=(0, 32), k_shift=shift, v_descale=of_v)
        self.assert_out(out, reference.attention(self.q, wide, v * of_v[..., None]).out, 1e-5)

    def test_tails(self):
        k, v, cache = random(self.rng, (2, 9, 2, 64)), random(self.rng, (2, 9, 2, 16)), np.zeros((2, 9, 2, 40), np.float32)
        tail, values = np.zeros((2, 9, 2, 24), np.float16), np.zeros((2, 9, 2, 16), np.float32)
        flashattn.append_kv(k, v, cache, values, k_tail=tail)
        want = reference.attention(self.q, np.concatenate((k[..., :40], k[..., 40:].astype(np.float16)), -1), v).out
        self.assert_out(flashattn.attention(self.q, cache, values, k_tail=tail), want, 1e-5)
        halves = np.ascontiguousarray(self.q[..., :40]), self.q[..., 40:]
        self.assert_out(flashattn.attention(halves[0], cache, values, q_tail=halves[1], k_tail=tail), want, 1e-5)

    def test_what_does_not_fit_is_refused(self):
        k = random(self.rng, (2, 9, 2, 64))
        for pattern, options in (
            ("k_descale is None", {"k_shift": np.ones(1)}),
            ("k_descale has shape", {"k_descale": np.ones((2, 9, 2, 3)), "k_descale_block": (0, 16)}),
            ("k_descale_block is 3", {"k_descale": np.ones(1), "k_descale_block": 3}),
            ("k has head dimension 72", {"k_tail": np.ones((2, 9, 2, 8), np.float32)}),
            ("k_tail has shape", {"k_tail": np.ones((2, 8, 2, 8), np.float32)}),
        ):
            with self.subTest(pattern), self.assertRaisesRegex((ValueError, TypeError), pattern):
                flashattn.attention(self.q, k, k, **options)


if __name__ == "__main__":
    unittest.main()
