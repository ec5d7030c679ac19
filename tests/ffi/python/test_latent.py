"""Latent attention: v lies within k."""

import unittest

import flashattn
import numpy as np

import reference
from support import Case, random


class Latent(Case):
    def setUp(self):
        self.rng = np.random.default_rng(32)
        self.q = random(self.rng, (2, 3, 16, 96))
        self.k = random(self.rng, (2, 40, 1, 96))

    def test_the_first_dims_of_k(self):
        for dim_v in (None, 1, 64, 96):
            with self.subTest(dim_v=dim_v):
                out = flashattn.attention(self.q, self.k, None, dim_v=dim_v, causal="bottom-right")
                v = self.k[..., : dim_v or 96]
                self.assert_out(out, reference.attention(self.q, self.k, v, causal="bottom-right").out, 1e-5)

    def test_factors_are_of_v_too(self):
        k = self.rng.integers(-100, 100, self.k.shape, dtype=np.int8)
        out = flashattn.attention(self.q, k, None, dim_v=64, k_descale=0.01)
        self.assert_out(out, reference.attention(self.q, 0.01 * k, 0.01 * k[..., :64]).out, 1e-5)

    def test_append(self):
        cache = np.zeros((2, 50, 1, 96), np.float32)
        flashattn.append_kv(self.k, None, cache, None, seqused_k=[4, 7])
        np.testing.assert_array_equal(cache[0, 4:44], self.k[0])
        np.testing.assert_array_equal(cache[1, 7:47], self.k[1])

    def test_append_with_dynamic_scale(self):
        cache, descale = np.zeros((2, 40, 1, 96), np.int8), np.zeros((2, 40, 1), np.float32)
        flashattn.append_kv(self.k, None, cache, None, dynamic_scale=True, k_descale=descale)
        np.testing.assert_allclose(cache * descale[..., None], self.k, atol=0.02)

    def test_explain(self):
        self.assertIn("workspace", flashattn.explain(self.q, self.k, dim_v=64))

    def test_what_is_refused(self):
        for dim_v in (0, 97):
            with self.assertRaisesRegex(ValueError, f"dim_v is {dim_v}: expected 1 to k's head dimension, 96"):
                flashattn.attention(self.q, self.k, None, dim_v=dim_v)
        with self.assertRaisesRegex(ValueError, "dim_v is 64: it belongs with v = None"):
            flashattn.attention(self.q, self.k, self.k, dim_v=64)
        with self.assertRaisesRegex(flashattn.InvalidArgumentError, "expected no FA_OPERAND_V_DESCALE with FA_V_IN_K"):
            flashattn.attention(self.q, self.k, None, v_descale=1.0)
        with self.assertRaisesRegex(ValueError, "v_new is None: expected v and v_new, or neither"):
            flashattn.append_kv(self.k, None, self.k, self.k)


if __name__ == "__main__":
    unittest.main()
