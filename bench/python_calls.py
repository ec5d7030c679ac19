#!/usr/bin/env python3
"""What a call costs in Python: a step of decoding that is so short that the call itself is what takes the time.

    python_calls.py [ROUNDS]

Three sequences, eight query heads on two of keys, 124 keys, 64 dims, one thread, by NumPy and, where it is installed, by torch, whose own
function is the yardstick. All ways take turns, ROUNDS times (300); the table has the medians in microseconds.
"""
import contextlib
import sys
import time
from statistics import median

import flashattn
import numpy as np
from flashattn import _abi
from flashattn._library import library

BATCH, HEADS, HEADS_K, KEYS, DIM = 3, 8, 2, 124, 64
UNDER_SDPA = "within sdpa()"


def numpy_ways(handle):
    rng = np.random.default_rng(1)
    scales = iter(range(1 << 30))
    q, k, v = (rng.standard_normal((BATCH, n, h, DIM), np.float32) for n, h in ((1, HEADS), (KEYS, HEADS_K), (KEYS, HEADS_K)))
    mask, used = np.ones((BATCH, 1, 1, KEYS), bool), np.full(BATCH, KEYS, np.int32)
    plan, long_plan = (flashattn.Plan(q, k, v, **more, backend=handle) for more in ({}, {"seqused_k": used}))

    def first():  # of its kind: an option that no call before it had
        return flashattn.attention(q, k, v, backend=handle, scale=1 + next(scales) / 2**20)

    return {
        "NumPy: Plan": lambda: plan(q, k, v),
        "NumPy: Plan, lengths": lambda: long_plan(q, k, v, seqused_k=used),
        "NumPy: attention": lambda: flashattn.attention(q, k, v, backend=handle),
        "NumPy: attention, mask": lambda: flashattn.attention(q, k, v, mask=mask, backend=handle),
        "NumPy: attention, the first of its kind": first,
    }


def torch_ways(handle):
    try:
        import torch
        from flashattn import torch as ours
    except ImportError as reason:
        print(f"torch is left out: {reason}")
        return {}
    torch.set_num_threads(1)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    ways = {}
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(BATCH, h, n, DIM, dtype=dtype) for n, h in ((1, HEADS), (KEYS, HEADS_K), (KEYS, HEADS_K)))
        for name, given in (("", {}), (", mask", {"mask": torch.ones(BATCH, 1, 1, KEYS, dtype=torch.bool)})):
            ways |= torch_ways_of(f"{str(dtype)[6:]}{name}", ours, sdpa, (q, k, v), given, handle)
    return ways


def torch_ways_of(name, ours, sdpa, tensors, given, handle):
    theirs = {"attn_mask": given["mask"]} if given else {}

    plan = ours.Plan(*tensors, **given, layout="bhsd", backend=handle)
    return {
        f"torch: Plan, {name}": lambda: plan(*tensors, **given),
        f"torch's own: {name}": lambda: sdpa(*tensors, **theirs, enable_gqa=True),
        f"torch: attention, {name}": lambda: ours.attention(*tensors, **given, layout="bhsd", backend=handle),
        f"torch: {UNDER_SDPA}, {name}": lambda: sdpa(*tensors, **theirs, enable_gqa=True),
    }


def in_c(handle):
    """The library's own time, of a call whose descriptor and args are ready."""
    q, k = np.ones((BATCH, 1, HEADS, DIM), np.float32), np.ones((BATCH, KEYS, HEADS_K, DIM), np.float32)
    out = np.empty_like(q)
    sizes = {"batch": BATCH, "seqlen_q": 1, "seqlen_k": KEYS, "heads_q": HEADS, "heads_k": HEADS_K, "dim_qk": DIM, "dim_v": DIM}
    desc = _abi.AttentionDesc(q_dtype=_abi.FA_F32, **sizes)
    args = _abi.ForwardArgs(**{name: x.ctypes.data for name, x in (("q", q), ("k", k), ("v", k), ("o", out))})
    forward, pointer = library().fa_forward_ex, handle.pointer

    def call(kept=(q, k, out)):
        if forward(pointer, desc, args) != _abi.FA_OK:
            sys.exit(library().fa_last_error(pointer).decode())

    return {"the library's own": call}


def main(rounds=300):
    with flashattn.Handle("cpu", threads=1) as handle:
        ways = {**in_c(handle), **numpy_ways(handle), **torch_ways(handle)}
        times = {name: [] for name in ways}
        for _ in range(int(rounds)):
            for name, way in ways.items():
                with sys.modules["flashattn.torch"].sdpa(fallback=False) if UNDER_SDPA in name else contextlib.nullcontext():
                    way()
                    begin = time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - begin)
    for name, found in times.items():
        print(f"{name:45} {1e6 * median(found):8.1f}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
