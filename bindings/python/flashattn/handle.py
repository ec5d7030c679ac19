"""Handles: a backend, its device, its threads and its scratch memory."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Collection
from typing import Any, NoReturn

from . import _abi
from ._arrays import choice, integer
from ._library import library
from ._types import BackendName, MemoryName
from .errors import check, error

BACKENDS = {"auto": _abi.FA_BACKEND_AUTO, "cpu": _abi.FA_BACKEND_CPU, "cuda": _abi.FA_BACKEND_CUDA, "hip": _abi.FA_BACKEND_HIP}
MEMORIES = {"host": _abi.FA_MEMORY_HOST, "device": _abi.FA_MEMORY_DEVICE}
_LEVELS = range(1, 256)  # of instruction sets


@functools.lru_cache(maxsize=None)
def isas() -> dict[str, int]:
    """Instruction sets by their names; "best" is the default."""
    names = {level: library().fa_isa_name(level) for level in _LEVELS}
    return {"best": 0, **{name.decode(): level for level, name in names.items() if name}}


class Handle:
    """A handle with chosen device, threads and instruction set. Every function takes it as `backend`.

        with flashattn.Handle("cpu", threads=4) as handle:
            out = flashattn.attention(q, k, v, backend=handle)

    backend: "auto" (the first usable of CUDA, HIP, CPU), "cpu", "cuda" or "hip"; a named backend is never replaced by
        another. The attribute says which one is used.
    device: index within the backend.
    threads: CPU threads, 0 for all that the process may use; results never depend on it.
    max_isa: "best", or the highest instruction set to use, by name: "generic", "avx2", "amx", "neon" and others. A wrong
        name is answered with the list.

    memory: "host": arrays are ordinary memory, and a GPU backend copies them. "device": addresses are the device's, as
        those of CUDA tensors in flashattn.torch. NumPy arrays are then refused.

    A handle serves one thread at a time, and only the process that created it. Any other use raises FlashAttnError
    (FA_INVALID_STATE). It cannot be copied or pickled.
    """

    def __init__(
        self,
        backend: BackendName = "auto",
        *,
        device: int = 0,
        threads: int = 0,
        max_isa: str = "best",
        memory: MemoryName = "host",
    ) -> None:
        lib = library()
        self.device, self.memory = integer("device", device, 32), memory
        info = _abi.CreateInfo(
            backend=choice("backend", backend, BACKENDS), device=self.device, memory=choice("memory", memory, MEMORIES)
        )
        pointer = _abi.Handle()
        check(lib.fa_create(ctypes.byref(pointer), ctypes.byref(info)))
        self._pointer = pointer.value
        _alive[self._pointer or 0] = self
        self._inside = threading.RLock()  # held during a call
        self.pid = os.getpid()
        # Not at exit: a daemon thread may still be inside a call, and the process frees everything anyway.
        self._finalizer = weakref.finalize(self, lib.fa_destroy, pointer.value)
        self._finalizer.atexit = False
        resolved = self.get(_abi.FA_INFO_BACKEND)
        self.backend = next(name for name, number in BACKENDS.items() if number == resolved)
        if threads:
            self.threads = threads
        if max_isa != "best":
            self.max_isa = max_isa

    def __reduce_ex__(self, protocol: Any) -> NoReturn:  # what copy.copy, copy.deepcopy and pickle ask
        raise TypeError("a Handle owns what the library made for it: it cannot be copied or pickled")

    @property
    def pointer(self) -> int:
        """The fa_handle_t."""
        if self._pointer is None:
            raise ValueError("the handle is closed")
        return self._pointer

    @property
    def threads(self) -> int:
        return self.get(_abi.FA_PARAM_THREADS)

    @threads.setter
    def threads(self, value: int) -> None:
        self.set(_abi.FA_PARAM_THREADS, value)

    @property
    def max_isa(self) -> str:
        level = self.get(_abi.FA_PARAM_MAX_ISA)
        return next(name for name, number in isas().items() if number == level)

    @max_isa.setter
    def max_isa(self, value: str) -> None:
        self.set(_abi.FA_PARAM_MAX_ISA, choice("max_isa", value, isas()))

    def get(self, key: int) -> int:
        """A parameter, fact or figure by its FA_PARAM_, FA_INFO_ or FA_STAT_ number."""
        value = ctypes.c_int64()
        self.call("fa_param_get", integer("key", key, 32), ctypes.byref(value))
        return value.value

    def set(self, key: int, value: int) -> None:
        self.call("fa_param_set", integer("key", key, 32), integer("value", value, 64))

    def workspace_size(self, desc: _abi.AttentionDesc, op: int = _abi.FA_OP_FORWARD) -> int:
        """Bytes that a call needs beside its tensors."""
        size = ctypes.c_uint64()
        self.call("fa_workspace_size", desc, op, ctypes.byref(size))
        return size.value

    def explain(self, desc: _abi.AttentionDesc | None = None, op: int = _abi.FA_OP_FORWARD) -> str:
        """How a call would be computed, or why it is unsupported; without a descriptor the backend, and why others were passed
        over."""
        text = ctypes.create_string_buffer(_abi.FA_TEXT_MAX)
        refusals = (_abi.FA_UNSUPPORTED, _abi.FA_UNSUPPORTED_FIELD)
        self.call("fa_explain", desc, op, text, len(text), answers=refusals)
        return text.value.decode(errors="replace")

    def check_host(self) -> None:
        """Refuses a handle that takes no arrays of ordinary memory."""
        if self.memory == "device" and self.backend != "cpu":
            raise ValueError(f'the handle takes addresses of {self.backend} device {self.device}: expected one with memory="host"')

    def call(self, function: str, *arguments: Any, answers: Collection[int] = ()) -> None:
        """Calls a function of the library on the handle. answers: statuses that are no failure."""
        self._enter()
        try:
            status = getattr(library(), function)(self.pointer, *arguments)
            if status != _abi.FA_OK and status not in answers:
                check(status, self._pointer)
        finally:
            self._inside.release()

    def close(self) -> None:
        """Frees the handle; a second call does nothing. Refused while another thread is inside a call."""
        self._enter()
        try:
            self._pointer = None
            self._finalizer()
        finally:
            self._inside.release()

    def _enter(self) -> None:
        """The library frees a handle also while it computes with it, so what two threads do at once is refused here already."""
        if not self._inside.acquire(blocking=False):
            raise error(_abi.FA_INVALID_STATE, "the handle is inside another thread's call: it serves one thread at a time")

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_alive: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()  # by pointer


def handle_at(pointer: int) -> Handle:
    """The open handle with this pointer, which is what an operator of torch or XLA is given of it."""
    handle = _alive.get(pointer)
    if handle is None or handle.pointer != pointer:
        raise ValueError("the handle is closed")
    return handle


_local = threading.local()


def handle_of(backend: BackendName | Handle | None, device: int = 0, memory: MemoryName = "host") -> Handle:
    """The handle to use: the given one, or this thread's own for the named backend (None: "auto"), made on first use and again
    after a fork."""
    if isinstance(backend, Handle):
        return backend
    if backend is not None:
        choice("backend", backend, BACKENDS)
    name: BackendName = backend or "auto"
    handles: dict[tuple[str, int, str], Handle] = _local.__dict__.setdefault("handles", {})
    handle = handles.get((name, device, memory))
    if handle is None or handle.pid != os.getpid():
        handle = handles[name, device, memory] = Handle(name, device=device, memory=memory)
    return handle
