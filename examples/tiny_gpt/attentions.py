"""Causal attention, twice: by the library, and by plain NumPy that stores every score."""

from __future__ import annotations

import flashattn
import numpy as np


class Library:
    """Nothing but the output and one number for each row is kept for the backward."""

    name = "libflashattn"

    def __call__(self, q, k, v):
        out, lse = flashattn.attention(q, k, v, causal="top-left", return_lse=True)
        return out, (out, lse)

    def backward(self, dout, q, k, v, saved):
        return flashattn.attention_backward(dout, q, k, v, *saved, causal="top-left")


class Plain:
    """The definition, in float32."""

    name = "plain NumPy"

    def __call__(self, q, k, v):
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))  # (batch, heads, rows, dim)
        rows = q.shape[2]
        scores = q @ k.swapaxes(2, 3) / np.float32(q.shape[3] ** 0.5)
        scores = np.where(np.tri(rows, dtype=bool), scores, np.float32(-np.inf))
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return (p @ v).transpose(0, 2, 1, 3), p

    def backward(self, dout, q, k, v, p):
        dout, q, k, v = (x.transpose(0, 2, 1, 3) for x in (dout, q, k, v))
        dp = dout @ v.swapaxes(2, 3)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.float32(q.shape[3] ** 0.5)
        gradients = (ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout)
        return tuple(x.transpose(0, 2, 1, 3) for x in gradients)
