"""Finds and loads libflashattn, once, on first use: importing the package needs no library, flashattn.torch and flashattn.jax do."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from . import _abi

_SONAME = f"libflashattn.so.{_abi.FA_VERSION_MAJOR}"


def _open() -> ctypes.CDLL:
    named = os.environ.get("FLASHATTN_LIBRARY")
    if named:  # a library that was named is used or fails: falling back would hide a wrong path
        try:
            return ctypes.CDLL(named)
        except OSError as reason:
            raise OSError(f"FLASHATTN_LIBRARY is {named}, which cannot be loaded ({reason}): give the path of {_SONAME}") from None
    beside = Path(__file__).resolve().parent / _SONAME
    if beside.exists():
        return ctypes.CDLL(str(beside))
    try:
        return ctypes.CDLL(_SONAME)
    except OSError as reason:
        raise OSError(
            f"{_SONAME} was not found ({reason}): install libflashattn, or give the path of the library in FLASHATTN_LIBRARY"
        ) from None


def check_version(number: int) -> None:
    """A program compiled against 0.x runs with every later 0.y of the same SONAME, which has the major version in its name."""
    if number < _abi.FA_VERSION or number // 10000 != _abi.FA_VERSION_MAJOR:
        raise OSError(
            f"libflashattn is version {version_text(number)}: this package was written for {version_text(_abi.FA_VERSION)} and "
            f"runs with that and every later {_abi.FA_VERSION_MAJOR}.y"
        )


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library, with every prototype set. OSError if there is none, or one whose version does not fit this package."""
    lib = _open()
    check_version(lib.fa_version())
    for name, (result, arguments) in _abi.PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def require(module: str) -> None:
    """Of modules that are of no use without the library: ImportError, with what to do, where they are imported."""
    try:
        library()
    except OSError as reason:
        raise ImportError(f"{module} needs libflashattn: {reason}", name=module) from reason


def version_text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
