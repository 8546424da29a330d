"""Reading ONNX models: file, bytes or ModelProto to a checked ModelProto with its external data, and named extents.

All checks of the file itself are here, so that the importer can rely on a valid model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import onnx
from google.protobuf.message import DecodeError
from onnx import defs, external_data_helper

from tilefuse.base.errors import ShapeError, UnsupportedOpError, UserError, nearest
from tilefuse.ir.dtype import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType

DTYPE_OF_ELEMENT: dict[int, DType] = {
    onnx.TensorProto.FLOAT: F32,
    onnx.TensorProto.DOUBLE: F64,
    onnx.TensorProto.FLOAT16: F16,
    onnx.TensorProto.BFLOAT16: BF16,
    onnx.TensorProto.FLOAT8E4M3FN: F8E4M3,
    onnx.TensorProto.FLOAT8E5M2: F8E5M2,
    onnx.TensorProto.INT64: I64,
    onnx.TensorProto.INT32: I32,
    onnx.TensorProto.INT16: I16,
    onnx.TensorProto.INT8: I8,
    onnx.TensorProto.UINT64: U64,
    onnx.TensorProto.UINT32: U32,
    onnx.TensorProto.UINT16: U16,
    onnx.TensorProto.UINT8: U8,
    onnx.TensorProto.BOOL: BOOL,
}
ELEMENT_OF_DTYPE: dict[str, int] = {dtype.name: element for element, dtype in DTYPE_OF_ELEMENT.items()}


def element_dtype(element: int, where: str) -> DType:
    """The data type of an ONNX element type. Raises: UnsupportedOpError for types tilefuse has not."""
    if element not in DTYPE_OF_ELEMENT:
        known = element in onnx.TensorProto.DataType.values()
        name = onnx.TensorProto.DataType.Name(element) if known else str(element)
        raise UnsupportedOpError(f"ONNX tensor type {name} is not supported", where=where)
    return DTYPE_OF_ELEMENT[element]


def input_names(model: onnx.ModelProto) -> list[str]:
    """Names of the inputs that a caller gives, in order: those that no initializer fills."""
    initializers = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    return [i.name for i in model.graph.input if i.name not in initializers]


def load_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The checked model and the name by which messages call it.

    Raises: UserError for a missing, unreadable or corrupt file or missing external data;
    UnsupportedOpError for an unknown operator, domain or opset.
    """
    if isinstance(source, onnx.ModelProto):
        model, title, folder = source, source.graph.name or "model", None
    elif isinstance(source, bytes):
        model, title, folder = _parse(source, "the given bytes"), "the given bytes", None
    else:
        path = Path(source)
        title, folder = str(path), path.parent
        model = _parse(_read(path), title)
    _check_text(model, title)
    if not model.HasField("graph") or not model.graph.output:
        raise UserError(f"{title} is not an ONNX model: it holds no graph with outputs")
    if not model.opset_import:
        raise UserError(f"{title} is not a whole ONNX model: it names no opset", hint="the file may be cut short")
    _check_operators(model, title)
    model = _with_external_data(model, title, folder)
    _check_nodes(model, title)
    return model, title


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as cause:
        near = nearest(path.name, [p.name for p in path.parent.glob("*.onnx")]) if path.parent.is_dir() else None
        raise UserError(f"there is no ONNX file {path}", hint=near) from cause
    except OSError as cause:
        raise UserError(f"the ONNX file {path} cannot be read: {cause.strerror}") from cause


def _parse(data: bytes, title: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as cause:
        raise UserError(f"{title} is not an ONNX model, or it is damaged ({len(data)} bytes do not parse)") from cause
    return model


def _check_text(message: Any, title: str, where: str = "") -> None:
    """Raises: UserError for a name in the model that is not UTF-8, which the package gives as bytes."""
    if isinstance(message, onnx.TensorProto):
        fields = [(onnx.TensorProto.DESCRIPTOR.fields_by_name["name"], message.name)]  # its data may be large, and is no text
    else:
        fields = message.ListFields()
    for field, value in fields:
        place = f"{where}.{field.name}" if where else field.name
        for item in value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,):
            if field.type == field.TYPE_STRING and isinstance(item, bytes):
                raise UserError(f"{title} is not a valid ONNX model: a name in it is not UTF-8 text: {item[:80]!r}", where=place,
                                hint="the file may be damaged")
            if field.message_type is not None:
                _check_text(item, title, place)


