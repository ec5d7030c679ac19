"""Arrays of other libraries, in and out by DLPack: memory is shared, never copied here. https://dmlc.github.io/dlpack"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from typing import Any, Callable, TypeVar, cast

import numpy as np

from ._arrays import address, dtype_of
from ._types import Array

_HOST = {1: "CPU", 3: "CUDA host", 11: "ROCm host"}
GPU = {2: "CUDA", 10: "ROCm", 13: "CUDA managed"}
_KINDS = {0: "int", 1: "uint", 2: "float", 6: "bool"}
_ML_DTYPES = {(4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2"}
_READ_ONLY = 1
_ALIGNMENT = 64  # what XLA wants of memory that it shares

Function = TypeVar("Function", bound=Callable[..., Any])


class _DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def exchanged(function: Function) -> Function:
    """Arguments, and elements of lists, that export DLPack are seen as NumPy arrays; results are of the first argument's kind."""

    @functools.wraps(function)
    def exchanging(*args: Any, **options: Any) -> Any:
        found = [_seen(f"argument {place}", value) for place, value in enumerate(args, 1)]
        named = {name: _seen(name, value) for name, value in options.items()}
        result = function(*found, **named)
        first = next(iter((*args, *options.values())), None)
        first = first[0] if isinstance(first, (list, tuple)) and first else first
        if not is_foreign(first):
            return result
        return tuple(exported(x, first) for x in result) if isinstance(result, tuple) else exported(result, first)

    return cast(Function, exchanging)


def is_foreign(value: Any) -> bool:
    """Is it an array, but not of NumPy's?"""
    return hasattr(type(value), "__dlpack__") and not isinstance(value, np.ndarray)


def _seen(name: str, value: Any) -> Any:
    if is_foreign(value):
        return view(name, value)
    if isinstance(value, (list, tuple)) and any(map(is_foreign, value)):
        return type(value)(view(name, x) if is_foreign(x) else x for x in value)
    return value


def device_of(name: str, value: Any) -> tuple[int, int]:
    """DLPack's kind and index of the device of an array through which no gradient is wanted."""
    if getattr(value, "requires_grad", False):
        raise TypeError(f"{name} requires a gradient, which flashattn.torch has: expected a tensor that is detached")
    try:
        kind, index = value.__dlpack_device__()
    except AttributeError:
        kind_of = type(value).__name__
        raise TypeError(f"{name} is a {kind_of} without memory: expected an array; flashattn.jax takes what JAX traces") from None
    return int(kind), int(index)


def view(name: str, value: Any) -> Array:
    """A NumPy array on the memory of anything that exports DLPack, alive as long as the array is."""
    kind, index = device_of(name, value)
    if kind in GPU:
        raise TypeError(
            f"{name} is on {GPU[kind]} device {index}: expected ordinary memory. attention, attention_backward, append_kv and "
            "convert take arrays of a GPU where all are on one; flashattn.torch and flashattn.jax take their own"
        )
    if kind not in _HOST:
        raise TypeError(f"{name} is on a device of DLPack's kind {kind}: expected ordinary memory")
    return seen(name, value)


def seen(name: str, value: Any, **options: Any) -> Array:
    """view, wherever the memory is: of a GPU's the array tells shape, strides and address, and touching an element ends the process.
    options: for __dlpack__."""
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # from before version 1.0 of the protocol
        capsule = value.__dlpack__(**options)
    tensor, read_only = _tensor_of(capsule)
    dtype = _dtype(name, tensor.dtype)
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim])
    else:
        strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) * dtype.itemsize for axis in range(len(shape)))
    empty = 0 in shape
    below = 0 if empty else sum((n - 1) * step for n, step in zip(shape, strides) if step < 0)
    above = 0 if empty else sum((n - 1) * step for n, step in zip(shape, strides) if step > 0) + dtype.itemsize
    array: Array
    if empty:
        array = np.empty(shape, dtype)
    else:
        memory: Any = (ctypes.c_char * (above - below)).from_address((tensor.data or 0) + tensor.byte_offset + below)
        array = np.ndarray(shape, dtype, memory, -below, strides)
        memory.owner = capsule  # not renamed: when it goes, its own destructor gives the memory back
    array.flags.writeable = not read_only
    return array


def _tensor_of(capsule: Any) -> tuple[_Tensor, bool]:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    if not valid(capsule, b"dltensor_versioned"):
        return _Tensor.from_address(pointer(capsule, b"dltensor")), True  # it cannot say, and JAX's arrays must not be written
    versioned = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
    if versioned.major != 1:
        raise BufferError(f"the array is exported by DLPack {versioned.major}.{versioned.minor}: expected 1")
    return versioned.tensor, bool(versioned.flags & _READ_ONLY)


def _dtype(name: str, found: _DType) -> np.dtype[Any]:
    if found.lanes == 1 and (found.code, found.bits) in _ML_DTYPES:
        return dtype_of(name, _ML_DTYPES[found.code, found.bits])
    if found.lanes != 1 or found.code not in _KINDS:
        raise TypeError(f"{name} has elements of DLPack's code {found.code}, {found.bits} bits, {found.lanes} lanes: not supported")
    kind = _KINDS[found.code]
    return np.dtype(kind if kind == "bool" else f"{kind}{found.bits}")


def exported(value: Any, like: Any) -> Any:
    """The array as one of the other's library, on the same memory, by its from_dlpack; anything else as it is."""
    return converted(_Export(value), like, value) if isinstance(value, np.ndarray) else value


def converted(value: Any, like: Any, otherwise: Any) -> Any:
    """What exports DLPack as an array of the other's library; otherwise, where that has no from_dlpack."""
    library = library_of(like)
    return library.from_dlpack(value) if hasattr(library, "from_dlpack") else otherwise


def library_of(array: Any) -> Any:
    """The module, or what stands for it, that has the functions of the array's library."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[type(array).__module__.partition(".")[0]]


class _Export:
    """A NumPy array as DLPack, of types that NumPy itself does not export, too: as bytes or pairs of bytes, renamed."""

    def __init__(self, array: Array) -> None:
        codes = {name: code for code, name in _ML_DTYPES.items()}
        self._code = codes.get(array.dtype.name)
        self._array = array if self._code is None else array.view(f"u{array.itemsize}")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        options = {name: value for name, value in options.items() if value is not None}
        try:
            capsule = self._array.__dlpack__(**options)
        except TypeError:  # a NumPy that does not know them
            capsule = self._array.__dlpack__()
        if self._code is not None:
            tensor, _ = _tensor_of(capsule)
            tensor.dtype.code, tensor.dtype.bits = self._code
        return capsule


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """numpy.empty, aligned as other libraries want memory to be that they take over without a copy."""
    dtype = np.dtype(dtype)
    memory = np.empty(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, memory, -address(memory) % _ALIGNMENT)


def room(shape: tuple[int, ...], dtype: Any, value: float | None) -> Array:
    """Memory for a result: all of the value, or, with None, as it comes."""
    return empty(shape, dtype) if value is None else full(shape, value, dtype)


def full(shape: tuple[int, ...], value: float, dtype: Any) -> Array:
    array = empty(shape, dtype)
    array[...] = value
    return array
