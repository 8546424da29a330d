"""Multi-head attention as a layer of array operations: its softmax, masks and scales fuse with their neighbours."""
from __future__ import annotations

from math import sqrt
from typing import Any

import tilefuse.array as ta
from tilefuse.arrays.arguments import real_number, whole_number
from tilefuse.arrays.functions import neural
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.nn.initialise import Seed, filled, generator, xavier_uniform
from tilefuse.nn.layers import Linear
from tilefuse.nn.module import Module, Parameter


class MultiheadAttention(Module):
    """softmax(q k^T / sqrt(head width) + masks) v of `num_heads` heads, between linear maps; arguments and state are those of torch.nn.

    Shapes: query [L, N, embed_dim], key [S, N, kdim], value [S, N, vdim] -> [L, N, embed_dim] and the weights [N, L, S]; with
    batch_first the batch N stands first, and all three may be without it.
    dropout: probability with which a weight is zeroed in training mode. kdim, vdim: width of keys and of values; embed_dim by default.
    """

    in_proj_weight: Any
    q_proj_weight: Any
    k_proj_weight: Any
    v_proj_weight: Any
    in_proj_bias: Any
    out_proj: Any

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__()
        width, heads = whole_number(embed_dim, "embed_dim"), whole_number(num_heads, "num_heads")
        if heads < 1 or width < 1 or width % heads:
            raise UserError(f"{width} channels are not divisible among {heads} heads", where=user_span())
        if not 0.0 <= real_number(dropout, "dropout") <= 1.0:
            raise UserError(f"dropout with probability {dropout}", where=user_span(), hint="between 0 and 1")
        draws = generator(seed)
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = width, heads, dropout, batch_first
        self.kdim, self.vdim = width if kdim is None else kdim, width if vdim is None else vdim
        self.is_packed = self.kdim == self.vdim == width
        if self.is_packed:
            self.in_proj_weight = Parameter(xavier_uniform((3 * width, width), draws, dtype=dtype))
        else:
            self.q_proj_weight = Parameter(xavier_uniform((width, width), draws, dtype=dtype))
            self.k_proj_weight = Parameter(xavier_uniform((width, self.kdim), draws, dtype=dtype))
            self.v_proj_weight = Parameter(xavier_uniform((width, self.vdim), draws, dtype=dtype))
        self.in_proj_bias = Parameter(filled((3 * width,), 0.0, dtype)) if bias else None
        self.out_proj = Linear(width, width, bias, seed=draws, dtype=dtype)
        if bias:
            self.out_proj.bias = filled((width,), 0.0, dtype)

    def forward(self, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None,
                average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Any, Any]:
        """(result, weights): the weights averaged over the heads, or [N, heads, L, S]; None where `need_weights` is false.

        key_padding_mask: [N, S]; attn_mask: [L, S] or [N heads, L, S]; boolean masks are true at hidden positions, others are added to the
        scores. is_causal: no query sees a later key, without a mask from the caller.
        """
        batched = query.ndim == 3
        self._check(query, key, value)
        q, k, v = ((x if self.batch_first else ta.permute_dims(x, (1, 0, 2))) if batched else ta.expand_dims(x, axis=0)
                   for x in (query, key, value))
        q, k, v = (self._by_heads(x, n) for n, x in enumerate((q, k, v)))
        scores = ta.matmul(q * (1.0 / sqrt(self.embed_dim // self.num_heads)), ta.matrix_transpose(k))
        scores = self._masked(scores, key_padding_mask, attn_mask, is_causal)
        weights = ta.softmax(scores, axis=-1)
        if self.training and self.dropout:
            weights = ta.dropout(weights, self.dropout)
        batch, _, length, _ = q.shape
        joined = ta.reshape(ta.permute_dims(ta.matmul(weights, v), (0, 2, 1, 3)), (batch, length, self.embed_dim))
        result = self.out_proj(joined)
        shown_weights = None if not need_weights else ta.mean(weights, axis=1) if average_attn_weights else weights
        if not batched:
            return result[0], None if shown_weights is None else shown_weights[0]
        return result if self.batch_first else ta.permute_dims(result, (1, 0, 2)), shown_weights

    def _check(self, query: Any, key: Any, value: Any) -> None:
        ranks = {x.ndim for x in (query, key, value)}
        widths = tuple(x.shape[-1] for x in (query, key, value)) if ranks <= {2, 3} else ()
        sequence = 1 if self.batch_first and query.ndim == 3 else 0
        if len(ranks) != 1 or widths != (self.embed_dim, self.kdim, self.vdim) or key.shape[:-1] != value.shape[:-1] \
                or query.ndim == 3 and query.shape[1 - sequence] != key.shape[1 - sequence]:
            order = "[N, L, E]" if self.batch_first else "[L, N, E]"
            raise ShapeError(f"attention of query {query.shape}, key {key.shape} and value {value.shape}", where=user_span(),
                             hint=f"{order} or [L, E] with widths {self.embed_dim}, {self.kdim} and {self.vdim}")

    def _by_heads(self, x: Any, number: int) -> Any:
        """Shapes: [N, S, width] -> [N, heads, S, embed_dim / heads]. number: 0 query, 1 key, 2 value."""
        width = self.embed_dim
        own = slice(number * width, (number + 1) * width)
        weight = self.in_proj_weight[own] if self.is_packed else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[number]
        projected = neural.linear(x, weight, None if self.in_proj_bias is None else self.in_proj_bias[own])
        return ta.permute_dims(ta.reshape(projected, (*x.shape[:2], self.num_heads, width // self.num_heads)), (0, 2, 1, 3))

    def _masked(self, scores: Any, key_padding_mask: Any, attn_mask: Any, is_causal: bool) -> Any:
        batch, heads, length, keys = scores.shape
        if is_causal:
            later = ta.expand_dims(ta.arange(keys), axis=0) > ta.expand_dims(ta.arange(length), axis=1)
            scores = _with_mask(scores, later, (1, 1, length, keys))
        if attn_mask is not None:
            mask = ta.asarray(attn_mask)
            if mask.shape not in ((length, keys), (batch * heads, length, keys)):
                raise ShapeError(f"attn_mask of shape {mask.shape}", where=user_span(),
                                 hint=f"{(length, keys)} or {(batch * heads, length, keys)}")
            scores = _with_mask(scores, mask, (1, 1, length, keys) if mask.ndim == 2 else (batch, heads, length, keys))
        if key_padding_mask is not None:
            mask = ta.asarray(key_padding_mask)
            if mask.shape not in ((batch, keys), (keys,) if batch == 1 else ()):
                raise ShapeError(f"key_padding_mask of shape {mask.shape}", where=user_span(), hint=f"{(batch, keys)}")
            scores = _with_mask(scores, mask, (batch, 1, 1, keys))
        return scores


def _with_mask(scores: Any, mask: Any, shape: tuple[int, ...]) -> Any:
    """Scores with a mask added; a boolean one takes away where it is true."""
    if mask.dtype == ta.bool:
        return ta.where(ta.reshape(mask, shape), float("-inf"), scores)
    if not mask.dtype.is_float:
        raise TypeMismatchError(f"a mask is boolean or added to the scores, not {mask.dtype}", where=user_span())
    return scores + ta.astype(ta.reshape(mask, shape), scores.dtype)
