"""Graphs that AOTAutograd traced before, here or in another process: reused without tracing them to ATen operators.

    dynamo's graph + types of its inputs + torch's settings + frontend and compiler  ->  digest  ->  the imported graph

Only inference graphs are stored, and only those that torch calls with its own arguments and returns unchanged: no argument is changed, no
result is a view of an argument or of another result. A graph's text determines its computation only if all its functions are torch's own. A
user's operator, a tensor in the graph or an active mode could change it unnoticed, so such graphs are traced each time.
"""
from __future__ import annotations

import functools
import hashlib
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from tilefuse.base.options import Options
from tilefuse.base.source import Span
from tilefuse.driver.reuse.known_programs import compiler_fingerprint, files_digest, is_keepable
from tilefuse.frontends.imported import Imported, Output, Titles
from tilefuse.frontends.torch.nodes import span_of
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.runtime.stores.cache import TRACES, cache_of
from tilefuse.runtime.stores.text_store import TextStore

# Modules whose functions a graph may use. Each function is looked up again by its name, so that a replaced one does not pass for torch's.
OWN_MODULES = ("torch", "operator", "_operator", "math", "builtins")
# Modules below torch that are not torch's alone: operators that anyone registers, and functions that call a user's.
FOREIGN = ("torch.ops.", "torch.autograd.", "torch.utils.", "torch._higher_order_ops.", "torch.library.", "torch._dynamo.", "torch.fx.")
LEAVES = (int, float, complex, bool, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True, slots=True)
class Trace:
    """Result of tracing a graph.

    device: as `compile_imported` takes it. moved: numbers of arguments that torch passes on another device than the program's.
    placeholders: torch's names of the arguments; () for a stored trace.
    """

    imported: Imported
    device: str
    moved: tuple[int, ...]
    placeholders: tuple[str, ...] = ()


