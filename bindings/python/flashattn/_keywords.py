"""Keywords of functions that take the options of `attention`: defaults, signatures, and what a keyword of another library is called
here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any, Callable, TypeVar, cast

from ._types import DEFAULTS, ByteOptions, CacheOptions, Operand, Options

Function = TypeVar("Function", bound=Callable[..., Any])

_CALLED = {
    **dict.fromkeys(("attn_mask", "attention_mask", "key_padding_mask", "padding_mask", "block_mask"), "mask"),
    **dict.fromkeys(("attn_bias", "attention_bias"), "bias"),
    **dict.fromkeys(("is_causal", "use_causal_mask"), "causal"),
    **dict.fromkeys(("softmax_scale", "sm_scale", "attn_scale", "scaling"), "scale"),
    **dict.fromkeys(("logits_soft_cap", "logit_softcap", "logit_cap", "soft_cap", "tanh_softcap"), "softcap"),
    **dict.fromkeys(("dropout", "dropout_rate", "attn_dropout", "attention_dropout"), "dropout_p"),
    **dict.fromkeys(("window_size", "local_window_size", "sliding_window"), "window"),
    **dict.fromkeys(("s_aux", "sink", "attention_sinks", "learnable_sink"), "sinks"),
    **dict.fromkeys(("enable_gqa", "num_kv_heads", "num_key_value_heads"), "heads"),
    **dict.fromkeys(("return_softmax_lse", "return_attn_probs", "return_residual"), "return_lse"),
    **dict.fromkeys(("cu_seqlens_kv", "cu_seq_k"), "cu_seqlens_k"),
    **{"cu_seq_q": "cu_seqlens_q", "max_q": "max_seqlen_q", "max_k": "max_seqlen_k", "max_seqlen_kv": "max_seqlen_k"},
    **dict.fromkeys(("cache_seqlens", "kv_seqlens", "key_value_seq_lengths", "context_lens"), "seqused_k"),
    **{"query_seq_lengths": "seqused_q", "cache_leftpad": "leftpad_k", "cache_batch_idx": "kv_batch_idx"},
    **dict.fromkeys(("block_table", "block_tables"), "page_table"),
    **dict.fromkeys(("qkv_format", "tensor_layout", "qkv_layout"), "layout"),
}
_WORDS = {
    "mask": "mask, of bool, true where a key is attended; or bias, numbers that are added to the scores; or key_list, for blocks",
    "causal": 'causal, "top-left" as scaled_dot_product_attention and JAX mean it, or "bottom-right" as flash-attn does',
    "heads": "nothing in its place, for k and v may have fewer heads than q, which theirs divide",
}


# Operands by what their elements are, of every function; all others but q, k, v, their like, biases and masks are numbers and words.
INTEGERS = frozenset(
    (
        *("cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_new", "seqused_q", "seqused_k", "seqused_new", "leftpad_k", "kv_batch_idx"),
        *("page_table", "causal_offset", "positions", "position_offset", "key_ranges"),
        *("key_list", "key_list_count", "full_list", "full_list_count"),
    )
)
REALS = frozenset(("sinks", "alibi_slopes", "bias_scale", "cos", "sin"))
DESCALES = frozenset(("q_descale", "k_descale", "v_descale", "k_shift", "v_shift"))
BYTES = {"k": "k_dtype", "v": "v_dtype"}  # what says of which type a tensor of bytes is
_OF_CACHES = {name: DEFAULTS.get(name) for kind in (CacheOptions, ByteOptions) for name in kind.__annotations__}


def of_cache(given: Mapping[str, Any]) -> bool:
    """Is a call of `attention` of torch's tensors, or JAX's arrays, one without gradients? given: its keywords, of which those with their
    defaults may be missing."""
    for name, default in _OF_CACHES.items():
        value = given.get(name)
        if value is not None and not (isinstance(value, str) and value == default):
            return True
    tensors: list[Any] = [given.get(name) for name in ("q", "k", "v")]
    return tensors[2] is None or any(hasattr(x, "dtype") and x.dtype.itemsize == 1 for x in tensors)


class Keywords:
    """The options of a function, which it takes as **options. kinds: the class of _types that has them, or one derived from it.
    operand: what the kind's Operand is called."""

    def __init__(self, kinds: Any, operand: str) -> None:
        types: dict[str, str] = {}
        for each in reversed(kinds.__mro__):
            types.update(getattr(each, "__annotations__", {}))
        self.defaults = {name: None if kind.endswith("| None") else DEFAULTS[name] for name, kind in types.items()}
        self._parameters = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=self.defaults[name], annotation=kind.replace(Operand.__name__, operand))
            for name, kind in types.items()
        ]

    def listed(self, function: Function) -> Function:
        """The function with a signature that lists each option, as help() shows it."""
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        # A stable sort: the function's own keywords come after the options.
        parameters = sorted((*self._parameters, *own), key=lambda each: each.kind)
        cast(Any, function).__signature__ = signature.replace(parameters=parameters)
        return function

    def complete(self, function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """Every option: the given ones, the others by their defaults. TypeError where the function lacks a given one."""
        given = {**self.defaults, **options}
        if len(given) != len(self.defaults):
            refuse(function, options)
        return given


def keywords_of(function: Any) -> list[str]:
    return [name for name, each in inspect.signature(function).parameters.items() if each.kind is Parameter.KEYWORD_ONLY]


def refuse(function: Any, given: Iterable[str]) -> None:
    """TypeError for a given keyword that a function, or a class, lacks, with what may have been meant."""
    names = keywords_of(function)
    for name in given:
        if name in names:
            continue
        meant, near = _CALLED.get(name, name), difflib.get_close_matches(name, names, 1)
        if meant in names or meant == "heads":
            hint = f": expected {_WORDS.get(meant, meant)}"
        elif meant in NUMPY.defaults:
            hint = f": {meant} is a keyword of flashattn.attention, which this function lacks"
        else:
            hint = f": did you mean {near[0]}?" if near else ""
        raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")


NUMPY = Keywords(Options, "ArrayLike")
