"""Attention for JAX: calls of libflashattn through XLA's FFI, with gradients, under jit and vmap.

    from flashattn.jax import attention

    out = attention(q, k, v, causal="bottom-right")  # (batch, rows, heads, dim)
    grad = jax.grad(lambda q: attention(q, k, v, causal="bottom-right").sum())(q)

The package does not depend on JAX: only this module imports it. It needs libflashattn-xla.so, which holds XLA's handlers.
It must be next to the library, as in the wheel (`-DFA_XLA=` of the build). XLA's threads call it on XLA's memory. Nothing
is copied. Only q, k, v, the output and one number for each row are kept for the backward. JAX refuses second and
forward-mode derivatives.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from . import _abi
from ._arrays import choice, number
from ._forward import ALIGNMENTS, FLAGS, KEY_LISTS, SCORE_SCALARS, check_mask, list_shapes, named_causal, window_sides
from ._jax_cache import append_kv, cached_attention, rotary
from ._jax_call import array_of, ffi, integers
from ._jax_request import BITS, INTEGERS, PER_HEAD, Arrays, Static, broadcast_strides, describe, point, sizes, strides
from ._jax_terms import Terms
from ._keywords import Keywords, of_cache
from ._layout import Order
from ._library import library, require
from ._request import Request
from ._terms import TERMS
from ._types import ByteOptions, CacheOptions, LocalOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["append_kv", "attention", "rotary"]

_BROADCAST = ("bias", "mask", "key_ranges")  # along the batch
_PLATFORMS = {"cpu": "cpu", "CUDA": "cuda", "ROCM": "rocm"}
_DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks", *TERMS)
_Shape: Any = jax.ShapeDtypeStruct  # JAX's own types leave these two out
_capsule: Any = jax.ffi.pycapsule


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """The operands whose gradients are."""

    names: tuple[str, ...]


class Options(ByteOptions, CacheOptions[jax.Array], LocalOptions[jax.Array], total=False):
    """Keywords of `attention` that do not change how many arrays it returns."""

    dropout_key: jax.Array | None
    deterministic: bool


_KEYWORDS = Keywords(Options, "jax.Array")


@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array | None, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> jax.Array: ...
@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array | None, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[jax.Array, jax.Array]: ...
@_KEYWORDS.listed
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    *,
    return_lse: bool = False,
    **options: Any,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(scale · q kᵀ, masked) v with gradients for q, k, v, bias, sinks, bias_scale and alibi_slopes, and through out and lse.

    q: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q and cu_seqlens_k; k, v: the same with heads_k
        heads, a divisor of heads; float32, float16 or bfloat16, all of one type. The keywords are those of flashattn.attention.
        Arguments that are not arrays must be known when the program is traced. bias and mask broadcast to (batch, heads,
        rows, keys); a bias has float32, float16 or bfloat16. key_ranges, key_list, full_list and their counts are those of
        flashattn.attention: a document mask, or the arrays of a block mask with list_rows and list_keys. They have no
        gradient. A gradient of bias_scale takes memory for a float32 bias of all heads. A gradient of alibi_slopes takes
        memory for two float32 arrays of (heads, rows, keys), or of (batch, heads, rows, keys) if sequences have different
        slopes, biases or diagonals.
    layout: "bhsd" for q, k, v and out of (batch, heads, rows, dim); nothing is transposed.
    max_seqlen_q, max_seqlen_k: bounds of packed lengths; None: the totals, which are always enough. Lengths beyond them, or that
        decrease, are refused when the call runs, or on a GPU leave rows undefined.
    dropout_p: in training only. dropout_key: a key of jax.random, required with dropout_p.
    deterministic: the same gradients, bit for bit, every time on a GPU, too.

    Returns out, q's shape with v's head dimension and q's dtype; with return_lse also lse, float32 (batch, heads, rows) or packed
    (heads, total).
    vmap makes one call of dense tensors: the mapped axis joins the batch. Packed tensors, dropout, and sinks that are mapped or
    differentiated are called once for each item.
    Raises ValueError, TypeError and FlashAttnError for wrong shapes and options. A failure in the call is a JAX error with the
    library's message.
    """
    given = {"q": q, "k": k, "v": v, **_KEYWORDS.complete(attention, options)}
    if of_cache(given):
        numbers = {name: _constant(name, given[name]) for name in ("scale", *SCORE_SCALARS) if given[name] is not None}
        out, lse = cached_attention({**given, **numbers})
        return (out, lse) if return_lse else out
    dropout_p = _constant("dropout_p", given["dropout_p"], 1)
    if dropout_p:
        if given["dropout_key"] is None:
            raise ValueError(f"dropout_p is {dropout_p}: expected a dropout_key")
        given["rng_state"] = _seed(given["dropout_key"])
    packed = given["cu_seqlens_q"] is not None
    operands = {name: given[name] for name in ("q", "k", "v", *BITS) if given.get(name) is not None}
    arrays = {name: _operand(name, array_of(name, x), packed) for name, x in operands.items()}
    lists = {name: x.shape for name, x in arrays.items() if name in KEY_LISTS}
    if lists:
        arrays |= {name: jnp.broadcast_to(arrays[name], shape) for name, shape in list_shapes(lists, packed).items()}
    if given["alignment"] is not None:
        choice("alignment", given["alignment"], ALIGNMENTS)
    static = Static(
        swapped=Order(given["layout"]).swapped and arrays["q"].ndim == 4,
        causal=named_causal(given["causal"]),
        window=None if given["window"] is None else window_sides(given["window"]),
        scale=None if given["scale"] is None else _constant("scale", given["scale"]),
        scalars=tuple(_constant(name, given[name]) for name in SCORE_SCALARS),
        flags=tuple(name for name in FLAGS if given[name]),
        dropout_p=dropout_p,
        names=tuple(arrays),
        **{name: given[name] for name in ("alignment", "chunk", "max_seqlen_q", "max_seqlen_k", "list_rows", "list_keys")},
    )
    out, lse = _attention(static, tuple(arrays.values()))
    return (out, lse) if return_lse else out


