"""flashattn_cp.h in ctypes: the structs, the library, and who has which rows."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from . import _abi
from ._arrays import choice, integer
from ._library import library
from .errors import error

SEND, RECEIVE = 1, 2
DEVICE_MEMORY = 1 << 0  # FA_CP_DEVICE_MEMORY
SHARD_ROWS = 1
LAYOUTS = {"contiguous": 0, "zigzag": 1}
METHODS = {"auto": 0, "ulysses": 1, "all-gather": 2, "ring": 3}
_SONAME = f"libflashattn-cp.so.{_abi.FA_VERSION_MAJOR}"


class Message(ctypes.Structure):
    _fields_ = [("peer", c_int32), ("direction", c_int32), ("bytes", c_uint64), ("data", c_void_p), ("tag", c_uint64)]


START = CFUNCTYPE(c_int32, c_void_p, POINTER(Message), c_int64, POINTER(c_uint64))
WAIT = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_int64)
ALL_GATHER = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_uint64, POINTER(c_uint64))
ABANDON = CFUNCTYPE(None, c_void_p)
ENTER = CFUNCTYPE(c_int32, c_void_p, c_void_p)
LEAVE = CFUNCTYPE(c_int32, c_void_p)
GATHER_HOST = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_uint64, c_int64)
SYNCHRONIZE = CFUNCTYPE(c_int32, c_void_p, c_int64)


class Transport(_abi.Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("user", c_void_p),
        ("start", START),
        ("wait", WAIT),
        ("all_gather", ALL_GATHER),
        ("abandon", ABANDON),
        ("enter", ENTER),
        ("leave", LEAVE),
        ("gather_host", GATHER_HOST),
        ("synchronize", SYNCHRONIZE),
    ]


class CpCreateInfo(_abi.Sized):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("transport", POINTER(Transport)), ("timeout_ms", c_int64)] + [
        (name, ctypes.c_double) for name in ("link_bytes_per_second", "link_seconds", "flops_per_second")
    ]


class CpDesc(_abi.Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("shard", c_int32),
        ("layout", c_int32),
        ("method", c_int32),
        ("head_chunk", c_int32),
        ("block", c_int64),
    ]


class Range(ctypes.Structure):
    _fields_ = [("sequence", c_int64), ("begin", c_int64), ("rows", c_int64), ("local", c_int64)]


_DESC, _SPREAD = POINTER(_abi.AttentionDesc), POINTER(CpDesc)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "fa_cp_create": (c_int32, [POINTER(c_void_p), _abi.Handle, POINTER(CpCreateInfo)]),
    "fa_cp_destroy": (c_int32, [c_void_p]),
    "fa_cp_last_error": (c_char_p, [c_void_p]),
    "fa_cp_partition": (
        c_int32,
        [_SPREAD, c_int32, c_int32, POINTER(c_int32), c_int64, c_int64, POINTER(Range), c_int64, POINTER(c_int64)],
    ),
    "fa_cp_forward": (c_int32, [c_void_p, _DESC, _SPREAD, POINTER(_abi.ForwardArgs)]),
    "fa_cp_backward": (c_int32, [c_void_p, _DESC, _SPREAD, POINTER(_abi.BackwardArgs)]),
    "fa_cp_synchronize": (c_int32, [c_void_p]),
    "fa_cp_traffic": (c_int32, [c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
}


@functools.lru_cache(maxsize=None)
def cp_library() -> ctypes.CDLL:
    """libflashattn-cp: the one that FLASHATTN_CP_LIBRARY names, or that lies beside the package, or the system's."""
    library()  # which it is linked with: the same one
    beside = Path(__file__).resolve().parent / _SONAME
    path = os.environ.get("FLASHATTN_CP_LIBRARY") or (str(beside) if beside.exists() else _SONAME)
    try:
        lib = ctypes.CDLL(path)
    except OSError as reason:
        raise OSError(
            f"{path} was not found ({reason}): install libflashattn-cp, or give the path of the library in FLASHATTN_CP_LIBRARY"
        ) from None
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def check(status: int, cp: int | None = None) -> None:
    """Raises the exception of a status that is not FA_OK; cp None: of a call that has no object."""
    if status != _abi.FA_OK:
        raise error(status, cp_library().fa_cp_last_error(cp).decode(errors="replace"))


def spread(layout: str, method: str, block: int) -> CpDesc:
    return CpDesc(
        shard=SHARD_ROWS,
        layout=choice("layout", layout, LAYOUTS),
        method=choice("method", method, METHODS),
        block=integer("block", block, 63, signed=False),
    )


def ranges(desc: CpDesc, rank: int, ranks: int, lengths: int | list[int]) -> list[Range]:
    """lengths: rows of a sequence, or cu_seqlens of packed ones."""
    packed = isinstance(lengths, list)
    cu = (c_int32 * len(lengths))(*lengths) if isinstance(lengths, list) else None
    batch = len(lengths) - 1 if isinstance(lengths, list) else 1
    found, count = (Range * (2 * batch))(), c_int64()
    rows = 0 if packed else lengths
    check(cp_library().fa_cp_partition(desc, rank, ranks, cu, batch, rows, found, 2 * batch, ctypes.byref(count)))
    return list(found[: count.value])
