"""What flashattn.torch.sdpa() reaches, by a count of the library's calls. Skipped where torch is not installed."""

import contextlib
import gc
import re
import sys
import threading
import unittest
import warnings
from pathlib import Path
from unittest import mock

import flashattn  # noqa: F401

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential
except ImportError:
    torch = None
else:
    from flashattn import _dispatch, _torch_parts
    from flashattn.torch import attention, sdpa
    from torch_reference import calls

    class Recomputed(torch.autograd.Function):
        """As other libraries write it: the forward again in the backward, with the same random numbers."""

        @staticmethod
        def forward(ctx, function, x):
            ctx.function, ctx.state = function, torch.get_rng_state()
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.random.fork_rng([]), torch.enable_grad():
                torch.set_rng_state(ctx.state)
                out = ctx.function(x)
            torch.autograd.backward(out, gradient)
            return None, x.grad


@contextlib.contextmanager
def sdpa_before_the_compiler():
    block = sdpa()
    with mock.patch.dict(sys.modules):
        sys.modules.pop("torch._dynamo", None)
        block.__enter__()
    try:
        yield
    finally:
        block.__exit__(None, None, None)


def models():
    """Modules of torch's, as functions of one tensor; and how often each computes attention."""
    options = {"dim_feedforward": 48, "batch_first": True, "dropout": 0.0}
    encoder, decoder = nn.TransformerEncoderLayer(32, 4, **options), nn.TransformerDecoderLayer(32, 4, **options)
    layer, stack = nn.MultiheadAttention(32, 4, batch_first=True), nn.TransformerEncoder(encoder, 2)
    yield "MultiheadAttention", layer, lambda m, x: m(x, x, x, need_weights=False)[0], 1
    yield "TransformerEncoderLayer", encoder, lambda m, x: m(x), 1
    yield "TransformerDecoderLayer", decoder, lambda m, x: m(x, x), 2
    yield "TransformerEncoder", stack, lambda m, x: m(x), 2
    yield "Transformer", nn.Transformer(32, 4, 1, 1, **options), lambda m, x: m(x, x), 3


@unittest.skipIf(torch is None, "torch is not installed")
class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        torch.compiler.reset()
        warnings.simplefilter("ignore")  # of what torch deprecates
        self.addCleanup(warnings.resetwarnings)

    def assert_calls(self, found, forward, backward=0):
        self.assertEqual((found["fa_forward_ex"], found["fa_backward"]), (forward, backward))

    def assert_refused(self, call, reason):
        with calls() as found, sdpa(fallback=False), self.assertRaisesRegex((NotImplementedError, RuntimeError),
                                                                            f"not flashattn's here: {reason}"):
            call()
        self.assert_calls(found, 0)


class Modules(Case):
    def test_each_way_into_them(self):
        x = torch.randn(2, 10, 32)
        for name, module, call, count in models():
            for training in (True, False):
                module.train(training)
                want = call(module, x)
                for gradients in (True, False):
                    with self.subTest(module=name, training=training, gradients=gradients):
                        with calls() as found, sdpa(fallback=False), torch.set_grad_enabled(gradients):
                            got = call(module, x)
                        self.assert_calls(found, count)
                        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
            with self.subTest(module=name, type="float64"):
                self.assert_refused(lambda: call(module.double(), x.double()), "query has dtype torch.float64")  # noqa: B023

    def test_padding_on_the_fast_path(self):
        stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2).eval()
        padding = torch.arange(10) >= torch.tensor([[8], [10]])
        with calls() as found, torch.no_grad(), sdpa(fallback=False):
            stack(torch.randn(2, 10, 32), src_key_padding_mask=padding)
        self.assert_calls(found, 2)

    def test_weights_are_refused(self):
        layer, x = nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 10, 32)
        self.assert_refused(lambda: layer(x, x, x), "need_weights")
        with sdpa():
            self.assertEqual(layer(x, x, x)[1].shape, (2, 10, 10))

    def test_scripted(self):
        x = torch.randn(2, 10, 32)
        for name, module, call, count in models():
            if name == "Transformer":  # which torch does not script
                continue
            with self.subTest(module=name):
                scripted, module = torch.jit.script(module), module.eval()
                for _ in range(3):  # torch runs it twice to see what it does
                    with calls() as found, sdpa(fallback=False):
                        call(scripted, x).sum().backward()
                    self.assert_calls(found, count, count)
                with torch.no_grad():
                    self.assert_refused(lambda: call(torch.jit.script(module), x), "torch computes it by aten::")  # noqa: B023
                    if name != "MultiheadAttention":  # whose fast path torch's interpreter cannot run
                        fast = call(torch.jit.script(module), x)
                        with sdpa():
                            torch.testing.assert_close(call(torch.jit.script(module), x), fast)

    def test_traced_exported_and_the_operator_itself(self):
        q = torch.randn(2, 4, 10, 8)
        function = lambda q: F.scaled_dot_product_attention(q, q, q)  # noqa: E731
        program = torch.export.export(type("Model", (nn.Module,), {"forward": lambda _, q: function(q)})(), (q,)).module()
        operator = torch.ops.aten.scaled_dot_product_attention
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        for call in (torch.jit.trace(function, (q,)), program, lambda q: operator(q, q, q)):
            with calls() as found, sdpa(fallback=False):
                torch.testing.assert_close(call(q), function(q))
            self.assert_calls(found, 2)
        self.assert_refused(lambda: flash(q, q, q), "torch computes it by aten::_scaled_dot_product_flash_attention_for_cpu")
        with sdpa():
            flash(q, q, q)

    def test_transforms_of_functions_are_refused(self):
        layer = nn.MultiheadAttention(16, 2, batch_first=True)
        for call in (lambda x: F.scaled_dot_product_attention(x, x, x), lambda x: layer(x, x, x, need_weights=False)[0]):
            for transform in (torch.vmap(call), torch.func.grad(lambda x: call(x).sum())):  # noqa: B023
                x = torch.randn(3, 2, 10, 16) if transform.__name__ == "wrapped" else torch.randn(2, 10, 16)
                self.assert_refused(lambda: transform(x), "(it is inside a transform|torch computes it by)")  # noqa: B023


