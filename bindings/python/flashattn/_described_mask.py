"""Masks of Hugging Face transformers as keywords of `flashattn.torch.attention`: transformers describes a mask by nested functions of pairs
of positions, of which those that leave each row one run of keys are known here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Callable, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

masking: Any = importlib.import_module("transformers.masking_utils")


@dataclass(frozen=True)
class Pairs:
    """What a mask is asked for. Rows and keys are counted from the first key."""

    batch: int
    rows: int
    keys: int
    first: int  # the key that the first row is on
    key_offset: int  # the position of the first key
    device: Any


class Described(torch.Tensor):
    """A mask of bools, of shape (batch, 1, rows, keys), that is made when anything of torch's looks at it, and is an ordinary tensor from
    then on. Until then, options has the keywords that mean the same: a model that passes it on never has rows × keys in memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    options: dict[str, Any] | None

    @staticmethod
    def __new__(cls, pairs: Pairs, options: dict[str, Any], ranges: Callable[[], torch.Tensor]) -> Described:
        wrapper: Any = torch.Tensor._make_wrapper_subclass  # which has no types
        mask: Described = wrapper(cls, (pairs.batch, 1, pairs.rows, pairs.keys), dtype=torch.bool, device=pairs.device)
        mask.options, mask._ranges, mask._made = options, ranges, None
        return mask

    _ranges: Callable[[], torch.Tensor]
    _made: torch.Tensor | None

    def dense(self) -> torch.Tensor:
        if self._made is None:
            begin, end = self._ranges().unbind(-1)  # (batch, 1, rows, 1)
            at = torch.arange(self.shape[-1], device=self.device)
            self._made = (at >= begin) & (at < end)
        return self._made

    def _seen(self) -> torch.Tensor:
        self.options = None  # what looks may also write
        return self.dense()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Described(shape={tuple(self.shape)}, options={self.options})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(cls, cls._seen, (args, kwargs or {}))
        return func(*args, **kwargs)


class _Term(NamedTuple):
    """One condition of those that all have to hold."""

    name: str
    value: Any = None
    positions: torch.Tensor | None = None  # of rows and keys, where a batch is packed; None: as they are counted


def described(function: Any, padding: torch.Tensor | None, pairs: Pairs) -> Described | None:
    """The mask by keywords of `attention`, which are {} where every pair is attended; None: only the mask itself means it.
    padding: (batch, positions), true where there is a key."""
    terms = _terms(function)
    if terms is None or not _consecutive(terms):
        return None
    needed = min(pairs.keys, pairs.first + pairs.rows) if any(term.name == "causal" for term in terms) else pairs.keys
    run = None
    there = None if padding is None else padding[:, pairs.key_offset : pairs.key_offset + pairs.keys]
    if there is not None and not (there.shape[1] == pairs.keys and bool(there.all())):
        run = _run(there)
        if run is None:
            return None
        if int(run[0].max()) <= 0 and int(run[1].min()) >= needed:
            run = None
    options = None if run else _band(terms, pairs)
    if options is not None:
        return Described(pairs, options, lambda: _ranges(terms, run, pairs))
    ranges = _ranges(terms, run, pairs)
    return Described(pairs, {"key_ranges": ranges}, lambda: ranges)


def _band(terms: list[_Term], pairs: Pairs) -> dict[str, Any] | None:
    """By the library's own causal mask and window, where the diagonal is in one of the places that these have."""
    if any(term.name not in ("causal", "left", "right") for term in terms):
        return None
    last = pairs.first + pairs.rows - 1
    causal = any(term.name == "causal" for term in terms) and pairs.first < pairs.keys - 1
    left = min((term.value for term in terms if term.name == "left" and term.value < last), default=None)
    right = min((term.value for term in terms if term.name == "right" and pairs.first + term.value < pairs.keys - 1), default=None)
    if not causal and left is None and right is None:
        return {}
    if pairs.first != 0 and last != pairs.keys - 1:
        return None
    place = "top-left" if pairs.first == 0 else "bottom-right"
    return {"causal" if causal else "alignment": place, **({} if left is None and right is None else {"window": (left, right)})}


