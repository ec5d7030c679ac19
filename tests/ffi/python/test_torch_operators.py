"""torch.ops.flashattn and what stands on it: torch's own judgement of the operators, torch.compile without graph breaks, and SDPA.
Skipped where torch is not installed."""

import unittest
import warnings

import flashattn

try:
    import torch
    import torch.nn.functional as F
    from torch.autograd import forward_ad
except ImportError:
    torch = None
else:
    from flashattn._forward import SCORE_SCALARS
    from flashattn._operators import OPERANDS, SETTINGS, backward, forward
    from flashattn.torch import MultiheadAttention, attention, sdpa
    from torch_reference import calls


def randn(*shape, dtype=None):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def qkv(dtype=None):
    return randn(2, 20, 4, 16, dtype=dtype), randn(2, 30, 2, 16, dtype=dtype), randn(2, 30, 2, 12, dtype=dtype)


@unittest.skipIf(torch is None, "torch is not installed")
class Operators(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)

    def arguments(self, **given):
        defaults = {"chunk": 0, "mask_keys": 0, "mask_bits": False, "list_rows": 1, "list_keys": 1, **dict.fromkeys(SCORE_SCALARS, 0.0)}
        defaults |= {"dropout_p": 0.0, "deterministic": False, "handle": 0}
        self.assertLessEqual(set(given), {*OPERANDS, *SETTINGS})
        return tuple({**dict.fromkeys((*OPERANDS, *SETTINGS)), **defaults, **given}.values())

    def cases(self):
        q, k, v = qkv()
        tensors = {"q": q, "k": k, "v": v}
        yield self.arguments(**tensors)
        yield self.arguments(**tensors, causal="bottom-right", window=(5, -1), softcap=2.0, scale=0.3, sinks=randn(4))
        yield self.arguments(**tensors, bias=randn(4, 1, 30), mask=torch.rand(20, 30) < 0.8)
        repeating = {"bias": randn(2, 1, 30), "bias_period": (0, 2), "mask": torch.rand(1, 1, 20, 30) < 0.8, "mask_period": (1, 3)}
        yield self.arguments(**tensors, **repeating, bias_scale=torch.rand(4))
        bits = torch.randint(0, 256, (20, 1), dtype=torch.uint8)
        yield self.arguments(**tensors, mask=bits, mask_keys=7, mask_bits=True)
        yield self.arguments(**tensors, alibi_slopes=torch.rand(4), alignment="top-left")
        ranges = torch.tensor([3, 17]).expand(20, 1, 2)
        lists = {"key_list": torch.ones(2, 2, 2, 1, dtype=torch.int64), "list_rows": 16, "list_keys": 16}
        yield self.arguments(**tensors, key_ranges=ranges, **lists, key_list_count=torch.ones(2, 2, 2, dtype=torch.int32))
        yield self.arguments(**tensors, dropout_p=0.3, dropout_seed=torch.tensor(-5), deterministic=True)
        yield self.arguments(q=q.transpose(1, 2), k=randn(2, 20, 1, 16), v=randn(2, 20, 1, 8))
        cu = torch.tensor([0, 7, 7, 20])
        packed = {"q": randn(20, 4, 16), "k": randn(20, 2, 16), "v": randn(20, 2, 12), "cu_seqlens_q": cu, "cu_seqlens_k": cu}
        yield self.arguments(**packed, causal="top-left")
        yield self.arguments(**packed, max_seqlen_q=13, max_seqlen_k=20)

    def test_torch_finds_no_fault_with_them(self):
        for values in self.cases():
            torch.library.opcheck(forward, values)
            out, lse = forward(*values)
            plain = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in values)
            given = [x is not None for x in values[: OPERANDS.index("mask")]]  # what has a gradient
            torch.library.opcheck(backward, (torch.randn_like(out), None, out.detach(), lse.detach(), given, *plain))
            torch.library.opcheck(backward, (None, torch.randn_like(lse), out.detach(), lse.detach(), given, *plain))

    def test_fake_tensors_have_the_shapes_of_real_ones(self):
        for values in self.cases():
            meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in values]
            for real, fake in zip(forward(*values), forward(*meta)):
                self.assertEqual((real.shape, real.stride(), real.dtype), (fake.shape, fake.stride(), fake.dtype))
                self.assertEqual(fake.device.type, "meta")

    def test_fake_tensors_are_refused_as_real_ones_are(self):
        q, k, v = qkv()
        for device in ("cpu", "meta"):
            a, b, c = (x.to(device) for x in (q, k, v))
            for bad in ((a.double(), b, c), (a, b, c.half())):
                with self.assertRaisesRegex(TypeError, "has dtype"):
                    attention(*bad)
            for bad in ((a[0], b, c), (a, b[:, :, :, :8], c), (a, b, c[:, :5])):
                with self.assertRaisesRegex(ValueError, "have shapes"):
                    attention(*bad)
            with self.assertRaisesRegex(ValueError, "sequences: expected 2"):
                attention(a, b[:1], c[:1])
        with self.assertRaisesRegex(ValueError, "v is on meta: expected q's device"):
            attention(q, k, v.to("meta"))

    def test_other_derivatives_are_refused(self):
        q, k, v = qkv()
        (dq,) = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no second derivative"):
            dq.sum().backward()
        loss, x = lambda q: attention(q, k.detach(), v.detach()).square().sum(), q.detach()
        twice = lambda q: (torch.func.grad(loss)(q) * q).sum()  # noqa: E731
        for function in (
            lambda: torch.func.grad(twice)(x),
            lambda: torch.func.jacrev(torch.func.jacrev(loss))(x),
            lambda: torch.func.vmap(torch.func.grad(twice))(x[None]),
            lambda: torch.autograd.functional.hessian(loss, x),
        ):
            with self.assertRaisesRegex(NotImplementedError, "no second derivative"):
                function()
        with forward_ad.dual_level(), self.assertRaisesRegex(NotImplementedError, "no forward-mode derivative"):
            attention(forward_ad.make_dual(x, torch.ones_like(q)), k.detach(), v.detach())
        for function in (lambda: torch.func.jvp(loss, (x,), (x,)), lambda: torch.func.jacfwd(loss)(x), lambda: torch.func.hessian(loss)(x)):
            with self.assertRaisesRegex(NotImplementedError, "no forward-mode derivative"):
                function()

    def test_vmap(self):
        many = [x.detach().repeat(3, 1, 1, 1, 1) * torch.rand(3, 1, 1, 1, 1) for x in qkv()]
        function = lambda *x: attention(*x, causal="top-left")  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch would say that it lacks a rule of the operator's own
            got = torch.vmap(function)(*many)
        self.assertEqual(torch.vmap(function)(*(x[:0] for x in many)).shape, got[:0].shape)
        self.assertTrue(torch.equal(got, torch.stack([function(*x) for x in zip(*many)])))

    def test_a_closed_handle(self):
        q, k, v = qkv()
        with flashattn.Handle("cpu") as handle:
            out = attention(q, k, v, backend=handle)
            self.assertTrue(torch.equal(out, attention(q, k, v)))
        with self.assertRaisesRegex(ValueError, "closed"):
            attention(q, k, v, backend=handle)
        with self.assertRaisesRegex(ValueError, "closed"):
            out.sum().backward()


