"""The operators torch.ops.flashattn.attend, .append_kv and .rotary: attention over caches, and what fills them, as torch.compile and
CUDA graphs see it. They have no gradient."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from typing import Any, Callable

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ._forward import SCORE_SCALARS, named_causal, window_sides
from ._keywords import BYTES, DESCALES
from ._operators import each
from ._tensors import OPERANDS, SETTINGS, constant, run_on
from ._torch_described import (
    Described,
    attention_shapes,
    check_devices,
    described_append,
    described_attention,
    described_rotary,
    written_by_append,
)
from .handle import Handle, handle_at

# Arguments of each operator in their order, with their types in its schema; "Tensor!" is one that the call may change.
_IN_CACHE = ("seqused_k", "leftpad_k", "kv_batch_idx", "page_table")
_FACTORS = ("k_descale", "v_descale", "k_shift", "v_shift")
_FORM = {
    **{"k_descale_block": "SymInt[]?", "v_descale_block": "SymInt[]?", "layout": "str"},
    **dict.fromkeys(BYTES.values(), "str?"),
    "handle": "int",
}
ATTEND = {
    **{"q": "Tensor", "k": "Tensor"},
    **dict.fromkeys((*OPERANDS[2:], *_IN_CACHE, "seqused_q", "causal_offset", "q_descale", *_FACTORS, "q_tail", "k_tail"), "Tensor?"),
    **SETTINGS,
    **{"dim_v": "SymInt?", "list_space": "str", "precision": "str", "q_descale_block": "SymInt[]?"},
    **_FORM,
}
for _name in ("dropout_seed", "dropout_p", "deterministic"):
    del ATTEND[_name]
APPEND = {
    **{"k_new": "Tensor", "v_new": "Tensor?", "k": "Tensor!", "v": "Tensor!?"},
    **dict.fromkeys((*_IN_CACHE, "positions", "cu_seqlens_new", "seqused_new", "cos", "sin"), "Tensor?"),
    **dict.fromkeys((*_FACTORS, "k_tail"), "Tensor!?"),
    **{"max_seqlen_new": "SymInt?", "max_seqlen_k": "SymInt?", "dynamic_scale": "bool", "interleaved": "bool", "rotary_begin": "SymInt"},
    **_FORM,
}
_ROTARY = {
    **dict.fromkeys(("x", "cos", "sin"), "Tensor"),
    **dict.fromkeys(("positions", "position_offset", "cu_seqlens_q", "seqused_q"), "Tensor?"),
    **{"max_seqlen_q": "SymInt?", "interleaved": "bool", "rotary_begin": "SymInt", "layout": "str", "handle": "int"},
}


def attend_arguments(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Of `attend`. given: all keywords of `flashattn.torch.attention` but return_lse."""
    if given["dropout_p"]:
        raise NotImplementedError(f"dropout_p is {given['dropout_p']}: expected 0 in a call over a cache, or quantised tensors")
    q, cu, offset, window = given["q"], given["cu_seqlens_q"], given["causal_offset"], given["window"]
    if offset is not None and not (isinstance(offset, torch.Tensor) and offset.ndim):
        batch = q.shape[0] if cu is None else cu.shape[0] - 1
        offset = torch.as_tensor(offset, device=q.device).expand(batch)
    values = {
        **given,
        **{"causal": named_causal(given["causal"]), "causal_offset": offset, "window": None if window is None else window_sides(window)},
        **{"scale": None if given["scale"] is None else constant("scale", given["scale"])},
        **{name: constant(name, given[name]) for name in SCORE_SCALARS},
    }
    return _ordered(ATTEND, values)


def _ordered(arguments: Mapping[str, str], given: Mapping[str, Any]) -> tuple[Any, ...]:
    backend: Handle | None = given["backend"]
    values = {**given, "handle": 0 if backend is None else backend.pointer}
    for name in arguments:
        if name in DESCALES and isinstance(values[name], (int, float)):
            values[name] = torch.tensor(values[name], dtype=torch.float32, device=given["k"].device)
    return tuple(values[name] for name in arguments)


