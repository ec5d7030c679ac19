"""all-MiniLM-L6-v2, a BERT of six layers, in NumPy on a packed batch: the tokens of all sentences lie one after another.

Everything but attention works token by token, so padding is pure waste there; attention is handed in as a function.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

LAYERS, HEADS, WIDTH, MAX_TOKENS = 6, 12, 384, 256
NORM_EPS = 1e-12

# q, k, v as (tokens, heads, dim) and the layer's number, to (tokens, heads, dim)
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]


class MiniLM:
    def __init__(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # The file asks for 128 tokens, always; the model takes up to 256, and padding is what we do without.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)

    def tokenize(self, sentences: list[str]) -> list[np.ndarray]:
        """Token ids of each sentence, its [CLS] and [SEP] included."""
        return [np.array(encoding.ids) for encoding in self.tokenizer.encode_batch(sentences)]

    def hidden(self, ids: np.ndarray, positions: np.ndarray, attention: Attention) -> np.ndarray:
        """The last layer's output (tokens, 384) for ids (tokens,) at their positions within the sentence."""
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][positions] + w["embeddings.token_type_embeddings.weight"][0]
        x = self._norm("embeddings.LayerNorm", x)
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                self._dense(f"{at}.attention.self.{name}", x).reshape(len(x), HEADS, -1) for name in ("query", "key", "value")
            )
            mixed = attention(q, k, v, layer).reshape(len(x), WIDTH)
            x = self._norm(f"{at}.attention.output.LayerNorm", x + self._dense(f"{at}.attention.output.dense", mixed))
            inner = gelu(self._dense(f"{at}.intermediate.dense", x))
            x = self._norm(f"{at}.output.LayerNorm", x + self._dense(f"{at}.output.dense", inner))
        return x

    def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + NORM_EPS)
        return centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def sentence_vector(hidden: np.ndarray) -> np.ndarray:
    """The mean over a sentence's tokens, of length one."""
    mean = hidden.mean(axis=0)
    return mean / np.linalg.norm(mean)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (0.5 + 0.5 * erf(x / np.float32(np.sqrt(2))))


def erf(x: np.ndarray) -> np.ndarray:
    """Error function, |error| <= 1.5e-7: formula 7.1.26 of Abramowitz and Stegun, since NumPy has none."""
    z = np.abs(x)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.copysign(1 - series * np.exp(-z * z), x)
