"""`flashattn run` against attention in float64."""

import unittest

import numpy as np

import reference
from support import LIMITS
from tool import ToolCase, bf16_bits, from_bf16

ALIGNMENTS = ("top-left", "bottom-right")


def alibi_slopes(heads):
    """The usual ones: a geometric series for a power of two, else that of the power below and every second of the next."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return np.array(slopes[:heads])


class Problem:
    """A random call: arrays, options of the tool, keywords of the reference."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.packed = rng.random() < 0.3
        self.heads_k = int(rng.integers(1, 4))
        self.heads = self.heads_k * int(rng.integers(1, 4))
        self.dim, self.dim_v = (int(n) for n in rng.integers(1, 70, 2))
        self.options, self.keywords, self.files = [], {}, {}
        self.type = str(rng.choice(["float32", "float16", "bfloat16"]))
        if self.packed:
            self.make_packed()
        else:
            self.make_padded()
        self.add_positions()
        self.add_scores()

    def tensor(self, *shape):
        """What the file holds, and the numbers that these are."""
        x = self.rng.standard_normal(shape).astype(np.float32)
        if self.type == "bfloat16":
            return bf16_bits(x), from_bf16(bf16_bits(x))
        x = x.astype(self.type)
        return x, x.astype(np.float32)

    def make_packed(self):
        batch = int(self.rng.integers(1, 4))
        cu_q, cu_k = (np.concatenate([[0], np.cumsum(self.rng.integers(0, 40, batch))]).astype(np.int32) for _ in "qk")
        self.q, self.k, self.v = (self.tensor(int(cu[-1]), heads, dim) for cu, heads, dim in
                                  ((cu_q, self.heads, self.dim), (cu_k, self.heads_k, self.dim), (cu_k, self.heads_k, self.dim_v)))
        self.pairs = (batch, self.heads, int(np.diff(cu_q).max()), int(np.diff(cu_k).max()))
        self.keywords |= {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        self.files["cu"] = cu_k
        self.options += ["--cu-seqlens-q", ",".join(map(str, cu_q)), "--cu-seqlens-k", "cu.npy"]

    def make_padded(self):
        batch, rows, keys = (int(n) for n in self.rng.integers(1, (4, 50, 50)))
        self.q, self.k, self.v = (self.tensor(batch, n, heads, dim) for n, heads, dim in
                                  ((rows, self.heads, self.dim), (keys, self.heads_k, self.dim), (keys, self.heads_k, self.dim_v)))
        self.pairs = (batch, self.heads, rows, keys)

    def add_positions(self):
        rng, alignment = self.rng, str(self.rng.choice(ALIGNMENTS))
        kind = rng.integers(0, 4)
        if kind == 1 or kind == 3:
            self.keywords["causal"] = alignment
            self.options += ["--causal", alignment]
        if kind >= 2:
            window = tuple(int(n) for n in rng.integers(-1, 12, 2))
            self.keywords["window"] = window
            self.options += ["--window", f"{window[0]},{window[1]}"]
        alibi = rng.random() < 0.3
        if alibi:
            self.keywords["alibi_slopes"] = alibi_slopes(self.heads)
            self.options.append("--alibi")
        if kind == 2 or (alibi and kind == 0):
            self.keywords["alignment"] = alignment
            self.options += ["--align", alignment]

    def operand(self, name, values):
        """An array over some axes of (batch, heads, rows, keys), the others 1 or left out."""
        shape = [n if self.rng.random() < 0.6 else 1 for n in self.pairs]
        shape = shape[int(self.rng.integers(0, 3)):]
        array = values(shape)
        self.files[name] = array
        self.keywords[name] = array
        self.options += [f"--{name}", f"{name}.npy"]

    def add_scores(self):
        rng = self.rng
        if rng.random() < 0.3:
            self.operand("bias", lambda n: np.where(rng.random(n) < 0.1, -np.inf, rng.standard_normal(n)).astype(rng.choice(["f4", "f2"])))
            if rng.random() < 0.5:
                self.files["bias-scale"] = self.keywords["bias_scale"] = rng.standard_normal(self.heads).astype(np.float32)
                self.options += ["--bias-scale", "bias-scale.npy"]
        if rng.random() < 0.3:
            self.operand("mask", lambda n: (rng.random(n) < 0.8).astype(rng.choice(["?", "u1"])))
        if rng.random() < 0.3:
            self.files["sinks"] = self.keywords["sinks"] = rng.standard_normal(self.heads).astype(np.float32)
            self.options += ["--sinks", "sinks.npy"]
        if rng.random() < 0.3:
            self.keywords["scale"] = float(np.float32(rng.uniform(-0.5, 0.5)))
            self.options += ["--scale", repr(self.keywords["scale"])]
        if rng.random() < 0.3:
            self.keywords["softcap"] = 1.5
            self.options += ["--softcap", "1.5"]


class Run(ToolCase):
    def check(self, problem):
        bhsd = not problem.packed and problem.rng.random() < 0.4
        order = (lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3))) if bhsd else (lambda x: x)
        options = problem.options + (["--layout", "bhsd"] if bhsd else [])
        options += ["--dtype", "bf16"] if problem.type == "bfloat16" else []
        self.save(**{name: order(x[0]) for name, x in zip("qkv", (problem.q, problem.k, problem.v))}, **problem.files)
        o, lse = self.attention(*options)
        want = reference.attention(problem.q[1], problem.k[1], problem.v[1], **problem.keywords)
        self.assertEqual(o.dtype, {"bfloat16": np.uint16}.get(problem.type, problem.type))
        o = from_bf16(o) if problem.type == "bfloat16" else o
        self.assert_out(order(o), want.out, LIMITS[problem.type])
        self.assert_lse(lse, want.lse, 2e-5)

    def test_random(self):
        for seed in range(80):
            with self.subTest(seed=seed):
                self.check(Problem(seed))

    def test_bottom_right_keeps_rows_on_the_last_keys(self):
        self.save(q=np.zeros((1, 2, 1, 4), "f4"), k=np.zeros((1, 5, 1, 4), "f4"), v=np.zeros((1, 5, 1, 4), "f4"))
        lse = self.attention("--causal", "bottom-right")[1]
        np.testing.assert_array_equal(np.round(np.exp(lse)).ravel(), [4, 5])
        lse = self.attention("--causal", "top-left")[1]
        np.testing.assert_array_equal(np.round(np.exp(lse)).ravel(), [1, 2])

    def test_out_dtype_algorithm_splits_and_threads_leave_the_result(self):
        problem = Problem(4)
        problem.type = "float32"
        problem.make_padded()
        self.save(q=problem.q[0], k=problem.k[0], v=problem.v[0])
        want = reference.attention(problem.q[1], problem.k[1], problem.v[1])
        for options in (["--algorithm", "standard"], ["--algorithm", "flash1"], ["--algorithm", "flash"],
                        ["--threads", "1", "--backend", "cpu"], ["--num-splits", "3"], ["--backend", "cpu"], ["--backend", "auto"]):
            o, lse = self.attention(*options)
            self.assert_out(o, want.out, LIMITS["float32"])
            self.assert_lse(lse, want.lse)
        self.assertEqual(self.attention("--out-dtype", "f16")[0].dtype, np.float16)
        self.assert_out(from_bf16(self.attention("--out-dtype", "bf16")[0]), want.out, LIMITS["bfloat16"])

    def test_kv_type_quantises_k_and_v(self):
        """Values that a block's integers hold exactly leave the result; other values move it."""
        rng = np.random.default_rng(5)
        for kind, least, most in (("q8_0", -127, 127), ("q5_1", 0, 31), ("q5_0", -16, 15), ("q4_1", 0, 15), ("q4_0", -8, 7)):
            for shape, options in (((2, 7, 2, 64), []), ((2, 2, 7, 64), ["--layout", "bhsd"]), ((14, 2, 64), ["--cu-seqlens-k", "0,5,14"])):
                with self.subTest(kind=kind, options=options):
                    k, v = (rng.integers(least, most + 1, shape).astype(np.float32) / 16 for _ in "kv")
                    for x in (k, v):  # both ends in each block, so that its factor is 1 / 16
                        x[..., ::32], x[..., 1::32] = least / 16, most / 16
                    q = rng.standard_normal((2, 2, 3, 64) if "bhsd" in options else (2, 3, 2, 64)).astype(np.float32)
                    self.save(q=q, k=k, v=v)
                    want, quantised = self.attention(*options), self.attention(*options, "--kv-type", kind)
                    self.assert_out(quantised[0], want[0], LIMITS["float32"])
                    self.assert_lse(quantised[1], want[1])
                    self.save(k=k + 0.013 * rng.standard_normal(shape).astype(np.float32))
                    self.assertFalse(np.array_equal(self.attention(*options)[1], self.attention(*options, "--kv-type", kind)[1]))
        refused = self.run_tool("run", "--q", "q.npy", "--k", "q.npy", "--v", "q.npy", "--out", "o.npy", "--kv-type", "q6_K")
        self.assertNotEqual(refused.returncode, 0)

    def test_kv_types_with_factors(self):
        """The same of types whose factors lie beside them: numbers that they hold exactly, with the largest one in each block."""
        rng = np.random.default_rng(6)
        e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        numbers = {
            "i8": np.arange(-127, 128), "e4m3": np.arange(-7, 8), "e5m2": np.arange(-7, 8), "mxfp8": np.arange(-7, 8),
            "mxfp4": np.concatenate([-e2m1, e2m1]), "nvfp4": np.concatenate([-e2m1, e2m1]), "i4": np.arange(-7, 8), "u4": np.arange(16),
        }
        for kind, values in numbers.items():
            for shape, options in (((2, 7, 2, 64), []), ((14, 2, 64), ["--cu-seqlens-k", "0,5,14"])):
                with self.subTest(kind=kind, options=options):
                    k, v = (rng.choice(values, shape).astype(np.float32) / 16 for _ in "kv")
                    for x in (k, v):
                        x[..., ::16], x[..., 1::16] = values.max() / 16, values.min() / 16
                    self.save(q=rng.standard_normal((2, 3, 2, 64)).astype(np.float32), k=k, v=v)
                    want, quantised = self.attention(*options), self.attention(*options, "--kv-type", kind)
                    self.assert_out(quantised[0], want[0], LIMITS["float32"])
                    self.assert_lse(quantised[1], want[1])
                    self.save(k=k + 0.0137 * rng.standard_normal(shape).astype(np.float32))
                    self.assertFalse(np.array_equal(self.attention(*options)[1], self.attention(*options, "--kv-type", kind)[1]))

    def test_v_may_have_another_type(self):
        rng = np.random.default_rng(7)
        self.save(**{name: rng.standard_normal((1, 9, 2, 32)).astype(np.float32) for name in "qkv"})
        for kind, other in (("q8_0", "q4_0"), ("i8", "nvfp4"), ("q8_0", "i8"), ("u4", "q5_1"), ("mxfp8", "q4_1")):
            both, of_v = self.attention("--kv-type", kind), self.attention("--kv-type", kind, "--v-type", other)
            np.testing.assert_array_equal(both[1], of_v[1])  # LSE is k's
            self.assertFalse(np.array_equal(both[0], of_v[0]))

    def test_explain_names_the_kernel(self):
        self.save(q=np.zeros((1, 2, 1, 4), "f4"), k=np.zeros((1, 5, 1, 4), "f4"), v=np.zeros((1, 5, 1, 4), "f4"))
        text = self.output_of("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--explain", "--backend", "cpu")
        self.assertRegex(text, r"\Acpu.*flash.*\n\Z")

    def test_empty_tensors(self):
        for batch, rows, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
            self.save(q=np.ones((batch, rows, 2, 8), "f4"), k=np.ones((batch, keys, 1, 8), "f4"), v=np.ones((batch, keys, 1, 5), "f4"),
                      bias=np.zeros((rows, keys), "f4"))
            o, lse = self.attention("--bias", "bias.npy")
            np.testing.assert_array_equal(o, np.zeros((batch, rows, 2, 5), "f4"))
            np.testing.assert_array_equal(lse, np.full((batch, 2, rows), -np.inf, "f4"))

    def test_nan_is_data(self):
        q = np.ones((1, 3, 1, 4), "f4")
        q[0, 1] = np.nan
        self.save(q=q, k=np.ones((1, 5, 1, 4), "f4"), v=np.ones((1, 5, 1, 4), "f4"))
        o, lse = self.attention()
        np.testing.assert_array_equal(np.isnan(o[0, :, 0, 0]), [False, True, False])
        np.testing.assert_array_equal(np.isnan(lse[0, 0]), [False, True, False])

    def test_the_output_may_replace_an_input(self):
        self.save(q=np.zeros((1, 2, 1, 4), "f4"), k=np.ones((1, 5, 1, 4), "f4"), v=np.full((1, 5, 1, 4), 7, "f4"))
        self.output_of("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "v.npy")
        np.testing.assert_array_equal(self.load("v"), np.full((1, 2, 1, 4), 7, "f4"))


if __name__ == "__main__":
    unittest.main()
