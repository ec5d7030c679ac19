"""Calls of SDPA that no Python function shows: torch's dispatcher asks here, while a block is open that wants them.

Which block a call belongs to. In a thread, to the innermost that it has open. In a backward pass, which may run in another thread and
after the block has ended, to the block of the forward that is computed anew. Two ways lead there: torch.utils.checkpoint does it in hooks
of saved tensors, or with reentry in CheckpointFunction, and both open the block again; functions of other libraries are found by their
node of the graph. Any other call there has a forward that no block had. Whether torch's checkpoint goes these ways is tried once, before
the first block: a block of a torch whose checkpoint does not raises, for its gradients could be wrong.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, NamedTuple, TypeVar, cast

import torch
import torch.nn.parallel
import torch.utils.checkpoint
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from ._torch_parts import LATER, set_eval_frame, skip

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


_MODE: Any = TorchFunctionMode  # whose methods have no types
_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_alone(function: _Function) -> _Function:
    """What torch.compile may follow from a program, but must not make a program of, as it does of whatever runs after a graph break."""
    skip(cast(Any, function).__code__)
    return function


def untraced(function: _Function) -> _Function:
    """What torch.compile leaves alone, with all that it calls, as torch.compiler.disable has it, which would import the compiler."""

    @not_alone
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(before)

    return cast(_Function, call)


class Block(BaseTorchFunctionMode):
    def compute(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """The call's result, or None where it is left to torch."""
        return None

    def leave(self, reason: str) -> None:
        """To torch: raises where that is not wanted."""


class _Open(NamedTuple):
    block: Block
    task: int  # the backward pass that it was opened in; -1: none
    anew: bool  # by what may compute a forward again


def _blocks() -> tuple[_Open, ...]:
    return torch._C._get_obj_in_tls(_KEY) if torch._C._is_key_in_tls(_KEY) else ()  # type: ignore[no-any-return]


def _lend(x: object) -> None:
    """A reference more, which is never given back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))


def _takes_references() -> bool:
    """Does torch, as it did until 2.11, take the caller's own reference to what it is to keep for a thread?"""
    given = object()
    before = sys.getrefcount(given)
    torch._C._stash_obj_in_tls(f"{_KEY} tried", given)
    if sys.getrefcount(given) > before:
        return False
    _lend(given)
    return True


_TAKES_REFERENCES = _takes_references()


def _keep(blocks: tuple[_Open, ...]) -> None:
    if _TAKES_REFERENCES:
        _lend(blocks)
    torch._C._stash_obj_in_tls(_KEY, blocks)


def _open(block: Block, anew: bool = False) -> None:
    _keep((*_blocks(), _Open(block, torch._C._current_graph_task_id(), anew)))


def _close(block: Block) -> None:
    blocks = _blocks()
    last = max(i for i, entry in enumerate(blocks) if entry.block is block)
    _keep((*blocks[:last], *blocks[last + 1 :]))


@untraced
def enter(block: Block) -> None:
    """The block is now this thread's innermost."""
    _REGISTRATION.hold()
    if "torch._dynamo" in sys.modules:  # its programs are the same with gradients and without
        try:
            _require_checkpoints()
        except NotImplementedError:
            _REGISTRATION.release()
            raise
    _open(block)


@untraced
def leave(block: Block) -> None:
    """Ends it, whichever is the innermost: blocks of generators need not nest."""
    _close(block)
    _REGISTRATION.release()


def _owner() -> Block | None:
    """The block that what is computed now belongs to."""
    task, blocks = torch._C._current_graph_task_id(), _blocks()
    if blocks and blocks[-1].task == task:
        return blocks[-1].block
    return None if task == -1 else getattr(getattr(torch._C._current_autograd_node(), _TAG, None), "block", None)


def _current() -> Block | None:
    """The block that a call belongs to, which one that is open refuses if it is not known."""
    block = _owner()
    if block is None:
        for entry in _blocks()[-1:]:
            entry.block.leave("it is inside a backward pass, and no block had the forward that it belongs to")
    return block


class _Tag:
    """On what may compute a forward anew: as long as it lives, the dispatcher goes on asking."""

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
    if not _REGISTRATION.checkpoints_known and torch.is_grad_enabled() and torch._C._any_requires_grad(*args, **kwargs):
        if LATER or "torch._dynamo" in sys.modules:  # which the checkpoints of known versions import
            _require_checkpoints()
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


