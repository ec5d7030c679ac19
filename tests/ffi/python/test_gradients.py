"""Gradients by PyTorch and JAX of all operands that have one, against central differences of the float64 reference. What has none is
refused where one is asked for: no call here may give 0 or None instead. Skipped where neither is installed."""

import unittest

import flashattn
import numpy as np

import reference
import test_jax
from support import Case, random

try:
    import torch
except ImportError:
    torch = None
else:
    import flashattn.torch
if test_jax.missing() is None:
    import jax
    import jax.numpy as jnp

    import flashattn.jax

STEP = 1e-4
HEADS, ROWS, KEYS = 4, 6, 9
OPERANDS = ("q", "k", "v", "bias", "sinks", "bias_scale", "alibi_slopes")
PACKED = {"cu_seqlens_q": np.array([0, 4, 4, 10]), "cu_seqlens_k": np.array([0, 9, 12, 17]), "max_seqlen_q": 6, "max_seqlen_k": 9}


def cases(rng):
    """Of each the options that are no operands, and those that are."""
    draw = rng.standard_normal
    slopes, factors = draw(HEADS), np.array([0.5, -1.0, 0.0, 2.0])
    removing = draw((ROWS, KEYS))
    removing[rng.random(removing.shape) < 0.2] = -np.inf
    mask = rng.random((2, 1, ROWS, KEYS)) < 0.8
    begin = rng.integers(0, KEYS - 2, (2, 1, ROWS, 1))
    ranges = np.stack([begin, begin + rng.integers(1, 4, begin.shape)], -1)
    yield {"causal": "bottom-right"}, {"alibi_slopes": slopes}
    yield {"causal": "top-left", "window": (3, None), "softcap": 2.0, "scale": 0.3}, {"alibi_slopes": slopes}
    yield {"alignment": "bottom-right", "chunk": 4}, {"alibi_slopes": draw((2, HEADS)), "sinks": draw(HEADS)}
    yield {"mask": mask}, {"bias": draw((HEADS, 1, KEYS)), "bias_scale": factors}
    yield {"softcap": 1.5}, {"bias": removing, "bias_scale": factors, "sinks": draw(HEADS)}
    yield {"causal": "bottom-right"}, {"bias": draw((2, 1, ROWS, 1)), "bias_scale": factors}
    yield {"alignment": "top-left"}, {"bias": removing, "bias_scale": factors, "alibi_slopes": draw((2, HEADS))}
    yield {"alignment": "top-left", "mask": mask}, {"bias": draw((1, HEADS, ROWS, 1)), "alibi_slopes": slopes}
    yield {"alignment": "bottom-right", "key_ranges": ranges}, {"bias": draw(()), "bias_scale": factors, "alibi_slopes": slopes}
    lists = {"key_list": np.zeros((2, 1, 1, 1), int), "full_list": np.full((2, 1, 1, 1), -1), "list_rows": 16, "list_keys": 16}
    yield {"causal": "bottom-right", **lists}, {"alibi_slopes": slopes}
    yield {"bias_period": (0, 2)}, {"bias": draw((2, ROWS, KEYS)), "bias_scale": factors}
    yield {"bias_period": (1, 2), "alignment": "top-left"}, {"bias": draw((1, 2, 1, KEYS)), "bias_scale": factors, "alibi_slopes": slopes}
    yield {"dropout_p": 0.3, "dropout_seed": 5, "causal": "bottom-right"}, {"alibi_slopes": slopes}
    yield {**PACKED, "causal": "bottom-right"}, {"alibi_slopes": slopes}
    yield {**PACKED, "alignment": "bottom-right"}, {"alibi_slopes": draw((3, HEADS)), "bias": draw((6, 9)), "bias_scale": factors}
    yield {**PACKED, "alignment": "top-left", "max_seqlen_q": 8}, {"alibi_slopes": slopes, "bias": draw(9), "sinks": draw(HEADS)}


def loss(tensors, options, dout, dlse):
    exact = dict(options)
    if "dropout_p" in options:
        shape = (tensors["q"].shape[0], HEADS, tensors["q"].shape[1], tensors["k"].shape[1])
        exact["keep"] = flashattn.dropout_mask(exact["dropout_p"], shape, seed=exact.pop("dropout_seed"))
    result = reference.attention(**tensors, **exact)
    return float((result.out * dout).sum() + (np.where(np.isfinite(result.lse), result.lse, 0) * dlse).sum())


def slope(tensors, name, direction, *rest):
    moved = lambda step: loss({**tensors, name: tensors[name] + step * direction}, *rest)  # noqa: E731
    return (moved(STEP) - moved(-STEP)) / (2 * STEP)


