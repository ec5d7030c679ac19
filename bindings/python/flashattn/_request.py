"""A call in the making: descriptor, args, and the arrays that must stay alive until the library returns."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _abi
from ._arrays import broadcast, int32_array, integer, readable, real, strides_of
from ._library import library
from .errors import check
from .handle import Handle


class Request:
    """Fields are filled one operand at a time; `desc` and `args` are the C structs themselves."""

    def __init__(self, args: _abi.Sized) -> None:
        self.desc = _abi.AttentionDesc()
        self.args = args
        self._alive: list[np.ndarray] = []

    def point(self, field: str, array: np.ndarray) -> None:
        """Sets a pointer of the args and keeps its array."""
        setattr(self.args, field, array.ctypes.data)
        self._alive.append(array)

    def operand(self, bit: int, field: str, array: np.ndarray) -> None:
        self.desc.operands |= bit
        self.point(field, array)

    def strided(self, field: str, array: np.ndarray, *, packed: bool) -> None:
        """q, k, v or o as an input, with its own strides."""
        array, strides = readable(array, unit=True)
        self.point(field, array)
        self.desc.strided |= getattr(_abi, f"FA_STRIDED_{field.upper()}")
        setattr(self.desc, f"{field}_stride", literal(strides, packed=packed))

    def matrix(self, bit: int, field: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
        """Bias or mask over (batch, heads, rows, keys)."""
        array, strides = readable(broadcast(field, array, shape, "(batch, heads, rows, keys)"), unit=False)
        self.operand(bit, field, array)
        setattr(self.desc, f"{field}_stride", strides)

    def descale(self, field: str, value: Any, shape: tuple[int, int, int], axes: str) -> None:
        """Factors of q, k or v over (sequence or page, row, head)."""
        if value is None:
            return
        array, strides = readable(broadcast(field, real(field, value), shape, axes), unit=False)
        self.operand(getattr(_abi, f"FA_OPERAND_{field.upper()}"), field, array)
        setattr(self.desc, f"{field}_stride", strides)

    def integers(self, field: str, value: Any, shape: tuple[int, ...], axes: str = "(batch,)") -> None:
        """An optional int32 operand of the descriptor."""
        if value is not None:
            self.operand(getattr(_abi, f"FA_OPERAND_{field.upper()}"), field, int32_array(field, value, shape, axes))

    def page_table(self, value: Any) -> np.ndarray:
        """The table of page ids, rows by its own stride when it is int32 with dense entries."""
        table = np.asarray(value)
        if table.ndim != 2:
            raise ValueError(f"page_table has shape {table.shape}: expected (batch, pages), with kv_batch_idx (kv_batch, pages)")
        strides = strides_of(table, unit=True) if table.dtype == np.int32 else None
        if strides is None or strides[0] < table.shape[1]:
            table = int32_array("page_table", table, table.shape, "(batch, pages)")
            strides = (table.shape[1], 1)
        self.operand(_abi.FA_OPERAND_PAGE_TABLE, "page_table", table)
        self.desc.page_table_stride = strides[0]
        return table

    def call(self, function: str, handle: Handle) -> None:
        """On arrays: their memory is the host's."""
        if handle.memory == "device" and handle.backend != "cpu":
            raise ValueError(f'the handle takes addresses of {handle.backend} device {handle.device}: expected one with memory="host"')
        self.run(function, handle)

    def run(self, function: str, handle: Handle) -> None:
        status = getattr(library(), function)(handle.pointer, ctypes.byref(self.desc), ctypes.byref(self.args))
        check(status, handle.pointer)


def literal(strides: tuple[int, ...], *, packed: bool) -> tuple[int, ...]:
    """Strides of a packed (row, head, element) tensor with the batch stride that it lacks."""
    return (0, *strides) if packed else strides


def batch_of(name: str, cu_seqlens: Any) -> int:
    """The number of sequences behind cumulative lengths."""
    array = np.asarray(cu_seqlens)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: expected (batch + 1,)")
    return array.size - 1


def longest(name: str, given: Any, cu_seqlens: Any) -> int:
    """The given maximum, or the longest sequence. Lengths that decrease are left for the library to refuse."""
    if given is not None:
        return integer(name, given, 63, signed=False)
    return max(int(np.diff(np.asarray(cu_seqlens).astype(np.int64)).max(initial=0)), 0)
