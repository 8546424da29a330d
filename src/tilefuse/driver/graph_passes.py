"""Passes that users write as functions, and graphs with attributes, on which lists of passes work.

    graph --fusion--> fused graph + "subgraph" --codegen--> + "kernel" --rtc--> + "rtc"

A user's function takes an `AttributedGraph` and returns one with another graph, more attributes, or both. It is registered among the passes
of `tilefuse.passes` like any other, with the attributes that it depends on and provides; its parameters with defaults are its options. So
one list, one text and one manager serve rewritings, users' passes and the three passes of `kernel_passes.py` that generate kernels.
Source: NNVM's graph passes, where fusion, code generation and run-time compilation are three of many.
"""
from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from tilefuse.base.errors import NameLookupError, UserError, nearest
from tilefuse.base.options import Options
from tilefuse.driver.pipeline import context_of
from tilefuse.driver.request import noted, traced
from tilefuse.ir.graph import Graph
from tilefuse.ir.verify import verify
from tilefuse.passes.manager import PASSES, Pass, PassContext, Pipeline, Properties, Property
from tilefuse.target.catalog import host_device
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class AttributedGraph:
    """A graph with attributes by name. Immutable: passes make new ones with `with_graph` and `with_attributes`.

    device, place: target of the kernels, and the executor's name ("host", "cuda:0"; "" for a device that need not be present).
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
        """The same graph with these additional attributes."""
        return replace(self, attributes=MappingProxyType({**self.attributes, **given}))

    def with_graph(self, graph: Graph) -> AttributedGraph:
        """Another graph with the same attributes."""
        return replace(self, graph=graph)

    def program(self) -> Any:
        """The runnable program (`runtime.program.Program`). Raises: NameLookupError before the pass rtc; UserError without a device."""
        from tilefuse.runtime.program import Program

        compiled = self["rtc"]
        if not self.place:
            raise UserError(f"the kernels are for {self.device.name}, which is not this machine's", hint="device=\"host\" or \"cuda\"")
        constants = {**self["constants"], **(self["planned"].known_constants or {})}
        return Program(self["spec"], constants, self.place, self.options, binaries=self["binaries"] if compiled else [])

    def __call__(self, *tensors: Any) -> Any:
        """Runs the program on tensors, one an input; a graph of arrays has their data. Raises: as `program` and as the program's call."""
        return self.program()(*(tensors or [leaf.buffer for leaf in self["leaves"]]))


Function = Callable[..., AttributedGraph]


@dataclass(frozen=True)
class FunctionPass(Pass):
    """A user's function as a pass; `graph_pass` makes a class for each. Exact: unknown, as the function's effect is."""

    exact: ClassVar[bool] = False
    idempotent: ClassVar[bool] = False
    function: ClassVar[Function]

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph that the function returns; its attributes become the context's.

        Raises: UserError where the function returns another type, lacks an attribute that it provides, or returns a graph that breaks a
        rule.
        """
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        after = type(self).function(attributed(graph, ctx), **options)
        if not isinstance(after, AttributedGraph):
            raise UserError(f"pass {self.name} gave a {type(after).__name__}, not a graph with attributes",
                            hint="return graph.with_attributes(...) or graph.with_graph(...)")
        lacking = [a for a in self.provides if a not in after.attributes]
        if lacking:
            raise UserError(f"pass {self.name} says that it provides {lacking[0]!r}, but its result has no such attribute",
                            hint=f"return graph.with_attributes({lacking[0]}=...)")
        if after.graph is not graph and (findings := verify(after.graph)):
            raise UserError(f"pass {self.name} left a graph that breaks the rule {findings[0].rule}: {findings[0].message}",
                            where=f"%{findings[0].node}" if findings[0].node else None, notes=[str(f) for f in findings[1:5]])
        ctx.constants = after.attributes.get("constants", ctx.constants)
        ctx.attributes = {name: value for name, value in after.attributes.items() if name != "constants"}
        return after.graph


def device_of(ctx: PassContext) -> DeviceSpec:
    """The device of a context; the host where none is named."""
    return ctx.device or host_device()


def attributed(graph: Graph, ctx: PassContext) -> AttributedGraph:
    """The graph with the attributes of a pipeline's context."""
    return AttributedGraph(graph, device_of(ctx), ctx.place, ctx.options,
                           MappingProxyType({**ctx.attributes, "constants": ctx.constants}))


