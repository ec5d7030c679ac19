"""Arrays in a GPU's memory, of any library that exports DLPack: read where they lie, in their library's stream, without torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Callable, TypeVar, cast

import numpy as np

from . import _abi
from ._arrays import FACTORS, FLOATS, strides_of
from ._dlpack import GPU, is_foreign, library_of, seen
from ._forward import build, results
from ._types import Array, BackendName
from .handle import Handle, handle_of

Function = TypeVar("Function", bound=Callable[..., Any])

_BACKENDS: dict[int, BackendName] = {2: "cuda", 13: "cuda", 10: "hip"}  # by DLPack's kind of device
_DEFAULT_STREAMS = {"cuda": 1, "hip": 0}  # in DLPack's words
_OWN_MODULES = {"torch": "flashattn.torch", "jax": "flashattn.jax", "jaxlib": "flashattn.jax"}
_WORKSPACE_ALIGNMENT = 256

_TENSORS = ("q", "k", "v", "q_tail", "k_tail")
_INTEGERS = (
    *("causal_offset", "key_ranges", "key_list", "key_list_count", "full_list", "full_list_count"),
    *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "kv_batch_idx", "page_table"),
)
# What is taken as it is, by its types: nothing here converts or copies, which would read the GPU's memory from outside.
_OPERANDS = {
    **dict.fromkeys(_INTEGERS, ("int32",)),
    **dict.fromkeys(("bias_scale", "alibi_slopes", "sinks"), ("float32",)),
    **dict.fromkeys(("q_descale", "k_descale", "v_descale"), FACTORS),
    **{"bias": FLOATS, "mask": ("bool", "uint8")},
}
_CONVERTED = ("k_shift", "v_shift")


def also_on_gpu(function: Function) -> Function:
    """`attention` of arrays that lie in a GPU's memory, as q says; the function itself has all others."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def anywhere(*arguments: Any, **options: Any) -> Any:
        q = arguments[0] if arguments else options.get("q")
        if not is_foreign(q) or int(q.__dlpack_device__()[0]) not in GPU:
            return function(*arguments, **options)
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        return _Call(q).attention(given.arguments)

    return cast(Function, anywhere)


class _Call:
    """A call on one GPU: like, an array of the library that the results are of."""

    def __init__(self, like: Any) -> None:
        self.device = _device_of(like)
        self.backend = _BACKENDS[self.device[0]]
        module = type(like).__module__.partition(".")[0]
        if module in _OWN_MODULES:
            raise TypeError(f"q is {module}'s, on {_named(self.device)}: {_OWN_MODULES[module]}.attention takes that")
        self.library = library_of(like)
        # The stream in which the library works now, where it says so: the runtime's own number of it, which is DLPack's.
        self.stream: int | None = getattr(like, "__cuda_array_interface__", {}).get("stream")
        self._addresses: set[int] = set()
        self._made: list[Any] = []

    def attention(self, given: Mapping[str, Any]) -> Any:
        handle = self._handle(given["backend"])
        given = {name: value if value is None else self._operand(name, value) for name, value in given.items()}
        for side in ("q", "k"):
            if given[f"cu_seqlens_{side}"] is not None and given[f"max_seqlen_{side}"] is None:
                raise ValueError(f"max_seqlen_{side} is None: expected a bound of the lengths, for cu_seqlens_{side} is on a GPU")
        request, dtype = build(given["q"], given["k"], given["v"], given)
        count = len(results(request, given, dtype, self._room))
        for field, address, size in request.pointers():
            if size and address not in self._addresses:
                raise TypeError(f"{field} is in ordinary memory: expected an array on {_named(self.device)}")
        size = handle.workspace_size(request.desc, request.op)
        if size:  # given back at once: what gets it next comes later in the stream
            address = self._room((size + _WORKSPACE_ALIGNMENT - 1,), np.uint8, None).ctypes.data
            request.args.workspace = -(-address // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
            request.args.workspace_size = size
        request.args.flags |= _abi.FA_ARGS_STREAM
        request.args.stream = self.stream  # None: the legacy default stream, which the arrays' exporters made wait for theirs
        request.run(handle)
        if self.stream is None:
            handle.call("fa_synchronize")
        return self._made[0] if count == 1 else tuple(self._made[:count])

    def _handle(self, backend: Any) -> Handle:
        index = self.device[1]
        if not isinstance(backend, Handle):
            if backend not in (None, "auto", self.backend):
                raise ValueError(f"backend is {backend!r}: expected {self.backend!r}, for q is on {_named(self.device)}")
            return handle_of(self.backend, index, "device")
        if (backend.backend, backend.device, backend.memory) != (self.backend, index, "device"):
            raise ValueError(
                f"backend is a handle of {backend.backend}, device {backend.device}, {backend.memory} memory: expected "
                f'Handle("{self.backend}", device={index}, memory="device"), or None'
            )
        return backend

    def _operand(self, name: str, value: Any) -> Any:
        """A view of an array among the arguments, of which nothing that follows reads an element; anything else as it is."""
        if name not in (*_TENSORS, *_OPERANDS, *_CONVERTED):
            return value
        if name in _CONVERTED:
            raise TypeError(f"{name} is given: it is not taken with arrays on a GPU")
        if not is_foreign(value) or _device_of(value) != self.device:
            raise TypeError(f"{name} is not on q's device: expected an array on {_named(self.device)}")
        array = self._seen(name, value)
        if name in _OPERANDS and array.dtype.name not in _OPERANDS[name]:
            raise TypeError(f"{name} has dtype {array.dtype}: expected {', '.join(_OPERANDS[name])} on a GPU")
        by_strides = name in (*_TENSORS, "bias", "mask")
        if array.ndim == 0 or (strides_of(array, unit=name in _TENSORS) is None if by_strides else not array.flags.c_contiguous):
            raise ValueError(
                f"{name} has shape {array.shape} and byte strides {array.strides}: on a GPU nothing is copied, expected "
                + ("none negative, elements of a head side by side" if by_strides else "a dense array")
            )
        return array

    def _seen(self, name: str, value: Any) -> Array:
        array = seen(name, value, stream=_DEFAULT_STREAMS[self.backend] if self.stream is None else self.stream)
        array.flags.writeable = True  # CuPy's say by DLPack of before 1.0 neither yes nor no
        self._addresses.add(array.ctypes.data)
        return array

    def _room(self, shape: tuple[int, ...], dtype: Any, value: float | None) -> Array:
        """Memory of the library's own, ordered by its stream."""
        dtype = np.dtype(dtype)
        theirs = getattr(self.library, dtype.name, dtype)
        made = self.library.empty(shape, dtype=theirs) if value is None else self.library.full(shape, value, dtype=theirs)
        if _device_of(made) != self.device:
            raise ValueError(
                f"q is on {_named(self.device)}, but its library makes arrays on {_named(_device_of(made))}: expected q's to be "
                "the library's current device"
            )
        self._made.append(made)
        return self._seen("result", made)


def _device_of(array: Any) -> tuple[int, int]:
    kind, index = array.__dlpack_device__()
    return int(kind), int(index)


def _named(device: tuple[int, int]) -> str:
    return f"{GPU[device[0]]} device {device[1]}" if device[0] in GPU else "ordinary memory"
