"""flashattn.torch over caches: append_kv, rotary and attention over pages, quantised tensors and used lengths have the bits of the
functions on NumPy arrays; torch's own judgement of the operators; torch.compile; CUDA graphs. Skipped where torch is not installed; on a
GPU, too, where there is one."""

import sys
import unittest
from unittest import mock

import flashattn
import numpy as np
import test_torch

try:
    import torch
    from torch.autograd import forward_ad
except ImportError:
    torch = None
else:
    from flashattn import _cache_operators as operators
    from flashattn import _prepared_torch
    from flashattn.torch import KEYWORDS, Plan, append_kv, attention, rotary
    from torch_reference import calls

HEADS, DIM, PAGE = 2, 64, 4
BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
PAIRS = ("e2m1", "i4", "u4")


def as_numpy(x, block=None):
    """The array on the tensor's memory; of blocks as flashattn has them."""
    if isinstance(x, torch.Tensor):
        x = x.cpu()
        if x.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            return x.view(torch.uint8).numpy().view(flashattn._arrays.bare_dtype(str(x.dtype)[6:]))
        return x.numpy() if block is None else x.numpy().view(flashattn.block_dtype(block))
    return x


def on_numpy(function, **given):
    """What the function does with arrays in place of tensors, and tensors in place of what it returns."""
    blocks = {name: given.pop(f"{name}_dtype", None) for name in ("k", "v")}
    result = function(**{name: as_numpy(x, blocks.get(name)) for name, x in given.items()})
    return result if result is None else [torch.from_numpy(np.array(x)) for x in (result if isinstance(result, tuple) else (result,))]