def _constant(name: str, value: Any, *bounds: float) -> float:
    if isinstance(value, jax.core.Tracer) or getattr(value, "requires_grad", False):
        raise TypeError(
            f"{name} is traced, or requires a gradient: expected a number, which has no gradient and is known when the program is traced"
            + ("; q times it, with scale=1, has one" if name == "scale" else "")
        )
    return float(number(name, value, *bounds).value)


def _operand(name: str, x: jax.Array, packed: bool) -> jax.Array:
    """In the type that the library reads."""
    if name == "mask":
        check_mask(x, (jnp.bool_, jnp.uint8))  # of both the library reads the bytes
    if name in ("bias", "mask"):
        if x.ndim > 4:
            raise ValueError(f"{name} has shape {x.shape}: expected one that broadcasts to (batch, heads, rows, keys)")
        return x.reshape((1,) * (4 - x.ndim) + x.shape)
    if name == "key_ranges" and not packed:
        if not 2 <= x.ndim <= 5:
            raise ValueError(f"key_ranges has shape {x.shape}: expected one that broadcasts to (batch, heads, rows, intervals, 2)")
        x = x.reshape((1,) * (5 - x.ndim) + x.shape)
    if name in (*TERMS, "sinks"):
        if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise TypeError(f"{name} has dtype {x.dtype}: expected real numbers")
        return x.astype(jnp.float32)
    if name in INTEGERS:
        return integers(name, x)
    return x


