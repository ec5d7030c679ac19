#!/usr/bin/env python3
"""libflashattn beside PyTorch's attention on one GPU: the same tensors, one process, rivals in turn, medians of rounds.

    compare_gpu.py [--rounds 7] [--milliseconds 60] [--json FILE]

Needs torch with CUDA, and libflashattn with its CUDA module (FLASHATTN_LIBRARY, FLASHATTN_BACKEND_DIR). Every shape is first checked
against fp64. Rates count 4·B·H·S²·d floating-point operations, half when causal. Clocks follow power and temperature: compare ratios.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bindings" / "python"))
from flashattn import _abi  # noqa: E402
from flashattn._library import library, version_text  # noqa: E402

DTYPES = {"f32": (torch.float32, _abi.FA_F32), "f16": (torch.float16, _abi.FA_F16), "bf16": (torch.bfloat16, _abi.FA_BF16)}
RIVALS = {"EFFICIENT": SDPBackend.EFFICIENT_ATTENTION, "FLASH": SDPBackend.FLASH_ATTENTION, "CUDNN": SDPBackend.CUDNN_ATTENTION,
          "MATH": SDPBackend.MATH}
# dtype, batch, sequence, heads, dim
SHAPES = [("f32", 4, 2048, 16, 64), ("f32", 4, 2048, 16, 128), ("f32", 2, 2048, 8, 256), ("f32", 2, 2048, 8, 59),
          ("f32", 16, 64, 12, 64), ("f32", 16, 256, 12, 64), ("f16", 4, 2048, 16, 64), ("bf16", 4, 2048, 16, 64),
          ("bf16", 4, 2048, 16, 128)]


class Library:
    """A CUDA handle that takes torch's device pointers and its stream."""

    def __init__(self) -> None:
        self.lib = library()
        self.handle = _abi.Handle()
        info = _abi.CreateInfo(backend=_abi.FA_BACKEND_CUDA, memory=_abi.FA_MEMORY_DEVICE)
        self.check(self.lib.fa_create(ctypes.byref(self.handle), ctypes.byref(info)), None)

    def check(self, status: int, handle) -> None:
        if status:
            raise RuntimeError(self.lib.fa_last_error(handle).decode())

    def forward(self, dtype: str, q, k, v, o, causal: bool):
        batch, rows, heads, dim = q.shape
        desc = _abi.AttentionDesc(q_dtype=DTYPES[dtype][1], batch=batch, heads_q=heads, heads_kv=k.shape[2], seqlen_q=rows,
                                  seqlen_k=k.shape[1], dim_qk=dim, flags=_abi.FA_CAUSAL if causal else 0,
                                  alignment=_abi.FA_ALIGN_BOTTOM_RIGHT if causal else 0)
        args = _abi.ForwardArgs(flags=_abi.FA_ARGS_STREAM, stream=torch.cuda.current_stream().cuda_stream, q=q.data_ptr(),
                                k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr())
        return lambda: self.check(self.lib.fa_forward_ex(self.handle, ctypes.byref(desc), ctypes.byref(args)), self.handle)


def torch_call(backend, q, k, v, causal: bool):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def seconds(call, milliseconds: float) -> float:
    """Time of one call, over enough of them to fill the given time."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    count = 1
    while True:
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        spent = begin.elapsed_time(end)
        if spent >= milliseconds:
            return spent / count / 1e3
        count = max(count + 1, int(count * milliseconds / max(spent, 1e-3) * 1.2))


def error(o, q, k, v, causal: bool) -> float:
    """Relative Frobenius error of the first sequence against fp64."""
    q, k, v = (x[:1].double().transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(SDPBackend.MATH):
        want = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    return ((o[:1].double() - want).norm() / want.norm()).item()


def compare(ours: Library, shape, causal: bool, rounds: int, milliseconds: float) -> dict:
    dtype, batch, rows, heads, dim = shape
    q, k, v = (torch.randn(batch, rows, heads, dim, device="cuda", dtype=DTYPES[dtype][0]) for _ in range(3))
    o = torch.full_like(q, float("nan"))
    calls = {"ours": ours.forward(dtype, q, k, v, o, causal)}
    calls["ours"]()
    for name, backend in RIVALS.items():
        call = torch_call(backend, q, k, v, causal)
        try:
            call()
            calls[name] = call
        except RuntimeError:
            pass  # this backend does not take the shape
    times = {name: [] for name in calls}
    for n in range(rounds):
        for name in list(calls) if n % 2 == 0 else list(calls)[::-1]:
            times[name].append(seconds(calls[name], milliseconds))
    flops = 4 * batch * heads * rows * rows * dim / (2 if causal else 1)
    rates = {name: flops / statistics.median(t) / 1e12 for name, t in times.items()}
    ratios = {name: statistics.median(b / a for a, b in zip(times["ours"], t)) for name, t in times.items() if name != "ours"}
    return {"dtype": dtype, "batch": batch, "seqlen": rows, "heads": heads, "dim": dim, "causal": causal,
            "relative_error": error(o, q, k, v, causal), "microseconds": statistics.median(times["ours"]) * 1e6,
            "tflops": rates, "speed_over": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--milliseconds", type=float, default=60, help="of each rival in each round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(1)
    ours = Library()
    rows = []
    for shape in SHAPES:
        for causal in (False, True):
            row = compare(ours, shape, causal, options.rounds, options.milliseconds)
            rows.append(row)
            rivals = "  ".join(f"{name} {rate:6.1f} ({row['speed_over'][name]:.2f}x)" for name, rate in row["tflops"].items() if name != "ours")
            print(f"{row['dtype']:4} B{row['batch']} S{row['seqlen']} H{row['heads']} d{row['dim']} {'causal' if causal else 'dense':6}"
                  f" {row['tflops']['ours']:6.1f} TFLOP/s  {rivals}  error {row['relative_error']:.1e}", flush=True)
    if options.json:
        result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                  "library": version_text(ours.lib.fa_version()), "rounds": options.rounds, "forward": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
