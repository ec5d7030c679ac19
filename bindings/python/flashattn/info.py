"""The library's version, its backends, and two small helpers that need no handle."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._arrays import integer, number
from ._library import library, version_text
from ._types import Floats
from .errors import check
from .handle import BACKENDS


class Device(NamedTuple):
    device: int  # index within the backend
    name: str
    arch: str  # CPU: the best instruction set that will be used; GPU: its architecture
    compute_units: int  # CPU: hardware threads this process may use; GPU: multiprocessors
    memory_bytes: int


class Backend(NamedTuple):
    name: str
    usable: bool
    status: int  # FA_OK, or what making a handle for it would give
    reason: str  # why it is usable or not, as a sentence
    devices: tuple[Device, ...]


def version() -> str:
    """The version of the library that runs, "0.2.0"."""
    return version_text(library().fa_version())


def backends() -> dict[str, Backend]:
    """Each backend by its name, usable or not, and why."""
    lib = library()
    found = {}
    for name, backend in BACKENDS.items():
        if backend == _abi.FA_BACKEND_AUTO:
            continue
        text = ctypes.create_string_buffer(_abi.FA_TEXT_MAX)
        status = lib.fa_backend_status(backend, text, len(text))
        devices = _devices(backend) if status == _abi.FA_OK else ()
        found[name] = Backend(name, status == _abi.FA_OK, status, text.value.decode(errors="replace"), devices)
    return found


def _devices(backend: int) -> tuple[Device, ...]:
    lib = library()
    count = ctypes.c_int32()
    check(lib.fa_device_count(backend, ctypes.byref(count)))
    devices = []
    for index in range(count.value):
        info = _abi.DeviceInfo()
        check(lib.fa_device_info(backend, index, ctypes.byref(info)))
        devices.append(
            Device(
                index, info.name.decode(errors="replace"), info.arch.decode(errors="replace"), info.compute_units, info.memory_bytes
            )
        )
    return tuple(devices)


def dropout_mask(p: float, shape: tuple[int, int, int, int], *, seed: int = 0, offset: int = 0) -> NDArray[np.bool_]:
    """The mask that attention(dropout_p=p, dropout_seed=seed, dropout_offset=offset) draws, the same on every backend: bool, true
    where the key is kept. shape: (batch, heads, rows, keys)."""
    batch, heads, rows, keys = (integer("shape", n, 63, signed=False) for n in shape)
    seed, offset = integer("seed", seed, 64, signed=False), integer("offset", offset, 64, signed=False)
    keep = np.empty((batch * heads, rows, keys), np.uint8)
    for index, block in enumerate(keep):
        check(
            library().fa_dropout_mask(
                number("p", p, 1), seed, offset, index, 0, rows, 0, keys, block.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            )
        )
    return keep.reshape(batch, heads, rows, keys).astype(bool)


def alibi_slopes(heads: int, max_bias: float = 0) -> Floats:
    """ALiBi slopes, float32 (heads,): 2^(−max_bias · h / heads) for a power of two; otherwise those of the power of two below, then
    every second one of the power of two above. max_bias 0: the usual 8."""
    slopes = np.empty(integer("heads", heads, 31, signed=False), np.float32)
    check(library().fa_alibi_slopes(heads, number("max_bias", max_bias), slopes.ctypes.data_as(ctypes.POINTER(ctypes.c_float))))
    return slopes