class Compiled(Case):
    def test_modules_before_and_in_the_block(self):
        x = torch.randn(2, 10, 32)
        for name, module, call, count in models():
            module.eval()
            want = call(module, x)
            function = lambda x: call(module, x)  # noqa: B023, E731

            def inside(x, function=function):
                with sdpa(fallback=False):
                    return function(x)

            with self.subTest(module=name):
                torch.compiler.reset()
                compiled = torch.compile(function, backend="aot_eager")
                first = compiled(x)
                with calls() as found, sdpa(fallback=False):
                    torch.testing.assert_close(compiled(x), want, atol=1e-5, rtol=1e-4)
                self.assert_calls(found, count)
                with calls() as found:
                    self.assertTrue(torch.equal(compiled(x), first))
                self.assert_calls(found, 0)
                with calls() as found:
                    whole = torch.compile(inside, backend="aot_eager", fullgraph=True)
                    torch.testing.assert_close(whole(x), want, atol=1e-5, rtol=1e-4)
                self.assert_calls(found, count)

    def test_graph_breaks(self):
        q = torch.randn(2, 4, 10, 8)

        def function(q):
            torch._dynamo.graph_break()
            return F.scaled_dot_product_attention(q, q, q)

        def inside(q):
            with sdpa(fallback=False):
                return function(q)

        def outside(q):
            with sdpa(fallback=False):
                return compiled(q)

        compiled = torch.compile(function, backend="aot_eager")
        for call in (torch.compile(inside, backend="aot_eager"), outside):
            with calls() as found:
                call(q)
            self.assert_calls(found, 1)

    def test_a_refusal_is_not_cached(self):
        q = torch.randn(2, 4, 10, 8, dtype=torch.float64)
        compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q), backend="aot_eager")
        with sdpa():
            compiled(q)
        self.assert_refused(lambda: compiled(q), "query has dtype torch.float64")

    def test_checkpoints(self):
        q = torch.randn(2, 4, 10, 8, requires_grad=True)
        function = lambda q: F.scaled_dot_product_attention(q, q, q)  # noqa: E731
        inner = torch.compile(function, backend="aot_eager")
        inner(q)  # what torch notes of its own kernels is no longer true in the block
        for call in (
            torch.compile(lambda q: checkpoint(function, q, use_reentrant=False), backend="aot_eager"),
            lambda q: checkpoint(inner, q, use_reentrant=False),
            lambda q: checkpoint(inner, q, use_reentrant=True),
        ):
            with calls() as found:
                with sdpa(fallback=False):
                    out = call(q)
                out.sum().backward()
            self.assert_calls(found, 2, 1)


