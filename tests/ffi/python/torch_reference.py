"""Attention as torch's own functions compute it, whose autograd is the judge of gradients; and a count of the library's calls."""

import contextlib
from collections import Counter
from unittest import mock

import torch
from flashattn._library import library


@contextlib.contextmanager
def calls():
    """Counts the calls of fa_forward_ex, fa_backward and fa_append_kv: a test of what reaches the library compares torch with torch without it."""
    found = Counter()

    def counted(name):
        function = getattr(library(), name)

        def call(*arguments):
            found[name] += 1
            return function(*arguments)

        return mock.patch.object(library(), name, call)

    with counted("fa_forward_ex"), counted("fa_backward"), counted("fa_append_kv"):
        yield found


def plain(q, k, v, *, causal=False, scale=None, softcap=0, bias=None, bias_scale=None, mask=None, sinks=None, keep=None, p=0.0):
    """(batch, rows, heads, dim); returns out and lse."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + (bias if bias_scale is None else bias * bias_scale[:, None, None])
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], device=s.device).triu(1 + s.shape[-1] - s.shape[-2]).bool(), float("-inf"))
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf"))
    all_logits = s if sinks is None else torch.cat([s, sinks[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    lse = torch.logsumexp(all_logits, -1)
    w = torch.exp(s - lse[..., None])
    if keep is not None:
        w = w * keep / (1 - p)
    return torch.einsum("bhij,bjhd->bihd", w, v), lse
