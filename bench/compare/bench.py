"""Makes contestants: this library's calls, checked against fp64 before they are timed, and torch's."""

from __future__ import annotations

import ctypes
from typing import Callable

import torch

from flashattn import _abi

from .clock import captured, cpu_block, gpu_block
from .judge import Contestant
from .ours import BackwardCall, Call, Library
from .problem import Problem
from .rivals import torch_call
from .truth import LIMITS, gradient_error, limit_of, relative_error

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    if dtype.itemsize == 1:
        return torch.randn(*shape, device="cuda").to(dtype)
    return torch.randn(*shape, device="cuda", dtype=dtype)


class Bench:
    def __init__(self, extra_rivals: list[str], shared_kb: int | None = None) -> None:
        self.library = Library()
        self.extra_rivals = extra_rivals
        self.shared_kb = shared_kb  # that a block may have; None: all that there is

    def ours(self, *problems: Problem, graph: bool = False, work: str = "flops") -> Contestant:
        """The call over each of the problems in turn (rotating sets of the same shape); eager ones have one."""
        calls = [Call(self.library, p, captured=graph) for p in problems]
        calls[0]()
        torch.cuda.synchronize()
        first = problems[0]
        c = self.contestant(calls, first, graph, work)
        c.error, c.limit = relative_error(first, calls[0].o), limit_of(first)
        c.kernel = calls[0].kernel()
        return c

    def gradients(self, p: Problem, deterministic: bool = False) -> Contestant:
        call = BackwardCall(self.library, p, deterministic)
        call()
        torch.cuda.synchronize()
        c = self.contestant([call], p, False, "flops")
        c.error, c.limit, c.kernel = gradient_error(p, call.dq, call.dk, call.dv), LIMITS[p.q.dtype], call.kernel()
        return c

    def contestant(self, calls: list[Callable], p: Problem, graph: bool, work: str) -> Contestant:
        block = gpu_block(*captured(calls)) if graph else gpu_block(calls[0], 1)
        return Contestant(block, p.flops(), "TFLOP/s") if work == "flops" else Contestant(block, p.cache_bytes(), "TB/s")

    def beside(self, contestants: dict[str, Contestant], names: list[str], *problems: Problem, graph: bool = False,
               work: str = "flops") -> list[str]:
        """Adds those of torch's kernels that take the problem; gives the names of all that were wanted."""
        wanted = list(dict.fromkeys([*names, *self.extra_rivals]))
        for name in wanted:
            try:
                contestants[name] = self.contestant([torch_call(name, p) for p in problems], problems[0], graph, work)
            except RuntimeError as error:  # torch.OutOfMemoryError too: MATH stores all scores
                if "CUDA error" in str(error):
                    raise
                torch.cuda.empty_cache()
        return wanted

    def enqueue(self, p: Problem) -> tuple[Contestant, float]:
        """CPU seconds of a call, and what of it ctypes costs: a call of the same library that does next to nothing."""
        call = Call(self.library, p)
        call()
        torch.cuda.synchronize()
        error = relative_error(p, call.o)
        forward, idle = self.library.lib.fa_forward_ex, self.library.lib.fa_param_get
        pointers = self.library.handle, _abi.FA_INFO_BACKEND, ctypes.byref(ctypes.c_int64())
        foreign = cpu_block(lambda: idle(*pointers), 256)(20)
        block = cpu_block(lambda: forward(*call.pointers), 256)
        return Contestant(lambda ms: block(ms) - foreign, error=error, limit=limit_of(p), kernel=call.kernel()), foreign
