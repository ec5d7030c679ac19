"""The operators torch.ops.flashattn.forward and .backward: what torch.compile, torch.export and autograd see of the library."""

from __future__ import annotations

from typing import Any

import torch

from ._tensors import OPERANDS, SETTINGS, Call, check, lse_shape, out_shape

if not hasattr(torch.library, "register_fake"):
    raise ImportError(f"torch is {torch.__version__}: expected 2.4 or later for flashattn.torch")

_NAMES = (*OPERANDS, *SETTINGS)
_GRADIENTS = OPERANDS[:5]  # what has one, with d before its name
_ARGUMENTS = ", ".join(
    (
        "Tensor q, Tensor k, Tensor v",
        *(f"Tensor? {name}" for name in OPERANDS[3:]),
        *(f"{kind} {name}" for name, kind in SETTINGS.items()),
    )
)


def _forward(*values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = dict(zip(_NAMES, values))
    call = Call(given)
    packed = call.packed("q")
    out = call.output("o", out_shape(given), given["q"].dtype, gaps=packed)
    lse = call.output("lse", lse_shape(given), torch.float32, gaps=packed, value=float("-inf"))
    call.run()
    return out, lse


def _forward_shapes(*values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = dict(zip(_NAMES, values))
    check(given)
    q = given["q"]
    return q.new_empty(out_shape(given)), q.new_empty(lse_shape(given), dtype=torch.float32)


def _backward(
    dout: torch.Tensor | None, dlse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor, wanted: list[bool], *values: Any
) -> list[torch.Tensor]:
    """Gradients of those of _GRADIENTS that are wanted."""
    given = dict(zip(_NAMES, values))
    call = Call(given, backward=True)
    for name, x, shape, dtype in (
        ("out", out, out_shape(given), given["q"].dtype),
        ("dout", dout, out_shape(given), given["q"].dtype),
        ("lse", lse, lse_shape(given), torch.float32),
        ("dlse", dlse, lse_shape(given), torch.float32),
    ):
        if x is not None and (tuple(x.shape) != shape or x.dtype != dtype):
            raise ValueError(f"{name} has shape {tuple(x.shape)} and dtype {x.dtype}: expected {shape} and {dtype}")
    call.point("o", out.contiguous())
    call.point("lse", lse.contiguous())
    call.point("dout", torch.zeros_like(out) if dout is None else dout.contiguous())
    if dlse is not None:
        call.point("dlse", dlse.contiguous())
    gradients = {}
    for name, need in zip(_GRADIENTS, wanted):
        if need:
            make = call.gradient if name in ("q", "k", "v") else call.score_gradient
            gradients[name] = make(f"d{name}", given[name])
    call.run()
    return [x.to(given[name].dtype) for name, x in gradients.items()]


def _backward_shapes(dout: Any, dlse: Any, out: Any, lse: Any, wanted: list[bool], *values: Any) -> list[torch.Tensor]:
    given = dict(zip(_NAMES, values))
    return [given[name].new_empty(given[name].shape) for name, need in zip(_GRADIENTS, wanted) if need]


class _Forward(torch.autograd.Function):
    """The kernel of `forward` for autograd. A function of its own, so that what it lacks, as forward mode, is refused."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = forward(*values)
        ctx.save_for_backward(*values[: len(OPERANDS)], out, lse)
        ctx.settings = values[len(OPERANDS) :]
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        *operands, out, lse = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[: len(_GRADIENTS)])
        found = iter(backward(*gradients, out, lse, wanted, *operands, *ctx.settings))
        return (*(next(found) if need else None for need in wanted), *(None for _ in _NAMES[len(wanted) :]))


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *values: Any) -> tuple[torch.Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(backward(*values))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> None:
        raise NotImplementedError("attention has no second derivative here: flashattn.backward cannot be differentiated")


_Library: Any = torch.library.Library  # which has no types
_LIBRARY = _Library("flashattn", "DEF")
_LIBRARY.define(f"forward({_ARGUMENTS}) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.define(
    f"backward(Tensor? dout, Tensor? dlse, Tensor out, Tensor lse, bool[] wanted, {_ARGUMENTS}) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)
for _name, _kernel, _shapes, _function in (
    ("forward", _forward, _forward_shapes, _Forward),
    ("backward", _backward, _backward_shapes, _Backward),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _function.apply, "Autograd")
    torch.library.register_fake(f"flashattn::{_name}", _shapes, lib=_LIBRARY)
forward = torch.ops.flashattn.forward.default
backward = torch.ops.flashattn.backward.default
