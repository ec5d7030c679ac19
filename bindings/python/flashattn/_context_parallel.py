"""Attention over the processes of a torch.distributed group: libflashattn-cp over torch's own messages."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _abi, _cp
from ._arrays import choice, integer
from ._forward import ALIGNMENTS, FLAGS, KEY_LISTS, SCORE_SCALARS, named_causal, window_sides
from ._keywords import Keywords
from ._tensors import Call, constant, gpu_backend, lse_shape, out_shape
from ._transport import Messages, OrderedMessages
from ._types import CommonOptions
from .errors import FlashAttnError
from .handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack

_KEYWORDS = Keywords(CommonOptions, "torch.Tensor")
_LONGEST = 1e9  # seconds, 30 years: in milliseconds 64 bits hold it
_TENSORS = ("sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k")  # that may be None
_ANYWHERE = 256  # the address of a tensor without elements, which is not followed


class context_parallel:
    """Attention over sequences that are distributed over the processes of a group. Each process has only its own rows:

        with flashattn.torch.context_parallel() as cp:
            x, labels = cp.shard(x, 1), cp.shard(labels, 1)
            positions = cp.rows(length)                          # of this process's rows in the whole sequence
            ...
            out = cp.attention(q, k, v, causal="top-left")       # differentiable; all processes call it

    group: of torch.distributed, with gloo for tensors in the CPU's memory or nccl for a GPU's; None: the default one.
    device: of all tensors; None: with nccl the current GPU, else the CPU. On a GPU, calls go into torch's current stream
        and return when they are enqueued. synchronize() waits for them no longer than the time limit, and detects a process
        that died. The agreement before and after a call uses gloo. If the group has none, another group is made for it.
    layout: "zigzag", equal work for each process under a causal mask, or "contiguous".
    method: "auto", "ulysses", "all-gather" or "ring", of forward and backward.
    block: parts begin at multiples of it. timeout: seconds, the longest wait for another process; None: no limit.
    backend: a Handle to compute with, as Handle("cpu", threads=4) or Handle("cuda", device=1, memory="device"); None: one for
        the device.

    Calls are collective: every process makes the same ones in the same order, forward and backward, with the same keywords.
    If one fails, each process gets an exception. After FA_TIMEOUT, or FA_PEER_FAILED by the transport, a new object over a
    new group is needed. One thread at a time.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        device: torch.device | str | None = None,
        layout: str = "zigzag",
        method: str = "auto",
        block: int = 0,
        timeout: float | None = 60.0,
        backend: Handle | None = None,
    ) -> None:
        limit = _milliseconds(timeout)
        self._group = dist.group.WORLD if group is None else group
        self.rank, self.ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._spread = _cp.spread(layout, method, block)
        self.device = _device_of(self._group, device)
        self._owns_handle = backend is None
        if backend is not None:
            self._handle = backend
        elif self.device.type == "cpu":
            self._handle = Handle("cpu")
        else:
            self._handle = Handle(gpu_backend(), device=self.device.index, memory="device")
        self._messages = self._make_messages()
        self._transport = _cp.Transport(flags=self._messages.flags, rank=self.rank, ranks=self.ranks, **self._messages.callbacks)
        info = _cp.CpCreateInfo(transport=ctypes.pointer(self._transport), timeout_ms=limit)
        pointer = ctypes.c_void_p()
        _cp.check(_cp.cp_library().fa_cp_create(ctypes.byref(pointer), self._handle.pointer, ctypes.byref(info)))
        self._pointer: int | None = pointer.value
        self._inside = threading.Lock()

    def rows(self, length: int | Sequence[int] | torch.Tensor) -> torch.Tensor:
        """The numbers that this process's rows have in the whole, in the order of its tensors, as int64. length: rows of a whole
        sequence, or cu_seqlens of packed sequences, which are numbered as one tensor."""
        if isinstance(length, torch.Tensor):
            length = length.tolist() if length.ndim else int(length)
        if isinstance(length, int):
            begins = [0]
            found = _cp.ranges(self._spread, self.rank, self.ranks, integer("length", length, 63, signed=False))
        else:
            begins = [integer("cu_seqlens", n, 31, signed=False) for n in length]
            found = _cp.ranges(self._spread, self.rank, self.ranks, begins)
        parts = [torch.arange(begins[r.sequence] + r.begin, begins[r.sequence] + r.begin + r.rows) for r in found]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def shard(self, x: torch.Tensor, dim: int, cu_seqlens: Sequence[int] | torch.Tensor | None = None) -> torch.Tensor:
        """This process's rows of x. x has the rows of all processes along dim."""
        return x.index_select(dim, self.rows(x.shape[dim] if cu_seqlens is None else cu_seqlens).to(x.device))

    @_KEYWORDS.listed
    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        length: int | None = None,
        length_k: int | None = None,
        return_lse: bool = False,
        **options: Unpack[CommonOptions[torch.Tensor]],
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """softmax(scale · q kᵀ, masked) v, with gradients for q, k, v and sinks, and through out and lse.

        q, k, v: this process's rows, (batch, rows, heads, dim), or packed (rows, heads, dim) with cu_seqlens of whole sequences.
        length, length_k: rows and keys of a whole sequence that is not packed. length None: the sums over all processes,
            which are exchanged; length_k None: length. The other keywords are those of flashattn.torch.attention;
            alibi_slopes and sinks are whole. The gradient of sinks is a share. The shares of all processes add up to the whole,
            as those of a replicated parameter do.

        Returns out, this process's rows; with return_lse also lse, float32 (batch, heads, rows) or packed (heads, rows).
        """
        given = _KEYWORDS.complete(context_parallel.attention, options)
        if given["alignment"] is not None:
            choice("alignment", given["alignment"], ALIGNMENTS)
        tensors = [given[name] for name in _TENSORS]
        scale, window, slopes = given["scale"], given["window"], given["alibi_slopes"]
        settings = {
            **{name: given[name] for name in ("alignment", "chunk")},
            "causal": named_causal(given["causal"]),
            "window": None if window is None else window_sides(window),
            "scale": None if scale is None else constant("scale", scale),
            **{name: constant(name, given.get(name, 0.0)) for name in SCORE_SCALARS},
            **{name: given.get(name, False) for name in FLAGS},
            "lengths": self._lengths(q, k, length, length_k, given["cu_seqlens_q"], given["cu_seqlens_k"]),
            "gives_dlse": return_lse,
            "wants_slopes": slopes is not None and slopes.requires_grad and torch.is_grad_enabled(),
        }
        function: Any = _Attention  # whose apply has no types
        out, lse = function.apply(self, settings, q, k, v, *tensors)
        return (out, lse) if return_lse else out

    def synchronize(self) -> None:
        """Waits for the work of calls on a GPU, no longer than the time limit."""
        self._checked(_cp.cp_library().fa_cp_synchronize, self._pointer)

    def traffic(self) -> tuple[int, int]:
        """Bytes and messages that this process sent in the last call."""
        sent, messages = ctypes.c_uint64(), ctypes.c_uint64()
        _cp.check(_cp.cp_library().fa_cp_traffic(self._pointer, ctypes.byref(sent), ctypes.byref(messages)))
        return sent.value, messages.value

    def close(self) -> None:
        """Frees what the object owns; a second call does nothing. Not collective."""
        if self._pointer is not None:
            _cp.cp_library().fa_cp_destroy(self._pointer)
            self._pointer = None
            if self._owns_handle:
                self._handle.close()

    def __enter__(self) -> context_parallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lengths(self, q: Any, k: Any, length: Any, length_k: Any, cu_q: Any, cu_k: Any) -> list[int | list[int]]:
        """Rows and keys of a whole sequence, or cu_seqlens."""
        rows = None if length is None else integer("length", length, 63, signed=False)
        keys = None if length_k is None else integer("length_k", length_k, 63, signed=False)
        if cu_q is not None or cu_k is not None:
            rows, keys = (0 if rows is None else rows), (0 if keys is None else keys)
        elif rows is None:
            counts = torch.tensor([q.shape[-3], k.shape[-3]])
            dist.all_reduce(counts, group=self._messages.host_group)
            rows, keys = (int(n) for n in counts)
        elif keys is None:
            keys = rows
        return [n if cu is None else cu.tolist() for n, cu in ((rows, cu_q), (keys, cu_k))]

    def run(self, make: Callable[[], Call], lengths: Sequence[int | list[int]], *, backward: bool = False) -> Call:
        """Makes a call of this process's tensors and runs it over all processes. If this one refuses it, the others get an error."""
        try:
            call = make()
            self._check(call, lengths)
        except Exception:
            with contextlib.suppress(Exception):
                self._call(backward, None, None)
            raise
        desc = call.request.desc
        for name, length in zip(("q", "k"), lengths):
            if isinstance(length, list):
                setattr(desc, f"total_{name}", length[-1])
            else:
                setattr(desc, f"seqlen_{name}", length)
        self._call(backward, desc, call.request.args)
        return call

    def _check(self, call: Call, lengths: Sequence[int | list[int]]) -> None:
        if call.device != self.device:
            raise ValueError(f"q is on {call.device}: expected {self.device}, in whose memory messages lie")
        for name, length in zip(("q", "k"), lengths):
            here = getattr(call.request.desc, f"total_{name}" if isinstance(length, list) else f"seqlen_{name}")
            expected = sum(r.rows for r in _cp.ranges(self._spread, self.rank, self.ranks, length))
            if here != expected:
                of = length[-1] if isinstance(length, list) else length
                raise ValueError(
                    f"{name} has {here} rows: expected {expected}, which process {self.rank} of {self.ranks} has of {of}"
                )
        call.request.check_rooms()

    def _call(self, backward: bool, desc: Any, args: Any) -> None:
        if args is not None and self.device.type != "cpu":
            args.flags |= _abi.FA_ARGS_STREAM
            args.stream = torch.cuda.current_stream(self.device).cuda_stream
        function = _cp.cp_library().fa_cp_backward if backward else _cp.cp_library().fa_cp_forward
        self._checked(function, self._pointer, desc, self._spread, args)

    def _checked(self, function: Any, pointer: int | None, *arguments: Any) -> None:
        if pointer is None:
            raise ValueError("the object is closed")
        with self._inside:
            self._messages.failure = None
            status = function(pointer, *arguments)
            try:
                _cp.check(status, pointer)
            except FlashAttnError as failure:
                raise failure from self._messages.failure

    def _make_messages(self) -> Messages:
        return (Messages if self.device.type == "cpu" else OrderedMessages)(self._group, self.device)


