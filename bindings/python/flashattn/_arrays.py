"""From what a caller passes to what the library reads: numbers in range, element types, strides, small arrays."""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _abi
from ._types import Array, Floats

_CODES = {
    "float32": _abi.FA_F32,
    "float16": _abi.FA_F16,
    "bfloat16": _abi.FA_BF16,
    "float8_e4m3fn": _abi.FA_E4M3,
    "float8_e5m2": _abi.FA_E5M2,
    "int8": _abi.FA_I8,
    "float8_e8m0fnu": _abi.FA_E8M0,
}
# ggml's blocks of 32 dims, as structures: an array of them has dim / 32 elements in its last axis. Of their numbers the low byte comes
# first on every machine.
_BLOCK_DIMS = 32
_BLOCKS = {
    "q4_0": (_abi.FA_Q4_0, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    "q4_1": (_abi.FA_Q4_1, np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])),
    "q5_0": (_abi.FA_Q5_0, np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    "q5_1": (_abi.FA_Q5_1, np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    "q8_0": (_abi.FA_Q8_0, np.dtype([("d", "<f2"), ("qs", "i1", 32)])),
}
# Two dims in a byte: an array of them has dim / 2 elements in its last axis.
_PAIRS = {
    "e2m1": (_abi.FA_E2M1, np.dtype([("e2m1", "u1")])),
    "i4": (_abi.FA_I4, np.dtype([("i4", "u1")])),
    "u4": (_abi.FA_U4, np.dtype([("u4", "u1")])),
}
_UNITS = {**_BLOCKS, **_PAIRS}
# What describes an array of a type that NumPy lacks, where its elements are never looked at.
_BARE = {
    name: (_CODES[name], np.dtype([(name, f"u{size}")]))
    for name, size in (("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1), ("float8_e8m0fnu", 1))
}
_STRUCTURES = {**_UNITS, **_BARE}
_FROM_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = ("float32", "float16", "bfloat16")
QUERIES = (*FLOATS, "float8_e4m3fn", "float8_e5m2")
KEYS = (*QUERIES, "int8", *_UNITS)
FACTORS = (*FLOATS, "float8_e4m3fn", "float8_e8m0fnu")


def integer(name: str, value: Any, bits: int, *, signed: bool = True) -> int:
    """The value as an int that fits; ctypes would cut off the upper bits in silence."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected an integer") from None
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}: expected {low} … {high}")
    return number


def number(name: str, value: Any, *bounds: float) -> ctypes.c_float:
    """The value as the library's float32, in which it must not become 0 ("off"), infinite, or one of the bounds."""
    try:
        narrow = ctypes.c_float(ctypes.c_double(value).value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a number") from None
    except OverflowError:  # an integer beyond double
        narrow = ctypes.c_float(math.inf if value > 0 else -math.inf)
    for mark in (0.0, math.inf, -math.inf, *bounds):
        if (narrow.value == mark) != (value == mark):
            raise ValueError(f"{name} is {value}: expected a number that float32 does not make {mark:g}")
    return narrow


def choice(name: str, value: Any, allowed: Mapping[str, int]) -> int:
    """The number behind one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"{name} is {value!r}: expected {' or '.join(map(repr, allowed))}")
    return allowed[value]


def has_factors(dtype: Any) -> bool:
    """Of 8 or 4 bits, whose factors lie beside the values?"""
    return bool(np.dtype(dtype).itemsize == 1)


def block_dtype(name: str) -> np.dtype[Any]:
    """The dtype of a k or v that holds ggml's blocks of 32 dims: "q4_0", "q4_1", "q5_0", "q5_1" or "q8_0"; or two dims in a byte, the
    even one in the low half: "e2m1", "i4" or "u4".

    Such an array is (batch, keys, heads, dim / 32) or (…, dim / 2). To see an array of bytes so, use
    `.view(flashattn.block_dtype("q8_0"))`.
    """
    if name not in _UNITS:
        raise ValueError(f"name is {name!r}: expected {' or '.join(map(repr, _UNITS))}")
    return _UNITS[name][1]


def dim_of(array: Array) -> int:
    """The head dimension of an array of elements, of blocks or of pairs."""
    return int(array.shape[-1]) * dims_in(array.dtype)


def dims_in(dtype: np.dtype[Any]) -> int:
    """Dims in an element of an array's last axis."""
    name = type_name(dtype)
    return 2 if name in _PAIRS else _BLOCK_DIMS if name in _BLOCKS else 1


@functools.lru_cache(maxsize=256)
def type_name(dtype: np.dtype[Any]) -> str:
    """What the library calls it."""
    return next((name for name, (_, layout) in _STRUCTURES.items() if dtype == layout), dtype.name)


def bare_dtype(name: str) -> np.dtype[Any]:
    """A dtype for the description of an array that another library has of this type, of which NumPy need not know."""
    return _BARE[name][1] if name in _BARE else np.dtype(name)


@functools.lru_cache(maxsize=256)
def dtype_code(name: str, dtype: np.dtype[Any], allowed: tuple[str, ...]) -> int:
    """The library's number for an element type."""
    for known, (code, layout) in _STRUCTURES.items():
        if dtype == layout and known in allowed:
            return code
    if dtype.name not in allowed or not dtype.isnative:
        raise TypeError(
            f"{name} has dtype {dtype if dtype.isnative else dtype.str}: expected {', '.join(allowed)} in native byte order"
        )
    return _CODES[dtype.name]


def dtype_of(name: str, value: Any) -> np.dtype[Any]:
    """Anything that names a dtype, the types of ml_dtypes by name included."""
    if isinstance(value, str) and value in _FROM_ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"{name} is {value}: that type needs the package ml_dtypes") from None
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, value))
        return found
    try:
        found = np.dtype(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a dtype") from None
    return found


def as_array(name: str, value: ArrayLike) -> Array:
    """numpy.asarray, whose error names the argument."""
    try:
        array: Array = np.asarray(value)
    except (TypeError, ValueError) as reason:
        raise type(reason)(f"{name} is no array: {reason}") from None
    return array


def tensor(name: str, value: ArrayLike, ndim: int, axes: str) -> Array:
    array = as_array(name, value)
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}: expected {ndim} axes, {axes}")
    return array


class _Head(ctypes.Structure):
    """How NumPy's C interface has an array begin, in all its versions."""

    _fields_ = [("object", ctypes.c_char * object.__basicsize__), ("data", ctypes.c_void_p)]


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _address_in_head(array: Array) -> int:
    return _Head.from_address(id(array)).data or 0


def _reads_heads() -> bool:
    probe = np.zeros(3, np.uint8)[1:]
    return sys.implementation.name == "cpython" and _address_in_head(probe) == _address(probe)


# Where an array's memory begins. array.ctypes takes ten times as long, for each array of a call.
address = _address_in_head if _reads_heads() else _address


def reach(array: Array) -> int:
    """Bytes from the first element to the end of the last one, by strides that are not negative."""
    if array.size == 0:
        return 0
    last: int = sum((length - 1) * stride for length, stride in zip(array.shape, array.strides))
    return last + array.itemsize


def strides_of(array: Array, *, unit: bool) -> tuple[int, ...] | None:
    """Strides in elements as the library takes them, or None when they cannot be expressed: each a whole number of elements and
    not negative; with unit, that of the last axis 1. Where an axis is never stepped along, its stride is free: 0."""
    if not array.flags.aligned:
        return None
    size = array.itemsize
    strides = [0 if length <= 1 or array.size == 0 else stride for length, stride in zip(array.shape, array.strides)]
    if unit and (array.shape[-1] <= 1 or array.size == 0):
        strides[-1] = size
    if any(stride < 0 or stride % size for stride in strides) or (unit and strides[-1] != size):
        return None
    return tuple(stride // size for stride in strides)


def readable(array: Array, *, unit: bool, even: bool = False) -> tuple[Array, tuple[int, ...]]:
    """The array itself when its strides can be expressed, else a copy, and the strides. What was broadcast stays so in the copy. even:
    the strides of all axes but the last must be, for elements are read in pairs."""
    strides = strides_of(array, unit=unit)
    if strides is None or (even and any(step % 2 for step in strides[:-1])):
        array = np.broadcast_to(np.array(core(array, whole=1 if unit else 0), order="C"), array.shape)
        strides = strides_of(array, unit=unit)
        assert strides is not None
    return array, strides


def core(array: Array, *, whole: int = 0) -> Array:
    """What the array has in memory: one step along each axis that it is broadcast along. whole: so many last axes stay as they are."""
    inner = array.ndim - whole
    return array[tuple(slice(0, 1) if step == 0 and axis < inner else slice(None) for axis, step in enumerate(array.strides))]


def retyped(array: Array, dtype: Any) -> Array:
    """The array itself when it has that type, else a copy. What was broadcast stays so in the copy."""
    return array if array.dtype == dtype else np.broadcast_to(core(array).astype(dtype), array.shape)


def writable(name: str, array: Any, *, unit: bool) -> tuple[Array, tuple[int, ...]]:
    """An array that the call writes: never a copy, so it must be one that the library can address."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is written in place: expected a numpy.ndarray, not {type(array).__name__}")
    if not array.flags.writeable:
        raise ValueError(f"{name} is written in place, but the array is read-only")
    strides = strides_of(array, unit=unit)
    if strides is None:
        raise ValueError(
            f"{name} is written in place: byte strides {array.strides} of {array.itemsize}-byte elements must be whole and "
            f"not negative{', the last axis dense' if unit else ''}"
        )
    return array, strides


def broadcast(name: str, array: Array, shape: tuple[int, ...], axes: str) -> Array:
    """The array seen with the given shape by NumPy's rules, without a copy."""
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name} has shape {array.shape}: expected one that broadcasts to {axes} = {shape}") from None


def int32_array(name: str, value: ArrayLike, shape: tuple[int, ...], axes: str) -> NDArray[np.int32]:
    """A small array of integers as dense int32."""
    array = as_int32(name, as_array(name, value))
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: expected {axes} = {shape}")
    return np.ascontiguousarray(array)


def as_int32(name: str, array: NDArray[Any]) -> NDArray[np.int32]:
    """Integers as int32, none of which becomes another one."""
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}: expected integers")
    limits = np.iinfo(np.int32)
    if array.dtype != np.int32 and array.size:
        least, most = core(array).min(), core(array).max()
        if int(least) < limits.min or int(most) > limits.max:
            raise ValueError(f"{name} holds values beyond 32 bits: {least} … {most}")
    return retyped(array, np.int32)


