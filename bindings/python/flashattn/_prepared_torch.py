"""Calls of flashattn.torch.attention that are made ready once, as _prepared has them of NumPy arrays: of tensors of the CPU that need no
gradient, where nothing that is of torch's would see the operator."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, TypeVar, cast

import torch
from torch.autograd import forward_ad, profiler
from torch.autograd.graph import increment_version

from . import _abi
from ._cache_operators import APPEND as APPEND_ARGUMENTS
from ._cache_operators import ATTEND, append_arguments, attend_arguments
from ._keywords import INTEGERS, of_cache
from ._operators import arguments, call_of
from ._prepared import LENGTHS, TENSORS, Cache, Given, defaults_of, plain
from ._request import Request
from ._tensors import integers, longest
from ._torch_described import described_append, described_attention, written_by_append
from .handle import Handle, handle_of

Function = TypeVar("Function", bound=Callable[..., Any])

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_BACKENDS = (Handle, type(None))
_OUTPUTS = ("o", "lse")
_OTHER_INTEGERS = frozenset((torch.int64, torch.int16, torch.int8, torch.uint8))
_CPU = torch.device("cpu")


def _dispatch() -> tuple[int, int]:
    """What torch adds to the keys of tensors here, and leaves out of them: transforms, modes, tracers and autocast do so."""
    return torch._C._dispatch_tls_local_include_set().raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()


def _usual() -> tuple[frozenset[tuple[int, int]], frozenset[int]]:
    """_dispatch and the keys of a tensor where nothing is around, with inference mode or without. In a new thread, for this module may be
    imported anywhere."""
    states, keys = set(), set()

    def look() -> None:
        for mode in (contextlib.nullcontext, torch.inference_mode):
            with mode():
                states.add(_dispatch())
                keys.add(torch._C._dispatch_keys(torch.empty(0, device=_CPU)).raw_repr())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return frozenset(states), frozenset(keys)


_STATES, _KEYS = _usual()


def unseen() -> bool:
    """Would nobody but the library see a call?"""
    return (
        not torch.compiler.is_compiling()
        and _dispatch() in _STATES
        and torch._C._len_torch_function_stack() == 0
        and forward_ad._current_level < 0
        and not profiler._is_profiler_enabled
    )


def signature_of(given: Mapping[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """As that of NumPy arrays. None in the first's place, too: a tensor needs a gradient, or is not plain or not of the CPU."""
    has_gradients = torch.is_grad_enabled()
    signature: list[tuple[Any, ...]] = []
    tensors: dict[str, torch.Tensor] = {}
    for name, value in given.items():
        if type(value) in _PLAIN:
            if (has_gradients and value.requires_grad) or torch._C._dispatch_keys(value).raw_repr() not in _KEYS:
                return None, tensors
            if name in INTEGERS and value.dtype in _OTHER_INTEGERS:
                value = integers(name, value)
            signature.append((name, value.shape, value.stride(), value.dtype))
            tensors[name] = value
        else:
            known = plain(value)
            if known is None:
                return None, tensors
            signature.append((name, known))
    return tuple(signature), tensors


def settled(given: Given) -> Given:
    """With what the call would ask of its arrays' contents, as that of NumPy arrays, and of torch."""
    _bound(given, LENGTHS)
    if given.get("deterministic") is None:
        given["deterministic"] = torch.are_deterministic_algorithms_enabled()
    return given


def _bound(given: Given, lengths: Mapping[str, str]) -> Given:
    for name, bound in lengths.items():
        value: Any = given.get(name)
        if type(value) in _PLAIN and value.ndim == 1 and value.device == _CPU and given.get(bound) is None:
            if value.dtype == torch.int32 or value.dtype in _OTHER_INTEGERS:
                given[bound] = longest({name: value, bound: None}, name.rpartition("_")[2])
    return given


class Made(NamedTuple):
    """A call as it is described once."""

    request: Request
    outputs: list[torch.Tensor]
    packed: bool = False  # may they have gaps?
    written: frozenset[str] = frozenset()  # tensors that it changes


