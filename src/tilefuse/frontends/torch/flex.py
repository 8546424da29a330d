"""flex_attention as its definition: the functions of scores and masks that torch captured, over whole tensors of scores.

    flex_attention(q, k, v, score, (.., mask), scale)   ->   s = q k' * scale;  s = score(s, b, h, r, c);  s = s or -inf where mask is false
                                                             softmax(s) v, rows that are hidden whole as zeros

The mask function is the definition; the table of blocks beside it only says where it holds. Functions are of one score at a time.
Source: torch.nn.attention.flex_attention.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tilefuse.base.errors import UnsupportedOpError
from tilefuse.frontends.torch.nodes import shape_of, strides_of
from tilefuse.frontends.torch.ops import TORCH_OPS

NAME = "flex_attention"
# Places of the operator's arguments.
QUERY, KEY, VALUE, SCORE, BLOCKS, SCALE, _, SCORE_BUFFERS, MASK_BUFFERS = range(9)


def is_flex(target: object) -> bool:
    """Whether an FX node calls the higher-order operator."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() == NAME


def definition(node: fx.Node, module_of: Callable[[Any], Any]) -> tuple[Callable[..., Any], tuple[fx.Node, ...]]:
    """The operator as a function of the tensors among its arguments, and these. module_of: the graph module that a node names.

    Raises: UnsupportedOpError for blocks without a mask function, and for functions that take other data than tensors.
    """
    arguments: tuple[Any, ...] = node.args
    score, mask, blocks = module_of(arguments[SCORE]), module_of(arguments[BLOCKS][-1]), arguments[BLOCKS]
    buffers = tuple(arguments[SCORE_BUFFERS]), tuple(arguments[MASK_BUFFERS])
    tensors: tuple[fx.Node, ...] = (arguments[QUERY], arguments[KEY], arguments[VALUE], *buffers[0], *buffers[1])
    if not all(isinstance(t, fx.Node) for t in tensors):
        raise UnsupportedOpError("flex_attention with functions that take numbers which the call decides")
    if _is_always(mask) and not _is_one_block(node, blocks):
        raise UnsupportedOpError("flex_attention with a table of blocks and no mask function")
    count = 3 + len(buffers[0])

    def defined(q: Tensor, k: Tensor, v: Tensor, *t: Tensor) -> tuple[Tensor, ...]:
        return _attention(q, k, v, (score, t[:count - 3]), (mask, t[count - 3:]), float(arguments[SCALE]))

    return defined, tensors


def traced(function: Callable[..., Any], tensors: Sequence[Tensor]) -> fx.GraphModule:
    """The operators of a function of such tensors. Torch's own decompositions take apart operators without a lowering."""
    table = {op: how for op, how in core_aten_decompositions().items() if str(op) not in TORCH_OPS}
    with FakeTensorMode():
        like = [torch.empty_strided(shape_of(t), strides_of(t), dtype=t.dtype, device=t.device) for t in tensors]
        return make_fx(function, decomposition_table=table)(*like)


# A function and the tensors that it reads beside places.
Captured = tuple[Callable[..., Any], Sequence[Tensor]]


def _attention(q: Tensor, k: Tensor, v: Tensor, score: Captured, mask: Captured, scale: float) -> tuple[Tensor, ...]:
    """Result, logarithms of the sums and maxima, both in units of log 2."""
    if k.shape[0] != q.shape[0]:
        k, v = (x.expand(q.shape[0], *x.shape[1:]) for x in (k, v))
    if k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    work = torch.promote_types(q.dtype, torch.float32)
    s = (q @ k.mT).to(work) * scale
    places = [torch.arange(n, device=q.device) for n in s.shape]
    s = _each(score, True)(s, *places).to(work)
    seen = _each(mask, False)(*places)
    s = torch.where(seen, s, -math.inf)
    return (torch.ops.aten._safe_softmax(s, -1).to(q.dtype) @ v, torch.logsumexp(s, -1) / math.log(2), s.amax(-1) / math.log(2))


def _each(captured: Captured, takes_score: bool) -> Callable[..., Any]:
    """A function of one place as a function of all batches, heads, rows and columns."""
    one, tensors = captured

    def function(*at: Tensor) -> Any:
        return one(*at, *tensors)

    for at in (3, 2, 1, 0):
        function = torch.vmap(function, ((0,) if takes_score else ()) + tuple(0 if n == at else None for n in range(4)))
    return function


def _is_always(mask: fx.GraphModule) -> bool:
    """Whether a mask function depends on no place: it keeps everything."""
    return not any(n.users for n in list(mask.graph.find_nodes(op="placeholder"))[:4])


def _is_one_block(node: fx.Node, blocks: tuple[Any, ...]) -> bool:
    """Whether the table has one block: that of a call without a mask."""
    arguments: tuple[Any, ...] = node.args
    q, k = (arguments[at].meta["val"].shape[-2] for at in (QUERY, KEY))
    return bool(blocks[-3] >= q and blocks[-2] >= k)
