"""ONNX models to graphs: `import_onnx` visits the model's nodes once, in order.

A node whose operands are all known is evaluated (shapes, weights); else its lowering in `ops_*.py` is called; else the function body that
the ONNX standard (or the model) gives for it is imported in its place. Control flow is in `ops_control.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
import onnx
from onnx import defs, numpy_helper

from tilefuse.base.errors import CompilerError, UnsupportedOpError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.frontends.imported import Imported, Titles
from tilefuse.frontends.onnx.call import (
    FUNCTION_BODY,
    INEXPRESSIBLE,
    ONNX_OPS,
    Call,
    Lowered,
    Value,
    ValueNeededError,
    dtype_of_array,
)
from tilefuse.frontends.onnx.fold import fold
from tilefuse.frontends.onnx.model import (
    ELEMENT_OF_DTYPE,
    all_nodes,
    element_dtype,
    inner_graphs,
    input_shapes,
    load_model,
    normal_domain,
    opsets_of,
)
from tilefuse.frontends.onnx.ops import load_all_lowerings
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.graph import Graph
from tilefuse.ir.names import plain_name
from tilefuse.ir.rewrite import rename_values

# A known array of at most this many elements is written into the text; larger ones become constant inputs, bound once.
INLINE_LIMIT_ELEMENTS = 4


def import_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Imported:
    """The graph of an ONNX model and the data of its constants.

    `shapes` gives the shapes of inputs with dynamic extents. `values` makes inputs constants: needed for those whose data
    decides a shape (the target of Reshape, the ends of Slice ...); they are no inputs of the graph then.
    Raises: UserError for a bad file or missing shapes; ValueNeededError where `values` must be given;
    UnsupportedOpError for what cannot be expressed, naming node, operator and opset.
    """
    load_all_lowerings()
    model, title = load_model(source)
    try:
        return ModelImporter(model, title).run(shapes or {}, values or {})
    except CompilerError as error:
        error.add_note(f"while importing {title}")
        raise


@dataclass(frozen=True, slots=True)
class Stop:
    """The place where an import ended early: a node of the main graph that cannot be expressed, or not before data is known."""

    node: onnx.NodeProto
    error: UnsupportedOpError | ValueNeededError


def import_until(model: onnx.ModelProto, title: str, shapes: Mapping[str, Sequence[int]],
                 values: Mapping[str, np.ndarray]) -> Imported | Stop:
    """The graph of a model that `load_model` gave, or the node that stopped the import. Raises: as `import_onnx` for all other errors."""
    load_all_lowerings()
    importer = ModelImporter(model, title)
    try:
        return importer.run(shapes, values)
    except (UnsupportedOpError, ValueNeededError) as error:
        if importer.reached is None:
            raise
        return Stop(importer.reached, error)


class Scope:
    """Names of one graph or function body; a subgraph also sees those around it."""

    def __init__(self, opsets: Mapping[str, int], outer: Scope | None = None, attributes: Mapping[str, Any] | None = None) -> None:
        self.opsets = opsets
        self.outer = outer
        inherited: Mapping[str, Any] = {} if outer is None else outer.attributes
        self.attributes: Mapping[str, Any] = inherited if attributes is None else attributes
        self.values: dict[str, Value] = {}

    def find(self, name: str, use: str = "value {!r} is used") -> Value:
        """The value called `name`. Raises: UserError when nothing defines it, naming its reader."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise UserError(f"{use.format(name)}, but no node or input before it defines it", hint=nearest(name, self.values))