class Recomputation(Case):
    """A forward that a backward pass computes again: by the library if it was the first time, and only then, with the same dropout."""

    def ways(self):
        for reentrant in (True, False):
            one = lambda f, x, reentrant=reentrant: checkpoint(f, x, use_reentrant=reentrant)  # noqa: E731
            yield f"checkpoint, reentrant={reentrant}", one
            yield f"two, reentrant={reentrant}", lambda f, x, one=one: one(lambda y: one(f, y), x)
            yield f"in another's, reentrant={reentrant}", lambda f, x, one=one: Recomputed.apply(lambda y: one(f, y), x)
            yield (
                f"sequential, reentrant={reentrant}",
                lambda f, x, reentrant=reentrant: checkpoint_sequential([f, torch.sin], 2, x, use_reentrant=reentrant).asin(),
            )
        def offloaded(f, x):
            with torch.autograd.graph.save_on_cpu():
                return checkpoint(f, x, use_reentrant=False, determinism_check="none")

        yield "offloaded", offloaded
        yield "another's", Recomputed.apply
        yield "another's, two", lambda f, x: Recomputed.apply(lambda y: Recomputed.apply(f, y), x)

    def gradient(self, way, function, *, forward=True, backward=True):
        """In a block are the forward and the backward, or one of them."""
        torch.manual_seed(7)
        x = torch.linspace(-1, 1, 96).reshape(1, 2, 6, 8).requires_grad_()
        block = sdpa(fallback=not forward)  # strict, but that a block around a backward alone leaves it to torch
        if forward:
            block.__enter__()
        loss = (way(function, x) * torch.arange(96.0).reshape(x.shape)).sum()
        if forward and not backward:
            block.__exit__(None, None, None)
        if not forward:
            block.__enter__()
        loss.backward()
        if backward:
            block.__exit__(None, None, None)
        return x.grad

    def test_checkpoints_in_and_after_the_block(self):
        for dropout in (0.0, 0.5):
            function = lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=dropout)  # noqa: B023, E731
            once = lambda f, x: f(x)  # noqa: E731
            for name, way in self.ways():
                reference = (lambda f, x: f(x).sin().asin()) if "sequential" in name else once
                want, torchs = self.gradient(reference, function), self.gradient(reference, function, forward=False)
                for backward in (True, False):
                    with self.subTest(way=name, dropout=dropout, backward_in_block=backward), calls() as found:
                        torch.testing.assert_close(self.gradient(way, function, backward=backward), want)
                        self.assertGreaterEqual(found["fa_forward_ex"], 2)
                        self.assertEqual(found["fa_backward"], 1)
                with self.subTest(way=name, dropout=dropout, forward_in_block=False), calls() as found:
                    torch.testing.assert_close(self.gradient(way, function, forward=False), torchs)
                    self.assert_calls(found, 0)
        gc.collect()
        self.assertEqual(_dispatch._REGISTRATION._holders, 0)

    def test_a_backward_of_no_block_is_refused(self):
        x = torch.randn(1, 2, 6, 8, requires_grad=True)
        out = checkpoint(lambda x: F.scaled_dot_product_attention(x, x, x), x, use_reentrant=False)
        self.assert_refused(lambda: out.sum().backward(), "it is inside a backward pass")

    def test_a_backward_without_attention_is_not(self):
        x = torch.linspace(-1, 1, 8, requires_grad=True)
        out = checkpoint(torch.sin, x, use_reentrant=False).sum()
        with sdpa(fallback=False):
            out.backward()
        torch.testing.assert_close(x.grad, x.detach().cos())

    def test_a_checkpoint_that_is_not_known_is_refused(self):
        """As that of a later torch may be: it computes anew where no block can see it."""
        x = torch.ones(1, 2, 6, 8)
        for unknown in (True, False):
            def other(function, x, *, use_reentrant, unknown=unknown, **options):
                return function(x) if use_reentrant == unknown else checkpoint(function, x, use_reentrant=use_reentrant, **options)

            error = f"does not know the torch.utils.checkpoint\\(use_reentrant={unknown}\\) of torch {torch.__version__[0]}"
            with mock.patch.object(_dispatch._REGISTRATION, "checkpoints_known", False), \
                    mock.patch.object(torch.utils.checkpoint, "checkpoint", other), self.subTest(reentrant=unknown):
                with self.assertRaisesRegex(NotImplementedError, error), sdpa():  # torch.compile makes programs
                    self.fail("the block was entered")
                with calls() as found, sdpa_before_the_compiler():
                    F.scaled_dot_product_attention(x, x, x)
                    for gradient in ((x.clone().requires_grad_(), x, x), (x, x, x.clone().requires_grad_())):
                        with self.assertRaisesRegex(NotImplementedError, error):
                            F.scaled_dot_product_attention(*gradient)
                self.assert_calls(found, 1)
        self.assertEqual(_dispatch._REGISTRATION._holders, 0)

    def test_modules(self):
        encoder, x = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), torch.randn(2, 10, 32, requires_grad=True)
        for reentrant in (True, False):
            gradients = []
            for call in (encoder, lambda x: checkpoint(encoder, x, use_reentrant=reentrant)):  # noqa: B023
                torch.manual_seed(3)
                with calls() as found:
                    with sdpa(fallback=False):
                        loss = call(x).square().sum()
                    gradients.append(torch.autograd.grad(loss, x)[0] if call is encoder else self.backward(loss, x))
            self.assert_calls(found, 2, 1)
            torch.testing.assert_close(*gradients)

    def backward(self, loss, x):
        x.grad = None
        loss.backward()
        return x.grad


