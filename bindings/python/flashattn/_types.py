"""Types of what callers give: words that are keywords' values, and the keywords of every `attention`, each written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

if TYPE_CHECKING:
    from typing_extensions import TypedDict
else:  # typing's own is not generic before Python 3.11. Only the names and types are read when a program runs.

    class TypedDict:
        def __init_subclass__(cls, total=True):
            super().__init_subclass__()


Array = NDArray[Any]
Floats = NDArray[np.float32]
BackendName = Literal["auto", "cpu", "cuda", "hip"]
MemoryName = Literal["host", "device"]
Alignment = Literal["top-left", "bottom-right", "explicit"]
Causal = Union[Alignment, Literal[False]]
Layout = Literal["bshd", "bhsd"]
Algorithm = Literal["flash", "standard", "flash1"]
Precision = Literal["default", "native"]
BlockName = Literal["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "e2m1", "i4", "u4"]
ListSpace = Literal["keys", "slots"]
Stage = Literal["raw", "capped", "biased", "probability"]
Operand = TypeVar("Operand")  # an array, as the library has it that a function is for


class CommonOptions(TypedDict, Generic[Operand], total=False):
    """Keywords of every `attention`, also over several processes. flashattn.attention documents what they mean. A keyword whose
    type has None is None by default. DEFAULTS has the others."""

    causal: Causal | None
    alignment: Alignment | None
    window: Sequence[int | None] | None
    chunk: int
    scale: float | None
    softcap: float
    alibi_slopes: Operand | None
    sinks: Operand | None
    cu_seqlens_q: Operand | None
    cu_seqlens_k: Operand | None


class LocalOptions(CommonOptions[Operand], Generic[Operand], total=False):
    """Keywords of every `attention` of one process."""

    layout: Layout
    bias: Operand | None
    bias_scale: Operand | None
    mask: Operand | None
    key_ranges: Operand | None
    key_list: Operand | None
    key_list_count: Operand | None
    full_list: Operand | None
    full_list_count: Operand | None
    list_rows: int
    list_keys: int
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    dropout_p: float


class Periods(TypedDict, total=False):
    """Keywords for biases and masks that repeat, and for masks stored in another way."""

    bias_period: tuple[int, int] | None
    mask_period: tuple[int, int] | None
    mask_keys: int
    mask_bits: bool


class CacheOptions(TypedDict, Generic[Operand], total=False):
    """Keywords of every `attention` without gradients: over caches, quantised tensors, and parts of tensors."""

    dim_v: int | None
    causal_offset: Operand | None
    list_space: ListSpace
    seqused_q: Operand | None
    seqused_k: Operand | None
    leftpad_k: Operand | None
    kv_batch_idx: Operand | None
    page_table: Operand | None
    q_descale: Operand | None
    k_descale: Operand | None
    v_descale: Operand | None
    q_descale_block: tuple[int, int] | None
    k_descale_block: tuple[int, int] | None
    v_descale_block: tuple[int, int] | None
    k_shift: Operand | None
    v_shift: Operand | None
    q_tail: Operand | None
    k_tail: Operand | None
    precision: Precision


class ByteOptions(TypedDict, total=False):
    """Keywords for k and v of types that a library has not, in bytes."""

    k_dtype: BlockName | None
    v_dtype: BlockName | None


class RotaryOptions(TypedDict, Generic[Operand], total=False):
    """Keywords of `rotary` of torch's tensors and JAX's arrays."""

    positions: Operand | None
    position_offset: Operand | None
    cu_seqlens_q: Operand | None
    max_seqlen_q: int | None
    seqused_q: Operand | None
    interleaved: bool
    rotary_begin: int
    layout: Layout


class AppendOptions(ByteOptions, Generic[Operand], total=False):
    """Keywords of `append_kv` of torch's tensors and JAX's arrays."""

    seqused_k: Operand | None
    positions: Operand | None
    cu_seqlens_new: Operand | None
    max_seqlen_new: int | None
    seqused_new: Operand | None
    leftpad_k: Operand | None
    kv_batch_idx: Operand | None
    page_table: Operand | None
    max_seqlen_k: int | None
    k_descale: Operand | None
    v_descale: Operand | None
    k_descale_block: tuple[int, int] | None
    v_descale_block: tuple[int, int] | None
    k_shift: Operand | None
    v_shift: Operand | None
    k_tail: Operand | None
    dynamic_scale: bool
    cos: Operand | None
    sin: Operand | None
    interleaved: bool
    rotary_begin: int
    layout: Layout


class Options(Periods, CacheOptions[ArrayLike], LocalOptions[ArrayLike], total=False):
    """Keywords of flashattn.attention that do not change how many arrays it returns."""

    dropout_seed: int
    dropout_offset: int
    num_splits: int
    reserve_units: int
    split_size: int
    algorithm: Algorithm
    device_status: ArrayLike | None
    o_scale: float | None
    out_dtype: DTypeLike | None


DEFAULTS: dict[str, Any] = {
    "chunk": 0,
    "softcap": 0,
    "layout": "bshd",
    "list_rows": 1,
    "list_keys": 1,
    "dropout_p": 0,
    "mask_keys": 0,
    "mask_bits": False,
    "list_space": "keys",
    "dropout_seed": 0,
    "dropout_offset": 0,
    "num_splits": 0,
    "reserve_units": 0,
    "split_size": 0,
    "algorithm": "flash",
    "precision": "default",
    "deterministic": False,
    "dynamic_scale": False,
    "interleaved": False,
    "rotary_begin": 0,
}
