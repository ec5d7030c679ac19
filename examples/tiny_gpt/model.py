"""A character-level transformer in NumPy, forward and backward written out. Attention is handed in.

Every layer is a pair of functions: the forward returns its result and what its backward needs; the backward takes the gradient of
the result and returns those of its inputs. All arrays are float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EPSILON = 1e-5  # below the variance of a normalised row


@dataclass
class Shape:
    vocabulary: int
    context: int = 64  # characters that a row of a batch holds
    layers: int = 3
    heads: int = 4
    width: int = 64


def initial(shape: Shape, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights by name. What adds to the residual stream starts smaller, the more layers there are."""
    width, spread = shape.width, 0.02

    def normal(*sizes, size=spread):
        return (size * rng.standard_normal(sizes)).astype(np.float32)

    weights = {"token": normal(shape.vocabulary, width, size=0.1), "position": normal(shape.context, width, size=0.1)}
    for n in range(shape.layers):
        added = spread / (2 * shape.layers) ** 0.5
        weights |= {
            f"{n}.norm1": np.ones(width, np.float32),
            f"{n}.qkv": normal(width, 3 * width),
            f"{n}.projection": normal(width, width, size=added),
            f"{n}.norm2": np.ones(width, np.float32),
            f"{n}.up": normal(width, 4 * width),
            f"{n}.down": normal(4 * width, width, size=added),
        }
    weights["norm"] = np.ones(width, np.float32)
    return weights


class Model:
    """attention: causal, on (batch, rows, heads, dim). attention(q, k, v) gives out, saved; attention.backward(dout, q, k, v, saved)
    gives dq, dk, dv. positions: where the rows that this model sees stand in their context; None: at its beginning."""

    def __init__(self, shape: Shape, weights: dict[str, np.ndarray], attention, positions: np.ndarray | None = None) -> None:
        self.shape, self.weights, self.attention = shape, weights, attention
        self.positions = np.arange(shape.context) if positions is None else positions

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        return self._forward(tokens)[0]

    def loss_and_gradients(self, tokens: np.ndarray, targets: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """Mean cross entropy of the next character, in nats, and its gradient for every weight."""
        logits, saved = self._forward(tokens)
        loss, dlogits = cross_entropy(logits, targets)
        return loss, self._backward(tokens, dlogits, saved)

    def _forward(self, tokens):
        w = self.weights
        x = w["token"][tokens] + w["position"][self.positions[: tokens.shape[1]]]
        blocks = []
        for n in range(self.shape.layers):
            x, saved = self._block(x, n)
            blocks.append(saved)
        y, norm = layer_norm(x, w["norm"])
        return y @ w["token"].T, (blocks, y, norm)  # the table of characters serves both ends

    def _backward(self, tokens, dlogits, saved):
        blocks, y, norm = saved
        gradients = {}
        dtable = rows_of(dlogits).T @ rows_of(y)
        dx, gradients["norm"] = layer_norm_backward(dlogits @ self.weights["token"], self.weights["norm"], norm)
        for n in reversed(range(self.shape.layers)):
            dx = self._block_backward(dx, n, blocks[n], gradients)
        np.add.at(dtable, tokens, dx)
        gradients["token"] = dtable
        gradients["position"] = np.zeros_like(self.weights["position"])
        gradients["position"][self.positions[: tokens.shape[1]]] = dx.sum(0)
        return gradients

    def _block(self, x, n):
        w = self.weights
        batch, rows, width = x.shape
        a, norm1 = layer_norm(x, w[f"{n}.norm1"])
        qkv = (a @ w[f"{n}.qkv"]).reshape(batch, rows, 3, self.shape.heads, -1)
        q, k, v = (qkv[:, :, i] for i in range(3))  # strided: the library reads them where they lie
        out, attended = self.attention(q, k, v)
        out = out.reshape(batch, rows, width)
        x = x + out @ w[f"{n}.projection"]
        b, norm2 = layer_norm(x, w[f"{n}.norm2"])
        up = b @ w[f"{n}.up"]
        active, slope = gelu(up)
        return x + active @ w[f"{n}.down"], (a, norm1, (q, k, v, attended), out, b, norm2, active, slope)

    def _block_backward(self, dx, n, saved, gradients):
        w = self.weights
        a, norm1, (q, k, v, attended), out, b, norm2, active, slope = saved
        gradients[f"{n}.down"] = rows_of(active).T @ rows_of(dx)
        dup = (dx @ w[f"{n}.down"].T) * slope
        gradients[f"{n}.up"] = rows_of(b).T @ rows_of(dup)
        db, gradients[f"{n}.norm2"] = layer_norm_backward(dup @ w[f"{n}.up"].T, w[f"{n}.norm2"], norm2)
        dx = dx + db
        gradients[f"{n}.projection"] = rows_of(out).T @ rows_of(dx)
        dout = (dx @ w[f"{n}.projection"].T).reshape(q.shape)
        dqkv = np.stack(self.attention.backward(dout, q, k, v, attended), axis=2).reshape(*dx.shape[:2], -1)
        gradients[f"{n}.qkv"] = rows_of(a).T @ rows_of(dqkv)
        da, gradients[f"{n}.norm1"] = layer_norm_backward(dqkv @ w[f"{n}.qkv"].T, w[f"{n}.norm1"], norm1)
        return dx + da


def rows_of(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def layer_norm(x, gain):
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(EPSILON))
    normal = centred * scale
    return normal * gain, (normal, scale)


def layer_norm_backward(dy, gain, saved):
    normal, scale = saved
    dn = dy * gain
    dx = scale * (dn - dn.mean(-1, keepdims=True) - normal * (dn * normal).mean(-1, keepdims=True))
    return dx, rows_of(dy * normal).sum(0)


def gelu(x):
    """The activation by its tanh formula, and its slope."""
    c, cubic = np.float32((2 / np.pi) ** 0.5), np.float32(0.044715)
    t = np.tanh(c * (x + cubic * x * x * x))
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * cubic * x * x)
    return 0.5 * x * (1 + t), slope


