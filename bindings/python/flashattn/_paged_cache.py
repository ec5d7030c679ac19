"""A cache of Hugging Face transformers in pages of the library's types. Each layer has a pool of pages, which its table gives to sequences;
append_kv quantises new tokens into them, and attention reads them there."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import torch

from ._arrays import block_dtype, dims_in
from ._dispatch import untraced
from .torch import append_kv
from .torch import attention as library_attention

_caches: Any = importlib.import_module("transformers.cache_utils")
_LAYER: Any = _caches.CacheLayerMixin
_CACHE: Any = _caches.Cache

_BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_FLOATS = ("float32", "float16", "bfloat16")
# Types whose scales lie beside the values: dims that share one (0: all of a head), and its type.
_SCALED = {
    **dict.fromkeys(("int8", "float8_e4m3fn", "float8_e5m2", "i4"), (0, "bfloat16")),
    **{"u4": (0, "bfloat16"), "e2m1": (32, "float8_e8m0fnu")},
}
_SHIFTED = ("u4",)
_GROWTH = 32  # a pool that is full gets one page more for so many that it has


class _Type(NamedTuple):
    """How k or v is stored."""

    name: str

    def check(self, tensor: str, dim: int) -> None:
        multiple = 32 if self.name in (*_BLOCKS, "e2m1") else 2 if self.name in ("i4", "u4") else 1
        if dim % multiple:
            raise ValueError(f"{tensor} has {dim} dims in a head: expected a multiple of {multiple}, as the cache's dtype is {self.name!r}")

    def pools(self, tensor: str, shape: tuple[int, ...], dim: int, device: torch.device) -> dict[str, torch.Tensor]:
        """Tensors of (pages, page_size, heads), by the keywords of `attention`."""
        options: dict[str, Any] = {"device": device}
        if self.is_bytes:
            layout = block_dtype(self.name)
            found = {tensor: torch.empty(*shape, dim // dims_in(layout) * layout.itemsize, dtype=torch.uint8, **options)}
        else:
            found = {tensor: torch.empty(*shape, dim, dtype=getattr(torch, self.name), **options)}
        if self.name in _SCALED:
            block, factors = _SCALED[self.name]
            lead = (*shape, dim // block) if block else shape
            for kind in ("descale", "shift") if self.name in _SHIFTED else ("descale",):
                found[f"{tensor}_{kind}"] = torch.empty(lead, dtype=getattr(torch, factors), **options)
        return found

    @property
    def is_bytes(self) -> bool:
        return self.name in (*_BLOCKS, "e2m1", "i4", "u4")

    def keywords(self, tensor: str) -> dict[str, Any]:
        """Of `attention` and append_kv, beside the pools."""
        found: dict[str, Any] = {f"{tensor}_dtype": self.name} if self.is_bytes else {}
        block = _SCALED.get(self.name, (0, ""))[0]
        return {**found, f"{tensor}_descale_block": (1, block)} if block else found


TYPES = (*_BLOCKS, *_SCALED, *_FLOATS)


class Stored:
    """Keys, or values, that a layer of a PagedCache holds, in place of a tensor of (batch, heads, keys, dim)."""

    def __init__(self, layer: PagedLayer, heads: int, dim: int, like: torch.Tensor) -> None:
        self.layer, self.dtype, self.device = layer, like.dtype, like.device
        self.shape = torch.Size((layer.batch_size, heads, layer.stored, dim))
        self.ndim, self.requires_grad = 4, False
        self._length = layer.get_seq_length()

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def to(self, device: Any) -> Stored:
        if torch.device(device) != self.device:
            raise _not_ours(f"a copy on {device}")
        return self

    def attention(self, query: torch.Tensor, values: Stored, **options: Any) -> torch.Tensor:
        """Of query (batch, rows, heads, dim) over these keys and values; options: of flashattn.torch.attention."""
        layer = self.layer
        if values.layer is not layer or self._length != layer.get_seq_length():
            now = layer.get_seq_length()
            raise ValueError(f"keys are of a PagedCache that had {self._length} tokens, and has {now}: expected none between")
        return layer.attention(query, **options)

    def __getitem__(self, _: Any) -> Any:
        raise _not_ours("a part")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _not_ours(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _not_ours(getattr(func, "__name__", str(func)))


def _not_ours(what: str) -> NotImplementedError:
    return NotImplementedError(
        f'{what} of keys in a PagedCache: expected attn_implementation="libfa", which alone reads them, and a model that hands them on'
    )


class PagedLayer(_LAYER):  # type: ignore[misc]  # a class of transformers, which has no types here
    """One layer's keys and values. window: keys that a row sees at most, itself included; earlier pages are given back."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, types: tuple[_Type, _Type], page_size: int, window: int | None, max_length: int | None) -> None:
        super().__init__()
        self.is_initialized = False
        self.is_sliding = window is not None
        self.sliding_window = window
        self._types, self._page, self._most = types, page_size, max_length
        self._pools: dict[str, Any] = {}  # tensors
        self.reset()

    def reset(self) -> None:
        """Forgets all tokens, and keeps the pages."""
        self._begin = self._length = 0  # tokens that were given back, and tokens that were seen
        self._table = np.zeros((0, 0), np.int32)
        self._device_table: torch.Tensor | None = None
        self._used: torch.Tensor | None = None

    @property
    def stored(self) -> int:
        """Tokens of a sequence in the pages."""
        return self._length - self._begin

    @property
    def batch_size(self) -> int:
        return len(self._table)

    max_batch_size = batch_size

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self._pools.values())

    def get_seq_length(self, *_: Any) -> int:
        return self._length

    def get_max_length(self) -> int:
        return -1 if self._most is None else self._most

    get_max_cache_shape = get_max_length  # as transformers 4 calls it

    def _first_kept(self, length: int) -> int:
        """Of a layer that has seen so many tokens the first that the next one may see, or an earlier one with which a page begins."""
        needed = 0 if self.sliding_window is None else max(length - self.sliding_window + 1, 0)
        return max(needed // self._page * self._page, self._begin)

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        """Keys of the next call, and the position of the first. query: its rows, or their positions."""
        rows = query if isinstance(query, int) else query.shape[0]
        begin = self._first_kept(self._length)
        return self._length + rows - begin, begin

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        if value_states is None:
            raise NotImplementedError("a PagedCache has its memory when it gets its first tokens: expected no early initialization")
        sizes = {}
        for tensor, kind, x in zip("kv", self._types, (key_states, value_states)):
            if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
                raise TypeError(f"{tensor} has dtype {x.dtype}: expected float32, float16 or bfloat16 for a PagedCache")
            kind.check(tensor, x.shape[-1])
            sizes[tensor] = kind.pools(tensor, (0, self._page, x.shape[1]), x.shape[-1], x.device)
        self._pools = {name: x for pools in sizes.values() for name, x in pools.items()}
        keywords = [kind.keywords(tensor) for tensor, kind in zip("kv", self._types)]
        self._keywords = {**keywords[0], **keywords[1]}
        self._scaled = any(kind.name in _SCALED for kind in self._types)
        self.is_initialized = True

    @untraced
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Stored, Stored]:
        """Stores new tokens, of (batch, heads, tokens, dim), and returns what stands for all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        batch, heads, count, dim = key_states.shape
        if self._length == 0 and self.batch_size != batch:
            self._table = np.zeros((batch, 0), np.int32)
        if self.batch_size != batch:
            raise ValueError(f"the cache has {self.batch_size} sequences: expected as many new ones, not {batch}")
        if self._most is not None and self._length + count > self._most:
            raise ValueError(f"the cache has {self._length} tokens, and gets {count}: expected max_length, {self._most}, at most")
        self._give_back()
        self._reserve(count)
        used = self._lengths()
        append_kv(
            key_states.transpose(1, 2),
            value_states.transpose(1, 2),
            **self._pools,
            **self._keywords,
            page_table=self._table_on_device(),
            seqused_k=used,
            dynamic_scale=self._scaled,
        )
        used += count
        self._length += count
        self.keys = Stored(self, heads, dim, key_states)
        self.values = Stored(self, value_states.shape[1], value_states.shape[-1], value_states)
        return self.keys, self.values

    def attention(self, query: torch.Tensor, **options: Any) -> torch.Tensor:
        if "mask" in options or "bias" in options:  # which have a column for each key
            options["max_seqlen_k"] = self.stored
        table, used = self._table_on_device(), self._lengths()
        stored = {**self._pools, **self._keywords, "page_table": table, "seqused_k": used}
        found: torch.Tensor = library_attention(query, **{**stored, **options})
        return found

    # ------------------------------------------------------------------------------------------------------------- pages

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._pools["k"].device
        return device

    def _table_on_device(self) -> torch.Tensor:
        if self._device_table is None:
            self._device_table = torch.from_numpy(self._table.copy()).to(self._device)
        return self._device_table

    def _lengths(self) -> torch.Tensor:
        if self._used is None:
            self._used = torch.full((self.batch_size,), self.stored, dtype=torch.int32, device=self._device)
        return self._used

    def _set_table(self, table: np.ndarray[Any, Any]) -> None:
        self._table, self._device_table = np.ascontiguousarray(table), None

    def _give_back(self) -> None:
        """Pages whose tokens no row to come sees."""
        begin = self._first_kept(self._length)
        if begin > self._begin:
            self._set_table(self._table[:, (begin - self._begin) // self._page :])
            self._begin, self._used = begin, None

    def _reserve(self, count: int) -> None:
        """Pages for so many tokens more."""
        missing = -(-(self.stored + count) // self._page) - self._table.shape[1]
        if missing > 0:
            pages = self._free(missing * self.batch_size).reshape(self.batch_size, missing)
            self._set_table(np.concatenate([self._table, pages], 1))

    def _free(self, count: int) -> np.ndarray[Any, Any]:
        """So many pages that no sequence has; the pool grows where there are fewer."""
        have = self._pools["k"].shape[0]
        free = np.setdiff1d(np.arange(have, dtype=np.int32), self._table)
        if len(free) < count:
            grown = have + max(count - len(free), self._room())
            for name, x in self._pools.items():
                self._pools[name] = x.new_empty((grown, *x.shape[1:]))
                self._pools[name][:have] = x
            free = np.concatenate([free, np.arange(have, grown, dtype=np.int32)])
        return free[:count]

    def _room(self) -> int:
        """Pages that a pool grows by, at least: a full one by a part of what it has; one of known length has room for all at once."""
        if self._most is None:
            return self._table.size // _GROWTH
        most = self._most if self.sliding_window is None else min(self._most, self.sliding_window + 2 * self._page)
        return self.batch_size * -(-most // self._page) - len(self._pools["k"])

    # --------------------------------------------------------------------------------------------------------- sequences

    def _kept(self, table: np.ndarray[Any, Any]) -> None:
        """The table of what is stored; the page that the next token goes into is each sequence's own."""
        self._set_table(table[:, : -(-self.stored // self._page)])
        self._used = None
        if self.stored % self._page == 0 or self._table.size == 0:
            return
        last = self._table[:, -1].copy()
        _, first = np.unique(last, return_index=True)
        shared = np.setdiff1d(np.arange(len(last)), first)
        if len(shared) == 0:
            return
        own = self._free(len(shared))
        source, target = (torch.from_numpy(pages.astype(np.int64)).to(self._device) for pages in (last[shared], own))
        for x in self._pools.values():
            copied = x.view(torch.uint8) if x.dtype.itemsize == 1 else x  # which torch can index in every type
            copied[target] = copied[source]
        last[shared] = own
        self._set_table(np.concatenate([self._table[:, :-1], last[:, None]], 1))

    def crop(self, count: int) -> None:
        """To so many tokens; negative: that many less. 0: to none in transformers 4, and all stay in 5."""
        length = count if count > 0 or (count == 0 and not hasattr(_LAYER, "is_croppable")) else max(self._length + count, 0)
        if length >= self._length:
            return
        if max(length - (self.sliding_window or length + 1) + 1, 0) < self._begin:
            raise ValueError(f"crop to {length} tokens: the window's keys before {self._begin} are no longer stored")
        self._length = length
        self._kept(self._table)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequences share the pages that are full."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._length:
            self._kept(np.repeat(self._table, repeats, 0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self._length:
            self._kept(self._table[indices.cpu().numpy()])

    def offload(self) -> None:
        raise NotImplementedError("a PagedCache stays where it is: expected no offloading")

    prefetch = offload


class PagedCache(_CACHE):  # type: ignore[misc]
    """A cache of quantised pages, for a model with attn_implementation="libfa":

        cache = flashattn.transformers.PagedCache(model.config, dtype="q8_0")
        model.generate(**inputs, past_key_values=cache)

    config: the model's. dtype: how keys and values are stored, or a pair of both: blocks of ggml ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0";
        32 dims each), "int8", "float8_e4m3fn", "float8_e5m2", "i4" and "u4" (a bfloat16 scale for each token and head, "u4" a smallest
        value too), "e2m1" (a scale for 32 dims), "float32", "float16", "bfloat16".
    page_size: tokens in a page. max_length: the most tokens, for which there is room at once; None: pages are added as they are needed.

    Every sequence has as many tokens as the longest, as in transformers' own caches. Layers with a sliding window, or chunks, keep the
    pages that a row may still see. Beams share full pages. Assisted generation and generate() on what an earlier one has left work as
    with a DynamicCache. Models whose caches hold more than keys and values raise NotImplementedError, and so does attention that is not
    the library's. There are no gradients. torch.compile breaks its graph at each layer.
    """

    def __init__(self, config: Any, dtype: str | tuple[str, str] = "q8_0", *, page_size: int = 64, max_length: int | None = None) -> None:
        names = (dtype, dtype) if isinstance(dtype, str) else tuple(dtype)
        for name in names:
            if name not in TYPES:
                raise ValueError(f"dtype is {name!r}: expected {', '.join(TYPES)}")
        if len(names) != 2:
            raise ValueError(f"dtype is {dtype!r}: expected a name, or those for keys and for values")
        for argument, value in (("page_size", page_size), ("max_length", 1 if max_length is None else max_length)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{argument} is {value!r}: expected a number of tokens")
        types = (_Type(names[0]), _Type(names[1]))
        layers = []
        for number, layer in enumerate(_caches.DynamicCache(config=config).layers):
            kind = type(layer).__name__
            if kind == "DummyLayer":
                layers.append(layer)
            elif kind in ("DynamicLayer", "DynamicSlidingWindowLayer"):
                layers.append(PagedLayer(types, page_size, getattr(layer, "sliding_window", None), max_length))
            else:
                raise NotImplementedError(f"layer {number} has a {kind}: expected one of keys and values alone for a PagedCache")
        super().__init__(layers=layers)

    @property
    def nbytes(self) -> int:
        """Memory of all layers' pages, with those that are free."""
        return sum(getattr(layer, "nbytes", 0) for layer in self.layers)


