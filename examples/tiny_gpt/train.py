"""Trains a small language model on this project's own documentation, with attention by libflashattn and again by plain NumPy.

Both runs start from the same weights and see the same batches, so their losses agree step by step but for rounding. Exit status 1
if they do not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import flashattn
import numpy as np
from attentions import Library, Plain
from model import Adam, Model, Shape, initial

ROOT = Path(__file__).resolve().parents[2]
BATCH = 12
LIMIT = 1e-4  # how far rounding may part two losses: each step builds on all before it


def documentation() -> str:
    """README.md and docs/*.md, with tables and characters that are rare left out."""
    text = "".join(path.read_text() for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))])
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("|"))
    common = {c for c in set(text) if text.count(c) >= 20}
    return "".join(c for c in text if c in common)


def batches_of(data: np.ndarray, shape: Shape, steps: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Characters, and those that follow them."""
    for _ in range(steps):
        begins = rng.integers(0, len(data) - shape.context, BATCH)
        rows = np.stack([data[b : b + shape.context + 1] for b in begins])
        yield rows[:, :-1], rows[:, 1:]


def train(attention, shape: Shape, data: np.ndarray, steps: int, seed: int) -> tuple[Model, list[float], float]:
    rng = np.random.default_rng(seed)
    model = Model(shape, initial(shape, rng), attention)
    adam = Adam(model.weights, steps)
    losses, start = [], time.perf_counter()
    for step, (tokens, targets) in enumerate(batches_of(data, shape, steps, rng)):
        loss, gradients = model.loss_and_gradients(tokens, targets)
        adam.update(gradients)
        losses.append(loss)
        if step % 50 == 0 or step == steps - 1:
            print(f"{attention.name}: step {step}, loss {loss:.4f}", flush=True)
    return model, losses, time.perf_counter() - start


def sample(model: Model, characters: list[str], prompt: str, length: int) -> str:
    """Continues the prompt, each character drawn by its probability."""
    rng = np.random.default_rng(0)
    tokens = [characters.index(c) for c in prompt]
    for _ in range(length):
        logits = model.logits(np.array([tokens[-model.shape.context :]]))[0, -1].astype(np.float64) / 0.7
        p = np.exp(logits - logits.max())
        tokens.append(int(rng.choice(len(p), p=p / p.sum())))
    return "".join(characters[t] for t in tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=300, help="characters to write at the end")
    parser.add_argument("--out", type=Path, help="folder for loss.json and loss.svg; needs matplotlib")
    options = parser.parse_args()
    if options.out:
        from plot import draw  # if matplotlib is missing, before the training and not behind it

    text = documentation()
    characters = sorted(set(text))
    data = np.array([characters.index(c) for c in text])
    shape = Shape(vocabulary=len(characters))
    print(f"{len(text)} characters of documentation, {len(characters)} different ones; {flashattn.explain()}")

    runs = {}
    for attention in (Library(), Plain()):
        runs[attention.name] = train(attention, shape, data, options.steps, options.seed)
    model, losses, seconds = runs[Library.name]
    _, expected, plain_seconds = runs[Plain.name]
    largest = float(np.abs(np.array(losses) - np.array(expected)).max())
    good = largest <= LIMIT
    print(f"losses differ by at most {largest:.1e} at any step (limit {LIMIT:.0e}): {'as rounding does' if good else 'WRONG'}")
    print(f"{seconds:.0f} s with {Library.name}, {plain_seconds:.0f} s with {Plain.name}\n")
    print(sample(model, characters, "The library ", options.sample))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        report = {
            "shape": vars(shape),
            "batch": BATCH,
            "seed": options.seed,
            "characters": len(text),
            "largest_difference": largest,
            "loss": {name: [round(loss, 10) for loss in run[1]] for name, run in runs.items()},
        }
        (options.out / "loss.json").write_text(json.dumps(report, indent=1) + "\n")
        draw(options.out / "loss.svg", {name: run[1] for name, run in runs.items()})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