@unittest.skipIf(torch is None, "torch is not installed")
class Compiled(unittest.TestCase):
    """fullgraph=True raises at a graph break."""

    def setUp(self):
        torch.manual_seed(3)
        torch.compiler.reset()

    def compare(self, function, tensors, compiled):
        wanted = [x for x in tensors if x.requires_grad]
        for got, want in ((compiled(*tensors), function(*tensors)),):
            torch.testing.assert_close(got, want)
            got, want = (torch.autograd.grad(x.square().sum(), wanted) for x in (got, want))
            torch.testing.assert_close(got, want)

    def test_both_passes(self):
        mask = torch.rand(20, 30) < 0.8
        with flashattn.Handle("cpu", threads=1) as handle:
            for options in (
                {},
                {"causal": "bottom-right", "window": (5, None), "scale": 0.3, "softcap": 2.0, "mask": mask},
                {"dropout_p": 0.3, "dropout_seed": 1 << 62, "deterministic": True},
                {"backend": handle},
            ):
                for backend in ("aot_eager", "inductor"):
                    torch.compiler.reset()
                    function = lambda q, k, v: attention(q * 2, k, v, **options).sin()  # noqa: B023, E731
                    with self.subTest(compiler=backend, options=list(options)):
                        self.compare(function, qkv(), torch.compile(function, fullgraph=True, backend=backend))

    def test_shapes_that_change(self):
        function = lambda q, k, v: attention(q, k, v, causal="top-left", window=(q.shape[1] // 2, 0))  # noqa: E731
        traces = []

        def backend(graph, inputs):
            traces.append(graph)
            return graph.forward

        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
        for rows in (20, 21, 33):
            self.compare(function, (randn(2, rows, 4, 16), randn(2, 30, 2, 16), randn(2, 30, 2, 12)), compiled)
        self.assertEqual(len(traces), 1)

    def test_packed_lengths_are_not_read_by_the_trace(self):
        function = lambda q, k, v, cu: attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal="top-left")  # noqa: E731
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        tensors = randn(20, 4, 16), randn(20, 2, 16), randn(20, 2, 12)
        for lengths in ([0, 7, 7, 20], [0, 1, 19, 20]):
            self.compare(function, (*tensors, torch.tensor(lengths)), compiled)

    def test_dropout_is_drawn_at_each_call(self):
        compiled = torch.compile(lambda *x: attention(*x, dropout_p=0.5), fullgraph=True)
        tensors = qkv()
        torch.manual_seed(1)
        first, second = compiled(*tensors), compiled(*tensors)
        self.assertFalse(torch.equal(first, second))
        torch.manual_seed(1)
        self.assertTrue(torch.equal(first, compiled(*tensors)))

    def test_the_module(self):
        layer = MultiheadAttention(32, heads=4, heads_kv=2)
        x = randn(2, 10, 32)
        function = lambda x: layer(x, causal="top-left")  # noqa: E731
        self.compare(function, (x,), torch.compile(function, fullgraph=True, backend="aot_eager"))

    def test_export(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return attention(q, k, v, causal="bottom-right")

        tensors = tuple(x.detach() for x in qkv())
        program = torch.export.export(Model(), tensors)
        self.assertIn("flashattn.forward", str(program.graph))
        torch.testing.assert_close(program.module()(*tensors), Model()(*tensors))


@unittest.skipIf(torch is None, "torch is not installed")
class Sdpa(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)
        torch.compiler.reset()

    def cases(self):
        q, k, v = randn(2, 4, 20, 16), randn(2, 4, 30, 16), randn(2, 4, 30, 12)
        yield (q, k, v), {}
        yield (q, k, v), {"is_causal": True, "scale": 0.3}
        yield (q, k[:, :2], v[:, :2]), {"enable_gqa": True}
        for shape in ((20, 30), (2, 1, 1, 30), (4, 20, 1)):
            mask = torch.rand(shape) < 0.8
            mask[..., 0] = True  # torch's backends differ in a row without a key
            yield (q, k, v), {"attn_mask": mask}
            yield (q, k, v), {"attn_mask": randn(*shape)}
        yield (q[:, 0], k[:, 0], v[:, 0]), {"attn_mask": randn(2, 20, 30)}

    def test_against_torch(self):
        for tensors, options in self.cases():
            wanted = [x for x in (*tensors, *options.values()) if isinstance(x, torch.Tensor) and x.requires_grad]
            want = F.scaled_dot_product_attention(*tensors, **options)
            gradients = torch.autograd.grad(want.square().sum(), wanted)
            function = lambda *x: F.scaled_dot_product_attention(*x, **options)  # noqa: B023, E731
            for call in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
                torch.compiler.reset()
                with calls() as found, sdpa(fallback=False):
                    got = call(*tensors)
                self.assertEqual(found["fa_forward_ex"], 1)
                torch.testing.assert_close(got, want)
                torch.testing.assert_close(torch.autograd.grad(got.square().sum(), wanted), gradients, atol=1e-5, rtol=1e-4)

    def test_it_is_the_library(self):
        tensors = qkv()
        same = [x.transpose(1, 2) for x in tensors]
        with sdpa(), torch.no_grad():
            got = F.scaled_dot_product_attention(*same, is_causal=True, enable_gqa=True)
        self.assertTrue(torch.equal(got, attention(*same, layout="bhsd", causal="top-left")))

        def inside(*x):
            with sdpa(fallback=False):
                return F.scaled_dot_product_attention(*x, is_causal=True, enable_gqa=True)

        graphs = []
        torch.compile(inside, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)(*same)
        self.assertIn("flashattn.forward", str(graphs[0].graph))

    def test_dropout(self):
        q = torch.ones(1, 1, 400, 16)
        v = torch.eye(400)[None, None]
        with sdpa(fallback=False):
            out = F.scaled_dot_product_attention(q, q, v, dropout_p=0.25)
        kept = out[0, 0] > 0
        torch.testing.assert_close(out[0, 0], kept / (400 * 0.75))
        self.assertAlmostEqual(float(kept.double().mean()), 0.75, delta=0.01)

    def test_what_is_left_to_torch(self):
        q, k, v = (x.detach() for x in (randn(2, 4, 20, 16), randn(2, 4, 30, 16), randn(2, 4, 30, 12)))
        mask = torch.ones(20, 30, dtype=torch.bool)
        for reason, tensors, options in (
            ("query has dtype torch.float64", [x.double() for x in (q, k, v)], {}),
            ("query has 5 axes", [x[None] for x in (q, k, v)], {}),
            ("key is empty", (q, k[:, :, :0], v[:, :, :0]), {}),
            ("query, key and value have shapes", (q, k[:1], v[:1]), {}),
            ("query and key have 4 and 1 heads", (q, k[:, :1], v[:, :1]), {}),
            ("key and value have 16 and 1032 dims", (q, k, v.repeat(1, 1, 1, 86)), {}),
            ("query is on meta", [x.to("meta") for x in (q, k, v)], {}),
            ("attn_mask and is_causal", (q, k, v), {"attn_mask": mask, "is_causal": True}),
            ("attn_mask has shape", (q, k, v), {"attn_mask": mask[:3]}),
            ("attn_mask has dtype torch.int64", (q, k, v), {"attn_mask": mask.long()}),
            ("dropout_p is 1.0", (q, k, v), {"dropout_p": 1.0}),
            ("query is no plain tensor", [torch.nested.nested_tensor([x[0], x[1]]) for x in (q, k, v)], {}),
        ):
            with self.subTest(reason=reason):
                with sdpa(fallback=False), self.assertRaisesRegex(NotImplementedError, f"not flashattn's here: {reason}"):
                    F.scaled_dot_product_attention(*tensors, **options)
                try:
                    want = F.scaled_dot_product_attention(*tensors, **options)
                except Exception as error:  # noqa: BLE001
                    with sdpa(), self.assertRaises(type(error)):
                        F.scaled_dot_product_attention(*tensors, **options)
                    continue
                with sdpa():
                    got = F.scaled_dot_product_attention(*tensors, **options)
                if not got.is_nested and got.device.type != "meta":
                    self.assertTrue(torch.equal(got.nan_to_num(), want.nan_to_num()))

    def test_transforms_of_functions(self):
        tensors = [x.detach() for x in (randn(3, 2, 4, 20, 16), randn(3, 2, 4, 30, 16), randn(3, 2, 4, 30, 12))]
        function = lambda *x: F.scaled_dot_product_attention(*x).square().sum()  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for transform in (torch.vmap(function), torch.vmap(torch.func.grad(function))):
                want = transform(*tensors)
                with calls() as found, sdpa():
                    self.assertTrue(torch.equal(transform(*tensors), want))
                self.assertEqual(found["fa_forward_ex"], 0)


if __name__ == "__main__":
    unittest.main()
