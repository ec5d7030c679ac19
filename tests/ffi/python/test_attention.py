"""attention() on dense float32 against the float64 reference: every option, alone and together, on random shapes."""

import unittest

import flashattn
import numpy as np

import reference
from support import LIMITS, Case, random

LIMIT = LIMITS["float32"]
ALIGNMENTS = ("top-left", "bottom-right", "explicit")


def random_problem(rng, longest=90):
    """q, k, v and keywords; the shapes differ in everything that may differ."""
    batch, heads_kv, group = (int(n) for n in rng.integers(1, 4, 3))
    rows, keys = (int(n) for n in rng.integers(1, longest, 2))
    dim, dim_v = (int(n) for n in rng.integers(1, 70, 2))
    heads = heads_kv * group
    tensors = (
        random(rng, (batch, rows, heads, dim)),
        random(rng, (batch, keys, heads_kv, dim)),
        random(rng, (batch, keys, heads_kv, dim_v)),
    )
    options = {}

    def one_in(n):
        return rng.integers(n) == 0

    alignment = ALIGNMENTS[rng.integers(3)]
    placed = False
    if one_in(2):
        options["causal"], placed = alignment, True
    if one_in(3):
        left, right = (int(n) for n in rng.integers(-1, 40, 2))
        options["window"], placed = (left, None if right < 0 else right), True
    if one_in(5):
        options["chunk"], placed = int(rng.integers(1, 50)), True
    if one_in(4):
        options["alibi_slopes"], placed = rng.random((batch, heads) if one_in(2) else heads).astype(np.float32), True
    if placed:
        options.setdefault("causal", None)
        options["alignment"] = alignment
        if alignment == "explicit":
            options["causal_offset"] = rng.integers(-20, 60, batch)
    if one_in(3):
        options["scale"] = float(rng.uniform(-0.5, 0.5))
    if one_in(3):
        options["softcap"] = float(rng.uniform(0.5, 5))
    def pairs(name):
        period = tuple(int(rng.integers(n + 2)) for n in (batch, heads)) if one_in(3) else (0, 0)
        if any(period):
            options[f"{name}_period"] = period
        there = (*(min(n, p or n) for n, p in zip((batch, heads), period)), rows, keys)
        return tuple(n if one_in(2) else 1 for n in there)

    if one_in(3):
        options["bias"] = random(rng, pairs("bias"))
        if one_in(2):
            options["bias_scale"] = random(rng, heads)
    if one_in(3):
        *outer, columns = pairs("mask")
        if one_in(3):
            columns = options["mask_keys"] = int(rng.integers(1, keys + 5))
        options["mask"] = rng.random((*outer, columns)) < 0.8
        if one_in(3):
            if columns == 1:  # broadcast
                options["mask"] = np.repeat(options["mask"], options.get("mask_keys", keys), -1)
            options["mask"], options["mask_bits"] = np.packbits(options["mask"], -1, "little"), True
    if one_in(3):
        outer = tuple(n if one_in(2) else 1 for n in (batch, heads, rows))
        ends = np.sort(rng.integers(-2, keys + 3, (*outer, 2 * int(rng.integers(1, 4)))), axis=-1)
        options["key_ranges"] = ends.reshape(*outer, -1, 2)
    if one_in(4):
        block_rows, block_keys = ((1, 16)[int(one_in(2))], (1, 16, 32)[rng.integers(3)])
        blocks, most = -(-keys // block_keys), int(rng.integers(1, 6))
        shape = (batch, heads if one_in(2) else 1, -(-rows // block_rows), most)
        options["list_rows"], options["list_keys"] = block_rows, block_keys
        for name in ("key_list", "full_list"):
            options[name] = rng.integers(-1, blocks, shape).astype(np.int32)
            if one_in(2):
                options[f"{name}_count"] = rng.integers(0, most + 1, shape[:-1]).astype(np.int32)
    if one_in(4):
        options["sinks"] = random(rng, heads)
    if one_in(4):
        options["dropout_p"] = 0.3
        options["dropout_seed"], options["dropout_offset"] = int(rng.integers(1 << 62)), int(rng.integers(1 << 40))
    return *tensors, options


class Random(Case):
    def test_agrees_with_the_reference(self):
        for seed in range(160):
            with self.subTest(seed=seed):
                rng = np.random.default_rng(seed)
                q, k, v, options = random_problem(rng)
                schedule = {}
                if seed % 4 == 0:
                    schedule["num_splits"] = int(rng.integers(1, 5))
                elif seed % 4 == 1:
                    schedule["split_size"] = int(rng.integers(1, 40))
                elif seed % 4 == 2 and "dropout_p" not in options and "key_list" not in options:
                    schedule["algorithm"] = ("standard", "flash1")[seed // 4 % 2]
                self.compare(q, k, v, options, schedule)

    def compare(self, q, k, v, options, schedule):
        exact = dict(options)
        if "dropout_p" in options:
            del exact["dropout_seed"], exact["dropout_offset"]
            exact["keep"] = flashattn.dropout_mask(
                options["dropout_p"],
                (q.shape[0], q.shape[2], q.shape[1], k.shape[1]),
                seed=options["dropout_seed"],
                offset=options["dropout_offset"],
            )
        expected = reference.attention(q, k, v, **exact)
        out, lse = flashattn.attention(q, k, v, **options, **schedule, return_lse=True)
        self.assertEqual(out.dtype, np.float32)
        self.assert_out(out, expected.out, LIMIT)
        self.assert_lse(lse, expected.lse)


class Scaled(Case):
    def test_o_scale_multiplies_the_output(self):
        rng = np.random.default_rng(4)
        q, k, v = (random(rng, (2, 5, 2, 16)) for _ in "qkv")
        for scale in (0.25, 8, -2):
            out = flashattn.attention(q, k, v, o_scale=scale)
            np.testing.assert_array_equal(out, flashattn.attention(q, k, v) * np.float32(scale))


class Slots(Case):
    def test_lists_of_slots_gather_from_a_cache(self):
        rng = np.random.default_rng(5)
        cache_k, cache_v = random(rng, (7, 8, 2, 16)), random(rng, (7, 8, 2, 16))
        q = random(rng, (2, 3, 4, 16))
        slots = np.stack([rng.permutation(56)[:20] for _ in range(6)]).reshape(2, 1, 3, 20)
        out = flashattn.attention(q, cache_k, cache_v, key_list=slots, list_space="slots")
        for b in range(2):
            for i in range(3):
                k, v = (x.reshape(56, 2, 16)[slots[b, 0, i]][None] for x in (cache_k, cache_v))
                expected = reference.attention(q[b : b + 1, i : i + 1], k, v)
                self.assert_out(out[b : b + 1, i : i + 1], expected.out, LIMIT)

    def test_say_nothing_without_a_list(self):
        rng = np.random.default_rng(6)
        with self.assertRaisesRegex(ValueError, "say nothing without key_list"):
            flashattn.attention(random(rng, (1, 1, 1, 8)), random(rng, (2, 4, 1, 8)), random(rng, (2, 4, 1, 8)), list_space="slots")


class Outputs(Case):
    def setUp(self):
        rng = np.random.default_rng(1)
        self.q, self.k, self.v = (random(rng, (2, n, 3, 8)) for n in (5, 7, 7))
        self.options = {"causal": "bottom-right", "softcap": 2.0, "bias": random(rng, (3, 1, 7)), "sinks": random(rng, 3)}

    def test_shapes_and_order(self):
        attention = flashattn.attention
        self.assertIsInstance(attention(self.q, self.k, self.v), np.ndarray)
        shapes = {"out": (2, 5, 3, 8), "lse": (2, 3, 5), "scores": (2, 3, 5, 7)}
        for lse in (False, True):
            for stage in (None, "raw"):
                result = attention(self.q, self.k, self.v, return_lse=lse, return_scores=stage)
                names = ["out", *["lse"] * lse, *["scores"] * (stage is not None)]
                result = result if isinstance(result, tuple) else (result,)
                self.assertEqual([array.shape for array in result], [shapes[name] for name in names])

    def test_scores_of_every_stage(self):
        expected = reference.attention(self.q, self.k, self.v, **self.options)
        for stage, scores in expected.scores.items():
            with self.subTest(stage=stage):
                out, got = flashattn.attention(self.q, self.k, self.v, **self.options, return_scores=stage)
                np.testing.assert_allclose(got, scores, rtol=1e-5, atol=1e-6)
                self.assert_out(out, expected.out, LIMIT)

    def test_the_same_bits_for_any_number_of_threads(self):
        with flashattn.Handle("cpu", threads=1) as one, flashattn.Handle("cpu", threads=3) as three:
            first = flashattn.attention(self.q, self.k, self.v, **self.options, backend=one)
            second = flashattn.attention(self.q, self.k, self.v, **self.options, backend=three)
        np.testing.assert_array_equal(first, second)

    def test_a_row_without_keys_is_zero(self):
        out, lse = flashattn.attention(self.q, self.k, self.v, causal="explicit", causal_offset=-2, return_lse=True)
        self.assertTrue((out[:, :2] == 0).all() and (out[:, 2:] != 0).any(axis=-1).all())
        self.assertTrue((lse[:, :, :2] == -np.inf).all() and np.isfinite(lse[:, :, 2:]).all())

    def test_empty_axes(self):
        for shape_q, shape_k in (((0, 5, 3, 8), (0, 7, 3, 8)), ((2, 0, 3, 8), (2, 7, 3, 8)), ((2, 5, 3, 8), (2, 0, 3, 8))):
            out, lse = flashattn.attention(
                np.ones(shape_q, np.float32), np.ones(shape_k, np.float32), np.ones(shape_k, np.float32), return_lse=True
            )
            self.assertEqual(out.shape, shape_q)
            self.assertTrue((out == 0).all() and (lse == -np.inf).all())

    def test_mask_of_uint8_and_bias_of_float64(self):
        mask = np.random.default_rng(2).integers(0, 3, (5, 7)).astype(np.uint8)
        bias = np.random.default_rng(3).standard_normal((2, 1, 1, 7))
        out = flashattn.attention(self.q, self.k, self.v, mask=mask, bias=bias)
        self.assert_out(out, reference.attention(self.q, self.k, self.v, mask=mask, bias=bias).out, LIMIT)
        np.testing.assert_array_equal(
            out, flashattn.attention(self.q, self.k, self.v, mask=mask != 0, bias=bias.astype(np.float32))
        )

    def test_causal_false_is_no_mask(self):
        np.testing.assert_array_equal(
            flashattn.attention(self.q, self.k, self.v, causal=False), flashattn.attention(self.q, self.k, self.v)
        )

    def test_alibi_slopes(self):
        np.testing.assert_allclose(flashattn.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
        np.testing.assert_allclose(flashattn.alibi_slopes(3), [2**-4.0, 2**-8.0, 2**-2.0])
        np.testing.assert_allclose(flashattn.alibi_slopes(4, 2), 2.0 ** (-np.arange(1, 5) / 2), rtol=1e-6)
        with self.assertRaisesRegex(flashattn.InvalidArgumentError, "max_bias"):
            flashattn.alibi_slopes(4, -1)


class Dropout(Case):
    def test_mask_follows_the_documented_generator(self):
        p, seed, offset = 0.4, 0x0123456789ABCDEF, (1 << 33) + 5
        keep = flashattn.dropout_mask(p, (2, 3, 4, 9), seed=seed, offset=offset)
        key = philox((seed & 0xFFFFFFFF, seed >> 32), (offset & 0xFFFFFFFF, offset >> 32, 0, 0))[:2]
        for (b, h, i, j), kept in np.ndenumerate(keep):
            word = philox(key, (j >> 2, i, b * 3 + h, 0))[j & 3]
            self.assertEqual(kept, word >= int(float(np.float32(p)) * 2**32))

    def test_share_of_kept_keys(self):
        keep = flashattn.dropout_mask(0.25, (1, 2, 100, 500), seed=7)
        self.assertAlmostEqual(keep.mean(), 0.75, delta=0.01)


def philox(key, counter):
    """Philox 4x32-10."""
    key, c = list(key), list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


if __name__ == "__main__":
    unittest.main()
