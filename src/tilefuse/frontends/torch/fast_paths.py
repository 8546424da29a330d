"""Decompositions of torch's fused inference operators: their norms and activations then fuse with their neighbours.

torch.nn.TransformerEncoderLayer and MultiheadAttention call them in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Positions that a mask given to the fused operators masks: pairs of positions, padded keys of each sample, or [N, heads, L, L].
PAIRS, PADDING = 0, 1


def encoder_layer(
    x: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """A transformer encoder layer. Shapes: x: [N, L, embed_dim]"""

    def norm(v: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(v, (embed_dim,), weight, bias, eps)

    def attend(v: Tensor) -> Tensor:
        return _attend(v, v, v, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)

    def feed_forward(v: Tensor) -> Tensor:
        hidden = F.linear(v, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = x + attend(norm(x, norm_weight_1, norm_bias_1))
        return x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    x = norm(x + attend(x), norm_weight_1, norm_bias_1)
    return norm(x + feed_forward(x), norm_weight_2, norm_bias_2)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Multi-head attention; left to the operator itself where its weights are requested."""
    if need_weights:
        return NotImplemented
    attended = _attend(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)
    return attended, query.new_empty((0,))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
) -> Tensor:
    if query is key and key is value:
        q, k, v = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
    q, k, v = (x.reshape(x.shape[0], x.shape[1], heads, width // heads).transpose(1, 2) for x in (q, k, v))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=_visible(mask, mask_type, q.dtype))
    return F.linear(attended.transpose(1, 2).reshape(query.shape[0], query.shape[1], width), proj_weight, proj_bias)


def _visible(mask: Tensor | None, mask_type: int | None, dtype: torch.dtype) -> Tensor | None:
    """The mask in the form of scaled_dot_product_attention: bool masks there mark visible positions, here hidden ones."""
    if mask is None:
        return None
    visible = mask.logical_not() if mask.dtype == torch.bool else mask.to(dtype)
    return visible[:, None, None, :] if mask_type == PADDING else visible


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
    torch.ops.aten._native_multi_head_attention.default: multi_head_attention,
}