def attention_made(given: Given) -> Made:
    """given: all keywords of `attention`."""
    if of_cache(given):
        if given["dropout_p"]:
            raise NotImplementedError
        described = described_attention(dict(zip(ATTEND, attend_arguments(given))))
        request, outputs = described.request, described.results
    else:
        call, *outputs = call_of(arguments(given))
        request = call.request
        if given["layout"] == "bhsd" and outputs[0].ndim == 4:
            outputs[0] = outputs[0].transpose(1, 2)
    if not given["return_lse"]:
        request.desc.operands &= ~_abi.FA_OPERAND_LSE
        request.args.lse = None
        outputs.pop()
    return Made(request, outputs, bool(request.desc.operands & _abi.FA_OPERAND_CU_SEQLENS_Q))


def _append_made(given: Given) -> Made:
    described = described_append(dict(zip(APPEND_ARGUMENTS, append_arguments({**given, "backend": None}))))
    return Made(described.request, [], written=written_by_append(given))


class Prepared:
    """A call that lacks its tensors' addresses. It never changes, so threads share it."""

    def __init__(self, made: Made, tensors: Mapping[str, torch.Tensor]) -> None:
        """tensors: those that it was made of, by their names."""
        request, outputs = made.request, made.outputs
        self._fields = tuple(tensors)
        self.copied = next((name for name, x in tensors.items() if (getattr(request.args, name, None) or 0) != x.data_ptr()), None)
        if self.copied is not None:
            return
        request.check_rooms()
        values = (0.0, float("-inf")) if made.packed else (None, None)
        self._outputs = tuple((name, x.shape, x.stride(), x.dtype, value) for name, x, value in zip(_OUTPUTS, outputs, values))
        self._written = made.written
        self._returns = len(outputs)
        passing = (*self._fields, *(name for name, *_ in self._outputs))
        for name in passing:
            setattr(request.args, name, None)
        # Tensors that were made of numbers, which the signature has.
        self._alive = [owner for name, owner in request.owners.items() if name not in passing]
        self._desc, self._function = request.desc, request.function
        self._kind, self._template = type(request.args), bytes(request.args)

    def __call__(self, tensors: Iterable[torch.Tensor], handle: Handle) -> Any:
        args = self._kind.from_buffer_copy(self._template)
        for name, x in zip(self._fields, tensors):
            setattr(args, name, x.data_ptr())
        if self._written:
            increment_version([x for name, x in zip(self._fields, tensors) if name in self._written])
        outputs = []
        for name, shape, strides, dtype, value in self._outputs:
            x = torch.empty_strided(shape, strides, dtype=dtype, device=_CPU)
            outputs.append(x if value is None else x.fill_(value))
            setattr(args, name, x.data_ptr())
        handle.check_host()
        handle.call(self._function, ctypes.byref(self._desc), ctypes.byref(args))
        return outputs[0] if self._returns == 1 else tuple(outputs) if outputs else None


class Kind(NamedTuple):
    """A function whose calls are prepared."""

    tensors: tuple[str, ...]  # its first arguments
    settled: Callable[[Given], Given]
    made: Callable[[Given], Made]


ATTENTION = Kind(TENSORS, settled, attention_made)
APPEND = Kind(("k_new", "v_new", "k", "v"), lambda given: _bound(given, {"cu_seqlens_new": "max_seqlen_new"}), _append_made)
CACHE: Cache[Prepared] = Cache()


def prepared(kind: Kind) -> Callable[[Function], Function]:
    """The function, where a call that looks like an earlier one, and that torch need not see, is that one's."""

    def decorate(function: Function) -> Function:
        defaults = defaults_of(function)

        @functools.wraps(function)
        def quickly(*tensors: Any, **options: Any) -> Any:
            if not unseen():
                return function(*tensors, **options)
            given = {**dict(zip(kind.tensors, tensors)), **options}
            twice, backend = len(given) < len(tensors) + len(options), given.pop("backend", None)
            if twice or given.get("dropout_p") or not isinstance(backend, _BACKENDS):
                return function(*tensors, **options)
            signature, held = signature_of(kind.settled(given))
            call = CACHE.get(signature)
            if call is None:
                if signature is None or not set(kind.tensors) <= given.keys() <= defaults.keys():
                    return function(*tensors, **options)
                try:
                    call = Prepared(kind.made({**defaults, **given, **held}), held)
                except Exception:  # what is wrong the operator says
                    return function(*tensors, **options)
                CACHE.put(signature, call)
            if call.copied is not None:
                return function(*tensors, **options)
            return call(held.values(), handle_of("cpu" if backend is None else backend))

        return cast(Function, quickly)

    return decorate
