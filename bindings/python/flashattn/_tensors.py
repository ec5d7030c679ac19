"""Calls of the library on torch's tensors: the descriptor, the args, and on a GPU torch's stream and torch's memory."""

from __future__ import annotations

from typing import Any

import torch

from . import _abi
from ._arrays import integer
from ._forward import place, plain_scores
from ._request import Request
from ._types import BackendName
from .handle import Handle, handle_of

_CODES = {torch.float32: _abi.FA_F32, torch.float16: _abi.FA_F16, torch.bfloat16: _abi.FA_BF16}
_WORKSPACE_ALIGNMENT = 256


class Call:
    """Descriptor and args of one call; q, k and v by their own strides, everything else dense. backward: for the gradients."""

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        sinks: torch.Tensor | None,
        options: dict[str, Any],
        *,
        backward: bool = False,
    ) -> None:
        self.device = q.device
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"q is on {self.device}: expected the CPU or a GPU")
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.dtype not in _CODES or x.dtype != q.dtype:
                raise TypeError(f"{name} has dtype {x.dtype}: expected float32, float16 or bfloat16, the same for q, k and v")
        self._inputs = Request(_abi.ForwardArgs())
        self.request = Request(_abi.BackwardArgs(), self._inputs) if backward else self._inputs
        desc, args = self.request.desc, self._inputs.args
        desc.q_dtype = desc.k_dtype = desc.v_dtype = desc.o_dtype = _CODES[q.dtype]
        desc.operands = _abi.FA_OPERAND_LSE
        self._sizes(q, k, v, options)
        for name, x in (("q", q), ("k", k), ("v", v)):
            x, strides = _addressable(x)
            self.point(name, x)
            desc.strided |= getattr(_abi, f"FA_STRIDED_{name.upper()}")
            setattr(desc, f"{name}_stride", strides)
        place(self._inputs, options["causal"], None, options["alignment"], options["window"], options["chunk"])
        plain_scores(self._inputs, options["scale"], options["softcap"])
        self._operands(bias, sinks, options)
        desc.dropout_p = options["dropout_p"]
        args.dropout_seed = integer("dropout_seed", options["dropout_seed"], 64, signed=False) if options["dropout_p"] else 0
        if options["deterministic"]:
            desc.flags |= _abi.FA_DETERMINISTIC

    def _sizes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> None:
        desc = self.request.desc
        lengths = {name: options[f"cu_seqlens_{name}"] for name in ("q", "k")}
        ranks = {name: 4 if cu is None else 3 for name, cu in lengths.items()}
        if q.ndim != ranks["q"] or k.ndim != ranks["k"] or v.shape[:-2] != k.shape[:-2] or k.shape[-1] != q.shape[-1]:
            raise ValueError(
                f"q, k and v have shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}: expected (batch, rows, heads, "
                "dim), or (total, heads, dim) with cu_seqlens, dims of q and k alike, and k and v alike but for heads and dims"
            )
        if 0 in k.shape[-2:] or 0 in v.shape[-2:]:  # a zero in the descriptor would mean its default
            raise ValueError(
                f"k has heads and dims {tuple(k.shape[-2:])} and v {tuple(v.shape[-2:])}: expected at least one of each"
            )
        desc.batch = q.shape[0] if lengths["q"] is None else len(lengths["q"]) - 1
        desc.heads_q, desc.dim_qk = q.shape[-2:]
        desc.heads_k = k.shape[-2]
        desc.heads_v, desc.dim_v = v.shape[-2:]
        for name, x in (("q", q), ("k", k)):
            cu, longest = lengths[name], options[f"max_seqlen_{name}"]
            if cu is None:
                setattr(desc, f"seqlen_{name}", x.shape[1])
                if x.shape[0] != desc.batch:
                    raise ValueError(f"{name} has {x.shape[0]} sequences: expected {desc.batch}")
                continue
            if cu.shape != (desc.batch + 1,) or cu.is_floating_point():
                raise ValueError(
                    f"cu_seqlens_{name} has shape {tuple(cu.shape)} and dtype {cu.dtype}: expected integers, (batch + 1,) = "
                    f"({desc.batch + 1},)"
                )
            if longest is None:  # on a GPU this waits for it
                longest = max(int(cu.diff().max()) if len(cu) > 1 else 0, 0)
            setattr(desc, f"total_{name}", x.shape[0])
            setattr(desc, f"seqlen_{name}", integer(f"max_seqlen_{name}", longest, 63, signed=False))
            desc.operands |= getattr(_abi, f"FA_OPERAND_CU_SEQLENS_{name.upper()}")
            self.point(f"cu_seqlens_{name}", cu.to(torch.int32).contiguous())

    def packed(self, name: str) -> bool:
        """Are rows (q) or keys (k) packed?"""
        return bool(self.request.desc.operands & getattr(_abi, f"FA_OPERAND_CU_SEQLENS_{name.upper()}"))

    @property
    def sums(self) -> tuple[int, ...]:
        """The shape of the LSE."""
        desc = self.request.desc
        return (desc.heads_q, desc.total_q) if self.packed("q") else (desc.batch, desc.heads_q, desc.seqlen_q)

    def _operands(self, bias: torch.Tensor | None, sinks: torch.Tensor | None, options: dict[str, Any]) -> None:
        desc = self.request.desc
        pairs = (desc.batch, desc.heads_q, desc.seqlen_q, desc.seqlen_k)
        for name, x in (("bias", bias), ("mask", options["mask"])):
            if x is None:
                continue
            if name == "mask":
                x = torch.ne(x, 0).view(torch.uint8)
            elif x.dtype in _CODES:
                desc.bias_dtype = _CODES[x.dtype]
            else:
                raise TypeError(f"bias has dtype {x.dtype}: expected float32, float16 or bfloat16")
            try:
                seen = x.detach().broadcast_to(pairs)
            except RuntimeError:
                raise ValueError(f"{name} has shape {tuple(x.shape)}: expected one that broadcasts to {pairs}") from None
            desc.operands |= getattr(_abi, f"FA_OPERAND_{name.upper()}")
            setattr(desc, f"{name}_stride", seen.stride())
            self.point(name, seen)
        slopes = options["alibi_slopes"]
        for name, bit, x in (("alibi_slopes", _abi.FA_OPERAND_ALIBI, slopes), ("sinks", _abi.FA_OPERAND_SINKS, sinks)):
            if x is None:
                continue
            if x.shape != (desc.heads_q,) and (name == "sinks" or x.shape != (desc.batch, desc.heads_q)):
                raise ValueError(f"{name} has shape {tuple(x.shape)}: expected ({desc.heads_q},)")
            desc.operands |= bit
            if x.ndim == 2:
                desc.alibi_batch_stride = desc.heads_q
            self.point(name, x.detach().to(torch.float32).contiguous())

    def point(self, field: str, x: torch.Tensor) -> None:
        """Of the call's own args, or of its inputs."""
        if x.device != self.device:
            raise ValueError(f"{field} is on {x.device}: expected q's device, {self.device}")
        room = x.element_size() * (1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride()))) if x.numel() else 0
        request = self.request if hasattr(type(self.request.args), field) else self._inputs
        request.point_at(field, x.data_ptr() or None, room, x)

    def output(self, field: str, shape: tuple[int, ...], dtype: torch.dtype, *, gaps: bool, value: float = 0) -> torch.Tensor:
        """Room for what the call writes. gaps: packed sequences need not fill it, and what lies between them gets the value."""
        options: dict[str, Any] = {"dtype": dtype, "device": self.device}
        x = torch.full(shape, value, **options) if gaps else torch.empty(shape, **options)
        self.point(field, x)
        return x

    def gradient(self, field: str, like: torch.Tensor) -> torch.Tensor:
        """Dense, also where the input is broadcast."""
        x = self.output(field, tuple(like.shape), like.dtype, gaps=self.packed("q" if field == "dq" else "k"))
        setattr(self.request.args, f"{field}_stride", _literal(x))
        return x

    def score_gradient(self, field: str, like: torch.Tensor) -> torch.Tensor:
        """In float32; of a bias summed over what it is broadcast along."""
        x = self.output(field, tuple(like.shape), torch.float32, gaps=False)
        if field == "dbias":
            desc = self.request.desc
            self.request.args.dbias_stride = x.broadcast_to((desc.batch, desc.heads_q, desc.seqlen_q, desc.seqlen_k)).stride()
        return x

    def run(self, backend: Handle | None) -> None:
        handle = self._handle(backend)
        if self.device.type == "cuda":
            self._enqueue_on(handle)
        self.request.run(handle)

    def _handle(self, backend: Handle | None) -> Handle:
        if self.device.type == "cpu":
            return handle_of("cpu" if backend is None else backend)
        if backend is None:
            return handle_of(_gpu_backend(), self.device.index, "device")
        if (backend.backend, backend.device, backend.memory) != (_gpu_backend(), self.device.index, "device"):
            raise ValueError(
                f"backend is a handle of {backend.backend}, device {backend.device}, {backend.memory} memory: expected "
                f'Handle("{_gpu_backend()}", device={self.device.index}, memory="device"), or None'
            )
        return backend

    def _enqueue_on(self, handle: Handle) -> None:
        """In torch's stream of the device, with a workspace of torch's. It is given back at once: what gets it next comes later."""
        args = self.request.args
        args.flags |= _abi.FA_ARGS_STREAM
        args.stream = torch.cuda.current_stream(self.device).cuda_stream
        size = handle.workspace_size(self.request.desc, self.request.op)
        if size:
            self._workspace = torch.empty(size + _WORKSPACE_ALIGNMENT - 1, dtype=torch.uint8, device=self.device)
            args.workspace = -(-self._workspace.data_ptr() // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
            args.workspace_size = size


def _gpu_backend() -> BackendName:
    return "hip" if torch.version.hip else "cuda"


def _addressable(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The tensor itself when the elements of a head lie side by side, else a copy; and its strides."""
    x = x.detach()
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x, _literal(x)


def _literal(x: torch.Tensor) -> tuple[int, ...]:
    """Four strides, whatever a single dimension's own may be; a packed tensor has none for the batch."""
    strides = (*x.stride()[:-1], 1)
    return strides if x.ndim == 4 else (0, *strides)