def _ranges(terms: list[_Term], run: tuple[torch.Tensor, torch.Tensor] | None, pairs: Pairs) -> torch.Tensor:
    at = torch.arange(pairs.first, pairs.first + pairs.rows, device=pairs.device).expand(pairs.batch, -1)
    begin, end = torch.zeros_like(at), torch.full_like(at, pairs.keys)
    if run is not None:
        begin, end = torch.maximum(begin, run[0][:, None]), torch.minimum(end, run[1][:, None])
    for name, value, positions in terms:
        if name == "causal":
            end = torch.minimum(end, at + 1)
        elif name == "left":
            begin = torch.maximum(begin, at - value)
        elif name == "right":
            end = torch.minimum(end, at + value + 1)
        elif name == "packed":
            ids = value.contiguous()
            begin = torch.maximum(begin, torch.searchsorted(ids, ids))
            end = torch.minimum(end, torch.searchsorted(ids, ids, right=True))
        else:
            size, skipped = value
            position = at + pairs.key_offset if positions is None else positions
            skipped = 0 if skipped is None else skipped.to(pairs.device)[:, None]
            first = at - (position - skipped) % size
            begin, end = torch.maximum(begin, first), torch.minimum(end, first + size)
    return torch.stack([begin, end], -1).to(torch.int32)[:, None, :, None]


def _run(there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Begin and end of the keys that are there, of each sequence, where they are one run."""
    if there.shape[1] == 0:
        return None
    count, begin = there.sum(-1), there.to(torch.int8).argmax(-1)
    at = torch.arange(there.shape[1], device=there.device)
    if not torch.equal(there, (at >= begin[:, None]) & (at < (begin + count)[:, None])):
        return None
    return begin, begin + count


def _consecutive(terms: list[_Term]) -> bool:
    """Are positions consecutive within each packed sequence, and these one after the other? Else terms mean other keys."""
    packed = [term.value for term in terms if term.name == "packed"]
    placed = [term.positions for term in terms if term.positions is not None]
    if placed and not packed:
        return False
    ordered = [(ids.diff() >= 0).all() for ids in packed]
    ordered += [((x.diff() == 1) | (ids.diff() != 0)).all() for x in placed for ids in packed]
    return not ordered or bool(torch.stack(ordered).all())


def _terms(function: Any, positions: torch.Tensor | None = None) -> list[_Term] | None:
    """None: one of the functions is not known."""
    if function is masking.causal_mask_function:
        return [_Term("causal", None, positions)]
    if function is getattr(masking, "bidirectional_mask_function", masking.causal_mask_function):
        return []
    if not isinstance(function, FunctionType) or function.__closure__ is None:
        return None
    cells = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__)))
    read = _KNOWN.get(function.__code__)
    try:
        return None if read is None else read(cells, positions)
    except KeyError:  # it has other variables in this version of transformers
        return None


def _all_of(cells: dict[str, Any], positions: torch.Tensor | None) -> list[_Term] | None:
    found = []
    for function in cells["mask_functions"]:
        terms = _terms(function, positions)
        if terms is None:
            return None
        found += terms
    return found


def _known() -> Iterator[tuple[Any, Any]]:
    """The code of each of transformers' functions, and what it means. A version has some of them."""
    causal = masking.causal_mask_function
    for made, arguments, read in (
        ("and_masks", (causal, causal), _all_of),
        ("sliding_window_overlay", (1,), lambda cells, positions: [_Term("left", cells["sliding_window"] - 1, positions)]),
        (
            "sliding_window_bidirectional_overlay",
            (1,),
            lambda cells, positions: [_Term(side, cells["sliding_window"], positions) for side in ("left", "right")],
        ),
        (
            "chunked_overlay",
            (1, None),
            lambda cells, positions: [_Term("chunk", (cells["chunk_size"], cells.get("left_padding")), positions)],
        ),
        ("_legacy_chunked_overlay", (1,), lambda cells, positions: [_Term("chunk", (cells["chunk_size"], None), positions)]),
        ("packed_sequence_mask_function", (None,), lambda cells, positions: [_Term("packed", cells["packed_sequence_mask"])]),
        (
            "remap_positions_for_packed_sequence",
            (causal, None),
            lambda cells, positions: None if positions is not None else _terms(cells["mask_function"], cells["position_ids"]),
        ),
    ):
        make = getattr(masking, made, None)
        if make is not None:
            yield make(*arguments[: make.__code__.co_argcount or None]).__code__, read


_KNOWN = dict(_known())