class ModelImporter:
    """The state of one import: the builder, the data of constants, and the current scope."""

    def __init__(self, model: onnx.ModelProto, title: str) -> None:
        self.model = model
        self.title = title
        self.builder = TensorBuilder(model.graph.name or "model")
        self.functions = {(normal_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.constants: dict[str, np.ndarray] = {}
        self.constant_names: dict[int, tuple[np.ndarray, str]] = {}
        self.weight_titles: dict[str, str] = {}
        self.renames: dict[str, str] = {}
        self.scope = Scope(opsets_of(model.opset_import))
        self.reached: onnx.NodeProto | None = None  # the current node of the main graph
        self.visiting: list[tuple[str, str]] = []  # the model's own functions around the current node

    def run(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, np.ndarray]) -> Imported:
        """Visits the main graph."""
        proto = self.model.graph
        initializers = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
        self._bind_initializers(proto)
        for name in values:
            if name not in {i.name for i in proto.input}:
                raise UserError(f"the model has no input {name!r}", hint=nearest(name, [i.name for i in proto.input]))
        outside = [i for i in proto.input if i.name not in initializers and i.name not in values]
        for item in outside:
            if item.type.WhichOneof("value") != "tensor_type":
                kind = (item.type.WhichOneof("value") or "value without a type").removesuffix("_type")
                raise UnsupportedOpError(f"input {item.name!r} is a {kind}; only tensors are supported", where=f"input {item.name}")
        dtypes = {i.name: element_dtype(i.type.tensor_type.elem_type, f"input {i.name!r}") for i in outside}
        shape_by_input = input_shapes(self.model, shapes, frozenset(initializers) | frozenset(values))
        before = len(self.builder.inputs)
        for item in sorted(outside, key=lambda i: not _is_plain(i.name)):
            input_name = self.builder.input(item.name, dtypes[item.name], shape_by_input[item.name])
            self.scope.values[item.name] = Value(name=input_name, depends=frozenset({item.name}))
        declared = {i.name: i for i in self.builder.inputs[before:]}
        self.builder.inputs[before:] = [declared[str(self.scope.values[i.name].name)] for i in outside]
        for name, array in values.items():
            self.scope.values[name] = Value(array=np.asarray(array))
        for node in needed_nodes(proto):
            self.reached = node
            self._visit([node])
        results = []
        for out in proto.output:
            self.reached = next((node for node in proto.node if out.name in node.output), None)
            value = self.scope.find(out.name, "the model gives back {!r}")
            if value.items is not None:
                raise UnsupportedOpError(f"output {out.name!r} is a sequence; only tensors are supported", where=f"output {out.name}")
            results.append(self.materialise(value, out.name))
        graph = renamed(self.builder.finish(results), self.renames)
        used = {name for node in graph.nodes for name in node.reads()} | set(graph.results)
        graph = replace(graph, inputs=tuple(i for i in graph.inputs if not i.constant or i.name in used))
        data = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in self._all_constants().items() if name in used}
        inputs = {str(self.scope.values[i.name].name): i.name for i in outside}
        weights = {name: title for name, title in self.weight_titles.items() if name in data}
        titles = Titles(inputs | weights, tuple(out.name for out in proto.output))
        return Imported(graph, data, arguments=tuple(inputs), titles=titles)

    def _all_constants(self) -> dict[str, np.ndarray]:
        return {**self.builder.constant_data, **self.constants}

    def _bind_initializers(self, proto: onnx.GraphProto) -> None:
        for tensor in proto.initializer:
            element_dtype_or_object(tensor)
            self.scope.values[tensor.name] = Value(array=numpy_helper.to_array(tensor), title=tensor.name)
        for sparse in proto.sparse_initializer:
            self.scope.values[sparse.values.name] = Value(array=dense_array(sparse), title=sparse.values.name)

    def materialise(self, value: Value, wanted: str) -> str:
        """The builder's name for `value`; known data becomes a constant, the same array always the same one."""
        if value.name is not None:
            return value.name
        array = value.array
        if array is None:
            raise UnsupportedOpError(f"{wanted} is a sequence where a tensor is needed", where=wanted)
        if id(array) not in self.constant_names:
            dtype = dtype_of_array(array, wanted)
            if array.size <= INLINE_LIMIT_ELEMENTS or (array.size and array.strides == (0,) * array.ndim and array.size <= 64):
                name = self.builder.constant_array(np.ascontiguousarray(array).reshape(array.shape))
            else:
                name = self.builder.input(value.title or wanted, dtype, array.shape, constant=True)
                self.constants[name] = array
                self.weight_titles[name] = value.title or wanted
            self.constant_names[id(array)] = (array, name)  # the array is kept, so that its id stays its own
        return self.constant_names[id(array)][1]

    def run_subgraph(self, graph: onnx.GraphProto, arguments: Sequence[Value], call: Call) -> list[Value]:
        """Results of the body of a control-flow operator on `arguments`."""
        if len(graph.input) != len(arguments):
            raise call.wrong(f"its body takes {len(graph.input)} values, but it is given {len(arguments)}")
        outer, self.scope = self.scope, Scope(self.scope.opsets, self.scope)
        try:
            self._bind_initializers(graph)
            self.scope.values.update({i.name: a for i, a in zip(graph.input, arguments)})
            self._visit(graph.node)
            return [self.scope.find(o.name) for o in graph.output]
        finally:
            self.scope = outer

    def run_function(self, function: onnx.FunctionProto, call: Call) -> list[Value | None]:
        """Results of a function body, imported in place of `call`."""
        defaults = {a.name: attribute_value(a) for a in function.attribute_proto}
        inner = Scope({**self.scope.opsets, **opsets_of(function.opset_import)}, None, {**defaults, **call.attributes})
        inner.values.update({name: argument for name, argument in zip(function.input, call.inputs) if argument is not None})
        for missing in [*function.input[len(call.inputs) :], *(n for n, g in zip(function.input, call.inputs) if g is None)]:
            inner.values[missing] = ABSENT
        outer, self.scope = self.scope, inner
        try:
            self._visit(function.node)
            defined = [name in inner.values for name in function.output]  # a body may omit the value of an optional output
            return [
                inner.values[name] if there and inner.values[name] is not ABSENT else None for name, there in zip(function.output, defined)
            ]
        finally:
            self.scope = outer

    def _visit(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for node in nodes:
            results = self._node(node)
            for name, value in zip(node.output, results):
                if name and value is not None:
                    self.scope.values[name] = value if value.title or value.array is None else replace(value, title=name)

    def _node(self, node: onnx.NodeProto) -> list[Value | None]:
        operands = [self.scope.find(name) if name else None for name in node.input]
        operands = [None if v is ABSENT else v for v in operands]
        domain = normal_domain(node.domain)
        attributes = self._attributes(node)
        local = self.functions.get((domain, node.op_type, node.overload))
        opset = self.scope.opsets.get(domain, 1)
        num_outputs = max((i for i, o in enumerate(node.output, 1) if o), default=0)  # nameless ones at the end are not asked for
        label = node.name or next((o for o in node.output if o), node.op_type)
        if local is not None:
            call = Call(self, node.op_type, domain, opset, opset, label, operands, attributes, num_outputs)
            if (domain, node.op_type) in self.visiting:
                raise call.wrong(f"function {node.op_type} calls itself, by way of {' -> '.join(name for _, name in self.visiting)}")
            self.visiting.append((domain, node.op_type))
            try:
                return self.run_function(local, call)
            finally:
                self.visiting.pop()
        schema = schema_of(node.op_type, opset, domain)
        if schema is None:
            raise UnsupportedOpError(
                f"ONNX operator {node.op_type} of domain {domain or 'ai.onnx'!r} (opset {opset}) is unknown", where=f"node {label}"
            )
        call = Call(self, node.op_type, domain, schema.since_version, opset, label, operands, attributes, num_outputs)
        depends = frozenset[str]().union(*(v.depends for v in operands if v is not None))
        if all(v is None or v.array is not None for v in operands):
            arrays = [None if v is None else v.array for v in operands]
            known = fold(concrete_node(node, self.scope.attributes), arrays, schema.since_version, self.scope.opsets)
            if known is not None:
                return [Value(array=a, depends=depends) for a in known]
        self.builder.span = Span(f"{self.title}: {call.place}", line_text=label, path=scope_path(label), operator=call.op)
        lowering = ONNX_OPS.get((domain, node.op_type))
        if lowering is None:
            return self._expand(node, schema, call)
        first = len(self.builder.nodes)
        try:
            lowered = lowering(call)
        except CompilerError as error:
            if error.where is None and not getattr(error, "__notes__", ()):
                error.add_note(f"in {call.place}")
            raise
        except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as cause:
            # The model is input: attributes of the wrong length, rank or kind show themselves where a lowering trips over them.
            raise UserError(
                f"{call.place}: its attributes do not fit its operands ({type(cause).__name__}: {cause})",
                where=f"operands {', '.join(self._operand_text(v) for v in operands)}",
            ) from cause
        if lowered is FUNCTION_BODY:
            return self._expand(node, schema, call)
        listed: Sequence[Lowered] = lowered if isinstance(lowered, (list, tuple)) else [cast(Lowered, lowered)]
        results = [self._value(r, depends) for r in listed]
        self._name_results(first, node.output, results)
        return results

    def _expand(self, node: onnx.NodeProto, schema: defs.OpSchema, call: Call) -> list[Value | None]:
        """The operator's function body from the ONNX standard, visited. Raises: UnsupportedOpError when it has none."""
        text: bytes = b""
        if schema.has_function:
            text = body_text(schema.get_function_with_opset_version, schema.function_opset_versions, call.opset)
        elif schema.has_context_dependent_function:
            types = [self._type_proto(v).SerializeToString() for v in call.inputs]
            concrete = concrete_node(node, self.scope.attributes)
            ask = schema.get_context_dependent_function_with_opset_version
            versions = schema.context_dependent_function_opset_versions
            text = body_text(lambda version: ask(version, concrete.SerializeToString(), types), versions, call.opset)
        if not text:
            raise call.unsupported(INEXPRESSIBLE.get(call.op, "tilefuse has no lowering for it, and the standard gives no function body"))
        function = onnx.FunctionProto()
        function.ParseFromString(text)
        defaults = {name: attribute_value(a.default_value) for name, a in schema.attributes.items() if a.default_value.type}
        call.attributes = {**defaults, **call.attributes}
        return self.run_function(function, call)

    def _type_proto(self, value: Value | None) -> onnx.TypeProto:
        if value is None:
            return onnx.TypeProto()
        if value.array is not None:
            return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.array.dtype), value.array.shape)
        if value.name is None:
            return onnx.TypeProto()
        known = self.builder.type_of(value.name)
        return onnx.helper.make_tensor_type_proto(ELEMENT_OF_DTYPE[known.dtype.name], known.shape)

    def _operand_text(self, value: Value | None) -> str:
        if value is None:
            return "none"
        if value.array is not None:
            return f"{value.array.dtype}{list(value.array.shape)}"
        return str(self.builder.type_of(value.name)) if value.name is not None else "a sequence"

    def _attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for a in node.attribute:
            if not a.ref_attr_name:
                attributes[a.name] = attribute_value(a)
            elif a.ref_attr_name in self.scope.attributes:
                attributes[a.name] = self.scope.attributes[a.ref_attr_name]
        return attributes

    def _value(self, lowered: Lowered, depends: frozenset[str]) -> Value | None:
        match lowered:
            case None:
                return None
            case Value():
                return lowered
            case str():
                return Value(name=lowered, depends=depends)
            case np.ndarray():
                return Value(array=lowered, depends=depends)
        raise TypeError(f"a lowering returned {lowered!r}")

    def _name_results(self, first: int, outputs: Sequence[str], results: Sequence[Value | None]) -> None:
        """Records the model's names for nodes that were made for this operator."""
        new_nodes = {n.name for n in self.builder.nodes[first:]}
        for output, value in zip(outputs, results):
            if output and value is not None and value.name in new_nodes and value.name not in self.renames:
                self.renames[value.name] = output