def _seed(key: Any) -> jax.Array:
    """Seed and offset, 64 bits each, of a key, as 32-bit words: the type that JAX always has."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    if key.ndim != 1 or key.dtype != jnp.uint32:
        raise ValueError(f"dropout_key has shape {key.shape} and dtype {key.dtype}: expected one key of jax.random")
    return jnp.concatenate([jax.random.bits(key, (2,), jnp.uint32), jnp.zeros(2, jnp.uint32)])


def _register() -> None:
    """Tells XLA of the handlers. ImportError if they are not installed."""
    require(__name__)
    name, core = "libflashattn-xla.so", Path(library()._name)
    beside = [core.resolve().parent / name] if core.is_absolute() else []
    path = next((str(p) for p in (Path(__file__).resolve().parent / name, *beside) if p.exists()), name)
    try:
        handlers = ctypes.CDLL(path)
    except OSError as reason:
        raise ImportError(f"{name} was not found ({reason}): the wheel has it, and a build with -DFA_XLA=", name=__name__) from reason
    for platform, suffix in _PLATFORMS.items():
        handler = getattr(handlers, f"flashattn_xla_{suffix}")
        jax.ffi.register_ffi_target("flashattn", _capsule(handler), platform=platform)


_register()


# ------------------------------------------------------------------------------------------------ autograd


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Static, arrays: tuple[jax.Array, ...]) -> Any:
    return tuple(_forward(options)(*arrays))


def _attention_forward(options: Static, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    wanted = tuple(name for name, x in zip(options.names, arrays) if x.perturbed and name in _DIFFERENTIABLE)
    values = tuple(x.value for x in arrays)
    out, lse = _forward(options)(*values)
    return (out, lse), (values, out, lse, _Wanted(wanted))


def _attention_backward(options: Static, saved: Any, cotangents: Any) -> tuple[Any]:
    values, out, lse, wanted = saved
    zero = jax.custom_derivatives.SymbolicZero
    dout, dlse = cotangents
    dout = jnp.zeros(out.shape, out.dtype) if type(dout) is zero else dout
    tangents = (dout,) if type(dlse) is zero else (dout, dlse)
    given, names, terms = dict(zip(options.names, values)), wanted.names, None
    if set(TERMS) & set(names):
        terms = Terms(options, given, slopes="alibi_slopes" in names)
        names = (*(name for name in names if name not in ("bias", *TERMS)), "bias")
    call = _backward(terms.options if terms else options, names, len(tangents) > 1)
    gradients = dict(zip(names, call(*(terms.given if terms else given).values(), out, lse, *tangents)))
    if terms:
        gradients |= terms.split(gradients.pop("bias"))
    return (tuple(gradients[name].astype(x.dtype) if name in wanted.names else None for name, x in zip(options.names, values)),)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)


# --------------------------------------------------------------------------------------------------- calls


@functools.lru_cache(maxsize=256)
def _forward(options: Static) -> Callable[..., Any]:
    """The call, with its rule for vmap, of the operands that options names; it returns out and lse."""

    @custom_vmap
    def call(*arrays: jax.Array) -> Any:
        given: Arrays = dict(zip(options.names, arrays))
        request = describe(options, given)
        results = _outputs(options, given)
        for name, x in results.items():
            point(request, name, x)
        return ffi(request, given, results, _gaps(options, results))

    @call.def_vmap
    def rule(size: int, mapped: list[bool], *arrays: jax.Array) -> Any:
        given = dict(zip(options.names, arrays))
        is_mapped = dict(zip(options.names, mapped))
        if any(is_mapped.get(name) for name in PER_HEAD) or not _foldable(options):
            return _one_by_one(call, mapped, arrays), [True, True]
        folded = _fold(options, given, is_mapped, size)
        return [x.reshape(size, -1, *x.shape[1:]) for x in call(*folded.values())], [True, True]

    return call


@functools.lru_cache(maxsize=256)
def _backward(options: Static, wanted: tuple[str, ...], with_dlse: bool) -> Callable[..., Any]:
    """The call for the gradients of what is wanted. Its arguments: the operands, out, lse, dout, and dlse if there is."""
    names = (*options.names, "o", "lse", "dout", *(["dlse"] if with_dlse else []))

    @custom_vmap
    def call(*arrays: jax.Array) -> Any:
        given: Arrays = dict(zip(names, arrays))
        inputs = describe(options, given)
        request = Request(_abi.BackwardArgs(), inputs)
        for name in ("o", "lse"):
            point(inputs, name, given[name])
        results = {f"d{name}": _gradient(name, given[name]) for name in wanted}
        for name, x in {**{name: given[name] for name in names[len(options.names) + 2 :]}, **results}.items():
            point(request, name, x)
            if name in ("dout", "dq", "dk", "dv"):
                setattr(request.args, f"{name}_stride", strides(options, x.shape))
        if "dbias" in results:
            request.args.dbias_stride = broadcast_strides(results["dbias"].shape)
        return ffi(request, given, results, _gaps(options, results))

    @call.def_vmap
    def rule(size: int, mapped: list[bool], *arrays: jax.Array) -> Any:
        given, is_mapped = dict(zip(names, arrays)), dict(zip(names, mapped))
        if "sinks" in options.names or is_mapped.get("bias_scale") or not _foldable(options):
            return _one_by_one(call, mapped, arrays), [True] * len(wanted)
        folded = _fold(options, given, is_mapped, size)
        if "bias" in wanted:  # each item has a gradient of its own
            whole = folded["q"].shape[0]
            folded["bias"] = jnp.broadcast_to(folded["bias"], (whole, *folded["bias"].shape[1:]))
        results = [x.reshape(size, -1, *x.shape[1:]) for x in call(*folded.values())]
        for place, name in enumerate(wanted):
            if name == "bias" and given[name].shape[int(is_mapped[name])] == 1:
                results[place] = results[place].sum(1, keepdims=True)
        return results, [True] * len(wanted)

    return call


def _outputs(options: Static, given: Arrays) -> Arrays:
    q, v = given["q"], given["v"]
    batch, rows, heads = sizes(options, q.shape)
    lse = (heads, rows) if q.ndim == 3 else (batch, heads, rows)
    return {"o": _Shape((*q.shape[:-1], v.shape[-1]), q.dtype), "lse": _Shape(lse, jnp.float32)}


def _gradient(name: str, like: Any) -> Any:
    return _Shape(like.shape, jnp.float32 if name in ("bias", "sinks") else like.dtype)


def _gaps(options: Static, results: Arrays) -> Arrays:
    """Packed sequences need not fill their tensors, and without rows or keys nothing is written of a bias's gradient."""
    packed = "cu_seqlens_q" in options.names or "cu_seqlens_k" in options.names
    return {
        name: jnp.full(x.shape, -jnp.inf if name == "lse" else 0, x.dtype) for name, x in results.items() if packed or name == "dbias"
    }


