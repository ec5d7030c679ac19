"""attention_backward() against how the float64 reference's loss changes, and against itself in other layouts."""

import unittest

import flashattn
import numpy as np

import reference
from support import Case, needs_ml_dtypes, random
from test_attention import random_problem

STEP = 1e-4
LIMIT = 2e-5  # f32 gradients against differences in float64, relative to the gradient's norm


def exact_options(q, k, options):
    """The keywords as the reference takes them: a dropout mask instead of its seed."""
    exact = dict(options)
    if "dropout_p" in options:
        shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        seed = {"seed": exact.pop("dropout_seed"), "offset": exact.pop("dropout_offset")}
        exact["keep"] = flashattn.dropout_mask(options["dropout_p"], shape, **seed)
    return exact


class Slopes(Case):
    """The slope of the loss along a random direction is the gradient's share of it."""

    def loss(self, tensors, options, dout, dlse):
        result = reference.attention(*tensors, **options)
        lse = np.where(np.isfinite(result.lse), result.lse, 0)
        return float((result.out * dout).sum() + (lse * dlse).sum())

    def assert_slope(self, gradient, direction, at):
        slope = (8 * (at(STEP) - at(-STEP)) - (at(2 * STEP) - at(-2 * STEP))) / (12 * STEP)
        share = float((gradient.astype(np.float64) * direction).sum())
        limit = LIMIT * (np.linalg.norm(gradient) * np.linalg.norm(direction) / direction.size**0.5 + 1) * direction.size**0.25
        self.assertLess(abs(slope - share), limit)

    def test_random_problems(self):
        for seed in range(40):
            with self.subTest(seed=seed):
                rng = np.random.default_rng(seed)
                q, k, v, options = random_problem(rng, longest=25)
                out, lse = flashattn.attention(q, k, v, **options, return_lse=True)
                dout, dlse = random(rng, out.shape), random(rng, lse.shape)
                wanted = {"return_dbias": "bias" in options, "return_dsinks": "sinks" in options}
                gradients = flashattn.attention_backward(dout, q, k, v, out, lse, dlse=dlse, **wanted, **options)
                exact, tensors = exact_options(q, k, options), {"q": q, "k": k, "v": v}
                names = ["q", "k", "v", *["bias"] * wanted["return_dbias"], *["sinks"] * wanted["return_dsinks"]]
                self.assertEqual(len(gradients), len(names))
                for name, gradient in zip(names, gradients):
                    start = np.asarray(tensors.get(name, options.get(name)), np.float64)
                    self.assertEqual(gradient.shape, start.shape)
                    direction = rng.standard_normal(start.shape)

                    def at(step):
                        moved = start + step * direction
                        if name in tensors:
                            return self.loss({**tensors, name: moved}.values(), exact, dout, dlse)
                        return self.loss(tensors.values(), {**exact, name: moved}, dout, dlse)

                    with self.subTest(name=name):
                        self.assert_slope(gradient, direction, at)


