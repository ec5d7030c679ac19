"""The operators torch.ops.flashattn.forward and .backward: what torch.compile, torch.export and autograd see of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._arrays import choice, integer
from ._forward import ALIGNMENTS, SCORE_SCALARS, named_causal, window_sides
from ._layout import Order
from ._tensors import OPERANDS, SETTINGS, Call, check, constant, lse_shape, out_shape
from ._torch_parts import SingleLevelFunction, enable_single_level_autograd_function, set_fwd_grad_enabled
from ._torch_terms import Terms

_NAMES = (*OPERANDS, *SETTINGS)
_GRADIENTS = OPERANDS[:7]  # what has one, with d before its name
_ARGUMENTS = ", ".join(
    (
        "Tensor q, Tensor k, Tensor v",
        *(f"Tensor? {name}" for name in OPERANDS[3:]),
        *(f"{kind} {name}" for name, kind in SETTINGS.items()),
    )
)


def arguments(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The operators' arguments. given: all keywords of `flashattn.torch.attention` but return_lse."""
    seed, dropout_p = None, constant("dropout_p", given["dropout_p"])
    if dropout_p:
        # A tensor, so that a compiled program draws it anew; 64 bits, of which torch's integers count the uppermost as the sign.
        seed = torch.randint(1 << 62, ()) if given["dropout_seed"] is None else torch.tensor(_signed(given["dropout_seed"]))
    swapped, window, scale = Order(given["layout"]).swapped, given["window"], given["scale"]
    if given["alignment"] is not None:
        choice("alignment", given["alignment"], ALIGNMENTS)
    values = {
        **given,
        **{name: given[name].transpose(1, 2) if swapped and given[name].ndim == 4 else given[name] for name in ("q", "k", "v")},
        **{"dropout_seed": seed, "causal": named_causal(given["causal"]), "window": None if window is None else window_sides(window)},
        **{"scale": None if scale is None else constant("scale", scale), "dropout_p": dropout_p},
        **{name: constant(name, given[name]) for name in SCORE_SCALARS},
        "deterministic": torch.are_deterministic_algorithms_enabled() if given["deterministic"] is None else given["deterministic"],
        "handle": 0 if given["backend"] is None else given["backend"].pointer,
    }
    return tuple(values[name] for name in _NAMES)


def _signed(seed: int) -> int:
    integer("dropout_seed", seed, 64, signed=False)
    return seed - (1 << 64) if seed >> 63 else seed


def call_of(values: Sequence[Any]) -> tuple[Call, torch.Tensor, torch.Tensor]:
    """The forward's call, with out and lse, which it has not written yet."""
    given = dict(zip(_NAMES, values))
    call = Call(given)
    packed = call.packed("q")
    out = call.output("o", out_shape(given), given["q"].dtype, gaps=packed)
    lse = call.output("lse", lse_shape(given), torch.float32, gaps=packed, value=float("-inf"))
    return call, out, lse


