"""Gradients of alibi_slopes and bias_scale for JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ._jax_request import Arrays, Static, sizes
from ._terms import distances, gradients, scaled


class Terms:
    """The gradients of alibi_slopes and bias_scale, of which the library has that of a bias in their place. slopes: is theirs wanted? Then
    it has all rows and keys, else as many as the bias."""

    def __init__(self, options: Static, given: Arrays, *, slopes: bool) -> None:
        batch, rows, heads = sizes(options, given["q"].shape)
        lengths = {"q": rows, "k": sizes(options, given["k"].shape)[1]}
        for name in lengths:
            bound = getattr(options, f"max_seqlen_{name}")
            lengths[name] = lengths[name] if bound is None else bound
        if "cu_seqlens_q" in given:
            batch = given["cu_seqlens_q"].shape[0] - 1
        self._bias, self._factors, self._slopes, self._distance = None, given.get("bias_scale"), given.get("alibi_slopes"), None
        merged = jnp.zeros((1, 1, 1, 1), jnp.float32)
        if "bias" in given:
            self._bias = merged = given["bias"].astype(jnp.float32)
        if self._factors is not None:
            merged = scaled(jnp, merged, self._factors)
        sequences, pairs = merged.shape[0], merged.shape[2:]
        if slopes:
            pairs = tuple(lengths.values())
            i, j = (jnp.arange(n, dtype=jnp.float32) for n in pairs)
            self._distance = distances(i, j, _offset(options, given, lengths))
            sequences = batch if given["alibi_slopes"].ndim == 2 or self._distance.ndim == 4 else sequences
        self.given = {name: x for name, x in given.items() if name != "bias_scale"}
        self.given["bias"] = jnp.broadcast_to(merged, (sequences, heads, *pairs))
        self.options = options._replace(names=tuple(self.given))

    def split(self, ds: Any) -> Arrays:
        return gradients(jnp, ds, self._bias, self._factors, self._slopes, self._distance)


def _offset(options: Static, given: Arrays, lengths: dict[str, int]) -> Any:
    """Of each sequence's first row from its first key."""
    if (options.alignment or options.causal) != "bottom-right":
        return 0
    own: Arrays = dict(lengths)
    for name in own:
        if f"cu_seqlens_{name}" in given:
            own[name] = jnp.diff(given[f"cu_seqlens_{name}"])[:, None, None, None]
    return own["k"] - own["q"]
