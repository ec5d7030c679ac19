"""Calls of the functions on NumPy arrays, described by torch's tensors: an array takes each tensor's place, of its shape, strides and
address, whose elements nobody looks at. So a tensor may be on a GPU, and of a type that NumPy lacks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ._arrays import FACTORS, QUERIES, bare_dtype, block_dtype, dims_in, type_name
from ._forward import KEY_LISTS, build, list_shapes, results
from ._keywords import BYTES, DESCALES, INTEGERS, NUMPY, REALS
from ._place import Place
from ._request import Conversion, Request
from ._tensors import CODES, in_pairs, integers, longest, reals, side_by_side
from ._types import Array
from .cache import append_kv, rotary

# What the library writes must be where it is given; of all others one that it cannot address is copied.
_READ = ("x", "q", "k", "v", "q_tail", "k_tail", "k_new", "v_new")
_NAMES = {"float4_e2m1fn_x2": "e2m1"}  # of torch, where the library has another one


def name_of(dtype: torch.dtype) -> str:
    """What the library calls it."""
    name = str(dtype).rpartition(".")[2]
    return _NAMES.get(name, name)


def layout_of(name: str, x: torch.Tensor, block: str | None) -> np.dtype[Any]:
    """The dtype of the array in the tensor's place. block: the type that its bytes are of, where they are not numbers."""
    if block is None:
        known = name_of(x.dtype)
        if name in BYTES and known == "uint8":
            raise TypeError(f"{name} has dtype {x.dtype}: expected a {BYTES[name]}, which says what its bytes hold, or another dtype")
        return block_dtype(known) if known in _NAMES.values() else bare_dtype(known)
    layout = block_dtype(block)
    if x.dtype != torch.uint8:
        raise TypeError(f"{name} has dtype {x.dtype}: expected uint8, the bytes of {BYTES[name]} {block!r}")
    if x.shape[-1] % layout.itemsize:
        raise ValueError(f"{name} has {x.shape[-1]} bytes in its last axis: expected a multiple of {layout.itemsize}, as of {block!r}")
    return layout


def dim_of(name: str, x: torch.Tensor, block: str | None) -> int:
    """The head dimension."""
    layout = layout_of(name, x, block)
    held: int = x.shape[-1] * x.element_size() // layout.itemsize * dims_in(layout)
    return held


def _is_whole(x: torch.Tensor, layout: np.dtype[Any]) -> bool:
    """Do rows, heads and sequences of bytes begin where a block does?"""
    steps = (step * x.element_size() for length, step in zip(x.shape[:-1], x.stride()) if length > 1)
    return not any(step % layout.itemsize for step in steps)


def check_devices(given: Mapping[str, Any]) -> None:
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    first, device = next((name, x.device) for name, x in tensors.items())
    for name, x in tensors.items():
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}: expected {first}'s device, {device}")


