"""flashattn.jax over caches: append_kv, rotary and attention over pages, quantised arrays and used lengths have the bits of the functions
on NumPy arrays, under jit too. Skipped where JAX or its handlers are not installed."""

import unittest

import flashattn
import numpy as np

try:
    import jax
    import jax.numpy as jnp
    from flashattn.jax import append_kv, attention, rotary
except ImportError:
    jax = None

HEADS, DIM, PAGE = 2, 64, 4
BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
PAIRS = ("e2m1", "i4", "u4")
WRITTEN = ("k", "v", "k_tail", "k_descale", "v_descale")


def on_numpy(function, given):
    """What the function does with NumPy's arrays, and these."""
    blocks = {name: given.get(f"{name}_dtype") for name in ("k", "v")}
    arrays = {}
    for name, x in given.items():
        if name not in ("k_dtype", "v_dtype"):
            x = np.array(x) if isinstance(x, (np.ndarray, jax.Array)) else x
            arrays[name] = x if blocks.get(name) is None else x.view(flashattn.block_dtype(blocks[name]))
    return function(**arrays), arrays


def traced(function, given):
    """Under jit: arrays are arguments, all else is known."""
    arrays = {name: x for name, x in given.items() if isinstance(x, (np.ndarray, jax.Array))}
    others = {name: x for name, x in given.items() if name not in arrays}
    return jax.jit(lambda arrays: function(**arrays, **others))(arrays)


