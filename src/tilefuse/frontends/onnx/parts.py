"""An ONNX model in parts, where some nodes cannot be compiled with the rest: parts to compile, and parts for the reference implementation.

    x -> conv -> relu -> NonZero -> gather -> mul
    compiled: conv, relu · reference: NonZero · compiled, sizes known when running: gather, mul

Every node gets a level, one more than its operands' wherever the two sides meet; the nodes of a level are one part. A node that waits for
data (the k of a TopK that the model computes) begins a new level, where that data is an ordinary input. Nothing is compiled or run here.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilefuse.frontends.onnx.importer import needed_nodes
from tilefuse.frontends.onnx.model import all_nodes, inner_graphs

# A node's identity: its first output that has a name.
Key = str


@dataclass(frozen=True)
class Part:
    """Nodes of one level. ours: whether they are to be compiled. takes, gives: names of values; released: values without later readers."""

    nodes: tuple[onnx.NodeProto, ...]
    ours: bool
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    released: tuple[str, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """The identities of its nodes."""
        return tuple(map(key_of, self.nodes))

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of its operators, each once."""
        return tuple(dict.fromkeys(node.op_type for node in self.nodes))


def key_of(node: onnx.NodeProto) -> Key:
    """The node's identity in its graph."""
    return str(next((name for name in node.output if name), node.name))


def reads_of(node: onnx.NodeProto) -> tuple[str, ...]:
    """Values that a node reads, including those that its subgraphs take from outside."""
    inner = list(inner_graphs(node))
    names = dict.fromkeys(name for n in all_nodes([node]) for name in n.input if name)
    names |= dict.fromkeys(out.name for graph in inner for out in graph.output)
    own = {name for graph in inner for n in graph.node for name in n.output}
    own |= {i.name for graph in inner for i in graph.input} | {t.name for graph in inner for t in graph.initializer}
    return tuple(name for name in names if name not in own or name in node.input)


def split(model: onnx.ModelProto, hosted: Collection[Key], waiting: Collection[Key]) -> tuple[Part, ...]:
    """The parts of a model, in the order in which they run.

    hosted: nodes that the reference implementation runs; waiting: nodes whose operands' data must be known when they are compiled.
    """
    graph = model.graph
    initializers = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    nodes = needed_nodes(graph)
    level_of: dict[str, int] = {}
    nodes_at: dict[int, list[onnx.NodeProto]] = {}
    for node in nodes:
        side, waits = key_of(node) in hosted, key_of(node) in waiting
        below = [level_of[name] for name in reads_of(node) if name in level_of]
        level = max((at if at % 2 == side and not waits else at + 1 + (at % 2 == side) for at in below), default=int(side))
        level_of.update(dict.fromkeys((name for name in node.output if name), level))
        nodes_at.setdefault(level, []).append(node)
    results = {out.name for out in graph.output}
    listed = [nodes_at[level] for level in sorted(nodes_at)]
    last_reader = {name: at for at, members in enumerate(listed) for node in members for name in reads_of(node)}
    parts: list[Part] = []
    for at, level in enumerate(sorted(nodes_at)):
        members = nodes_at[level]
        computed = {name for node in members for name in node.output if name}
        takes = dict.fromkeys(n for node in members for n in reads_of(node) if n not in computed and n not in initializers)
        gives = [n for node in members for n in node.output if n and (n in results or last_reader.get(n, -1) > at)]
        released = [n for n in takes if last_reader[n] == at and n not in results]
        parts.append(Part(tuple(members), level % 2 == 0, tuple(takes), tuple(gives), tuple(released)))
    return tuple(parts)


def part_model(model: onnx.ModelProto, part: Part, arrays: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A part as a model of its own, for inputs like these arrays; inputs that are not in `arrays` get no type."""
    read = {name for node in part.nodes for name in reads_of(node)}
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(arrays[name].dtype), arrays[name].shape)
              if name in arrays else helper.make_empty_tensor_value_info(name) for name in part.takes]
    outputs = [helper.make_empty_tensor_value_info(name) for name in part.gives]
    graph = helper.make_graph(part.nodes, model.graph.name or "model", inputs, outputs,
                              [t for t in model.graph.initializer if t.name in read],
                              sparse_initializer=[t for t in model.graph.sparse_initializer if t.values.name in read])
    return helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions,
                             ir_version=model.ir_version or onnx.IR_VERSION)


def with_constants_held(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its Constant nodes as initializers, which belong to every part that reads them. The given object is not changed."""
    constants = [_constant(node) for node in model.graph.node]
    if not any(constants):
        return model
    converted = onnx.ModelProto()
    converted.CopyFrom(model)
    del converted.graph.node[:]
    converted.graph.node.extend(node for node, constant in zip(model.graph.node, constants, strict=True) if constant is None)
    converted.graph.initializer.extend(constant for constant in constants if constant is not None)
    return converted


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The data of a Constant node under the name of its output; None for text, sparse data and other operators."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(attribute.t)
            tensor.name = node.output[0]
            return tensor
        case "value_int" | "value_ints":
            return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), np.int64), node.output[0])
        case "value_float" | "value_floats":
            return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), np.float32), node.output[0])
    return None


def given_results(model: onnx.ModelProto) -> Sequence[str]:
    """Results that no node computes: inputs or constants that the model returns."""
    computed = {name for node in model.graph.node for name in node.output}
    return [out.name for out in model.graph.output if out.name not in computed]