def float32_array(name: str, value: ArrayLike, shapes: tuple[tuple[int, ...], ...], axes: str, *, factors: bool = False) -> Floats:
    """A small array of real numbers as dense float32, in one of the shapes. factors: see `narrow`."""
    array = real(name, value, factors=factors)
    if array.shape not in shapes:
        raise ValueError(f"{name} has shape {array.shape}: expected {axes} = {' or '.join(map(str, shapes))}")
    return np.ascontiguousarray(array)


def status_word(array: Any) -> Array:
    """The one word of a GPU's remarks, which the call writes."""
    word, _ = writable("device_status", array, unit=True)
    if word.shape != (1,) or word.dtype != np.uint32:
        raise ValueError(f"device_status has shape {word.shape} and dtype {word.dtype}: expected (1,) of uint32")
    return word


def factor_array(name: str, value: ArrayLike) -> Array:
    """Factors as they are, in a type that the library has for them, or as float32."""
    array = as_array(name, value)
    return array if type_name(array.dtype) in FACTORS and array.dtype.isnative else real(name, value, factors=True)


def block_of(name: str, value: Any) -> tuple[int, int]:
    """Rows and dims that share a factor."""
    try:
        rows, dims = value
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}: expected (rows, dims)") from None
    return integer(f"{name}[0]", rows, 64), integer(f"{name}[1]", dims, 64)


def real(name: str, value: ArrayLike, *, factors: bool = False) -> Floats:
    """Real numbers of any type as float32. factors: see `narrow`."""
    array = as_array(name, value)
    if array.dtype.kind not in "iuf" and array.dtype.name not in (*QUERIES, *FACTORS):
        raise TypeError(f"{name} has dtype {array.dtype}: expected real numbers")
    return narrow(name, array, factors=factors)


def narrow(name: str, array: Array, *, factors: bool = False) -> Floats:
    """Numbers as float32, in which none becomes infinite; nor, of factors, 0, which they are not small beside."""
    if array.dtype == np.float32 or array.dtype.itemsize < 4:
        return retyped(array, np.float32)
    held = core(array)
    with np.errstate(over="ignore", under="ignore"):
        narrowed: Floats = held.astype(np.float32)
    lost = np.isinf(narrowed) & np.isfinite(held)
    if factors:
        lost |= (narrowed == 0) & (held != 0)
    if lost.any():
        raise ValueError(f"{name} holds {held[lost][0]}: expected numbers that float32 does not make {narrowed[lost][0]:g}")
    return np.broadcast_to(narrowed, array.shape)