def by_torch(tensors, options, dout, dlse):
    given = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    asked = {name: torch.from_numpy(x.astype(np.float32)).requires_grad_() for name, x in tensors.items()}
    out, lse = flashattn.torch.attention(**asked, **given, return_lse=True)
    total = (out * torch.from_numpy(dout)).sum() + (lse.nan_to_num(neginf=0) * torch.from_numpy(dlse)).sum()
    return dict(zip(asked, torch.autograd.grad(total, list(asked.values()))))


def by_jax(tensors, options, dout, dlse):
    given = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}

    def total(asked):
        out, lse = flashattn.jax.attention(**asked, **given, return_lse=True)
        return (out * dout).sum() + (jnp.where(jnp.isfinite(lse), lse, 0) * dlse).sum()

    return jax.grad(total)({name: jnp.asarray(x.astype(np.float32)) for name, x in tensors.items()})


class Gradients(Case):
    def compare(self, by, lacks=()):
        rng = np.random.default_rng(20)
        compared = dict.fromkeys(OPERANDS, 0)
        for number, (options, operands) in enumerate(cases(rng)):
            rows, keys, sums = ((10,), (17,), (HEADS, 10)) if "cu_seqlens_q" in options else ((2, ROWS), (2, KEYS), (2, HEADS, ROWS))
            tensors = {"q": rng.standard_normal((*rows, HEADS, 8)), **{name: rng.standard_normal((*keys, 2, 8)) for name in "kv"}}
            tensors = {name: np.asarray(x, np.float32).astype(np.float64) for name, x in {**tensors, **operands}.items()}
            if set(lacks) & set(options):
                continue
            dout, dlse = random(rng, (*rows, HEADS, 8)), random(rng, sums)
            found = by(tensors, options, dout, dlse)
            for name, x in tensors.items():
                got = np.asarray(found[name], np.float64)
                self.assertEqual(got.shape, x.shape)
                # Of few numbers each one's own difference; of many the one along a direction.
                units = np.eye(x.size).reshape(-1, *x.shape) if x.size <= 8 else rng.standard_normal((1, *x.shape))
                for direction in units:
                    direction = np.where(np.isfinite(x), direction, 0)  # a key that is removed stays so
                    want = slope(tensors, name, direction, options, dout, dlse)
                    limit = 3e-5 * (np.linalg.norm(got) * np.linalg.norm(direction) + 1)
                    with self.subTest(case=number, options=list(options), name=name):
                        self.assertLess(abs(float((got * direction).sum()) - want), limit)
                    compared[name] += 1
        return compared

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        compared = self.compare(by_torch)
        self.assertGreaterEqual(compared["alibi_slopes"], 11 * HEADS)
        self.assertGreaterEqual(compared["bias_scale"], 8 * HEADS)
        self.assertGreaterEqual(min(compared.values()), 8)

    @unittest.skipIf(test_jax.missing() is not None, test_jax.missing() or "")
    def test_jax(self):
        compared = self.compare(by_jax, lacks=("bias_period", "dropout_p"))
        self.assertGreaterEqual(compared["alibi_slopes"], 9 * HEADS)
        self.assertGreaterEqual(compared["bias_scale"], 6 * HEADS)
        self.assertGreaterEqual(min(compared.values()), 8)