class _Within:
    """A function that runs in the block, whenever and wherever it is called."""

    def __init__(self, block: Block, function: Callable[..., Any], tag: _Tag | None) -> None:
        """tag: spares the calls to register anew."""
        self.block, self.function, self.tag = block, function, tag

    @not_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _REGISTRATION.hold()
        _open(self.block, anew=True)
        _MODE.__enter__(self.block)
        try:
            return self.function(*args, **kwargs)
        finally:
            _MODE.__exit__(self.block, None, None, None)
            _close(self.block)
            _REGISTRATION.release()


def _within(function: Any) -> Any:
    """The function in the block that is now open."""
    block, blocks = _owner(), _blocks()
    if block is None:
        return function
    # Until 2.10, torch never frees the hooks in which it computes a forward again, and a tag would be held for ever.
    return _Within(block, function, None if blocks and blocks[-1].anew else _Tag(block))


class _Checkpoint:
    """In the place of torch's function with that apply."""

    @staticmethod
    def apply(function: Any, *args: Any) -> Any:
        original: Any = CheckpointFunction  # whose apply has no types
        return original.apply(_within(function), *args)


def _unpacking_within(original: Callable[..., None]) -> Callable[..., None]:
    """Of saved_tensors_hooks: what unpacks a tensor may compute the forward that had saved it. torch.compile inlines hooks that are graphs."""

    def init(hooks: Any, pack_hook: Any, unpack_hook: Any) -> None:
        inlined = torch.compiler.is_compiling() or isinstance(unpack_hook, torch.fx.GraphModule)
        original(hooks, pack_hook, unpack_hook if inlined else _within(unpack_hook))

    return init


def _each_within(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda modules, *args, **kwargs: original([_within(module) for module in modules], *args, **kwargs)


class _Registration:
    """Of the functions above with torch, while anything holds it. Taken back only where no other thread can be inside them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a tag may be collected while it is held
        self._holders = 0
        self.checkpoints_known = False
        self._library: Any = None
        self._replaced: list[tuple[Any, str, Any]] = []

    def hold(self) -> None:
        with self._lock:
            if self._library is None:
                self._register()
            self._holders += 1

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
        self._replace(torch.autograd.graph.saved_tensors_hooks, "__init__", _unpacking_within)
        for module in (torch.nn.parallel, sys.modules[torch.nn.DataParallel.__module__]):
            self._replace(module, "parallel_apply", _each_within)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, make(original))
        self._replaced.append((owner, name, original))

    def _take_back(self) -> None:
        self._library._destroy()
        self._library = None
        _forget_kernels()
        for owner, name, original in self._replaced:
            setattr(owner, name, original)
        self._replaced.clear()


def _forget_kernels() -> None:
    """What torch's compiler has noted of the kernels that were registered so far."""
    for operator in (_OPERATOR, *_INNER):
        operator._dispatch_cache.clear()


def _tried(reentrant: bool) -> list[bool]:
    """Of torch's checkpoint in a block, whether each call of its function is inside the block anew. The first call is not without reentry,
    the second always has to be."""
    calls = []

    def exponential(x: torch.Tensor) -> torch.Tensor:
        calls.append(_blocks()[-1].anew)
        return x.exp()

    def run() -> None:
        _open(Block())
        checkpoint: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)
        x = torch.ones(1, device="cpu", requires_grad=True)
        out = checkpoint(exponential, x, use_reentrant=reentrant, preserve_rng_state=False)
        if not reentrant:
            out.grad_fn._saved_result  # computes it anew, without a backward pass, whose threads would outlive this

    with ThreadPoolExecutor(1) as thread:  # which has no modes and hooks
        thread.submit(run).result()
    return calls


def _require_checkpoints() -> None:
    """Raises if a checkpoint of torch's goes another way than those that are replaced here. The first time imports torch's compiler, as any
    checkpoint does: programs without checkpoints are spared it."""
    if _REGISTRATION.checkpoints_known:
        return
    for reentrant, expected in ((True, [True]), (False, [False, True])):
        found, cause = None, None
        try:
            found = _tried(reentrant)
        except Exception as error:
            cause = error
        if found != expected:
            raise NotImplementedError(
                f"flashattn.torch.sdpa() does not know the torch.utils.checkpoint(use_reentrant={reentrant}) of torch {torch.__version__}: "
                "what a backward pass computes anew could be another kernel's, and gradients wrong. Expected an earlier torch, or calls of "
                "flashattn.torch.attention"
            ) from cause
    _REGISTRATION.checkpoints_known = True


_REGISTRATION = _Registration()
