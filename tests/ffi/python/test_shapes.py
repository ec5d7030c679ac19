"""Every array of every call, one axis longer or shorter than it should be: refused before anything is read or written. Each array
lies at the end of a page before one that may not be touched, so that a step too far ends the process."""

import ctypes
import mmap
import unittest
from unittest import mock

import flashattn
import numpy as np
from flashattn import _prepared
from flashattn._request import Request

BATCH, ROWS, KEYS, DIM, DIM_V, SLOTS, PAGES, PAGE = 3, 4, 5, 8, 7, 9, 10, 4
HEADS, HEADS_K = 10, 5  # one more or less of either, and they do not go together
POSITIONS, HALF = 20, 3
CU_Q, CU_K = [0, 2, 5, 7], [0, 4, 6, 9]
BROADCAST = {"bias", "mask", "q_descale", "k_descale", "v_descale"}  # an axis of 1, or none, is right, too
TABLE = np.array([[3, 1], [0, 9], [2, 7]])
libc = ctypes.CDLL(None)


def guarded(array):
    """The array's values, up against a page without access."""
    array = np.array(array, order="C")
    pages = -(-max(array.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(base + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, pages - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy


def merge(into_o, into_lse, **arrays):
    return flashattn.merge(**arrays, into=(into_o, into_lse))


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def blocks(name, *shape):
    """Zeros of ggml's blocks; the last axis counts dims."""
    return np.zeros((*shape[:-1], shape[-1] // 32), flashattn.block_dtype(name))


def score_operands():
    pairs = (BATCH, HEADS, ROWS, KEYS)
    of_heads = {"bias_scale": floats(HEADS), "alibi_slopes": floats(BATCH, HEADS), "sinks": floats(HEADS)}
    return {"bias": floats(*pairs), "mask": floats(*pairs) > -1, **of_heads}


def mask_cases():
    """Masks of bits and of the last keys, and what repeats after some sequences and heads."""
    tensors = {"q": floats(BATCH, ROWS, HEADS, DIM), "k": floats(BATCH, 20, HEADS_K, DIM), "v": floats(BATCH, 20, HEADS_K, DIM)}
    right = {("v", 3, 1), ("v", 3, -1)}
    bits = np.full((BATCH, HEADS, ROWS, 3), 255, np.uint8)
    yield "mask of bits", flashattn.attention, {**tensors, "mask": bits}, {"mask_bits": True}, right
    last = floats(BATCH, HEADS, ROWS, 7) > -1
    yield "mask of the last keys", flashattn.attention, {**tensors, "mask": last}, {"mask_keys": 7}, right
    both = {"mask_keys": 19, "mask_bits": True}
    yield "bits of the last keys", flashattn.attention, {**tensors, "mask": bits}, both, right
    repeated = {"bias": floats(2, HEADS_K, ROWS, 20), "mask": floats(2, HEADS_K, ROWS, 20) > -1}
    periods = {"bias_period": (2, HEADS_K), "mask_period": (2, HEADS_K)}
    yield "periods", flashattn.attention, {**tensors, **repeated}, periods, right


def block_cases():
    wide, rows = {("v", 3, 1), ("v", 3, -1)}, {("q", 1, 1), ("q", 1, -1)}
    for k_type, v_type in (("q4_0", "q8_0"), ("q5_1", "q4_1"), ("q8_0", "q5_0")):
        cache = {"k": blocks(k_type, BATCH, KEYS, HEADS_K, 64), "v": blocks(v_type, BATCH, KEYS, HEADS_K, 64)}
        q = floats(BATCH, ROWS, HEADS, 64)
        yield f"blocks {k_type}", flashattn.attention, {"q": q, **cache}, {}, wide | rows
        new = {"k_new": floats(BATCH, 2, HEADS_K, 64), "v_new": floats(BATCH, 2, HEADS_K, 64), "seqused_k": np.array([3, 0, 1])}
        yield f"append {k_type}", flashattn.append_kv, {**new, **cache}, {}, set()
        pages = {"k": blocks(k_type, PAGES, PAGE, HEADS_K, 64), "v": blocks(v_type, PAGES, PAGE, HEADS_K, 64), "page_table": TABLE}
        right = {*wide, *rows, ("page_table", 1, 1)}
        yield f"pages of {k_type}", flashattn.attention, {"q": q, **pages}, {"max_seqlen_k": 8}, right
    mixed = {"k": blocks("q8_0", BATCH, KEYS, HEADS_K, 64), "v": floats(BATCH, KEYS, HEADS_K, DIM_V)}
    yield "blocks beside floats", flashattn.attention, {"q": floats(BATCH, ROWS, HEADS, 64), **mixed}, {}, wide | rows


def latent_cases():
    """v within k."""
    q, k, v = floats(BATCH, ROWS, HEADS, DIM), floats(BATCH, KEYS, HEADS_K, DIM), None
    rows, keys = {("q", 1, 1), ("q", 1, -1)}, {("k", 1, 1), ("k", 1, -1)}
    yield "v in k", flashattn.attention, {"q": q, "k": k}, {"v": v, "dim_v": 5}, rows | keys
    eight = {"k": np.ones((BATCH, KEYS, HEADS_K, DIM), np.int8), "k_descale": floats(BATCH, KEYS, HEADS_K)}
    yield "8-bit v in k", flashattn.attention, {"q": q, **eight}, {"v": v, "dim_v": 5}, rows
    in_blocks = {"q": floats(BATCH, ROWS, HEADS, 64), "k": blocks("q4_0", BATCH, KEYS, HEADS_K, 64)}
    yield "v in blocks", flashattn.attention, in_blocks, {"v": v, "dim_v": 32}, rows | keys
    pages = {"k": floats(PAGES, PAGE, HEADS_K, DIM), "page_table": TABLE}
    pages_of = {"v": v, "dim_v": 5, "max_seqlen_k": 8}
    yield "v in pages", flashattn.attention, {"q": q, **pages}, pages_of, {*rows, ("page_table", 1, 1), ("k", 0, 1), ("k", 1, 1)}
    new = {"k_new": floats(BATCH, 2, HEADS_K, DIM), "k": floats(BATCH, SLOTS, HEADS_K, DIM), "seqused_k": np.array([7, 2, 0])}
    yield "append, v in k", flashattn.append_kv, new, {"v_new": None, "v": v}, {("k_new", 1, -1), ("k", 1, 1)}


def cases():
    """(name, function, arrays, other keywords, what else is right: (argument, axis, change))"""
    q, k, v = floats(BATCH, ROWS, HEADS, DIM), floats(BATCH, KEYS, HEADS_K, DIM), floats(BATCH, KEYS, HEADS_K, DIM_V)
    dense = {"q": q, "k": k, "v": v}
    lengths = {"seqused_q": np.array([4, 0, 3]), "seqused_k": np.array([5, 2, 4]), "leftpad_k": np.array([0, 1, 2])}
    scores = score_operands()
    factors = {
        "q_descale": floats(BATCH, ROWS, HEADS),
        "k_descale": floats(BATCH, KEYS, HEADS_K),
        "v_descale": floats(BATCH, KEYS, HEADS_K),
    }
    explicit = {"causal": "explicit", "causal_offset": np.array([0, 1, 2])}
    dim_v = {("v", 3, 1), ("v", 3, -1)}
    one_slope_a_head = ("alibi_slopes", "one less", 0)
    yield "forward", flashattn.attention, {**dense, **lengths, **scores, **factors}, explicit, {*dim_v, one_slope_a_head}
    heads_first = {name: x.swapaxes(1, 2) for name, x in dense.items()}
    yield (
        "heads first",
        flashattn.attention,
        {**heads_first, **scores, **factors},
        {**explicit, "layout": "bhsd"},
        {*dim_v, one_slope_a_head},
    )

    packed_q, packed_k, packed_v = floats(7, HEADS, DIM), floats(9, HEADS_K, DIM), floats(9, HEADS_K, DIM_V)
    packed = {"q": packed_q, "k": packed_k, "v": packed_v, "cu_seqlens_q": np.array(CU_Q), "cu_seqlens_k": np.array(CU_K)}
    more = {"sinks": floats(HEADS), "q_descale": floats(7, HEADS), "bias": floats(BATCH, HEADS, 3, 4)}
    right = {("v", 2, 1), ("v", 2, -1), ("q_descale", "one more", 0)}
    yield "packed", flashattn.attention, {**packed, **more, "k_descale": floats(BATCH, 9, HEADS_K)}, {}, right

    pages = {"k": floats(PAGES, PAGE, HEADS_K, DIM), "v": floats(PAGES, PAGE, HEADS_K, DIM_V), "page_table": TABLE}
    used = {"seqused_k": np.array([8, 3, 7])}
    rows, wider = {("q", 1, 1), ("q", 1, -1)}, {("page_table", 1, 1)}
    yield "paged", flashattn.attention, {"q": q, **pages, **used}, {"max_seqlen_k": 8}, {*dim_v, *rows, *wider}
    cache = {"k": floats(5, KEYS, HEADS_K, DIM), "v": floats(5, KEYS, HEADS_K, DIM_V), "kv_batch_idx": np.array([4, 0, 4])}
    yield "cache by index", flashattn.attention, {"q": q, **cache}, {}, {*dim_v, *rows}

    out, lse = flashattn.attention(**dense, **scores, causal="top-left", return_lse=True)
    saved = {"dout": floats(*out.shape), "out": out, "lse": lse, "dlse": floats(*lse.shape)}
    options = {"causal": "top-left", "return_dbias": True, "return_dsinks": True}
    yield "backward", flashattn.attention_backward, {**dense, **saved, **scores}, options, {one_slope_a_head}
    out, lse = flashattn.attention(**packed, return_lse=True)
    saved = {"dout": floats(*out.shape), "out": out, "lse": lse, "dlse": floats(*lse.shape)}
    yield "packed backward", flashattn.attention_backward, {**packed, **saved}, {}, set()

    new = {"k_new": floats(BATCH, 2, HEADS_K, DIM), "v_new": floats(BATCH, 2, HEADS_K, DIM_V)}
    angles = {"cos": floats(POSITIONS, HALF), "sin": floats(POSITIONS, HALF)}
    slots = {"k": floats(BATCH, SLOTS, HEADS_K, DIM), "v": floats(BATCH, SLOTS, HEADS_K, DIM_V), "seqused_k": np.array([7, 2, 0])}
    yield "append", flashattn.append_kv, {**new, **slots, **angles, "seqused_new": np.array([2, 0, 1])}, {}, set()
    whole = {name: np.zeros(slots[name].shape, np.int8) for name in "kv"}
    factors = {f"{name}_descale": floats(BATCH, SLOTS, HEADS_K) for name in "kv"}
    yield "append 8 bits", flashattn.append_kv, {**new, **slots, **whole, **factors}, {"dynamic_scale": True}, set()
    packed_new = {"k_new": floats(5, HEADS_K, DIM), "v_new": floats(5, HEADS_K, DIM_V), "cu_seqlens_new": np.array([0, 2, 4, 5])}
    places = {"positions": np.array([0, -1, 3, 4, 8])}
    yield "packed append", flashattn.append_kv, {**packed_new, **slots, **places}, {}, set()
    used = {"seqused_k": np.array([6, 0, 3])}
    yield "paged append", flashattn.append_kv, {**new, **pages, **used}, {"max_seqlen_k": 8}, wider

    at = {"positions": np.arange(BATCH * ROWS).reshape(BATCH, ROWS), **angles, "out": np.zeros_like(q)}
    yield "rotary", flashattn.rotary, {"x": q, "seqused_q": np.array([4, 0, 3]), **at}, {}, set()
    at = {"position_offset": np.array([0, 3, 9]), **angles, "out": np.zeros_like(packed_q)}
    packed_rows = {"cu_seqlens_q": np.array(CU_Q), "seqused_q": np.array([2, 0, 1])}
    yield "packed rotary", flashattn.rotary, {"x": packed_q, **packed_rows, **at}, {}, set()

    parts = {"o_parts": floats(2, BATCH, ROWS, HEADS, DIM), "lse_parts": floats(2, BATCH, HEADS, ROWS), "sinks": floats(HEADS)}
    into = {"into_o": floats(BATCH, ROWS, HEADS, DIM), "into_lse": floats(BATCH, HEADS, ROWS)}
    yield "merge", merge, {**parts, **into, "seqused_q": np.array([4, 0, 3])}, {}, set()
    parts = {"o_parts": floats(2, 7, HEADS, DIM), "lse_parts": floats(2, HEADS, 7), **packed_rows}
    yield "packed merge", merge, {**parts, "into_o": floats(7, HEADS, DIM), "into_lse": floats(HEADS, 7)}, {}, set()

    yield from mask_cases()
    yield from block_cases()
    yield from latent_cases()


def resized(name, array):
    """(axis, change, the array with it); of what broadcasts not those that are right."""
    for axis, length in enumerate(array.shape):
        yield axis, 1, np.pad(array, [(0, int(a == axis)) for a in range(array.ndim)], mode="edge")
        if length > (2 if name in BROADCAST else 1):
            yield axis, -1, np.delete(array, -1, axis)
    yield "one more", 0, array[None]
    if name not in BROADCAST:
        yield "one less", 0, array[0]


class Shapes(unittest.TestCase):
    def test_an_axis_of_another_length_is_refused(self):
        for case, function, arrays, options, right in cases():
            arrays = {name: guarded(array) for name, array in arrays.items()}
            function(**arrays, **options)
            before = {name: array.copy() for name, array in arrays.items()}
            for name, array in arrays.items():
                for axis, change, other in resized(name, array):
                    if (name, axis, change) in right:
                        continue
                    given = {**arrays, name: guarded(other)}
                    with self.subTest(case=case, argument=name, axis=axis, change=change):
                        self.assertRaises(ValueError, function, **given, **options)
                        for other_name, kept in before.items():
                            self.assertEqual(arrays[other_name].tobytes(), kept.tobytes(), other_name)
                        self.assertEqual(given[name].tobytes(), other.tobytes())

    def test_the_library_is_asked_about_every_array(self):
        """One byte less behind any pointer is too little: what the library says is what the arrays have."""
        asked = []

        def check_one_less(request):
            check(request)
            for field, room in request._room.items():
                if room:
                    request._room[field] = room - 1
                    with self.subTest(case=case, field=field), self.assertRaisesRegex(ValueError, f"{field} has {room - 1} bytes"):
                        check(request)
                    request._room[field] = room
                    asked.append(field)

        check = Request.check_room
        for case, function, arrays, options, _ in cases():
            with mock.patch.object(Request, "check_room", check_one_less), mock.patch.object(_prepared, "CACHE", _prepared.Cache()):
                function(**arrays, **options)
        self.assertGreater(len(set(asked)), 40)
        self.assertIn("bias_scale", asked)


if __name__ == "__main__":
    unittest.main()
