"""PyTorch's attention kernels, one backend at a time, and FlashAttention-3, where its package fa3-fwd is installed."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .problem import Problem

BACKENDS = {"FLASH": SDPBackend.FLASH_ATTENTION, "CUDNN": SDPBackend.CUDNN_ATTENTION, "EFFICIENT": SDPBackend.EFFICIENT_ATTENTION,
            "MATH": SDPBackend.MATH}
FA3 = "FA3"
FA3_MODULE = "fa3_fwd_interface"  # of the package fa3-fwd: forwards in bf16


def beside_cudnn() -> list[str]:
    """The rivals of a forward in bf16: cuDNN, and FlashAttention-3 where it is there."""
    return ["CUDNN", FA3] if find_spec(FA3_MODULE) else ["CUDNN"]


def fa3_call(p: Problem):
    """RuntimeError where it does not take the problem."""
    if p.dout is not None or not find_spec(FA3_MODULE):
        raise RuntimeError(f"{FA3}: a backward, or no package fa3-fwd")
    from fa3_fwd_interface import flash_attn_func

    def forward():
        return flash_attn_func(p.q, p.k, p.v, causal=p.causal)

    forward()  # a type or head dimension that it was built without ends here
    return forward


def torch_call(name: str, p: Problem):
    """A call of scaled_dot_product_attention over the problem's own memory, seen as [batch, head, row, dim]; of a problem with a dout its
    backward, whose forward has been run."""
    if name == FA3:
        return fa3_call(p)
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