def trace_digest(gm: fx.GraphModule, inputs: Sequence[Any], name: str, options: Options, input_names: Sequence[str] = ()) -> str:
    """The digest of the trace of dynamo's graph; "" where something that decides it is unknown.

    input_names: the user's names, from which values of the graph get theirs.
    Cost: linear in the graph; a fiftieth of the tracing.
    """
    if not is_keepable(options) or options.cuda_graph or _has_modes():
        return ""
    types = [_input_text(value) for value in inputs]
    wants_gradient = torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    lines = _graph_lines(gm)
    if None in types or wants_gradient or lines is None:
        return ""
    facts = [compiler_fingerprint(), files_digest(("frontends",)), name, lines, types, list(input_names), _torch_settings(),
             options.code_key()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def find_trace(digest: str, options: Options, gm: fx.GraphModule | None = None) -> Trace | None:
    """The trace stored under a digest. gm: the current graph, which gives source places: the traced one may come from another file."""
    nodes = [] if gm is None else list(gm.graph.nodes)
    return _store(options).get(digest, lambda text: _read(text, nodes))


def keep_trace(digest: str, trace: Trace, num_inputs: int, options: Options,
               numbers: Mapping[str, int] = MappingProxyType({})) -> None:
    """Stores a trace whose text determines its graph. num_inputs: dynamo's. numbers: of the nodes of its graph, by name.

    Requires: torch calls its program without wrappers (`is_called_as_it_is`).
    """
    imported = trace.imported
    plain = all(type(o.literal) in (int, float, bool, type(None)) for o in imported.outputs)
    if imported.constants or not plain or len(imported.arguments) != num_inputs:
        return
    text = print_graph(imported.graph)
    if parse_graph(text) == imported.graph:
        _store(options).put(digest, json.dumps({
            "graph": text, "fallbacks": imported.fallbacks,
            "layouts": dict(imported.layouts), "result_layouts": dict(imported.result_layouts),
            "arguments": imported.arguments, "outputs": [asdict(o) for o in imported.outputs], "inputs": dict(imported.titles.inputs),
            "results": imported.titles.results, "device": trace.device, "moved": trace.moved,
            "spans": [None if n.span is None else asdict(n.span) for n in imported.graph.nodes],
            "origins": [-1 if n.span is None else numbers.get(n.span.node, -1) for n in imported.graph.nodes]}))


def _told_span(span_fields: Mapping[str, Any] | None, origin: int, nodes: Sequence[fx.Node]) -> Span | None:
    """The source place of a node: that of the node of the current dynamo graph from which it was traced, where that is known."""
    if span_fields is None:
        return None
    span = Span(**span_fields)
    if not 0 <= origin < len(nodes):
        return span
    return replace(span_of(nodes[origin]), operator=span.operator, node=nodes[origin].name)


def _read(text: str, dynamo: Sequence[fx.Node] = ()) -> Trace:
    data = json.loads(text)

    def tuples(lists: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        return {name: tuple(strides) for name, strides in lists.items()}

    rows: list[dict[str, Any]] = [{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()} for row in data["outputs"]]
    outputs = tuple(Output(**row) for row in rows)
    # The text determines the graph; explanations and errors also need the place of each node in the user's program.
    graph = parse_graph(data["graph"])
    graph = replace(graph, nodes=tuple(replace(n, span=_told_span(at, origin, dynamo))
                                       for n, at, origin in zip(graph.nodes, data["spans"], data["origins"], strict=True)))
    imported = Imported(graph, {}, tuple((o, r) for o, r in data["fallbacks"]), tuples(data["layouts"]),
                        tuples(data["result_layouts"]), tuple(data["arguments"]), outputs, Titles(data["inputs"], tuple(data["results"])))
    return Trace(imported, data["device"], tuple(data["moved"]))


def is_called_as_it_is(num_inputs: int) -> bool:
    """Whether AOTAutograd, which is compiling a graph now, adds no wrapper around its program at run time."""
    from torch._functorch._aot_autograd.schemas import MutationType, OutputType

    context = torch._guards.TracingContext.try_get()
    facts = None if context is None else context.fw_metadata
    if facts is None or facts.tokens or facts.is_rng_op_functionalized or facts.num_intermediate_bases:
        return False
    unchanged = all(i.mutation_type == MutationType.NOT_MUTATED for i in facts.input_info)
    return unchanged and len(facts.input_info) == num_inputs and all(o.output_type == OutputType.non_alias for o in facts.output_info)


def _has_modes() -> bool:
    """Whether a mode is active that may replace operators, or that torch applies again around each call."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return torch._C._is_any_autocast_enabled() or bool(_get_current_function_mode_stack()) or bool(_get_current_dispatch_mode_stack())


def _torch_settings() -> list[object]:
    """Settings that torch's tracing depends on besides the graph."""
    cuda = torch.backends.cuda
    settings: list[object] = [
        str(torch.__version__), torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic,
        torch.backends.mkldnn.enabled, cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(), torch._functorch.config.get_hash(),
    ]
    if torch.cuda.is_available():
        settings += [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return [str(fact) for fact in settings]


def _input_text(value: object) -> str | None:
    """The type of one input, without its values; None for anything but a plain tensor."""
    from torch._subclasses.fake_tensor import FakeTensor

    if type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or not isinstance(value, torch.Tensor):
        return None
    if value.layout != torch.strided or value.is_conj() or value.is_neg() or value.is_quantized:
        return None
    sizes = [int(n) for n in (*value.shape, *value.stride(), value.storage_offset())]
    return f"{value.dtype} {sizes} {value.device} {value.requires_grad}"


def _graph_lines(gm: fx.GraphModule) -> list[str] | None:
    """The graph as text that two graphs share only if they compute the same; None if it uses functions that are not torch's."""
    number: dict[fx.Node, int] = {}
    lines: list[str] = []
    for node in gm.graph.nodes:
        target = _target_text(node)
        arguments = _value_text((node.args, node.kwargs), number)
        if target is None or arguments is None:
            return None
        number[node] = len(number)
        lines.append(f"{target} {arguments}")
    return lines


def _target_text(node: fx.Node) -> str | None:
    match node.op:
        case "placeholder" | "output":
            return str(node.op)
        case "call_method" if isinstance(node.target, str):
            method = getattr(torch.Tensor, node.target, None)
            return f".{node.target}" if method is not None and _comes_from(("torch",), method) else None
        case "call_function" if callable(node.target):
            return _own_name(node.target)
    return None


def _comes_from(modules: Sequence[str], function: object) -> bool:
    """Whether a function or method is from these modules; a C function without a module counts as torch's."""
    return (getattr(function, "__module__", None) or "torch").split(".")[0] in modules


@functools.cache
def _own_name(function: Callable[..., Any]) -> str | None:
    """The qualified name of a function of torch or Python; None for a user's function, or a replaced one."""
    try:
        name = str(torch.fx.node._get_qualified_name(function))
    except (AttributeError, RuntimeError):
        return None
    module, _, last = name.rpartition(".")
    if module.split(".")[0] not in OWN_MODULES or name.startswith(FOREIGN) or not _comes_from(OWN_MODULES, function):
        return None
    try:
        attribute = functools.reduce(getattr, module.split(".")[1:], importlib.import_module(module.split(".")[0]))
    except AttributeError:
        return None
    return name if getattr(attribute, last, None) is function else None


def _value_text(value: object, number: Mapping[fx.Node, int]) -> str | None:
    """An argument as text; None for an object that its text does not determine."""
    match value:
        case fx.Node():
            return f"%{number[value]}"
        case slice():
            return _value_text(("slice", value.start, value.stop, value.step), number)
        case tuple() | list():
            inside = [_value_text(v, number) for v in value]
            kind = "list" if isinstance(value, list) else "tuple"
            return None if None in inside else f"{kind}({', '.join(map(str, inside))})"
        case dict():
            return _value_text([(key, item) for key, item in value.items()], number)
        case float() if type(value) is float:
            return value.hex() if math.isfinite(value) else repr(value)
        case _ if type(value) in LEAVES:
            return f"{type(value).__name__} {value!r}"
    return None  # for example a function: an argument of a higher-order operator


def _store(options: Options) -> TextStore:
    return TextStore(cache_of(options.cache, options.cache_dir).folder, TRACES, "trace 2")