class Described(Place):
    """Takes a call down instead of making it. results: tensors for what it returns."""

    request: Request

    def __init__(self, device: torch.device) -> None:
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"tensors are on {device}: expected the CPU or a GPU")
        self._device, self._addresses = device, set[int]()
        self.results: list[torch.Tensor] = []

    def array(self, x: torch.Tensor, dtype: np.dtype[Any]) -> Array:
        strides = [step * x.element_size() for step in x.stride()]
        shape = list(x.shape)
        if x.element_size() != dtype.itemsize:  # bytes of blocks
            shape[-1], strides[-1] = shape[-1] // dtype.itemsize, strides[-1] * dtype.itemsize
        if x.numel() == 0:
            return np.empty(shape, dtype)
        room = sum((length - 1) * step for length, step in zip(shape, strides)) + dtype.itemsize
        memory: Any = (ctypes.c_char * room).from_address(x.data_ptr())
        memory.owner = x
        self._addresses.add(x.data_ptr())
        return np.ndarray(shape, dtype, memory, 0, strides)

    def arrays(self, given: Mapping[str, Any], written: frozenset[str] = frozenset()) -> dict[str, Any]:
        """given, with an array in each tensor's place. written: names of what the call writes."""
        check_devices(given)
        found, given = {}, dict(given)
        lists = {name: tuple(given[name].shape) for name in KEY_LISTS if given.get(name) is not None}
        if lists:  # whose strides must be alike
            shapes = list_shapes(lists, given["cu_seqlens_q"] is not None)
            given |= {name: given[name].expand(shape).contiguous() for name, shape in shapes.items()}
        for tensor in ("k", "v"):
            self._one_layout(given, f"{tensor}_descale", f"{tensor}_shift", written)
        for name, x in given.items():
            if isinstance(x, torch.Tensor):
                layout = layout_of(name, x, given.get(BYTES.get(name, "")))
                if name not in written:
                    x = self._readable(name, x)
                    layout = layout if x.dtype == given[name].dtype else layout_of(name, x, None)
                    x = x if _is_whole(x, layout) else x.contiguous()
                elif not _is_whole(x, layout):
                    raise ValueError(f"{name} has strides {x.stride()} of bytes: expected multiples of {layout.itemsize}, a block's bytes")
                x = self.array(x, layout)
            found[name] = x
        return found

    @staticmethod
    def _one_layout(given: dict[str, Any], factors: str, shifts: str, written: frozenset[str]) -> None:
        """The library has one set of strides, and one type, for both."""
        x, y = given.get(factors), given.get(shifts)
        if x is None or y is None or factors in written or (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride()):
            return
        shape = np.broadcast_shapes(x.shape, y.shape)
        for name in (factors, shifts):
            given[name] = reals(name, given[name]).expand(shape).contiguous()

    @staticmethod
    def _readable(name: str, x: torch.Tensor) -> torch.Tensor:
        if name in _READ:
            return side_by_side(x)[0]
        if name in INTEGERS:
            x = integers(name, x)
            if name == "key_ranges":
                return in_pairs(x)
            return x if name == "page_table" and x.stride(-1) == 1 else x.contiguous()
        if name in REALS:
            return reals(name, x).contiguous()
        if name in DESCALES and name_of(x.dtype) not in FACTORS:
            return reals(name, x)
        if name == "bias" and x.dtype not in CODES:
            raise TypeError(f"bias has dtype {x.dtype}: expected float32, float16 or bfloat16")
        return x

    def room(self, shape: tuple[int, ...], dtype: Any, value: float | None) -> Array:
        kind = np.dtype(dtype)
        options: dict[str, Any] = {"dtype": getattr(torch, type_name(kind)), "device": self._device}
        self.results.append(torch.empty(shape, **options) if value is None else torch.full(shape, value, **options))
        return self.array(self.results[-1], kind)

    def run(self, request: Request | Conversion) -> None:
        assert isinstance(request, Request)
        for field, address, size in request.pointers():
            if size and address not in self._addresses:
                raise ValueError(f"{field} cannot be addressed by its strides: expected a dense tensor")
        self.request = request


def described_attention(given: Mapping[str, Any]) -> Described:
    """given: keywords of `attention`, of which those that are missing have their defaults. Results: out and lse."""
    q = given["q"]
    place = Described(q.device)
    options = {**NUMPY.defaults, "return_lse": True, "return_scores": None, **place.arrays(given)}
    for name in ("q", "k"):
        if given.get(f"cu_seqlens_{name}") is not None:
            options[f"max_seqlen_{name}"] = longest(given, name)
    if q.dtype not in CODES:
        options["out_dtype"] = bare_dtype("bfloat16")
    request, dtype = build(options["q"], options["k"], options["v"], options)
    results(request, options, dtype, place.room)
    place.run(request)
    return place


def written_by_append(given: Mapping[str, Any]) -> frozenset[str]:
    """Names of the tensors that the call changes."""
    factors = ("k_descale", "v_descale", "k_shift", "v_shift") if given.get("dynamic_scale") else ()
    return frozenset(name for name in ("k", "v", "k_tail", *factors) if isinstance(given.get(name), torch.Tensor))


def described_append(given: Mapping[str, Any]) -> Described:
    """given: keywords of `append_kv`."""
    place = Described(given["k_new"].device)
    options = place.arrays(given, written_by_append(given))
    if given.get("cu_seqlens_new") is not None:
        options["max_seqlen_new"] = longest(given, "new")
    for name in (*BYTES.values(), "handle"):
        options.pop(name, None)
    append_kv(**{**options, "backend": place})
    return place


def described_rotary(given: Mapping[str, Any]) -> Described:
    """given: keywords of `rotary`."""
    place = Described(given["x"].device)
    options = place.arrays(given, frozenset(("out",)))
    if given.get("cu_seqlens_q") is not None:
        options["max_seqlen_q"] = longest(given, "q")
    rotary(**{**options, "backend": place})
    return place


def attention_shapes(given: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Of out and lse, and out's dtype: what can be told without memory."""
    q, k, v = given["q"], given["k"], given["v"]
    if name_of(q.dtype) not in QUERIES:
        raise TypeError(f"q has dtype {q.dtype}: expected {', '.join(QUERIES)}")
    if v is not None:
        dim = dim_of("v", v, given["v_dtype"])
    else:
        dim = dim_of("k", k, given["k_dtype"]) if given["dim_v"] is None else given["dim_v"]
    lse: tuple[int, ...] = (q.shape[0], q.shape[1], q.shape[2]) if given["layout"] == "bhsd" else (q.shape[0], q.shape[2], q.shape[1])
    if q.ndim == 3:
        lse = (q.shape[1], q.shape[0])
    return (*q.shape[:-1], dim), lse, q.dtype if q.dtype in CODES else torch.bfloat16


