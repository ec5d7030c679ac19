"""One attention call as torch tensors: what this library, its rivals and the fp64 truth all read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import records
from .work import flops_of, kept_pairs

BLOCK = 128  # rows and keys of a block of lists


@dataclass
class Problem:
    q: torch.Tensor                       # [batch, rows, heads, dim], or packed [total, heads, dim]
    k: torch.Tensor                       # [batch, keys, heads_kv, dim], packed, or pages [pages, page_size, heads_kv, dim]
    v: torch.Tensor
    causal: bool = False                  # the last row stands on the last key
    left: int | None = None               # with causal: keys that a row sees before its own
    slopes: torch.Tensor | None = None    # ALiBi, [heads]
    sinks: torch.Tensor | None = None     # [heads]
    mask: torch.Tensor | None = None      # bool [rows, keys], of all sequences and heads
    bias: torch.Tensor | None = None      # [heads, rows, keys], of all sequences; an expanded one is repeated by stride 0
    softcap: float = 0.0
    used: torch.Tensor | None = None      # int32 [batch]: keys in use
    table: torch.Tensor | None = None     # int32 [batch, pages of a sequence]
    slots: torch.Tensor | None = None     # int32 [batch, 1, entries]: the slots of the pages, [pages, page_size, …], that a row has as keys
    kept: torch.Tensor | None = None      # bool [heads, blocks of rows, blocks of keys]: the blocks that lists name, of all sequences; rows are as many as keys
    ranges: torch.Tensor | None = None    # int32 [rows, 2]: the first key of a row and its last + 1, of all sequences and heads
    offsets: torch.Tensor | None = None   # int32 [batch + 1]: packed rows and keys
    k_descale: torch.Tensor | None = None  # [heads_kv]
    v_descale: torch.Tensor | None = None
    v_in_k: bool = False                  # v is a view of k's first dims, and said to be
    records: bool = False                 # k is bytes of tokens, as records.py has them, and v their first dims
    blocks: str | None = None             # k and v are bytes of blocks of this type, as blocks.py has them
    scheme: str | None = None             # k and v are bytes, with factors of this kind, as schemes.py has them, for each token
    k_shift: torch.Tensor | None = None
    v_shift: torch.Tensor | None = None
    native: bool = False                  # q, block types and values times factors may be rounded to bf16, P to v's 8 bits
    dout: torch.Tensor | None = None      # of a backward: the gradient of o, in its shape and q's type

    @property
    def batch(self) -> int:
        return self.q.shape[0] if self.offsets is None else len(self.offsets) - 1

    @property
    def heads(self) -> int:
        return self.q.shape[-2]

    @property
    def dim_v(self) -> int:
        if self.records:
            return records.OWN
        return self.q.shape[-1] if self.blocks or self.scheme else self.v.shape[-1]

    @property
    def most_keys(self) -> int:
        """Keys that a sequence has room for."""
        if self.offsets is not None:
            return max(self.lengths())
        if self.slots is not None:
            return self.slots.shape[-1]
        return self.k.shape[1] if self.table is None else self.k.shape[1] * self.table.shape[1]

    def lengths(self) -> list[int]:
        """Keys of each sequence."""
        if self.offsets is not None:
            return self.offsets.diff().tolist()
        return self.used.tolist() if self.used is not None else [self.most_keys] * self.batch

    def flops(self) -> float:
        """Of the mathematics, over the pairs that masks of a known form leave; of a backward where there is a dout."""
        lengths = self.lengths()
        rows = lengths if self.offsets is not None else [self.q.shape[1]] * self.batch
        if self.kept is not None:
            pairs = self.batch * int(self.kept.sum()) * BLOCK**2 / self.heads
            if self.causal:  # of none above the diagonal; of those on it a half
                pairs -= self.batch * int(self.kept.diagonal(dim1=1, dim2=2).sum()) * (BLOCK * (BLOCK - 1) // 2) / self.heads
        elif self.ranges is not None:
            pairs = self.batch * int((self.ranges[:, 1] - self.ranges[:, 0]).sum())
        else:
            pairs = sum(kept_pairs(n, m, self.causal, self.left) for n, m in zip(rows, lengths))
        return flops_of(pairs * self.heads, self.q.shape[-1], self.dim_v, self.dout is not None)

    def cache_bytes(self) -> float:
        """Of K and V, each once."""
        row = self.k.shape[-2] * self.k.shape[-1] * self.k.element_size()
        if not self.v_in_k:
            row += self.v.shape[-2] * self.v.shape[-1] * self.v.element_size()
        if self.scheme:
            factors = (self.k_descale, self.v_descale, self.k_shift, self.v_shift)
            row += sum(x.shape[-2] * x.shape[-1] * x.element_size() for x in factors if x is not None)
        return float(sum(self.lengths())) * row

    def of_sequence(self, b: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What of tensors like q, or like k that is not paged, belongs to one sequence: [row or key, head, dim]."""
        if self.offsets is None:
            return tuple(x[b] for x in tensors)
        begin, end = self.offsets[b].item(), self.offsets[b + 1].item()
        return tuple(x[begin:end] for x in tensors)

    def sequence(self, b: int, o: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k, v and o of one sequence, [row or key, head, dim]."""
        if self.offsets is not None:
            return self.of_sequence(b, self.q, self.k, self.v, o)
        keys = self.lengths()[b]
        k, v = self.k, self.v
        if self.slots is not None:
            slots = self.slots[b, 0].long()
            k, v = (x.flatten(0, 1).view(torch.uint8)[slots].view(x.dtype) for x in (k, v))
        elif self.table is None:
            k, v = k[b], v[b]
        else:
            pages = self.table[b].long()
            k, v = (x.view(torch.uint8)[pages].view(x.dtype).flatten(0, 1) for x in (k, v))  # not every type can be indexed
        return self.q[b], k[:keys], v[:keys], o[b]