class Layouts(Case):
    def setUp(self):
        self.rng = np.random.default_rng(5)

    def gradients(self, dout, q, k, v, **options):
        out, lse = flashattn.attention(q, k, v, return_lse=True, **options)
        return flashattn.attention_backward(dout, q, k, v, out, lse, **options)

    def test_strides_are_read_in_place(self):
        q, k, v = (random(self.rng, (2, 4, 30, 16)) for _ in range(3))  # (batch, heads, rows, dim)
        dout = random(self.rng, (2, 4, 30, 16))
        seen = [x.transpose(0, 2, 1, 3) for x in (dout, q, k, v)]
        strided = self.gradients(*seen, causal="top-left")
        dense = self.gradients(*(np.ascontiguousarray(x) for x in seen), causal="top-left")
        for a, b in zip(strided, dense):
            np.testing.assert_array_equal(a, b)

    def test_packed_sequences_equal_dense_ones(self):
        cu = np.array([0, 7, 7, 20])
        q, k, v, dout = (random(self.rng, (20, 2, 8)) for _ in range(4))
        packed = self.gradients(dout, q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu)
        for begin, end in zip(cu, cu[1:]):
            if begin == end:
                continue
            one = self.gradients(*(x[None, begin:end] for x in (dout, q, k, v)))
            for a, b in zip(packed, one):
                np.testing.assert_allclose(a[begin:end], b[0], atol=1e-6)

    def test_broadcast_inputs_get_gradients_of_their_own(self):
        q, k, v, dout = (random(self.rng, (3, 9, 2, 8)) for _ in range(4))
        shared = np.broadcast_to(k[:1], k.shape)
        dq, dk, dv = self.gradients(dout, q, shared, v)
        expected = self.gradients(dout, q, np.array(shared), v)
        for a, b in zip((dq, dk, dv), expected):
            np.testing.assert_array_equal(a, b)

    def test_an_upstream_gradient_may_be_broadcast(self):
        q, k, v = (random(self.rng, (2, 9, 2, 8)) for _ in range(3))
        ones = np.broadcast_to(np.ones((1, 1, 1, 8), np.float32), q.shape)
        for a, b in zip(self.gradients(ones, q, k, v), self.gradients(np.array(ones), q, k, v)):
            np.testing.assert_array_equal(a, b)

    @needs_ml_dtypes
    def test_bfloat16_with_a_float32_out(self):
        q, k, v, dout = (random(self.rng, (1, 40, 2, 16), "bfloat16") for _ in range(4))
        dq, dk, dv = self.gradients(dout, q, k, v, out_dtype="float32")
        exact = self.gradients(*(x.astype(np.float32) for x in (dout, q, k, v)))
        for a, b in zip((dq, dk, dv), exact):
            self.assertEqual(a.dtype, q.dtype)
            self.assert_out(a, b.astype(np.float64), 6e-3)

    def test_parts_of_the_keys_add_up(self):
        q, k, v, dout = (random(self.rng, (1, n, 2, 8)) for n in (10, 30, 30, 10))
        out, lse = flashattn.attention(q, k, v, return_lse=True)
        dq, dk, dv = flashattn.attention_backward(dout, q, k, v, out, lse)
        parts = [flashattn.attention_backward(dout, q, k[:, s], v[:, s], out, lse) for s in (slice(0, 11), slice(11, 30))]
        np.testing.assert_allclose(parts[0][0] + parts[1][0], dq, atol=2e-6)
        np.testing.assert_allclose(np.concatenate([p[1] for p in parts], 1), dk, atol=2e-6)
        np.testing.assert_allclose(np.concatenate([p[2] for p in parts], 1), dv, atol=2e-6)


class Refusals(Case):
    def setUp(self):
        rng = np.random.default_rng(6)
        self.q = self.k = self.v = random(rng, (2, 5, 3, 8))
        self.out, self.lse = flashattn.attention(self.q, self.k, self.v, return_lse=True)
        self.dout = random(rng, self.out.shape)

    def backward(self, **changed):
        names = ("dout", "q", "k", "v", "out", "lse")
        arrays = [changed.pop(name, getattr(self, name)) for name in names]
        return flashattn.attention_backward(*arrays, **changed)

    def test_shapes_and_types(self):
        for name in ("dout", "out", "lse"):
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, f"{name} has shape"):
                self.backward(**{name: getattr(self, name)[:, :, :2]})
        with self.assertRaisesRegex(TypeError, "dout has dtype float64: expected float32"):
            self.backward(dout=self.dout.astype(np.float64))
        with self.assertRaisesRegex(TypeError, "lse has dtype float64"):
            self.backward(lse=self.lse.astype(np.float64))
        with self.assertRaisesRegex(TypeError, "unexpected keyword"):
            self.backward(casual="top-left")

    def test_gradients_of_what_is_not_there(self):
        with self.assertRaisesRegex(ValueError, "return_dbias is true: expected a bias"):
            self.backward(return_dbias=True)
        with self.assertRaisesRegex(ValueError, "return_dsinks is true: expected sinks"):
            self.backward(return_dsinks=True)

    def test_what_has_no_gradient_is_unsupported(self):
        with self.assertRaises(flashattn.UnsupportedError):
            self.backward(kv_batch_idx=np.array([0, 1]))
        with self.assertRaises(flashattn.UnsupportedError):
            self.backward(algorithm="standard")
        ones = np.ones(1, np.float32)
        for name, options in (
            *((f"{x.upper()}_DESCALE", {f"{x}_descale": ones}) for x in "qkv"),
            ("K_DESCALE", {"k_descale": ones, "k_shift": ones}),
            ("O_SCALE", {"o_scale": 2.0}),
            ("Q_TAIL", {"q_tail": self.q, "k_tail": self.k}),
            ("PAGE_TABLE", {"page_table": np.zeros((2, 1), np.int32)}),
        ):
            with self.subTest(options=list(options)), self.assertRaisesRegex(flashattn.UnsupportedError, f"expected no FA_OPERAND_{name}"):
                self.backward(**options)
        with self.assertRaisesRegex(TypeError, "v is None: expected v"):
            self.backward(v=None)
        for dtype in (np.int8, flashattn.block_dtype("i4")):
            with self.subTest(dtype=dtype), self.assertRaises(flashattn.UnsupportedError):
                self.backward(k=np.zeros((2, 5, 3, 8 // (1 + (dtype != np.int8))), dtype))


if __name__ == "__main__":
    unittest.main()
