"""flashattn.jax over caches: attention, what fills them, and rotary embedding. A call is described by the functions on NumPy arrays: an
array takes each of JAX's in its place, of its shape, whose elements nobody looks at."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from . import cache
from ._arrays import FACTORS, FLOATS, block_dtype
from ._forward import KEY_LISTS, build, list_shapes, results
from ._jax_call import array_of, ffi, integers
from ._jax_request import Arrays
from ._keywords import BYTES, DESCALES, INTEGERS, NUMPY, REALS, Keywords
from ._place import Place
from ._request import Conversion, Request
from ._types import AppendOptions, Array, RotaryOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BOUNDS = {"cu_seqlens_q": ("max_seqlen_q", "q", "x"), "cu_seqlens_k": ("max_seqlen_k", "k"), "cu_seqlens_new": ("max_seqlen_new", "k_new")}
_APPEND = Keywords(AppendOptions, "jax.Array")
_ROTARY = Keywords(RotaryOptions, "jax.Array")
_Shape: Any = jax.ShapeDtypeStruct  # which JAX's own types leave out


class _Described(Place):
    """Takes a call down. results: shapes of what it returns, with their values where it does not write."""

    request: Request

    def __init__(self) -> None:
        self._arrays: dict[int, Array] = {}
        self.results: list[tuple[Any, float | None]] = []

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        kind = np.dtype(dtype)
        one = np.empty(1, kind)
        strides = [kind.itemsize * int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
        found = np.lib.stride_tricks.as_strided(one, shape, strides) if 0 not in shape else np.empty(shape, kind)
        self._arrays[found.ctypes.data] = found
        return found

    def room(self, shape: tuple[int, ...], dtype: Any, value: float | None) -> Array:
        self.results.append((_Shape(shape, np.dtype(dtype)), value))
        return self.array(shape, dtype)

    def run(self, request: Request | Conversion) -> None:
        assert isinstance(request, Request)
        for field, address, size in request.pointers():
            if size and address not in self._arrays:
                raise ValueError(f"{field} cannot be described when the program is traced: expected it in another shape")
        self.request = request


def _operands(given: Mapping[str, Any]) -> Arrays:
    """JAX's arrays among the keywords, in types that the library reads."""
    found = {}
    for name, x in given.items():
        is_array = name in INTEGERS or name in REALS or name in DESCALES or (hasattr(x, "dtype") and hasattr(x, "shape"))
        if x is None or not is_array:
            continue
        array = array_of(name, x)
        if name in INTEGERS:
            array = integers(name, array)
        elif name in REALS or (name in DESCALES and array.dtype.name not in FACTORS):
            array = array.astype(jnp.float32)
        elif name == "bias" and array.dtype.name not in FLOATS:
            raise TypeError(f"bias has dtype {array.dtype}: expected float32, float16 or bfloat16")
        found[name] = array
    return found


