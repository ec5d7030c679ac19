"""Keywords that other libraries have for what these functions take: what it is called here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from ._types import Options

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


def refuse(function: Any, unknown: Mapping[str, Any], known: Iterable[str] | None = None) -> None:
    """TypeError for keywords that a function, or a class, lacks, with what may have been meant. known: those that it has; None: those of
    its own signature."""
    for name in unknown:
        names = list(inspect.unwrap(function).__kwdefaults__ if known is None else known)
        meant, near = _CALLED.get(name, name), difflib.get_close_matches(name, names, 1)
        if meant in names or meant == "heads":
            hint = f": expected {_WORDS.get(meant, meant)}"
        elif meant in Options.__annotations__:
            hint = f": {meant} is a keyword of flashattn.attention, which this function lacks"
        else:
            hint = f": did you mean {near[0]}?" if near else ""
        raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")
