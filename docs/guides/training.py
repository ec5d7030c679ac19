"""One layer of causal attention learns to copy the row before: NumPy, and gradients by libflashattn."""

import flashattn
import numpy as np

BATCH, ROWS, HEADS, DIM = 8, 16, 2, 16
WIDTH = HEADS * DIM
rng = np.random.default_rng(0)
weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5 for name in "qkvo"}
places = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)


def heads(x):
    return x.reshape(BATCH, ROWS, HEADS, DIM)


def flat(x):
    return x.reshape(BATCH, ROWS, WIDTH)


def step(x, target, rate):
    q, k, v = (heads(x @ weights[name]) for name in "qkv")
    out, lse = flashattn.attention(q, k, v, causal="top-left", return_lse=True)
    error = flat(out) @ weights["o"] - target

    d_y = 2 * error / error.size
    dq, dk, dv = flashattn.attention_backward(heads(d_y @ weights["o"].T), q, k, v, out, lse, causal="top-left")
    weights["o"] -= rate * np.tensordot(flat(out), d_y, ((0, 1), (0, 1)))
    for name, gradient in zip("qkv", (dq, dk, dv)):
        weights[name] -= rate * np.tensordot(x, flat(gradient), ((0, 1), (0, 1)))
    return float((error**2).mean())


losses = []
for _ in range(400):
    words = rng.standard_normal((BATCH, ROWS, WIDTH)).astype(np.float32)
    target = np.roll(words, 1, axis=1)
    target[:, 0] = 0
    losses.append(step(words + places, target, rate=1.0))
first, last = np.mean(losses[:20]), np.mean(losses[-20:])
print(f"loss fell to less than half: {'yes' if last < first / 2 else 'no'}")
