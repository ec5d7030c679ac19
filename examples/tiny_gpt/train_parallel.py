"""Trains the model of train.py in several processes, each of which has its rows of every sequence, and again in one.

Attention alone needs the others' rows: libflashattn-cp computes it over a group of torch.distributed. Gradients of the weights are summed.
The losses of both runs agree step by step but for rounding; exit status 1 if they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from attentions import Library
from flashattn.torch import context_parallel
from model import Adam, Model, Shape, initial
from train import BATCH, LIMIT, batches_of, documentation, train


class Spread:
    """Attention of this process's rows, with all that they see."""

    def __init__(self, cp: context_parallel) -> None:
        self.cp, self.name = cp, f"{cp.ranks} processes"

    def __call__(self, q, k, v):
        inputs = [torch.from_numpy(np.ascontiguousarray(x)).requires_grad_() for x in (q, k, v)]
        out = self.cp.attention(*inputs, causal="top-left")
        return out.detach().numpy(), (inputs, out)

    def backward(self, dout, q, k, v, saved):
        inputs, out = saved
        return tuple(x.numpy() for x in torch.autograd.grad(out, inputs, torch.from_numpy(np.ascontiguousarray(dout))))


def summed(x: np.ndarray) -> np.ndarray:
    dist.all_reduce(torch.from_numpy(x))  # in place
    return x


def process(rank: int, ranks: int, port: int, shape: Shape, data: np.ndarray, steps: int, seed: int, method: str, path: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    with context_parallel(method=method) as cp:
        rng = np.random.default_rng(seed)
        rows = cp.rows(shape.context).numpy()
        share = np.float32(len(rows) / shape.context)  # of a sequence's loss, which is a mean
        model = Model(shape, initial(shape, rng), Spread(cp), rows)
        adam, losses = Adam(model.weights, steps), []
        for tokens, targets in batches_of(data, shape, steps, rng):
            loss, gradients = model.loss_and_gradients(tokens[:, rows], targets[:, rows])
            adam.update({name: summed(g * share) for name, g in gradients.items()})
            losses.append(float(summed(np.array([loss * share]))[0]))
        if rank == 0:
            with open(path, "w") as file:
                json.dump(losses, file)
    dist.barrier()  # nobody leaves while another still hears from it
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--method", choices=("auto", "ulysses", "all-gather", "ring"), default="auto")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    text = documentation()
    characters = sorted(set(text))
    data = np.array([characters.index(c) for c in text])
    shape = Shape(vocabulary=len(characters))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "losses.json")
        what = options.processes, free_port(), shape, data, options.steps, options.seed, options.method, path
        mp.spawn(process, what, nprocs=options.processes)
        with open(path) as file:
            losses = json.load(file)
    _, expected, _ = train(Library(), shape, data, options.steps, options.seed)
    largest = float(np.abs(np.array(losses) - np.array(expected)).max())
    good = largest <= LIMIT
    print(f"{options.steps} steps of {BATCH} sequences in {options.processes} processes: loss {losses[0]:.4f} to {losses[-1]:.4f}; in one process it "
          f"differs by at most {largest:.1e} at any step (limit {LIMIT:.0e}): {'as rounding does' if good else 'WRONG'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