def cross_entropy(logits, targets):
    p = logits - logits.max(-1, keepdims=True)
    p = np.exp(p)
    p /= p.sum(-1, keepdims=True)
    chosen = np.take_along_axis(p, targets[..., None], -1)
    loss = float(-np.log(chosen.astype(np.float64)).mean())
    np.put_along_axis(p, targets[..., None], chosen - 1, -1)
    return loss, p / np.float32(targets.size)


class Adam:
    """Steps of Adam with a warm-up and a cosine decay. The floor under a gradient's size is high, since below it Adam would blow
    what is only rounding up to whole steps."""

    FLOOR = 1e-5
    LONGEST = 1.0  # norm of a gradient; a longer one is cut

    def __init__(self, weights: dict[str, np.ndarray], steps: int, rate: float = 3e-3) -> None:
        self.weights, self.steps, self.rate, self.step = weights, steps, rate, 0
        self.mean = {name: np.zeros_like(w) for name, w in weights.items()}
        self.square = {name: np.zeros_like(w) for name, w in weights.items()}

    def update(self, gradients: dict[str, np.ndarray]) -> None:
        norm = sum(float(np.vdot(g, g)) for g in gradients.values()) ** 0.5
        clip = np.float32(min(1.0, self.LONGEST / norm))
        self.step += 1
        warm = min(1.0, self.step / 20)
        rate = self.rate * warm * 0.5 * (1 + np.cos(np.pi * self.step / (self.steps + 1)))
        for name, g in gradients.items():
            m, s = self.mean[name], self.square[name]
            g = g * clip
            m += np.float32(0.1) * (g - m)
            s += np.float32(0.01) * (g * g - s)
            m_hat, s_hat = m / np.float32(1 - 0.9**self.step), s / np.float32(1 - 0.99**self.step)
            self.weights[name] -= np.float32(rate) * m_hat / (np.sqrt(s_hat) + np.float32(self.FLOOR))
