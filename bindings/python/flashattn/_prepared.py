"""Calls of `attention` on NumPy arrays that are made ready once: the descriptor, with all that is checked by shapes, types and options. The
next call whose arrays and options look the same only puts its arrays' addresses in."""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Generic, TypeVar, cast

import numpy as np

from . import _abi
from ._arrays import address, as_array, as_int32, integer
from ._dlpack import room
from ._forward import build, results
from ._keywords import INTEGERS
from ._request import longest
from ._types import Array, BackendName
from .handle import Handle, handle_of

Function = TypeVar("Function", bound=Callable[..., Any])
Made = TypeVar("Made")
Given = dict[str, Any]

TENSORS = ("q", "k", "v")
RANDOM = ("dropout_seed", "dropout_offset")  # numbers that are a call's own, in its args
LENGTHS = {"cu_seqlens_q": "max_seqlen_q", "cu_seqlens_k": "max_seqlen_k"}
_OUTPUTS = ("o", "lse", "scores")
# Of these a call can tell no two apart that are equal and of one type.
_PLAIN = frozenset((type(None), bool, int, float, str, type, np.bool_, np.int32, np.int64, np.float32, np.float64))
_SHORT = 4  # what is longer is an array in other clothes
_MOST = 256


class Cache(Generic[Made]):
    """The last calls by their signatures, for all threads: what is in it never changes."""

    def __init__(self) -> None:
        self._made: dict[Any, Made] = {}
        self._lock = threading.Lock()
        self.get = self._made.get

    def put(self, signature: Any, made: Made) -> None:
        with self._lock:
            self._made[signature] = made
            if len(self._made) > _MOST:
                del self._made[next(iter(self._made))]


def plain(value: Any) -> Any:
    """What a signature has of a value that is no array; None: it cannot stand for the value."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if (kind is tuple or kind is list) and len(value) <= _SHORT:
        parts = tuple(map(plain, value))
        return None if None in parts else parts
    return (kind, value) if isinstance(value, np.dtype) else None


def signature_of(given: Mapping[str, Any]) -> tuple[Any, dict[str, Array]]:
    """All of a call that is checked by shapes, types and options, and its arrays, integers in 32 bits. None in the first's place: the call
    has something that only itself can judge."""
    signature: list[tuple[Any, ...]] = []
    arrays = {}
    for name, value in given.items():
        if name in INTEGERS:
            value = _in_32_bits(name, value)
        if type(value) is np.ndarray:
            signature.append((name, value.shape, value.strides, value.dtype, value.flags.aligned))
            arrays[name] = value
        else:
            known = plain(value)
            if known is None:
                return None, arrays
            signature.append((name, known))
    return tuple(signature), arrays


def _in_32_bits(name: str, value: Any) -> Any:
    if isinstance(value, (np.ndarray, list, tuple)) and getattr(value, "dtype", None) != np.int32:
        array = as_array(name, value)
        if array.dtype.kind in "iu":
            return as_int32(name, array)
    return value


def bounded(given: Given) -> Given:
    """With the longest of packed sequences, by which a call is described, where it is not said."""
    for lengths, bound in LENGTHS.items():
        value = given.get(lengths)
        if value is not None and given.get(bound) is None:
            cu_seqlens = as_array(lengths, value)
            if cu_seqlens.ndim == 1 and cu_seqlens.size and cu_seqlens.dtype.kind in "iu":
                given[bound] = longest(bound, None, cu_seqlens)
    return given


def _looks(signed: tuple[Any, ...]) -> str:
    _, shape, strides, dtype, *aligned = signed
    return f"has shape {tuple(shape)}, strides {strides} and dtype {dtype}{', not aligned' if False in aligned else ''}"


def in_order(planned: tuple[Any, ...], given: Given, sign: Callable[[Given], tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """The arrays of a call in the order of a plan's signature. Raises what says why they are not the plan's. sign: signature_of."""
    names = [name for name, *_ in planned]
    for name in (*names, *given):
        if (name in given) != (name in names):
            raise TypeError(f"{name} is {'given' if name in given else 'missing'}: the plan takes {', '.join(names)}")
    arrays: dict[str, Any] = {}
    for name, *expected in planned:
        found, held = sign({name: given[name]})
        if found != ((name, *expected),):
            looks = _looks(found[0]) if held else f"is {given[name]!r}"
            raise ValueError(f"{name} {looks}: the plan's {_looks((name, *expected))}")
        arrays.update(held)
    return arrays


class Prepared:
    """A call that lacks its arrays' addresses. It never changes, so threads share it."""

    def __init__(self, given: Given, arrays: Mapping[str, Array]) -> None:
        """given: all keywords of `attention`. arrays: those among them."""
        request, dtype = build(given["q"], given["k"], given["v"], given)
        self._fields = tuple(arrays)
        # An array that is copied is copied each time: such a call is not prepared.
        self.copied = next((name for name, x in arrays.items() if getattr(request.args, name, None) != address(x)), None)
        if self.copied is not None:
            return
        made: list[tuple[Any, ...]] = []
        results(request, given, dtype, lambda *wanted: made.append(wanted) or room(*wanted))  # type: ignore[func-returns-value]
        request.check_rooms()
        self._outputs = tuple(zip((name for name in _OUTPUTS if name in request.owners), made))
        for name in (*self._fields, *_OUTPUTS):
            setattr(request.args, name, None)
        self._desc, self._template = request.desc, bytes(request.args)
        # Arrays that were made of numbers, which the signature has.
        self._alive = [owner for name, owner in request.owners.items() if name not in (*self._fields, *_OUTPUTS)]

    def __call__(self, arrays: Iterable[Array], random: Mapping[str, Any], handle: Handle) -> Any:
        """arrays: in the order of those it was made with. random: dropout's seed and offset, where they are not those."""
        args = _abi.ForwardArgs.from_buffer_copy(self._template)
        for name, array in zip(self._fields, arrays):
            setattr(args, name, address(array))
        for name, value in random.items():
            setattr(args, name, integer(name, value, 64, signed=False))
        outputs = []
        for name, wanted in self._outputs:
            outputs.append(room(*wanted))
            setattr(args, name, address(outputs[-1]))
        handle.check_host()
        handle.call("fa_forward_ex", ctypes.byref(self._desc), ctypes.byref(args))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


CACHE: Cache[Prepared] = Cache()


def defaults_of(function: Any) -> Given:
    """Of its named parameters."""
    parameters = inspect.signature(function).parameters
    return {name: each.default for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}


def prepared(function: Function) -> Function:
    """`attention`, where a call that looks like an earlier one is that one's."""
    defaults = defaults_of(function)

    @functools.wraps(function)
    def quickly(*tensors: Any, **options: Any) -> Any:
        given = {**dict(zip(TENSORS, tensors)), **options}
        if type(given.get("q")) is not np.ndarray or len(given) < len(tensors) + len(options) or "device_status" in given:
            return function(*tensors, **options)
        backend = given.pop("backend", None)
        random = {name: given.pop(name) for name in RANDOM if name in given}
        signature, arrays = signature_of(bounded(given))
        call = CACHE.get(signature)
        if call is None:
            if signature is None or not set(TENSORS) <= given.keys() <= defaults.keys():
                return function(*tensors, **options)
            call = Prepared({**defaults, **given, **arrays}, arrays)
            CACHE.put(signature, call)
        if call.copied is not None:
            return function(*tensors, **options)
        return call(arrays.values(), random, handle_of(backend))

    return cast(Function, quickly)