def _milliseconds(timeout: float | None) -> int:
    if timeout is None:
        return -1
    if not 0 <= timeout <= _LONGEST:
        raise ValueError(f"timeout is {timeout}: expected seconds, up to {_LONGEST:g}, or None, for no limit")
    return max(int(timeout * 1e3), 1)


def _device_of(group: Any, device: torch.device | str | None) -> torch.device:
    if device is None:
        device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    found = torch.device(device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {found}: expected the CPU or a GPU")
    return torch.device("cuda", torch.cuda.current_device()) if found.type == "cuda" and found.index is None else found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cp: context_parallel, settings: dict[str, Any], *tensors: Any) -> tuple[torch.Tensor, torch.Tensor]:
        given = _given(settings, tensors)
        results: list[torch.Tensor] = []

        def make() -> Call:
            if settings["wants_slopes"]:
                raise NotImplementedError("alibi_slopes requires a gradient, which it lacks over several processes: expected it detached")
            call = Call(given)
            results.append(call.output("o", out_shape(given), given["q"].dtype, gaps=False))
            results.append(call.output("lse", lse_shape(given), torch.float32, gaps=False))
            return call

        cp.run(make, settings["lengths"])
        out, lse = results
        ctx.save_for_backward(*tensors, out, lse)
        ctx.cp, ctx.settings = cp, settings
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *tensors, out, lse = ctx.saved_tensors
        given, (dout, dlse) = _given(ctx.settings, tensors), gradients
        found: list[torch.Tensor] = []

        def make() -> Call:
            call = Call(given, backward=True)
            call.point("o", out)
            call.point("lse", lse)
            call.point("dout", dout.contiguous())
            if ctx.settings["gives_dlse"]:
                call.point("dlse", dlse.contiguous())
            # All of them on every process, whatever this one needs: the others' gradients come from its rows, too.
            found.extend(call.gradient(f"d{name}", given[name]) for name in ("q", "k", "v"))
            if given["sinks"] is not None:
                found.append(call.score_gradient("dsinks", tuple(given["sinks"].shape)))
            args = call.request.args
            for name in ("dq", "dk", "dv", *(["dlse"] if ctx.settings["gives_dlse"] else [])):
                setattr(args, name, getattr(args, name) or _ANYWHERE)
            return call

        ctx.cp.run(make, ctx.settings["lengths"], backward=True)
        if given["sinks"] is not None:
            found[3] = (found[3] / ctx.cp.ranks).to(given["sinks"].dtype)
        needed = zip((*found, None), ctx.needs_input_grad[2:6])
        return (None, None, *(x if need else None for x, need in needed), None, None, None)


def _given(settings: dict[str, Any], tensors: Sequence[torch.Tensor | None]) -> dict[str, Any]:
    """Of a Call: every operand and setting."""
    others = dict.fromkeys(("bias", "bias_scale", "bias_period", "mask", "mask_period", "key_ranges", *KEY_LISTS, "dropout_seed"))
    others |= {"mask_keys": 0, "mask_bits": False, "list_rows": 1, "list_keys": 1, "dropout_p": 0.0, "handle": 0}
    longest = {"max_seqlen_q": None, "max_seqlen_k": None}
    return {**settings, **others, **longest, **dict(zip(("q", "k", "v", *_TENSORS), tensors))}
