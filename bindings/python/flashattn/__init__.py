"""libflashattn from Python: exact attention on NumPy arrays, tile by tile, on the CPU or on a GPU.

    import numpy as np, flashattn

    q = np.random.default_rng(0).standard_normal((2, 128, 8, 64), dtype=np.float32)   # (batch, rows, heads, dim)
    out = flashattn.attention(q, q, q, causal="bottom-right")
    out, lse = flashattn.attention(q, q, q, window=(256, 0), alignment="bottom-right", return_lse=True)
    dq, dk, dv = flashattn.attention_backward(np.ones_like(out), q, q, q, out, lse, window=(256, 0), alignment="bottom-right")

The C library is searched by the path in FLASHATTN_LIBRARY, then next to this package, then by the loader.
"""

from ._arrays import block_dtype
from .attention import attention, explain
from .backward import attention_backward
from .cache import append_kv, rotary
from .conversion import convert
from .errors import FlashAttnError, InvalidArgumentError, OutOfMemoryError, UnsupportedError
from .handle import Handle
from .info import Backend, Device, alibi_slopes, backends, dropout_mask, version
from .merging import merge
from .plan import Plan

__version__ = "0.2.0"

__all__ = [
    "Backend",
    "Device",
    "FlashAttnError",
    "Handle",
    "InvalidArgumentError",
    "OutOfMemoryError",
    "Plan",
    "UnsupportedError",
    "alibi_slopes",
    "append_kv",
    "attention",
    "attention_backward",
    "backends",
    "block_dtype",
    "convert",
    "dropout_mask",
    "explain",
    "merge",
    "rotary",
    "version",
]
