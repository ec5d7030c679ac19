"""Arrays of other libraries by DLPack: a small library of the test's own, and torch and JAX where they are installed."""

import gc
import unittest
import weakref

import flashattn
import numpy as np
from flashattn import _dlpack
from numpy.lib.stride_tricks import as_strided
from support import ml_dtypes, needs_ml_dtypes

try:
    import torch
except ImportError:
    torch = None
try:
    import jax
except ImportError:
    jax = None


class Other:
    """An array of another library, which notes what it is asked."""

    def __init__(self, array, *, device=(1, 0), old=False):
        self.array, self.device, self.old, self.asked = array, device, old, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.old and options:
            raise TypeError("this library is from before version 1.0 of the protocol")
        return _dlpack._Export(self.array).__dlpack__(**options)

    def __array_namespace__(self):
        return Other

    @staticmethod
    def from_dlpack(value):
        array = _dlpack.view("value", value)
        array.flags.writeable = True  # which NumPy before 2.1 wants of what it exports
        return Other(array)

    def __array__(self, *_, **__):
        raise AssertionError("copied")


def tensors(dtype=np.float32):
    random = np.random.default_rng(5)
    return [random.standard_normal(s, dtype=np.float32).astype(dtype) for s in ((2, 9, 4, 16), (2, 7, 2, 16), (2, 7, 2, 12))]


class Exchange(unittest.TestCase):
    def check(self, wrap, unwrap, kind, dtypes=(np.float32, np.float16)):
        """wrap: from NumPy to the other library; unwrap: back."""
        for dtype in dtypes:
            with self.subTest(dtype=dtype):
                q, k, v = tensors(dtype)
                out, lse = flashattn.attention(q, k, v, causal="top-left", return_lse=True)
                others = [wrap(x) for x in (q, k, v)]
                found = flashattn.attention(*others, causal="top-left", return_lse=True)
                gradients = flashattn.attention_backward(found[0], *others, *found, causal="top-left")
                wanted = flashattn.attention_backward(out, q, k, v, out, lse, causal="top-left")
                for got, want in zip((*found, *gradients), (out, lse, *wanted)):
                    self.assertIsInstance(got, kind)
                    np.testing.assert_array_equal(unwrap(got), want)
                    self.assertEqual(unwrap(got).dtype, want.dtype)
                self.assertIsInstance(flashattn.attention(q, *others[1:]), np.ndarray)  # q's kind decides

    def test_a_library_of_ours(self):
        for old in (False, True):
            self.check(lambda x: Other(x, old=old), lambda x: x.array, Other)  # noqa: B023

    @needs_ml_dtypes
    def test_types_that_numpy_does_not_export(self):
        self.check(Other, lambda x: x.array, Other, (ml_dtypes.bfloat16,))
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            q = tensors(dtype)[0]
            seen = _dlpack.view("q", Other(q))
            self.assertEqual((seen.dtype, seen.ctypes.data), (q.dtype, q.ctypes.data))

    def test_memory_is_shared(self):
        whole = np.arange(2 * 6 * 4 * 8, dtype=np.float32).reshape(2, 6, 4, 8)
        shared = as_strided(whole, whole.shape, (0, *whole.strides[1:]))
        for array in (whole, whole[:, ::2], whole.transpose(0, 2, 1, 3), whole[:, ::-1], shared):
            seen = _dlpack.view("x", Other(array))
            np.testing.assert_array_equal(seen, array)
            self.assertEqual((seen.ctypes.data, seen.strides), (array.ctypes.data, array.strides))
        self.assertEqual(_dlpack.view("x", Other(whole[:, :0])).shape, (2, 0, 4, 8))
        result = flashattn.attention(*(Other(x) for x in tensors()))
        self.assertEqual(result.array.ctypes.data % 64, 0)  # else XLA would copy it

    def test_memory_lives_as_long_as_its_view(self):
        class Mine(np.ndarray):
            pass

        array = np.arange(10.0).view(Mine)
        alive = weakref.ref(array)
        seen = _dlpack.view("x", Other(array))
        del array
        gc.collect()
        self.assertIsNotNone(alive())
        np.testing.assert_array_equal(seen, np.arange(10.0))
        del seen
        gc.collect()
        self.assertIsNone(alive())

    def test_lists_and_caches(self):
        q, k, v = tensors()
        parts = [flashattn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(3), slice(3, None))]
        o, lse = ([Other(part[i]) for part in parts] for i in (0, 1))
        self.assertIsInstance(flashattn.merge(o, lse), Other)
        np.testing.assert_array_equal(flashattn.merge(o, lse).array, flashattn.merge(*zip(*parts)))
        caches = [np.zeros((2, 9, 2, n), np.float32) for n in (16, 12)]
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            flashattn.append_kv(Other(k), Other(v), *map(Other, caches))
            np.testing.assert_array_equal(caches[0][:, :7], k)
            caches[0].flags.writeable = False
        before = caches[0].copy()
        with self.assertRaisesRegex(ValueError, "k is written in place, but the array is read-only"):
            flashattn.append_kv(Other(k), Other(v), *map(Other, caches))
        np.testing.assert_array_equal(caches[0], before)

    def test_refusals(self):
        q, k, v = tensors()
        with self.assertRaisesRegex(TypeError, "k is on CUDA device 1: expected ordinary memory. attention, .* take arrays of a GPU where"):
            flashattn.attention(q, k=Other(k, device=(2, 1)), v=v)
        with self.assertRaisesRegex(TypeError, "argument 1 is on a device of DLPack's kind 7"):
            flashattn.attention(Other(q, device=(7, 0)), k, v)
        with self.assertRaisesRegex(TypeError, "code 5"):
            flashattn.attention(Other(q.astype(np.complex64)), k, v)
        with self.assertRaisesRegex(TypeError, "float64"):
            flashattn.attention(Other(q.astype(np.float64)), k, v)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        dtypes = (np.float32, np.float16, *([ml_dtypes.bfloat16] if ml_dtypes else []))
        wrap = lambda x: torch.from_dlpack(_dlpack._Export(np.array(x)))  # noqa: E731
        self.check(wrap, lambda x: _dlpack.view("x", x), torch.Tensor, dtypes)
        if not _dlpack.view("x", torch.zeros(1)).flags.writeable:
            self.skipTest("this torch exports by DLPack of before 1.0, which cannot be written")
        cache = torch.zeros(2, 9, 2, 16)
        flashattn.append_kv(*(torch.ones(2, 1, 2, 16) for _ in "kv"), cache, cache.clone())
        self.assertEqual(cache.sum(), 2 * 2 * 16)

    @unittest.skipIf(jax is None, "JAX is not installed")
    def test_jax(self):
        dtypes = (np.float32, np.float16, *([ml_dtypes.bfloat16] if ml_dtypes else []))
        self.check(jax.numpy.asarray, np.asarray, jax.Array, dtypes)
        self.assertFalse(_dlpack.view("x", jax.numpy.ones(3)).flags.writeable)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_by_torch(self):
        """What flashattn.torch does with arrays of a GPU."""
        from flashattn.torch import attention

        want = flashattn.attention(*tensors(), causal="top-left", return_lse=True)
        others = [Other(x) for x in tensors()]
        for got, exact in zip(attention(*others, causal="top-left", return_lse=True), want):
            self.assertIsInstance(got, Other)
            np.testing.assert_array_equal(got.array, exact)
        self.assertIsInstance(attention(*others), Other)


if __name__ == "__main__":
    unittest.main()
