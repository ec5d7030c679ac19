"""Finds and loads libflashattn, once, on first use: importing the package needs no library."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from . import _abi

_SONAME = f"libflashattn.so.{_abi.VERSION[0]}"


def _open() -> ctypes.CDLL:
    named = os.environ.get("FLASHATTN_LIBRARY")
    if named:  # a library that was named is used or fails: falling back would hide a wrong path
        return ctypes.CDLL(named)
    beside = Path(__file__).resolve().parent / _SONAME
    if beside.exists():
        return ctypes.CDLL(str(beside))
    try:
        return ctypes.CDLL(_SONAME)
    except OSError as reason:
        raise OSError(
            f"{_SONAME} was not found ({reason}): install libflashattn, or give the path of the library in FLASHATTN_LIBRARY"
        ) from None


def _number(version: tuple[int, int, int]) -> int:
    return version[0] * 10000 + version[1] * 100 + version[2]


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library, with every prototype set. OSError if there is none, or one older than this package."""
    lib = _open()
    for name, (result, arguments) in _abi.PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    if lib.fa_version() < _number(_abi.VERSION):
        raise OSError(
            f"libflashattn {version_text(lib.fa_version())} is older than {version_text(_number(_abi.VERSION))}, "
            "which this package was written for"
        )
    return lib


def version_text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
