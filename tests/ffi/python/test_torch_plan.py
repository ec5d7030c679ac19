"""flashattn.torch: calls that are prepared once, by `attention` itself or as a Plan, have the bits of the operator, and are it wherever
torch has to see the call. Skipped where torch is not installed."""

import gc
import threading
import unittest
import weakref
from unittest import mock

import flashattn
import numpy as np

try:
    import torch
except ImportError:
    torch = None
else:
    from flashattn import _prepared_torch
    from flashattn.torch import Plan, attention, sdpa
    from torch.utils._python_dispatch import TorchDispatchMode

    plainly = attention.__wrapped__  # as if every call were the first

    class Seen(TorchDispatchMode):
        """Counts the library's operators."""

        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func.namespace == "flashattn"
            return func(*args, **(kwargs or {}))


def dense(*, heads_first=False, **more):
    shapes = (3, 4), (9, 2), (9, 2)
    tensors = (torch.randn((2, h, n, 32) if heads_first else (2, n, h, 32)) for n, h in shapes)
    return {**dict(zip("qkv", tensors)), **more}


def packed(*lengths, **more):
    cu = torch.tensor([0, *lengths]).cumsum(0)
    return {**{name: torch.randn(int(cu[-1]), 2, 32) for name in "qkv"}, "cu_seqlens_q": cu, "cu_seqlens_k": cu, **more}


def results(function, given):
    try:
        found = function(**given)
    except Exception as error:
        return type(error), str(error)
    return [(x.shape, x.stride(), x.dtype, x.detach().float().numpy().tobytes()) for x in (found if isinstance(found, tuple) else (found,))]


def calls():
    """Calls of many kinds. Of each kind those that follow differ in what they hold alone."""
    for _ in range(2):
        yield dense()
        yield dense(causal="bottom-right", return_lse=True, deterministic=True)
        yield dense(heads_first=True, layout="bhsd", scale=0.3, window=[2, None], alignment="bottom-right")
        yield {name: x.bfloat16() for name, x in dense().items()}
        yield dense(mask=torch.rand(3, 9) < 0.8, bias=torch.randn(4, 1, 9), sinks=torch.randn(4), softcap=3.0)
        yield dense(mask=torch.randint(0, 3, (2, 1, 1, 9), dtype=torch.uint8), alibi_slopes=torch.randn(4), alignment="bottom-right")
        yield dense(key_ranges=torch.randint(0, 10, (3, 1, 2)).sort(-1).values, sinks=torch.randn(4).double())
        yield dense(v=torch.randn(2, 9, 32, 2).transpose(2, 3), k=torch.randn(2, 1, 2, 32).expand(2, 9, 2, 32))
        yield dense(key_list=torch.tensor([[[[0]]]] * 2), list_rows=16, list_keys=16)
        yield packed(3, 0, 4)
        yield packed(1, 1, 5, return_lse=True, max_seqlen_k=6)
        yield dense(dropout_p=0.5, dropout_seed=3)