@unittest.skipIf(jax is None, "JAX, or libflashattn-xla.so, is not installed")
class Caches(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(8)

    def randn(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def room(self, *shape, block):
        if block in BLOCKS + PAIRS:
            each = DIM // (32 if block in BLOCKS else 2) * flashattn.block_dtype(block).itemsize
            return np.zeros((*shape, HEADS, each), np.uint8)
        return np.zeros((*shape, HEADS, DIM), jnp.dtype(block))

    def pages(self, block, batch=2, columns=3):
        count = batch * columns
        given = {name: self.room(count + 2, PAGE, block=block) for name in ("k", "v")}
        given["page_table"] = self.rng.permutation(count + 2)[:count].reshape(batch, columns)
        if block in BLOCKS + PAIRS:
            given |= {"k_dtype": block, "v_dtype": block}
        if block in (*PAIRS, "int8", "float8_e4m3fn"):
            given |= {f"{name}_descale": np.ones((count + 2, PAGE, HEADS), np.float32) for name in ("k", "v")}
        return given

    def layouts(self):
        """Caches of every kind, with the tokens that go there: keywords of append_kv."""
        tokens = {"k_new": self.randn(2, 3, HEADS, DIM), "v_new": self.randn(2, 3, HEADS, DIM)}
        for block in (*BLOCKS, *PAIRS, "int8", "float8_e4m3fn", "float16", "bfloat16", "float32"):
            given = self.pages(block)
            yield block, {**tokens, **given, "seqused_k": np.array([5, 0]), "dynamic_scale": "k_descale" in given}
        half = {name: x.astype(jnp.bfloat16) for name, x in tokens.items()}
        yield "bfloat16 tokens", {**half, **self.pages("q8_0"), "seqused_k": np.array([0, 7])}
        angles = {"cos": self.randn(40, 8), "sin": self.randn(40, 8), "interleaved": True, "rotary_begin": 4}
        yield "rotated", {**tokens, **self.pages("float32"), "seqused_k": np.array([5, 0]), **angles}
        packed = {name: x.reshape(6, HEADS, DIM)[:5] for name, x in tokens.items()}
        yield "packed", {**packed, **self.pages("q4_0"), "cu_seqlens_new": np.array([0, 2, 5]), "max_seqlen_new": 3}
        dense = {name: self.room(4, 9, block="float16") for name in ("k", "v")}
        by_index = {"kv_batch_idx": np.array([3, 1]), "leftpad_k": np.array([2, 0]), "seqused_new": np.array([1, 3])}
        yield "by index", {**tokens, **dense, **by_index}
        yield "at positions", {**tokens, **{n: x[:2] for n, x in dense.items()}, "positions": np.array([[8, -1, 0], [-1, 2, 4]])}
        swapped = {name: x.swapaxes(1, 2) for name, x in {**tokens, **{n: x[:2] for n, x in dense.items()}}.items()}
        yield "bhsd", {**{name: x.copy() for name, x in swapped.items()}, "layout": "bhsd", "seqused_k": np.array([1, 6])}
        longer = {**tokens, "k_new": self.randn(2, 3, HEADS, DIM + 16), "k_tail": np.zeros((2, 9, HEADS, 16), np.float32)}
        yield "tail", {**longer, **{n: self.room(2, 9, block="q8_0") for n in ("k", "v")}, "k_dtype": "q8_0", "v_dtype": "q8_0"}
        yield "latent", {"k_new": tokens["k_new"], "v_new": None, "k": dense["k"][:2], "v": None, "seqused_k": np.array([4, 4])}

    def assert_same(self, got, want):
        self.assertEqual((got.shape, got.dtype), (want.shape, want.dtype))
        self.assertEqual(np.asarray(got).tobytes(), np.asarray(want).tobytes())

    def test_append_and_attention_as_on_numpy(self):
        q = self.randn(2, 3, 4, DIM)
        for name, given in self.layouts():
            with self.subTest(layout=name):
                got = traced(append_kv, given)
                _, arrays = on_numpy(flashattn.append_kv, given)
                changed = [key for key in WRITTEN if given.get(key) is not None]
                self.assertEqual(set(got), set(changed))
                for key in changed:
                    self.assertEqual(np.asarray(got[key]).tobytes(), arrays[key].tobytes(), key)
                kept = ("k", "v", "page_table", "k_dtype", "v_dtype", "k_descale", "v_descale", "leftpad_k", "kv_batch_idx", "layout")
                made = {key: value for key, value in {**given, **got}.items() if key in kept}
                made |= {"q": q.swapaxes(1, 2).copy() if name == "bhsd" else q, "causal": "bottom-right", "return_lse": True}
                made["seqused_k"] = given.get("seqused_k", np.zeros(2, int)) + [2, 3]
                if name == "tail":
                    made |= {"q_tail": self.randn(2, 3, 4, 16), "k_tail": got["k_tail"]}
                if name == "latent":
                    made["dim_v"] = 48
                want, _ = on_numpy(flashattn.attention, made)
                for one, other in zip(traced(attention, made), want):
                    self.assert_same(one, other)

    def test_masked(self):
        given = {"q": self.randn(2, 3, 4, DIM), "k": self.randn(2, 9, 2, DIM), "v": self.randn(2, 9, 2, DIM), "seqused_k": np.array([5, 9])}
        given |= {"causal": "explicit", "causal_offset": np.array([3, 5]), "window": (4, None), "softcap": 3.0, "scale": 0.3}
        given |= {"sinks": self.randn(4), "bias": self.randn(1, 4, 1, 9), "return_lse": True}
        want, _ = on_numpy(flashattn.attention, given)
        for one, other in zip(traced(attention, given), want):
            self.assert_same(one, other)

    def test_types_of_one_call(self):
        q, k, v = self.randn(2, 3, 4, DIM), (30 * self.randn(2, 7, 2, DIM)).astype(np.int8), self.randn(2, 7, 2, DIM)
        want = attention(q, 0.02 * k.astype(np.float32), v)
        got = attention(q.astype(jnp.bfloat16), k, v, k_descale=0.02)
        self.assertEqual(got.dtype, jnp.bfloat16)
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=0.05, atol=0.02)

    def test_rotary_as_on_numpy(self):
        angles, x = {"cos": self.randn(40, 8), "sin": self.randn(40, 8)}, self.randn(2, 5, 3, DIM)
        for given in (
            {"x": x},
            {"x": x.swapaxes(1, 2).copy(), "layout": "bhsd", "position_offset": np.array([3, 30])},
            {"x": x, "positions": self.rng.integers(0, 40, (2, 5)), "interleaved": True, "rotary_begin": 6},
            {"x": x[0], "cu_seqlens_q": np.array([0, 3, 5]), "max_seqlen_q": 3, "seqused_q": np.array([2, 2])},
            {"x": x.astype(np.float16)},
        ):
            with self.subTest(given=list(given)):
                want, _ = on_numpy(flashattn.rotary, {**given, **angles})
                self.assert_same(traced(rotary, {**given, **angles}), want)

    def test_a_loop_in_one_program(self):
        """Steps by lax.scan: the cache is carried, and nothing else is kept."""
        given = self.pages("q8_0")
        table = given["page_table"].astype(np.int32)
        forms = {"k_dtype": "q8_0", "v_dtype": "q8_0", "page_table": table}
        q, k, v = self.randn(7, 2, 1, 4, DIM), self.randn(7, 2, 1, HEADS, DIM), self.randn(7, 2, 1, HEADS, DIM)

        def step(carry, new):
            cache, used = carry
            cache = append_kv(new[1], new[2], **cache, **forms, seqused_k=used)
            return (cache, used + 1), attention(new[0], **cache, **forms, seqused_k=used + 1)

        start = {"k": jnp.asarray(given["k"]), "v": jnp.asarray(given["v"])}
        (cache, _), found = jax.jit(lambda start: jax.lax.scan(step, (start, jnp.zeros(2, jnp.int32)), (q, k, v)), donate_argnums=0)(start)
        pages, used = {name: given[name].view(flashattn.block_dtype("q8_0")) for name in ("k", "v")}, np.zeros(2, np.int32)
        for t in range(7):
            flashattn.append_kv(k[t], v[t], **pages, page_table=table, seqused_k=used)
            used += 1
            self.assert_same(found[t], flashattn.attention(q[t], **pages, page_table=table, seqused_k=used))
        self.assertEqual(np.asarray(cache["k"]).tobytes(), pages["k"].tobytes())

    def test_a_donated_cache_is_written_in_place(self):
        cache = jnp.zeros((2, 2048, HEADS, DIM))
        where = cache.unsafe_buffer_pointer()
        new = self.randn(2, 1, HEADS, DIM)
        append = jax.jit(lambda k, new: append_kv(new, None, k, None)["k"], donate_argnums=0)
        self.assertEqual(append(cache, new).unsafe_buffer_pointer(), where)

    def test_vmap_makes_a_call_of_each_item(self):
        given = {**self.pages("q8_0"), "seqused_k": np.array([5, 12])}
        q, new = self.randn(3, 2, 1, 4, DIM), self.randn(3, 2, 1, HEADS, DIM)
        self.assert_same(jax.vmap(lambda x: attention(x, **given))(q), np.stack([attention(x, **given) for x in q]))
        given["seqused_k"] = np.array([5, 7])
        got = jax.vmap(lambda x: append_kv(x, x, **given)["k"])(new)
        self.assert_same(got, np.stack([append_kv(x, x, **given)["k"] for x in new]))

    def test_what_is_refused(self):
        given, q, new = self.pages("q8_0"), self.randn(2, 1, 4, DIM), self.randn(2, 1, HEADS, DIM)
        with self.assertRaisesRegex(NotImplementedError, "flashattn.jax.attention has no gradient"):
            jax.grad(lambda q: attention(q, **given).sum())(q)
        with self.assertRaisesRegex(NotImplementedError, "flashattn.jax.append_kv has no gradient"):
            jax.jvp(lambda x: append_kv(x, x, **self.pages("float32"))["k"], (new,), (new,))
        with self.assertRaisesRegex(NotImplementedError, "dropout_p is 0.5: expected 0"):
            attention(q, **given, dropout_p=0.5)
        for error, sentence, options in (
            (TypeError, "k has dtype uint8: expected a k_dtype", {"k_dtype": None}),
            (ValueError, "k has dtype float32 and 68 in its last axis: expected uint8", {"k": given["k"].astype(np.float32)}),
            (ValueError, "name is 'q3_0': expected", {"k_dtype": "q3_0"}),
            (TypeError, "page_table has dtype float32: expected integers", {"page_table": given["page_table"].astype(np.float32)}),
        ):
            for call in (lambda **o: append_kv(new, new, **o), lambda **o: attention(q, **o)):
                with self.subTest(sentence=sentence), self.assertRaisesRegex(error, sentence):
                    call(**{**given, **options})
        for call in (lambda **o: append_kv(new, new, **o)["k"], lambda **o: attention(q, **o)):
            with self.assertRaisesRegex(Exception, "FA_INVALID_ARGUMENT: page_table"):
                jax.block_until_ready(call(**{**given, "page_table": np.array([[0, 1, 8]] * 2), "seqused_k": np.array([9, 9])}))
        with self.assertRaisesRegex(TypeError, "append_kv.. got an unexpected keyword argument 'cache_seqlens': expected seqused_k"):
            append_kv(new, new, **given, cache_seqlens=None)
        with self.assertRaisesRegex(Exception, "FA_INVALID_ARGUMENT: seqlen_k is 12: expected 13 or more, sequence 1 has 12 slots in use"):
            jax.block_until_ready(append_kv(new, new, **given, seqused_k=np.array([0, 12])))


if __name__ == "__main__":
    unittest.main()
