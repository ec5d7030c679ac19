"""Calls of XLA's handlers for flashattn.jax."""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _abi
from ._arrays import narrow
from ._jax_request import Arrays
from ._request import Request
from ._terms import TERMS

_IN_FORWARD = 1 << 20  # as in xla.cc
_SKIP = -1
_REALS = ("bias", "sinks", *TERMS)


def ffi(request: Request, given: Arrays, results: Arrays, gaps: Arrays, vmap_method: str | None = None) -> Any:
    """gaps: what results hold where the call does not write."""
    request.check_rooms()
    where = [_place(request, name) for name in given] + [_SKIP] * len(gaps) + [_place(request, name) for name in results]
    aliases = {len(given) + i: list(results).index(name) for i, name in enumerate(gaps)}
    call = jax.ffi.ffi_call("flashattn", list(results.values()), input_output_aliases=aliases, vmap_method=vmap_method)
    args = type(request.args).from_buffer_copy(request.args)
    for name, kind in args._fields_:
        if kind is ctypes.c_void_p or issubclass(kind, ctypes._Pointer):  # of which a buffer takes the place
            setattr(args, name, None)
    desc, plain = (np.frombuffer(bytes(struct), np.uint8) for struct in (request.desc, args))
    return call(*given.values(), *gaps.values(), op=np.int64(request.op), desc=desc, args=plain, where=np.array(where, np.int64))


def _place(request: Request, name: str) -> int:
    """The offset of its pointer in the args, or in those of a backward's forward."""
    fields = type(request.args)
    inner = not hasattr(fields, name)
    offset: int = getattr(_abi.ForwardArgs if inner else fields, name).offset
    return offset + _IN_FORWARD if inner else offset


def integers(name: str, x: Any) -> jax.Array:
    """As int32, of which none becomes another one; what is beyond 32 bits is beyond all keys."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {x.dtype}: expected integers")
    if x.dtype.itemsize == 8:
        x = jnp.clip(x, max=2**31 - 1) if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else jnp.clip(x, -(2**31), 2**31 - 1)
    found: jax.Array = x.astype(jnp.int32)
    return found


def array_of(name: str, x: Any) -> jax.Array:
    """As JAX has it, unless numbers of 64 bits would become others without a word."""
    if name in _REALS and not isinstance(x, jax.core.Tracer):
        x = x if hasattr(x, "dtype") else np.asarray(x)
        if x.dtype == np.float64:
            narrow(name, np.asarray(x), factors=name in TERMS)
    return jnp.asarray(x)
