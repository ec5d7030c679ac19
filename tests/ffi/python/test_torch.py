"""flashattn.torch against the same written in torch, float64, whose autograd is the judge, on the CPU and on a GPU. Skipped where
torch is not installed, or sees no GPU, or the library has no backend for it."""

import types
import unittest
import warnings
from pathlib import Path
from unittest import mock

import flashattn

try:
    import torch
except ImportError:
    torch = None
else:
    from flashattn import _operators, _request, _tensors
    from flashattn.torch import MultiheadAttention, attention
    from torch_reference import plain

    class OnRocm(torch.Tensor):
        """A tensor that says it lies on a GPU, which torch of ROCm calls "cuda", too."""

        device = property(lambda _: torch.device("cuda", 0))


def no_gpu():
    """Why nothing can be tested on a GPU here, or None."""
    if torch is None:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    backend = flashattn.backends()["hip" if torch.version.hip else "cuda"]
    return None if backend.usable else backend.reason


@unittest.skipIf(torch is None, "torch is not installed")
class Torch(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.manual_seed(1)

    def randn(self, *shape, **options):
        return torch.randn(*shape, device=self.device, **options)

    def assert_close(self, a, b, limit):
        self.assertEqual((a.shape, a.device), (b.shape, b.device))
        a, b = a.detach().double(), b.detach().double()
        self.assertLessEqual(float((a - b).norm() / b.norm().clamp_min(1e-12)), limit)

    def compare(self, tensors, options, exact_options, limit=4e-6):
        """tensors: by name, of any dtype; each gets a gradient, through out and lse alike."""
        ours = {name: x.clone().requires_grad_() for name, x in tensors.items()}
        theirs = {name: x.double().clone().requires_grad_() for name, x in tensors.items()}
        out, lse = attention(**ours, **options, return_lse=True)
        want, want_lse = plain(**theirs, **exact_options)
        dout, dlse = self.randn(out.shape).to(out.dtype), self.randn(lse.shape)
        ((out * dout).double().sum() + (lse * dlse).double().sum()).backward()
        ((want * dout.double()).sum() + (want_lse * dlse).sum()).backward()
        self.assert_close(out, want, limit)
        for name in tensors:
            self.assertEqual(ours[name].grad.dtype, tensors[name].dtype)
            self.assert_close(ours[name].grad, theirs[name].grad, limit)

    def qkv(self, dtype=None):
        dtype = dtype or torch.float32
        shapes = {"q": (2, 20, 4, 16), "k": (2, 30, 2, 16), "v": (2, 30, 2, 12)}
        return {name: self.randn(shape).to(dtype) for name, shape in shapes.items()}

    def test_plain_and_causal(self):
        self.compare(self.qkv(), {}, {})
        self.compare(self.qkv(), {"causal": "bottom-right"}, {"causal": True})

    def test_16_bits(self):
        for dtype, limit in ((torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
            self.compare(self.qkv(dtype), {"causal": "bottom-right"}, {"causal": True}, limit)

    def test_bias_sinks_mask_softcap_and_scale(self):
        mask = torch.rand(2, 1, 20, 30, device=self.device) < 0.8
        tensors = {**self.qkv(), "bias": self.randn(4, 1, 30), "sinks": self.randn(4)}
        options = {"mask": mask, "softcap": 2.0, "scale": 0.3}
        self.compare(tensors, options, options, 1e-5)

    def test_factor_of_the_bias(self):
        tensors = {**self.qkv(), "bias": self.randn(20, 30)}
        options = {"bias_scale": torch.tensor([0.5, -1.0, 0.0, 2.0], device=self.device)}
        self.compare(tensors, options, options, 1e-5)

    def test_ranges_and_lists_of_keys(self):
        begin = torch.randint(0, 29, (2, 1, 20), device=self.device)
        ranges = torch.stack([begin, begin + torch.randint(1, 9, (2, 1, 20), device=self.device)], -1)[..., None, :]
        j = torch.arange(30, device=self.device)
        self.compare(self.qkv(), {"key_ranges": ranges}, {"mask": (j >= ranges[..., 0, :1]) & (j < ranges[..., 0, 1:])})
        # Of blocks of 16 rows and keys, the first rows attend the first block, the others the second and, but for the diagonal, the first.
        entries = {"key_list": [[[[0], [1]]]], "full_list": [[[[-1], [0]]]]}
        lists = {name: torch.tensor(x, device=self.device).expand(2, 1, 2, 1) for name, x in entries.items()}
        counts = {"key_list_count": torch.ones(2, 1, 2, device=self.device, dtype=torch.int32)}
        i = torch.arange(20, device=self.device)[:, None]
        mask = torch.where(i < 16, j < 16, (j < 16) | (j <= i))
        options = {**lists, **counts, "list_rows": 16, "list_keys": 16, "causal": "top-left"}
        self.compare(self.qkv(), options, {"mask": mask & ((j <= i) | ((i >= 16) & (j < 16)))})
        for name, wrong, error in (
            ("key_ranges", ranges.float(), TypeError),
            ("key_ranges", ranges[:, :, :7], ValueError),
            ("key_list", lists["key_list"][:, :, :1], ValueError),
            ("key_list_count", counts["key_list_count"], ValueError),
        ):
            with self.assertRaisesRegex(error, f"{name} "):
                attention(**self.qkv(), **{name: wrong})

    def test_dropout(self):
        keep = torch.from_numpy(flashattn.dropout_mask(0.3, (2, 4, 20, 30), seed=9, offset=0)).double().to(self.device)
        self.compare(self.qkv(), {"dropout_p": 0.3, "dropout_seed": 9}, {"keep": keep, "p": 0.3})
        torch.manual_seed(3)
        first = attention(**self.qkv(), dropout_p=0.5)
        torch.manual_seed(3)
        self.assertTrue(torch.equal(first, attention(**self.qkv(), dropout_p=0.5)))

    def test_strided_and_broadcast_tensors(self):
        q = self.randn(2, 4, 20, 16).transpose(1, 2)
        k = self.randn(1, 30, 2, 16).expand(2, 30, 2, 16)
        v = self.randn(2, 30, 12, 2).transpose(2, 3)  # elements of a head lie apart: copied
        self.compare({"q": q, "k": k, "v": v}, {}, {})

    def test_heads_first(self):
        t = self.qkv()
        swapped = {name: x.transpose(1, 2).contiguous().requires_grad_() for name, x in t.items()}
        ours = {name: x.clone().requires_grad_() for name, x in t.items()}
        out = attention(**swapped, layout="bhsd", causal="bottom-right")
        want = attention(**ours, causal="bottom-right")
        self.assertTrue(torch.equal(out, want.transpose(1, 2)))
        out.square().sum().backward()
        want.square().sum().backward()
        for name in t:
            self.assert_close(swapped[name].grad, ours[name].grad.transpose(1, 2), 1e-6)

    def test_packed(self):
        cu = torch.tensor([0, 7, 7, 20], device=self.device)
        q, k, v = (self.randn(20, 2, 8, requires_grad=True) for _ in range(3))
        lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        out = attention(q, k, v, **lengths, causal="top-left")
        self.assertTrue(torch.equal(out, attention(q, k, v, **lengths, max_seqlen_q=13, max_seqlen_k=20, causal="top-left")))
        out.square().sum().backward()
        for begin, end in ((0, 7), (7, 20)):
            parts = [x.detach()[None, begin:end].requires_grad_() for x in (q, k, v)]
            one = attention(*parts, causal="top-left")
            one.square().sum().backward()
            self.assert_close(out[begin:end], one[0], 1e-6)
            for x, part in zip((q, k, v), parts):
                self.assert_close(x.grad[begin:end], part.grad[0], 1e-6)

    def test_packed_module(self):
        layer, x = MultiheadAttention(16, heads=4, heads_kv=2).to(self.device), self.randn(20, 16)
        cu = torch.tensor([0, 7, 20], device=self.device)
        out = layer(x, causal="top-left", cu_seqlens_q=cu, cu_seqlens_k=cu)
        for begin, end in ((0, 7), (7, 20)):
            self.assert_close(out[begin:end], layer(x[None, begin:end], causal="top-left")[0], 1e-6)

    def test_gradcheck(self):
        q, k, v = (self.randn(1, 3, 2, 4, requires_grad=True) for _ in range(3))
        causal = lambda *x: attention(*x, causal="top-left", deterministic=True)  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that float32 is not float64
            self.assertTrue(torch.autograd.gradcheck(causal, (q, k, v), eps=1e-2, atol=2e-3, rtol=1e-2))

    def test_autocast(self):
        """As torch's own function: q, k and v get autocast's type, gradients have their tensors' own."""
        kind = torch.device(self.device).type
        for dtype, limit in ((torch.bfloat16, 1.6e-2), (torch.float16, 2e-3)):
            mixed = {"q": torch.float32, "k": torch.bfloat16, "v": torch.float16}
            tensors = {name: x.to(dtype).to(mixed[name]) for name, x in self.qkv().items()}  # nothing more is rounded
            tensors = {**tensors, "bias": self.randn(4, 1, 30), "sinks": self.randn(4)}
            with self.subTest(dtype=dtype), torch.autocast(kind, dtype=dtype):
                self.assertEqual(attention(**self.qkv()).dtype, dtype)
                self.assertEqual(MultiheadAttention(32, 4).to(self.device)(self.randn(2, 5, 32)).dtype, dtype)
                with self.assertRaisesRegex(TypeError, "q has dtype torch.float64"):
                    attention(**{name: x.double() for name, x in self.qkv().items()})
                ours = {name: x.clone().requires_grad_() for name, x in tensors.items()}
                out = attention(**ours)
                self.assertEqual(out.dtype, dtype)
                out.backward(dout := self.randn(out.shape).to(dtype))
            theirs = {name: x.double().requires_grad_() for name, x in tensors.items()}
            plain(**theirs)[0].backward(dout.double())
            for name, x in ours.items():
                self.assertEqual(x.grad.dtype, x.dtype)
                self.assert_close(x.grad, theirs[name].grad, limit)
            with torch.autocast("cuda" if kind == "cpu" else "cpu", dtype=dtype, enabled=kind == "cuda" or torch.cuda.is_available()):
                self.assertEqual(attention(**self.qkv()).dtype, torch.float32)

    def test_batched_gradients(self):
        """By torch.autograd and by torch.func, of every operand that has one."""
        cu = torch.tensor([0, 7, 20], device=self.device)
        packed = {"q": self.randn(20, 4, 16), "k": self.randn(20, 2, 16), "v": self.randn(20, 2, 12)}
        for tensors, options in (
            (self.qkv(), {"causal": "bottom-right"}),
            ({**self.qkv(), "bias": self.randn(4, 1, 30), "sinks": self.randn(4)}, {}),
            (packed, {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 13, "max_seqlen_k": 13}),
            (self.qkv(), {"dropout_p": 0.3, "dropout_seed": 9}),
        ):
            names = list(tensors)
            many = [torch.stack([x, x.flip(-1), 2 * x]) for x in tensors.values()]
            out = lambda *x: attention(**dict(zip(names, x)), **options, deterministic=True)  # noqa: B023, E731
            loss = lambda *x: out(*x).square().sum()  # noqa: B023, E731
            separate = lambda *x: torch.autograd.grad(loss(*x), x)  # noqa: B023, E731
            items = [[x[i].clone().requires_grad_() for x in many] for i in range(3)]
            want = [torch.stack(x) for x in zip(*(separate(*item) for item in items))]
            every = tuple(range(len(names)))
            vmap, grad = torch.func.vmap, torch.func.grad
            for name, got in (
                ("vmap(grad)", vmap(grad(loss, every))(*many)),
                ("grad(vmap)", grad(lambda *x: vmap(loss)(*x).sum(), every)(*many)),  # noqa: B023
                ("vmap(vmap(grad))", [x[:, 0] for x in vmap(vmap(grad(loss, every)))(*(x[:, None] for x in many))]),
                ("grad", [torch.stack(x) for x in zip(*(grad(loss, every)(*item) for item in items))]),
            ):
                with self.subTest(transform=name, operands=names, options=list(options)):
                    for a, b in zip(got, want):
                        self.assert_close(a, b, 1e-6)
            result = out(*items[0])
            directions = self.randn(5, *result.shape)
            got = torch.autograd.grad(result, items[0], directions, is_grads_batched=True, retain_graph=True)
            each = zip(*(torch.autograd.grad(result, items[0], x, retain_graph=True) for x in directions))
            for a, b in zip(got, each):
                self.assert_close(a, torch.stack(b), 1e-6)
        small = [self.randn(1, 2, 1, 4) for _ in range(3)]
        jacobian = torch.autograd.functional.jacobian
        want = jacobian(attention, tuple(small))
        for got in (jacobian(attention, tuple(small), vectorize=True), torch.func.jacrev(attention, (0, 1, 2))(*small)):
            for a, b in zip(got, want):
                self.assert_close(a, b, 1e-6)
        self.assertEqual(torch.func.vmap(torch.func.grad(loss))(*(x[:0] for x in many)).shape, many[0][:0].shape)

    def test_only_wanted_gradients(self):
        t = self.qkv()
        q = t["q"].requires_grad_()
        attention(q, t["k"], t["v"]).sum().backward()
        self.assertEqual([t["k"].grad, t["v"].grad, q.grad.shape], [None, None, q.shape])
        with torch.no_grad():
            self.assertFalse(attention(**t).requires_grad)

    def test_a_loss_of_the_lse_alone(self):
        t = {name: x.requires_grad_() for name, x in self.qkv().items()}
        _, lse = attention(**t, return_lse=True)
        lse.square().sum().backward()
        ours = {name: x.grad for name, x in t.items()}
        _, want = plain(**t)
        for (name, x), exact in zip(t.items(), torch.autograd.grad(want.square().sum(), list(t.values()), allow_unused=True)):
            self.assert_close(ours[name], torch.zeros_like(x) if exact is None else exact, 2e-5)

    def test_refusals(self):
        t = self.qkv()
        with self.assertRaisesRegex(TypeError, "q has dtype torch.float64"):
            attention(t["q"].double(), t["k"], t["v"])
        with self.assertRaisesRegex(ValueError, "q, k and v have shapes"):
            attention(t["q"][0], t["k"], t["v"])
        packed = [x.flatten(0, 1) for x in t.values()]
        for bad in (torch.tensor([0, 7]), torch.tensor([[0, 20, 40]]), torch.tensor([0.0, 20.0, 40.0])):
            with self.assertRaisesRegex(ValueError, "cu_seqlens_. has shape"):
                lengths = {"cu_seqlens_q": torch.tensor([0, 20, 40]), "cu_seqlens_k": bad}
                attention(*packed, **{name: cu.to(self.device) for name, cu in lengths.items()})
        for name, bad in (("bias", self.randn(3, 30)), ("mask", self.randn(3, 30) < 0)):
            with self.assertRaisesRegex(ValueError, f"{name} has shape"):
                attention(**t, **{name: bad})
        for name, bad in (("mask", self.randn(20, 30)), ("sinks", self.randn(4) < 0), ("alibi_slopes", self.randn(4) * 1j)):
            with self.assertRaisesRegex(TypeError, f"{name} has dtype"):
                attention(**t, **{name: bad})
        with self.assertRaisesRegex(ValueError, "max_seqlen_q is 3: it belongs with cu_seqlens_q"):
            attention(**t, max_seqlen_q=3)
        with self.assertRaisesRegex(TypeError, "causal is True"):
            attention(**t, causal=True)

    def test_integers_of_64_bits_become_no_others(self):
        t = self.qkv()
        ranges = torch.tensor([[0, 1 << 40]], device=self.device)
        if self.device == "cpu":
            with self.assertRaisesRegex(ValueError, "key_ranges holds values beyond 32 bits"):
                attention(**t, key_ranges=ranges)
        else:  # which would have to be waited for
            self.assert_close(attention(**t, key_ranges=ranges), attention(**t), 1e-6)

    def test_a_bias_of_nothing_has_a_gradient_of_zeros(self):
        for batch, rows, keys in ((0, 20, 30), (2, 0, 30), (2, 20, 0)):
            with self.subTest(batch=batch, rows=rows, keys=keys):
                q, k, v = (self.randn(batch, n, 4, 8) for n in (rows, keys, keys))
                bias = self.randn(1, 1, 1, 1, requires_grad=True)
                attention(q, k, v, bias=bias).sum().backward()
                self.assertEqual(float(bias.grad), 0)

    def test_module(self):
        layer = MultiheadAttention(32, heads=4, heads_kv=2).to(self.device)
        x, context = self.randn(2, 10, 32, requires_grad=True), self.randn(2, 15, 32)
        out = layer(x, context)
        q, k, v = layer.query(x).view(2, 10, 4, 8), layer.key(context).view(2, 15, 2, 8), layer.value(context).view(2, 15, 2, 8)
        want = layer.output(plain(q, k, v)[0].reshape(2, 10, 32))
        self.assert_close(out, want, 1e-5)
        ours = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        theirs = torch.autograd.grad(want.square().sum(), [x, *layer.parameters()])
        for (name, _), a, b in zip([("x", x), *layer.named_parameters()], ours, theirs):
            with self.subTest(name=name):
                if name == "key.bias":  # moves all scores of a row alike
                    self.assertLess(float(a.norm()), 1e-3)
                else:
                    self.assert_close(a, b, 2e-5)
        self.assertEqual(layer(x, causal="top-left").shape, x.shape)
        with self.assertRaisesRegex(ValueError, "each must divide"):
            MultiheadAttention(30, heads=4)

    def test_module_learns_to_copy(self):
        layer = MultiheadAttention(16, heads=2).to(self.device)
        optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
        x = self.randn(4, 12, 16)
        losses = []
        for _ in range(60):
            optimiser.zero_grad()
            loss = (layer(x, causal="top-left") - x).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(float(loss))
        self.assertLess(losses[-1], 0.5 * losses[0])


@unittest.skipIf(torch is None, "torch is not installed")
class Guide(unittest.TestCase):
    def test_training(self):
        """The program of docs/guides/training.md runs, and its gradients are those of torch's attention, sequence by sequence."""
        page = (Path(__file__).parents[3] / "docs/guides/training.md").read_text(encoding="utf-8")
        names = {}
        exec(page.split("## PyTorch")[1].split("```python\n")[1].split("```")[0].replace("optimizer.step()", ""), names)
        layer, cu = names["layer"], names["cu_seqlens"].tolist()
        ours = [p.grad.float() for p in layer.parameters()]

        def by_sequence(q, k, v, **_):
            shares = q.shape[1] // k.shape[1]
            heads = [q, k.repeat_interleave(shares, 1), v.repeat_interleave(shares, 1)]
            parts = [[x[begin:end].transpose(0, 1) for x in heads] for begin, end in zip(cu, cu[1:])]
            return torch.cat([torch.nn.functional.scaled_dot_product_attention(*p, is_causal=True).transpose(0, 1) for p in parts])

        names["attention"] = by_sequence
        layer.zero_grad()
        (layer(names["x"], names["cu_seqlens"]) - names["target"]).float().square().mean().backward()
        for mine, p in zip(ours, layer.parameters()):
            self.assertLess(float((mine - p.grad.float()).norm()), 0.02 * float(p.grad.float().norm()))  # of bf16



@unittest.skipIf(no_gpu() is not None, no_gpu() or "")
class TorchOnGpu(Torch):
    device = "cuda:0"

    def test_the_current_stream_is_the_calls(self):
        """Both passes wait for what their stream had to do before them, and for nothing else."""
        stream = torch.cuda.Stream()
        inputs = {name: x.requires_grad_() for name, x in self.qkv().items()}
        want = torch.autograd.grad(attention(**inputs, deterministic=True).square().sum(), list(inputs.values()))
        with torch.cuda.stream(stream):
            held = {name: torch.zeros_like(x) for name, x in inputs.items()}
            torch.cuda._sleep(100_000_000)
            for name, x in inputs.items():
                held[name].copy_(x.detach())
            held = {name: x.requires_grad_() for name, x in held.items()}
            got = torch.autograd.grad(attention(**held, deterministic=True).square().sum(), list(held.values()))
        stream.synchronize()
        for a, b in zip(got, want):
            self.assertTrue(torch.equal(a, b))

    def test_a_graph_of_both_passes(self):
        t = {name: x.requires_grad_() for name, x in self.qkv(torch.bfloat16).items()}

        def passes():
            out = attention(**t, causal="bottom-right", deterministic=True)
            return (out, *torch.autograd.grad(out.float().square().sum(), list(t.values())))

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            passes()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = passes()
        for _ in range(3):
            with torch.no_grad():
                for x in t.values():
                    x.copy_(torch.randn_like(x))
            graph.replay()
            torch.cuda.synchronize()
            for a, b in zip(captured, passes()):
                self.assertTrue(torch.equal(a, b))

    def test_deterministic_gradients_have_the_same_bits(self):
        t = {name: self.randn(1, 700, 2, 64, dtype=torch.bfloat16, requires_grad=True) for name in "qkv"}
        dout = self.randn(1, 700, 2, 64, dtype=torch.bfloat16)
        out = attention(**t, deterministic=True)
        first = torch.autograd.grad(out, list(t.values()), dout, retain_graph=True)
        for _ in range(20):
            for a, b in zip(torch.autograd.grad(out, list(t.values()), dout, retain_graph=True), first):
                self.assertTrue(torch.equal(a, b))

    def test_the_library_allocates_nothing(self):
        """Workspaces are torch's, and torch has them back."""
        t = {name: self.randn(2, 512, 4, 64, dtype=torch.float16, requires_grad=True) for name in "qkv"}

        def memory():
            """What torch's tensors hold, and what nobody but torch holds of the GPU."""
            attention(**t).sum().backward()
            torch.cuda.synchronize()
            return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()

        memory()
        first = memory()
        for _ in range(5):
            self.assertEqual(memory(), first)

    def test_handles(self):
        t = self.qkv()
        backend = "hip" if torch.version.hip else "cuda"
        with flashattn.Handle(backend, memory="device") as handle:
            self.assertTrue(torch.equal(attention(**t, backend=handle), attention(**t)))
            with self.assertRaisesRegex(ValueError, 'expected one with memory="host"'):
                flashattn.attention(*(x.cpu().numpy() for x in t.values()), backend=handle)
        for other in (flashattn.Handle("cpu"), flashattn.Handle(backend)):
            with other, self.assertRaisesRegex(ValueError, 'memory="device"'):
                attention(**t, backend=other)
        with self.assertRaisesRegex(ValueError, "k is on cpu: expected q's device, cuda:0"):
            attention(t["q"], t["k"].cpu(), t["v"])


@unittest.skipIf(torch is None, "torch is not installed")
@unittest.skipUnless(flashattn.backends()["hip"].usable, "neither an AMD GPU nor the emulator (FLASHATTN_BACKEND_DIR) takes HIP's calls")
class TorchOfRocm(unittest.TestCase):
    """Torch of ROCm, as far as the package sees of it, over the emulator, whose memory is the process's: the HIP backend gets the tensors'
    own addresses, torch's stream and a workspace of torch's."""

    stream = 4096

    def setUp(self):
        made, empty, full, run = [], torch.empty, torch.full, _request.Request.run

        def on_rocm(make):
            def call(*args, device=None, **options):
                x = make(*args, **options)
                made.append(x)
                return x if device is None else x.as_subclass(OnRocm)

            return call

        def recorded(request, handle):
            self.requests.append((request, handle))
            run(request, handle)

        self.requests, self.made = [], made
        stream = types.SimpleNamespace(cuda_stream=self.stream)
        for patch in (
            mock.patch.object(torch.version, "hip", "7.0"),
            mock.patch.object(torch.cuda, "current_stream", lambda device: stream),
            mock.patch.object(torch, "empty", on_rocm(empty)),
            mock.patch.object(torch, "full", on_rocm(full)),
            mock.patch.object(_request.Request, "run", recorded),
            mock.patch("flashattn._torch_attention.forward", _operators._forward),  # the operators themselves go by where memory really lies
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def check_request(self, tensors):
        request, handle = self.requests[-1]
        self.assertEqual((handle.backend, handle.device, handle.memory), ("hip", 0, "device"))
        for name, x in tensors.items():
            self.assertEqual(getattr(request.args if hasattr(request.args, name) else request._inputs.args, name), x.data_ptr())
        self.assertTrue(request.args.flags & flashattn._abi.FA_ARGS_STREAM)
        self.assertEqual(request.args.stream, self.stream)
        size = handle.workspace_size(request.desc, request.op)
        if size:
            begin = request.args.workspace
            rooms = [(x.data_ptr(), x.numel()) for x in self.made if x.dtype == torch.uint8]
            self.assertTrue(any(at <= begin and begin + size <= at + n for at, n in rooms))
        return size

    def test_forward_and_gradients(self):
        torch.manual_seed(2)
        q, k, v = torch.randn(2, 20, 4, 16), torch.randn(2, 300, 2, 16), torch.randn(2, 300, 2, 16)
        gpu = {name: x.as_subclass(OnRocm) for name, x in (("q", q), ("k", k), ("v", v))}
        out, lse = attention(**gpu, causal="bottom-right", return_lse=True)
        sizes = [self.check_request(gpu)]
        want, want_lse = plain(q.double(), k.double(), v.double(), causal=True)
        self.assertLessEqual(float((out.as_subclass(torch.Tensor) - want).norm() / want.norm()), 4e-6)
        self.assertLessEqual(float((lse.as_subclass(torch.Tensor) - want_lse).abs().max()), 1e-5)

        given = {**dict.fromkeys((*_tensors.OPERANDS, *_tensors.SETTINGS)), **gpu, "causal": "bottom-right"}
        given.update({name: 0 for name, kind in _tensors.SETTINGS.items() if kind in ("SymInt", "float", "int")}, mask_bits=False,
                     deterministic=False,
                     list_rows=1, list_keys=1)
        dout = torch.randn(out.shape)
        wanted = [name in gpu for name in _operators._GRADIENTS]
        dq, dk, dv = _operators._backward(dout.as_subclass(OnRocm), None, out, lse, wanted, *given.values())[:3]
        sizes.append(self.check_request({**gpu, "dq": dq, "dk": dk, "dv": dv}))
        self.assertGreater(max(sizes), 0)
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        (plain(*exact, causal=True)[0] * dout.double()).sum().backward()
        for ours, theirs in zip((dq, dk, dv), exact):
            self.assertLessEqual(float((ours.as_subclass(torch.Tensor) - theirs.grad).norm() / theirs.grad.norm()), 4e-6)


if __name__ == "__main__":
    unittest.main()
