"""scaled_dot_product_attention by the library, wherever a program calls it."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST_DIM = 1024
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class sdpa(TorchFunctionMode):
    """Within it, torch.nn.functional.scaled_dot_product_attention is computed by the library, forward and backward:

        with flashattn.torch.sdpa():
            model(x)

    In the thread that enters it, in modules that call SDPA as well, and under torch.compile.
    Left to torch's own are calls that are not the library's: see `refusal`, which says for a call whether and why. With
    fallback=False they raise NotImplementedError with that reason. An error of the library itself is raised, never caught.
    Two things differ from torch's own. Dropout draws other numbers, from a seed of torch's generator. A row without any key is 0,
    which it is in some of torch's backends and NaN in others.
    """

    def __init__(self, *, fallback: bool = True) -> None:
        super().__init__()
        self.fallback = fallback

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        call = _arguments(*args, **kwargs)
        if call is not None:
            reason = refusal(*call[:3], **call[3])
            if reason is None:
                return _attention(*call[:3], **call[3])
            if not self.fallback:
                raise NotImplementedError(f"scaled_dot_product_attention is not flashattn's here: {reason}")
        return func(*args, **kwargs)


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
    tensors = {"query": query, "key": key, "value": value}
    if attn_mask is not None:
        tensors["attn_mask"] = attn_mask
    if not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None:
        return "it is inside a transform of torch.func"
    for name, x in tensors.items():
        if type(x) not in _PLAIN or x.is_nested or x.layout != torch.strided:
            return f"{name} is no plain tensor"
        if x.device != query.device or x.device.type not in ("cpu", "cuda"):
            return f"{name} is on {x.device}"
        if name != "attn_mask" and (x.dtype not in _TYPES or x.dtype != query.dtype):
            return f"{name} has dtype {x.dtype}"
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
        if attn_mask.dtype not in (torch.bool, query.dtype):
            return f"attn_mask has dtype {attn_mask.dtype}"
        pairs = (*query.shape[:-1], key.shape[-2])
        if attn_mask.ndim > len(pairs) or any(n not in (1, m) for n, m in zip(attn_mask.shape[::-1], pairs[::-1])):
            return f"attn_mask has shape {tuple(attn_mask.shape)}"
    if not 0 <= dropout_p < 1:
        return f"dropout_p is {dropout_p}"
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
    from .torch import attention  # which imports this module

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
