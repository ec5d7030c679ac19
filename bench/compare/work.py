"""How much there is to do: suites by name, pairs of row and key, rotating sets. Pure."""

from __future__ import annotations

import math

# name: what a row of it compares
SUITES = {
    "forward": "f16 and bf16 forward, 16 k tokens, against cuDNN",
    "forward-mma": "bf16 forward by mma.sync, 16 k tokens, against FLASH, heads of 512 against EFFICIENT",
    "forward-e4m3": "e4m3 forward, 16 k tokens, o bf16, against cuDNN (whose o is e4m3) and FlashAttention-3",
    "forward-e4m3-native": "e4m3 forward under native precision, which permits P in e4m3, as cuDNN and FlashAttention-3 have it",
    "wide": "bf16 forward with heads of 512, 16 k tokens, against EFFICIENT",
    "f32": "f32 forward against EFFICIENT",
    "odd": "f32 with odd head dimensions against this library's rate at the next multiple of 32",
    "decode": "one query row, against cuDNN, both in CUDA graphs over rotating K and V",
    "decode-mma": "decoding from K and V of 8 and fewer bits by mma.sync, under native precision, against this library's bf16 decoding, "
                  "and that against FLASH",
    "decode-latency": "one sequence, K and V from memory, in a CUDA graph",
    "speculative": "decoding 2 to 8 rows against this library's time for one",
    "low": "9 to 127 rows against this library's time for 128",
    "ragged": "decoding 64 sequences of unlike lengths against this library's rate for alike ones",
    "paged": "decoding over shuffled pages against this library's contiguous decoding",
    "quantised": "decoding from K and V of 8 bits, and in blocks, against this library's bf16 decoding",
    "latent": "latent attention, one kv head of 576 dims of which 512 are v, over pages of 64, against FlashAttention-3, both in CUDA graphs, "
              "and a cache of 8 bits against the library's own of bf16",
    "prefill-8bit": "4 k rows over K and V of 8 bits, and in blocks, against this library's bf16 rate",
    "prefill-mma": "4 k rows over K and V of 8 and fewer bits by mma.sync, under native precision, against this library's bf16 rate, "
                   "and that against FLASH",
    "chunked": "a chunk of prefill over a shuffled paged cache against this library's contiguous rate",
    "small": "small shapes in CUDA graphs, against FLASH (f16), EFFICIENT (f32) and cuDNN (bf16)",
    "varlen": "packed sequences, grouped heads and windows against this library's dense and causal rates",
    "options": "masks, biases, softcaps and f16 against this library's plain kernel at equal work",
    "lists": "block lists, and key ranges that say what causal says, against this library's rate without them",
    "backward": "bf16 backward, 16 k tokens, against cuDNN and FLASH",
    "backward-f32": "f32 backward against EFFICIENT",
    "backward-mma": "bf16 backward by mma.sync, 16 k tokens, against FLASH, heads of 512 against EFFICIENT",
    "backward-wide": "bf16 backward with heads of 512, 16 k tokens, against EFFICIENT",
    "backward-same": "the deterministic backward against this library's free one",
    "backward-varlen": "backward of packed sequences and grouped heads against this library's causal rates",
    "enqueue": "CPU time of one call, less what ctypes costs",
}

# Suites of kernels by mma.sync run once with no more shared memory than a block has on sm_80, and once with that of sm_86, 89 and 120 (KB).
# A Hopper then has these kernels alone, in tiles that fit.
SHARED_KB = (163, 99)
BY_SHARED = {suite for suite in SUITES if suite.endswith("-mma")}

L2_ESCAPE_BYTES = 300e6  # K and V sets that rotate add up to this, six times the largest L2 cache (H200: 60 MB)
GRAPH_CALLS = 32         # at least, in a graph: its launch is then lost among them


def parse_suites(text: str, known: dict[str, str] = SUITES) -> list[str]:
    """'decode,f32' in the order of `known`; 'all' is every one."""
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(wanted - set(known) - {"all"})
    if unknown or not wanted:
        raise ValueError(f"suite {', '.join(unknown) or repr(text)} is not known; there are: all, {', '.join(known)}")
    return [name for name in known if name in wanted or "all" in wanted]


def jobs_of(suites: list[str]) -> list[str]:
    """What workers do: suites, then those of BY_SHARED for each size, as in 'forward-mma, 99 KB'. A worker starts anew for each size."""
    return [*(suite for suite in suites if suite not in BY_SHARED),
            *(f"{suite}, {kb} KB" for kb in SHARED_KB for suite in suites if suite in BY_SHARED)]


def parse_job(job: str) -> tuple[str, int | None]:
    """The suite, and the KB of shared memory that a block may have; None: all that there is."""
    suite, _, kb = job.partition(", ")
    return suite, int(kb.split()[0]) if kb else None


def kept_pairs(rows: int, keys: int, causal: bool = False, left: int | None = None) -> int:
    """Pairs of row and key that masks leave of one sequence; row i stands on key i + keys − rows and sees `left` keys before it."""
    if not causal:
        return rows * keys
    most = keys if left is None else left + 1
    return sum(min(max(i + keys - rows + 1, 0), most) for i in range(rows))


def flops_of(pairs: int, dim: int, dim_v: int, backward: bool = False) -> float:
    """Two for each product and sum: of q·k and p·v; backward of q·k, dO·v and what makes dq, dk and dv: five products for two."""
    return 2.0 * pairs * (3 * dim + 2 * dim_v if backward else dim + dim_v)


def sets_for(bytes_of_one: float) -> int:
    return max(1, math.ceil(L2_ESCAPE_BYTES / bytes_of_one))


def count_text(n: int) -> str:
    return f"{n // 1024}k" if n % 1024 == 0 and n >= 1024 else str(n)
