"""The user's names of a traced graph's inputs and results, from AOTAutograd's descriptions and the names of dynamo's inputs.

    primals_3   what torch gives as input 2          -> "layers.0.weight", dynamo's name of that input
    tangents_1  gradient of result 0                 -> "gradient of result 0"
    results     result 1, the gradient of an input   -> "result 1", "gradient of layers.0.weight"
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx


@dataclass(frozen=True)
class UserNames:
    """Names of a graph's inputs, by placeholder, and of its outputs, in order; unnamed ones are missing, or ""."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()


NO_NAMES = UserNames()


def user_names(gm: fx.GraphModule, names: Sequence[str]) -> UserNames:
    """The names. names: those of the inputs of dynamo's graph, in order."""
    name_by_node = {node.name: input_name(node.meta.get("desc"), names) for node in gm.graph.find_nodes(op="placeholder")}
    output = gm.graph.output_node()
    descriptions = output.meta.get("desc")
    listed = list(descriptions) if isinstance(descriptions, list | tuple) else []
    plain = sum(type(desc).__name__ == "PlainAOTOutput" for desc in listed)
    return UserNames({node: name for node, name in name_by_node.items() if name},
                     tuple(output_name(desc, names, plain == 1) for desc in listed))


def input_name(desc: Any, names: Sequence[str]) -> str:
    """The name of one input; "" for an input that is not the user's (saved by a forward graph for its backward graph)."""
    kind = type(desc).__name__
    if kind == "PlainAOTInput":
        return names[desc.idx] if desc.idx < len(names) else ""
    if kind in ("ParamAOTInput", "BufferAOTInput"):
        return str(desc.target)
    if kind == "TangentAOTInput":
        return _behind("gradient of", output_name(desc.output, names))
    if kind in ("ViewBaseAOTInput", "SyntheticBaseAOTInput"):
        return _behind("memory of", input_name(desc.base_of, names))
    if kind == "SubclassGetAttrAOTInput":
        base = input_name(desc.base, names)
        return f"{base}.{desc.attr}" if base else ""
    return ""


def output_name(desc: Any, names: Sequence[str], is_only: bool = False) -> str:
    """The name of one output; "" for an output that only the backward graph sees."""
    kind = type(desc).__name__
    if kind == "PlainAOTOutput":
        return "result" if is_only else f"result {desc.idx}"
    if kind == "GradAOTOutput":
        return _behind("gradient of", input_name(desc.grad_of, names))
    if kind == "InputMutationAOTOutput":
        return _behind("new", input_name(desc.mutated_input, names))
    if kind == "IntermediateBaseAOTOutput":
        return _behind("memory of", output_name(desc.base_of, names))
    return ""


def _behind(words: str, name: str) -> str:
    return f"{words} {name}" if name else ""