@unittest.skipIf(torch is None, "torch is not installed")
class ByTorch(Case):
    def setUp(self):
        torch.manual_seed(4)
        self.q, self.k, self.v = (torch.randn(2, n, HEADS, 8) for n in (ROWS, KEYS, KEYS))
        self.slopes, self.factors = torch.rand(HEADS, requires_grad=True), torch.rand(HEADS, requires_grad=True)

    def loss(self, slopes, factors, q=None, **options):
        q = self.q if q is None else q
        tensors = [x.to(q.dtype) for x in (q, self.k, self.v)]
        if options.get("layout") == "bhsd":
            tensors = [x.transpose(1, 2) for x in tensors]
        terms = {"bias": torch.arange(9.0), "bias_scale": factors, "alibi_slopes": slopes}
        return flashattn.torch.attention(*tensors, causal="bottom-right", **terms, **options).float().square().sum()

    def test_other_ways_to_the_same(self):
        asked = (self.slopes, self.factors)
        want = torch.autograd.grad(self.loss(*asked), asked)
        for got, limit in (
            (torch.autograd.grad(self.loss(*asked, layout="bhsd"), asked), 1e-5),
            (torch.autograd.grad(self.loss(*asked, q=self.q.bfloat16()), asked), 3e-2),
            (torch.autograd.grad(torch.compile(self.loss, fullgraph=True, backend="aot_eager")(*asked), asked), 1e-5),
            (torch.func.grad(self.loss, (0, 1))(*(x.detach() for x in asked)), 1e-5),
            ([x[1] for x in torch.vmap(torch.func.grad(self.loss, (0, 1)))(*(torch.stack([2 * x, x]).detach() for x in asked))], 1e-5),
        ):
            for a, b in zip(got, want):
                torch.testing.assert_close(a, b, rtol=limit, atol=limit * float(b.norm()))

    def test_one_alone_has_its_gradient(self):
        both = torch.autograd.grad(self.loss(self.slopes, self.factors), (self.slopes, self.factors))
        for alone, want, terms in (
            (self.slopes, both[0], (self.slopes, self.factors.detach())),
            (self.factors, both[1], (self.slopes.detach(), self.factors)),
        ):
            out = self.loss(*terms)
            self.assertTrue(out.requires_grad)
            torch.testing.assert_close(torch.autograd.grad(out, alone)[0], want)
        sinks = torch.rand(HEADS, requires_grad=True)
        self.assertGreater(float(torch.autograd.grad(self.loss(self.slopes, self.factors, sinks=sinks), sinks)[0].norm()), 0)

    def test_what_has_no_gradient_is_refused(self):
        number = torch.tensor(0.5, requires_grad=True)
        for name in ("scale", "softcap", "dropout_p"):
            with self.subTest(name=name):
                with self.assertRaisesRegex(NotImplementedError, f"{name} requires a gradient: expected a number"):
                    flashattn.torch.attention(self.q, self.k, self.v, **{name: number})
                with torch.no_grad():
                    flashattn.torch.attention(self.q, self.k, self.v, **{name: number})
        for options in ({"scale": number}, {"alibi_slopes": self.slopes, "alignment": "top-left"}, {"sinks": [number] * HEADS}):
            with self.subTest(options=list(options)), self.assertRaisesRegex(TypeError, "requires a gradient, which flashattn.torch has"):
                flashattn.attention(self.q, self.k, self.v, **options)
        with self.assertRaisesRegex(TypeError, "requires a gradient, which flashattn.torch has"):
            flashattn.merge([self.q.clone().requires_grad_()], [self.q[..., 0].mT])


@unittest.skipIf(test_jax.missing() is not None, test_jax.missing() or "")
class ByJax(Case):
    def setUp(self):
        rng = np.random.default_rng(4)
        self.arrays = [jnp.asarray(random(rng, (2, n, HEADS, 8))) for n in (ROWS, KEYS, KEYS)]
        self.terms = [jnp.asarray(rng.random(HEADS, np.float32)) for _ in range(2)]

    def loss(self, slopes, factors, **options):
        arrays = [x.swapaxes(1, 2) if options.get("layout") == "bhsd" else x for x in self.arrays]
        terms = {"bias": jnp.arange(9.0), "bias_scale": factors, "alibi_slopes": slopes}
        return jnp.square(flashattn.jax.attention(*arrays, causal="bottom-right", **terms, **options)).sum()

    def test_other_ways_to_the_same(self):
        grad = jax.grad(self.loss, (0, 1))
        want = grad(*self.terms)
        many = [jnp.stack([x, 2 * x]) for x in self.terms]
        heads_first = jax.grad(lambda *x: self.loss(*x, layout="bhsd"), (0, 1))
        alone = [jax.grad(self.loss, n)(*self.terms) for n in (0, 1)]
        for got in (heads_first(*self.terms), jax.jit(grad)(*self.terms), alone, [x[0] for x in jax.vmap(grad)(*many)]):
            for a, b in zip(got, want):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(jnp.linalg.norm(b)))

    def test_what_has_no_gradient_is_refused(self):
        for name in ("scale", "softcap", "dropout_p"):
            for transform in (jax.grad, jax.jit):
                with self.subTest(name=name), self.assertRaisesRegex(TypeError,
                                                                     f"{name} is traced, or requires a gradient: expected a number"):
                    transform(lambda x: flashattn.jax.attention(*self.arrays, **{name: x}).sum())(0.5)  # noqa: B023
        with self.assertRaisesRegex(TypeError, "flashattn.jax takes what JAX traces"):
            jax.grad(lambda x: flashattn.attention(x, *self.arrays[1:]).sum())(self.arrays[0])


if __name__ == "__main__":
    unittest.main()
