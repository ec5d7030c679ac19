"""scaled_dot_product_attention by the library, wherever a program calls it."""

from __future__ import annotations

import inspect
import types
from typing import Any, Callable

import torch
from torch.nn import functional
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention

from . import _dispatch
from ._operators import autocast_dtype
from ._torch_attention import attention
from ._torch_parts import FakeTensor, FunctionalTensor

_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST_DIM = 1024
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TRACED = (*_PLAIN, FakeTensor, FunctionalTensor)  # what torch.compile calls operators with
_NEED_WEIGHTS = list(inspect.signature(multi_head_attention_forward).parameters).index("need_weights")


class sdpa(_dispatch.Block):
    """Within the block, the library computes torch.nn.functional.scaled_dot_product_attention, forward and backward:

        with flashattn.torch.sdpa():
            model(x)

    The block acts on the thread that enters it and on the threads of torch.nn.DataParallel. There, every call of SDPA is replaced,
    also in torch's own modules, in scripted modules, and in programs of torch.compile, which is run anew for the block. If a
    backward pass computes a forward again, as torch.utils.checkpoint does, it computes attention as the first forward did, also
    after the block has ended.

    torch itself computes calls that the library does not take (types, shapes, transforms), attention weights that
    torch.nn.MultiheadAttention returns with need_weights=True, scripted modules that take torch's fast path in eval() without
    gradients, and programs that torch.export or AOTInductor lowered to torch's attention kernels before the block. With
    fallback=False, these raise NotImplementedError with the reason. A program in which SDPA has been lowered to products and a
    softmax cannot be noticed: torch computes it in either case.

    An error of the library itself is raised, never caught. Two results differ from torch's. Dropout draws other numbers, from a
    seed of torch's generator. A row without any key is 0, which it is in some of torch's backends and NaN in others.
    """

    def __init__(self, *, fallback: bool = True) -> None:
        super().__init__()
        self.fallback = fallback

    @_dispatch.not_alone
    def __enter__(self) -> sdpa:
        if not torch.compiler.is_compiling():  # what is traced goes by this mode alone
            _dispatch.enter(self)
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    @_dispatch.not_alone
    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if not torch.compiler.is_compiling():
            _dispatch.leave(self)

    @_dispatch.not_alone
    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Sees what torch.compile traces, and what torch would do before its dispatcher asks."""
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return self._call(*args, **kwargs)
        if func is multi_head_attention_forward:
            if args[_NEED_WEIGHTS] if len(args) > _NEED_WEIGHTS else kwargs.get("need_weights", True):
                self.leave("need_weights of a multi-head attention is true, and the library has no weights to return")
            elif torch.compiler.is_compiling():
                return _MULTI_HEAD_ATTENTION[self.fallback](*args, **kwargs)
        return func(*args, **kwargs)

    @_dispatch.not_alone
    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            out = self.compute(*args, **kwargs)
        elif torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            out, call = None, _arguments(*args, **kwargs)  # autocast comes first, and then the dispatcher, where it asks
            if call is not None:
                query, key, value, options = call
                reason = _beyond(_named(query, key, value, options["attn_mask"]), _PLAIN)
                if reason is not None:
                    self.leave(reason)
        else:
            out = _dispatch.computed(*args, **kwargs)
        return scaled_dot_product_attention(*args, **kwargs) if out is None else out

    def compute(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """The call's result, or None where it is left to torch."""
        call = _arguments(*args, **kwargs)
        if call is None:
            return None
        reason = refusal(*call[:3], **call[3])
        if reason is None:
            return _attention(*call[:3], **call[3])
        self.leave(reason)
        return None

    def leave(self, reason: str) -> None:
        """To torch."""
        if not self.fallback:
            raise NotImplementedError(f"scaled_dot_product_attention is not flashattn's here: {reason}")


def _multi_head_attention(block: sdpa) -> Callable[..., Any]:
    """torch's own function, in which torch.compile would see no call of another, with the block's for SDPA."""
    own = {name: value for name, value in vars(functional).items() if name != "__name__"}  # by which torch.compile would look them up
    own.update(has_torch_function=lambda _: False, scaled_dot_product_attention=block._call)
    made = types.FunctionType(multi_head_attention_forward.__code__, own, "multi_head_attention", multi_head_attention_forward.__defaults__)
    made.__kwdefaults__ = multi_head_attention_forward.__kwdefaults__
    return made