ABSENT = Value()


def needed_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that an output needs, in order: unused nodes of an exporter may be inexpressible, and do not matter."""
    needed_values = {o.name for o in graph.output}
    needed = []
    for node in reversed(graph.node):
        if needed_values.intersection(node.output):
            needed.append(node)
            needed_values.update(name for inner in all_nodes([node]) for name in inner.input)
            needed_values.update(name for inner in inner_graphs(node) for name in (o.name for o in inner.output))
    return needed[::-1]


@cache
def schema_of(op: str, opset: int, domain: str) -> Any:
    """The operator's schema, or None where the onnx package knows none. Cached: the package copies it at every question."""
    return defs.get_schema(op, opset, domain) if defs.has(op, opset, domain) else None


def body_text(ask: Callable[[int], bytes], versions: Sequence[int], opset: int) -> bytes:
    """The serialised function body for an opset, empty if there is none.

    The package gives a body only for opsets in which its nodes still have their original meaning. A body names the opset of its nodes: the
    newest body up to `opset` is valid, else the first one after it.
    """
    before = sorted((v for v in versions if v <= opset), reverse=True)
    after = sorted(v for v in versions if v > opset)
    return next((text for text in map(ask, (opset, *before, *after)) if text), b"")


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """The attribute's value in Python's types: text for bytes, arrays for tensors, graphs as they are."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SparseTensorProto):
        return dense_array(value)
    if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [v.decode(errors="replace") for v in value]
    return value


def dense_array(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """A sparse tensor written out."""
    data, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), data.dtype)
    dense[tuple(places.T) if places.ndim == 2 else np.unravel_index(places, dense.shape)] = data
    return dense


def element_dtype_or_object(tensor: onnx.TensorProto) -> None:
    """Raises: UserError when the initializer's data is cut short. Its type is judged where it is used: it may be folded away."""
    if tensor.data_type == onnx.TensorProto.STRING or not tensor.HasField("raw_data"):
        return
    bits = {onnx.TensorProto.INT4: 4, onnx.TensorProto.UINT4: 4, onnx.TensorProto.FLOAT4E2M1: 4}.get(tensor.data_type)
    bits = bits or 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    num_bytes = (int(np.prod(tensor.dims, dtype=np.int64)) * bits + 7) // 8
    if bits >= 8 and len(tensor.raw_data) != num_bytes:
        raise UserError(
            f"initializer {tensor.name!r} of shape {tuple(tensor.dims)} holds {len(tensor.raw_data)} bytes instead of {num_bytes}")


