"""The same as minimal.c from Python: causal attention, two heads over four positions.

Run: FLASHATTN_LIBRARY=<path of libflashattn.so.0, unless it is installed> PYTHONPATH=bindings/python python3 examples/minimal.py
"""

import flashattn
import numpy as np

ROWS, HEADS, DIM = 4, 2, 8
i = np.arange(ROWS * HEADS * DIM, dtype=np.float32).reshape(1, ROWS, HEADS, DIM)

o = flashattn.attention(i % 7 / 4, i % 5 / 4, i / 8, causal="top-left")

for row in range(ROWS):
    for head in range(HEADS):
        print(f"row {row} head {head}: {o[0, row, head, 0]:.4f} {o[0, row, head, 1]:.4f}")
