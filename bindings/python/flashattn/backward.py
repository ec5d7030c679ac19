"""Gradients of attention, from the forward's output and LSE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from . import _abi
from ._arrays import as_array, readable, strides_of, tensor
from ._dlpack import exchanged
from ._forward import build, repeating
from ._keywords import NUMPY
from ._layout import Order
from ._place import BACKWARD, Place, also_on_gpu, place_of
from ._request import Request, literal
from ._types import Array, BackendName, Options
from .handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack


@also_on_gpu(BACKWARD)
@exchanged
@NUMPY.listed
def attention_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    *,
    dlse: ArrayLike | None = None,
    return_dbias: bool = False,
    return_dsinks: bool = False,
    deterministic: bool = False,
    backend: BackendName | Handle | None = None,
    **options: Unpack[Options],
) -> tuple[Array, ...]:
    """The gradients (dq, dk, dv) of a loss. dout is its gradient with respect to the output of `attention`.

        out, lse = flashattn.attention(q, k, v, causal="bottom-right", return_lse=True)
        dq, dk, dv = flashattn.attention_backward(dout, q, k, v, out, lse, causal="bottom-right")

    dout: out's shape, q's dtype.
    q, k, v: as the forward had them, in float32, float16 or bfloat16, dense or packed. Pages, cache indices and 8-bit types have
        no gradient: UnsupportedError.
    out, lse: the forward's results. If keys are in several parts, use out and lse of the whole, and sum dq over the parts.
        If probabilities are nearly uniform, a 16-bit out makes dq inaccurate: use out_dtype="float32" in the forward.
    options: all keywords of the forward but return_lse and return_scores. Dropout is drawn again from dropout_seed and dropout_offset.
    dlse: gradient with respect to lse, its shape in float32; None: 0.
    deterministic: the same bits every time on a GPU, too; on the CPU always.

    Returns dq, dk, dv, dense, in the shapes and dtypes of q, k and v; then dbias (return_dbias), float32 in the bias's own shape,
    summed over what it was broadcast along; then dsinks (return_dsinks), float32 (heads,). Rows and keys beyond the lengths get 0.

    Raises like `attention`.
    """
    if v is None:
        raise TypeError("v is None: expected v, for v within k has no gradient")
    given = NUMPY.complete(attention_backward, options)
    given |= {"out_dtype": as_array("out", out).dtype, "return_lse": True, "return_scores": None, "deterministic": deterministic}
    inputs, _ = build(q, k, v, given)
    request = Request(_abi.BackwardArgs(), inputs)
    desc, order = request.desc, Order(given["layout"])
    packed_q, packed_k = given["cu_seqlens_q"] is not None, given["cu_seqlens_k"] is not None
    if return_dbias and given["bias"] is None:
        raise ValueError("return_dbias is true: expected a bias")
    if return_dsinks and given["sinks"] is None:
        raise ValueError("return_dsinks is true: expected sinks")

    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    shape = (*q.shape[:-1], v.shape[-1])
    inputs.strided("o", order.seen(_like("out", out, shape, None), q.ndim), packed=packed_q)
    dout, strides = readable(order.seen(_like("dout", dout, shape, q.dtype), q.ndim), unit=True)
    request.point("dout", dout)
    request.args.dout_stride = literal(strides, packed=packed_q)
    sums = (desc.heads_q, desc.total_q) if packed_q else (desc.batch, desc.heads_q, desc.seqlen_q)
    lse, strides = readable(_like("lse", lse, sums, np.dtype(np.float32)), unit=False)
    inputs.point("lse", lse)
    if not lse.flags.c_contiguous:
        desc.strided |= _abi.FA_STRIDED_LSE
        desc.lse_stride = literal(strides, packed=packed_q)
    if dlse is not None:
        dlse, strides = readable(_like("dlse", dlse, sums, np.dtype(np.float32)), unit=False)
        if not any(strides):  # all zero would mean lse's
            dlse, strides = readable(np.array(dlse, order="C"), unit=False)
        request.point("dlse", dlse)
        request.args.dlse_stride = literal(strides, packed=packed_q)

    tensors = (("dq", q, packed_q), ("dk", k, packed_k), ("dv", v, packed_k))
    place = place_of(backend)
    gradients = [_gradient(place, request, order, field, x, packed) for field, x, packed in tensors]
    if return_dbias:
        gradients.append(_bias_gradient(place, request, np.shape(given["bias"])))
    if return_dsinks:
        gradients.append(place.room((desc.heads_q,), np.float32, 0))
        request.point("dsinks", gradients[-1])
    place.run(request)
    return tuple(gradients)


def _like(name: str, value: ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> Array:
    array = tensor(name, value, len(shape), f"shape {shape}")
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: expected {shape}")
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{name} has dtype {array.dtype}: expected {dtype}")
    return array


def _gradient(place: Place, request: Request, order: Order, field: str, like: Array, packed: bool) -> Array:
    """A dense array of its own, also where the input is broadcast; the library does not touch the gaps of a packed one."""
    array: Array = place.room(like.shape, like.dtype, 0)
    seen = order.seen(array, array.ndim)
    request.point(field, seen)
    setattr(request.args, f"{field}_stride", literal(tuple(step // array.itemsize for step in seen.strides), packed=packed))
    return array


def _bias_gradient(place: Place, request: Request, shape: tuple[int, ...]) -> Array:
    desc = request.desc
    array = place.room(shape, np.float32, 0)
    seen = np.broadcast_to(array, repeating(desc, desc.bias_period))
    request.point("dbias", seen)
    request.args.dbias_stride = strides_of(seen, unit=False)
    return array
