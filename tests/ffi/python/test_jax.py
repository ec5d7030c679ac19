"""flashattn.jax: the same bits as flashattn on NumPy arrays, whose tests hold them to the reference, and JAX's own gradients of
the same written in JAX as the judge of what is differentiated, compiled and mapped. Skipped where JAX or the
handlers are not installed."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import flashattn
import numpy as np

try:
    import jax
    import jax.numpy as jnp
    from flashattn.jax import attention
except ImportError as reason:
    why_not = str(reason)
else:
    why_not = None


def missing():
    """Why nothing can be tested here, or None."""
    return why_not


def plain(q, k, v, bias=None, sinks=None, mask=None):
    """(batch, rows, heads, dim), causal from the bottom right."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    s = jnp.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    s = s if bias is None else s + bias
    i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None]
    s = jnp.where(j <= i + k.shape[1] - q.shape[1], s, -jnp.inf)
    s = s if mask is None else jnp.where(mask, s, -jnp.inf)
    if sinks is None:
        return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(s, -1), v)
    logits = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (*s.shape[:-1], 1))], -1)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(logits, -1)[..., :-1], v)


@unittest.skipIf(missing() is not None, missing() or "")
class Jax(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(6)

    def key_masks(self, *items):
        """Ranges of keys of 20 rows, and lists of 12 keys out of 30 for blocks of 16 rows, of 2 sequences."""
        begin = self.random.integers(0, 25, (*items, 2, 1, 20, 1))
        ranges = np.stack([begin, begin + self.random.integers(1, 20, begin.shape)], -1)
        lists = self.random.permuted(np.broadcast_to(np.arange(30), (*items, 2, 1, 2, 30)), axis=-1)[..., :12]
        counts = self.random.integers(1, 13, (*items, 2, 1, 2))
        return jnp.asarray(ranges), jnp.asarray(lists), jnp.asarray(counts)

    def randn(self, *shape, dtype=np.float32):
        return jnp.asarray(self.random.standard_normal(shape, np.float32)).astype(dtype)

    def qkv(self, dtype=np.float32, items=()):
        return [self.randn(*items, *shape, dtype=dtype) for shape in ((2, 20, 4, 16), (2, 30, 2, 16), (2, 30, 2, 12))]

    def assert_close(self, got, want, limit=2e-6):
        self.assertEqual((got.shape, got.dtype), (want.shape, want.dtype))
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        self.assertLessEqual(np.linalg.norm(got - want), limit * max(np.linalg.norm(want), 1e-12))

    def test_the_same_bits_as_on_numpy_arrays(self):
        bias, mask, sinks = self.randn(4, 1, 30), jnp.asarray(self.random.random((20, 30)) < 0.8), self.randn(4)
        slopes = jnp.asarray(flashattn.alibi_slopes(4))
        ranges, lists, counts = self.key_masks()
        blocks = {"list_rows": 16}
        for dtype in (np.float32, np.float16, jnp.bfloat16):
            for options in (
                {},
                {"causal": "bottom-right", "window": (9, None), "scale": 0.3, "softcap": 2.0},
                {"bias": bias, "mask": mask, "sinks": sinks},
                {"alibi_slopes": slopes, "alignment": "top-left", "chunk": 7},
                {"bias": bias, "bias_scale": jnp.asarray([0.5, -1, 2, 0.25]), "key_ranges": ranges},
                {"key_ranges": ranges[0, 0], "sinks": sinks},
                {"key_list": lists, "key_list_count": counts, **blocks},
                {"full_list": lists[..., :5], "full_list_count": counts % 6, "mask": mask, "key_list": lists[..., 5:10], **blocks},
            ):
                with self.subTest(dtype=dtype, options=list(options)):
                    q, k, v = self.qkv(dtype)
                    arrays = {name: np.asarray(x) if isinstance(x, jax.Array) else x for name, x in options.items()}
                    numpy = [np.asarray(x) for x in (q, k, v)]
                    want = flashattn.attention(*numpy, **arrays, return_lse=True, backend="cpu")
                    (out, lse), back = jax.vjp(lambda *x: attention(*x, **options, return_lse=True), q, k, v)  # noqa: B023
                    np.testing.assert_array_equal(out, want[0])
                    np.testing.assert_array_equal(lse, want[1])
                    dout, dlse = self.randn(*out.shape, dtype=dtype), self.randn(*lse.shape)
                    exact = flashattn.attention_backward(
                        np.asarray(dout), *numpy, *want, dlse=np.asarray(dlse), **arrays, backend="cpu"
                    )
                    for got, one in zip(back((dout, dlse)), exact):
                        self.assertEqual(got.dtype, one.dtype)
                        np.testing.assert_array_equal(got, one)

    def test_lists_for_all_sequences_or_heads(self):
        q, k, v = self.qkv()
        ranges = {"key_list": (1, 1, 2, 2), "key_list_count": (2, 1, 2), "full_list": (1, 2, 2, 2), "full_list_count": (1, 1, 2)}
        lists = {name: jnp.asarray(self.random.integers(0, 2, shape)) for name, shape in ranges.items()}
        call = lambda q, lists: attention(q, k, v, **lists, list_rows=16, list_keys=16)  # noqa: E731
        for names in (("key_list",), ("key_list", "key_list_count"), tuple(lists)):
            given = {name: lists[name] for name in names}
            arrays = {name: np.broadcast_to(x, (2, 2, *x.shape[2:])) for name, x in given.items()}
            numpy = [np.asarray(x) for x in (q, k, v)]
            want, lse = flashattn.attention(*numpy, **arrays, list_rows=16, list_keys=16, return_lse=True, backend="cpu")
            dq, _, _ = flashattn.attention_backward(want, *numpy, want, lse, **arrays, list_rows=16, list_keys=16, backend="cpu")
            out, back = jax.vjp(call, q, given)
            np.testing.assert_array_equal(out, want)
            np.testing.assert_array_equal(back(out)[0], dq)
            many = jnp.stack([q, -q, 2 * q])
            np.testing.assert_array_equal(jax.vmap(call, (0, None))(many, given)[0], want)
            mapped = {**given, "key_list": jnp.stack([given["key_list"], 1 - given["key_list"], given["key_list"]])}
            got = jax.vmap(call, (0, {name: 0 if name == "key_list" else None for name in given}))(many, mapped)
            np.testing.assert_array_equal(got[0], want)
            np.testing.assert_array_equal(got[1], call(-q, {**given, "key_list": 1 - given["key_list"]}))

    def test_heads_first(self):
        swapped = lambda *x: [y.swapaxes(1, 2) for y in x]  # noqa: E731
        q, k, v = self.qkv()
        want, back = jax.vjp(lambda *x: attention(*x, causal="top-left"), q, k, v)
        got, swapped_back = jax.vjp(lambda *x: attention(*x, layout="bhsd", causal="top-left"), *swapped(q, k, v))
        np.testing.assert_array_equal(got.swapaxes(1, 2), want)
        dout = self.randn(*want.shape)
        for a, b in zip(swapped(*swapped_back(dout.swapaxes(1, 2))), back(dout)):
            np.testing.assert_array_equal(a, b)

    def test_packed(self):
        cu = jnp.array([0, 7, 7, 18])  # of 20 rows: what lies beyond is 0, and its LSE −inf
        q, k, v = self.randn(20, 4, 8), self.randn(20, 2, 8), self.randn(20, 2, 8)
        function = lambda q, k, v, cu, **o: attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True, **o)  # noqa: E731
        numpy, lengths = [np.asarray(x) for x in (q, k, v)], {f"cu_seqlens_{x}": np.asarray(cu) for x in "qk"}
        want = flashattn.attention(*numpy, **lengths, return_lse=True, backend="cpu")
        begin = self.random.integers(0, 3, (4, 20, 1))
        ranges = np.stack([begin, begin + self.random.integers(1, 9, begin.shape)], -1)
        np.testing.assert_array_equal(
            function(q, k, v, cu, key_ranges=ranges)[0], flashattn.attention(*numpy, **lengths, key_ranges=ranges, backend="cpu")
        )
        for options in ({}, {"max_seqlen_q": 11, "max_seqlen_k": 15}):
            (out, lse), back = jax.vjp(jax.jit(lambda *x: function(*x, cu, **options)), q, k, v)  # noqa: B023
            np.testing.assert_array_equal(out, want[0])
            np.testing.assert_array_equal(lse, want[1])
        dout = self.randn(*out.shape)
        exact = flashattn.attention_backward(np.asarray(dout), *numpy, *want, **lengths, backend="cpu")
        for got, one in zip(back((dout, jnp.zeros_like(lse))), exact):
            self.assert_close(got, one)
        several = jnp.stack([cu, jnp.array([0, 1, 19, 20])])
        for got, one in zip(jax.vmap(function, (None, None, None, 0))(q, k, v, several)[0], several):
            np.testing.assert_array_equal(got, function(q, k, v, one)[0])

    def test_gradients_by_jax(self):
        q, k, v = self.qkv()
        bias, sinks, mask = self.randn(4, 1, 30), self.randn(4), jnp.asarray(self.random.random((20, 30)) < 0.8)
        mask = mask.at[:, 0].set(True)
        loss = lambda f: lambda *x: jnp.square(f(*x[:3], bias=x[3], sinks=x[4], mask=mask)).sum()  # noqa: E731
        ours = lambda *x, **o: attention(*x, causal="bottom-right", **o)  # noqa: E731
        arrays = (q, k, v, bias, sinks)
        for which in ((0, 1, 2, 3, 4), (1,), (3,), (0, 4)):
            for wrap in (lambda f: f, jax.jit):
                got, want = (wrap(jax.grad(loss(f), which))(*arrays) for f in (ours, plain))
                for a, b in zip(got, want):
                    self.assert_close(a, b)

    def test_only_wanted_gradients_are_computed(self):
        q, k, v = self.qkv()
        function = lambda q, bias: attention(q, k, v, bias=bias).sum()  # noqa: E731
        bias = self.randn(2, 4, 20, 30)
        alone, both = (str(jax.make_jaxpr(jax.grad(function, which))(q, bias)).count("f32[2,4,20,30]") for which in (0, (0, 1)))
        self.assertLess(alone, both)

    def test_vmap(self):
        q, k, v = self.qkv()
        many = self.qkv(items=(3,))
        biases = {"for each": self.randn(3, 4, 1, 30), "for all": self.randn(4, 1, 30), "batch": self.randn(2, 4, 1, 30)}
        ours = lambda *x, **o: attention(*x, causal="bottom-right", **o)  # noqa: E731
        for axes in ((0, 0, 0), (0, None, None), (2, None, 1)):
            for kind, bias in biases.items():
                if (axes[0] == 2) != (kind == "batch"):
                    continue
                arrays = [one if a is None else jnp.moveaxis(x, 0, a) for a, one, x in zip(axes, (q, k, v), many)]
                mapped = (*axes, 0 if kind == "for each" else None)
                with self.subTest(axes=axes, bias=kind):
                    losses = [lambda *x, f=f: jnp.square(f(*x[:3], bias=x[3])).sum() for f in (ours, plain)]
                    for a, b in zip(*(jax.vmap(jax.value_and_grad(f, (0, 1, 2, 3)), mapped)(*arrays, bias)[1] for f in losses)):
                        self.assert_close(a, b)
                    sums = [lambda *x, f=jax.vmap(f, mapped): f(*x).sum() for f in losses]
                    got, want = (jax.grad(f, (0, 1, 2, 3))(*arrays, bias) for f in sums)
                    for a, b in zip(got, want):
                        self.assert_close(a, b)

    def test_vmap_is_one_call_where_it_can_be(self):
        many = self.qkv(items=(3,))
        text = lambda f, *x: str(jax.make_jaxpr(jax.vmap(f))(*x))  # noqa: E731
        self.assertIn("f32[6,20,4,12]", text(attention, *many))
        self.assertNotIn("scan", text(attention, *many))
        self.assertIn("scan", text(lambda q, k, v, s: attention(q, k, v, sinks=s), *many, self.randn(3, 4)))
        nested = jax.vmap(jax.vmap(attention))(*(x[None] for x in many))
        np.testing.assert_array_equal(nested[0], jax.vmap(attention)(*many))
        np.testing.assert_array_equal(nested[0, 1], attention(*(x[1] for x in many)))

    def test_vmap_of_other_operands(self):
        many, (q, k, v) = self.qkv(items=(3,)), self.qkv()
        masks = jnp.asarray(self.random.random((3, 20, 30)) < 0.8)
        sinks, slopes, each = self.randn(3, 4), jnp.abs(self.randn(3, 4)), jnp.abs(self.randn(3, 2, 4))
        ranges, lists, counts = self.key_masks(3)
        for name, x, options in (
            ("mask", masks, {}),
            ("sinks", sinks, {}),
            ("alibi_slopes", slopes, {"alignment": "top-left"}),
            ("alibi_slopes", each, {"alignment": "top-left"}),
            ("bias_scale", sinks, {"bias": self.randn(4, 1, 30)}),
            ("key_ranges", ranges, {}),
            ("key_list", lists, {"list_rows": 16, "key_list_count": counts[0]}),
            ("key_list_count", counts, {"list_rows": 16, "key_list": lists[1]}),
        ):
            with self.subTest(name=name, shape=x.shape):
                function = lambda q, x: attention(q, k, v, **{name: x}, **options)  # noqa: B023, E731
                got = jax.vmap(function)(many[0], x)
                for i in range(3):
                    np.testing.assert_array_equal(got[i], function(many[0][i], x[i]))
        slopes = jnp.abs(self.randn(2, 4))
        function = lambda q: attention(q, k, v, alibi_slopes=slopes, alignment="top-left")  # noqa: E731
        np.testing.assert_array_equal(jax.vmap(function)(many[0])[2], function(many[0][2]))
        got = jax.vmap(jax.grad(lambda q, s: attention(q, k, v, sinks=s).sum(), 1), (0, None))(many[0], sinks[0])
        want = [jax.grad(lambda s: attention(x, k, v, sinks=s).sum())(sinks[0]) for x in many[0]]  # noqa: B023
        self.assert_close(got, jnp.stack(want))

    def test_dropout(self):
        q, v = jnp.ones((1, 300, 1, 16)), jnp.eye(300)[None, :, None]
        dropped = lambda key: attention(q, q, v, dropout_p=0.25, dropout_key=key)[0, :, 0]  # noqa: E731
        keys = jax.random.split(jax.random.key(1), 3)
        one = jax.jit(dropped)(keys[0])
        np.testing.assert_array_equal(one, dropped(keys[0]))
        self.assertAlmostEqual(float((one > 0).mean()), 0.75, delta=0.01)
        np.testing.assert_allclose(one[one > 0], 1 / (300 * 0.75), rtol=1e-5)
        self.assertTrue((one != dropped(keys[1])).any())
        np.testing.assert_array_equal(jax.vmap(dropped)(keys)[2], dropped(keys[2]))
        # The gradient of sum(out · c) with respect to v is P dropped, transposed.
        dv = jax.grad(lambda v: attention(q, q, v, dropout_p=0.25, dropout_key=keys[0])[0, 5].sum())(v)
        self.assertEqual(int((dv[0, :, 0, 0] > 0).sum()), int((one[5] > 0).sum()))
        with self.assertRaisesRegex(ValueError, "expected a dropout_key"):
            attention(q, q, v, dropout_p=0.25)

    def test_loops_and_checkpoints(self):
        q, k, v = self.qkv()
        v = v[..., :4].repeat(4, -1)
        step = jax.checkpoint(lambda q, _: (attention(q, k, v, causal="bottom-right"), None))
        loss = lambda q: jnp.square(jax.lax.scan(step, q, None, length=3)[0]).sum()  # noqa: E731
        want = lambda q: jnp.square(plain(plain(plain(q, k, v), k, v), k, v)).sum()  # noqa: E731
        self.assert_close(jax.jit(jax.grad(loss))(q), jax.grad(want)(q), 1e-5)

    def test_refusals(self):
        q, k, v = self.qkv()
        for error, sentence, call in (
            (ValueError, "q, k and v have shapes", lambda: attention(q[0], k, v)),
            (ValueError, "k has .* sequences and rows", lambda: attention(q, k, v[:, :9])),
            (ValueError, "k has 1 sequences: expected 2", lambda: attention(q, k[:1], v[:1])),
            (TypeError, "k has dtype bfloat16: expected q's", lambda: attention(q, k.astype(jnp.bfloat16), v)),
            (TypeError, "q has dtype int32", lambda: attention(*(x.astype(int) for x in (q, k, v)))),
            (ValueError, "bias has shape", lambda: attention(q, k, v, bias=jnp.ones((3, 30)))),
            (ValueError, "sinks has shape", lambda: attention(q, k, v, sinks=jnp.ones(2))),
            (ValueError, "bias_scale has shape", lambda: attention(q, k, v, bias=jnp.ones(30), bias_scale=jnp.ones(3))),
            (TypeError, "key_ranges has dtype float32", lambda: attention(q, k, v, key_ranges=jnp.ones((20, 1, 2)))),
            (ValueError, "key_ranges has shape", lambda: attention(q, k, v, key_ranges=jnp.ones((7, 1, 2), int))),
            (ValueError, "key_list has shape", lambda: attention(q, k, v, key_list=jnp.ones((2, 1, 3, 4), int))),
            (ValueError, "expected the list that it counts", lambda: attention(q, k, v, key_list_count=jnp.ones((2, 1, 20), int))),
            (ValueError, "say nothing without key_list", lambda: attention(q, k, v, list_rows=8)),
            (ValueError, "max_seqlen_q is 4: it belongs with", lambda: attention(q, k, v, max_seqlen_q=4)),
            (ValueError, "softcap is 1e-46: .* not make 0", lambda: attention(q, k, v, softcap=1e-46)),
            (ValueError, r"scale is 1e\+300: .* not make inf", lambda: attention(q, k, v, scale=1e300)),
            (ValueError, "dropout_p is 0.9999999999: .* not make 1", lambda: attention(q, k, v, dropout_p=0.9999999999)),
            (ValueError, r"sinks holds 1e\+300", lambda: attention(q, k, v, sinks=[0.0, 1e300, 0.0, 0.0])),
            (ValueError, r"bias holds -1e\+300", lambda: attention(q, k, v, bias=np.full(30, -1e300))),
            (ValueError, "alibi_slopes holds 1e-46", lambda: attention(q, k, v, alibi_slopes=np.full(4, 1e-46), alignment="top-left")),
            (ValueError, "bias_scale holds 1e-46", lambda: attention(q, k, v, bias=jnp.ones(30), bias_scale=np.full(4, 1e-46))),
            (TypeError, "keyword argument 'is_causal': expected causal", lambda: attention(q, k, v, is_causal=True)),
            (TypeError, "keyword argument 'softmax_scale': expected scale", lambda: attention(q, k, v, softmax_scale=1.0)),
            (TypeError, "num_splits is a keyword of flashattn.attention, which", lambda: attention(q, k, v, num_splits=2)),
            (TypeError, "causal is True", lambda: attention(q, k, v, causal=True)),
            (ValueError, "alignment is 'middle'", lambda: attention(q, k, v, alignment="middle")),
            (flashattn.InvalidArgumentError, "alignment is not set", lambda: attention(q, k, v, alibi_slopes=jnp.ones(4))),
            (flashattn.InvalidArgumentError, "heads_q", lambda: attention(q[:, :, :3], k, v)),
        ):
            for run in (call, jax.jit(call)):
                with self.subTest(sentence), self.assertRaisesRegex(error, sentence):
                    run()
        with self.assertRaisesRegex(TypeError, "forward-mode"):
            jax.jvp(attention, (q, k, v), (q, k, v))
        with self.assertRaisesRegex(ValueError, "cannot be differentiated"):
            jax.grad(lambda q: jax.grad(lambda q: attention(q, k, v).sum())(q).sum())(q)

    def test_what_the_call_itself_refuses(self):
        cu = jnp.array([0, 25, 20])
        q = self.randn(20, 2, 8)
        with self.assertRaisesRegex(Exception, "FA_INVALID_ARGUMENT: cu_seqlens_q"):
            jax.block_until_ready(attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu))

    def test_without_handlers(self):
        with tempfile.TemporaryDirectory() as folder:
            library = shutil.copy(os.environ["FLASHATTN_LIBRARY"], Path(folder, "libflashattn.so.0"))
            command, environment = [sys.executable, "-c", "import flashattn.jax"], {**os.environ, "FLASHATTN_LIBRARY": str(library)}
            result = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertIn("ImportError: libflashattn-xla.so was not found", result.stderr)
        self.assertIn("the wheel has it, and a build with -DFA_XLA=", result.stderr)


if __name__ == "__main__":
    unittest.main()
