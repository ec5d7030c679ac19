"""Makes contestants: this library's calls, checked against fp64 before they are timed, and its rivals'."""

from __future__ import annotations

from typing import Callable

import torch
from flashattn import _abi

from ..judge import Contestant
from ..ours import BackwardCall, Call, Library
from ..problem import Problem
from ..truth import LIMITS, gradient_error, relative_error
from .clock import block_of
from .rivals import rival_call
from .targets import Cpu

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def normal(*shape: int, dtype: str = "bf16") -> torch.Tensor:
    return torch.randn(*shape).to(DTYPES[dtype])


class Bench:
    def __init__(self, threads: int) -> None:
        self.threads, self.cpu = threads, Cpu.read()
        self.library = Library(_abi.FA_BACKEND_CPU)
        # OpenMP's threads, as torch's are: both wait alike, and have the machine to themselves.
        for key, value in ((_abi.FA_PARAM_THREAD_POOL, _abi.FA_POOL_OPENMP), (_abi.FA_PARAM_THREADS, threads)):
            self.library.check(self.library.lib.fa_param_set(self.library.handle, key, value))
        torch.set_num_threads(threads)

    def ours(self, *problems: Problem, work: str = "flops") -> Contestant:
        """The call over each of the problems in turn (rotating sets of the same shape)."""
        calls = [Call(self.library, p) for p in problems]
        calls[0]()
        c = self.contestant(calls, problems[0], work)
        c.error, c.limit = relative_error(problems[0], calls[0].o), LIMITS[problems[0].q.dtype]
        c.kernel = calls[0].kernel()
        return c

    def gradients(self, p: Problem) -> Contestant:
        call = BackwardCall(self.library, p)
        call()
        c = self.contestant([call], p, "flops")
        c.error, c.limit, c.kernel = gradient_error(p, call.dq, call.dk, call.dv), LIMITS[p.q.dtype], call.kernel()
        return c

    def contestant(self, calls: list[Callable], p: Problem, work: str) -> Contestant:
        amount, unit = (p.flops(), "GFLOP/s") if work == "flops" else (p.cache_bytes(), "GB/s")
        return Contestant(block_of(calls), amount, unit)

    def beside(self, contestants: dict[str, Contestant], names: list[str], *problems: Problem, work: str = "flops") -> None:
        """Adds those rivals that take the problem."""
        for name in names:
            try:
                calls = [rival_call(name, p, self.threads) for p in problems]
                contestants[name] = self.contestant(calls, problems[0], work)
            except RuntimeError:  # no kernel for it, or not installed
                pass
