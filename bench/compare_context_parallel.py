#!/usr/bin/env python3
"""flashattn.torch.context_parallel beside PyTorch's own context parallelism, on the GPUs of one host over NCCL: forward and backward of the
same causal problems, one process a GPU, rivals in turn, medians of rounds.

    compare_context_parallel.py [--ranks N] [--tokens 8192,32768,65536] [--seconds 100] [--json FILE]

Needs torch with CUDA, and libflashattn and libflashattn-cp with the CUDA module (FLASHATTN_LIBRARY, FLASHATTN_CP_LIBRARY,
FLASHATTN_BACKEND_DIR). A time is that of the slowest process. "local" is this library on each GPU by itself, all rows of its share of the
heads: as many operations, and no messages. Both have the same rows on the same GPU, so their outputs are compared; the exit status is 1
where they differ or a process failed. A rival that does not take k and v with fewer heads gets them repeated, before the clock runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "bindings" / "python")]

import flashattn.torch  # noqa: E402

HEADS, HEADS_K, DIM = 32, 8, 128
METHODS = ("auto", "ulysses", "all-gather", "ring")
ROTATIONS = ("allgather", "alltoall")
LIMIT = 0.02  # of the norm of two outputs' difference, bf16
BACKWARD = 2.5  # times a forward's operations


class Local:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def inputs(self, tokens: int) -> list[torch.Tensor]:
        return [make(1, tokens * self.ranks, heads // self.ranks) for heads in (HEADS, HEADS_K, HEADS_K, HEADS)]

    def __call__(self, q, k, v):
        return flashattn.torch.attention(q, k, v, causal="top-left")


class Ours:
    def __init__(self, method: str, ranks: int) -> None:
        self.cp, self.ranks = flashattn.torch.context_parallel(device="cuda", method=method, timeout=30), ranks

    def inputs(self, tokens: int) -> list[torch.Tensor]:
        return rows_of(self.cp, tokens * self.ranks)

    def __call__(self, q, k, v):
        return self.cp.attention(q, k, v, causal="top-left", length=q.shape[1] * self.ranks)


class Torch:
    """Its rows are in the same order: parts r and 2 · ranks − 1 − r."""

    def __init__(self, rotation: str, ranks: int, cp) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.mesh, self.rotation, self.ranks, self.cp, self.repeats = init_device_mesh("cuda", (ranks,)), rotation, ranks, cp, False

    def inputs(self, tokens: int) -> list[torch.Tensor]:
        q, k, v, dout = (x.transpose(1, 2).contiguous() for x in rows_of(self.cp, tokens * self.ranks))
        if self.repeats:
            k, v = (x.repeat_interleave(HEADS // HEADS_K, 1) for x in (k, v))
        return [q, k, v, dout]

    def __call__(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])

    @contextlib.contextmanager
    def around(self):
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        set_rotate_method(self.rotation)
        nothing = torch.zeros(2 * self.ranks, device="cuda")  # it wants a tensor to cut; inputs are this process's rows already
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]), context_parallel(self.mesh, buffers=[nothing], buffer_seq_dims=[0]):
            yield


def make(batch: int, rows: int, heads: int) -> torch.Tensor:
    return torch.randn(batch, rows, heads, DIM, device="cuda", dtype=torch.bfloat16)


def rows_of(cp, length: int) -> list[torch.Tensor]:
    """This process's rows of a sequence that all processes draw alike, a pattern that repeats."""
    period = 1024
    generator = torch.Generator(device="cuda").manual_seed(7)
    at = (cp.rows(length) % period).cuda()
    return [torch.randn(1, period, heads, DIM, device="cuda", dtype=torch.bfloat16, generator=generator).index_select(1, at)
            for heads in (HEADS, HEADS_K, HEADS_K, HEADS)]


def slowest(seconds: float) -> float:
    x = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return float(x)


def once(way, inputs) -> tuple[float, float, torch.Tensor]:
    """Seconds of a forward and of a backward, and the output."""
    q, k, v, dout = inputs
    with way.around() if hasattr(way, "around") else contextlib.nullcontext():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        torch.cuda.synchronize()
        slowest(0)  # all are here
        begin = time.monotonic()
        out = way(q, k, v)
        torch.cuda.synchronize()
        middle = time.monotonic()
        torch.autograd.grad(out, (q, k, v), dout)
        torch.cuda.synchronize()
        end = time.monotonic()
    out = out.detach()
    return slowest(middle - begin), slowest(end - middle), getattr(out, "to_local", lambda: out)()


