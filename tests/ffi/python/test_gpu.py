"""Arrays that lie in a GPU's memory: flashattn.jax, and CuPy's, by themselves and through flashattn.torch, against the CPU's results on
NumPy arrays, whose tests hold them to the reference. Skipped where there is no such GPU or library."""

import os
import unittest

import flashattn
import numpy as np
from support import LIMITS, Case

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the memory is not JAX's alone

try:
    import jax
    import jax.numpy as jnp

    on_gpu = jax.default_backend() == "gpu"
except (ImportError, RuntimeError):
    on_gpu = False
try:
    import cupy

    has_cupy = cupy.cuda.runtime.getDeviceCount() > 0
except Exception:  # noqa: BLE001: CuPy has errors of its own where there is no driver
    has_cupy = False
try:
    import torch
except ImportError:
    torch = None

OPTIONS = (
    {},
    {"causal": "bottom-right", "window": (90, None), "scale": 0.3, "softcap": 2.0},
    {"causal": "top-left", "chunk": 70},
)


def arrays(seed, dtype, dims=(64, 64)):
    random = np.random.default_rng(seed)
    shapes = (2, 200, 4, dims[0]), (2, 300, 2, dims[0]), (2, 300, 2, dims[1])
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


@unittest.skipUnless(on_gpu, "JAX has no GPU here")
class JaxOnGpu(Case):
    def test_forward_and_gradients(self):
        from flashattn.jax import attention

        for name in ("float32", "float16", "bfloat16"):
            dtype = jnp.dtype(name)
            for options in OPTIONS:
                for dims in ((64, 64), (40, 24)):
                    with self.subTest(dtype=name, options=options, dims=dims):
                        q, k, v = arrays(3, dtype, dims)
                        function = jax.jit(lambda *x: attention(*x, **options, return_lse=True))  # noqa: B023
                        (out, lse), back = jax.vjp(function, *map(jnp.asarray, (q, k, v)))
                        self.assertEqual(next(iter(out.devices())).platform, "gpu")
                        want, want_lse = flashattn.attention(q, k, v, **options, return_lse=True, backend="cpu")
                        self.assert_out(out, np.asarray(want, np.float64), 2 * LIMITS[name])
                        self.assert_lse(np.asarray(lse), np.asarray(want_lse), 1e-3 if name != "float32" else 1e-5)
                        dout = np.random.default_rng(4).standard_normal(want.shape, np.float32).astype(dtype)
                        exact = flashattn.attention_backward(dout, q, k, v, want, want_lse, **options, backend="cpu")
                        for got, one in zip(back((jnp.asarray(dout), jnp.zeros_like(lse))), exact):
                            self.assert_out(got, np.asarray(one, np.float64), 6 * LIMITS[name])

    def test_vmap_and_streams(self):
        from flashattn.jax import attention

        many = [jnp.asarray(np.stack([x, 2 * x, -x])) for x in arrays(5, np.float32)]
        mapped = jax.jit(jax.vmap(lambda *x: attention(*x, causal="top-left")))(*many)
        for n in range(3):
            one = flashattn.attention(*(np.asarray(x[n]) for x in many), causal="top-left", backend="cpu")
            self.assert_out(mapped[n], one.astype(np.float64), 2 * LIMITS["float32"])

        def chain(x):  # what the call reads has just been computed, and what it writes is read at once
            for _ in range(20):
                x = attention(x + 0.0, x * 1.0, x) * 2.0 + 0.01
            return x

        x = jnp.asarray(arrays(6, np.float32)[0])
        want = np.asarray(x)
        for _ in range(20):
            want = flashattn.attention(want, want, want, backend="cpu") * np.float32(2) + np.float32(0.01)
        self.assert_out(jax.jit(chain)(x), want.astype(np.float64), 1e-3)


@unittest.skipUnless(has_cupy, "CuPy has no GPU here")
class CupyOnGpu(Case):
    def test_by_itself(self):
        self.check(flashattn.attention)

    @unittest.skipIf(torch is None or not torch.cuda.is_available(), "torch has no GPU here")
    def test_by_torch(self):
        from flashattn.torch import attention

        self.check(attention)

    def check(self, attention):
        for name in ("float32", "float16"):
            for options in OPTIONS:
                with self.subTest(dtype=name, options=options):
                    q, k, v = arrays(7, name)
                    out, lse = attention(*map(cupy.asarray, (q, k, v)), **options, return_lse=True)
                    self.assertIsInstance(out, cupy.ndarray)
                    want, want_lse = flashattn.attention(q, k, v, **options, return_lse=True, backend="cpu")
                    self.assert_out(cupy.asnumpy(out), want.astype(np.float64), 2 * LIMITS[name])
                    self.assert_lse(cupy.asnumpy(lse), want_lse, 1e-3)

    def test_streams(self):
        """What the call reads has just been computed in a stream of CuPy's, and what it writes is read at once there."""
        x = arrays(8, "float32")[0]
        want = x
        for _ in range(20):
            want = flashattn.attention(want, want, want, backend="cpu") * np.float32(2) + np.float32(0.01)
        for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
            with stream:
                found = cupy.asarray(x)
                for _ in range(20):
                    found = flashattn.attention(found + 0, found * 1, found) * cupy.float32(2) + cupy.float32(0.01)
                self.assert_out(cupy.asnumpy(found), want.astype(np.float64), 1e-3)

    def test_operands(self):
        q, k, v = arrays(9, "float16")
        bias = np.random.default_rng(10).standard_normal((200, 300), np.float32)
        used = np.array([250, 300], np.int32)
        want = flashattn.attention(q, k, v, bias=bias, seqused_k=used, backend="cpu")
        found = flashattn.attention(*map(cupy.asarray, (q, k, v)), bias=cupy.asarray(bias), seqused_k=cupy.asarray(used))
        self.assert_out(cupy.asnumpy(found), want.astype(np.float64), 2 * LIMITS["float16"])

    def test_gradients_and_cache(self):
        q, k, v = arrays(11, "float16")
        out, lse = flashattn.attention(q, k, v, causal="bottom-right", return_lse=True, backend="cpu")
        given = (out, q, k, v, out, lse)
        want = flashattn.attention_backward(*given, causal="bottom-right", backend="cpu")
        found = flashattn.attention_backward(*map(cupy.asarray, given), causal="bottom-right")
        for got, one in zip(found, want):
            self.assert_out(cupy.asnumpy(got), one.astype(np.float64), 6 * LIMITS["float16"])
        caches = [np.zeros((2, 400, 2, 64), np.float16) for _ in "kv"]
        theirs = [cupy.asarray(x) for x in caches]
        used = np.array([3, 100], np.int32)
        flashattn.append_kv(k, v, *caches, seqused_k=used, backend="cpu")
        flashattn.append_kv(cupy.asarray(k), cupy.asarray(v), *theirs, seqused_k=cupy.asarray(used))
        for got, one in zip(theirs, caches):
            np.testing.assert_array_equal(cupy.asnumpy(got), one)

    def test_other_functions_refuse(self):
        q, k, v = map(cupy.asarray, arrays(8, "float32"))
        with self.assertRaisesRegex(TypeError, "is on CUDA device 0: expected ordinary memory"):
            flashattn.explain(q, k, v)
        with self.assertRaisesRegex(TypeError, "sinks is not where the others are"):
            flashattn.attention(q, k, v, sinks=np.zeros(4, np.float32))


if __name__ == "__main__":
    unittest.main()