def _seen(place: _Described, given: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The keywords of the function on NumPy arrays."""
    seen = {name: x for name, x in given.items() if name not in BYTES.values()}
    for name, x in arrays.items():
        shape, dtype, block = tuple(x.shape), np.dtype(x.dtype), given.get(BYTES.get(name, ""))
        if name in BYTES and block is None and dtype == np.uint8:
            raise TypeError(f"{name} has dtype uint8: expected a {BYTES[name]}, which says what its bytes hold, or another dtype")
        if block is not None:
            layout = block_dtype(block)
            if dtype != np.uint8 or shape[-1] % layout.itemsize:
                raise ValueError(f"{name} has dtype {dtype} and {shape[-1]} in its last axis: expected uint8, a multiple of "
                                 f"{layout.itemsize}, as {BYTES[name]} is {block!r}")
            shape, dtype = (*shape[:-1], shape[-1] // layout.itemsize), layout
        seen[name] = place.array(shape, dtype)
    for lengths, (bound, *owners) in _BOUNDS.items():
        if lengths in arrays and seen.get(bound) is None:
            seen[bound] = next(arrays[owner].shape[0] for owner in owners if owner in arrays)
    return seen


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _without_gradient(name: str, call: Callable[..., Any], *arrays: jax.Array) -> Any:
    return call(*arrays)


@_without_gradient.defjvp
def _refuse(name: str, call: Any, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(f"flashattn.jax.{name} has no gradient: expected jax.lax.stop_gradient around what it takes")


def _run(name: str, place: _Described, arrays: Arrays, outputs: Arrays, gaps: Arrays) -> list[jax.Array]:
    read = {key: x for key, x in arrays.items() if key not in outputs}

    def call(*operands: jax.Array) -> Any:
        given = dict(zip((*read, *gaps), operands))
        return ffi(place.request, {key: given[key] for key in read}, outputs, {key: given[key] for key in gaps}, "sequential")

    found: list[jax.Array] = _without_gradient(name, call, *read.values(), *gaps.values())
    return found


def cached_attention(given: Mapping[str, Any]) -> list[jax.Array]:
    """out and lse. given: all keywords of `attention`."""
    if given["dropout_p"]:
        raise NotImplementedError(f"dropout_p is {given['dropout_p']}: expected 0 in a call over a cache, or of quantised arrays")
    given, place = {name: x for name, x in given.items() if name not in ("dropout_key", "deterministic")}, _Described()
    arrays = _operands(given)
    q, offset = arrays["q"], arrays.get("causal_offset")
    if offset is not None and offset.ndim == 0:
        cu = arrays.get("cu_seqlens_q")
        arrays["causal_offset"] = jnp.broadcast_to(offset, (q.shape[0] if cu is None else cu.shape[0] - 1,))
    lists = {name: tuple(x.shape) for name, x in arrays.items() if name in KEY_LISTS}
    if lists:
        arrays |= {name: jnp.broadcast_to(arrays[name], shape) for name, shape in list_shapes(lists, q.ndim == 3).items()}
    options = {**NUMPY.defaults, "return_lse": True, "return_scores": None, **_seen(place, given, arrays)}
    request, dtype = build(options["q"], options["k"], options["v"], options)
    results(request, options, dtype, place.room)
    place.run(request)
    outputs = dict(zip(("o", "lse"), (shape for shape, _ in place.results)))
    gaps = {name: jnp.full(outputs[name].shape, value, outputs[name].dtype)
            for name, value in (("o", 0), ("lse", -jnp.inf)) if "cu_seqlens_q" in arrays}
    return _run("attention", place, arrays, outputs, gaps)


@_APPEND.listed
def append_kv(
    k_new: jax.Array, v_new: jax.Array | None, k: jax.Array, v: jax.Array | None, **options: Unpack[AppendOptions[jax.Array]]
) -> dict[str, jax.Array]:
    """The cache with new keys and values: a dict of k, v and, where they are given, k_tail and what dynamic_scale writes.

    k_new, v_new: (batch, tokens, heads_k, dim), or packed (total, heads_k, dim) with cu_seqlens_new; float32, float16, bfloat16.
    k, v: the cache, (batch, slots, heads_k, dim), or (num_pages, page_size, heads_k, dim) with page_table; float32, float16, bfloat16,
        float8_e4m3fn, float8_e5m2, int8, or bytes (uint8) of a k_dtype and v_dtype. Under jit with donate_argnums they are written in
        place; without, XLA copies them first.
    k_dtype, v_dtype: what the bytes of k and v hold, for example "q8_0": dim / 32 blocks of 34 bytes in the last axis, or "i4": dim / 2
        bytes. flashattn.block_dtype(name).itemsize says how many bytes a block has.
    The other keywords are those of flashattn.append_kv. What is no array must be known when the program is traced. vmap makes a call for
    each item. There is no gradient.
    """
    given = {"k_new": k_new, "v_new": v_new, "k": k, "v": v, **_APPEND.complete(append_kv, options)}
    arrays, place = _operands(given), _Described()
    factors = ("k_descale", "v_descale", "k_shift", "v_shift") if given["dynamic_scale"] else ()
    written = {name: arrays[name] for name in ("k", "v", "k_tail", *factors) if name in arrays}
    cache.append_kv(**{**_seen(place, given, arrays), "backend": place})
    outputs = {name: _Shape(x.shape, x.dtype) for name, x in written.items()}
    return dict(zip(outputs, _run("append_kv", place, arrays, outputs, written)))


@_ROTARY.listed
def rotary(x: jax.Array, cos: jax.Array, sin: jax.Array, **options: Unpack[RotaryOptions[jax.Array]]) -> jax.Array:
    """Rotary embedding as flashattn.rotary has it. It has no gradient; vmap makes a call for each item.

    x: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; float32, float16, bfloat16. cos, sin:
        (max_position, rotary_dim / 2). The keywords are those of flashattn.rotary, and layout as in `attention`.
    """
    given = {"x": x, "cos": cos, "sin": sin, **_ROTARY.complete(rotary, options)}
    arrays, place = _operands(given), _Described()
    cache.rotary(**{**_seen(place, given, arrays), "backend": place})
    shape, _ = place.results[0]
    gaps = {"out": jnp.zeros(shape.shape, shape.dtype)} if "cu_seqlens_q" in arrays or "seqused_q" in arrays else {}
    if "seqused_q" in arrays:
        arrays["seqused"] = arrays.pop("seqused_q")
    if "cu_seqlens_q" in arrays:
        arrays["cu_seqlens"] = arrays.pop("cu_seqlens_q")
    return _run("rotary", place, arrays, {"out": shape}, gaps)[0]
