"""What context_parallel's processes say to each other, by torch.distributed: in the CPU's memory, or in the order of a GPU's stream."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import time
from typing import Any

import torch
import torch.distributed as dist

from . import _abi, _cp

_TAGS = 1 << 15
_CLOCK = 0.01  # seconds by which torch may be early
_NAP = 1e-4  # seconds between two questions whether a stream has come so far


class _Room:
    """Bytes of a GPU's memory, as torch.as_tensor takes them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _left(end: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(end - time.monotonic(), 1e-3))  # 0 would mean the group's own limit


def _late(timeout_ms: int, end: float) -> int:
    """The status of a wait that failed."""
    return _abi.FA_TIMEOUT if 0 <= timeout_ms and time.monotonic() >= end - _CLOCK else _abi.FA_PEER_FAILED


class Messages:
    """Groups of messages as the library starts and awaits them."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self.host_group = group  # whose tensors lie in the CPU's memory
        self._under_way: dict[int, tuple[list[Any], list[torch.Tensor]]] = {}
        self._next = 0
        self.failure: BaseException | None = None  # what torch said when a call failed
        # The library keeps the addresses: they live as long as this.
        self.callbacks: dict[str, Any] = {"start": _cp.START(self._start), "wait": _cp.WAIT(self._wait)}
        self.flags = 0

    def _tensor(self, address: int, size: int) -> torch.Tensor:
        if self._device.type == "cpu":
            return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
        return torch.as_tensor(_Room(address, size), device=self._device)

    def _start(self, _: Any, messages: Any, count: int, ticket: Any) -> int:
        try:
            operations, memory = [], []
            for m in messages[:count]:
                memory.append(self._tensor(m.data, m.bytes))
                call = dist.isend if m.direction == _cp.SEND else dist.irecv
                peer = dist.get_global_rank(self._group, m.peer)
                operations.append(dist.P2POp(call, memory[-1], peer, self._group, m.tag % _TAGS))
            self._next += 1
            self._under_way[self._next] = dist.batch_isend_irecv(operations), memory
            ticket[0] = self._next
            return _abi.FA_OK
        except BaseException as failure:
            self.failure = failure
            return _abi.FA_PEER_FAILED

    def _wait(self, _: Any, ticket: int, timeout_ms: int) -> int:
        end = time.monotonic() + timeout_ms / 1e3
        try:
            for work in self._under_way[ticket][0]:
                if timeout_ms < 0:
                    work.wait()
                else:
                    work.wait(_left(end))
            del self._under_way[ticket]
            return _abi.FA_OK
        except BaseException as failure:
            self.failure = failure
            return _late(timeout_ms, end)


class OrderedMessages(Messages):
    """The same in the order of a stream, as NCCL has them: a wait is the stream's. What the host has to say goes over gloo, by the group
    itself where it has that for the CPU's tensors, else by one of the same processes. On the CPU there is one stream, which is the thread
    itself."""

    def __init__(self, group: Any, device: torch.device) -> None:
        super().__init__(group, device)
        try:
            group._get_backend(torch.device("cpu"))
        except RuntimeError:
            ranks = dist.get_process_group_ranks(group)
            self.host_group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._stream: Any = None  # of the call that is under way
        self._end: Any = None  # of the last one
        self.flags = _cp.DEVICE_MEMORY
        self.callbacks |= {
            "enter": _cp.ENTER(self._enter),
            "leave": _cp.LEAVE(self._leave),
            "gather_host": _cp.GATHER_HOST(self._gather_host),
            "synchronize": _cp.SYNCHRONIZE(self._synchronize),
        }
        if device.type != "cpu":
            dist.barrier(group, device_ids=[device.index])  # connects all; later not every process takes part in each group
            backend = group._get_backend(device)
            if hasattr(backend, "abort"):
                self.callbacks["abandon"] = _cp.ABANDON(lambda _: self._abandon(backend))

    def _on_stream(self) -> Any:
        return contextlib.nullcontext() if self._device.type == "cpu" else torch.cuda.stream(self._stream)

    def _start(self, _: Any, messages: Any, count: int, ticket: Any) -> int:
        with self._on_stream():
            return super()._start(_, messages, count, ticket)

    def _wait(self, _: Any, ticket: int, timeout_ms: int) -> int:
        if self._device.type == "cpu":
            return super()._wait(_, ticket, timeout_ms)
        with self._on_stream():
            return super()._wait(_, ticket, -1)

    def _recorded(self) -> Any:
        """The stream's work up to here."""
        return None if self._device.type == "cpu" else self._stream.record_event()

    def _enter(self, _: Any, stream: int | None) -> int:
        if self._device.type != "cpu":
            cuda: Any = torch.cuda  # some of whose releases have no types
            named = cuda.ExternalStream(stream, self._device) if stream else cuda.default_stream(self._device)
            if self._end is not None:
                named.wait_event(self._end)
            self._stream = named
        return _abi.FA_OK

    def _leave(self, _: Any) -> int:
        self._end, self._stream = self._recorded(), None
        return _abi.FA_OK

    def _gather_host(self, _: Any, own: int, everybody: int, size: int, timeout_ms: int) -> int:
        end = time.monotonic() + timeout_ms / 1e3
        ranks = dist.get_world_size(self.host_group)
        try:
            here, all_of_them = ((ctypes.c_uint8 * n).from_address(at) for at, n in ((own, size), (everybody, ranks * size)))
            parts = list(torch.frombuffer(all_of_them, dtype=torch.uint8).chunk(ranks))
            work = dist.all_gather(parts, torch.frombuffer(here, dtype=torch.uint8), group=self.host_group, async_op=True)
            if timeout_ms < 0:
                work.wait()
            else:
                work.wait(_left(end))
            return _abi.FA_OK
        except BaseException as failure:
            self.failure = failure
            return _late(timeout_ms, end)

    def _synchronize(self, _: Any, timeout_ms: int) -> int:
        end = time.monotonic() + timeout_ms / 1e3
        event = self._end if self._stream is None else self._recorded()
        try:
            while event is not None and not event.query():
                if 0 <= timeout_ms and time.monotonic() > end:
                    return _abi.FA_TIMEOUT
                time.sleep(_NAP)
            return _abi.FA_OK
        except BaseException as failure:
            self.failure = failure
            return _abi.FA_PEER_FAILED

    def _abandon(self, backend: Any) -> None:
        with contextlib.suppress(BaseException):
            backend.abort()