@unittest.skipIf(torch is None, "torch is not installed")
class Repeated(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(46)
        fresh = mock.patch.object(_prepared_torch, "CACHE", _prepared_torch.Cache())
        fresh.start()
        self.addCleanup(fresh.stop)

    def assert_same(self, given, **names):
        with self.subTest(**names, **{name: getattr(x, "shape", x) for name, x in given.items()}):
            self.assertEqual(results(attention, given), results(plainly, given))

    def test_a_call_again(self):
        for given in calls():
            self.assertIsInstance(results(plainly, given), list, given)
            self.assert_same(given)
        self.assertGreater(len(_prepared_torch.CACHE._made), 8)

    def test_a_repeated_call_does_not_go_through_torch(self):
        with mock.patch("flashattn._torch_attention.forward", side_effect=AssertionError):
            for given in calls():
                copied = any(torch.is_tensor(x) and (x.stride(-1) != 1 or x.dtype == torch.float64) for x in given.values())
                if not copied and "dropout_p" not in given:
                    attention(**given)

    def test_what_is_almost_the_same_call(self):
        base = dense(k=torch.randn(2, 9, 4, 32), v=torch.randn(2, 9, 4, 32))
        q = base["q"]
        negative = torch._neg_view(-q)  # of which memory has the negatives
        apart = torch.zeros(q.numel() * 4 + 1, dtype=torch.uint8)[1:].numpy().view(np.float32).reshape(q.shape)
        changes = [
            *({"q": x} for x in (q[:1], q[:, :2], q.half(), q.double(), q.transpose(1, 2), negative, torch.from_numpy(apart), q[0], q[:0])),
            *({"q": x} for x in (q.to("meta"), q.to_sparse(), q.numpy(), q.tolist(), torch.nn.Parameter(q))),
            {"q": torch.ones(2, 3, 4, 33)[..., 1:]},
            *({"causal": x} for x in (None, False, 0, True, 1, "top-left", "bottom-right", "other")),
            *({"scale": x} for x in (0.0, 0, 1, 1.0, True, np.float32(1), None, float("nan"), "1", torch.tensor(2.0), torch.empty(0))),
            *({"chunk": x, "alignment": "top-left"} for x in (0, 0.0, 2, 2.0, True)),
            *({"return_lse": x} for x in (False, True, 0, 1)),
            *({"layout": x} for x in ("bshd", "bhsd", "other", None)),
            *({"deterministic": x} for x in (None, True, False, 1)),
            *({"mask": x} for x in (None, True, torch.ones(3, 9, dtype=torch.bool), torch.ones(3, 9), torch.ones(9, 3, dtype=torch.bool))),
            *({"bias": x} for x in (None, torch.ones(3, 9), torch.ones(3, 9).half(), torch.ones(3, 9).double(), torch.ones(9, 3).T)),
            *({"cu_seqlens_q": x} for x in (torch.tensor([0, 1]), torch.tensor(1), torch.tensor([0.0, 1.0]), [0, 1])),
            *({"backend": x} for x in (None, "cpu", 3)),
            *({"unknown": x} for x in (None, 1)),
        ]
        for change in changes:
            for _ in range(2):
                attention(**base)
                self.assert_same({**base, **change}, change=change.keys())

    def test_what_tensors_hold_is_checked_each_time(self):
        for lengths in ((3, 4), (4, 3), (1, 6), (7, 0)):
            self.assert_same(packed(*lengths))
        for cu in ([0, 2, 7], [0, 7, 5], [1, 2, 7], [0, 2, 1 << 40]):
            self.assert_same({**packed(3, 4), "cu_seqlens_k": torch.tensor(cu), "max_seqlen_k": 5})

    def test_arguments_by_place_and_by_name(self):
        q, k, v = dense().values()
        for _ in range(2):
            for arguments, named in (((q, k, v), {}), ((q, k), {"v": v}), ((), {"v": v, "k": k, "q": q})):
                self.assertTrue(torch.equal(attention(*arguments, **named), plainly(q, k, v)))
        for arguments, named in (((q, k, v), {"q": q}), ((q, k), {}), ((q, k, v, v), {})):
            with self.assertRaises(TypeError):
                attention(*arguments, **named)

    def test_gradients_after_a_call_without(self):
        given = dense(causal="bottom-right")
        attention(**given)
        for name in "qkv":
            tensors = {**given, name: given[name].clone().requires_grad_()}
            out = attention(**tensors)
            self.assertTrue(out.requires_grad)
            (gradient,) = torch.autograd.grad(out.square().sum(), tensors[name])
            (want,) = torch.autograd.grad(plainly(**tensors).square().sum(), tensors[name])
            self.assertTrue(torch.equal(gradient, want))
            with torch.no_grad():
                self.assertFalse(attention(**tensors).requires_grad)
        with torch.inference_mode():
            self.assertTrue(attention(**given).is_inference())
        self.assertFalse(attention(**given).is_inference())

    def test_where_torch_has_to_see_the_call(self):
        given = dense()
        q, k, v = given.values()
        for function in (lambda *x: attention(*x), Plan(q, k, v)):
            want = function(q, k, v)
            with Seen() as seen:
                self.assertTrue(torch.equal(function(q, k, v), want))
            self.assertEqual(seen.count, 1)
            self.assertTrue(torch.equal(torch.vmap(function)(*(x[None] for x in (q, k, v)))[0], want))
            gradient = torch.func.grad(lambda x: function(x, k, v).square().sum())(q)
            self.assertGreater(float(gradient.norm()), 0)
            with self.assertRaises(NotImplementedError):
                torch.func.jvp(lambda x: function(x, k, v), (q,), (q,))
            with torch.no_grad(), torch.autograd.forward_ad.dual_level(), self.assertRaises(NotImplementedError):
                function(torch.autograd.forward_ad.make_dual(q, q), k, v)
            with torch.autocast("cpu", torch.bfloat16):
                self.assertEqual(function(q, k, v).dtype, torch.bfloat16)
            traced = torch.jit.trace(function if not isinstance(function, Plan) else lambda *x: function(*x), (q, k, v), check_trace=False)
            self.assertIn("flashattn::forward", str(traced.graph))
            with torch.profiler.profile() as profile:
                function(q, k, v)
            self.assertIn("flashattn::forward", {event.name for event in profile.events()})
            compiled = torch.compile(lambda *x: function(*x), fullgraph=True, backend="aot_eager")
            self.assertTrue(torch.equal(compiled(q, k, v), want))
            self.assertTrue(torch.equal(compiled(-q, k, v), function(-q, k, v)))

    def test_no_tensor_is_kept_and_none_is_given_twice(self):
        given = dense(mask=torch.ones(3, 9, dtype=torch.bool), v=torch.randn(2, 9, 32, 2).transpose(2, 3))
        out = [attention(**given) for _ in range(3)]
        self.assertEqual(len({x.data_ptr() for x in out}), 3)
        alive = [weakref.ref(x) for x in (*given.values(), out[0])]
        del given, out
        gc.collect()
        self.assertEqual([x() for x in alive], [None] * len(alive))

    def test_threads(self):
        cases = [dense(causal="bottom-right") for _ in range(4)]
        wanted, failed = [plainly(**given) for given in cases], []

        def work(n):
            failed.extend(n for _ in range(100) if not torch.equal(attention(**cases[n]), wanted[n]))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_under_sdpa(self):
        q, k, v = dense(heads_first=True, k=torch.randn(2, 4, 9, 32), v=torch.randn(2, 4, 9, 32)).values()
        own = torch.nn.functional.scaled_dot_product_attention
        for mask in (None, torch.rand(3, 9) < 0.8, torch.randn(2, 1, 3, 9)):
            for _ in range(2):
                with sdpa(fallback=False):
                    out = own(q, k, v, attn_mask=mask)
                torch.testing.assert_close(out, own(q, k, v, attn_mask=mask), atol=2e-6, rtol=1e-5)


@unittest.skipIf(torch is None, "torch is not installed")
class Plans(unittest.TestCase):
    def test_the_bits_of_attention(self):
        torch.manual_seed(2)
        kinds = list(calls())
        half = len(kinds) // 2
        for first, then in zip(kinds[:half], kinds[half:]):
            if "max_seqlen_k" not in first and "cu_seqlens_k" in first:
                first |= {"max_seqlen_q": 7, "max_seqlen_k": 7}
            tensors = {name: x for name, x in then.items() if torch.is_tensor(x)}
            with self.subTest(**{name: getattr(x, "shape", x) for name, x in first.items()}):
                self.assertEqual(results(Plan(**first), tensors), results(plainly, then))
                self.assertEqual(results(Plan(**first), dict(reversed(tensors.items()))), results(plainly, then))

    def test_gradients(self):
        given = dense()
        plan, leaf = Plan(**given), given["k"].requires_grad_()
        plan(**given).sum().backward()
        want = torch.autograd.grad(plainly(**given).sum(), leaf)[0]
        self.assertTrue(torch.equal(leaf.grad, want))

    def test_refusals(self):
        given = dense(mask=torch.ones(3, 9, dtype=torch.bool))
        plan, q = Plan(**given), given["q"]
        for change, error, sentence in (
            ({"q": q[:1]}, ValueError, r"q has shape \(1, 3, 4, 32\), .*: the plan's has shape \(2, 3, 4, 32\)"),
            ({"q": q.half()}, ValueError, "q has .* dtype torch.float16: the plan's has"),
            ({"k": given["k"].transpose(0, 1).contiguous().transpose(0, 1)}, ValueError, "k has .* strides"),
            ({"mask": True}, ValueError, "mask is True: the plan's has"),
            ({"bias": torch.ones(3, 9)}, TypeError, "bias is given: the plan takes q, k, v, mask"),
        ):
            with self.subTest(change=change.keys()), self.assertRaisesRegex(error, sentence):
                plan(**{**given, **change})
        with self.assertRaisesRegex(TypeError, "mask is missing: the plan takes"):
            plan(q, given["k"], given["v"])
        with Seen(), self.assertRaisesRegex(TypeError, "the plan takes q, k, v, mask, not q, k, v"):
            plan(q, given["k"], given["v"])
        for made, error, sentence in (
            ({"q": q.numpy()}, TypeError, "q is of ndarray: a Plan takes tensors"),
            ({"q": q[..., :5]}, ValueError, "q, k and v have shapes"),
            ({"causal": True}, TypeError, "causal is True"),
            ({"casual": "top-left"}, TypeError, "casual"),
        ):
            with self.subTest(made=made.keys()), self.assertRaisesRegex(error, sentence):
                Plan(**{**given, **made})
        with flashattn.Handle("cpu") as handle:
            plan = Plan(**given, backend=handle)
            plan(**given)
        with self.assertRaisesRegex(ValueError, "the handle is closed"):
            plan(**given)


if __name__ == "__main__":
    unittest.main()
