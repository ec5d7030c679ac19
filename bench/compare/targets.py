"""What is to be reached on a Hopper GPU, (must, aim) of each suite, as judge.py reads them: for ourselves, and published nowhere. Pure.
What CPUs are to reach is in cpu/targets.py."""

from __future__ import annotations

from .work import SHARED_KB

Bounds = tuple[float | None, float | None]
NONE: Bounds = (None, None)
LESS_SHARED = 0.97  # of what is to be reached in tiles of up to SHARED_KB[0], in smaller ones


def of_less_shared(bounds: Bounds, shared_kb: int | None, is_time: bool = False) -> Bounds:
    must, aim = bounds
    if must is None or shared_kb in (None, SHARED_KB[0]):
        return bounds
    return must / LESS_SHARED if is_time else must * LESS_SHARED, aim


def of_shape(table: dict, shape: tuple, shared_kb: int | None) -> Bounds:
    """Of a shape that has as many kv heads as heads."""
    _, _, n, _, dim, causal, *grouped = shape
    return NONE if grouped else of_less_shared(table.get((dim, causal), {}).get(n, NONE), shared_kb)


# Speed of the Hopper kernels over cuDNN's, by head dimension, mask and sequence length.
FORWARD_CUDNN = {
    (64, False): {512: (1.05, 1.15), 1024: (1.12, 1.18), 4096: (1.24, 1.28), 16384: (1.30, 1.34)},
    (64, True): {512: (1.02, 1.12), 1024: (1.10, 1.18), 4096: (1.18, 1.24), 16384: (1.29, 1.33)},
    (128, False): {512: (1.05, 1.10), 1024: (1.07, 1.12), 4096: (1.15, 1.19), 16384: (1.18, 1.22)},
    (128, True): {512: (1.05, 1.15), 1024: (1.16, 1.22), 4096: (1.23, 1.28), 16384: (1.25, 1.30)},
    (256, False): {512: (1.00, 1.05), 1024: (1.05, 1.10), 4096: (1.08, 1.12), 16384: (1.10, 1.15)},
    (256, True): {512: (1.00, 1.05), 1024: (1.03, 1.12), 4096: (1.12, 1.20), 16384: (1.17, 1.25)},
}
# Over FlashAttention-3's, whatever the mask and length.
FORWARD_FA3 = {64: NONE, 128: (1.06, 1.10), 256: (1.03, 1.08)}
# The e4m3 forward's over cuDNN's and over FlashAttention-3's: where both are measured the better one counts, and either has the same
# bounds.
FORWARD_E4M3 = {
    (64, False): {512: (1.15, 1.35), 1024: (1.15, 1.35), 4096: (1.15, 1.35), 16384: (1.15, 1.35)},
    (64, True): {512: (1.15, 1.35), 1024: (1.15, 1.35), 4096: (1.15, 1.35), 16384: (1.15, 1.35)},
    (128, False): {512: (1.12, 1.30), 1024: (1.00, 1.15), 4096: (1.00, 1.10), 16384: (1.02, 1.10)},
    (128, True): {512: (1.20, 1.30), 1024: (1.07, 1.15), 4096: (1.00, 1.10), 16384: (1.04, 1.10)},
    (256, False): {512: (1.00, 1.20), 1024: (1.00, 1.20), 4096: (1.08, 1.20), 16384: (1.08, 1.20)},
    (256, True): {512: (1.00, 1.20), 1024: (1.00, 1.20), 4096: (1.08, 1.20), 16384: (1.08, 1.20)},
}
# The same under native precision, which permits P in e4m3.
FORWARD_E4M3_NATIVE = FORWARD_E4M3 | {
    (128, False): {512: (1.25, 1.30), 1024: (1.10, 1.15), 4096: (1.06, 1.15), 16384: (1.09, 1.15)},
    (128, True): {512: (1.35, 1.40), 1024: (1.18, 1.20), 4096: (1.09, 1.15), 16384: (1.11, 1.15)},
}
FORWARD_OTHER_CUDNN = {(96, None): (1.0, 1.1), (192, None): (0.95, 1.05), (192, 128): (0.95, 1.05)}  # by dim_qk and dim_v
WIDE: Bounds = (4.0, 6.0)  # heads of 512 over EFFICIENT's
FORWARD_F32 = {64: (1.0, 1.2), 128: (0.8, 0.95)}  # over EFFICIENT's

# The backward's over cuDNN's. At 64 columns 0.97 and 1.05 times what FlashAttention-3 reaches of cuDNN's.
BACKWARD_CUDNN = {
    (64, False): {512: (None, None), 1024: (1.11, 1.20), 4096: (1.13, 1.23), 16384: (1.13, 1.23)},
    (64, True): {512: (None, None), 1024: (1.15, 1.25), 4096: (1.20, 1.30), 16384: (1.20, 1.30)},
    (128, False): {512: (None, None), 1024: (1.04, 1.15), 4096: (1.07, 1.15), 16384: (1.09, 1.17)},
    (128, True): {512: (None, None), 1024: (1.07, 1.19), 4096: (1.10, 1.20), 16384: (1.10, 1.19)},
    (256, False): {512: (None, None), 1024: (None, None), 4096: (1.0, 1.25), 16384: (1.0, 1.25)},
    (256, True): {512: (None, None), 1024: (None, None), 4096: (1.0, 1.15), 16384: (1.0, 1.15)},
}
BACKWARD_F16: Bounds = (1.0, 1.1)   # over cuDNN's
BACKWARD_F32: Bounds = (0.7, 1.0)   # over EFFICIENT's
DETERMINISTIC = {64: NONE, 128: (1.30, 1.15), 256: (1.5, 1.15)}  # time over that of the free backward

