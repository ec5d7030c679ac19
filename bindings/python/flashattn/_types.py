"""Types of what callers give: words that are keywords' values, and the keywords of `attention`, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Union

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]
BackendName = Literal["auto", "cpu", "cuda", "hip"]
MemoryName = Literal["host", "device"]
Alignment = Literal["top-left", "bottom-right", "explicit"]
Causal = Union[Alignment, Literal[False]]
Layout = Literal["bshd", "bhsd"]
Algorithm = Literal["flash", "standard", "flash1"]
Precision = Literal["default", "native"]
ListSpace = Literal["keys", "slots"]
Stage = Literal["raw", "capped", "biased", "probability"]


class Options(TypedDict, total=False):
    """Keywords of `attention` that do not change how many arrays it returns; their meaning is told there."""

    dim_v: int | None
    layout: Layout
    causal: Causal | None
    causal_offset: ArrayLike | None
    alignment: Alignment | None
    window: Sequence[int | None] | None
    chunk: int
    scale: float | None
    softcap: float
    bias: ArrayLike | None
    bias_scale: ArrayLike | None
    bias_period: tuple[int, int] | None
    mask: ArrayLike | None
    mask_period: tuple[int, int] | None
    mask_keys: int
    mask_bits: bool
    key_ranges: ArrayLike | None
    key_list: ArrayLike | None
    key_list_count: ArrayLike | None
    full_list: ArrayLike | None
    full_list_count: ArrayLike | None
    list_rows: int
    list_keys: int
    list_space: ListSpace
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    cu_seqlens_q: ArrayLike | None
    cu_seqlens_k: ArrayLike | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    seqused_q: ArrayLike | None
    seqused_k: ArrayLike | None
    leftpad_k: ArrayLike | None
    kv_batch_idx: ArrayLike | None
    page_table: ArrayLike | None
    q_descale: ArrayLike | None
    k_descale: ArrayLike | None
    v_descale: ArrayLike | None
    q_descale_block: tuple[int, int] | None
    k_descale_block: tuple[int, int] | None
    v_descale_block: tuple[int, int] | None
    k_shift: ArrayLike | None
    v_shift: ArrayLike | None
    q_tail: ArrayLike | None
    k_tail: ArrayLike | None
    dropout_p: float
    dropout_seed: int
    dropout_offset: int
    num_splits: int
    reserve_units: int
    split_size: int
    algorithm: Algorithm
    precision: Precision
    device_status: ArrayLike | None
    o_scale: float | None
    out_dtype: DTypeLike | None
