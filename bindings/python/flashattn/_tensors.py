"""Calls of the library on torch's tensors: the descriptor, the args, and on a GPU torch's stream and torch's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import _abi
from ._arrays import integer, narrow, number
from ._forward import (
    FLAGS,
    KEY_LISTS,
    SCORE_SCALARS,
    check_mask,
    key_lists,
    mask_columns,
    place,
    plain_scores,
    ranges_shape,
    repeating,
    set_flags,
    set_period,
    set_ranges,
)
from ._request import Request
from ._terms import TERMS
from ._types import BackendName
from .handle import Handle, handle_at, handle_of

# Of a call, in the order of the operators' arguments: tensors, of which all but q, k and v may be None, and what is no tensor.
OPERANDS = (
    *("q", "k", "v", "bias", "sinks", *TERMS, "mask", "key_ranges", *KEY_LISTS),
    *("cu_seqlens_q", "cu_seqlens_k", "dropout_seed"),
)
SETTINGS = {  # and their types in the operators' schema
    **{"max_seqlen_q": "SymInt?", "max_seqlen_k": "SymInt?"},
    **{"causal": "str?", "alignment": "str?", "window": "SymInt[]?", "chunk": "SymInt"},
    **{"bias_period": "SymInt[]?", "mask_period": "SymInt[]?", "mask_keys": "SymInt", "mask_bits": "bool"},
    **{"list_rows": "SymInt", "list_keys": "SymInt"},
    "scale": "float?",
    **dict.fromkeys(SCORE_SCALARS, "float"),
    "dropout_p": "float",
    **dict.fromkeys(FLAGS, "bool"),
    "handle": "int",  # the pointer of a Handle of the caller's own; 0: the thread's
}
INTEGER_TYPES = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
CODES = {torch.float32: _abi.FA_F32, torch.float16: _abi.FA_F16, torch.bfloat16: _abi.FA_BF16}
_WORKSPACE_ALIGNMENT = 256


def check(given: Mapping[str, Any]) -> None:
    """Types, devices and shapes of q, k, v and the lengths: what can be told without memory, of fake tensors too."""
    q, k, v = given["q"], given["k"], given["v"]
    for name in ("q", "k", "v"):
        if given[name].dtype not in CODES or given[name].dtype != q.dtype:
            raise TypeError(
                f"{name} has dtype {given[name].dtype}: expected float32, float16 or bfloat16, the same for q, k and v"
            )
    for name in OPERANDS:
        x = given[name]
        if x is not None and x.device != q.device and name != "dropout_seed":
            raise ValueError(f"{name} is on {x.device}: expected q's device, {q.device}")
    ranks = {name: 4 if given[f"cu_seqlens_{name}"] is None else 3 for name in ("q", "k")}
    if q.ndim != ranks["q"] or k.ndim != ranks["k"] or v.shape[:-2] != k.shape[:-2] or k.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"q, k and v have shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}: expected (batch, rows, heads, "
            "dim), or (total, heads, dim) with cu_seqlens, dims of q and k alike, and k and v alike but for heads and dims"
        )
    if 0 in k.shape[-2:] or 0 in v.shape[-2:]:  # a zero in the descriptor would mean its default
        raise ValueError(f"k has heads and dims {tuple(k.shape[-2:])} and v {tuple(v.shape[-2:])}: expected at least one of each")
    batch = batch_of(given)
    for name, x in (("q", q), ("k", k)):
        cu = given[f"cu_seqlens_{name}"]
        if cu is None:
            if x.shape[0] != batch:
                raise ValueError(f"{name} has {x.shape[0]} sequences: expected {batch}")
            if given[f"max_seqlen_{name}"] is not None:
                raise ValueError(f"max_seqlen_{name} is {given[f'max_seqlen_{name}']}: it belongs with cu_seqlens_{name}")
        elif cu.shape != (batch + 1,) or cu.dtype not in INTEGER_TYPES:
            raise ValueError(
                f"cu_seqlens_{name} has shape {tuple(cu.shape)} and dtype {cu.dtype}: expected integers, (batch + 1,) = "
                f"({batch + 1},)"
            )


def batch_of(given: Mapping[str, Any]) -> int:
    cu = given["cu_seqlens_q"]
    batch: int = given["q"].shape[0] if cu is None else cu.shape[0] - 1 if cu.ndim else 0
    return batch


def longest(given: Mapping[str, Any], name: str) -> int:
    """Rows (q), keys (k) or new tokens (new) of the longest sequence, or the bound that is given."""
    cu, bound = given[f"cu_seqlens_{name}"], given[f"max_seqlen_{name}"]
    if cu is None:
        return int(given[name].shape[1])
    if bound is None:  # on a GPU this waits for it
        bound = max(int(cu.diff().max()) if len(cu) > 1 else 0, 0)
    return bound  # type: ignore[no-any-return]


def constant(name: str, value: Any) -> float:
    """A number, of which a gradient would be lost in silence."""
    if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            f"{name} requires a gradient: expected a number, which has none here"
            + ("; q times a tensor, with scale=1, has one" if name == "scale" else "")
        )
    return float(value)


def out_shape(given: Mapping[str, Any]) -> tuple[int, ...]:
    return (*given["q"].shape[:-1], given["v"].shape[-1])


def lse_shape(given: Mapping[str, Any]) -> tuple[int, ...]:
    q = given["q"]
    return (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])


class Call:
    """Descriptor and args of one call; q, k and v by their own strides, everything else dense. given: each of OPERANDS and
    SETTINGS. backward: for the gradients."""

    def __init__(self, given: Mapping[str, Any], *, backward: bool = False) -> None:
        q, seed = given["q"], given["dropout_seed"]
        self.device = q.device
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"q is on {self.device}: expected the CPU or a GPU")
        check(given)
        self._backend = handle_at(given["handle"]) if given["handle"] else None
        self._inputs = Request(_abi.ForwardArgs())
        self.request = Request(_abi.BackwardArgs(), self._inputs) if backward else self._inputs
        desc, args = self.request.desc, self._inputs.args
        desc.q_dtype = desc.k_dtype = desc.v_dtype = desc.o_dtype = CODES[q.dtype]
        desc.operands = _abi.FA_OPERAND_LSE
        self._sizes(given)
        for name in ("q", "k", "v"):
            x, strides = _addressable(given[name])
            self.point(name, x)
            desc.strided |= getattr(_abi, f"FA_STRIDED_{name.upper()}")
            setattr(desc, f"{name}_stride", strides)
        place(self._inputs, given["causal"], None, given["alignment"], given["window"], given["chunk"])
        plain_scores(self._inputs, given["scale"], given)
        self._operands(given)
        desc.dropout_p = number("dropout_p", given["dropout_p"], 1)
        args.dropout_seed = int(seed) % (1 << 64) if given["dropout_p"] else 0  # an int64 holds the 64 bits of a seed
        set_flags(self._inputs, given)

    def _sizes(self, given: Mapping[str, Any]) -> None:
        desc, q, k, v = self.request.desc, given["q"], given["k"], given["v"]
        desc.batch = batch_of(given)
        desc.heads_q, desc.dim_qk = q.shape[-2:]
        desc.heads_k = k.shape[-2]
        desc.heads_v, desc.dim_v = v.shape[-2:]
        for name, x in (("q", q), ("k", k)):
            cu = given[f"cu_seqlens_{name}"]
            setattr(desc, f"seqlen_{name}", integer(f"max_seqlen_{name}", longest(given, name), 63, signed=False))
            if cu is None:
                continue
            setattr(desc, f"total_{name}", x.shape[0])
            desc.operands |= getattr(_abi, f"FA_OPERAND_CU_SEQLENS_{name.upper()}")
            self.point(f"cu_seqlens_{name}", integers(f"cu_seqlens_{name}", cu).contiguous())

    def packed(self, name: str) -> bool:
        """Are rows (q) or keys (k) packed?"""
        return bool(self.request.desc.operands & getattr(_abi, f"FA_OPERAND_CU_SEQLENS_{name.upper()}"))

    def _operands(self, given: Mapping[str, Any]) -> None:
        desc = self.request.desc
        check_mask(given["mask"], (torch.bool, torch.uint8), given["mask_keys"], given["mask_bits"])
        for name in ("bias", "mask"):
            x = given[name]
            set_period(self._inputs, f"{name}_period", given[f"{name}_period"], x)
            if x is None:
                continue
            pairs: tuple[int, ...] = repeating(desc, getattr(desc, f"{name}_period"))
            if name == "mask":
                pairs = mask_columns(self._inputs, pairs, given["mask_keys"], given["mask_bits"], x.shape, x.dtype == torch.uint8)
                x = x.view(torch.uint8)  # the library reads the bytes of a bool
            elif x.dtype in CODES:
                desc.bias_dtype = CODES[x.dtype]
            else:
                raise TypeError(f"bias has dtype {x.dtype}: expected float32, float16 or bfloat16")
            try:
                seen = x.detach().broadcast_to(pairs)
            except RuntimeError:
                raise ValueError(f"{name} has shape {tuple(x.shape)}: expected one that broadcasts to {pairs}") from None
            desc.operands |= getattr(_abi, f"FA_OPERAND_{name.upper()}")
            setattr(desc, f"{name}_stride", seen.stride())
            self.point(name, seen)
        bits = {"alibi_slopes": _abi.FA_OPERAND_ALIBI, "sinks": _abi.FA_OPERAND_SINKS, "bias_scale": _abi.FA_OPERAND_BIAS_SCALE}
        for name, bit in bits.items():
            x = given[name]
            if x is None:
                continue
            if x.shape != (desc.heads_q,) and (name != "alibi_slopes" or x.shape != (desc.batch, desc.heads_q)):
                raise ValueError(f"{name} has shape {tuple(x.shape)}: expected ({desc.heads_q},)")
            desc.operands |= bit
            if x.ndim == 2:
                desc.alibi_batch_stride = desc.heads_q
            self.point(name, reals(name, x).contiguous())
        if given["key_ranges"] is not None:
            shape, axes = ranges_shape(desc, given["key_ranges"].shape)
            ranges = integers("key_ranges", given["key_ranges"])
            try:
                ranges = ranges.broadcast_to(shape)
            except RuntimeError:
                raise ValueError(f"key_ranges has shape {tuple(ranges.shape)}: expected one that broadcasts to {axes} = {shape}") from None
            ranges = in_pairs(ranges)
            desc.operands |= _abi.FA_OPERAND_KEY_RANGES
            set_ranges(desc, shape, ranges.stride())
            self.point("key_ranges", ranges)
        key_lists(self._inputs, given, given["list_rows"], given["list_keys"], self._list)

    def _list(self, bit: int, name: str, x: torch.Tensor, shape: tuple[int, ...], _: str, dense: bool) -> tuple[int, ...]:
        self.request.desc.operands |= bit
        x = integers(name, x).expand(shape)
        x, strides = side_by_side(x.contiguous() if dense else x)
        self.point(name, x)
        return tuple(0 if length == 1 else step for length, step in zip(shape, strides))

    def point(self, field: str, x: torch.Tensor) -> None:
        """Of the call's own args, or of its inputs."""
        room = x.element_size() * (1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride()))) if x.numel() else 0
        request = self.request if hasattr(type(self.request.args), field) else self._inputs
        request.point_at(field, x.data_ptr() or None, room, x)

    def output(self, field: str, shape: tuple[int, ...], dtype: torch.dtype, *, gaps: bool, value: float = 0) -> torch.Tensor:
        """Room for what the call writes. gaps: packed sequences need not fill it, and what lies between them gets the value."""
        options: dict[str, Any] = {"dtype": dtype, "device": self.device}
        x = torch.full(shape, value, **options) if gaps else torch.empty(shape, **options)
        self.point(field, x)
        return x

    def cotangents(self, dout: torch.Tensor | None, dlse: torch.Tensor | None, out: torch.Tensor) -> None:
        """What comes from behind, on the CPU by its own strides: of a sum it is one number, broadcast. None: zeros."""
        dout = out.new_zeros(()).expand(out.shape) if dout is None else dout
        if self.device.type != "cpu":  # whose fastest kernels take no rows that lie one upon the other
            dout = dout.contiguous()
        dout, strides = _addressable(dout)
        self.point("dout", dout)
        self.request.args.dout_stride = strides
        if dlse is not None:
            dlse = dlse if any(dlse.stride()) else dlse.contiguous()  # all zero would mean dense
            self.point("dlse", dlse)
            self.request.args.dlse_stride = dlse.stride() if dlse.ndim == 3 else (0, *dlse.stride())

    def gradient(self, field: str, like: torch.Tensor) -> torch.Tensor:
        """Dense, also where the input is broadcast."""
        x = self.output(field, tuple(like.shape), like.dtype, gaps=self.packed("q" if field == "dq" else "k"))
        setattr(self.request.args, f"{field}_stride", _literal(x))
        return x

    def score_gradient(self, field: str, shape: tuple[int, ...]) -> torch.Tensor:
        """In float32; of a bias summed over what it is broadcast along or repeats over, of which nothing is written without rows or
        keys."""
        x = self.output(field, shape, torch.float32, gaps=True)
        if field == "dbias":
            desc = self.request.desc
            self.request.args.dbias_stride = x.broadcast_to(repeating(desc, desc.bias_period)).stride()
        return x

    def run(self) -> None:
        run_on(self.device, self.request, self._backend)


