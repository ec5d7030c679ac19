"""Attention for Hugging Face transformers, under the name "libfa":

    import flashattn.transformers

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="libfa")  # or model.set_attn_implementation("libfa")

The import registers an attention and a mask function with transformers, from 4.56 on, for every model that computes by its
AttentionInterface; other models refuse the name. They take causal and bidirectional attention, padding, sliding windows, chunks, packed batches by position ids, masks
and biases of four axes, grouped heads, softcap, sinks, position biases, dropout, dynamic and static caches, gradients and torch.compile,
on the CPU and on a GPU. `attention` says what they leave to transformers. The name has no "flash" in it: transformers takes any name with
that word for the package flash-attn.

A padding mask, a window, a chunk and a packed batch reach the library as a range of keys for each row, without a mask of rows × keys.
The mask of another pattern, and every mask inside torch.compile, has rows × keys. A row without a key, which only padding has, is 0.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from ._described_mask import Described, Pairs, described, masking
from ._dispatch import untraced
from ._paged_cache import PagedCache, Stored
from ._sdpa import refusal
from .torch import attention as library_attention

__all__ = ["NAME", "PagedCache", "attention", "mask", "register"]

NAME = "libfa"
_NAMES: set[str] = set()  # that are registered

_jit: Any = torch.jit  # whose function has no types
_transformers: Any = importlib.import_module("transformers")
_modeling: Any = importlib.import_module("transformers.modeling_utils")
_MODEL = _modeling.PreTrainedModel
if not hasattr(_MODEL, "_can_set_attn_implementation"):
    raise ImportError(f"transformers is {_transformers.__version__}: expected 4.56 or later for flashattn.transformers")

# Keywords of attention functions that change the result: those that neither the library nor transformers' sdpa has, and those that the
# library has.
_UNKNOWN = ("sinks", "indices", "block_indices", "head_mask")
_UNKNOWN_TO_SDPA = (*_UNKNOWN, "softcap", "s_aux")


def register(name: str = NAME, *, fallback: bool = True) -> None:
    """Makes attn_implementation=name these functions. The import has done so for "libfa", with a fallback.

    fallback: calls that are not the library's go to transformers' sdpa. With False, they raise NotImplementedError with the reason.
    """
    if "flash" in name or "/" in name or "|" in name or name in ("eager", "sdpa", "flex_attention"):
        raise ValueError(
            f'name is {name!r}: expected one without "flash", "/" and "|", of which transformers makes something else, and not its own'
        )

    _NAMES.add(name)

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        return attention(module, query, key, value, attention_mask, fallback=fallback, **options)

    _modeling.AttentionInterface.register(name, attend)
    masking.AttentionMaskInterface.register(name, mask)


def _refuse_other_models() -> None:
    """transformers asks a model for its attention interface when the name is set later, but not when the model is made. It would get masks
    that are not meant for its own attention."""
    original = _MODEL._check_and_adjust_attn_implementation

    @functools.wraps(original)
    def check(self: Any, attn_implementation: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(attn_implementation, str) and attn_implementation in _NAMES and not self._can_set_attn_implementation():
            raise ValueError(
                f"attn_implementation is {attn_implementation!r}: {type(self).__name__} of transformers {_transformers.__version__} does "
                'not compute by AttentionInterface. If it takes "sdpa", flashattn.torch.sdpa() has it computed by the library'
            )
        return original(self, attn_implementation, *arguments, **options)

    _MODEL._check_and_adjust_attn_implementation = check


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    fallback: bool = True,
    **others: Any,
) -> Any:
    """transformers' attention function: query, key and value of (batch, heads, rows, dim); returns (batch, rows, heads, dim), and None
    for the weights.

    attention_mask: what `mask` has returned, or bools or numbers to add that broadcast to (batch, heads, rows, keys). Without one,
    attention is causal from the top left where is_causal, or the module's own, says so.
    Not the library's are: what flashattn.torch.sdpa() leaves to torch; output_attentions, for the library has no weights; and sparse
    attention by indices, sinks of each row and head masks. These three, and softcap or sinks of a call that is not the library's,
    raise NotImplementedError whatever fallback is, because transformers' sdpa would ignore them.
    """
    rows, keys = query.shape[-2], key.shape[-2]
    described = isinstance(attention_mask, Described)
    dense = options = None
    if described and attention_mask.shape[-2:] == (rows, keys):
        options = attention_mask.options
    if options is None:
        dense = attention_mask.dense() if described else attention_mask
        dense = dense[:, :, :, :keys] if dense is not None and dense.ndim == 4 else dense
        causal = dense is None and rows > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
        by_mask = dense is not None and dense.dtype == torch.bool
        options = {"causal": "top-left"} if causal else {} if dense is None else {"mask" if by_mask else "bias": dense}
    stored = isinstance(key, Stored)
    reason = _refusal(query, key, value, dense, dropout, scaling, others)
    if reason is not None:
        if not fallback or stored:
            raise NotImplementedError(f"attention is not flashattn's here: {reason}")
        for name, x in {**others, "softcap": softcap, "s_aux": s_aux}.items():
            if name in _UNKNOWN_TO_SDPA and x is not None:
                raise NotImplementedError(f"attention is not flashattn's here: {reason}; and transformers' sdpa would ignore {name}")
        if position_bias is not None:
            others["position_bias"] = position_bias
        theirs = attention_mask.dense() if described else attention_mask
        left = _modeling.ALL_ATTENTION_FUNCTIONS["sdpa"]
        return left(module, query, key, value, theirs, dropout=dropout, scaling=scaling, is_causal=is_causal, **others)
    # What is not given is not passed on either: a step of generation is so short that each keyword shows.
    if position_bias is not None:
        bias = position_bias[..., :keys]
        options = {**options, "bias": bias + options["bias"] if "bias" in options else bias}
    if softcap:
        options = {**options, "softcap": softcap}
    if s_aux is not None:
        options = {**options, "sinks": s_aux}
    if dropout:
        options = {**options, "dropout_p": dropout}
    if stored:
        return _over_pages(query.transpose(1, 2), key, value, scale=scaling, **options), None
    return library_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=scaling, **options), None


@untraced
def _over_pages(query: torch.Tensor, key: Any, value: Any, **options: Any) -> torch.Tensor:
    found: torch.Tensor = key.attention(query, value, **options)
    return found


def _refusal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    others: dict[str, Any],
) -> str | None:
    """Why a call is not the library's, or None where it is."""
    for name in _UNKNOWN:
        if others.get(name) is not None:
            return f"{name} is given, which the library does not take"
    if others.get("output_attentions"):
        return "output_attentions is true, and the library has no weights to return"
    if isinstance(key, Stored):  # which has the types of the tokens that it was made of, and is no tensor
        return None
    return refusal(query, key, value, mask, dropout, False, scaling, True)


