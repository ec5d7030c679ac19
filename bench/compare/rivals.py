"""PyTorch's attention kernels, one backend at a time; FlashAttention-3, where its package fa3-fwd is installed; and of 8-bit types cuDNN's,
where nvidia-cudnn-frontend is."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .problem import Problem

BACKENDS = {"FLASH": SDPBackend.FLASH_ATTENTION, "CUDNN": SDPBackend.CUDNN_ATTENTION, "EFFICIENT": SDPBackend.EFFICIENT_ATTENTION,
            "MATH": SDPBackend.MATH}
FA3 = "FA3"
FA3_MODULE = "fa3_fwd_interface"  # of the package fa3-fwd: forwards in bf16 and e4m3


def has_fa3() -> bool:
    return find_spec(FA3_MODULE) is not None


def beside_cudnn() -> list[str]:
    """The rivals of a forward in bf16: cuDNN, and FlashAttention-3 where it is there."""
    return ["CUDNN", FA3] if has_fa3() else ["CUDNN"]


def fa3_call(p: Problem):
    """RuntimeError where it does not take the problem."""
    if p.dout is not None or not has_fa3():
        raise RuntimeError(f"{FA3}: a backward, or no package fa3-fwd")
    from fa3_fwd_interface import flash_attn_func, flash_attn_with_kvcache

    def forward():
        return flash_attn_func(p.q, p.k, p.v, causal=p.causal)

    if p.v_in_k:  # it takes the rows of a cache that lie one behind the other, q's rotary dims and the others apart
        dim_v = p.v.shape[-1]
        cache = p.k.view(p.batch, -1, *p.k.shape[2:])
        rotary, others = p.q[..., dim_v:].contiguous(), p.q[..., :dim_v].contiguous()

        def forward():
            return flash_attn_with_kvcache(rotary, cache[..., dim_v:], cache[..., :dim_v], qv=others, cache_seqlens=p.used, causal=p.causal,
                                           softmax_scale=p.q.shape[-1] ** -0.5)

    forward()  # a type or head dimension that it was built without ends here
    return forward


def cudnn_8bit_call(p: Problem):
    """cuDNN's own graph, which PyTorch does not offer for 8 bits: e4m3 in and out (on Hopper it has no other o), factors of 1, P times 2^8;
    causal means top left, which is the same where rows and keys are as many. RuntimeError where it is not there."""
    if not find_spec("cudnn") or p.dout is not None or p.q.shape[1] != p.k.shape[1]:
        raise RuntimeError("no package nvidia-cudnn-frontend, or not a square forward")
    import cudnn

    batch, rows, heads, dim = p.q.shape
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    f8, f32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=f8, intermediate_data_type=f32, compute_data_type=f32, handle=handle)
    shape, strides, single = (batch, heads, rows, dim), (rows * heads * dim, dim, heads * dim, 1), (1, 1, 1, 1)
    o = torch.empty_like(p.q)
    memory: dict[int, torch.Tensor] = {}

    def tensor(name: str, of: torch.Tensor, like: tuple, stride: tuple, dtype):
        memory[len(memory) + 1] = of
        return graph.tensor(name=name, uid=len(memory), dim=like, stride=stride, data_type=dtype)

    inputs = {name: tensor(name, x, shape, strides, f8) for name, x in (("q", p.q), ("k", p.k), ("v", p.v))}
    for name, factor in (("descale_q", 1), ("descale_k", 1), ("descale_v", 1), ("descale_s", 2**-8), ("scale_s", 2**8), ("scale_o", 1)):
        inputs[name] = tensor(name, torch.full(single, float(factor), device=p.q.device), single, single, f32)
    outputs = graph.sdpa_fp8(**inputs, generate_stats=False, attn_scale=dim**-0.5, right_bound=0 if p.causal else None,
                             diagonal_alignment=cudnn.diagonal_alignment.TOP_LEFT)
    for made, of, like, stride, dtype in ((outputs[0], o, shape, strides, f8),
                                          (outputs[2], torch.zeros(1, device=o.device), single, single, f32),
                                          (outputs[3], torch.zeros(1, device=o.device), single, single, f32)):
        memory[len(memory) + 1] = of
        made.set_uid(len(memory)).set_output(True).set_dim(like).set_stride(stride).set_data_type(dtype)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device=o.device)
    pointers = {uid: x.data_ptr() for uid, x in memory.items()}

    def forward(kept=(p, memory)):  # for as long as the call
        graph.execute(pointers, workspace.data_ptr(), handle=handle)

    return forward


def torch_call(name: str, p: Problem):
    """A call of scaled_dot_product_attention over the problem's own memory, seen as [batch, head, row, dim]; of a problem with a dout its
    backward, whose forward has been run."""
    if name == FA3:
        return fa3_call(p)
    if name == "CUDNN" and p.q.element_size() == 1:
        return cudnn_8bit_call(p)
    if p.causal and p.q.shape[1] != p.k.shape[1]:
        raise ValueError("torch's causal mask stands at the top left; rows and keys must be as many")
    q, k, v = (x.transpose(1, 2) for x in (p.q, p.k, p.v))
    grouped = q.shape[1] != k.shape[1]

    def forward():
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=p.causal, enable_gqa=grouped)

    if p.dout is None:
        return forward
    q, k, v = inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out = forward()
    dout = p.dout.transpose(1, 2)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)
