"""Attention and the whole run as one would write them without a library: what the packed run is checked against."""

from __future__ import annotations

import numpy as np

from minilm import MiniLM, sentence_vector

PAD = 0


def softmax_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, attend: np.ndarray | None = None) -> np.ndarray:
    """q, k, v (tokens, heads, dim) of one sentence in float64, with the whole score matrix; attend (tokens,): keys that count."""
    q, k, v = (x.astype(np.float64).transpose(1, 0, 2) for x in (q, k, v))  # (heads, tokens, dim)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if attend is not None:
        scores = np.where(attend, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ v).transpose(1, 0, 2)


def packed_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    """The same, sentence by sentence, over a packed batch."""
    out = np.empty(q.shape, np.float64)
    for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:]):
        out[begin:end] = softmax_attention(q[begin:end], k[begin:end], v[begin:end])
    return out


def padded_embeddings(model: MiniLM, token_ids: list[np.ndarray]) -> np.ndarray:
    """Sentence vectors of a padded batch: every sentence is filled up to the longest, and a mask hides the filling."""
    longest = max(map(len, token_ids))
    return np.array([padded_embedding(model, ids, longest) for ids in token_ids])


def padded_embedding(model: MiniLM, ids: np.ndarray, length: int) -> np.ndarray:
    attend = np.arange(length) < len(ids)
    padded = np.full(length, PAD)
    padded[attend] = ids

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, _: int) -> np.ndarray:
        return softmax_attention(q, k, v, attend).astype(np.float32)

    return sentence_vector(model.hidden(padded, np.arange(length), attention)[attend])
