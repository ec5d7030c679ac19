"""Statuses of the library as exceptions."""

from __future__ import annotations

from typing import Any

from . import _abi
from ._library import library


class FlashAttnError(RuntimeError):
    """A call that the library refused. str() is its message: which field, its value, what was expected.

    status: the number of the status, as in flashattn.h; status_name: its name, "FA_INVALID_ARGUMENT" …
    """

    def __init__(self, status: int, status_name: str, message: str) -> None:
        super().__init__(message or status_name)
        self.status = status
        self.status_name = status_name

    def __reduce__(self) -> tuple[Any, ...]:  # so that it survives the way back from a worker process
        return type(self), (self.status, self.status_name, str(self))


class InvalidArgumentError(FlashAttnError, ValueError):
    """The call can never be right."""


class UnsupportedError(FlashAttnError, NotImplementedError):
    """The call is right, but this backend or this version of the library lacks it."""


class OutOfMemoryError(FlashAttnError, MemoryError):
    """The library could not get the memory that the call needs."""


_CLASSES: dict[int, type[FlashAttnError]] = {
    _abi.FA_INVALID_ARGUMENT: InvalidArgumentError,
    _abi.FA_UNSUPPORTED_FIELD: UnsupportedError,
    _abi.FA_UNSUPPORTED: UnsupportedError,
    _abi.FA_OUT_OF_MEMORY: OutOfMemoryError,
}


def error(status: int, message: str) -> FlashAttnError:
    return _CLASSES.get(status, FlashAttnError)(status, library().fa_status_name(status).decode(), message)


def check(status: int, handle: int | None = None) -> None:
    """Raises the exception of a status that is not FA_OK; handle None: the thread's message of calls that have no handle."""
    if status != _abi.FA_OK:
        raise error(status, library().fa_last_error(handle).decode(errors="replace"))
