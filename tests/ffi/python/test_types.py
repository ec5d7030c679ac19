"""Element types and de-scale factors."""

import unittest

import flashattn
import numpy as np

import reference
from support import LIMITS, Case, dtype, ml_dtypes, needs_ml_dtypes, random, types


def limit(q_type, out_type):
    return max(LIMITS[q_type], LIMITS[out_type])


class Types(Case):
    def setUp(self):
        rng = np.random.default_rng(11)
        self.q, self.k, self.v = random(rng, (2, 9, 4, 16)), random(rng, (2, 70, 2, 16)), random(rng, (2, 70, 2, 24))

    def check(self, q, k, v, out_type=None, **options):
        expected = reference.attention(q, k, v, causal="bottom-right", **options)
        out, lse = flashattn.attention(q, k, v, causal="bottom-right", out_dtype=out_type, return_lse=True, **options)
        self.assert_out(out, expected.out, limit(q.dtype.name, out.dtype.name))
        self.assert_lse(lse, expected.lse)
        return out

    def test_every_pair_of_types(self):
        for q_type in types():
            for kv_type in types():
                with self.subTest(q=q_type, kv=kv_type):
                    out = self.check(self.q.astype(dtype(q_type)), self.k.astype(dtype(kv_type)), self.v.astype(dtype(kv_type)))
                    self.assertEqual(out.dtype.name, "bfloat16" if q_type.startswith("float8") else q_type)

    def test_every_out_type(self):
        for out_type in types():
            for given in (out_type, dtype(out_type), dtype(out_type).type):
                with self.subTest(out_dtype=given):
                    self.assertEqual(self.check(self.q, self.k, self.v, given).dtype.name, out_type)

    def test_int8_cache(self):
        rng = np.random.default_rng(12)
        k, v = (rng.integers(-127, 128, x.shape).astype(np.int8) for x in (self.k, self.v))
        factors = {"k_descale": rng.uniform(0.005, 0.02, (2, 70, 2)), "v_descale": rng.uniform(0.005, 0.02, (2, 70, 2))}
        for q_type in types()[:3]:
            with self.subTest(q=q_type):
                self.check(self.q.astype(dtype(q_type)), k, v, **factors)

    def test_descale_of_every_shape(self):
        rng = np.random.default_rng(13)
        for shape in ((), (1,), (2,), (70, 1), (70, 2), (2, 1, 1), (2, 1, 2), (2, 70, 2)):
            with self.subTest(shape=shape):
                factors = {"k_descale": rng.uniform(0.5, 2, shape), "v_descale": rng.uniform(0.5, 2, shape).astype(np.float32)}
                self.check(self.q, self.k, self.v, **factors)
        for shape in ((), (4,), (9, 1), (2, 1, 4), (2, 9, 4)):
            with self.subTest(q=shape):
                self.check(self.q, self.k, self.v, q_descale=rng.uniform(0.5, 2, shape)[..., ::-1] if shape else 1.5)

    def test_descale_of_packed_and_paged_tensors(self):
        rng = np.random.default_rng(14)
        cu_q, cu_k = np.array([0, 4, 9]), np.array([0, 30, 70])
        q, k, v = self.q[0], self.k[0], self.v[0]
        for shape_q, shape_k in (((9, 4), (70, 2)), ((2, 1, 1), (2, 1, 2))):
            self.check(
                q,
                k,
                v,
                cu_seqlens_q=cu_q,
                cu_seqlens_k=cu_k,
                q_descale=rng.uniform(0.5, 2, shape_q),
                k_descale=rng.uniform(0.5, 2, shape_k),
                v_descale=rng.uniform(0.5, 2, shape_k),
            )
        table = np.array([[3, 1, 0, 5], [2, 6, 4, 3]])
        pages_k, pages_v = random(rng, (7, 10, 2, 16)), random(rng, (7, 10, 2, 24))
        for shape in ((7, 1, 1), (7, 10, 2), (10, 2)):
            self.check(
                self.q,
                pages_k,
                pages_v,
                page_table=table,
                k_descale=rng.uniform(0.5, 2, shape),
                v_descale=rng.uniform(0.5, 2, shape),
            )

    def test_half_bias(self):
        rng = np.random.default_rng(15)
        for name in types()[:3]:
            with self.subTest(bias=name):
                self.check(self.q, self.k, self.v, bias=random(rng, (4, 9, 70), name))

    @needs_ml_dtypes
    def test_eight_bit_out_saturates(self):
        v = np.full((1, 2, 1, 8), 1e5, np.float32)
        q = np.zeros((1, 2, 1, 8), np.float32)
        for name, largest in (("float8_e4m3fn", 448), ("float8_e5m2", 57344)):
            out = flashattn.attention(q, q, v, out_dtype=name)
            self.assertTrue((out.astype(np.float32) == largest).all(), name)

    def test_types_that_fit_no_call(self):
        refused = [
            {"q": self.q.astype(np.float64)},
            {"q": self.q.astype(np.int8)},
            {"k": self.k.astype(np.float64), "v": self.v.astype(np.float64)},
            {"q": self.q.astype(">f4")},
            {"out_dtype": np.float64},
            {"bias": np.ones((9, 70), np.int32)},
            {"bias": np.ones((9, 70), bool)},
            {"mask": np.ones((9, 70))},
            {"seqused_k": [3.0, 4.0]},
            {"sinks": np.ones(4, complex)},
        ]
        for case in refused:
            with self.subTest(case={name: np.asarray(x).dtype for name, x in case.items()}):
                with self.assertRaises(TypeError) as caught:
                    flashattn.attention(**{"q": self.q, "k": self.k, "v": self.v, **case})
                self.assertTrue(any(name in str(caught.exception) for name in case))


class WithoutMlDtypes(unittest.TestCase):
    def test_a_name_needs_the_package(self):
        import sys

        q = np.zeros((1, 2, 1, 8), np.float32)
        hidden = sys.modules.get("ml_dtypes")
        sys.modules["ml_dtypes"] = None  # an import of it fails
        try:
            with self.assertRaisesRegex(TypeError, "out_dtype is bfloat16: that type needs the package ml_dtypes"):
                flashattn.attention(q, q, q, out_dtype="bfloat16")
        finally:
            del sys.modules["ml_dtypes"]
            if hidden:
                sys.modules["ml_dtypes"] = hidden


if __name__ == "__main__":
    if ml_dtypes is None:
        print("ml_dtypes is not installed: bfloat16 and 8-bit floats are not tested")
    unittest.main()
