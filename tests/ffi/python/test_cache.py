"""Rotary embedding, appending to a cache, and merging parts."""

import unittest

import flashattn
import numpy as np

import reference
from support import LIMITS, Case, dtype, needs_ml_dtypes, random

LIMIT = LIMITS["float32"]


def angles(positions, half):
    turn = np.arange(positions)[:, None] / 100.0 ** (np.arange(half) / half)
    return np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)


def rotated(x, cos, sin, positions, interleaved):
    """x (…, heads, dim) in float64, turned by the angle at `positions` (…)."""
    x = x.astype(np.float64)
    half = cos.shape[1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    c, s = cos[positions][..., None, :].astype(np.float64), sin[positions][..., None, :].astype(np.float64)
    out = x.copy()
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., first] * s + x[..., second] * c
    return out


class Rotary(Case):
    def setUp(self):
        self.rng = np.random.default_rng(21)
        self.cos, self.sin = angles(50, 3)
        self.x = random(self.rng, (2, 7, 3, 10))

    def test_both_pairings_and_every_kind_of_position(self):
        positions = self.rng.integers(0, 50, (2, 7))
        offsets = np.array([5, 40])
        for interleaved in (False, True):
            for options, at in (
                ({}, np.arange(7) + np.zeros((2, 1), int)),
                ({"positions": positions}, positions),
                ({"position_offset": offsets}, offsets[:, None] + np.arange(7)),
            ):
                with self.subTest(interleaved=interleaved, options=list(options)):
                    out = flashattn.rotary(self.x, self.cos, self.sin, interleaved=interleaved, **options)
                    self.assert_out(out, rotated(self.x, self.cos, self.sin, at, interleaved), 1e-6)

    def test_in_place_through_strides(self):
        wide = random(self.rng, (2, 3, 9, 12))
        before = wide.copy()
        x = wide.transpose(0, 2, 1, 3)[:, 1:8, :, 1:-1]
        expected = flashattn.rotary(x, self.cos, self.sin)
        self.assertIs(flashattn.rotary(x, self.cos, self.sin, out=x), x)
        np.testing.assert_array_equal(x, expected)
        x[:] = before.transpose(0, 2, 1, 3)[:, 1:8, :, 1:-1]
        np.testing.assert_array_equal(wide, before)

    def test_packed_and_used_rows(self):
        x = random(self.rng, (9, 3, 10))
        out = flashattn.rotary(x, self.cos, self.sin, cu_seqlens_q=[0, 4, 9], seqused_q=[4, 3], position_offset=[0, 10])
        expected = rotated(x, self.cos, self.sin, np.array([0, 1, 2, 3, 10, 11, 12, 0, 0]), False)
        expected[7:] = 0
        self.assert_out(out, expected, 1e-6)

    def test_half_and_copied_input(self):
        x = self.x.astype(np.float16)[:, ::-1]
        out = flashattn.rotary(x, self.cos, self.sin)
        self.assertEqual(out.dtype, np.float16)
        self.assert_out(out, rotated(x, self.cos, self.sin, np.arange(7) + np.zeros((2, 1), int), False), LIMITS["float16"])