def _forward(*values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call, out, lse = call_of(values)
    call.run()
    return out, lse


def _forward_shapes(*values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = dict(zip(_NAMES, values))
    check(given)
    q = given["q"]
    return q.new_empty(out_shape(given)), q.new_empty(lse_shape(given), dtype=torch.float32)


def _backward(
    dout: torch.Tensor | None, dlse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor, wanted: list[bool], *values: Any
) -> tuple[torch.Tensor, ...]:
    """Gradients of _GRADIENTS, an empty tensor for one that is not wanted. Not a list, over which torch would not batch."""
    operands = dict(zip(_NAMES, values))
    if len(wanted) != len(_GRADIENTS):
        raise ValueError(f"wanted has {len(wanted)} entries: expected one for each of {', '.join(_GRADIENTS)}")
    need = dict(zip(_GRADIENTS, wanted))
    terms = Terms(operands, slopes=need["alibi_slopes"]) if need["alibi_slopes"] or need["bias_scale"] else None
    given = terms.given if terms else operands
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
    call.cotangents(dout, dlse, out)
    gradients = {name: call.gradient(f"d{name}", given[name]) for name in ("q", "k", "v") if need[name]}
    if terms or need["bias"]:
        gradients["bias"] = call.score_gradient("dbias", terms.shape if terms else tuple(given["bias"].shape))
    if need["sinks"]:
        gradients["sinks"] = call.score_gradient("dsinks", tuple(given["sinks"].shape))
    call.run()
    if terms:
        gradients |= terms.split(gradients.pop("bias"))
    return tuple(gradients[name].to(operands[name].dtype) if need[name] else lse.new_empty(0) for name in _GRADIENTS)


def _backward_shapes(dout: Any, dlse: Any, out: Any, lse: Any, wanted: list[bool], *values: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x.new_empty(x.shape) if need else lse.new_empty(0) for need, x in zip(wanted, values))


def _below_autograd(operator: Any, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The operator in the forward of a function, which has gradients turned off: transforms around the current one need theirs."""
    found: tuple[torch.Tensor, ...]
    with torch._C._AutoDispatchBelowAutograd():
        if torch._C._functorch.maybe_current_level() is None:
            found = operator(*values)
        else:
            with torch.enable_grad(), set_fwd_grad_enabled(True):
                found = operator(*values)
    return found


class _Forward(torch.autograd.Function):
    """The kernel of `forward` for autograd."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = _below_autograd(forward, values)
        ctx.save_for_backward(*values[: len(OPERANDS)], out, lse)
        ctx.settings = values[len(OPERANDS) :]
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        *operands, out, lse = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[: len(_GRADIENTS)])
        found = backward(*gradients, out, lse, wanted, *operands, *ctx.settings)
        return (*(x if need else None for x, need in zip(found, wanted)), *(None for _ in _NAMES[len(wanted) :]))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise NotImplementedError("attention has no forward-mode derivative (jvp) here: flashattn.forward is differentiated backward alone")


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *values: Any) -> tuple[torch.Tensor, ...]:
        return _below_autograd(backward, values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> None:
        raise NotImplementedError("attention has no second derivative here: flashattn.backward cannot be differentiated")

    jvp = backward  # the derivative forward of a gradient


def _applied(function: Any) -> Any:
    """The function as an operator's kernel of autograd. torch.func has found the transform by then, one level of them, so that torch needs
    the class that torch.func itself makes of a function there."""
    methods = {name: vars(function)[name] for name in ("forward", "backward", "jvp")}
    single: Any = type(function.__name__, (SingleLevelFunction,), methods)

    def kernel(*values: Any) -> Any:
        if torch._C._functorch.maybe_current_level() is None:
            return function.apply(*values)
        with enable_single_level_autograd_function():
            return single.apply(*values)

    return kernel


def each(operator: Any) -> Any:
    """torch.vmap's rule: the operator once for each item."""

    def rule(info: Any, in_dims: tuple[Any, ...], *values: Any) -> Any:
        given = [(x, dim if isinstance(x, torch.Tensor) else None) for x, dim in zip(values, in_dims)]
        if info.batch_size == 0:  # one item of zeros, for its shapes
            given = [(x if dim is None else x.new_zeros(*x.shape[:dim], 1, *x.shape[dim + 1 :]), dim) for x, dim in given]
        items = [operator(*(x if dim is None else x.select(dim, i) for x, dim in given)) for i in range(max(info.batch_size, 1))]
        return tuple(torch.stack(parts)[: info.batch_size] for parts in zip(*items)), (0,) * len(items[0])

    return rule


def _autocast(key: Any) -> Any:
    """What torch's own function does under autocast: q, k and v get its type. What is added to scores may have any."""
    without = torch._C.DispatchKeySet(key)

    def kernel(*values: Any) -> Any:
        cast = [x.to(autocast_dtype(x)) for x in values[:3]]
        with torch._C._ExcludeDispatchKeyGuard(without):
            return forward(*cast, *values[3:])

    return kernel


def autocast_dtype(x: torch.Tensor) -> torch.dtype:
    """The tensor's type where torch.autocast is on for its device: autocast's for a floating one of up to 32 bits."""
    kind = x.device.type
    if not x.is_floating_point() or x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


_Library: Any = torch.library.Library  # which has no types
_LIBRARY = _Library("flashattn", "DEF")
_LIBRARY.define(f"forward({_ARGUMENTS}) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.define(
    f"backward(Tensor? dout, Tensor? dlse, Tensor out, Tensor lse, bool[] wanted, {_ARGUMENTS}) -> ("
    f"{', '.join('Tensor' for _ in _GRADIENTS)})",
    tags=torch.Tag.pt2_compliant_tag,
)
for _name, _kernel, _shapes, _function in (
    ("forward", _forward, _forward_shapes, _Forward),
    ("backward", _backward, _backward_shapes, _Backward),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _applied(_function), "Autograd")
    torch.library.register_fake(f"flashattn::{_name}", _shapes, lib=_LIBRARY)
for _type in ("cpu", "cuda"):
    _key = f"Autocast{_type.upper()}"
    _LIBRARY.impl("forward", _autocast(getattr(torch._C.DispatchKey, _key)), _key)
forward = torch.ops.flashattn.forward.default
backward = torch.ops.flashattn.backward.default
for _name, _operator in (("forward", forward), ("backward", backward)):
    torch.library.register_vmap(f"flashattn::{_name}", each(_operator), lib=_LIBRARY)