def concrete_node(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> onnx.NodeProto:
    """`node` with references to a function's attributes replaced by their values; `node` itself if it has none."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    plain = [a for a in node.attribute if not a.ref_attr_name]
    concrete = onnx.NodeProto()
    concrete.CopyFrom(node)
    del concrete.attribute[:]
    concrete.attribute.extend(plain)
    for a in node.attribute:
        if a.ref_attr_name and a.ref_attr_name in attributes:
            value = attributes[a.ref_attr_name]
            value = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            concrete.attribute.append(onnx.helper.make_attribute(a.name, value, attr_type=a.type or None))
    return concrete


def _is_plain(name: str) -> bool:
    """Whether a model's name is one of the text form as it stands."""
    return bool(name) and name == plain_name(name) and not name[0].isdigit()


def renamed(graph: Graph, wanted: Mapping[str, str]) -> Graph:
    """`graph` with nodes renamed by `wanted`, where the names are free; characters outside the text form become "_".

    If two nodes would then have one name, the node that had it before keeps it.
    """
    taken = {i.name for i in graph.inputs} | {n.name for n in graph.nodes if n.name not in wanted}
    names: dict[str, str] = {}
    for node in sorted(graph.nodes, key=lambda n: not _is_plain(wanted.get(n.name, ""))):
        if node.name not in wanted:
            continue
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in wanted[node.name]) or "v"
        base = "_" + base if base[0].isdigit() else base
        name, count = base, 0
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        names[node.name] = name
    return rename_values(graph, names)


def scope_path(label: str) -> str:
    """The modules in an operator's name, as exporters write them: "/encoder/layers.0/MatMul" is in "encoder.layers.0"."""
    return ".".join(part for part in label.split("/")[:-1] if part)