@unittest.skipIf(torch is None, "torch is not installed")
class Caches(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.manual_seed(5)

    def randn(self, *shape, dtype=None):
        return torch.randn(*shape, dtype=dtype, device=self.device)

    def ints(self, *values):
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def room(self, *shape, block):
        """A cache of zeros, in bytes where block names no type of torch's."""
        if block in BLOCKS + PAIRS:
            each = DIM // (32 if block in BLOCKS else 2) * flashattn.block_dtype(block).itemsize
            return torch.zeros(*shape, HEADS, each, dtype=torch.uint8, device=self.device)
        return torch.zeros(*shape, HEADS, DIM, dtype=getattr(torch, block), device=self.device)

    def pages(self, block, batch=2, columns=3):
        """Keywords of a cache in pages, whose table is random."""
        count = batch * columns
        given = {name: self.room(count + 2, PAGE, block=block) for name in ("k", "v")}
        given["page_table"] = torch.randperm(count + 2, device=self.device)[:count].reshape(batch, columns).to(torch.int32)
        if block in BLOCKS + PAIRS:
            given |= {"k_dtype": block, "v_dtype": block}
        if block in (*PAIRS, "int8", "float8_e4m3fn"):
            given |= {f"{name}_descale": torch.ones(count + 2, PAGE, HEADS, device=self.device) for name in ("k", "v")}
        return given

    def layouts(self):
        """Caches of every kind, with the tokens that go there: keywords of append_kv."""
        tokens = {"k_new": self.randn(2, 3, HEADS, DIM), "v_new": self.randn(2, 3, HEADS, DIM)}
        for block in (*BLOCKS, *PAIRS, "int8", "float8_e4m3fn", "float16", "bfloat16", "float32"):
            given = self.pages(block)
            yield block, {**tokens, **given, "seqused_k": self.ints(5, 0), "dynamic_scale": "k_descale" in given}
        half = {name: x.to(torch.bfloat16) for name, x in tokens.items()}
        yield "bfloat16 tokens", {**half, **self.pages("q8_0"), "seqused_k": self.ints(0, 7)}
        angles = {"cos": self.randn(40, 8), "sin": self.randn(40, 8), "interleaved": True, "rotary_begin": 4}
        yield "rotated", {**tokens, **self.pages("float32"), "seqused_k": self.ints(5, 0), **angles}
        packed = {name: x.flatten(0, 1)[:5] for name, x in tokens.items()}
        yield "packed", {**packed, **self.pages("q4_0"), "cu_seqlens_new": torch.tensor([0, 2, 5], device=self.device), "max_seqlen_new": 3}
        dense = {name: self.room(4, 9, block="float16") for name in ("k", "v")}
        yield "by index", {**tokens, **dense, "kv_batch_idx": self.ints(3, 1), "leftpad_k": self.ints(2, 0), "seqused_new": self.ints(1, 3)}
        places = torch.tensor([[8, -1, 0], [-1, 2, 4]], device=self.device)
        yield "at positions", {**tokens, **{name: x[:2] for name, x in dense.items()}, "positions": places}
        swapped = {name: x.transpose(1, 2).contiguous() for name, x in {**tokens, **{n: x[:2] for n, x in dense.items()}}.items()}
        yield "bhsd", {**swapped, "layout": "bhsd", "seqused_k": self.ints(1, 6)}
        tail = {"k": self.room(2, 9, block="q8_0"), "v": self.room(2, 9, block="q8_0"), "k_dtype": "q8_0", "v_dtype": "q8_0"}
        longer = {"k_new": self.randn(2, 3, HEADS, DIM + 16), "k_tail": torch.zeros(2, 9, HEADS, 16, device=self.device)}
        yield "tail", {**tokens, **longer, **tail}
        yield "latent", {"k_new": tokens["k_new"], "v_new": None, "k": dense["k"][:2], "v": None, "seqused_k": self.ints(4, 4)}

    def attended(self):
        """Keywords of `attention` over each of them."""
        q = self.randn(2, 3, 4, DIM)
        for name, given in self.layouts():
            append_kv(**given)
            kept = ("k", "v", "page_table", "k_dtype", "v_dtype", "k_descale", "v_descale", "leftpad_k", "kv_batch_idx", "layout")
            made = {key: value for key, value in given.items() if key in kept}
            used = given.get("seqused_k", self.ints(0, 0)) + self.ints(2, 3)
            rows = q.transpose(1, 2).contiguous() if name == "bhsd" else q
            made |= {"q": rows, "seqused_k": used, "causal": "bottom-right"}
            if name == "tail":
                made |= {"q_tail": self.randn(2, 3, 4, 16), "k_tail": given["k_tail"]}
            if name == "latent":
                made["dim_v"] = 48
            yield name, made
        offsets = {"causal": "explicit", "causal_offset": self.ints(3, 5), "window": (4, None), "softcap": 3.0, "scale": 0.3}
        yield "masked", {**made, **offsets, "v": made["k"], "dim_v": None, "sinks": self.randn(4), "bias": self.randn(4, 1, 9)}
        given = self.pages("q4_0")
        append_kv(self.randn(2, 9, HEADS, DIM), self.randn(2, 9, HEADS, DIM), **given)
        lists = {"key_list": torch.zeros(1, 1, 1, 2, dtype=torch.int64, device=self.device), "full_list": self.ints(0, -1).expand(2, 4, 1, 2)}
        yield "listed", {"q": q, **given, "seqused_k": self.ints(9, 8), **lists, "list_rows": 16, "list_keys": 16}
        bytes_apart = {name: torch.cat([given[name], given[name][..., :1]], -1)[..., :-1] for name in ("k", "v")}
        yield "blocks apart", {"q": q, **given, **bytes_apart, "seqused_k": self.ints(9, 8)}
        yield "8 bits", {"q": q.to(torch.float8_e4m3fn), **{n: self.randn(2, 7, 2, DIM).to(torch.float8_e4m3fn) for n in ("k", "v")}}
        half = {"q": q.to(torch.bfloat16), "v": self.randn(2, 7, 2, DIM)}
        yield "bfloat16", {**half, "k": (30 * self.randn(2, 7, 2, DIM)).to(torch.int8), "k_descale": torch.tensor(0.02, device=self.device)}

    def test_append_as_on_numpy(self):
        for name, given in self.layouts():
            with self.subTest(layout=name), mock.patch.dict(sys.modules, {"ml_dtypes": None}):
                arrays = {
                    key: as_numpy(x.cpu().clone() if isinstance(x, torch.Tensor) else x, given.get(f"{key}_dtype"))
                    for key, x in given.items()
                    if key not in ("k_dtype", "v_dtype")
                }
                with calls() as counted:
                    self.assertIsNone(append_kv(**given))
                self.assertEqual(counted["fa_append_kv"], 1)
                flashattn.append_kv(**arrays, backend="cpu")
                for key in ("k", "v", "k_tail", "k_descale", "v_descale"):
                    if given.get(key) is not None:
                        got, want = as_numpy(given[key]).tobytes(), arrays[key].tobytes()
                        self.assertNotEqual(got, bytes(len(got)), key)
                        if self.device == "cpu" or name in BLOCKS:
                            self.assertEqual(got, want, key)
                        else:  # whose last digits are its own
                            same = np.frombuffer(got, np.uint8) == np.frombuffer(want, np.uint8)
                            self.assertGreater(same.mean(), 0.9, key)

    def test_attention_as_on_numpy(self):
        for name, given in self.attended():
            if name in ("bfloat16", "8 bits"):  # whose results NumPy has no name for
                continue
            with self.subTest(layout=name):
                if self.device != "cpu" and name == "tail":
                    self.skipTest("the CUDA backend may lack it")
                with calls() as counted:
                    out, lse = attention(**given, return_lse=True)
                self.assertEqual(counted["fa_forward_ex"], 1)
                want = on_numpy(flashattn.attention, **given, return_lse=True, backend="cpu")
                self.assert_same((out.cpu(), lse.cpu()), want)
                self.assert_same([attention(**given).cpu()], want[:1])

    def assert_same(self, got, want):
        for one, other in zip(got, want):
            self.assertEqual((one.shape, one.dtype), (other.shape, other.dtype))
            if self.device == "cpu":
                self.assertTrue(torch.equal(one, other))
            else:
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)

    def test_a_plan(self):
        for name, given in list(self.attended())[::3]:
            if name == "blocks apart":
                continue
            with self.subTest(layout=name):
                plan, want = Plan(**given), attention(**given)
                tensors = {key: x for key, x in given.items() if isinstance(x, torch.Tensor)}
                self.assertTrue(torch.equal(plan(tensors.pop("q"), tensors.pop("k"), tensors.pop("v"), **tensors), want))

    def test_types_of_one_call(self):
        """q in bfloat16 over k in int8 and v in float32: as in float32, but for the rounding of q, P and out."""
        given = dict(self.attended())["bfloat16"]
        want = attention(given["q"].float(), 0.02 * given["k"].float(), given["v"])
        got = attention(**given)
        self.assertEqual(got.dtype, torch.bfloat16)
        torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.02)
        given = dict(self.attended())["8 bits"]
        want = attention(**{name: x.float() for name, x in given.items()})
        got = attention(**given)
        self.assertEqual(got.dtype, torch.bfloat16)
        torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.1)
        pairs = {name: torch.randint(0, 256, (2, 7, 2, DIM // 2), dtype=torch.uint8, device=self.device) for name in ("k", "v")}
        q = self.randn(2, 3, 4, DIM)
        want = attention(q, **pairs, k_dtype="e2m1", v_dtype="e2m1")
        self.assertTrue(torch.equal(attention(q, **{name: x.view(torch.float4_e2m1fn_x2) for name, x in pairs.items()}), want))

    def test_rotary_as_on_numpy(self):
        cos, sin, x = self.randn(40, 8), self.randn(40, 8), self.randn(2, 5, 3, DIM)
        for given in (
            {"x": x},
            {"x": x.transpose(1, 2), "layout": "bhsd", "position_offset": self.ints(3, 30)},
            {"x": x, "positions": torch.randint(0, 40, (2, 5), device=self.device), "interleaved": True, "rotary_begin": 6},
            {"x": x[0], "cu_seqlens_q": self.ints(0, 3, 5), "max_seqlen_q": 3, "seqused_q": self.ints(2, 2)},
            {"x": x.to(torch.float16)[:, ::2]},
        ):
            with self.subTest(given=list(given)):
                got = rotary(cos=cos, sin=sin, **given)
                self.assert_same([got.cpu()], on_numpy(flashattn.rotary, cos=cos, sin=sin, **given, backend="cpu"))

    def test_cases_of_the_operators(self):
        """What torch makes sure of: schemas, what is changed, fake tensors, functional programs with dynamic shapes."""
        for name, given in list(self.layouts())[:: 2 if self.device == "cpu" else 5]:
            if name == "float8_e4m3fn":  # which torch's own comparison lacks
                continue
            with self.subTest(layout=name):
                defaults = _prepared_torch.defaults_of(append_kv)
                torch.library.opcheck(operators.append, operators.append_arguments({**defaults, **given}))
        for name, given in list(self.attended())[:: 2 if self.device == "cpu" else 5]:
            if name in ("float8_e4m3fn", "8 bits"):
                continue
            with self.subTest(layout=name):
                values = operators.attend_arguments({**KEYWORDS.defaults, "backend": None, **given})
                torch.library.opcheck(operators.attend, values)
                meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in values]
                for real, fake in zip(operators.attend(*values), operators.attend(*meta)):
                    self.assertEqual((real.shape, real.stride(), real.dtype), (fake.shape, fake.stride(), fake.dtype))
        given = {"x": self.randn(2, 5, 3, DIM), "cos": self.randn(9, 4), "sin": self.randn(9, 4)}
        torch.library.opcheck(operators.rotary, operators.rotary_arguments({**_prepared_torch.defaults_of(rotary), **given}))

    def loop(self, step, block, tokens=7):
        """A decoding loop's results, and its cache."""
        torch.manual_seed(6)
        given, used, found = self.pages(block), self.ints(0, 0), []
        for _ in range(tokens):
            q, k, v = self.randn(2, 1, 4, DIM), self.randn(2, 1, HEADS, DIM), self.randn(2, 1, HEADS, DIM)
            found.append(step(q, k, v, given, used).clone())
        return found, given

    @staticmethod
    def step(q, k, v, given, used):
        factors = {"dynamic_scale": True} if "k_descale" in given else {}
        append_kv(k, v, **given, seqused_k=used, **factors)
        used += 1
        return attention(q, **given, seqused_k=used, causal="bottom-right")

    def test_compiled_loop(self):
        for block in ("q8_0", "i4", "float16"):
            for dynamic in (False, True):
                torch.compiler.reset()
                step = torch.compile(self.step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
                with self.subTest(block=block, dynamic=dynamic):
                    want, cache = self.loop(self.step, block)
                    with calls() as counted:
                        got, other = self.loop(step, block)
                    self.assertEqual((counted["fa_append_kv"], counted["fa_forward_ex"]), (7, 7))
                    self.assertTrue(torch.equal(cache["k"], other["k"]))
                    self.assertTrue(all(map(torch.equal, got, want)))

    def test_inductor(self):
        torch.compiler.reset()
        step = torch.compile(self.step, fullgraph=True)
        want, _ = self.loop(self.step, "q8_0", 2)
        got, _ = self.loop(step, "q8_0", 2)
        for one, other in zip(got, want):
            torch.testing.assert_close(one, other)

    def test_exported(self):
        class Step(torch.nn.Module):
            def forward(self, q, k, v, table, used):
                cache = {"k_dtype": "q8_0", "v_dtype": "q8_0", "page_table": table, "seqused_k": used}
                return attention(q, k, v, **cache)

        given = self.pages("q8_0")
        values = (self.randn(2, 1, 4, DIM), given["k"], given["v"], given["page_table"], self.ints(3, 9))
        program = torch.export.export(Step(), values).module()
        self.assertTrue(torch.equal(program(*values), Step()(*values)))

    def test_gradients_are_refused(self):
        given = self.pages("float32")
        new = {"k_new": self.randn(2, 1, HEADS, DIM), "v_new": self.randn(2, 1, HEADS, DIM)}
        q = self.randn(2, 1, 4, DIM)
        for name in ("k_new", "v_new"):
            sentence = f"{name} requires a gradient, and flashattn.append_kv"
            with self.subTest(name=name), self.assertRaisesRegex(NotImplementedError, sentence):
                append_kv(**{**new, name: new[name].clone().requires_grad_()}, **given)
        with self.assertRaisesRegex(NotImplementedError, "q requires a gradient, and flashattn.attend"):
            attention(q.clone().requires_grad_(), **given)
        with self.assertRaisesRegex(NotImplementedError, "x requires a gradient, and flashattn.rotary"):
            rotary(q.clone().requires_grad_(), torch.ones(3, 2, device=self.device), torch.ones(3, 2, device=self.device))
        with torch.no_grad():
            append_kv(**{name: x.clone().requires_grad_() for name, x in new.items()}, **given)
        with forward_ad.dual_level(), self.assertRaisesRegex(NotImplementedError, "q requires a gradient"):
            attention(forward_ad.make_dual(q, q), **given)
        with self.assertRaisesRegex(NotImplementedError, "q requires a gradient"):
            torch.func.grad(lambda x: attention(x, **given).sum())(q)
        with self.assertRaisesRegex(NotImplementedError, "dropout_p is 0.5: expected 0"):
            attention(q, **given, dropout_p=0.5)

    def test_vmap_makes_a_call_of_each_item(self):
        given = {**self.pages("q8_0"), "seqused_k": self.ints(5, 12)}
        q = self.randn(3, 2, 1, 4, DIM)
        got = torch.vmap(lambda x: attention(x, **given))(q)
        self.assertTrue(torch.equal(got, torch.stack([attention(x, **given) for x in q])))
        angles = self.randn(9, 4), self.randn(9, 4)
        self.assertTrue(torch.equal(torch.vmap(lambda x: rotary(x, *angles))(q), torch.stack([rotary(x, *angles) for x in q])))
        with self.assertRaisesRegex(RuntimeError, "Batching rule not implemented for flashattn::append_kv"):
            torch.vmap(lambda x: append_kv(x, x, **given))(self.randn(3, 2, 1, HEADS, DIM))

    def test_autograd_sees_what_is_changed(self):
        given = self.pages("float32")
        weights = self.randn(DIM).requires_grad_()
        out = (given["k"] * weights).sum()
        for call in (append_kv, append_kv.__wrapped__):
            before = given["k"]._version
            call(self.randn(2, 1, HEADS, DIM), self.randn(2, 1, HEADS, DIM), **given)
            self.assertEqual(given["k"]._version, before + 1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            out.backward()

    def test_what_does_not_fit_is_named(self):
        given = self.pages("q8_0")
        new = {"k_new": self.randn(2, 1, HEADS, DIM), "v_new": self.randn(2, 1, HEADS, DIM)}
        q = self.randn(2, 1, 4, DIM)
        for error, sentence, options in (
            (TypeError, "k has dtype torch.float32: expected uint8, the bytes of k_dtype 'q8_0'", {"k": given["k"].float()}),
            (ValueError, "k has 67 bytes in its last axis: expected a multiple of 34, as of 'q8_0'", {"k": given["k"][..., 1:]}),
            (ValueError, "name is 'q3_0': expected 'q4_0' or", {"k_dtype": "q3_0"}),
            (TypeError, "page_table has dtype torch.float32: expected integers", {"page_table": given["page_table"].float()}),
            (TypeError, "k has dtype torch.uint8: expected a k_dtype", {"k_dtype": None}),
        ):
            with self.subTest(sentence=sentence):
                with self.assertRaisesRegex(error, sentence):
                    append_kv(**new, **{**given, **options})
                with self.assertRaisesRegex(error, sentence):
                    attention(q, **{**given, **options})
        with self.assertRaisesRegex(TypeError, "append_kv.. got an unexpected keyword argument 'cache_seqlens': expected seqused_k"):
            append_kv(**new, **given, cache_seqlens=None)
        with self.assertRaisesRegex(ValueError, "written in place: byte strides"):
            append_kv(**new, **{**given, "k": torch.zeros(8, PAGE, HEADS, 136, dtype=torch.uint8, device=self.device)[..., ::2]})
        apart = torch.zeros(8, PAGE, HEADS, 69, dtype=torch.uint8, device=self.device)[..., :68]
        with self.assertRaisesRegex(ValueError, r"k has strides \(552, 138, 69, 1\) of bytes: expected multiples of 34"):
            append_kv(**new, **{**given, "k": apart})
        with self.assertRaisesRegex(TypeError, "bias has dtype torch.float64: expected float32"):
            attention(q, **given, bias=self.randn(2, 4, 1, 12).double())
        if self.device == "cpu":
            for wrong in (self.ints(*[[0, 1, 8]] * 2), self.ints(*[[0, 1, -1]] * 2)):
                for call in (lambda **o: append_kv(**new, **o), lambda **o: attention(q, **o)):
                    for _ in range(2):
                        with self.assertRaisesRegex(flashattn.InvalidArgumentError, "page_table"):
                            call(**{**given, "page_table": wrong, "seqused_k": self.ints(9, 9)})
        with self.assertRaisesRegex(ValueError, "k is on meta: expected"):
            attention(q, **{**given, "k": given["k"].to("meta")})


class PreparedCalls(unittest.TestCase):
    @unittest.skipIf(torch is None, "torch is not installed")
    def test_numbers_in_place_of_tensors(self):
        """What was made of a number, for a call that is prepared, lives as long as that."""
        torch.manual_seed(1)
        q, k, v = torch.randn(2, 3, 4, DIM), torch.randint(-99, 99, (2, 9, 2, DIM), dtype=torch.int8), torch.randn(2, 9, 2, DIM)
        given = {"causal": "explicit", "causal_offset": 4, "k_descale": 0.02}
        tensors = {"causal": "explicit", "causal_offset": torch.tensor([4, 4]), "k_descale": torch.full((2, 9, 2), 0.02)}
        want = attention(q, k, v, **tensors)
        new, cache = torch.randn(2, 2, 1, 2, DIM), torch.zeros(2, 9, 2, DIM, dtype=torch.int8)
        for _ in range(20):
            self.assertTrue(torch.equal(attention(q, k, v, **given), want))
            append_kv(*new, cache, cache.clone(), k_descale=0.02, v_descale=0.1)
            self.assertTrue(torch.equal(cache[:, :1], (new[0] / 0.02).round().clamp(-128, 127).to(torch.int8)))
            garbage = [torch.randint(-(2**31), 2**31 - 1, (n,), dtype=torch.int32) for n in (1, 2, 4, 8, 16)]
        self.assertEqual(len(garbage), 5)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_later_calls_are_prepared(self):
        case = Caches()
        case.setUp()
        fresh = mock.patch.object(_prepared_torch, "CACHE", _prepared_torch.Cache())
        with fresh:
            for name, given in case.layouts():
                count = len(_prepared_torch.CACHE._made)
                append_kv(**given)
                self.assertEqual(len(_prepared_torch.CACHE._made), count + 1, name)
            with mock.patch.object(_prepared_torch, "described_append", None), mock.patch.object(operators, "append", None):
                append_kv(**given)


@unittest.skipIf(test_torch.no_gpu() is not None, test_torch.no_gpu() or "")
class CachesOnGpu(Caches):
    device = "cuda:0"

    def test_graph(self):
        """A step, captured once: what grows are the lengths, in the GPU's memory."""
        for block in ("q8_0", "float16"):
            want, _ = self.loop(self.step, block)
            torch.manual_seed(6)
            given, used = self.pages(block), self.ints(0, 0)
            static = [torch.zeros(2, 1, heads, DIM, device=self.device) for heads in (4, HEADS, HEADS)]
            self.step(*static, given, used)
            used.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.step(*static, given, used)
            for expected in want:
                for x in static:
                    x.copy_(self.randn(*x.shape))
                graph.replay()
                torch.testing.assert_close(out, expected)


if __name__ == "__main__":
    unittest.main()
