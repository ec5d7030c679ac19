"""Arrays whose bytes are in the order that this machine does not have: the same result, or a refusal that names the array."""

import unittest

import numpy as np

import flashattn
from support import Case, ml_dtypes, needs_ml_dtypes, random


def swapped(array):
    """The same values, stored the other way round."""
    if array.dtype.names:
        return array.astype([(name, array.dtype[name].newbyteorder()) for name in array.dtype.names])
    return array.astype(array.dtype.newbyteorder())


def has_order(array):
    return isinstance(array, np.ndarray) and array.dtype.newbyteorder() != array.dtype


class ByteOrder(Case):
    def setUp(self):
        rng = np.random.default_rng(3)
        self.rng = rng
        self.q, self.k, self.v = random(rng, (2, 5, 4, 8)), random(rng, (2, 9, 2, 8)), random(rng, (2, 9, 2, 8))

    def both(self, function, written=(), unlike=(), **given):
        """Calls the function with each array swapped in turn. written: names of arrays that it writes in place. unlike: those whose
        type has no other order in NumPy."""
        want = self.results(function, written, given)
        tried = [name for name, array in given.items() if has_order(array) and name not in unlike]
        self.assertTrue(tried)
        for name in tried:
            with self.subTest(function=function.__name__, name=name):
                other = {**given, name: swapped(given[name])}
                self.assertNotEqual(other[name].dtype, given[name].dtype)
                try:
                    got = self.results(function, written, other)
                except (TypeError, ValueError) as error:
                    self.assertIn(name, str(error))
                    continue
                self.assertNotIn(name, written, "what is written in place has the machine's order")
                for a, b in zip(got, want, strict=True):
                    np.testing.assert_array_equal(a, b)

    @staticmethod
    def results(function, written, given):
        given = {name: x.copy() if name in written else x for name, x in given.items()}
        result = function(**given)
        results = result if isinstance(result, tuple) else (result,)
        return [np.asarray(x) for x in results if x is not None] + [given[name] for name in written]

    def test_attention(self):
        rng = self.rng
        given = {"q": self.q, "k": self.k, "v": self.v, "return_lse": True}
        entries, counts = np.full((2, 1, 5, 2), [1, 6], np.int32), np.full((2, 1, 5), 2, np.int32)
        for options in (
            {"bias": random(rng, (4, 5, 9)), "bias_scale": random(rng, (4,)), "sinks": random(rng, (4,))},
            {"bias": random(rng, (5, 9), "float16"), "alibi_slopes": random(rng, (4,)), "alignment": "bottom-right"},
            {"causal": "explicit", "causal_offset": np.array([1, 3], np.int32)},
            {"seqused_q": np.array([3, 5]), "seqused_k": np.array([7, 9], np.int32), "leftpad_k": np.array([1, 2])},
            {"kv_batch_idx": np.array([1, 0], np.int32)},
            {"key_ranges": np.array([[[[1, 6]]]], np.int64)},
            {"key_list": entries, "key_list_count": counts},
        ):
            self.both(flashattn.attention, **given, **options)
        packed = {name: x.reshape(-1, *x.shape[2:]) for name, x in (("q", self.q), ("k", self.k), ("v", self.v))}
        self.both(flashattn.attention, **packed, cu_seqlens_q=np.array([0, 4, 10]), cu_seqlens_k=np.array([0, 9, 18], np.int32))
        pages = {"k": self.k.reshape(6, 3, 2, 8), "v": self.v.reshape(6, 3, 2, 8)}
        for kind in (np.int32, np.int64):
            self.both(flashattn.attention, q=self.q, **pages, page_table=np.array([[5, 1, 2], [3, 4, 0]], kind))

    def test_factors(self):
        integers = {name: self.rng.integers(-90, 90, (2, 9, 2, 8), np.int8) for name in "kv"}
        for kind in ("float32", "float16", *(["bfloat16"] if ml_dtypes else [])):
            factors = {f"{name}_descale": random(self.rng, (2, 9, 2), kind) for name in "kv"}
            shifts = {f"{name}_shift": random(self.rng, (2, 9, 2), kind) for name in "kv"}
            unlike = [*factors, *shifts] if kind == "bfloat16" else ()
            self.both(flashattn.attention, unlike=unlike, q=self.q, **integers, **factors, **shifts)

    def test_blocks(self):
        for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
            kind = flashattn.block_dtype(name)
            cache = {key: np.zeros((2, 9, 2, 1), kind) for key in "kv"}
            fresh = {f"{key}_new": random(self.rng, (2, 9, 2, 32)) for key in "kv"}
            self.both(flashattn.append_kv, written="kv", **fresh, **cache)
            flashattn.append_kv(**fresh, **cache)
            q = random(self.rng, (2, 5, 4, 32))
            self.both(flashattn.attention, q=q, **cache)
            # A block's factor has its low byte first everywhere, and the dtype knows it.
            factor = np.uint16(int.from_bytes(cache["k"].tobytes()[:2], "little")).view(np.float16)
            self.assertEqual(cache["k"]["d"].flat[0], factor)

    def test_append(self):
        cache = {key: np.zeros((2, 16, 2, 8), np.float32) for key in "kv"}
        fresh = {f"{key}_new": random(self.rng, (2, 3, 2, 8)) for key in "kv"}
        angles = self.rng.uniform(-3, 3, (16, 4)).astype("f4")
        for options in (
            {"seqused_k": np.array([4, 7]), "cos": np.cos(angles), "sin": np.sin(angles)},
            {"positions": np.array([[1, 2, 3], [9, 8, 7]], np.int32)},
            {"seqused_k": np.array([4, 7], np.int32), "leftpad_k": np.array([1, 2]), "seqused_new": np.array([3, 1])},
            {"kv_batch_idx": np.array([1, 0])},
        ):
            self.both(flashattn.append_kv, written="kv", **fresh, **cache, **options)
        bytes_ = {key: np.zeros((2, 16, 2, 8), np.int8) for key in "kv"}
        for kind in ("f4", "f2"):
            factors = {f"{key}_descale": np.zeros((2, 16, 2), kind) for key in "kv"}
            self.both(flashattn.append_kv, written=("k", "v", *factors), **fresh, **bytes_, **factors, dynamic_scale=True)

    def test_gradients(self):
        given = {"q": self.q, "k": self.k, "v": self.v, "bias": random(self.rng, (5, 9)), "sinks": random(self.rng, (4,))}
        out, lse = flashattn.attention(**given, return_lse=True)
        given |= {"dout": random(self.rng, out.shape), "out": out, "lse": lse, "dlse": random(self.rng, lse.shape)}

        def attention_backward(dout, q, k, v, out, lse, **options):
            return flashattn.attention_backward(dout, q, k, v, out, lse, **options)

        self.both(attention_backward, **given, return_dbias=True, return_dsinks=True)

    def test_others(self):
        o, lse = random(self.rng, (3, 2, 5, 4, 8)), random(self.rng, (3, 2, 4, 5))
        self.both(flashattn.merge, o_parts=o, lse_parts=lse, sinks=random(self.rng, (4,)), seqused_q=np.array([2, 5]), return_lse=True)

        def merge_into(o, lse):
            return flashattn.merge(o_parts, lse_parts, into=(o, lse), return_lse=True)

        o_parts, lse_parts = o, lse
        for other in ("o", "lse"):
            state = {"o": o[0].copy(), "lse": lse[0].copy()}
            state[other] = swapped(state[other])
            with self.assertRaisesRegex(TypeError, r"into\[[01]\]"):
                merge_into(**state)
        angles = self.rng.uniform(-3, 3, (16, 4)).astype("f4")
        turned = {"x": self.q, "cos": np.cos(angles), "sin": np.sin(angles), "position_offset": np.array([3, 1])}
        self.both(flashattn.rotary, **turned)
        self.both(flashattn.rotary, written=["out"], **turned, out=np.zeros_like(self.q))
        for kind in ("f4", "f2"):
            self.both(flashattn.convert, written=["out"], out=np.zeros((5, 8), kind), x=random(self.rng, (5, 8)))
        self.both(flashattn.convert, written=["out"], out=np.zeros((5, 8), "f4"), x=random(self.rng, (5, 8), "float16"), accumulate=True)

    @needs_ml_dtypes
    def test_bfloat16(self):
        """Where NumPy can swap one at all."""
        q = self.q.astype(ml_dtypes.bfloat16)
        try:
            other = swapped(q)
        except TypeError:
            self.skipTest("this NumPy has no bfloat16 of another order")
        if other.dtype == q.dtype:
            self.skipTest("bfloat16 has one order")
        with self.assertRaisesRegex(TypeError, "native"):
            flashattn.attention(other, other, other)


if __name__ == "__main__":
    unittest.main()
