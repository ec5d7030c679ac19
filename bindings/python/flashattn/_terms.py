"""Gradients of alibi_slopes and bias_scale, which scale what is added to scores: from the gradient of a bias that stands for all of it.
Written for torch and jax.numpy alike: xp is one of them."""

from __future__ import annotations

from typing import Any

TERMS = ("alibi_slopes", "bias_scale")


def scaled(xp: Any, bias: Any, factors: Any) -> Any:
    """A bias of four axes times its heads' factors, of which -inf stays what it is."""
    return xp.where(xp.isneginf(bias), bias, bias * factors.reshape(-1, 1, 1))


def distances(rows: Any, keys: Any, offset: Any) -> Any:
    """|i + offset - j| of ALiBi, (1 or batch, 1, rows, keys). rows, keys: their numbers, as floats; offset: of each sequence, or one."""
    return abs(rows.reshape(-1, 1) + offset - keys)


def gradients(xp: Any, ds: Any, bias: Any, factors: Any, slopes: Any, distance: Any) -> dict[str, Any]:
    """Of the operands behind ds, the gradient of the sum that is added to scores: (1 or batch, heads, rows, keys), where rows and keys may
    be 1 without a distance. bias: of four axes, or None, as factors; slopes and distance: of ALiBi, whose gradient is wanted, or None."""
    found = {}
    if distance is not None:
        of_sequences = -(ds * distance).sum((2, 3))
        found["alibi_slopes"] = of_sequences if slopes.ndim == 2 else of_sequences.sum(0)
    if bias is not None and factors is not None:
        found["bias_scale"] = xp.where(ds == 0, ds, ds * bias).sum((0, 2, 3))  # a key that is removed has 0, whatever removed it
        ds = ds * factors.reshape(-1, 1, 1)
    if bias is not None:
        axes = tuple(axis for axis, (n, m) in enumerate(zip(bias.shape, ds.shape)) if n != m)
        found["bias"] = ds.sum(axes).reshape(bias.shape) if axes else ds
    return found