def mask(
    batch_size: int,
    *,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **others: Any,
) -> Any:
    """transformers' mask function: None where `attention` needs no mask, a mask that it never has to look at, or that of sdpa."""
    function = masking.causal_mask_function if mask_function is None else mask_function
    given = {**others, "batch_size": batch_size, "kv_length": kv_length, "kv_offset": kv_offset, "mask_function": function}
    given["attention_mask"] = attention_mask

    def dense(**skips: bool) -> Any:
        return masking.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](**given, **skips)

    if "cache_position" in others:  # older versions of transformers
        positions, device = others["cache_position"], others["cache_position"].device
        count = positions.shape[0]
    else:
        positions, device, count = others.get("q_offset", 0), others.get("device", "cpu"), others["q_length"]
    prepared = count == 1 and not allow_is_causal_skip  # it may be for a compiled program, which takes ordinary tensors
    if torch.compiler.is_compiling() or _jit.is_tracing() or prepared or (attention_mask is not None and attention_mask.ndim != 2):
        return dense(allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip)
    first = int(positions.reshape(-1)[0]) if isinstance(positions, torch.Tensor) else positions
    found = described(function, attention_mask, Pairs(batch_size, count, kv_length, first - kv_offset, kv_offset, device))
    if found is None:
        return dense(allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip)
    if not found.options:
        needless = allow_is_bidirectional_skip or (allow_is_causal_skip and count == 1)
    else:
        needless = allow_is_causal_skip and found.options == {"causal": "top-left"}
    return None if needless else found  # so that also a compiled layer gets nothing but tensors


_refuse_other_models()
register()
