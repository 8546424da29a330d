"""From an FX graph of ATen operators (made by AOTAutograd or torch.export) to a tilefuse graph.

The import visits the nodes once: placeholders become inputs, operators of `TORCH_OPS` their lowering, any other operator a
library node that calls torch, in-graph copies into inputs become updates. Sizes are those torch derived for this compile;
symbolic ones are specialised, so that torch recompiles for other shapes.

The IR has no complex numbers: a complex tensor is its pairs of reals (torch's `view_as_real`). Operators of `COMPLEX_OPS` work on
the pairs, any other one is a library node that puts them together again.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tilefuse.base.errors import InternalError, UnsupportedError, UnsupportedOpError
from tilefuse.frontends.imported import Imported, Output, Titles
from tilefuse.frontends.torch import assertions as torch_assertions
from tilefuse.frontends.torch import flex as torch_flex
from tilefuse.frontends.torch import ops_creation as torch_ops_creation
from tilefuse.frontends.torch import ops_foreach as torch_ops_foreach
from tilefuse.frontends.torch import ops_index as torch_ops_index
from tilefuse.frontends.torch import ops_layout as torch_ops_layout
from tilefuse.frontends.torch import ops_library as torch_ops_library
from tilefuse.frontends.torch import ops_loss as torch_ops_loss
from tilefuse.frontends.torch import ops_norm as torch_ops_norm
from tilefuse.frontends.torch import ops_pointwise as torch_ops_pointwise
from tilefuse.frontends.torch import ops_pool as torch_ops_pool
from tilefuse.frontends.torch import ops_random as torch_ops_random
from tilefuse.frontends.torch import ops_reduce as torch_ops_reduce
from tilefuse.frontends.torch import ops_search as torch_ops_search
from tilefuse.frontends.torch.nodes import (
    PARTS_BY_COMPLEX,
    dtype_of,
    guesses_shape,
    is_dense,
    is_library,
    is_product_view,
    is_ragged,
    known_number,
    readers_of,
    regrouped,
    shape_of,
    span_of,
    strides_of,
    tensors_of,
)
from tilefuse.frontends.torch.ops import DTYPE_BY_TORCH, TORCH_OPS, TorchBuilder, Value, dtype_from_torch
from tilefuse.frontends.torch.ops_complex import COMPLEX_OPS, Pairs
from tilefuse.frontends.torch.titles import NO_NAMES, UserNames
from tilefuse.ir.affine import row_major_strides
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.names import plain_name

THEMES = (
    torch_ops_pointwise,
    torch_ops_creation,
    torch_ops_foreach,
    torch_ops_reduce,
    torch_ops_search,
    torch_ops_layout,
    torch_ops_index,
    torch_ops_norm,
    torch_ops_pool,
    torch_ops_random,
    torch_ops_library,
    torch_ops_loss,
)

# Constants of at most this many elements are written into the graph; larger ones are bound when the program is made.
INLINE_ELEMENTS = 16
# Stand-in for the sizes of a jagged nested tensor's parts: the caller may get it back, and nothing is computed with it.
RAGGED = object()


@dataclass(frozen=True)
class Traced:
    """A recorded run: its graph, the tensors behind some placeholders, the pytree structure of the model's result, and the model's names of
    those tensors."""

    graph: fx.Graph
    held: Mapping[str, torch.Tensor]
    out_spec: Any
    titles: Mapping[str, str] = field(default_factory=dict)


def import_fx(gm: fx.GraphModule, name: str = "graph", names: UserNames = NO_NAMES) -> Imported:
    """The graph of an FX module whose nodes are ATen operators with `meta["val"]`. names: the user's, of its inputs and outputs.

    Raises: UnsupportedError where the module as a whole cannot be expressed (sparse tensors, data-dependent sizes, side effects).
    """
    return _Walk(gm, name, names=names).run()


def import_exported(program: torch.export.ExportedProgram, name: str = "graph") -> Imported:
    """The graph of an exported program; parameters and buffers become constants.

    Raises: UnsupportedError as `import_fx`, and for programs that mutate their buffers or inputs.
    """
    from torch.export.graph_signature import InputKind, OutputKind

    signature = program.graph_signature
    if any(s.kind not in (OutputKind.USER_OUTPUT,) for s in signature.output_specs):
        raise UnsupportedError(
            "an exported program that changes its buffers or inputs", hint="export it in evaluation mode, or use torch.compile"
        )
    tensors: dict[str, object] = {}
    for spec in signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target is not None:
            source = program.state_dict if spec.target in program.state_dict else program.constants
            tensors[spec.arg.name] = source[spec.target]
        elif spec.kind == InputKind.CONSTANT_TENSOR and spec.target is not None:
            tensors[spec.arg.name] = program.constants[spec.target]
    walk = _Walk(program.graph_module, name)
    walk.held = tensors
    walk.titles = {spec.arg.name: spec.target for spec in signature.input_specs if spec.arg.name in tensors and spec.target is not None}
    return walk.run()


def import_traced(traced: Traced, name: str = "graph") -> Imported:
    """The graph of a recorded run; the tensors it holds become constants. Raises: UnsupportedError as `import_fx`."""
    return _Walk(traced, name, traced.held, titles=dict(traced.titles)).run()


@dataclass
class _Walk:
    """The state of one import."""

    gm: fx.GraphModule | Traced
    name: str
    held: Mapping[str, object] = field(default_factory=dict)
    names: UserNames = NO_NAMES
    titles: dict[str, str] = field(default_factory=dict)
    builder: TorchBuilder = field(init=False)
    value_of: dict[fx.Node, Any] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    layouts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    arguments: list[str | None] = field(default_factory=list)
    fallbacks: dict[str, str] = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)
    result_layouts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    memories: dict[int, int] = field(default_factory=dict)
    complexes: set[str] = field(default_factory=set)
    assertions: list[str] = field(default_factory=list)
    ranged: set[fx.Node] = field(default_factory=set)  # those whose readers see a checked value
    calls: int = 0

    def __post_init__(self) -> None:
        self.builder = TorchBuilder(self.name)

    def run(self) -> Imported:
        """Visits all nodes. Raises: UnsupportedError, InternalError (a lowering gave another type than torch derived)."""
        results: list[str] = []
        outputs: list[Output] = []
        for node in self.gm.graph.nodes:
            try:
                match node.op:
                    case "placeholder":
                        self._placeholder(node)
                    case "get_attr":
                        self._get_attr(node)
                    case "call_function":
                        self._call(node)
                    case "output":
                        outputs = self._outputs(node, results)
                    case _:
                        raise UnsupportedOpError(
                            f"an FX node of kind {node.op}", where=span_of(node), hint="trace the module to ATen operators first"
                        )
            except GuardOnDataDependentSymNode as unknown:
                raise UnsupportedError(
                    "a size that depends on data", where=span_of(node), hint="torch.compile leaves the nodes with such sizes to torch"
                ) from unknown
        b = self.builder
        results += [a for a in self.assertions if a not in results]
        graph = b.finish(results, [(target, value) for target, value in self.updates.items() if target != value])
        constants = self.constants | dict(b.constant_data)
        return Imported(
            graph, constants, tuple(self.fallbacks.items()), self.layouts, self.result_layouts, tuple(self.arguments), tuple(outputs),
            Titles(self.titles, self._result_titles(graph.results, outputs))
        )

    def _result_titles(self, results: Sequence[str], outputs: Sequence[Output]) -> tuple[str, ...]:
        """The user's names of the graph's results; () where there are none."""
        titles: dict[int, str] = {}
        for output, title in zip(outputs, self.names.outputs):
            if output.result is not None and title:
                titles.setdefault(output.result, title)
        return tuple(titles.get(n, name) for n, name in enumerate(results)) if titles else ()

    # Where values come from

    def _placeholder(self, node: fx.Node) -> None:
        tensor = self.held.get(node.name)
        if tensor is not None:
            assert isinstance(tensor, torch.Tensor)
            self.value_of[node] = self._marked(tensor, self._constant(node.name, tensor.detach()))
            return
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            title = self.names.inputs.get(node.name, "")
            input_name = self.builder.input(plain_name(title) if title else node.name, dtype_of(fake, node), shape_of(fake))
            if title and title != input_name:
                self.titles[input_name] = title
            self._note_layout(input_name, fake)
            self.arguments.append(input_name)
            self.value_of[node] = self._marked(fake, Value(input_name))
            return
        if fake is not None and not isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            raise UnsupportedError(f"an input of type {type(fake).__name__}", where=span_of(node))
        self.arguments.append(None)
        self.value_of[node] = RAGGED if is_ragged(fake) else known_number(fake)

    def _get_attr(self, node: fx.Node) -> None:
        value: Any = operator.attrgetter(str(node.target))(self.gm)
        self.value_of[node] = self._marked(value, self._constant(node.name, value.detach())) if isinstance(value, torch.Tensor) else value

    def _marked(self, tensor: torch.Tensor | None, value: Value) -> Value:
        """The value, remembered as pairs of reals if the tensor is complex."""
        if tensor is not None and tensor.is_complex():
            self.complexes.add(value)
        return value

    def _constant(self, name: str, data: torch.Tensor) -> Value:
        data = torch.view_as_real(data.resolve_conj()) if data.is_complex() else data
        fake_modes = type(data).__name__ == "FakeTensor"
        dtype = dtype_from_torch(data.dtype)
        if not fake_modes and data.numel() == 1:
            return Value(self.builder.full(tuple(data.shape), data.item(), dtype))
        if not fake_modes and data.numel() <= INLINE_ELEMENTS and data.dtype != torch.bfloat16 and dtype.bits >= 16:
            return Value(self.builder.constant_array(data.cpu().numpy(), dtype))
        constant = self.builder.input(name, dtype, shape_of(data), constant=True)
        self.constants[constant] = data
        self._note_layout(constant, data)
        return Value(constant)

    def _note_layout(self, name: str, tensor: torch.Tensor) -> None:
        strides = strides_of(tensor)
        shape = shape_of(tensor)
        dense = row_major_strides(shape)
        if any(s != d and extent > 1 for s, d, extent in zip(strides, dense, shape)):
            self.layouts[name] = strides

    # Operators

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is operator.getitem:
            source, at = node.args
            assert isinstance(source, fx.Node) and isinstance(at, int)
            self.value_of[node] = self.value_of[source][at]
            return
        fake = node.meta.get("val")
        if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            self.value_of[node] = RAGGED if is_ragged(fake) else known_number(fake)
            return
        if torch_flex.is_flex(target):
            self._defined(node)
            return
        if not isinstance(target, torch._ops.OpOverload):
            if getattr(target, "__module__", "") in ("_operator", "math") and fake is None:
                self.value_of[node] = target(*self._arguments(node.args), **self._arguments(node.kwargs))
                return
            raise UnsupportedOpError(f"a call of {target}, which is no operator of torch's dispatcher", where=span_of(node))
        name = f"{target.namespace}.{target._opname}.{target._overloadname}"
        if name.startswith("aten.sym_") or name in ("aten._assert_scalar.default", "aten._assert_tensor_metadata.default"):
            return
        if name in ("aten._assert_async.msg", "aten._assert_async.default"):
            self._assert(node)
            return
        args, kwargs = self._arguments(node.args), self._arguments(node.kwargs)
        b = self.builder
        b.hint, b.span = node.name, span_of(node)
        b.operands_dense = all(is_dense(a.meta.get("val")) for a in node.all_input_nodes)
        readers = [is_library(user) for user in readers_of(node)]
        b.feeds_library_only, b.feeds_library = all(readers), any(readers)
        b.expected = tuple(None if f is None else (dtype_of(f, node), shape_of(f)) for f in tensors_of(fake))
        if name == "aten.copy_.default":
            self._update(node, args)
            return
        if target._schema.is_mutable:
            raise UnsupportedOpError(f"{name} changes its operands in place", where=span_of(node))
        if guesses_shape(node):
            raise UnsupportedOpError(f"{name}: a size that depends on data", where=span_of(node))
        self.value_of[node] = self._lowered(name, node, args, kwargs)
        b.hint = ""

    def _defined(self, node: fx.Node) -> None:
        """An operator on functions, by its definition: traced with the operands' types, and visited like the nodes around it."""
        function, operands = torch_flex.definition(node, lambda argument: self.value_of[argument])
        fakes = [operand.meta["val"] for operand in operands]
        traced = torch_flex.traced(function, fakes)
        self._visit(traced.graph, [self.value_of[operand] for operand in operands], node)

    def _visit(self, graph: fx.Graph, operands: Sequence[Any], node: fx.Node) -> None:
        """Nodes of a definition; its results become those of `node`."""
        arguments = iter(operands)
        for inner in graph.nodes:
            match inner.op:
                case "placeholder":
                    self.value_of[inner] = next(arguments)
                case "call_function":
                    self._call(inner)
                case "output":
                    self.value_of[node] = self._arguments(inner.args[0])
                case _:
                    raise UnsupportedOpError(f"a definition with an FX node of kind {inner.op}", where=span_of(node))

    def _assert(self, node: fx.Node) -> None:
        """An assertion on data: a check of later reads, or a library call."""
        b = self.builder
        b.hint, b.span = "", span_of(node)
        ranged = torch_assertions.asserted_range(node)
        if ranged is not None:
            x, extent = ranged
            if x not in self.ranged:
                self.ranged.add(x)
                self.value_of[x] = Value(torch_assertions.checked_range(b, self.value_of[x], extent))
            return
        condition = self._arguments(node.args[0])
        message = node.args[1] if len(node.args) > 1 else "Expected Tensor with single nonzero value, but got zero"
        if isinstance(condition, Value):
            self.assertions.append(torch_assertions.called_assertion(b, node.name, condition, str(message)))

    def _lowered(self, name: str, node: fx.Node, args: Any, kwargs: Any) -> Any:
        b = self.builder
        fakes = tensors_of(node.meta.get("val"))
        sources = [t for a in node.all_input_nodes for t in tensors_of(a.meta.get("val"))]
        in_pairs = any(t is not None and t.is_complex() for t in (*fakes, *sources))
        lowering = COMPLEX_OPS.get(name) if in_pairs else TORCH_OPS.get(name)
        if lowering is None:
            return self._library(name, "complex numbers" if in_pairs else "no lowering", node, args, kwargs)
        subject = Pairs(b, self.complexes) if in_pairs else b
        try:
            inspect.signature(lowering).bind(subject, *args, **kwargs)
        except TypeError as mismatch:
            return self._library(name, f"arguments: {mismatch}", node, args, kwargs)
        try:
            lowered = lowering(subject, *args, **kwargs)
        except UnsupportedError as declined:
            return self._library(name, declined.message, node, args, kwargs)
        if isinstance(lowered, (tuple, list)):
            result: Any = tuple(None if v is None else self._marked(fake, Value(v)) for v, fake in zip(lowered, fakes))
        else:
            result = self._marked(fakes[0], Value(lowered))
        self._check(name, node, result)
        return result

    def _check(self, name: str, node: fx.Node, result: Any) -> None:
        """Raises: InternalError where a result is not of the type that torch derived."""
        b = self.builder
        listed = result if isinstance(result, tuple) else (result,)
        for value, expected in zip(listed, b.expected):
            if value is None or expected is None:
                continue
            have = b.type_of(value)
            if have != Type(*expected):
                raise InternalError(f"the lowering of {name} gives {have}, torch derived {Type(*expected)}", where=span_of(node))

    def _library(self, name: str, reason: str, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The operator as library nodes that call torch, one for each tensor result."""
        b = self.builder
        if name not in torch_ops_library.BY_DESIGN:
            self.fallbacks.setdefault(name, reason)
        operands: list[str] = []
        attributes: dict[str, Attribute] = {
            "args": tuple(_template(a, operands, name, self.complexes) for a in args),
            "kwargs": tuple((k, _template(v, operands, name, self.complexes)) for k, v in sorted(kwargs.items())),
        }
        if not name.startswith("aten.") or "_attention" in name:
            attributes["strides"] = self._traced_strides(node, operands)
        target: Any = node.target
        if torch.Tag.nondeterministic_seeded in target.tags:
            attributes["call"] = self.calls
            self.calls += 1
        fake = node.meta.get("val")
        values: list[Value | None] = []
        for n, (expected, tensor) in enumerate(zip(b.expected, tensors_of(fake))):
            if expected is None or tensor is None:
                values.append(None)
                continue
            value = Value(b.library(node.name, name, Type(*expected), operands, attributes | {"result": n}))
            values.append(self._marked(tensor, value))
        return regrouped(fake, iter(values)) if isinstance(fake, (tuple, list)) else (values[0] if values else None)

    def _traced_strides(self, node: fx.Node, operands: Sequence[str]) -> Attribute:
        """Strides of a call's operands as torch traced them."""
        fakes = {str(self.value_of[source]): source.meta.get("val") for source in node.all_input_nodes}
        strides_by_value: dict[str, Attribute] = {v: strides_of(fake) for v, fake in fakes.items() if isinstance(fake, torch.Tensor)}
        return tuple(strides_by_value.get(o) for o in operands)

    def _update(self, node: fx.Node, args: Any) -> None:
        """aten.copy_ into an input at the end of the graph: afterwards the input's storage holds the value."""
        target = node.args[0]
        assert isinstance(target, fx.Node)
        if target.op != "placeholder":
            raise UnsupportedOpError("aten.copy_ into a tensor that is no input", where=span_of(node))
        b = self.builder
        name = str(self.value_of[target])
        declared = next(i.name for i in b.inputs if i.name == self._input_name(target))
        source = self.value_of[args_source] if isinstance(args_source := node.args[1], fx.Node) else args[1]
        if (name in self.complexes) != (source in self.complexes):
            raise UnsupportedOpError("aten.copy_ between real and complex tensors", where=span_of(node))
        value = b.broadcast_to(b.cast(source, b.dtype_of(name)), b.shape_of(name))
        self.updates[declared] = value
        self.value_of[node] = self.value_of[target] = Value(value)
        if name in self.complexes:
            self.complexes.add(value)

    def _input_name(self, node: fx.Node) -> str:
        at = [n for n in self.gm.graph.nodes if n.op == "placeholder" and n.name not in self.held].index(node)
        argument = self.arguments[at]
        assert argument is not None
        return argument

    def _arguments(self, args: Any) -> Any:
        match args:
            case fx.Node():
                if self.value_of[args] is RAGGED:
                    raise UnsupportedError("a computation with the sizes of a jagged nested tensor's parts, which are no numbers",
                                           where=span_of(args))
                return self.value_of[args]
            case dict():
                return {k: self._arguments(v) for k, v in args.items()}
            case list() | tuple():
                return type(args)(self._arguments(a) for a in args) if type(args) in (list, tuple) else [self._arguments(a) for a in args]
            case slice():
                return slice(self._arguments(args.start), self._arguments(args.stop), self._arguments(args.step))
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return known_number(args)
        return args

    # Results

    def _outputs(self, node: fx.Node, results: list[str]) -> list[Output]:
        listed = node.args[0]
        items: Sequence[Any] = listed if isinstance(listed, (list, tuple)) else (listed,)
        output_by_item: dict[Any, Output] = {}
        outputs: list[Output] = []
        for item in items:
            if not isinstance(item, fx.Node):
                outputs.append(Output(literal=known_number(item)))
                continue
            if item not in output_by_item:
                output_by_item[item] = self._output(item, results)
            outputs.append(output_by_item[item])
        return outputs

    def _output(self, node: fx.Node, results: list[str]) -> Output:
        value = self.value_of[node]
        if node.op == "placeholder" and node.name not in self.held and (isinstance(value, Value) or value is RAGGED):
            at = [n for n in self.gm.graph.nodes if n.op == "placeholder" and n.name not in self.held].index(node)
            return Output(argument=at)
        if value is RAGGED:
            raise UnsupportedError("a result that is computed of the sizes of a jagged nested tensor's parts", where=span_of(node))
        if not isinstance(value, Value):
            return Output(literal=value)
        fake = node.meta.get("val")
        b = self.builder
        b.span, b.hint = span_of(node), ""
        shape = b.shape_of(value)
        strides = strides_of(fake) if isinstance(fake, torch.Tensor) else row_major_strides(shape)
        device = fake.device.type if isinstance(fake, torch.Tensor) else ""
        order, repeated = _memory_order(shape, strides)
        source = str(value)
        if repeated:
            source = b.slice(source, [0] * len(repeated), [1] * len(repeated), axes=repeated)
        if any(i.name == source for i in b.inputs):
            # A result must not share memory with an input: the caller may change either.
            source = self._copied(source)
        extents = b.shape_of(source)
        expected_strides = row_major_strides(extents) if order is None else _strides_in_order(extents, order)
        if order is None and not repeated and is_product_view(node):
            # The product's memory exists anyway: the caller gets the window onto it that torch would give.
            expected_strides = strides
        back = None
        if self.result_layouts.get(source, expected_strides) != expected_strides:
            # The same value in a second layout: a result of its own, which the caller sees permuted.
            listed = list(range(len(extents))) if order is None else order
            source = b.permute(source, listed) if order is not None else self._copied(source)
            back = None if order is None else tuple(listed.index(d) for d in range(len(listed)))
            expected_strides = row_major_strides(b.shape_of(source))
        self.result_layouts[source] = expected_strides
        if source not in results:
            results.append(source)
        memory = -1
        if isinstance(fake, torch.Tensor):
            memory = self.memories.setdefault(fake.untyped_storage()._cdata, len(self.memories))
        return Output(
            results.index(source),
            permutation=back,
            expanded=shape if repeated else None,
            memory=memory,
            complex=value in self.complexes,
            device=device,
        )

    def _copied(self, value: str) -> str:
        b = self.builder
        shape = b.shape_of(value)
        axes = axis_names(len(shape))
        return b.map(f"{value}_copy", b.dtype_of(value), shape, axes, b.read(value, shape, axes))


def _strides_in_order(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in memory in this order."""
    dense = row_major_strides(tuple(shape[d] for d in order))
    strides = [0] * len(shape)
    for place, d in enumerate(order):
        strides[d] = dense[place]
    return tuple(strides)


def _memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[list[int] | None, list[int]]:
    """The order of dimensions in which a dense tensor lies in memory (None: row-major, or not dense), and the repeated dimensions."""
    if 0 in shape:
        return None, []
    repeated = [d for d, (s, e) in enumerate(zip(strides, shape)) if s == 0 and e > 1]
    compact = [1 if d in repeated else e for d, e in enumerate(shape)]
    order = sorted(range(len(shape)), key=lambda d: (-strides[d] if compact[d] > 1 else 0, d))
    moving = [d for d in range(len(shape)) if compact[d] > 1]
    step = 1
    for d in sorted(moving, key=lambda d: strides[d]):
        if strides[d] != step:
            return None, repeated
        step *= compact[d]
    in_order = sorted(moving, key=lambda d: -strides[d])
    if in_order == moving:
        return None, repeated
    places = iter(in_order)
    order = [next(places) if compact[d] > 1 else d for d in range(len(shape))]
    return order, repeated


def _template(argument: Any, operands: list[str], name: str, complexes: Collection[str]) -> Attribute:
    """An argument as an attribute; tensors become operand numbers. Raises: UnsupportedOpError for objects that have no text."""
    match argument:
        case Value():
            if argument not in operands:
                operands.append(str(argument))
            return ("complex" if argument in complexes else "%", operands.index(str(argument)))
        case list() | tuple():
            return ("list", *(_template(a, operands, name, complexes) for a in argument))
        case torch.dtype() if argument in DTYPE_BY_TORCH:
            return ("dtype", DTYPE_BY_TORCH[argument].name)
        case torch.dtype() if argument in PARTS_BY_COMPLEX:
            return ("dtype", f"c{argument.itemsize * 8}")
        case complex():
            return ("number", argument.real, argument.imag)
        case torch.device():
            return ("device", argument.type)
        case torch.layout():
            return ("layout", str(argument).removeprefix("torch."))
        case torch.memory_format():
            return ("memory_format", str(argument).removeprefix("torch."))
        case None | bool() | int() | float() | str():
            return argument
    raise UnsupportedOpError(f"{name} with an argument of type {type(argument).__name__}: {argument}")