class Append(Case):
    def setUp(self):
        self.rng = np.random.default_rng(22)
        self.k_new, self.v_new = random(self.rng, (2, 3, 2, 8)), random(self.rng, (2, 3, 2, 6))

    def cache(self, slots=10, batch=2, name="float32"):
        return np.full((batch, slots, 2, 8), 9, dtype(name)), np.full((batch, slots, 2, 6), 9, dtype(name))

    def check(self, k, v, written):
        """written: slot (first, second) of the cache of each (sequence, token); nothing else may have changed."""
        expected_k, expected_v = np.full_like(k, 9), np.full_like(v, 9)
        for (b, t), slot in written.items():
            expected_k[slot], expected_v[slot] = self.k_new[b, t], self.v_new[b, t]
        np.testing.assert_array_equal(k, expected_k)
        np.testing.assert_array_equal(v, expected_v)

    def test_after_the_used_slots(self):
        k, v = self.cache()
        self.assertIsNone(flashattn.append_kv(self.k_new, self.v_new, k, v, seqused_k=[0, 7]))
        self.check(k, v, {(b, t): (b, (0, 7)[b] + t) for b in range(2) for t in range(3)})

    def test_at_positions_with_skipped_tokens(self):
        k, v = self.cache()
        flashattn.append_kv(self.k_new, self.v_new, k, v, positions=[[9, -1, 0], [-1, -1, 4]])
        self.check(k, v, {(0, 0): (0, 9), (0, 2): (0, 0), (1, 2): (1, 4)})

    def test_by_index_packed_and_after_left_padding(self):
        k, v = self.cache(batch=4)
        flashattn.append_kv(self.k_new, self.v_new, k, v, kv_batch_idx=[3, 1], leftpad_k=[2, 0], seqused_new=[1, 3])
        self.check(k, v, {(0, 0): (3, 2), **{(1, t): (1, t) for t in range(3)}})
        k, v = self.cache()
        packed_k, packed_v = self.k_new.reshape(6, 2, 8), self.v_new.reshape(6, 2, 6)
        flashattn.append_kv(packed_k, packed_v, k, v, cu_seqlens_new=[0, 2, 6], seqused_k=[1, 5])
        slots = [(0, 1), (0, 2), (1, 5), (1, 6), (1, 7), (1, 8)]
        self.check(k, v, {divmod(n, 3): slot for n, slot in enumerate(slots)})

    def test_pages_through_strides(self):
        wide_k, wide_v = np.full((6, 2, 4, 8), 9, np.float32), np.full((6, 2, 4, 6), 9, np.float32)
        k, v = wide_k.transpose(0, 2, 1, 3), wide_v.transpose(0, 2, 1, 3)  # (page, slot, head, dim) of (page, head, slot, dim)
        flashattn.append_kv(
            np.asfortranarray(self.k_new),
            np.repeat(self.v_new, 2, axis=1)[:, ::2],
            k,
            v,
            page_table=[[5, 0], [2, 1]],
            seqused_k=[3, 0],
        )
        self.check(k, v, {(0, 0): (5, 3), (0, 1): (0, 0), (0, 2): (0, 1), (1, 0): (2, 0), (1, 1): (2, 1), (1, 2): (2, 2)})

    def test_rotates_the_new_keys(self):
        k, v = self.cache()
        cos, sin = angles(20, 4)
        flashattn.append_kv(self.k_new, self.v_new, k, v, seqused_k=[4, 2], leftpad_k=[1, 0], cos=cos, sin=sin, interleaved=True)
        at = np.array([[3, 4, 5], [2, 3, 4]])
        expected = rotated(self.k_new, cos, sin, at, True)
        self.assert_out(np.stack([k[0, 4:7], k[1, 2:5]]), expected, 1e-6)
        np.testing.assert_array_equal(v[1, 2:5], self.v_new[1])

    def test_int8_with_dynamic_scale_then_attention(self):
        k, v = self.cache(name="int8")
        k_factor, v_factor = np.ones((2, 10, 2), np.float32), np.ones((2, 10, 2), np.float32)
        flashattn.append_kv(self.k_new, self.v_new, k, v, k_descale=k_factor, v_descale=v_factor, dynamic_scale=True)
        np.testing.assert_allclose(k_factor[:, :3], np.abs(self.k_new).max(axis=-1) / 127, rtol=1e-6)
        np.testing.assert_allclose(v[:, :3] * v_factor[:, :3, :, None], self.v_new, atol=np.abs(self.v_new).max() / 250)
        self.assertTrue((k[:, 3:] == 9).all() and (k_factor[:, 3:] == 1).all())
        q = random(self.rng, (2, 1, 4, 8))
        options = {"k_descale": k_factor, "v_descale": v_factor, "seqused_k": [3, 3]}
        self.assert_out(flashattn.attention(q, k, v, **options), reference.attention(q, k, v, **options).out, LIMIT)

    def test_dynamic_scale_of_one_of_two(self):
        k, v = self.cache(name="int8")
        plain = v.astype(np.float32)
        factor = np.ones((2, 10, 2), np.float32)
        flashattn.append_kv(self.k_new, self.v_new, k, plain, k_descale=factor, dynamic_scale=True)
        np.testing.assert_allclose(k[:, :3] * factor[:, :3, :, None], self.k_new, atol=np.abs(self.k_new).max() / 250)
        np.testing.assert_array_equal(plain[:, :3], self.v_new)

    def test_int8_with_given_factors(self):
        k, v = self.cache(name="int8")
        flashattn.append_kv(self.k_new, self.v_new, k, v, k_descale=0.05, v_descale=[0.05, 0.02])
        np.testing.assert_array_equal(k[:, :3], np.clip(np.rint(self.k_new / np.float32(0.05)), -128, 127))
        np.testing.assert_array_equal(v[:, :3, 1], np.clip(np.rint(self.v_new[:, :, 1] / np.float32(0.02)), -128, 127))

    @needs_ml_dtypes
    def test_converts_to_the_type_of_the_cache(self):
        for name in ("float16", "bfloat16", "float8_e4m3fn"):
            k, v = self.cache(name=name)
            flashattn.append_kv(self.k_new, self.v_new, k, v)
            np.testing.assert_array_equal(k[:, :3].astype(np.float32), self.k_new.astype(k.dtype).astype(np.float32))

    def test_a_cache_that_cannot_be_written_is_refused(self):
        k, v = self.cache()
        read_only = k.copy()
        read_only.flags.writeable = False
        for bad, error in ((read_only, ValueError), (k[:, ::-1], ValueError), (k.tolist(), TypeError)):
            with self.assertRaisesRegex(error, "k is written in place"):
                flashattn.append_kv(self.k_new, self.v_new, bad, v)
        with self.assertRaises(flashattn.InvalidArgumentError):
            flashattn.append_kv(self.k_new, self.v_new, k, v, seqused_k=[8, 0])  # 8 + 3 slots of 10
        self.check(k, v, {})


