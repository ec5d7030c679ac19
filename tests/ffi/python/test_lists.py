"""Lists of blocks of keys, and their counts, that are the same for all sequences or heads, against the float64 reference, which gets
each written out."""

import itertools
import unittest

import flashattn
import numpy as np

import reference
from support import LIMITS, Case, random

BATCH, HEADS, LIST_HEADS, ROWS, KEYS, BLOCK = 2, 4, 2, 20, 40, 16
BLOCKS, ENTRIES = -(-ROWS // BLOCK), 3
NAMES = ("key_list", "key_list_count", "full_list", "full_list_count")


def lists(rng, leads):
    """leads: of each of NAMES its axes before the blocks, or None where it is not given."""
    given = {}
    for name, lead in zip(NAMES, leads):
        if lead is not None:
            last, most = ((), ENTRIES + 1) if name.endswith("count") else ((ENTRIES,), -(-KEYS // BLOCK))
            given[name] = rng.integers(-1 if last else 0, most, (*lead, BLOCKS, *last))
    return given


def written_out(given, lead):
    return {name: np.broadcast_to(x, (*lead, *x.shape[len(lead) :])) for name, x in given.items()}


class Lists(Case):
    def setUp(self):
        self.rng = np.random.default_rng(11)
        self.blocks = {"list_rows": BLOCK, "list_keys": BLOCK}

    def compare(self, q, k, v, given, lead, **options):
        options = {**self.blocks, **options}
        out, lse = flashattn.attention(q, k, v, **given, **options, return_lse=True)
        want = reference.attention(q, k, v, **written_out(given, lead), **options)
        self.assert_out(out, want.out, LIMITS["float32"])
        self.assert_lse(lse, want.lse)
        dout = random(self.rng, out.shape)
        backward = lambda lists: flashattn.attention_backward(dout, q, k, v, out, lse, **lists, **options)  # noqa: E731
        for a, b in zip(backward(given), backward({name: np.array(x) for name, x in written_out(given, lead).items()})):
            np.testing.assert_array_equal(a, b)

    def test_one_sequence_or_head_for_all(self):
        q, k, v = (random(self.rng, (BATCH, n, HEADS, 8)) for n in (ROWS, KEYS, KEYS))
        ones = 0
        for key_lead, full_lead in itertools.product(itertools.product((1, BATCH), (1, LIST_HEADS)), repeat=2):
            for count_lead in ((1, 1), (BATCH, LIST_HEADS), None):
                leads = (key_lead, count_lead, full_lead, count_lead and key_lead)
                lead = tuple(max(n) for n in zip(*(x for x in leads if x)))
                with self.subTest(leads=leads):
                    self.compare(q, k, v, lists(self.rng, leads), (BATCH, lead[1]))
                ones += lead[0] == 1
        self.assertGreaterEqual(ones, 4)  # none of whose lists has a sequence of its own

    def test_one_of_the_lists(self):
        q, k, v = (random(self.rng, (BATCH, n, HEADS, 8)) for n in (ROWS, KEYS, KEYS))
        for names in ((0,), (2,), (0, 1), (2, 3)):
            given = lists(self.rng, [(1, 1 + n % 2) if n in names else None for n in range(4)])
            lead = max(x.shape[1] for x in given.values())
            with self.subTest(names=names):
                self.compare(q, k, v, given, (BATCH, lead))

    def test_packed_sequences_have_heads_alone(self):
        cu = np.array([0, BLOCK, ROWS])
        q, k, v = (random(self.rng, (ROWS, HEADS, 8)) for _ in range(3))
        for leads in itertools.product([(1,), (LIST_HEADS,)], repeat=4):
            given = lists(self.rng, leads)
            for name in ("key_list", "full_list"):
                given[name] = np.minimum(given[name], 0)  # the first block is all that each sequence has
            with self.subTest(leads=leads):
                lead = tuple(max(n) for n in zip(*leads))
                self.compare(q, k, v, given, lead, cu_seqlens_q=cu, cu_seqlens_k=cu)

    def test_what_does_not_broadcast(self):
        q, k, v = (random(self.rng, (BATCH, n, HEADS, 8)) for n in (ROWS, KEYS, KEYS))
        given = lists(self.rng, [(1, 1), (1, 1), (BATCH, LIST_HEADS), (1, 1)])
        for name, shape, sentence in (
            ("key_list", (3, 1, BLOCKS, ENTRIES), r"full_list has shape \(2, 2, 2, 3\): expected \(batch, list heads\) = \(3, 2\)"),
            ("key_list", (1, 4, BLOCKS, ENTRIES), r"full_list has shape .* = \(2, 4\)"),
            ("key_list", (1, 0, BLOCKS, ENTRIES), r"key_list has shape \(1, 0, 2, 3\)"),
            ("key_list", (1, 1, 1, ENTRIES), r"key_list has shape \(1, 1, 1, 3\): expected .* = \(2, 2, 2, 3\), of which batch and heads may be 1"),
            ("full_list", (1, 1, BLOCKS, 1), r"full_list has shape \(1, 1, 2, 1\): expected .* = \(1, 1, 2, 3\)"),
            ("key_list_count", (1, 1, 1), r"key_list_count has shape \(1, 1, 1\): expected .* = \(2, 2, 2\)"),
            ("key_list_count", (1, BLOCKS), r"key_list_count has shape \(1, 2\): expected \(batch, list heads, blocks of rows\)"),
            ("full_list_count", (1, 3, BLOCKS), r"full_list_count has shape \(1, 3, 2\)"),
        ):
            with self.subTest(name=name, shape=shape), self.assertRaisesRegex(ValueError, sentence):
                flashattn.attention(q, k, v, **{**given, name: np.zeros(shape, int)}, **self.blocks)
        with self.assertRaisesRegex(ValueError, "key_list_count is given: expected the list that it counts"):
            flashattn.attention(q, k, v, **{**given, "key_list": None}, **self.blocks)


if __name__ == "__main__":
    unittest.main()
