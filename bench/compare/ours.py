"""This library on torch's tensors, on a GPU in torch's stream, through the C ABI."""

from __future__ import annotations

import ctypes

import torch
from flashattn import _abi
from flashattn._library import library

from . import records
from .blocks import TYPES
from .problem import BLOCK, Problem
from .schemes import SCHEMES

DTYPES = {torch.float32: _abi.FA_F32, torch.float16: _abi.FA_F16, torch.bfloat16: _abi.FA_BF16, torch.float8_e4m3fn: _abi.FA_E4M3,
          torch.int8: _abi.FA_I8}


class Library:
    """A handle on the memory of its own device."""

    def __init__(self, backend: int = _abi.FA_BACKEND_CUDA) -> None:
        self.streams = backend != _abi.FA_BACKEND_CPU
        self.lib = library()
        self.handle = _abi.Handle()
        info = _abi.CreateInfo(backend=backend, memory=_abi.FA_MEMORY_DEVICE)
        if self.lib.fa_create(ctypes.byref(self.handle), ctypes.byref(info)):
            raise RuntimeError(self.lib.fa_last_error(None).decode())

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(self.lib.fa_last_error(self.handle).decode())


def strides_of(x: torch.Tensor, unit: int = 1) -> tuple[int, ...]:
    """(batch or page, row, head, element), of blocks of `unit` bytes if it is not 1; packed tensors have no batch."""
    *strides, last = x.stride() if x.dim() == 4 else (0, *x.stride())
    return *(n // unit for n in strides), last


def entries_of(kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks that a bool [..., block] names, in ascending order, and how many they are."""
    return torch.argsort((~kept).int(), dim=-1, stable=True).int(), kept.sum(-1).int()


def unwritten(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Of its type; of an 8-bit one bf16."""
    dtype = torch.bfloat16 if like.element_size() == 1 else like.dtype
    return torch.full(shape, float("nan"), dtype=dtype, device=like.device)


class Call:
    """One fa_forward_ex, ready to be made again and again. Where it is captured it brings its workspace, else the handle has it."""

    OP, FUNCTION = _abi.FA_OP_FORWARD, "fa_forward_ex"

    def __init__(self, ours: Library, p: Problem, captured: bool = True) -> None:
        self.ours, self.problem = ours, p
        self.function = getattr(ours.lib, self.FUNCTION)
        self.o = unwritten((*p.q.shape[:-1], p.dim_v), p.q)
        self.full, self.cut = self.lists()
        self.desc = self.describe()
        self.inputs = _abi.ForwardArgs(q=p.q.data_ptr(), k=p.k.data_ptr(), v=None if p.v_in_k else p.v.data_ptr(), o=self.o.data_ptr())
        for bit, names, tensor in self.operands():
            if tensor is not None:
                self.desc.operands |= bit
                for name in names:
                    setattr(self.inputs, name, tensor.data_ptr())
        self.args = self.own_args()
        self.args.flags = _abi.FA_ARGS_STREAM if ours.streams else 0
        size = ctypes.c_uint64()
        ours.check(ours.lib.fa_workspace_size(ours.handle, ctypes.byref(self.desc), self.OP, ctypes.byref(size)))
        # Never empty: with no workspace at all a call would look for memory of its own. Aligned as fa_workspace_size says.
        if captured:
            self.workspace = torch.empty(max(size.value, 256) + 256, dtype=torch.uint8, device=p.q.device)
            self.args.workspace, self.args.workspace_size = -(-self.workspace.data_ptr() // 256) * 256, max(size.value, 256)
        self.pointers = ours.handle, ctypes.byref(self.desc), ctypes.byref(self.args)

    def own_args(self) -> _abi.ForwardArgs | _abi.BackwardArgs:
        return self.inputs

    def lists(self) -> tuple[tuple, tuple]:
        """Entries and counts of full_list, and of key_list, whose blocks the diagonal goes through."""
        kept = self.problem.kept
        if kept is None:
            return (None, None), (None, None)
        diagonal = torch.eye(kept.shape[1], dtype=torch.bool, device=kept.device) & self.problem.causal
        return entries_of(kept & ~diagonal), entries_of(kept & diagonal)

    def describe(self) -> _abi.AttentionDesc:
        p = self.problem
        k_dtype, unit = TYPES[p.blocks] if p.blocks else (_abi.FA_E4M3 if p.records else SCHEMES[p.scheme].dtype if p.scheme
                                                          else DTYPES[p.k.dtype], 1)
        d = _abi.AttentionDesc(q_dtype=DTYPES[p.q.dtype], k_dtype=k_dtype, batch=p.batch, heads_q=p.heads,
                               heads_k=p.k.shape[-2], seqlen_k=p.most_keys, dim_qk=p.q.shape[-1], dim_v=p.dim_v,
                               seqlen_q=p.most_keys if p.offsets is not None else p.q.shape[1])
        d.strided = _abi.FA_STRIDED_Q | _abi.FA_STRIDED_K | _abi.FA_STRIDED_O
        for stride, x in ((d.q_stride, p.q), (d.o_stride, self.o)):
            stride[:] = strides_of(x)
        d.k_stride[:] = strides_of(p.k, unit)
        if p.records:
            self.describe_records(d)
        if p.v_in_k:
            d.flags |= _abi.FA_V_IN_K
        else:
            d.strided |= _abi.FA_STRIDED_V
            d.v_stride[:] = strides_of(p.v, unit)
        if p.causal or p.slopes is not None:
            d.alignment = _abi.FA_ALIGN_BOTTOM_RIGHT
        if p.causal:
            d.flags |= _abi.FA_CAUSAL
        if p.left is not None:
            d.flags |= _abi.FA_WINDOW
            d.window_left, d.window_right = p.left, -1
        if p.offsets is not None:
            d.total_q, d.total_k = p.q.shape[0], p.k.shape[0]
        if p.table is not None:
            d.num_pages, d.page_size, d.page_table_stride = p.k.shape[0], p.k.shape[1], p.table.stride(0)
        if p.slots is not None:
            d.list_space, d.num_pages, d.page_size = _abi.FA_LIST_SLOTS, p.k.shape[0], p.k.shape[1]
            d.list_max, d.list_heads, d.list_stride[:] = p.slots.shape[-1], 1, (p.slots.stride(0), 0, p.slots.stride(1), 1)
        if p.kept is not None:
            d.list_rows, d.list_keys, d.list_max, d.list_heads = BLOCK, BLOCK, p.kept.shape[2], p.heads
            d.list_stride[:], d.list_count_stride[:] = (0, *p.kept.stride()), (0, *(n // p.kept.shape[2] for n in p.kept.stride()[:2]))
        if p.ranges is not None:
            d.key_range_stride[:] = (0, 0, 1, 1)
        d.softcap = p.softcap
        d.precision = _abi.FA_PRECISION_NATIVE if p.native else _abi.FA_PRECISION_DEFAULT
        if p.bias is not None:
            d.bias_stride[:] = (0, *p.bias.stride())
            d.bias_dtype = DTYPES[p.bias.dtype]
        if p.mask is not None:
            d.mask_stride[:] = (0, 0, *p.mask.stride())
        if p.scheme:
            d.k_descale_dtype = d.v_descale_dtype = SCHEMES[p.scheme].factor
            for stride, block, factor in ((d.k_descale_stride, d.k_descale_block, p.k_descale),
                                          (d.v_descale_stride, d.v_descale_block, p.v_descale)):
                stride[:], block[:] = strides_of(factor), (1, SCHEMES[p.scheme].dims)
        elif p.k_descale is not None:
            d.k_descale_stride[:] = d.v_descale_stride[:] = (0, 0, 1, 0)
        return d

    def describe_records(self, d: _abi.AttentionDesc) -> None:
        d.dim_tail, d.k_tail_dtype = records.TAIL, _abi.FA_BF16
        d.strided |= _abi.FA_STRIDED_K_TAIL
        d.k_descale_block[:] = (1, records.DIMS_OF_FACTOR)
        for stride, size in ((d.k_tail_stride, 2), (d.k_descale_stride, 4)):
            stride[:] = (*(n // size for n in self.problem.k.stride()[:3]), 1)

    def operands(self):
        p = self.problem
        factors, tail = (p.k[..., at:] if p.records else None for at in (records.FACTORS_AT, records.TAIL_AT))
        return ((_abi.FA_OPERAND_BIAS, ["bias"], p.bias), (_abi.FA_OPERAND_MASK, ["mask"], p.mask),
                (_abi.FA_OPERAND_ALIBI, ["alibi_slopes"], p.slopes), (_abi.FA_OPERAND_SINKS, ["sinks"], p.sinks),
                (_abi.FA_OPERAND_SEQUSED_K, ["seqused_k"], p.used),
                (_abi.FA_OPERAND_PAGE_TABLE, ["page_table"], p.table),
                (_abi.FA_OPERAND_KEY_LIST, ["key_list"], p.slots if p.slots is not None else self.cut[0]),
                (_abi.FA_OPERAND_KEY_LIST_COUNT, ["key_list_count"], self.cut[1]), (_abi.FA_OPERAND_FULL_LIST, ["full_list"], self.full[0]),
                (_abi.FA_OPERAND_FULL_LIST_COUNT, ["full_list_count"], self.full[1]),
                (_abi.FA_OPERAND_KEY_RANGES, ["key_ranges"], p.ranges),
                (_abi.FA_OPERAND_CU_SEQLENS_Q | _abi.FA_OPERAND_CU_SEQLENS_K, ["cu_seqlens_q", "cu_seqlens_k"], p.offsets),
                (_abi.FA_OPERAND_K_DESCALE, ["k_descale"], factors if p.records else p.k_descale),
                (_abi.FA_OPERAND_K_TAIL, ["k_tail"], tail), (_abi.FA_OPERAND_V_DESCALE, ["v_descale"], p.v_descale),
                (_abi.FA_OPERAND_K_SHIFT, ["k_shift"], p.k_shift), (_abi.FA_OPERAND_V_SHIFT, ["v_shift"], p.v_shift))

    def __call__(self) -> None:
        if self.ours.streams:
            self.args.stream = torch.cuda.current_stream().cuda_stream
        self.ours.check(self.function(*self.pointers))

    def kernel(self) -> str:
        text = ctypes.create_string_buffer(4096)
        self.ours.check(self.ours.lib.fa_explain(self.ours.handle, ctypes.byref(self.desc), self.OP, text, len(text)))
        return text.value.decode()


class BackwardCall(Call):
    """One fa_backward over what a forward has left: all three gradients."""

    OP, FUNCTION = _abi.FA_OP_BACKWARD, "fa_backward"

    def __init__(self, ours: Library, p: Problem, deterministic: bool = False) -> None:
        self.deterministic = deterministic
        rows = (p.heads, len(p.q)) if p.offsets is not None else (p.batch, p.heads, p.q.shape[1])
        self.lse = torch.empty(rows, dtype=torch.float32, device=p.q.device)
        super().__init__(ours, p)
        forward = Call(ours, p, captured=False)
        forward.desc.operands |= _abi.FA_OPERAND_LSE
        self.inputs.lse = self.lse.data_ptr()
        forward.args.o, forward.args.lse = self.o.data_ptr(), self.lse.data_ptr()
        forward()
        self.dq, self.dk, self.dv = (unwritten(x.shape, x) for x in (p.q, p.k, p.v))
        for name, x in (("dout", p.dout), ("dq", self.dq), ("dk", self.dk), ("dv", self.dv)):
            setattr(self.args, name, x.data_ptr())

    def own_args(self) -> _abi.ForwardArgs | _abi.BackwardArgs:
        return _abi.BackwardArgs(forward=ctypes.pointer(self.inputs))

    def describe(self) -> _abi.AttentionDesc:
        d = super().describe()
        if self.deterministic:
            d.flags |= _abi.FA_DETERMINISTIC
        d.operands |= _abi.FA_OPERAND_LSE
        return d
