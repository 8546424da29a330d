"""Facts about model files of other tools, read as data: ONNX models and programs of torch.export. Weights are counted and not read."""
from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.runtime.stores.cache import DAMAGE

# torch.export's numbers of element types. Source: torch/_export/serde/schema.py, ScalarType.
EXPORTED_DTYPES = {1: "u8", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "f16", 7: "f32", 8: "f64", 9: "c32", 10: "c64", 11: "c128",
                   12: "bool", 13: "bf16", 28: "u16", 29: "f8e4m3", 30: "f8e5m2"}
_SYMBOL = re.compile(r"Symbol\('(\w+)'[^)]*\)")


def onnx_facts(path: Path) -> dict[str, Any]:
    """An ONNX model: inputs that a caller gives, results, operators by domain, weights, opsets, producer, files beside it.

    Raises: UserError for a file that is no ONNX model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as cause:
        raise UserError(f"{path} is not an ONNX model, or it is damaged") from cause
    except OSError as cause:
        raise UserError(f"cannot read {path}: {cause.strerror}") from cause
    if not model.HasField("graph") or not model.graph.output:
        raise UserError(f"{path} is not an ONNX model: it holds no graph with outputs")
    graph = model.graph
    initializers = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    operators = Counter(f"{n.domain}.{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in _nodes(graph))
    facts: dict[str, Any] = {
        "kind": "ONNX model", "name": graph.name, "producer": " ".join(filter(None, (model.producer_name, model.producer_version))),
        "opset": {o.domain or "ai.onnx": o.version for o in model.opset_import}, "ir_version": model.ir_version,
        "inputs": [_onnx_value(i) for i in graph.input if i.name not in initializers], "results": [_onnx_value(o) for o in graph.output],
        "operators": dict(operators.most_common()), "weights": len(initializers)}
    tensors = [*graph.initializer, *(t.values for t in graph.sparse_initializer)]
    facts["weight_bytes"] = sum(prod(t.dims) * _itemsize(t.data_type) for t in tensors)
    if model.functions:
        facts["functions"] = [f.name for f in model.functions]
    return facts | _outside(path, tensors)


def _onnx_value(value: Any) -> dict[str, Any]:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return {"name": value.name, "type": kind.removesuffix("_type") if kind else "of no known type"}
    tensor = value.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?" for d in tensor.shape.dim]
    return {"name": value.name, "dtype": _onnx_dtype(tensor.elem_type), "shape": shape}


def _onnx_dtype(number: int) -> str:
    import onnx

    name: str = onnx.TensorProto.DataType.Name(number).lower()
    short = {"float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "float8e4m3fn": "f8e4m3", "float8e5m2": "f8e5m2"}
    return short.get(name, re.sub(r"^(u?)int(\d+)$", lambda m: f"{m[1] or 'i'}{m[2]}", name))


def _itemsize(number: int) -> float:
    """Bytes of one element, of types of four bits a half."""
    import onnx

    name = onnx.TensorProto.DataType.Name(number)
    if name.endswith("4") or name == "FLOAT4E2M1":
        return 0.5
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(number).itemsize)
    except (KeyError, TypeError, ValueError):
        return 0


def _nodes(graph: Any) -> Iterator[Any]:
    """Nodes of a graph and of those inside its branches and loops."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _outside(path: Path, tensors: Sequence[Any]) -> dict[str, Any]:
    """Files with weights beside the model, and those of them that are not there."""
    names = dict.fromkeys(entry.value for t in tensors for entry in t.external_data if entry.key == "location")
    if not names:
        return {}
    missing = [n for n in names if not (path.parent / n).is_file()]
    notes = [f"weights lie in {', '.join(names)} beside the model"] + [f"the file {n} is missing" for n in missing]
    return {"external_files": list(names), "missing_files": missing, "notes": notes}


def is_exported(names: Sequence[str]) -> bool:
    """Whether the members of an archive are those of a program of torch.export."""
    return any(n.endswith("/archive_format") for n in names) and any(n.endswith("models/model.json") for n in names)