def run_on(device: torch.device, request: Request, backend: Handle | None) -> None:
    """The call, on tensors of that device; on a GPU in torch's stream of it, with a workspace of torch's. backend: None: the thread's own
    handle."""
    if device.type == "cpu":
        handle = handle_of("cpu" if backend is None else backend)
        handle.check_host()
        return request.run(handle)
    handle, args = _gpu_handle(device, backend), request.args
    args.flags |= _abi.FA_ARGS_STREAM
    args.stream = torch.cuda.current_stream(device).cuda_stream
    size = handle.workspace_size(request.desc, request.op)
    if size:  # given back when the call returns: what gets it next comes later in the stream
        workspace = torch.empty(size + _WORKSPACE_ALIGNMENT - 1, dtype=torch.uint8, device=device)
        args.workspace = -(-workspace.data_ptr() // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
        args.workspace_size = size
    return request.run(handle)


def _gpu_handle(device: torch.device, backend: Handle | None) -> Handle:
    if backend is None:
        return handle_of(gpu_backend(), device.index, "device")
    if (backend.backend, backend.device, backend.memory) != (gpu_backend(), device.index, "device"):
        raise ValueError(
            f"backend is a handle of {backend.backend}, device {backend.device}, {backend.memory} memory: expected "
            f'Handle("{gpu_backend()}", device={device.index}, memory="device"), or None'
        )
    return backend


def gpu_backend() -> BackendName:
    return "hip" if torch.version.hip else "cuda"


def integers(name: str, x: torch.Tensor) -> torch.Tensor:
    """As int32, none of which becomes another one; a GPU would have to be waited for, and what is beyond 32 bits is beyond all keys."""
    if x.dtype not in INTEGER_TYPES:
        raise TypeError(f"{name} has dtype {x.dtype}: expected integers")
    if x.dtype == torch.int32:
        return x
    held = _core(x)
    if x.dtype == torch.int64:
        limits = torch.iinfo(torch.int32)
        if x.device.type == "cpu" and x.numel() and (held.min() < limits.min or held.max() > limits.max):
            raise ValueError(f"{name} holds values beyond 32 bits: {held.min()} … {held.max()}")
        held = held.clamp(limits.min, limits.max)
    return held.to(torch.int32).expand(x.shape)


def reals(name: str, x: torch.Tensor) -> torch.Tensor:
    """As float32, in which no number becomes infinite; nor, but of sinks, 0."""
    if not x.is_floating_point() and x.dtype not in INTEGER_TYPES:
        raise TypeError(f"{name} has dtype {x.dtype}: expected real numbers")
    if x.dtype == torch.float64 and x.device.type == "cpu":  # a GPU would have to be waited for
        narrow(name, x.detach().numpy(), factors=name != "sinks")
    return x.detach().to(torch.float32)


def in_pairs(ranges: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy, whose pairs lie side by side, at a whole number of pairs from each other."""
    if ranges.stride(-1) != 1 or any(step % 2 for step in ranges.stride()[:-1]):
        return _core(ranges, whole=1).contiguous().expand(ranges.shape)
    return ranges


def _addressable(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The tensor itself when the elements of a head lie side by side, else a copy; and its strides. What was broadcast stays so."""
    x, _ = side_by_side(x.detach())
    return x, _literal(x)


def side_by_side(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The tensor itself, or a copy, whose elements of the last axis lie side by side; and its strides."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = _core(x, whole=1).contiguous().expand(x.shape)
    return x, (*x.stride()[:-1], 1)


def _core(x: torch.Tensor, *, whole: int = 0) -> torch.Tensor:
    """What the tensor has in memory: one step along each axis that it is broadcast along. whole: so many last axes stay as they are."""
    for axis, step in enumerate(x.stride()[: x.ndim - whole]):
        if step == 0:
            x = x.narrow(axis, 0, min(1, x.shape[axis]))
    return x


def _literal(x: torch.Tensor) -> tuple[int, ...]:
    """Four strides, whatever a single dimension's own may be; a packed tensor has none for the batch."""
    strides = (*x.stride()[:-1], 1)
    return strides if x.ndim == 4 else (0, *strides)
