"""Copies between arrays of any strides and layouts, with conversion of types."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import as_array, dim_of, readable, writable
from ._dlpack import exchanged
from ._place import CONVERT, also_on_gpu, place_of
from ._request import Conversion
from ._types import Array, BackendName
from .handle import Handle

_AXES = 4


@also_on_gpu(CONVERT)
@exchanged
def convert(out: Array, x: ArrayLike | None, *, accumulate: bool = False, backend: BackendName | Handle | None = None) -> None:
    """Writes x into out, in place: another layout, other strides, another type.

    out, x: of one shape, of four axes at most. float32, float16 and bfloat16 are converted into each other, rounded once;
        any other dtype of `attention`'s, flashattn.block_dtype's too, is copied bit for bit into its own. x None: zeros.
    accumulate: x (float32, float16, bfloat16) is added to out, which is float32.

    On a GPU, as in `attention`, both are arrays of a library with DLPack, and the call goes into its stream. On the CPU, NumPy
    can do the same. On a GPU, this moves rows of caches and packed batches without another library.

    Raises like `attention`.
    """
    out, _ = writable("out", out, unit=False)
    if out.ndim > _AXES:
        raise ValueError(f"out has shape {out.shape}: expected {_AXES} axes at most")
    call = Conversion(accumulate)
    call.tensor("out", *writable("out", _four(out), unit=True))
    call.conversion.size = (*call.arrays["out"].shape[:-1], dim_of(call.arrays["out"]))
    if x is not None:
        x = as_array("x", x)
        if x.shape != out.shape:
            raise ValueError(f"x has shape {x.shape}: expected out's, {out.shape}")
        call.tensor("x", *readable(_four(x), unit=True))
    place_of(backend).run(call)


def _four(array: Array) -> Array:
    return array[(np.newaxis,) * (_AXES - array.ndim)]