def ready(way, tokens: int) -> list[torch.Tensor]:
    """Inputs that the way takes; raises what it says to the last try."""
    inputs = way.inputs(tokens)
    if isinstance(way, Torch) and not way.repeats:
        try:
            once(way, inputs)
        except Exception:
            way.repeats = True
            inputs = way.inputs(tokens)
    once(way, inputs)
    return inputs


def measure(ways: dict, tokens: int, ranks: int, rounds: int) -> list[dict]:
    inputs, rows, times, outputs = {}, [], {}, {}
    for name, way in ways.items():
        try:
            inputs[name] = ready(way, tokens)
            times[name] = []
        except Exception as failure:
            rows.append({"way": name, "tokens_per_gpu": tokens, "failed": f"{type(failure).__name__}: {failure}"[:300]})
    for turn in range(rounds):
        for name in list(times)[:: -1 if turn % 2 else 1]:
            *seconds, outputs[name] = once(ways[name], inputs[name])
            times[name].append(seconds)
    local = sum(median(column) for column in zip(*times["local"]))
    flops = 2.0 * (tokens * ranks) ** 2 * HEADS * DIM / ranks
    judge = outputs.get("flashattn all-gather")
    for name, columns in times.items():
        forward, backward = (median(column) for column in zip(*columns))
        row = {"way": name, "tokens_per_gpu": tokens, "rounds": rounds, "forward_seconds": forward, "backward_seconds": backward,
               "tflops_per_gpu": 1e-12 * flops * (1 + BACKWARD) / (forward + backward), "efficiency": local / (forward + backward)}
        if name != "local" and judge is not None:
            out = outputs[name].transpose(1, 2) if isinstance(ways[name], Torch) else outputs[name]
            row["error"] = slowest(float((out.float() - judge.float()).norm() / judge.float().norm()))
            row["repeats_k_and_v"] = getattr(ways[name], "repeats", False)
        rows.append(row)
    return rows


def process(rank: int, options: argparse.Namespace, port: int, end: float, path: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=options.ranks)
    ours = {f"flashattn {method}": Ours(method, options.ranks) for method in METHODS}
    ways = {"local": Local(options.ranks), **ours}
    ways |= {f"torch {rotation}": Torch(rotation, options.ranks, ours["flashattn auto"].cp) for rotation in ROTATIONS}
    rows, took = [], 0.0
    for tokens in options.tokens:
        begin = time.monotonic()
        if slowest(begin + 4 * took) > end:  # a row of twice the tokens
            rows.append({"left_out": tokens})
            continue
        rows += measure(ways, tokens, options.ranks, 5 if took < 5 else 3)
        torch.cuda.empty_cache()
        took = slowest(time.monotonic() - begin)
        if rank == 0:
            Path(path).write_text(json.dumps(rows))
    slowest(0)
    os._exit(0)  # groups end with their processes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=[8192, 32768, 65536], help="of each GPU")
    parser.add_argument("--seconds", type=float, default=100, help="no row begins that would not end by then")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.ranks < 2 or HEADS_K % options.ranks:
        parser.error(f"{options.ranks} ranks: expected 2 or more GPUs that divide {HEADS_K} heads")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        good = True
        try:
            mp.spawn(process, (options, port, time.monotonic() + options.seconds, path), nprocs=options.ranks)
        except Exception as failure:
            print(failure, file=sys.stderr)
            good = False
        rows = json.loads(Path(path).read_text()) if os.path.exists(path) else []
    for row in rows:
        if "efficiency" in row:
            print(f"{row['tokens_per_gpu']:7} tokens  {row['way']:21} {1e3 * row['forward_seconds']:9.2f} ms + {1e3 * row['backward_seconds']:9.2f} ms  "
                  f"{row['tflops_per_gpu']:6.0f} TFLOP/s a GPU, {100 * row['efficiency']:5.1f} %  error {row.get('error', 0):.1e}")
            good &= row.get("error", 0) <= LIMIT
        else:
            print(row)
    if options.json:
        kept = {"device": torch.cuda.get_device_name(0), "gpus": options.ranks, "torch": torch.__version__,
                "date": date.today().isoformat(),
                "heads": HEADS, "heads_k": HEADS_K, "dim": DIM, "rows": rows}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if good and rows else 1


if __name__ == "__main__":
    sys.exit(main())
