"""Calls of SDPA that no Python function shows: torch's dispatcher asks here, while a block is open that wants them.

Which block a call belongs to. In a thread, to the innermost that it has open. In a backward pass, which may run in another thread and
after the block has ended, to the block of the forward that is computed anew: torch.utils.checkpoint opens it again, and functions of other
libraries that do the same are found by their node of the graph. Any other call there has a forward that no block had.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any, Callable, Protocol, TypeVar, cast

import torch
import torch.nn.parallel
import torch.utils.checkpoint
from torch._C._dynamo import eval_frame
from torch.utils.checkpoint import CheckpointFunction

_KEY = "flashattn.torch.sdpa"  # of the blocks that are open, in what torch hands on to the threads of a backward pass
_TAG = "_flashattn_sdpa"  # of a node of the graph whose forward a block had
_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
_KEYS = ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA")
_INNER = tuple(  # what computes attention without that call: programs made before the block, fast paths of torch's modules, vmap
    getattr(torch.ops.aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "_native_multi_head_attention",
        "_transformer_encoder_layer_fwd",
    )
    if hasattr(torch.ops.aten, name)
)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_alone(function: _Function) -> _Function:
    """What torch.compile may follow from a program, but must not make a program of, as it does of whatever runs after a graph break."""
    torch_has, code = cast(Any, eval_frame), cast(Any, function).__code__
    if hasattr(torch_has, "skip_code"):  # before torch 2.8
        torch_has.skip_code(code)
    else:
        action = torch_has._FrameAction
        torch_has.set_code_exec_strategy(code, torch_has._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function


def untraced(function: _Function) -> _Function:
    """What torch.compile leaves alone, with all that it calls, as torch.compiler.disable has it, which would import the compiler."""

    @not_alone
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            eval_frame.set_eval_frame(before)

    return cast(_Function, call)


class Block(Protocol):
    def compute(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """The call's result, or None where it is left to torch."""

    def leave(self, reason: str) -> None:
        """To torch: raises where that is not wanted."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> Any: ...


@dataclass(frozen=True)
class _Open:
    block: Block
    task: int  # the backward pass that it was opened in; -1: none


def _blocks() -> tuple[_Open, ...]:
    return torch._C._get_obj_in_tls(_KEY) if torch._C._is_key_in_tls(_KEY) else ()  # type: ignore[no-any-return]


@untraced
def enter(block: Block) -> None:
    """The block is now this thread's innermost."""
    _REGISTRATION.hold()
    torch._C._stash_obj_in_tls(_KEY, (*_blocks(), _Open(block, torch._C._current_graph_task_id())))


@untraced
def leave(block: Block) -> None:
    """Ends it, whichever is the innermost: blocks of generators need not nest."""
    blocks = list(_blocks())
    last = max(i for i, entry in enumerate(blocks) if entry.block is block)
    torch._C._stash_obj_in_tls(_KEY, (*blocks[:last], *blocks[last + 1 :]))
    _REGISTRATION.release()


def _current() -> Block | None:
    """The block that a call belongs to."""
    task, blocks = torch._C._current_graph_task_id(), _blocks()
    if blocks and blocks[-1].task == task:
        return blocks[-1].block
    if task == -1:
        return None
    tag = getattr(torch._C._current_autograd_node(), _TAG, None)
    if tag is not None:
        return tag.block  # type: ignore[no-any-return]
    if blocks:
        blocks[-1].block.leave("it is inside a backward pass, and no block had the forward that it belongs to")
    return None


class _Tag:
    """On a node whose backward may compute its forward anew: as long as it lives, the dispatcher goes on asking."""

    def __init__(self, block: Block) -> None:
        self.block = block
        _REGISTRATION.hold()

    def __del__(self) -> None:
        _REGISTRATION.release()


def _tag(block: Block) -> None:
    """Tags the nodes of functions whose forward this call is in: first arguments of these forwards, which have gradients turned off."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount and code.co_varnames[0] != "self":
            node = frame.f_locals.get(code.co_varnames[0])
            if isinstance(node, torch._C._FunctionBase) and not hasattr(node, _TAG):
                setattr(node, _TAG, _Tag(block))
        frame = frame.f_back


@untraced
def computed(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """A call of SDPA by the block that it belongs to, or None where torch has it."""
    block = _current()
    if block is None:
        return None
    with torch._C.DisableTorchFunction():  # the block's own mode, too, wherever the call comes from
        out = block.compute(*args, **kwargs)
    if out is not None:
        _tag(block)
    return out


@untraced
def _attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """aten::scaled_dot_product_attention."""
    out = computed(*args, **kwargs)
    return _OPERATOR.decompose(*args, **kwargs) if out is None else out  # type: ignore[no-any-return]


def _inner(operator: Any) -> Callable[..., Any]:
    after = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)

    @untraced
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        block = _current()
        if block is not None:
            block.leave(f"torch computes it by {operator.name()}")
        return operator.redispatch(keyset - after, *args, **kwargs)

    return kernel


def _within(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in the block that is now open, whenever and wherever it is called."""
    block = _current()
    if block is None:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        with block:
            return function(*args, **kwargs)

    return call


class _Checkpoint:
    """In the place of torch's function with that apply."""

    @staticmethod
    def apply(function: Any, *args: Any) -> Any:
        original: Any = CheckpointFunction  # whose apply has no types
        return original.apply(_within(function), *args)


def _first_within(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda function, *args, **kwargs: original(_within(function), *args, **kwargs)


def _each_within(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda modules, *args, **kwargs: original([_within(module) for module in modules], *args, **kwargs)


class _Registration:
    """Of the functions above with torch, while anything holds it. Taken back only where no other thread can be inside them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a tag may be collected while it is held
        self._holders = 0
        self._library: Any = None
        self._replaced: list[tuple[Any, str, Any]] = []

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
            if self._library is None:
                self._register()

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and threading.active_count() == 1:
                self._take_back()

    def _register(self) -> None:
        make: Any = torch.library.Library  # which has no types
        self._library = make("aten", "IMPL")
        for key in _KEYS:
            self._library.impl("scaled_dot_product_attention", _attention, key)
        for operator in _INNER:
            self._library.impl(operator.name(), _inner(operator), "BackendSelect", with_keyset=True)
        _forget_kernels()
        self._replace(torch.utils.checkpoint, "CheckpointFunction", lambda _: _Checkpoint)
        self._replace(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", _first_within)
        for module in (torch.nn.parallel, sys.modules[torch.nn.DataParallel.__module__]):
            self._replace(module, "parallel_apply", _each_within)

    def _replace(self, module: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(module, name)
        setattr(module, name, make(original))
        self._replaced.append((module, name, original))

    def _take_back(self) -> None:
        self._library._destroy()
        self._library = None
        _forget_kernels()
        for module, name, original in self._replaced:
            setattr(module, name, original)
        self._replaced.clear()


def _forget_kernels() -> None:
    """What torch's compiler has noted of the kernels that were registered so far."""
    for operator in (_OPERATOR, *_INNER):
        operator._dispatch_cache.clear()


_REGISTRATION = _Registration()
