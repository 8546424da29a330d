"""Gradients of attention as an operator of torch: from its result, the logarithms of its sums, and the seed of its dropout.

    d[r] = sum of g[r, :] y[r, :]        p = exp(s - l)        m = 1 / (1 - probability) where random_uniform(seed, number) is below, else 0
    dv   = (p m)' g        dq = scale * ds k        dk = scale * ds' q        ds = p (g v' m - d)

`driver/torch/attention_steps.py` puts it into joint graphs in place of torch's derivative of the softmax; passes expand it to kernels that
hold no value of all rows and columns (`plan/rewrites/attention_gradient.py`). Torch runs the function here where a part is not compiled.
"""
from __future__ import annotations

from typing import Any

import torch

from tilefuse.frontends.torch.own.random_numbers import drawn_uniform

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def attention_backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
                       logsumexp: torch.Tensor, attn_mask: torch.Tensor | None, row_factors: torch.Tensor | None,
                       seed: torch.Tensor | None, number: int, dropout_p: float, is_causal: bool, scale: float,
                       mask_dtype: torch.dtype | None = None, visible: torch.Tensor | None = None, fill: float = 0.0) -> Gradients:
    """Gradients of queries, keys and values, and of a mask that is added, before it is broadcast; empty where `mask_dtype` is None.

    attn_mask: hides where it is False, or is added to the scores. row_factors: of each row's powers. seed, number: as of `random_uniform`,
    over the places of the scores; None without dropout. visible: where it is False, scores are `fill` before `attn_mask`.

    Shapes: grad, query, out: [..., rows, width]; key, value: [..., columns, width]; logsumexp, row_factors: [..., rows, 1]
    """
    work = torch.float64 if query.dtype == torch.float64 else torch.float32
    g, q, k, v, y, logarithms = (x.to(work) for x in (grad, query, key, value, out, logsumexp))
    s = q @ k.mT * scale
    s = s if visible is None else torch.where(visible, s, fill)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else s + attn_mask
    if is_causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
    # Rows that a mask hides whole have no logarithm, and powers of 0.
    p = (s - logarithms.masked_fill(logarithms == float("-inf"), 0.0)).exp()
    p = p if row_factors is None else p.clamp(max=1.0) * row_factors
    weights, of_p = p, g @ v.mT
    if seed is not None:
        is_left = drawn_uniform(seed, number, s.shape) < 1.0 - dropout_p
        weights, of_p = (torch.where(is_left, x / (1.0 - dropout_p), 0.0) for x in (p, of_p))
    ds = p * (of_p - (g * y).sum(-1, keepdim=True))
    ds = ds if visible is None else torch.where(visible, ds, 0.0)
    dq, dk, dv = (x.to(query.dtype).contiguous() for x in (ds @ k * scale, ds.mT @ q * scale, weights.mT @ g))
    return dq, dk, dv, query.new_empty(0) if mask_dtype is None else ds.to(mask_dtype).contiguous()


def _empty(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Gradients:
    dq, dk, dv = (x.new_empty(x.shape) for x in (query, key, value))
    # The last arguments are left out where they have their defaults.
    mask_dtype = rest[9] if len(rest) > 9 else None
    shape = [0] if mask_dtype is None else [*query.shape[:-1], key.shape[-2]]
    return dq, dk, dv, query.new_empty(shape, dtype=mask_dtype)


# Place of the mask among the operator's arguments.
MASK_OPERAND = 6
# Torch forgets the operators of a library object once it is freed.
_LIBRARY = torch.library.Library("tilefuse", "FRAGMENT")
_LIBRARY.define("attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor? attn_mask, "
                "Tensor? row_factors, Tensor? seed, int number, float dropout_p, bool is_causal, float scale, ScalarType? mask_dtype=None, "
                "Tensor? visible=None, float fill=0.0) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.impl("attention_backward", attention_backward, "CompositeExplicitAutograd")
torch.library.register_fake("tilefuse::attention_backward", _empty, lib=_LIBRARY)
ATTENTION_BACKWARD: Any = torch.ops.tilefuse.attention_backward.default
