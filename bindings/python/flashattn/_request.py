"""A call in the making: descriptor, args, and the arrays that must stay alive until the library returns."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _abi
from ._arrays import (
    FACTORS,
    KEYS,
    address,
    as_array,
    block_of,
    broadcast,
    dtype_code,
    factor_array,
    int32_array,
    integer,
    reach,
    readable,
    real,
    status_word,
    strides_of,
    writable,
)
from ._library import library
from ._types import Array
from .errors import check
from .handle import Handle

_CALLS: dict[type[_abi.Sized], tuple[str, int]] = {
    _abi.ForwardArgs: ("fa_forward_ex", _abi.FA_OP_FORWARD),
    _abi.BackwardArgs: ("fa_backward", _abi.FA_OP_BACKWARD),
    _abi.MergeArgs: ("fa_merge", _abi.FA_OP_MERGE),
    _abi.RotaryArgs: ("fa_rotary", _abi.FA_OP_ROTARY),
    _abi.AppendKvArgs: ("fa_append_kv", _abi.FA_OP_APPEND_KV),
}


class Request:
    """Fields are filled one operand at a time; `desc` and `args` are the C structs themselves.

    inputs: of a backward, the forward's request.
    """

    def __init__(self, args: _abi.Sized, inputs: Request | None = None) -> None:
        self.args = args
        self.desc: _abi.AttentionDesc = inputs.desc if inputs else _abi.AttentionDesc()
        self.function, self.op = _CALLS[type(args)]
        self._inputs = inputs
        self.owners: dict[str, Any] = {}  # of the memory behind each pointer, alive as long as this
        self._room: dict[str, int] = {}  # bytes behind each pointer
        if inputs:
            args.forward = ctypes.pointer(inputs.args)

    def point(self, field: str, array: Array) -> None:
        """Sets a pointer of the args to an array."""
        self.point_at(field, address(array), reach(array), array)

    def point_at(self, field: str, where: int | None, room: int, owner: Any) -> None:
        """Sets a pointer of the args to memory of so many bytes, and keeps its owner."""
        self._room[field] = room
        setattr(self.args, field, where)
        self.owners[field] = owner

    def pointers(self) -> Iterator[tuple[str, int | None, int]]:
        """Field, address and bytes of each array behind a pointer of the args, and of its inputs' args."""
        for request in (self._inputs, self):
            if request:
                yield from ((field, getattr(request.args, field), room) for field, room in request._room.items())

    def operand(self, bit: int, field: str, array: Array) -> None:
        self.desc.operands |= bit
        self.point(field, array)

    def strided(self, field: str, array: Array, *, packed: bool, written: bool = False) -> None:
        """q, k, v or o with its own strides."""
        array, strides = writable(field, array, unit=True) if written else readable(array, unit=True)
        self.point(field, array)
        self.desc.strided |= getattr(_abi, f"FA_STRIDED_{field.upper()}")
        setattr(self.desc, f"{field}_stride", literal(strides, packed=packed))

    def matrix(self, bit: int, field: str, array: Array, shape: tuple[int, ...]) -> None:
        """Bias or mask over (batch, heads, rows, keys)."""
        array, strides = readable(broadcast(field, array, shape, "(batch, heads, rows, keys)"), unit=False)
        self.operand(bit, field, array)
        setattr(self.desc, f"{field}_stride", strides)

    def descale(
        self,
        tensor: str,
        value: ArrayLike | None,
        shape: tuple[int, ...],
        axes: str,
        *,
        dim: int,
        block: Any = None,
        shift: ArrayLike | None = None,
    ) -> None:
        """Factors, and shifts, of q, k or v over (sequence or page, row, head), or with a block of (rows, dims) that share one over
        (…, block of rows, head, block of dims)."""
        name = f"{tensor}_descale"
        if value is None:
            if block is not None or shift is not None:
                raise ValueError(f"{name} is None: expected factors with {name}_block or {tensor}_shift")
            return
        array = factor_array(name, value)
        shape = self.factor_shape(tensor, shape, dim, block)
        array = broadcast(name, array, shape, axes if block is None else "(batch or page, block of rows, head, block of dims)")
        if shift is None:
            return self.factors(name, *readable(array, unit=False))
        shifts = as_array(f"{tensor}_shift", shift)
        if shifts.dtype != array.dtype:  # the library has one type for both
            array, shifts = real(name, array), real(f"{tensor}_shift", shifts)
        shifts = broadcast(f"{tensor}_shift", shifts, shape, f"{name}'s shape")
        (array, strides), (shifts, steps) = readable(array, unit=False), readable(shifts, unit=False)
        if strides != steps:  # the descriptor has one set for both
            array, strides = readable(np.array(array, order="C"), unit=False)
            shifts = np.array(shifts, order="C")
        self.factors(name, array, strides)
        self.operand(getattr(_abi, f"FA_OPERAND_{tensor.upper()}_SHIFT"), f"{tensor}_shift", shifts)

    def factor_shape(self, tensor: str, shape: tuple[int, ...], dim: int, block: Any) -> tuple[int, ...]:
        """The shape of factors of rows and dims, of which so many share one."""
        if block is None:
            return shape
        rows, dims = block_of(f"{tensor}_descale_block", block)
        setattr(self.desc, f"{tensor}_descale_block", (rows, dims))
        return (shape[0], -(-shape[1] // max(rows, 1)), shape[2], -(-dim // dims) if dims > 0 else 1)

    def factors(self, field: str, array: Array, strides: tuple[int, ...]) -> None:
        self.operand(getattr(_abi, f"FA_OPERAND_{field.upper()}"), field, array)
        setattr(self.desc, f"{field}_dtype", dtype_code(field, array.dtype, FACTORS))
        setattr(self.desc, f"{field}_stride", (*strides, 0) if len(strides) == 3 else strides)  # of three axes: all dims share one

    def integers(self, name: str, value: ArrayLike | None, shape: tuple[int, ...], axes: str = "(batch,)") -> None:
        """An optional int32 operand of the descriptor. A rotary has one tensor, so its args say no `_q`."""
        if value is not None:
            field = name if hasattr(type(self.args), name) else name[: -len("_q")]
            self.operand(getattr(_abi, f"FA_OPERAND_{name.upper()}"), field, int32_array(name, value, shape, axes))

    def status(self, word: Any) -> None:
        """Where a GPU says what it found wrong in integer operands."""
        if word is not None:
            self.operand(_abi.FA_OPERAND_DEVICE_STATUS, "device_status", status_word(word))

    def page_table(self, value: ArrayLike) -> Array:
        """The table of page ids, rows by its own stride when it is int32 with dense entries."""
        table = as_array("page_table", value)
        if table.ndim != 2:
            raise ValueError(f"page_table has shape {table.shape}: expected (batch, pages), with kv_batch_idx (kv_batch, pages)")
        strides = strides_of(table, unit=True) if table.dtype == np.int32 else None
        if strides is None or strides[0] < table.shape[1]:
            table = int32_array("page_table", table, table.shape, "(batch, pages)")
            strides = (table.shape[1], 1)
        self.operand(_abi.FA_OPERAND_PAGE_TABLE, "page_table", table)
        self.desc.page_table_stride = strides[0]
        return table

    def call(self, handle: Handle) -> None:
        """On arrays: their memory is the host's."""
        handle.check_host()
        self.run(handle)

    def run(self, handle: Handle) -> None:
        self.check_rooms()
        handle.call(self.function, ctypes.byref(self.desc), ctypes.byref(self.args))

    def check_rooms(self) -> None:
        """Of the call's own args, and of its inputs'."""
        for request in (self._inputs, self):
            if request:
                request.check_room()

    def check_room(self) -> None:
        """Asks the library how far it would go behind each pointer. What the shapes of arrays let pass by mistake ends here."""
        needed = ctypes.c_uint64()
        for field, room in self._room.items():
            where = getattr(type(self.args), field).offset
            check(library().fa_extent(self.desc, self.op, ctypes.byref(self.args), where, ctypes.byref(needed)))
            if needed.value > room:
                raise ValueError(f"{field} has {room} bytes: the call would use {needed.value}")


class Conversion:
    """What a place runs, as a Request, of fa_convert: the shapes have said already that nothing beyond the arrays is touched."""

    def __init__(self, accumulate: bool) -> None:
        self.args = SimpleNamespace(flags=0, stream=None)
        self.conversion = _abi.Conversion(flags=_abi.FA_CONVERT_ACCUMULATE if accumulate else 0)
        self.arrays: dict[str, Array] = {}

    def tensor(self, name: str, array: Array, strides: tuple[int, ...]) -> None:
        self.arrays[name] = array
        setattr(self.conversion, name, array.ctypes.data)
        setattr(self.conversion, f"{name}_dtype", dtype_code(name, array.dtype, KEYS))
        setattr(self.conversion, f"{name}_stride", strides)

    def pointers(self) -> Iterator[tuple[str, int, int]]:
        yield from ((name, array.ctypes.data, reach(array)) for name, array in self.arrays.items())

    def call(self, handle: Handle) -> None:
        handle.check_host()
        self.run(handle)

    def run(self, handle: Handle) -> None:
        handle.call("fa_convert", ctypes.byref(self.conversion), 1, self.args.flags, self.args.stream)


def literal(strides: tuple[int, ...], *, packed: bool) -> tuple[int, ...]:
    """Strides of a packed (row, head, element) tensor with the batch stride that it lacks."""
    return (0, *strides) if packed else strides


def batch_of(name: str, cu_seqlens: ArrayLike) -> int:
    """The number of sequences behind cumulative lengths."""
    array = as_array(name, cu_seqlens)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: expected (batch + 1,)")
    return array.size - 1


def longest(name: str, given: int | None, cu_seqlens: ArrayLike) -> int:
    """The given maximum, or the longest sequence. Lengths that decrease are left for the library to refuse."""
    if given is not None:
        return integer(name, given, 63, signed=False)
    return max(int(np.diff(np.asarray(cu_seqlens).astype(np.int64)).max(initial=0)), 0)