def append_arguments(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return _ordered(APPEND, given)


def rotary_arguments(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return _ordered(_ROTARY, given)


def _kernel(arguments: Mapping[str, str], describe: Callable[[dict[str, Any]], Described]) -> Callable[..., Described]:
    def kernel(*values: Any) -> Described:
        given = dict(zip(arguments, values))
        handle = given.pop("handle")
        call = describe(given)
        run_on(values[0].device, call.request, handle_at(handle) if handle else None)
        return call

    return kernel


def _attend_shapes(*values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = dict(zip(ATTEND, values))
    check_devices(given)
    out, lse, dtype = attention_shapes(given)
    return given["q"].new_empty(out, dtype=dtype), given["q"].new_empty(lse, dtype=torch.float32)


def _append_shapes(*values: Any) -> None:
    check_devices(dict(zip(APPEND, values)))


def _rotary_shapes(*values: Any) -> torch.Tensor:
    given = dict(zip(_ROTARY, values))
    check_devices(given)
    x: torch.Tensor = given["x"]
    return x.new_empty(x.shape)


_forward_ad: Any = forward_ad  # whose functions have no types


def _has_gradient(x: torch.Tensor) -> bool:
    if x.requires_grad and torch.is_grad_enabled():
        return True
    return _forward_ad._current_level >= 0 and _forward_ad.unpack_dual(x).tangent is not None


def _below_autograd(operator: Any, arguments: Mapping[str, str]) -> Callable[..., Any]:
    """The operator's kernel of autograd, which refuses what it would lose."""
    names, called = tuple(arguments), f"flashattn.{operator.overloadpacket.__name__}"
    written = tuple(name.endswith(("!", "!?")) for name in arguments.values())

    def kernel(*values: Any) -> Any:
        tensors = [(name, x, mark) for name, x, mark in zip(names, values, written) if isinstance(x, torch.Tensor)]
        for name, x, _ in tensors:
            if _has_gradient(x):
                raise NotImplementedError(
                    f"{name} requires a gradient, and {called} has none: expected torch.no_grad(), or a tensor that is detached"
                )
        with torch._C._AutoDispatchBelowAutograd():
            found = operator(*values)
        increment_version([x for _, x, mark in tensors if mark])
        return found

    return kernel


def _schema(arguments: Mapping[str, str]) -> str:
    letters: Iterator[str] = iter(string.ascii_lowercase)
    return ", ".join(f"{kind.replace('!', f'({next(letters)}!)' if '!' in kind else '')} {name}" for name, kind in arguments.items())


_Library: Any = torch.library.Library  # which has no types
_LIBRARY = _Library("flashattn", "FRAGMENT")
_run_attend = _kernel(ATTEND, described_attention)
_run_append = _kernel(APPEND, described_append)
_run_rotary = _kernel(_ROTARY, described_rotary)


def _attend(*values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _run_attend(*values).results
    return out, lse


def _append(*values: Any) -> None:
    _run_append(*values)


def _rotary(*values: Any) -> torch.Tensor:
    return _run_rotary(*values).results[0]


for _name, _arguments, _returned, _plain, _shapes in (
    ("attend", ATTEND, "(Tensor, Tensor)", _attend, _attend_shapes),
    ("append_kv", APPEND, "()", _append, _append_shapes),
    ("rotary", _ROTARY, "Tensor", _rotary, _rotary_shapes),
):
    _LIBRARY.define(f"{_name}({_schema(_arguments)}) -> {_returned}", tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(_name, _plain, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _below_autograd(getattr(torch.ops.flashattn, _name).default, _arguments), "Autograd")
    torch.library.register_fake(f"flashattn::{_name}", _shapes, lib=_LIBRARY)
attend = torch.ops.flashattn.attend.default
append = torch.ops.flashattn.append_kv.default
rotary = torch.ops.flashattn.rotary.default


def _rotary_of_each(info: Any, in_dims: tuple[Any, ...], *values: Any) -> tuple[torch.Tensor, int]:
    (found,), (dim,) = each(lambda *given: (rotary(*given),))(info, in_dims, *values)
    return found, dim


torch.library.register_vmap("flashattn::attend", each(attend), lib=_LIBRARY)
torch.library.register_vmap("flashattn::rotary", _rotary_of_each, lib=_LIBRARY)