class Merge(Case):
    def setUp(self):
        self.rng = np.random.default_rng(23)
        self.q, self.k, self.v = (random(self.rng, (2, n, h, d)) for n, h, d in ((5, 4, 16), (60, 2, 16), (60, 2, 12)))
        self.sinks = random(self.rng, 4)
        self.whole = reference.attention(self.q, self.k, self.v, sinks=self.sinks)

    def parts(self, *ends):
        parts = [
            flashattn.attention(self.q, self.k[:, a:b], self.v[:, a:b], return_lse=True) for a, b in zip((0, *ends), (*ends, 60))
        ]
        return [o for o, _ in parts], [lse for _, lse in parts]

    def test_parts_make_the_whole(self):
        for ends in ((), (20,), (1, 1, 33, 59), (0, 60)):  # some parts have no keys
            with self.subTest(ends=ends):
                out, lse = flashattn.merge(*self.parts(*ends), sinks=self.sinks, return_lse=True)
                self.assert_out(out, self.whole.out, LIMIT)
                self.assert_lse(lse, self.whole.lse)

    def test_into_a_state(self):
        o, lse = self.parts(10, 30)
        state = o[0], lse[0]
        out = flashattn.merge(o[1:], lse[1:], sinks=self.sinks, into=state)
        self.assertIs(out, state[0])
        self.assert_out(out, self.whole.out, LIMIT)
        self.assert_lse(state[1], self.whole.lse)

    def test_strides_and_types(self):
        o, lse = (np.stack(x) for x in self.parts(25))
        expected = flashattn.merge(o, lse)
        np.testing.assert_array_equal(flashattn.merge(np.asfortranarray(o), np.asfortranarray(lse)), expected)
        np.testing.assert_array_equal(flashattn.merge(o[::-1][::-1], lse[:, ::-1][:, ::-1]), expected)
        half = flashattn.merge(o, lse, out_dtype="float16")
        np.testing.assert_array_equal(half, expected.astype(np.float16))

    def test_one_lse_for_all_rows(self):
        o = random(self.rng, (3, 1, 4, 2, 8))
        lse = np.broadcast_to(np.float32(0.5), (3, 1, 2, 4))  # equal weights
        self.assert_out(flashattn.merge(o, lse), o.astype(np.float64).mean(axis=0), LIMIT)

    def test_packed(self):
        cu_q, q = np.array([0, 2, 5]), self.q[0]
        keys = self.k[0], self.v[0]
        whole, whole_lse = flashattn.attention(q, *keys, cu_seqlens_q=cu_q, cu_seqlens_k=[0, 20, 60], return_lse=True)
        first = flashattn.attention(q, *keys, cu_seqlens_q=cu_q, cu_seqlens_k=[0, 20, 60], seqused_k=[7, 0], return_lse=True)
        second = flashattn.attention(q, *keys, cu_seqlens_q=cu_q, cu_seqlens_k=[7, 20, 60], return_lse=True)
        # Sequence 1's keys begin at 20 in both; the first part used none of them.
        out, lse = flashattn.merge([first[0], second[0]], [first[1], second[1]], cu_seqlens_q=cu_q, return_lse=True)
        self.assert_out(out, whole.astype(np.float64), LIMIT)
        self.assert_lse(lse, whole_lse.astype(np.float64))

    def test_shapes_that_do_not_fit(self):
        o, lse = (np.stack(x) for x in self.parts(25))
        for bad in (lse[:1], lse[..., 0], lse.transpose(0, 1, 3, 2)):
            with self.assertRaisesRegex(ValueError, "lse_parts has shape"):
                flashattn.merge(o, bad)
        for sentence, parts, options in (
            (r"lse_parts\[1\] has shape \(4, 5\): expected 3 axes", ([*o], [lse[0], lse[1, 0]]), {}),
            (r"lse_parts\[1\] has shape \(2, 4, 4\): expected \(2, 4, 5\)", ([*o], [lse[0], lse[1, ..., :4]]), {}),
            (r"lse_parts\[0\] has shape \(2, 4, 4\): expected \(2, 4, 5\)", ([*o], [lse[0, ..., :4], lse[1]]), {}),
            (r"o_parts\[1\] has shape \(2, 5, 1, 12\): expected \(2, 5, 4, 12\)", ([o[0], o[1, :, :, :1]], [*lse]), {}),
            (r"o_parts\[1\] is no array: .*inhomogeneous", ([o[0], [[1.0, 2.0], [1.0]]], [*lse]), {}),
            (r"lse_parts has shape \(1, 2, 4, 5\): expected \(2, 2, 4, 5\)", ([*o], [lse[0]]), {}),
            ("o_parts is empty", ([], []), {}),
            ("sinks is no array: .*inhomogeneous", (o, lse), {"sinks": [[1.0], [1.0, 2.0]]}),
            ("max_seqlen_q is 3: it belongs with cu_seqlens_q", (o, lse), {"max_seqlen_q": 3}),
            ("out_dtype is float16: into", (o, lse), {"into": (o[0].copy(), lse[0].copy()), "out_dtype": "float16"}),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ValueError, sentence):
                flashattn.merge(*parts, **options)
        for sentence, parts, options in (
            (r"lse_parts\[1\] has dtype float64", ([*o], [lse[0], lse[1].astype(np.float64)]), {}),
            ("into is no pair", (o, lse), {"into": o[0].copy()}),
            ("out_dtype is 'half-ish': expected a dtype", (o, lse), {"out_dtype": "half-ish"}),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(TypeError, sentence):
                flashattn.merge(*parts, **options)
        with self.assertRaisesRegex(ValueError, "into has shapes"):
            flashattn.merge(o, lse, into=(o[0, :1].copy(), lse[0].copy()))


if __name__ == "__main__":
    unittest.main()
