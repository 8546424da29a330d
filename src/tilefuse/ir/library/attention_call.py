"""Library calls that compute attention, as one record: the operator of the graph, and those of torch.

    library.attention (%q, %k, %v, %mask) {causal, dropout, has_mask, scale}
    library.aten._scaled_dot_product_flash_attention.default (%q, %k, %v) {args = ..., kwargs = ..., result = 0}
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilefuse.ir.graph import Attribute, Graph, Node

# Operators of torch by the kernels that compute them, with the names of their positional arguments behind query, key and value. Torch
# chooses the kernels of a call that was recorded on a CPU.
TORCH_ARGUMENTS = {
    "flash": ("aten._scaled_dot_product_flash_attention.default", ("dropout_p", "is_causal", "return_debug_mask")),
    "cudnn": ("aten._scaled_dot_product_cudnn_attention.default", ("attn_bias", "compute_log_sumexp", "dropout_p", "is_causal",
                                                                    "return_debug_mask")),
    "efficient": ("aten._scaled_dot_product_efficient_attention.default", ("attn_bias", "compute_log_sumexp", "dropout_p", "is_causal")),
    "any": ("aten._scaled_dot_product_flash_attention_for_cpu.default", ("dropout_p", "is_causal")),
}


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """softmax(query key' * scale + mask) value without dropout. causal: row i has the columns up to i. mask: "" for none.

    group: heads of queries in a row that share a head of keys and values
    hidden_are_zeros: rows that the mask hides whole are zeros; else they are NaN, as softmax gives
    library: the kernels that compute it: "flash", "cudnn", "efficient", or "any" where the framework chooses
    """

    query: str
    key: str
    value: str
    mask: str
    scale: float
    causal: bool
    library: str
    group: int = 1
    hidden_are_zeros: bool = False


def attention_call(node: Node, graph: Graph) -> AttentionCall | None:
    """The attention that a node is the result of; None for other nodes, with dropout, and where heads or types differ."""
    if node.kind == "library.attention":
        call = _of_graph(node)
    else:
        call = next((_of_torch(node, graph, library, names) for library, (op, names) in TORCH_ARGUMENTS.items() if node.detail == op), None)
    if call is None:
        return None
    q, k, v = (graph.type_of(x) for x in (call.query, call.key, call.value))
    rank, group = len(q.shape), group_of(q.shape[:-2], k.shape[:-2])
    alike = len(k.shape) == len(v.shape) == rank > 1 and k.shape[:-2] == v.shape[:-2]
    same = q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2] and q.dtype == k.dtype == v.dtype == node.type.dtype
    return replace(call, group=group) if group and alike and same and node.type.shape == (*q.shape[:-1], v.shape[-1]) else None


def group_of(queries: tuple[int, ...], keys: tuple[int, ...]) -> int:
    """Heads of queries for each head of keys, the last of the lead dimensions; 0 where these do not agree."""
    if queries == keys:
        return 1
    grouped = len(queries) == len(keys) and queries[:-1] == keys[:-1] and keys[-1] and not queries[-1] % keys[-1]
    return queries[-1] // keys[-1] if grouped else 0


def _of_graph(node: Node) -> AttentionCall | None:
    if node.attribute("dropout", 0.0):
        return None
    q, k, v, *mask = node.operands
    scale = node.attribute("scale")
    assert isinstance(scale, float)
    return AttentionCall(q, k, v, mask[0] if mask else "", scale, bool(node.attribute("causal")), "any", hidden_are_zeros=bool(mask))


def _of_torch(node: Node, graph: Graph, library: str, names: tuple[str, ...]) -> AttentionCall | None:
    args, kwargs = node.attribute("args"), node.attribute("kwargs")
    if node.attribute("result", 0) != 0 or not isinstance(args, tuple) or not isinstance(kwargs, tuple):
        return None
    argument_by_name: dict[str, Attribute] = dict(zip(names, args[3:], strict=False))
    for pair in kwargs:
        if isinstance(pair, tuple) and len(pair) == 2:
            argument_by_name[str(pair[0])] = pair[1]
    q, k, v = (operand_of_argument(node, a) for a in args[:3])
    mask = operand_of_argument(node, argument_by_name.get("attn_bias", argument_by_name.get("attn_mask")))
    if not (q and k and v) or argument_by_name.get("dropout_p", 0.0) or argument_by_name.get("return_debug_mask", False):
        return None
    scale = argument_by_name.get("scale")
    width = graph.type_of(q).shape[-1]
    factor = float(scale) if isinstance(scale, float | int) else width ** -0.5
    return AttentionCall(q, k, v, mask, factor, bool(argument_by_name.get("is_causal")), library, hidden_are_zeros=bool(mask))


def operand_of_argument(node: Node, argument: Attribute | None) -> str:
    """The operand that an argument of a torch operator names; "" for none."""
    match argument:
        case ("%", int(number)):
            return node.operands[number]
    return ""


def others_of(node: Node, graph: Graph) -> list[str]:
    """Other results of the same call that the graph reads or returns, as the logarithms of the sums."""
    same: Mapping[str, Node] = {n.name: n for n in graph.nodes if n.kind == node.kind and n.operands == node.operands
                                and _without_result(n) == _without_result(node) and n.name != node.name}
    return [name for name in same if graph.users_by_name[name] or name in graph.escaping]


def _without_result(node: Node) -> tuple[tuple[str, Attribute], ...]:
    return tuple(pair for pair in node.attributes if pair[0] != "result")
