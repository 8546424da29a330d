"""Passes over a graph and its attributes: named, ordered by what they provide and depend on, and open to users' own.

    graph --fusion--> fused graph + "subgraph" --codegen--> + "kernel" --rtc--> + "rtc"

A pass takes an `AttributedGraph` and gives one back, with another graph, with more attributes, or both. The three passes that make
kernels stand in `kernel_passes.py`; a name that is none of theirs or of a user's is a rewriting pass of `tilefuse.passes` and may carry
options, as in a pipeline text. Source: NNVM's graph passes, where fusion, code generation and run-time compilation are three of many.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.base.options import Options
from tilefuse.driver.request import noted, traced
from tilefuse.ir.graph import Graph
from tilefuse.ir.verify import verify
from tilefuse.passes import PASSES, PassContext, Pipeline
from tilefuse.target.device import DeviceSpec

# Attributes that every graph has from the start.
GIVEN = frozenset({"constants"})


@dataclass(frozen=True)
class AttributedGraph:
    """A graph with attributes by name. Immutable: passes make new ones with `with_graph` and `with_attributes`.

    device, place: what kernels are for, and the executor's name ("host", "cuda:0"; "" for a device that need not be present).
    """

    graph: Graph
    device: DeviceSpec
    place: str
    options: Options
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """An attribute's value. Raises: NameLookupError naming the pass that provides it."""
        if name in self.attributes:
            return self.attributes[name]
        raise NameLookupError(f"graph @{self.graph.name} has no attribute {name!r}",
                              hint=_provider(name) or f"it has {', '.join(sorted(self.attributes)) or 'none'}")

    def __contains__(self, name: str) -> bool:
        return name in self.attributes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.attributes))

    def with_attributes(self, **given: Any) -> AttributedGraph:
        """The same graph with these attributes besides its own."""
        return replace(self, attributes=MappingProxyType({**self.attributes, **given}))

    def with_graph(self, graph: Graph) -> AttributedGraph:
        """Another graph with the same attributes."""
        return replace(self, graph=graph)

    def program(self) -> Any:
        """The runnable program (`runtime.program.Program`). Raises: NameLookupError before the pass rtc; UserError without a device."""
        from tilefuse.driver.kernel_passes import program_of

        return program_of(self)

    def __call__(self, *tensors: Any) -> Any:
        """Runs the program on tensors, one an input; a graph of arrays has their data. Raises: as `program` and as the program's call."""
        return self.program()(*(tensors or [leaf.buffer for leaf in self["leaves"]]))


@dataclass(frozen=True)
class GraphPass:
    """A registered pass. `depends`: attributes it reads; `provides`: attributes that its result has."""

    name: str
    run: Callable[[AttributedGraph], AttributedGraph]
    provides: tuple[str, ...]
    depends: tuple[str, ...]
    doc: str


GRAPH_PASSES: dict[str, GraphPass] = {}

Run = Callable[[AttributedGraph], AttributedGraph]


def graph_pass(name: str, *, provides: Sequence[str] = (), depends: Sequence[str] = (), replace: bool = False) -> Callable[[Run], Run]:
    """Registers the decorated function as a pass for `apply_passes`.

    provides, depends: names of attributes. replace: take the place of a registered pass of that name.
    Raises: UserError for a name that is taken.
    """

    def register(run: Run) -> Run:
        if (name in GRAPH_PASSES or name in PASSES) and not replace:
            raise UserError(f"there is a pass {name!r} already", hint="another name, or replace=True")
        doc = (run.__doc__ or "").strip().partition("\n")[0]
        GRAPH_PASSES[name] = GraphPass(name, run, _names(provides), _names(depends), doc)
        return run

    return register


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def apply_passes(graph: Any, passes: Sequence[str] | str, *, constants: Mapping[str, object] | None = None, device: Any = None,
                 **options: Any) -> AttributedGraph:
    """The graph after passes, by name and in order; every attribute that they left is readable.

    graph: an `ir` graph, the result of an earlier call (which goes on with its device and options), or one or several arrays.
    passes: names; "fusion", "codegen", "rtc", users' own, and rewriting passes with options, such as "fold-constants{limit=64}".
    constants: data of constant inputs. device: "host", "cuda", or the name of a device that need not be present; options: as `compile`.
    Raises: OptionError for an unknown pass; UserError for a pass whose attributes nothing before it provides (naming the pass to add),
        before any of them runs, and for a pass that does not give what it says.
    """
    start = _attributed(graph, constants, device, options)
    steps = [_step(text) for text in ([passes] if isinstance(passes, str) else passes)]
    _check_order(steps, start)
    with traced(start.options), noted(f"graph @{start.graph.name}", start.device, start.options):
        for step in steps:
            start = _applied(step, start)
    return start