class Blocks(Case):
    def setUp(self):
        super().setUp()
        self.q = torch.randn(2, 4, 10, 8)
        self.call = lambda q=self.q: F.scaled_dot_product_attention(q, q, q)

    def test_they_nest_and_end(self):
        block = sdpa()
        with calls() as found:
            with block, block:
                self.call()
            with sdpa(fallback=False), self.assertRaises(NotImplementedError), sdpa():
                self.call(self.q.double())
                with sdpa(fallback=False):
                    self.call(self.q.double())
            self.call()
        self.assert_calls(found, 1)

        def generator():
            with sdpa(fallback=False):
                yield

        with calls() as found:
            suspended = generator()
            next(suspended)
            with sdpa():
                suspended.close()
                self.call(self.q.double())
                self.call()
            self.call()
        self.assert_calls(found, 1)
        self.assertEqual(_dispatch._REGISTRATION._holders, 0)

    def test_threads(self):
        def run(call):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()

        def each(modules, inputs):
            for module, x in zip(modules, inputs):
                run(lambda: module(x))  # noqa: B023

        with calls() as found, sdpa(fallback=False):
            run(self.call)
        self.assert_calls(found, 0)  # a thread has blocks of its own
        with calls() as found, sdpa(fallback=False):
            _dispatch._each_within(each)([self.call, self.call], [self.q, self.q])  # as DataParallel starts them
        self.assert_calls(found, 2)

    def test_inference_mode(self):
        with calls() as found, sdpa(fallback=False), torch.inference_mode():
            self.call()
            torch.ops.aten.scaled_dot_product_attention(self.q, self.q, self.q)
        self.assert_calls(found, 2)

    def test_autocast(self):
        """As torch's own: everything is cast, in eager programs and compiled ones."""
        bias = torch.randn(10, 10)
        for options in ({}, {"attn_mask": bias}):
            function = lambda q, k: F.scaled_dot_product_attention(q, k, k.half(), **options)  # noqa: B023, E731
            for dtype in (torch.bfloat16, torch.float16):
                torch.compiler.reset()
                with torch.autocast("cpu", dtype=dtype):
                    want = function(self.q, self.q)
                    for call in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
                        with calls() as found, sdpa(fallback=False):
                            got = call(self.q, self.q)
                        self.assert_calls(found, 1)
                        self.assertEqual(got.dtype, dtype)
                        torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
                    self.assert_refused(lambda: function(self.q.double(), self.q), "query has dtype torch.float64")  # noqa: B023

    def test_what_it_computes_is_attention(self):
        want = attention(*(x.transpose(1, 2) for x in (self.q, self.q, self.q))).transpose(1, 2)
        with calls() as found, sdpa(fallback=False):
            self.assertTrue(torch.equal(self.call(), want))
            self.assertTrue(torch.equal(torch.ops.aten.scaled_dot_product_attention(self.q, self.q, self.q), want))
        self.assert_calls(found, 2)


@unittest.skipIf(torch is None, "torch is not installed")
class Parts(unittest.TestCase):
    """Names that torch does not document: one that a torch lacks is said where flashattn.torch is imported."""

    def test_all_are_looked_up(self):
        package = Path(flashattn.__file__).parent
        looked_up = {name.replace(":", ".") for name in _torch_parts._USED}
        for path in package.glob("*.py"):
            for line in path.read_text().splitlines():
                if path.name != "_torch_parts.py":
                    self.assertNotRegex(line, r"^(from|import) torch\._|^from torch\S* import _", path.name)
                    for name in re.findall(r"torch\._C(?:\.\w+)+", line):
                        self.assertTrue(any(found == name or found.startswith(f"{name}.") for found in looked_up), f"{path.name}: {name}")

    def test_one_that_is_missing_is_named(self):
        with self.assertRaisesRegex(ImportError, f"torch is {re.escape(torch.__version__)}, which has no torch._C._no_such_part: expected"):
            _torch_parts._part("torch._C:_no_such_part")


if __name__ == "__main__":
    unittest.main()