def _with_external_data(model: onnx.ModelProto, title: str, folder: Path | None) -> onnx.ModelProto:
    """The model with its external data read in; the given object is not changed."""
    outside = [t for t in _all_tensors(model.graph) if external_data_helper.uses_external_data(t)]
    if not outside:
        return model
    if folder is None:
        raise UserError(
            f"the data of tensor {outside[0].name!r} (and {len(outside) - 1} more) lies outside {title}",
            hint="give the path of the model file, so that its data files are found beside it",
        )
    for tensor in outside:
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        try:
            external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as cause:
            exists = (folder / location).exists()
            raise UserError(
                f"the data of tensor {tensor.name!r} of {title} should lie in {folder / location}, "
                f"{'which does not hold it' if exists else 'which does not exist'}"
            ) from cause
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return model


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_tensors(inner)


def all_nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their subgraphs, outer ones first."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from all_nodes(inner.node)


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs of a node and those inside them."""
    for inner in all_nodes([node]):
        for attribute in inner.attribute:
            yield from ([attribute.g] if attribute.HasField("g") else [])
            yield from attribute.graphs


def normal_domain(domain: str) -> str:
    """The domain's canonical name: "" for the standard operators."""
    return "" if domain == "ai.onnx" else domain


def opsets_of(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Opset version of every domain imported."""
    return {normal_domain(o.domain): o.version for o in imports}


def _check_operators(model: onnx.ModelProto, title: str) -> None:
    """Raises: UnsupportedOpError naming every operator, domain or opset that the installed onnx package does not know."""
    newest = defs.onnx_opset_version()
    local = {(normal_domain(f.domain), f.name) for f in model.functions}
    scopes = [("the graph", opsets_of(model.opset_import), model.graph.node)]
    scopes += [(f"function {f.name}", opsets_of(f.opset_import) or opsets_of(model.opset_import), f.node) for f in model.functions]
    unknown: dict[str, None] = {}
    for _, opsets, nodes in scopes:
        if opsets.get("", 1) > newest:
            raise UnsupportedOpError(
                f"{title} uses opset {opsets['']}; the newest opset of the installed onnx package ({onnx.__version__}) is {newest}",
                hint="export the model with an older opset, or upgrade onnx",
            )
        for node in all_nodes(nodes):
            domain = normal_domain(node.domain)
            if (domain, node.op_type) in local:
                continue
            if domain not in opsets:
                unknown[f"{node.op_type} of domain {domain!r}, which the model does not import"] = None
            elif not defs.has(node.op_type, opsets[domain], domain):
                unknown[
                    f"{domain + '.' if domain else ''}{node.op_type} (opset {opsets[domain]}, node {node.name or node.output[0]!r})"
                ] = None
    if unknown:
        known = [schema.name for schema in defs.get_all_schemas() if schema.domain == ""]
        first = next(iter(unknown)).split(" ")[0]
        raise UnsupportedOpError(f"{title} uses unknown operators: {'; '.join(unknown)}", hint=nearest(first, known))


def _check_nodes(model: onnx.ModelProto, title: str) -> None:
    """Raises: UserError for a node that breaks its operator's signature, or a value that two nodes define.

    The package's check of whole models refuses shapes that exporters leave out, and copies all weights; so nodes are checked alone.
    """
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version or onnx.IR_VERSION
    context.opset_imports = opsets_of(model.opset_import)
    local = {(normal_domain(f.domain), f.name) for f in model.functions}
    defined: set[str] = set()
    for item in model.graph.input:
        if item.name in defined:
            raise UserError(f"{title} has two inputs called {item.name!r}")
        defined.add(item.name)
    for node in model.graph.node:
        for name in node.output:
            if name and name in defined:
                raise UserError(f"value {name!r} of {title} is defined twice", where=f"node {node.name or node.op_type}")
            defined.add(name)
        if (normal_domain(node.domain), node.op_type) in local or any(a.HasField("g") or a.graphs for a in node.attribute):
            continue
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as cause:
            if "is deprecated" in str(cause):  # it keeps the meaning of its last version; exporters still write some for years
                continue
            raise UserError(
                f"{title} is not a valid ONNX model: {str(cause).strip().splitlines()[0]}",
                where=f"node {node.name or next((o for o in node.output if o), '')} ({node.op_type})",
            ) from cause


def input_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], taken: frozenset[str]) -> dict[str, tuple[int, ...]]:
    """The static shape of every graph input not in `taken`; `shapes` gives those of dynamic ones.

    A named extent that one given shape fixes is fixed for all inputs; its own name may be given too, with one number: {"batch": (2,)}.
    Raises: NameLookupError for an unknown name in `shapes`; ShapeError for a shape that contradicts the model or is missing.
    """
    if not isinstance(shapes, Mapping):
        raise UserError(f"shapes is a {type(shapes).__name__}, not a mapping from inputs to shapes", hint="shapes={'x': (1, 3, 224, 224)}")
    required = {i.name: i for i in model.graph.input if i.name not in taken}
    extents = dict.fromkeys(d.dim_param for i in required.values() for d in _dimensions(i) or () if d.dim_param)
    fixed: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        if name in required:
            continue
        if name not in extents:
            named = f"; its extents: {', '.join(extents)}" if extents else ""
            raise UserError(f"the model has no input {name!r}", hint=nearest(name, [*required, *extents])
                            or f"its inputs: {', '.join(required)}{named}")
        _check_extents(name, shape)
        if len(shape) != 1:
            raise ShapeError(f"{name!r} is an extent of the model's inputs, but {_shape_text(shape)} is given",
                             hint=f"give one number: shapes={{{name!r}: (2,)}}, or --shapes {name}:2")
        fixed[name] = (int(shape[0]), name)
    for name, shape in shapes.items():
        if name in required:
            _check_extents(name, shape)
            _bind_names(required[name], tuple(shape), fixed)
    return {name: _static_shape(proto, shapes.get(name), fixed) for name, proto in required.items()}


def _check_extents(name: str, shape: object) -> None:
    """Raises: ShapeError for anything but a sequence of non-negative integers."""
    whole = isinstance(shape, Sequence) and not isinstance(shape, str)
    if not whole or not all(hasattr(e, "__index__") and not isinstance(e, bool) and int(e) >= 0 for e in cast(Sequence[Any], shape)):
        raise ShapeError(f"the given shape of input {name!r} is {shape!r}", hint="give whole numbers: shapes={'x': (1, 3, 224, 224)}")


def _dimensions(proto: onnx.ValueInfoProto) -> list[Any] | None:
    tensor = proto.type.tensor_type
    return list(tensor.shape.dim) if tensor.HasField("shape") else None


def static_extent(dim: Any) -> int | None:
    """The extent that a dimension states; None where it is dynamic, which some exporters write as -1."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _bind_names(proto: onnx.ValueInfoProto, shape: tuple[int, ...], fixed: dict[str, tuple[int, str]]) -> None:
    dims = _dimensions(proto)
    if dims is None:
        return
    if len(dims) != len(shape):
        raise ShapeError(f"input {proto.name!r} has {len(dims)} dimensions, but the given shape is {_shape_text(shape)}")
    for dim, extent in zip(dims, shape):
        if static_extent(dim) not in (None, extent):
            raise ShapeError(f"input {proto.name!r} is {_declared_text(dims)} in the model, but the given shape is {_shape_text(shape)}")
        if dim.dim_param:
            known, giver = fixed.setdefault(dim.dim_param, (extent, proto.name))
            if known != extent:
                raise ShapeError(
                    f"extent {dim.dim_param!r} is {known} by the shape of {giver!r} and {extent} by the shape of {proto.name!r}"
                )


def _static_shape(proto: onnx.ValueInfoProto, chosen: Sequence[int] | None, fixed: Mapping[str, tuple[int, str]]) -> tuple[int, ...]:
    if chosen is not None:
        return tuple(chosen)
    dims = _dimensions(proto)
    if dims is None:
        raise ShapeError(
            f"input {proto.name!r} has no shape in the model",
            hint=f"give one: shapes={{{proto.name!r}: (...)}}, or --shapes {proto.name}:1x3x...",
        )
    extents = [fixed[d.dim_param][0] if d.dim_param in fixed else static_extent(d) for d in dims]
    if any(e is None for e in extents):
        filled = tuple(e if e is not None else 1 for e in extents)
        name = next((d.dim_param for d, e in zip(dims, extents) if e is None and d.dim_param), "")
        alone = f"; or the extent alone, for every input: --shapes {name}:1" if name else ""
        raise ShapeError(
            f"input {proto.name!r} has dynamic extents: {_declared_text(dims)}",
            hint=f"give its shape: shapes={{{proto.name!r}: {filled}}}, or --shapes {proto.name}:{_shape_text(filled)}{alone}",
        )
    return tuple(e for e in extents if e is not None)


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _declared_text(dims: Sequence[Any]) -> str:
    return "x".join(str(d.dim_value) if static_extent(d) is not None else d.dim_param or "?" for d in dims)