# ---------------------------------------------------------------------------------------------------- vmap


def _foldable(options: Static) -> bool:
    """May items be sequences of one batch? Packed tensors have no such axis, and dropout draws by the sequence's number."""
    return not {"cu_seqlens_q", "cu_seqlens_k", "rng_state"} & set(options.names)


def _fold(options: Static, given: Arrays, is_mapped: dict[str, bool], size: int) -> Arrays:
    """Each operand with the mapped axis, which comes first, joined with its batch."""
    batch = given["q"].shape[int(is_mapped["q"])]
    broadcast = _BROADCAST if any(is_mapped.get(name) for name in KEY_LISTS) else (*_BROADCAST, *KEY_LISTS)
    folded = {}
    for name, x in given.items():
        mapped = is_mapped[name]
        shared = name in PER_HEAD or (name == "alibi_slopes" and x.ndim == 1) or (name in broadcast and x.shape[0] == 1)
        if not mapped and shared:
            folded[name] = x
            continue
        if name == "alibi_slopes" and x.ndim - mapped == 1:
            x = x[:, None]
        x = x if mapped else x[None]
        x = jnp.broadcast_to(x, (size, batch if x.shape[1] == 1 else x.shape[1], *x.shape[2:]))
        folded[name] = x.reshape(-1, *x.shape[2:])
    return folded


def _one_by_one(call: Callable[..., Any], mapped: list[bool], arrays: tuple[jax.Array, ...]) -> Any:
    moving = [x for x, m in zip(arrays, mapped) if m]

    def item(some: list[jax.Array]) -> Any:
        left = iter(some)
        return call(*(next(left) if m else x for x, m in zip(arrays, mapped)))

    return jax.lax.map(item, moving)