# Kernels by mma.sync: speed over FLASH's, on an H200.
FORWARD_MMA = {
    (64, False): {512: (0.97, 1.05), 1024: (1.00, 1.20), 4096: (1.04, 1.20), 16384: (1.05, 1.20)},
    (64, True): {512: (0.97, 1.05), 1024: (1.00, 1.20), 4096: (1.05, 1.20), 16384: (1.10, 1.20)},
    (128, False): {512: (0.97, 1.05), 1024: (1.00, 1.25), 4096: (1.06, 1.25), 16384: (1.08, 1.25)},
    (128, True): {512: (0.97, 1.05), 1024: (1.02, 1.25), 4096: (1.08, 1.25), 16384: (1.12, 1.25)},
    (256, False): {512: (0.97, 1.05), 1024: (1.00, 1.25), 4096: (1.04, 1.25), 16384: (1.06, 1.25)},
    (256, True): {512: (0.97, 1.05), 1024: (1.00, 1.25), 4096: (1.08, 1.25), 16384: (1.12, 1.25)},
}
BACKWARD_MMA = {
    (64, False): {512: (0.97, 1.05), 1024: (1.03, 1.10), 4096: (1.05, 1.10), 16384: (1.06, 1.10)},
    (64, True): {512: (0.97, 1.05), 1024: (1.00, 1.15), 4096: (1.06, 1.15), 16384: (1.10, 1.15)},
    (128, False): {512: (0.97, 1.05), 1024: (1.05, 1.10), 4096: (1.07, 1.10), 16384: (1.08, 1.10)},
    (128, True): {512: (0.97, 1.05), 1024: (1.00, 1.15), 4096: (1.05, 1.15), 16384: (1.08, 1.15)},
    (256, False): {512: (0.97, 1.05), 1024: (1.00, 1.10), 4096: (1.00, 1.10), 16384: (1.00, 1.10)},
    (256, True): {512: (0.97, 1.05), 1024: (1.00, 1.10), 4096: (1.00, 1.10), 16384: (1.00, 1.10)},
}
# And over their own bf16: the time of decoding, the speed of a prefill.
DECODE_MMA = {"q8_0": (0.62, 0.55), "int8": (0.57, 0.53), "q4_0": (0.42, 0.33), "q5_0": (0.55, 0.40), "u4 with shifts": (0.60, 0.40),
              "MXFP8": (0.70, 0.60), "MXFP4": (0.60, 0.40)}
PREFILL_MMA = {"int8": (1.2, 1.3), "q8_0": NONE, "q4_0": NONE}

# One query row: speed over cuDNN's, or microseconds by keys.
DECODE: Bounds = (1.0, 1.05)
DECODE_FEW_HEADS: Bounds = (1.0, 1.25)
DECODE_MICROSECONDS = {4096: (12.5, 9.5), 16384: (24, 20)}
ENQUEUE_MICROSECONDS: Bounds = (8, 4.5)

# Latent attention, by query heads: speed over FlashAttention-3's; of short calls microseconds, by heads and keys.
LATENT = {16: (1.06, 1.15), 64: (1.06, 1.15), 128: (1.16, 1.25)}
# The time over a cache of 8 bits beside that over bf16, where memory limits both.
LATENT_8_BITS: Bounds = (0.65, 0.55)
# The time of keys that lists name beside that of as many in their order.
LATENT_LISTED: dict[str, Bounds] = {"listed": (1.2, 1.05), "listed, 8 bits": (1.2, 0.7)}
LATENT_MICROSECONDS = {(16, 4096): (15, 11), (128, 8192): (19.5, 15)}

# Small shapes in graphs, over PyTorch's kernels and over cuDNN's.
SMALL: Bounds = (1.0, 1.3)
SMALL_CUDNN: Bounds = (1.0, 1.2)

# Beside this library itself: speed,
ODD: Bounds = (0.6, 0.8)
PACKED: Bounds = (0.88, 0.95)
GROUPED: Bounds = (1.0, 1.03)
WINDOW: Bounds = (0.75, 0.85)
F16: Bounds = (0.95, 0.98)
RAGGED: Bounds = (0.85, 0.95)
PAGED = {16: (0.85, 0.95), 64: (0.95, 0.98)}    # by page size
CHUNKED = {16: (0.75, 0.9), 64: (0.85, 0.95)}
# or time.
OPTION: Bounds = (1.35, 1.15)
BIAS: Bounds = (1.4, 1.25)
LISTS: Bounds = (0.74, 0.87)
RANGES: Bounds = (0.87, 0.95)
SOFTCAP = {64: (2.0, 1.5), 128: (1.4, 1.2), 256: (1.15, 1.05)}  # by head dimension
SPECULATIVE: Bounds = (1.15, 1.05)
LOW: Bounds = (1.15, 1.0)
QUANTISED = {"int8": (0.65, 0.55), "e4m3": (0.65, 0.55), "q8_0": (0.65, 0.57), "q4_0": (0.45, 0.35), "q4_1": (1.0, 0.51),
             "q5_0": (1.0, 0.54),
             "q5_1": (1.0, 0.58), "MXFP8": (1.0, 0.72), "MXFP4": (1.0, 0.47), "NVFP4": (1.0, 0.48), "u4 with shifts": (1.0, 0.51)}
# and speed again.
PREFILL_8BIT: Bounds = (0.9, 1.0)
# of blocks, where native precision permits to round them
PREFILL_BLOCKS: Bounds = (0.8, 0.9)
