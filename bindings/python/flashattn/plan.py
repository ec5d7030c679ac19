"""A call of `attention` that is prepared by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import numpy as np

from ._keywords import NUMPY
from ._prepared import RANDOM, TENSORS, Prepared, bounded, in_order, signature_of
from ._types import Array, BackendName, Floats, Options, Stage
from .handle import Handle, handle_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Result = TypeVar("Result")


class Plan(Generic[Result]):
    """A call of `attention`, prepared for arrays of these shapes, strides and dtypes, for example in a decoding loop:

        plan = flashattn.Plan(q, k, v, causal="bottom-right", seqused_k=lengths)
        for token in range(tokens):
            ...  # the token's keys and values go into k and v, and lengths grow
            out = plan(q, k, v, seqused_k=lengths)

    Arguments are those of `attention`. Arrays are inspected, not kept. All other options apply to every call. Arrays must be
    NumPy arrays that the library can address: ValueError names one that would be copied, TypeError one that is no array. The
    lengths of packed sequences are bounded by max_seqlen_q and max_seqlen_k, or by the longest one here.

    A call takes the same arrays by the same names, and checks their shapes, strides and dtypes: ValueError names one that
    differs. Contents, such as lengths, are checked in every call. dropout_seed and dropout_offset may change.

    Threads can share a plan. Each computes with its own handle, unless backend is a Handle. `attention` itself keeps plans for
    its last calls, which costs a few microseconds more.
    """

    @overload
    def __init__(
        self: Plan[Array],
        q: Array,
        k: Array,
        v: Array | None,
        *,
        return_lse: Literal[False] = ...,
        return_scores: None = ...,
        backend: BackendName | Handle | None = ...,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Plan[tuple[Array, Floats]],
        q: Array,
        k: Array,
        v: Array | None,
        *,
        return_lse: Literal[True],
        return_scores: None = ...,
        backend: BackendName | Handle | None = ...,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Plan[tuple[Array, ...]],
        q: Array,
        k: Array,
        v: Array | None,
        *,
        return_lse: bool = ...,
        return_scores: Stage,
        backend: BackendName | Handle | None = ...,
        **options: Unpack[Options],
    ) -> None: ...
    @NUMPY.listed
    def __init__(
        self,
        q: Array,
        k: Array,
        v: Array | None,
        *,
        return_lse: bool = False,
        return_scores: Stage | None = None,
        backend: BackendName | Handle | None = None,
        **options: Any,
    ) -> None:
        options = NUMPY.complete(Plan, options)
        given = bounded({"q": q, "k": k, "v": v, **options, "return_lse": return_lse, "return_scores": return_scores})
        random = {name: given.pop(name) for name in RANDOM}
        signature, arrays = signature_of(given)
        for name, value in given.items():
            foreign = name in TENSORS and value is not None and type(value) is not np.ndarray
            if foreign or (signature is None and signature_of({name: value})[0] is None) or (name == "device_status" and value is not None):
                raise TypeError(f"{name} is of {type(value).__name__}: a Plan takes NumPy arrays, and numbers and words beside them")
        self._prepared = Prepared({**given, **arrays, **random}, arrays)
        if self._prepared.copied is not None:
            raise ValueError(f"{self._prepared.copied} would be copied in each call: a Plan takes arrays that the library can address")
        self._backend = backend
        self._signature: tuple[Any, ...] = signature_of(arrays)[0]

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array | None = None,
        **arrays: Any,
    ) -> Result:
        """What `attention` returns. arrays: the plan's others, and dropout_seed and dropout_offset."""
        given = {"q": q, "k": k, "v": v, **arrays} if v is not None else {"q": q, "k": k, **arrays}
        random = {name: given.pop(name) for name in RANDOM if name in given}
        signature, held = signature_of(given)
        if signature != self._signature:
            held = in_order(self._signature, given, signature_of)
        result: Result = self._prepared(held.values(), random, handle_of(self._backend))
        return result