def exported_facts(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    """A program of torch.export: its description is JSON, and nothing else is read.

    Raises: UserError for a description of another form.
    """
    names = archive.namelist()
    try:
        data = json.loads(archive.read(next(n for n in names if n.endswith("models/model.json"))))
        return _exported(path, data, sum(i.file_size for i in archive.infolist() if "/data/weights/weight_" in i.filename))
    except (*DAMAGE, KeyError, TypeError, StopIteration) as cause:
        raise UserError(f"{path} has a description of another form than is known here: {cause!r}",
                        hint="torch.export.load reports the cause") from cause


def _exported(path: Path, data: Mapping[str, Any], weight_bytes: int) -> dict[str, Any]:
    module = data["graph_module"]
    values = module["graph"]["tensor_values"]
    specs = [next(iter(s.items())) for s in module["signature"]["input_specs"]]
    inputs = [_exported_value(_argument_name(s["arg"]), values) if kind == "user_input" else _constant(s)
              for kind, s in specs if kind in ("user_input", "constant_input")]
    results = [_argument_name(s["arg"]) for o in module["signature"]["output_specs"] for kind, s in o.items() if kind == "user_output"]
    num_weights = sum(kind in ("parameter", "buffer", "tensor_constant") for kind, _ in specs)
    calls = module["module_call_graph"][0].get("signature") or {}
    ranges = data.get("range_constraints") or {}
    version = data.get("schema_version") or {}
    return {
        "kind": "program of torch.export", "name": path.stem,
        "exported_by": f"torch {data.get('torch_version', '?')}, schema {version.get('major', '?')}.{version.get('minor', '?')}",
        "inputs": inputs, "results": [_exported_value(name, values) for name in results],
        "arguments": calls.get("forward_arg_names") or [], "structure": _structure(calls.get("out_spec", "")),
        "operators": dict(Counter(str(n["target"]).removeprefix("torch.ops.") for n in module["graph"]["nodes"]).most_common()),
        "weights": num_weights, "weight_bytes": weight_bytes,
        "conditions": [f"{r.get('min_val')} <= {name} <= {r.get('max_val')}" for name, r in ranges.items()],
    }


def _argument_name(argument: Mapping[str, Any]) -> str:
    """The name of an argument's value; a number or None by its text."""
    kind, value = next(iter(argument.items()))
    return str(value["name"]) if isinstance(value, dict) and "name" in value else f"{kind.removeprefix('as_')} {value}"


def _constant(spec: Mapping[str, Any]) -> dict[str, Any]:
    """An argument that was no tensor: the program holds for its value alone."""
    value = next(iter((spec.get("value") or {}).values()), None)
    return {"name": str(spec.get("name")), "type": f"always {value}"}


def _exported_value(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    if name not in values:
        return {"name": name, "type": "no tensor"}
    meta = values[name]
    dtype = EXPORTED_DTYPES.get(meta["dtype"], f"type {meta['dtype']}")
    return {"name": name, "dtype": dtype, "shape": [_extent(s) for s in meta["sizes"]]}


def _extent(size: Mapping[str, Any]) -> int | str:
    if "as_int" in size:
        return int(size["as_int"])
    return _SYMBOL.sub(r"\1", str(size["as_expr"]["expr_str"]))


def _structure(text: str) -> str:
    """The containers of a result, as in "dict(logits, pair(*, *))"; empty for one tensor, or where they are unknown."""
    try:
        _, spec = json.loads(text)
    except (ValueError, TypeError):
        return ""
    return _container(spec) if spec.get("type") else ""


def _container(spec: Mapping[str, Any]) -> str:
    if not spec.get("type"):
        return "*"
    children = [_container(c) for c in spec.get("children_spec", ())]
    names: Any = []
    if isinstance(spec.get("context"), str):
        try:
            names = json.loads(spec["context"])
        except ValueError:
            names = []
    if isinstance(names, list) and len(names) == len(children) and names:
        children = [f"{n}: {c}" for n, c in zip(names, children, strict=True)]
    return f"{str(spec['type']).rpartition('.')[2]}({', '.join(children)})"