def graph_pass(name: str, *, provides: Sequence[str] | str = (), depends: Sequence[str] | str = (), requires: Sequence[str] | str = (),
               establishes: Sequence[str] | str = (), preserves: Sequence[str] | str = (),
               replace: bool = False) -> Callable[[Function], Function]:
    """Registers the decorated function as a pass, for `apply_passes` and for pipelines.

    The function's first parameter is the graph with attributes; others need defaults (int, float, bool or str) and are the pass's options.
    provides, depends: names of attributes. requires, establishes, preserves: properties of the graph, as those of our own passes.
    replace: take the place of a registered pass of that name.
    Raises: UserError for a name that is taken or cannot stand in a pipeline's text, a parameter that cannot be an option, and an unknown
        property.
    """

    def register(function: Function) -> Function:
        if name in PASSES and not replace:
            raise UserError(f"there is a pass {name!r} already", hint="another name, or replace=True")
        if not name.strip() or re.search(r"[,{}]", name) or name != name.strip():
            raise UserError(f"{name!r} cannot stand in a pipeline's text", hint="a name without commas, braces and spaces around it")
        facts = {"__doc__": function.__doc__ or "", "__module__": function.__module__, "name": name, "function": staticmethod(function),
                 "provides": _names(provides), "depends": _names(depends), "requires": _properties(requires),
                 "establishes": _properties(establishes), "preserves": _properties(preserves)}
        class_name = "".join(map(str.capitalize, re.findall(r"\w+", name))) or "Pass"
        PASSES[name] = dataclasses.make_dataclass(class_name, _options(name, function), bases=(FunctionPass,), namespace=facts, frozen=True)
        return function

    return register


def _options(name: str, function: Function) -> list[tuple[str, type, Any]]:
    """The parameters of a function after the first, as fields of a pass."""
    parameters: list[tuple[str, type, Any]] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if not isinstance(parameter.default, int | float | bool | str):
            raise UserError(f"pass {name}: the parameter {parameter.name} has no default that a pipeline's text can write",
                            hint="an option of a pass has a number, a truth value or a text as its default")
        parameters.append((parameter.name, type(parameter.default), field(default=parameter.default)))
    return parameters


def _names(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _properties(names: Sequence[str] | str) -> Properties:
    known = {str(p): p for p in Property}
    for name in _names(names):
        if name not in known:
            raise UserError(f"there is no property {name!r} of graphs", hint=nearest(name, known) or f"known: {', '.join(known)}")
    return frozenset(known[name] for name in _names(names))


def apply_passes(graph: Graph | AttributedGraph, passes: Sequence[str] | str, *, constants: Mapping[str, object] | None = None,
                 device: Any = None, **options: Any) -> AttributedGraph:
    """The graph after passes, by name and in order; every attribute that they left is readable.

    graph: an `ir` graph, or the result of an earlier call, which goes on with its device and options. `arrays` takes arrays as well.
    passes: names; "fusion", "codegen", "rtc", users' own, and rewriting passes, with options, such as "fold-constants{limit=64}".
    constants: data of constant inputs. device: "host", "cuda", or the name of a device that need not be present; options: as `compile`.
    Raises: OptionError for an unknown pass; UserError for a pass whose attributes nothing before it provides (naming the pass to add),
        before any of them runs, and for a pass that does not give what it says.
    """
    if not isinstance(graph, AttributedGraph):
        start = graph_for(graph, constants, device, options)
    elif device is not None or options or constants:
        raise UserError("this graph has its device, options and constants from the first call",
                        hint="give them there, or start from its .graph")
    else:
        start = graph
    pipeline = Pipeline.parse(passes if isinstance(passes, str) else ",".join(passes))
    missing = pipeline.missing_attribute(start.attributes)
    if missing is not None:
        raise UserError(f"pass {missing.item.name} depends on the attribute {missing.attribute!r}, which nothing before it provides",
                        hint=_provider(missing.attribute, f" before {missing.item.name} (number {missing.position + 1} of the list)"))
    context = context_of(start.device, start.options, constants=start.attributes.get("constants", {}), place=start.place)
    context.attributes = {name: value for name, value in start.attributes.items() if name != "constants"}
    with traced(start.options), noted(f"graph @{start.graph.name}", start.device, start.options):
        after = pipeline.run(start.graph, context)
    return replace(start, graph=after, attributes=attributed(after, context).attributes)


def graph_for(graph: Graph, constants: Mapping[str, object] | None, device: Any, options: Mapping[str, Any],
              leaves: tuple[Any, ...] = ()) -> AttributedGraph:
    """The graph with its first attributes: constants, and the leaves whose data a graph of arrays is called with.

    device: an available executor, or the name of a device that need not be present. Raises: OptionError for an unknown device or option.
    """
    from tilefuse.driver.compile import present_device
    from tilefuse.target.catalog import device_by_name

    chosen = Options.from_environment().with_overrides(**options)
    text = "" if device is None else str(device)
    if not text or text.partition(":")[0] in ("host", "cpu", "cuda"):
        spec, place = present_device(text)
    else:
        spec, place = device_by_name(text), ""
    return AttributedGraph(graph, spec, place, chosen, MappingProxyType({"constants": dict(constants or {}), "leaves": leaves}))


def _provider(attribute: str, where: str = "") -> str | None:
    makers = [name for name, kind in PASSES.items() if attribute in kind.provides]
    if not makers:
        return "no registered pass provides it" if where else None
    return f"add the pass {' or '.join(makers)}{where}"