_MULTI_HEAD_ATTENTION = {fallback: _multi_head_attention(sdpa(fallback=fallback)) for fallback in (True, False)}


def refusal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str | None:
    """Why `sdpa` leaves this call to torch, or None where it does not. It takes plain tensors of the CPU or a GPU, all of float32,
    float16 or bfloat16, (batch, heads, rows, dim) or (batch, rows, dim), none empty, of up to 1024 dims, that share their batch
    and, unless enable_gqa says otherwise, their heads; a mask of bool or of the query's type."""
    tensors = _named(query, key, value, attn_mask)
    reason = _beyond(tensors, _TRACED)
    if reason is not None:
        return reason
    autocast = torch.is_autocast_enabled(query.device.type)
    wanted = autocast_dtype(query) if autocast else query.dtype
    for name, x in tensors.items():
        dtype = autocast_dtype(x) if autocast else x.dtype
        if name != "attn_mask" and (dtype not in _TYPES or dtype != wanted):
            return f"{name} has dtype {dtype}"
        if name != "attn_mask" and (x.ndim != query.ndim or x.ndim not in (3, 4)):
            return f"{name} has {x.ndim} axes"
        if 0 in x.shape:
            return f"{name} is empty"
    if key.shape[:-1] != value.shape[:-1] or query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        return f"query, key and value have shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
    if max(key.shape[-1], value.shape[-1]) > _LARGEST_DIM:
        return f"key and value have {key.shape[-1]} and {value.shape[-1]} dims"
    if query.ndim == 4 and (query.shape[1] % key.shape[1] if enable_gqa else query.shape[1] != key.shape[1]):
        return f"query and key have {query.shape[1]} and {key.shape[1]} heads"
    if attn_mask is not None:
        if is_causal:
            return "attn_mask and is_causal are both given"
        if (autocast_dtype(attn_mask) if autocast else attn_mask.dtype) not in (torch.bool, wanted):
            return f"attn_mask has dtype {attn_mask.dtype}"
        pairs = (*query.shape[:-1], key.shape[-2])
        if attn_mask.ndim > len(pairs) or any(n not in (1, m) for n, m in zip(attn_mask.shape[::-1], pairs[::-1])):
            return f"attn_mask has shape {tuple(attn_mask.shape)}"
    if not 0 <= dropout_p < 1:
        return f"dropout_p is {dropout_p}"
    return None


def _named(query: Any, key: Any, value: Any, attn_mask: Any) -> dict[str, Any]:
    tensors = {"query": query, "key": key, "value": value}
    return tensors if attn_mask is None else {**tensors, "attn_mask": attn_mask}


@_dispatch.not_alone
def _beyond(tensors: dict[str, Any], plain: tuple[type, ...]) -> str | None:
    """Why torch has a call before its dispatcher would ask, or None."""
    if not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None:
        return "it is inside a transform of torch.func"
    device = tensors["query"].device
    for name, x in tensors.items():
        if type(x) not in plain or x.is_nested or x.layout != torch.strided:
            return f"{name} is no plain tensor"
        if x.device != device or device.type not in ("cpu", "cuda"):
            return f"{name} is on {x.device}"
    return None


def _arguments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **other: Any,
) -> tuple[Any, ...] | None:
    """torch's own signature; None for arguments that a later torch may add."""
    if other:
        return None
    options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    return query, key, value, options


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    one_head = query.ndim == 3
    if one_head:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        attn_mask = attn_mask.unsqueeze(-3) if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
    by_mask = attn_mask is not None and attn_mask.dtype == torch.bool
    out = attention(
        *(query, key, value),
        layout="bhsd",
        causal="top-left" if is_causal else None,
        scale=scale,
        mask=attn_mask if by_mask else None,
        bias=None if by_mask else attn_mask,
        dropout_p=dropout_p,
    )
    return out.squeeze(1) if one_head else out