def _attributed(graph: Any, constants: Mapping[str, object] | None, device: Any, options: Mapping[str, Any]) -> AttributedGraph:
    if isinstance(graph, AttributedGraph):
        if device is not None or options or constants:
            raise UserError("this graph has its device, options and constants from the first call",
                            hint="give them there, or start from its .graph")
        return graph
    from tilefuse.driver.compile import present_device
    from tilefuse.target.catalog import device_by_name

    chosen = Options.from_environment().with_overrides(**options)
    leaves: tuple[Any, ...] = ()
    if not isinstance(graph, Graph):
        graph, leaves, device = _of_arrays(graph, device)
    text = "" if device is None else str(device)
    if not text or text.partition(":")[0] in ("host", "cpu", "cuda"):
        spec, place = present_device(text)
    else:
        spec, place = device_by_name(text), ""
    return AttributedGraph(graph, spec, place, chosen, MappingProxyType({"constants": dict(constants or {}), "leaves": leaves}))


def _of_arrays(given: Any, device: Any) -> tuple[Graph, tuple[Any, ...], Any]:
    """The graph of arrays, its leaves, and the device. Raises: UserError for what is neither graph nor array."""
    from tilefuse.arrays.array import Array
    from tilefuse.arrays.graph import graph_of

    arrays = [given] if isinstance(given, Array) else list(given) if isinstance(given, list | tuple) else []
    if not arrays or not all(isinstance(a, Array) for a in arrays):
        raise UserError(f"apply_passes takes a graph or arrays, not a {type(given).__name__}",
                        hint="tilefuse.ir.text.parse_graph reads a graph; arrays are made by tilefuse.array")
    made, leaves = graph_of(arrays)
    return made, leaves, arrays[0].device if device is None else device


def _step(text: str) -> GraphPass | Pipeline:
    if text in GRAPH_PASSES:
        return GRAPH_PASSES[text]
    names = {part.partition("{")[0].strip() for part in text.split(",")}
    if not names & set(PASSES):
        known = [*GRAPH_PASSES, *PASSES]
        raise OptionError(f"there is no pass {text!r}", hint=nearest(text, known) or f"known: {', '.join(known)}")
    return Pipeline.parse(text)


def _check_order(steps: Sequence[GraphPass | Pipeline], start: AttributedGraph) -> None:
    present = set(start.attributes) | GIVEN
    for position, step in enumerate(steps):
        if isinstance(step, Pipeline):
            continue
        missing = [a for a in step.depends if a not in present]
        if missing:
            raise UserError(f"pass {step.name} depends on the attribute {missing[0]!r}, which nothing before it provides",
                            hint=_provider(missing[0], f" before {step.name} (number {position + 1} of the list)"))
        present |= set(step.provides)


def _provider(attribute: str, where: str = "") -> str | None:
    makers = [p.name for p in GRAPH_PASSES.values() if attribute in p.provides]
    if not makers:
        return "no registered pass provides it" if where else None
    return f"add the pass {' or '.join(makers)}{where}"


def _applied(step: GraphPass | Pipeline, before: AttributedGraph) -> AttributedGraph:
    if isinstance(step, Pipeline):
        held = dict(before["constants"])
        context = PassContext(verify=before.options.verify, eager_rounding=before.options.eager_rounding, constants=held)
        graph = step.run(before.graph, context)
        return before if graph is before.graph else before.with_graph(graph).with_attributes(constants=held)
    after = step.run(before)
    if not isinstance(after, AttributedGraph):
        raise UserError(f"pass {step.name} gave a {type(after).__name__}, not a graph with attributes",
                        hint="return graph.with_attributes(...) or graph.with_graph(...)")
    lacking = [a for a in step.provides if a not in after.attributes]
    if lacking:
        raise UserError(f"pass {step.name} says that it provides {lacking[0]!r}, but its result has no such attribute",
                        hint=f"return graph.with_attributes({lacking[0]}=...)")
    if after.graph is not before.graph and (found := verify(after.graph)):
        raise UserError(f"pass {step.name} left a graph that breaks the rule {found[0].rule}: {found[0].message}",
                        where=f"%{found[0].node}" if found[0].node else None, notes=[str(f) for f in found[1:5]])
    return after
