"""Packed, padded, paged and indexed batches, and every kind of stride that NumPy can express."""

import unittest

import flashattn
import numpy as np

import reference
from support import LIMITS, Case, packed_lengths, random

LIMIT = LIMITS["float32"]
HEADS, HEADS_KV, DIM, DIM_V = 4, 2, 12, 9


def paged(rng, batch, slots, size, spare=3):
    """A shuffled page table for `slots` keys a sequence, and the pages, NaN where nothing belongs to a sequence."""
    width = -(-slots // size)
    ids = rng.permutation(batch * width + spare)
    table = ids[: batch * width].reshape(batch, width).astype(np.int32)
    k = np.full((len(ids), size, HEADS_KV, DIM), np.nan, np.float32)
    v = np.full((len(ids), size, HEADS_KV, DIM_V), np.nan, np.float32)
    k[table.ravel()], v[table.ravel()] = (random(rng, (table.size, size, HEADS_KV, d)) for d in (DIM, DIM_V))
    return table, k, v


class Lengths(Case):
    def check(self, q, k, v, **options):
        expected = reference.attention(q, k, v, **options)
        out, lse, scores = flashattn.attention(q, k, v, **options, return_lse=True, return_scores="biased")
        self.assert_out(out, expected.out, LIMIT)
        self.assert_lse(lse, expected.lse)
        np.testing.assert_allclose(scores, expected.scores["biased"], rtol=2e-5, atol=2e-6)
        return out

    def test_packed(self):
        for seed in range(25):
            with self.subTest(seed=seed):
                rng = np.random.default_rng(seed)
                batch = int(rng.integers(1, 5))
                cu_q, cu_k = packed_lengths(rng, batch, 30), packed_lengths(rng, batch, 50)
                q, k, v = (random(rng, s) for s in ((cu_q[-1], HEADS, DIM), (cu_k[-1], HEADS_KV, DIM), (cu_k[-1], HEADS_KV, DIM_V)))
                options = {"causal": "bottom-right"} if seed % 2 else {"window": (5, 3), "alignment": "top-left"}
                if seed % 3 == 0:
                    most = (int(np.diff(cu_q).max()), int(np.diff(cu_k).max()))
                    options["bias"] = random(rng, (batch, 1, *most))
                self.check(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options)

    def test_packed_with_gaps(self):
        rng = np.random.default_rng(3)
        cu_q, cu_k = np.array([2, 7, 9]), np.array([1, 11, 14])
        q, k, v = random(rng, (12, HEADS, DIM)), random(rng, (20, HEADS_KV, DIM)), random(rng, (20, HEADS_KV, DIM_V))
        out = self.check(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, seqused_q=[3, 2], seqused_k=[9, 0])
        self.assertTrue((out[[0, 1, 5, 6, 9, 10, 11]] == 0).all())

    def test_packed_queries_with_padded_keys(self):
        rng = np.random.default_rng(4)
        q, k, v = random(rng, (9, HEADS, DIM)), random(rng, (2, 15, HEADS_KV, DIM)), random(rng, (2, 15, HEADS_KV, DIM_V))
        self.check(q, k, v, cu_seqlens_q=[0, 4, 9], seqused_k=[15, 8], causal="bottom-right")

    def test_padded(self):
        rng = np.random.default_rng(5)
        q, k, v = random(rng, (3, 6, HEADS, DIM)), random(rng, (3, 20, HEADS_KV, DIM)), random(rng, (3, 20, HEADS_KV, DIM_V))
        k[1, 12:], v[1, 12:], k[:, :2], v[:, :2] = np.nan, np.nan, np.nan, np.nan  # never read
        self.check(
            q,
            k,
            v,
            seqused_q=[6, 2, 0],
            seqused_k=[20, 12, 4],
            leftpad_k=[3, 2, 4],
            causal="bottom-right",
            sinks=random(rng, HEADS),
        )

    def test_cache_by_index(self):
        rng = np.random.default_rng(6)
        q, k, v = random(rng, (3, 1, HEADS, DIM)), random(rng, (5, 20, HEADS_KV, DIM)), random(rng, (5, 20, HEADS_KV, DIM_V))
        self.check(q, k, v, kv_batch_idx=[4, 0, 4], seqused_k=[20, 1, 7])

    def test_paged(self):
        for size in (1, 3, 16):
            with self.subTest(page_size=size):
                rng = np.random.default_rng(size)
                table, k, v = paged(rng, 3, 40, size)
                q = random(rng, (3, 5, HEADS, DIM))
                self.check(q, k, v, page_table=table, causal="bottom-right")
                self.check(q, k, v, page_table=table, max_seqlen_k=37, seqused_k=[37, 1, 0], leftpad_k=[4, 0, 0])
                self.check(q, k, v, page_table=table, kv_batch_idx=[2, 2, 0], seqused_k=[8, 30, 2])

    def test_page_table_by_stride_and_of_other_types(self):
        rng = np.random.default_rng(7)
        table, k, v = paged(rng, 3, 40, 8)
        q = random(rng, (3, 2, HEADS, DIM))
        expected = flashattn.attention(q, k, v, page_table=table)
        wide = np.full((3, 9), -7, np.int32)
        wide[:, 2:7] = table
        for same in (wide[:, 2:7], table.astype(np.int64), np.asfortranarray(table), table[::-1][::-1], table.tolist()):
            np.testing.assert_array_equal(flashattn.attention(q, k, v, page_table=same), expected)
        shared = np.broadcast_to(table[:1], (3, 5))
        np.testing.assert_array_equal(
            flashattn.attention(q, k, v, page_table=shared)[1], flashattn.attention(q[1:2], k, v, page_table=table[:1])[0]
        )


class Strides(Case):
    """The same numbers through other strides give the same bits."""

    def setUp(self):
        rng = np.random.default_rng(8)
        self.q, self.k, self.v = (
            random(rng, (2, n, h, d)) for n, h, d in ((7, HEADS, DIM), (10, HEADS_KV, DIM), (10, HEADS_KV, DIM_V))
        )
        self.bias, self.mask = random(rng, (2, HEADS, 7, 10)), rng.random((2, HEADS, 7, 10)) < 0.8
        self.expected = flashattn.attention(self.q, self.k, self.v, bias=self.bias, mask=self.mask)

    def views(self, array):
        """Arrays equal to the given one, by how they lie in memory."""
        yield "transposed", np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        wide = np.full([n * 2 + 1 for n in array.shape[:-1]] + [array.shape[-1] + 3], 77, array.dtype)
        view = wide[1::2, 1::2, 1::2, 1:-2]
        view[:] = array
        yield "sliced", view
        yield "reversed rows", np.ascontiguousarray(array[:, ::-1])[:, ::-1]
        yield "every second element", np.repeat(array, 2, axis=-1)[..., ::2]
        yield "Fortran order", np.asfortranarray(array)
        raw = np.zeros(array.nbytes + 1, np.uint8)
        unaligned = raw[1:].view(array.dtype).reshape(array.shape) if array.itemsize > 1 else array.copy()
        unaligned[:] = array
        yield "unaligned", unaligned
        record = np.zeros(array.shape, [("before", np.uint8), ("value", array.dtype)])
        record["value"] = array
        yield "field of a record", record["value"]

    def test_every_view_of_every_tensor(self):
        for name in ("q", "k", "v", "bias", "mask"):
            for how, view in self.views(getattr(self, name)):
                with self.subTest(tensor=name, view=how):
                    tensors = {"q": self.q, "k": self.k, "v": self.v, "bias": self.bias, "mask": self.mask, name: view}
                    np.testing.assert_array_equal(view, getattr(self, name))
                    np.testing.assert_array_equal(flashattn.attention(**tensors), self.expected)

    def test_slices_of_one_projection(self):
        rng = np.random.default_rng(9)
        qkv = random(rng, (2, 7, 3, HEADS, DIM))
        q, k, v = (qkv[:, :, n] for n in range(3))
        np.testing.assert_array_equal(flashattn.attention(q, k, v), flashattn.attention(q.copy(), k.copy(), v.copy()))

    def test_broadcast_tensors(self):
        one_q, one_k, one_v = self.q[:1], self.k[:, :, :1], self.v[:, :, :1]
        q = np.broadcast_to(one_q, self.q.shape)
        k, v = np.broadcast_to(one_k, self.k.shape), np.broadcast_to(one_v, self.v.shape)
        np.testing.assert_array_equal(flashattn.attention(q, k, v), flashattn.attention(q.copy(), k.copy(), v.copy()))
        one_element = np.broadcast_to(self.q[..., :1], self.q.shape)  # broadcast over the dimension: copied
        np.testing.assert_array_equal(flashattn.attention(one_element, k, v), flashattn.attention(one_element.copy(), k, v))

    def test_a_broadcast_of_200_gigabytes_is_not_copied(self):
        keys = (1 << 31) - 1
        k = np.broadcast_to(self.k[:1, :1], (1, keys, HEADS_KV, DIM))
        v = np.broadcast_to(self.v[:1, :1, ::-1], (1, keys, HEADS_KV, DIM_V))  # reversed heads: a copy, but of one key
        out = flashattn.attention(self.q[:1], k, v, window=(2, 2), alignment="top-left")
        self.assert_out(out[0, :, 0], np.broadcast_to(self.v[0, 0, 1].astype(float), (7, DIM_V)), LIMIT)

    def test_small_arrays_by_any_stride(self):
        slopes, sinks = np.arange(2 * HEADS, dtype=np.float64)[::2] / 8, np.linspace(-1, 1, HEADS)[::-1]
        options = {"alibi_slopes": slopes, "sinks": sinks, "causal": "bottom-right"}
        expected = reference.attention(self.q, self.k, self.v, **options)
        self.assert_out(flashattn.attention(self.q, self.k, self.v, **options), expected.out, LIMIT)


class HeadsFirst(Case):
    """layout="bhsd" gives the same bits, with rows and heads in each other's place."""

    def setUp(self):
        rng = np.random.default_rng(10)
        self.q, self.k, self.v = (
            random(rng, (3, n, h, d)) for n, h, d in ((7, HEADS, DIM), (10, HEADS_KV, DIM), (10, HEADS_KV, DIM_V))
        )
        self.rng = rng

    def same(self, function, tensors, **options):
        """function with tensors in both orders; returns what it gave in ours."""
        ours = function(*tensors, **options)
        theirs = function(*(np.ascontiguousarray(x.swapaxes(-3, -2)) for x in tensors), **options, layout="bhsd")
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, theirs))):
            np.testing.assert_array_equal(b, a.swapaxes(-3, -2) if a.ndim == 4 else a)
        return ours

    def test_forward_and_backward(self):
        bias = random(self.rng, (HEADS, 7, 10))
        options = {"bias": bias, "causal": "bottom-right"}
        out, lse = self.same(flashattn.attention, (self.q, self.k, self.v), **options, return_lse=True)
        heads_first = flashattn.attention(*(x.swapaxes(1, 2) for x in (self.q, self.k, self.v)), layout="bhsd")
        self.assertTrue(heads_first.flags.c_contiguous)
        dout = random(self.rng, out.shape)

        def backward(*tensors, **options):
            *tensors, o = tensors
            return flashattn.attention_backward(*tensors, o, lse, **options)

        self.same(backward, (dout, self.q, self.k, self.v, out), **options)

    def test_pages_and_packed_rows(self):
        table, k, v = paged(self.rng, 3, 40, 16)
        self.same(flashattn.attention, (self.q, k, v), page_table=table)
        q, cu = self.q[0], [0, 3, 3, 7]  # of three axes: always (total, heads, dim)
        ours = flashattn.attention(q, k, v, page_table=table, cu_seqlens_q=cu)
        swapped = [x.swapaxes(1, 2) for x in (k, v)]
        theirs = flashattn.attention(q, *swapped, page_table=table, cu_seqlens_q=cu, layout="bhsd")
        np.testing.assert_array_equal(ours, theirs)

    def test_append_rotary_and_merge(self):
        caches = [np.zeros((3, 12, HEADS_KV, d), np.float32) for d in (DIM, DIM_V)]
        swapped = [np.zeros((3, HEADS_KV, 12, d), np.float32) for d in (DIM, DIM_V)]
        flashattn.append_kv(self.k, self.v, *caches)
        flashattn.append_kv(self.k.swapaxes(1, 2), self.v.swapaxes(1, 2), *swapped, layout="bhsd")
        for a, b in zip(caches, swapped):
            np.testing.assert_array_equal(b, a.swapaxes(1, 2))
        angles = random(self.rng, (2, 20, 3))
        turned = flashattn.rotary(self.q, *angles)
        np.testing.assert_array_equal(flashattn.rotary(self.q.swapaxes(1, 2), *angles, layout="bhsd"), turned.swapaxes(1, 2))
        o, lse = random(self.rng, (2, 3, 7, HEADS, DIM)), random(self.rng, (2, 3, HEADS, 7))
        merged = flashattn.merge(o, lse)
        np.testing.assert_array_equal(flashattn.merge(o.swapaxes(-3, -2), lse, layout="bhsd"), merged.swapaxes(1, 2))

    def test_an_unknown_order_is_refused(self):
        for call in (flashattn.attention, flashattn.explain):
            with self.assertRaisesRegex(ValueError, "layout is 'bsnd': expected 'bshd' or 'bhsd'"):
                call(self.q, self.k, self.v, layout="bsnd")
        with self.assertRaisesRegex(ValueError, r"expected 4 axes, \(batch, heads, seq, dim\)"):
            flashattn.attention(self.q[0], self.k, self.v, layout="bhsd")


if __name__ == "__main__":
    unittest.main()
