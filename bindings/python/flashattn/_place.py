"""Where a call's arrays lie: in ordinary memory, or in a GPU's as arrays of a library that exports DLPack. Those are read and written where
they are, in their library's stream, without torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, TypeVar, cast

import numpy as np

from . import _abi
from ._arrays import FACTORS, FLOATS, strides_of
from ._dlpack import GPU, device_of, is_foreign, library_of, room, seen
from ._forward import KEY_LISTS, list_shapes
from ._keywords import refuse
from ._request import Conversion, Request
from ._types import Array, BackendName
from .handle import Handle, handle_of

Function = TypeVar("Function", bound=Callable[..., Any])

_BACKENDS: dict[int, BackendName] = {2: "cuda", 13: "cuda", 10: "hip"}  # by DLPack's kind of device
_DEFAULT_STREAMS = {"cuda": 1, "hip": 0}  # in DLPack's words
_OWN_MODULES = {"torch": "flashattn.torch", "jax": "flashattn.jax", "jaxlib": "flashattn.jax"}
_WORKSPACE_ALIGNMENT = 256
_BOUNDS = {f"cu_seqlens_{side}": f"max_seqlen_{side}" for side in ("q", "k", "new")}


class Operand(NamedTuple):
    """What is taken of an array on a GPU as it is: nothing here converts or copies, which would read the memory from outside."""

    dtypes: tuple[str, ...] | None  # None: the function's own check comes before it could copy
    strides: str = ""  # "": dense; "rows": any, but elements of a head side by side; "any"
    is_number: bool = False  # an array without axes


_TENSOR = Operand(None, "rows")
_REALS = Operand(("float32",))
_ADDRESSES = dict.fromkeys(("leftpad_k", "kv_batch_idx", "page_table", "seqused_k"), Operand(("int32",)))
_STATUS = {"device_status": Operand(("uint32",))}
_DESCALES = dict.fromkeys(("q_descale", "k_descale", "v_descale"), Operand(FACTORS))
ATTENTION = {
    **dict.fromkeys(("q", "k", "v", "q_tail", "k_tail"), _TENSOR),
    **{"bias": Operand(FLOATS, "any"), "mask": Operand(("bool", "uint8"), "any")},
    "o_scale": Operand(("float32",), is_number=True),
    **dict.fromkeys(("bias_scale", "alibi_slopes", "sinks"), _REALS),
    **dict.fromkeys(("key_ranges", "key_list", "key_list_count", "full_list", "full_list_count"), Operand(("int32",))),
    **dict.fromkeys(("causal_offset", "cu_seqlens_q", "cu_seqlens_k", "seqused_q"), Operand(("int32",))),
    **_STATUS,
    **_ADDRESSES,
    **_DESCALES,
}
BACKWARD = {**ATTENTION, "dout": _TENSOR, "out": _TENSOR, "lse": _REALS, "dlse": _REALS}
APPEND = {
    **dict.fromkeys(("k_new", "v_new", "k", "v", "k_tail"), _TENSOR),
    **dict.fromkeys(("positions", "cu_seqlens_new", "seqused_new"), Operand(("int32",))),
    **{"cos": _REALS, "sin": _REALS},
    **_STATUS,
    **_ADDRESSES,
    **_DESCALES,
}
CONVERT = {"out": _TENSOR, "x": _TENSOR}


class Place:
    """Where a call's arrays lie, given as a function's `backend`."""

    def room(self, shape: tuple[int, ...], dtype: Any, value: float | None) -> Array:
        """An array for a result: all of the value, or, with None, as it comes."""
        raise NotImplementedError

    def run(self, request: Request | Conversion) -> None:
        raise NotImplementedError


class Host(Place):
    """Ordinary memory, with any backend."""

    def __init__(self, backend: BackendName | Handle | None) -> None:
        self._backend = backend

    def room(self, shape: tuple[int, ...], dtype: Any, value: float | None) -> Array:
        return room(shape, dtype, value)

    def run(self, request: Request | Conversion) -> None:
        request.call(handle_of(self._backend))


class Gpu(Place):
    """A GPU, for one call: that of `like`, an array of the library that results are of."""

    def __init__(self, like: Any, backend: Any, operands: Mapping[str, Operand]) -> None:
        self._device = device_of("argument 1", like)
        self._name = _BACKENDS[self._device[0]]
        module = type(like).__module__.partition(".")[0]
        if module in _OWN_MODULES:
            raise TypeError(f"arrays of {module} are on {_named(self._device)}: {_OWN_MODULES[module]} takes these")
        self._handle, self._operands, self._library = self._handle_of(backend), operands, library_of(like)
        # The stream in which the library works now, where it says so: the runtime's own number of it, which is DLPack's.
        self._stream: int | None = getattr(like, "__cuda_array_interface__", {}).get("stream")
        self._addresses: set[int] = set()
        self._made: list[tuple[Array, Any]] = []

    def _handle_of(self, backend: Any) -> Handle:
        index = self._device[1]
        if not isinstance(backend, Handle):
            if backend not in (None, "auto", self._name):
                raise ValueError(f"backend is {backend!r}: expected {self._name!r}, for arrays on {_named(self._device)}")
            return handle_of(self._name, index, "device")
        if (backend.backend, backend.device, backend.memory) != (self._name, index, "device"):
            raise ValueError(
                f"backend is a handle of {backend.backend}, device {backend.device}, {backend.memory} memory: expected "
                f'Handle("{self._name}", device={index}, memory="device"), or None'
            )
        return backend

    def views(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with a view in each array's place of which nothing that follows reads an element."""
        for lengths, bound in _BOUNDS.items():
            if given.get(lengths) is not None and given.get(bound) is None:
                raise ValueError(f"{bound} is None: expected a bound of the lengths, for {lengths} is on a GPU")
        views = {name: value if value is None else self._view(name, value) for name, value in given.items()}
        lists: dict[str, tuple[int, ...]] = {name: x.shape for name, x in views.items() if name in KEY_LISTS and x is not None}
        if lists and list_shapes(lists, views.get("cu_seqlens_q") is not None) != lists:
            raise ValueError(f"lists and counts have shapes {lists}: on a GPU nothing is copied, expected batch and heads alike")
        return views

    def _view(self, name: str, value: Any) -> Any:
        if name not in self._operands:
            if is_foreign(value):
                raise TypeError(f"{name} is given: it is not taken with arrays on a GPU")
            return value
        if not is_foreign(value) or device_of(name, value) != self._device:
            raise TypeError(f"{name} is not where the others are: expected an array on {_named(self._device)}")
        array, operand = self._seen(name, value), self._operands[name]
        if operand.dtypes and array.dtype.name not in operand.dtypes:
            raise TypeError(f"{name} has dtype {array.dtype}: expected {', '.join(operand.dtypes)} on a GPU")
        taken = strides_of(array, unit=operand.strides == "rows") is not None if operand.strides else array.flags.c_contiguous
        if (array.ndim == 0) != operand.is_number or not taken:
            raise ValueError(
                f"{name} has shape {array.shape} and byte strides {array.strides}: on a GPU nothing is copied, expected "
                + ("none negative, elements of a head side by side" if operand.strides else "a dense array")
            )
        return array

    def _seen(self, name: str, value: Any) -> Array:
        array = seen(name, value, stream=_DEFAULT_STREAMS[self._name] if self._stream is None else self._stream)
        array.flags.writeable = True  # by DLPack of before 1.0 CuPy says neither yes nor no
        self._addresses.add(array.ctypes.data)
        return array

    def room(self, shape: tuple[int, ...], dtype: Any, value: float | None) -> Array:
        """Memory of the library's own, ordered by its stream."""
        dtype = np.dtype(dtype)
        theirs = getattr(self._library, dtype.name, dtype)
        made = self._library.empty(shape, dtype=theirs) if value is None else self._library.full(shape, value, dtype=theirs)
        place = device_of("result", made)
        if place != self._device:
            raise ValueError(
                f"arrays are on {_named(self._device)}, but their library makes new ones on {_named(place)}: expected "
                "theirs to be the library's current device"
            )
        view = self._seen("result", made)
        self._made.append((view, made))
        return view

    def run(self, request: Request | Conversion) -> None:
        for field, address, size in request.pointers():
            if size and address not in self._addresses:
                raise TypeError(f"{field} is in ordinary memory: expected an array on {_named(self._device)}")
        args = request.args
        size = self._handle.workspace_size(request.desc, request.op) if isinstance(request, Request) else 0
        if size:  # given back at once: what gets it next comes later in the stream
            address = self.room((size + _WORKSPACE_ALIGNMENT - 1,), np.uint8, None).ctypes.data
            args.workspace, args.workspace_size = -(-address // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT, size
        args.flags |= _abi.FA_ARGS_STREAM
        args.stream = self._stream  # None: the legacy default stream, which the arrays' exporters made wait for theirs
        request.run(self._handle)
        if self._stream is None:
            self._handle.call("fa_synchronize")

    def theirs(self, result: Any) -> Any:
        """What a function returns, as arrays of the library."""
        if isinstance(result, tuple):
            return tuple(map(self.theirs, result))
        return next((made for view, made in self._made if view is result), None)


def place_of(backend: Any) -> Place:
    """Of a function's `backend`."""
    return backend if isinstance(backend, Place) else Host(backend)


def also_on_gpu(operands: Mapping[str, Operand]) -> Callable[[Function], Function]:
    """A function that takes arrays in a GPU's memory, too, where its first argument is such."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def anywhere(*arguments: Any, **options: Any) -> Any:
            first: Any = next(iter((*arguments, *options.values())), None)
            if not is_foreign(first) or device_of("argument 1", first)[0] not in GPU:
                return function(*arguments, **options)
            unknown = options.keys() - signature.parameters.keys()
            if unknown:
                refuse(function, unknown)
            given = dict(signature.bind(*arguments, **options).arguments)
            place = Gpu(first, given.pop("backend", None), operands)
            return place.theirs(function(**place.views(given), backend=place))

        return cast(Function, anywhere)

    return decorate


def _named(device: tuple[int, int]) -> str:
    return f"{GPU[device[0]]} device {device[1]}" if device[0] in GPU else "ordinary memory"
