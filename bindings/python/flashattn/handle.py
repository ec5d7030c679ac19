"""Handles: a backend, its device, its threads and its scratch memory."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref

from . import _abi
from ._arrays import choice, integer
from ._library import library
from .errors import check

BACKENDS = {"auto": _abi.FA_BACKEND_AUTO, "cpu": _abi.FA_BACKEND_CPU, "cuda": _abi.FA_BACKEND_CUDA, "hip": _abi.FA_BACKEND_HIP}
ISAS = {
    "best": 0,
    "generic": _abi.FA_ISA_GENERIC,
    "avx2": _abi.FA_ISA_AVX2,
    "avx512": _abi.FA_ISA_AVX512,
    "avx512_bf16": _abi.FA_ISA_AVX512_BF16,
    "amx": _abi.FA_ISA_AMX,
    "amx_fp16": _abi.FA_ISA_AMX_FP16,
    "neon": _abi.FA_ISA_NEON,
    "sve": _abi.FA_ISA_SVE,
}
MEMORIES = {"host": _abi.FA_MEMORY_HOST, "device": _abi.FA_MEMORY_DEVICE}
_NAMES = {number: name for name, number in BACKENDS.items()}


class Handle:
    """A handle of one's own, to choose device, threads and instruction set; every function takes it as `backend`.

        with flashattn.Handle("cpu", threads=4) as handle:
            out = flashattn.attention(q, k, v, backend=handle)

    backend: "auto" (the first usable of CUDA, HIP, CPU), "cpu", "cuda" or "hip"; one that is named is never replaced by another.
    device: index within the backend.
    threads: CPU threads, 0 for all that the process may use; results never depend on it.
    max_isa: "best", or the highest instruction set to use: "generic", "avx2", "avx512", "avx512_bf16", "amx", "amx_fp16",
        "neon" or "sve".

    memory: "host": arrays are ordinary memory, and a GPU backend copies them. "device": addresses are the device's own, as those of
        CUDA tensors in flashattn.torch; NumPy arrays are then refused.

    One handle serves one thread at a time and only the process that made it: anything else raises FlashAttnError (FA_INVALID_STATE).
    """

    def __init__(
        self, backend: str = "auto", *, device: int = 0, threads: int = 0, max_isa: str = "best", memory: str = "host"
    ) -> None:
        lib = library()
        self.device, self.memory = integer("device", device, 32), memory
        info = _abi.CreateInfo(
            backend=choice("backend", backend, BACKENDS), device=self.device, memory=choice("memory", memory, MEMORIES)
        )
        pointer = _abi.Handle()
        check(lib.fa_create(ctypes.byref(pointer), ctypes.byref(info)))
        self._pointer: int | None = pointer.value
        self.pid = os.getpid()
        # Not at exit: a daemon thread may still be inside a call, and the process frees everything anyway.
        self._finalizer = weakref.finalize(self, lib.fa_destroy, pointer.value)
        self._finalizer.atexit = False
        if threads:
            self.threads = threads
        if max_isa != "best":
            self.max_isa = max_isa

    @property
    def pointer(self) -> int:
        """The fa_handle_t."""
        if self._pointer is None:
            raise ValueError("the handle is closed")
        return self._pointer

    @property
    def backend(self) -> str:
        """What the handle resolved to: "cpu", "cuda" or "hip"."""
        number = ctypes.c_int32()
        check(library().fa_get_backend(self.pointer, ctypes.byref(number)), self.pointer)
        return _NAMES[number.value]

    @property
    def threads(self) -> int:
        return self.get(_abi.FA_PARAM_THREADS)

    @threads.setter
    def threads(self, value: int) -> None:
        self.set(_abi.FA_PARAM_THREADS, value)

    @property
    def max_isa(self) -> str:
        level = self.get(_abi.FA_PARAM_MAX_ISA)
        return next(name for name, number in ISAS.items() if number == level)

    @max_isa.setter
    def max_isa(self, value: str) -> None:
        self.set(_abi.FA_PARAM_MAX_ISA, choice("max_isa", value, ISAS))

    def get(self, key: int) -> int:
        """A parameter or figure by its FA_PARAM_ or FA_STAT_ number."""
        value = ctypes.c_int64()
        check(library().fa_get_i64(self.pointer, key, ctypes.byref(value)), self.pointer)
        return value.value

    def set(self, key: int, value: int) -> None:
        check(library().fa_set_i64(self.pointer, key, integer("value", value, 64)), self.pointer)

    def workspace_size(self, desc: _abi.AttentionDesc, op: int = _abi.FA_OP_FORWARD) -> int:
        """Bytes that a call needs beside its tensors."""
        size = ctypes.c_uint64()
        check(library().fa_workspace_size(self.pointer, desc, op, ctypes.byref(size)), self.pointer)
        return size.value

    def explain(self, desc: _abi.AttentionDesc | None = None, op: int = _abi.FA_OP_FORWARD) -> str:
        """How a call would be computed, or why it is unsupported; without a descriptor the backend, and why others were passed
        over."""
        text = ctypes.create_string_buffer(4096)
        status = library().fa_explain(self.pointer, desc, op, text, len(text))
        if status not in (_abi.FA_UNSUPPORTED, _abi.FA_UNSUPPORTED_FIELD):
            check(status, self.pointer)
        return text.value.decode(errors="replace")

    def close(self) -> None:
        """Frees the handle; a second call does nothing. Refused while another thread is inside a call."""
        if self._pointer is not None:
            check(library().fa_destroy(self._pointer))
            self._finalizer.detach()
            self._pointer = None

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_) -> None:
        self.close()


_local = threading.local()


def handle_of(backend: str | Handle | None, device: int = 0, memory: str = "host") -> Handle:
    """The handle to use: the given one, or this thread's own for the named backend (None: "auto"), made on first use and again
    after a fork."""
    if isinstance(backend, Handle):
        return backend
    name = "auto" if backend is None else backend
    choice("backend", name, BACKENDS)
    handles = _local.__dict__.setdefault("handles", {})
    handle = handles.get((name, device, memory))
    if handle is None or handle.pid != os.getpid():
        handle = handles[name, device, memory] = Handle(name, device=device, memory=memory)
    return handle
