"""Calls that compute the gradients of attention from its result and the logarithms of its sums, as one record: torch's, and an operator of
tilefuse that takes the seed of a dropout as well (`frontends/torch/own/attention.py`).

    library.aten._scaled_dot_product_flash_attention_backward.default (%g, %q, %k, %v, %y, %l, ...) {args = ..., result = 0}
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Attribute, Graph, Node, Type
from tilefuse.ir.library.attention_call import group_of, operand_of_argument

# Operators of torch by the kernels that compute them, with the names of their positional arguments.
TORCH_ARGUMENTS = {
    "flash": ("aten._scaled_dot_product_flash_attention_backward.default",
              ("grad", "query", "key", "value", "out", "logsumexp", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal")),
    "cudnn": ("aten._scaled_dot_product_cudnn_attention_backward.default",
              ("grad", "query", "key", "value", "out", "logsumexp", "philox_seed", "philox_offset", "attn_bias", "cum_seq_q", "cum_seq_k",
               "max_q", "max_k", "dropout_p", "is_causal")),
    "efficient": ("aten._scaled_dot_product_efficient_attention_backward.default",
                  ("grad", "query", "key", "value", "attn_bias", "out", "logsumexp", "philox_seed", "philox_offset", "dropout_p",
                   "grad_input_mask", "is_causal")),
    "any": ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            ("grad", "query", "key", "value", "out", "logsumexp", "dropout_p", "is_causal")),
    "own": ("tilefuse.attention_backward.default",
            ("grad", "query", "key", "value", "out", "logsumexp", "attn_mask", "row_factors", "seed", "number", "dropout_p", "is_causal",
             "scale", "mask_dtype", "visible", "fill")),
}
NUM_GRADIENTS = 4
# Least score and logarithm of rows with factors: a power of two whose product with log2(e) f32 holds.
LEAST_LOGARITHM = -(2.0**126)


@dataclass(frozen=True, slots=True)
class AttentionGradientCall:
    """Gradients of `AttentionCall`, also with dropout by a known seed: of queries, keys, values, and of a bias with an element a score.

    gradient   of the result; output: the result; logarithms: of each row's sum of powers, the rows perhaps padded
    gradients  names of the nodes with the four gradients; "" for one that nothing reads
    group      heads of queries in a row that share a head of keys and values
    library    the kernels that compute it
    dropout    probability by which powers are dropped: by random numbers of the key `seed` + `number`, of places in [lead, rows, columns]
    factors    of each row's powers, where logarithms are too large to be exact; "" for none
    visible    a mask where scores are not `fill`, a finite number, before the other mask; "" for none
    wide_bias  whether the gradient of the bias is f32
    """

    gradient: str
    query: str
    key: str
    value: str
    output: str
    logarithms: str
    mask: str
    scale: float
    causal: bool
    library: str
    gradients: tuple[str, str, str, str]
    group: int = 1
    dropout: float = 0.0
    seed: str = ""
    number: int = 0
    factors: str = ""
    wide_bias: bool = False
    visible: str = ""
    fill: float = 0.0

    @property
    def operands(self) -> Mapping[str, str]:
        """Operands by the definition's names of them."""
        named = {"q": self.query, "k": self.key, "v": self.value, "y": self.output, "g": self.gradient, "l": self.logarithms}
        others = {"mask": self.mask, "seed": self.seed, "factors": self.factors, "visible": self.visible}
        return named | {name: value for name, value in others.items() if value}


def attention_gradient_calls(graph: Graph) -> tuple[AttentionGradientCall, ...]:
    """The calls of a graph, in order; calls with dropout by torch's own numbers and of several types are left out."""
    of_call: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if any(node.detail == op for op, _ in TORCH_ARGUMENTS.values()):
            key = node.detail, node.operands, tuple(p for p in node.attributes if p[0] != "result")
            of_call.setdefault(key, []).append(node)
    calls = (_call(nodes, graph) for nodes in of_call.values())
    return tuple(c for c in calls if c is not None)


def gradient_call_of(node: Node, graph: Graph) -> AttentionGradientCall | None:
    """The call whose gradient a node is; None where it is none of `attention_gradient_calls`."""
    if all(node.detail != op for op, _ in TORCH_ARGUMENTS.values()):
        return None
    return next((c for c in attention_gradient_calls(graph) if node.name in c.gradients), None)


def _call(nodes: list[Node], graph: Graph) -> AttentionGradientCall | None:
    node = nodes[0]
    library, names = next((library, names) for library, (op, names) in TORCH_ARGUMENTS.items() if node.detail == op)
    args, kwargs = node.attribute("args"), node.attribute("kwargs")
    if not isinstance(args, tuple) or not isinstance(kwargs, tuple):
        return None
    argument_by_name: dict[str, Attribute] = dict(zip(names, args, strict=False))
    for pair in kwargs:
        if isinstance(pair, tuple) and len(pair) == 2:
            argument_by_name[str(pair[0])] = pair[1]
    gradient, q, k, v, y, logarithms = (operand_of_argument(node, argument_by_name.get(n))
                                        for n in ("grad", "query", "key", "value", "out", "logsumexp"))
    dropout, number_ = argument_by_name.get("dropout_p", 0.0), argument_by_name.get("number", 0)
    seed, factors, visible = (operand_of_argument(node, argument_by_name.get(n)) if library == "own" else ""
                              for n in ("seed", "row_factors", "visible"))
    fill = argument_by_name.get("fill", 0.0)
    assert isinstance(dropout, float | int) and isinstance(number_, int) and isinstance(fill, float | int)
    if not (gradient and q and k and v and y and logarithms) or dropout and not seed:
        return None
    mask = operand_of_argument(node, argument_by_name.get("attn_bias", argument_by_name.get("attn_mask")))
    name_by_number = {_number(n): n.name for n in nodes if graph.users_by_name[n.name] or n.name in graph.escaping}
    if any(number >= NUM_GRADIENTS for number in name_by_number) or not name_by_number:
        return None
    types = [graph.type_of(x) for x in (q, k, v, y, gradient)]
    group = group_of(types[0].shape[:-2], types[1].shape[:-2])
    rows = graph.type_of(logarithms).shape
    lead = types[0].shape[:-2]
    plain = len({t.dtype for t in types}) == 1 and types[1].shape[:-1] == types[2].shape[:-1] and types[3].shape == types[4].shape
    if not group or not plain or rows[:len(lead)] != lead or rows[len(lead)] < types[0].shape[-2]:
        return None
    scale = argument_by_name.get("scale")
    factor = float(scale) if isinstance(scale, float | int) else types[0].shape[-1] ** -0.5
    gradients = (name_by_number.get(0, ""), name_by_number.get(1, ""), name_by_number.get(2, ""), name_by_number.get(3, ""))
    of_bias = graph.type_of(gradients[3]) if gradients[3] else None
    wide_bias = of_bias is not None and of_bias.dtype == F32 != types[0].dtype
    scores = Type(F32 if wide_bias else types[0].dtype, (*types[0].shape[:-1], types[1].shape[-2]))
    if of_bias is not None and (not mask or of_bias != scores):
        return None
    causal = bool(argument_by_name.get("is_causal"))
    return AttentionGradientCall(gradient, q, k, v, y, logarithms, mask, factor, causal, library, gradients, group,
                                 float(dropout), seed if dropout else "", number_, factors, wide_bias, visible, float(fill))


def _number(node: Node) -> int:
    number = node.attribute("result", 0)
    return number if isinstance(number, int) else 0
