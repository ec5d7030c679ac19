"""Gradients of alibi_slopes and bias_scale for torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ._tensors import batch_of, check, longest
from ._terms import distances, gradients, scaled


class Terms:
    """The gradients of alibi_slopes and bias_scale, of which the library has that of a bias in their place. Dense: rows × keys of each head
    for slopes, of a bias with factors as many as it has itself. given: as of a Call."""

    def __init__(self, given: Mapping[str, Any], *, slopes: bool) -> None:
        check(given)
        q, bias, factors = given["q"], given["bias"], given["bias_scale"]
        batch, heads, rows, keys = batch_of(given), q.shape[-2], longest(given, "q"), longest(given, "k")
        self._slopes, self._distance = given["alibi_slopes"], None
        self._factors = None if factors is None else factors.detach().to(torch.float32)
        self._repeats: list[torch.Tensor] = []  # of a bias that has a period: the place in it of each sequence, and of each head
        self._like, self._bias = bias, None
        if bias is not None:
            self._bias = bias.detach().to(torch.float32).reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
            if given["bias_period"] is not None:
                self._repeats = [torch.arange(n, device=q.device) % (p or n) for n, p in zip((batch, heads), given["bias_period"])]
                for axis, places in enumerate(self._repeats):
                    if self._bias.shape[axis] != 1:
                        self._bias = self._bias.index_select(axis, places)
        merged = torch.zeros((1, 1, 1, 1), device=q.device) if self._bias is None else self._bias
        if self._factors is not None:
            merged = scaled(torch, merged, self._factors)
        sequences, pairs = merged.shape[0], merged.shape[2:]
        if slopes:
            i, j = (torch.arange(n, dtype=torch.float32, device=q.device) for n in (rows, keys))
            self._distance = distances(i, j, self._offset(given, rows, keys))
            sequences = batch if self._slopes.ndim == 2 or self._distance.ndim == 4 else sequences
            pairs = (rows, keys)
        self.shape = (sequences, heads, *pairs)  # of the gradient that `split` takes
        bounds = {f"max_seqlen_{name}": None if given[f"cu_seqlens_{name}"] is None else n for name, n in (("q", rows), ("k", keys))}
        self.given = {**given, **bounds, "bias": merged, "bias_scale": None, "bias_period": None}

    @staticmethod
    def _offset(given: Mapping[str, Any], rows: int, keys: int) -> Any:
        """Of each sequence's first row from its first key."""
        if (given["alignment"] or given["causal"]) != "bottom-right":
            return 0
        lengths = {"q": rows, "k": keys}
        for name in lengths:
            if given[f"cu_seqlens_{name}"] is not None:
                lengths[name] = given[f"cu_seqlens_{name}"].diff().reshape(-1, 1, 1, 1)
        return lengths["k"] - lengths["q"]

    def split(self, ds: torch.Tensor) -> dict[str, torch.Tensor]:
        found = gradients(torch, ds, self._bias, self._factors, self._slopes, self._distance)
        if self._like is None:
            return found
        if self._repeats:
            own = (1,) * (4 - self._like.ndim) + tuple(self._like.shape)
            for axis, places in enumerate(self._repeats):
                if own[axis] != 1:
                    shape = [own[axis] if axis == other else n for other, n in enumerate(found["bias"].shape)]
                    found["bias"] = ds.new_zeros(shape).index_add_(axis, places, found["bias"])
        found["bias"] = found["bias"].reshape(self._like.shape)
        return found
