"""Passes and pipelines: the contract of a pass; writing, checking and running pipelines.

A pass returns a new graph or the same object; a property that it does not list in `preserves` counts as lost. A pipeline is text, the same
in code, on the command line and in tests: `decompose,fold-constants{limit=64},remove-dead-nodes`. Rooms above this one register passes too,
where a rewrite needs their knowledge.
"""
from __future__ import annotations

import abc
import dataclasses
import enum
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from tilefuse.base.errors import InternalError, OptionError, PipelineError, VerifyError, nearest
from tilefuse.base.options import Options
from tilefuse.base.trace import Trace, current
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.text import print_graph
from tilefuse.passes.analyses import verify_changes
from tilefuse.passes.facts import CallerLayouts, LibraryLayout, PlannedLayouts, Prices
from tilefuse.target.device import DeviceSpec


class Property(enum.StrEnum):
    """Properties of a graph; each has a checker in `CHECKERS`."""

    NO_DEAD_NODES = "no-dead-nodes"
    NO_EQUAL_NODES = "no-equal-nodes"
    AFFINE_INDICES_NORMAL = "affine-indices-normal"
    PRIMITIVE_OPS_ONLY = "primitive-ops-only"
    VIEWS_INLINED = "views-inlined"
    UPDATES_SEPARATE = "updates-separate"
    FILLS_SEPARATE = "fills-separate"


Properties = frozenset[Property]


@dataclass(frozen=True, slots=True)
class PassRecord:
    """Effect of one pass. Units: `seconds` of wall time, verification not included. `after is before` if nothing changed.

    item: the pass with its options.
    """

    name: str
    item: Pass
    before: Graph
    after: Graph
    seconds: float
    rule_counts: Mapping[str, int]


@dataclass(slots=True)
class PassContext:
    """Facts that passes read beside the graph, and the place for those of their results that are no graph.

    verify          0 nothing, 1 the rules after each pass that changed the graph, 2 + established properties
    eager_rounding  keep every rounding of an intermediate value to its own dtype
    constants       data of constant inputs by name; passes that make constant inputs add theirs
    on_pass         called after each pass (trace, replay)
    stop_after      name of the pass after which a pipeline ends early ("" = none)
    rule_counts     how often each rule of the running pass applied
    settled         nodes that a pass has left as they should be, by the pass's text and the node's identity
    device          the device that the graph is rewritten for; None: passes that need one change nothing
    prices          predictions for that device; None: passes that ask for prices change nothing
    call_layout     strides that library operators give their results; None: dense row-major ones
    caller          strides of inputs and results
    attributes      what passes leave beside the graph for later ones, by name: `layouts`, `subgraph`, `kernel`, those of users' passes
    options, place  settings of the whole compile and the executor's name ("host", "cuda:0"), for passes that make kernels
    num_run         passes that have run
    """

    verify: int = 1
    eager_rounding: bool = False
    constants: dict[str, object] = field(default_factory=dict)
    on_pass: Callable[[PassRecord], None] | None = None
    stop_after: str = ""
    rule_counts: dict[str, int] = field(default_factory=dict)
    settled: dict[tuple[str, int], Node] = field(default_factory=dict)
    device: DeviceSpec | None = None
    prices: Prices | None = None
    call_layout: LibraryLayout | None = None
    caller: CallerLayouts = field(default_factory=CallerLayouts)
    attributes: dict[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    place: str = ""
    num_run: int = 0

    @property
    def layouts(self) -> PlannedLayouts:
        """The attribute `layouts`. Raises: PipelineError before the pass plan-layouts."""
        layouts = self.attributes.get("layouts")
        if not isinstance(layouts, PlannedLayouts):
            raise PipelineError("no layouts are planned yet", hint="plan-layouts provides them")
        return layouts

    def once(self, item: Pass, node: Node, fn: Callable[[Node], Node]) -> Node:
        """fn(node), for a pass that looks at each node alone and changes nothing at a second look: where the pipeline contains the pass
        twice, results of the first time are not visited again."""
        text = str(item)
        if self.settled.get((text, id(node))) is node:
            return node
        new = fn(node)
        self.settled[text, id(new)] = new
        return new

    def count(self, rule: str, times: int = 1) -> None:
        """Notes that a rule applied."""
        self.rule_counts[rule] = self.rule_counts.get(rule, 0) + times

    def array_of(self, constant: str) -> np.ndarray | None:
        """Contents of a constant input where they are available as a numpy array, else None."""
        contents = self.constants.get(constant)
        return contents if isinstance(contents, np.ndarray) else None


@dataclass(frozen=True)
class Pass(abc.ABC):
    """One rewriting of a graph; options are the dataclass's fields (int, float, bool or str, all with defaults).

    exact       results are equal bit for bit (up to which NaN); else the docstring states the bound
    idempotent  a second run changes nothing
    depends     attributes of the context that it reads
    provides    attributes of the context that it leaves
    """

    name: ClassVar[str]
    requires: ClassVar[Properties] = frozenset()
    establishes: ClassVar[Properties] = frozenset()
    preserves: ClassVar[Properties] = frozenset()
    exact: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True
    depends: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The rewritten graph; `graph` itself where nothing changed."""

    def __str__(self) -> str:
        """The pipeline text of this pass: its name, and the options that differ from their defaults."""
        options = [f"{f.name}={_option_text(getattr(self, f.name))}"
                   for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return self.name + ("{" + ",".join(options) + "}" if options else "")


@dataclass(frozen=True)
class DevicePass(Pass):
    """A rewriting that pays on some kinds of devices. Without such a device in the context the graph stays as it is.

    kinds        kinds of devices (`DeviceSpec.kind`) that it rewrites for
    asks_prices  it needs the context's prices
    for_fusion   it pays because kernels hold several nodes, and is left out where each node has a kernel of its own (`fuse=False`)
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"cuda"})
    asks_prices: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph rewritten for the context's device; `graph` itself where nothing changed."""
        device = ctx.device
        if device is None or device.kind not in self.kinds or self.asks_prices and ctx.prices is None:
            return graph
        return self.rewrite(graph, device, ctx)

    @abc.abstractmethod
    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph rewritten for a device of one of `kinds`; `graph` itself where nothing changed."""


PASSES: dict[str, type[Pass]] = {}
P = TypeVar("P", bound=type[Pass])


def register_pass(cls: P) -> P:
    """Enters a pass class under its name.

    Raises: InternalError when the name is taken or is not the class's name in kebab-case.
    """
    expected_name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
    if cls.name != expected_name or cls.name in PASSES:
        raise InternalError(f"pass {cls.__name__}: name {cls.name!r} must be {expected_name!r} and not registered yet")
    PASSES[cls.name] = cls
    return cls


Checker = Callable[[Graph], list[str]]
CHECKERS: dict[Property, Checker] = {}


def checks(prop: Property) -> Callable[[Checker], Checker]:
    """Registers a function as the checker of a property; see `checkers.py`."""
    def register(fn: Checker) -> Checker:
        CHECKERS[prop] = fn
        return fn

    return register


# Attributes that every context has from the start.
GIVEN = frozenset({"constants"})


class Missing(NamedTuple):
    """An attribute that a pass depends on and nothing before it provides. position: of the pass, from 0."""

    position: int
    item: Pass
    attribute: str

    def providers(self) -> list[str]:
        """Names of the registered passes that provide the attribute."""
        return sorted(name for name, cls in PASSES.items() if self.attribute in cls.provides)


@dataclass(frozen=True)
class Pipeline:
    """Passes in order."""

    passes: tuple[Pass, ...]

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """The pipeline that `text` writes: names separated by commas, options in braces.

        Raises: OptionError for an unknown pass or option, or a value of the wrong type.
        """
        return cls(tuple(_parse_pass(part) for part in _split(text)))

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))

    def missing_attribute(self, present: Collection[str] = ()) -> Missing | None:
        """The first attribute that a pass depends on and nothing before it provides, beside those `present`; None where none is missing."""
        provided = GIVEN.union(present)
        for position, item in enumerate(self.passes):
            for attribute in item.depends:
                if attribute not in provided:
                    return Missing(position, item, attribute)
            provided |= set(item.provides)
        return None

    def check(self, given: Properties = frozenset(), attributes: Collection[str] = ()) -> Properties:
        """The properties that hold after the last pass, if `given` hold before the first. attributes: those that the context has.

        Raises: PipelineError when a pass requires a property that no earlier pass establishes, or depends on an attribute that none
        provides.
        """
        lacking = self.missing_attribute(attributes)
        if lacking is not None:
            raise PipelineError(f"pass {lacking.item.name} (number {lacking.position + 1} of {self}) depends on the attribute "
                                f"{lacking.attribute!r}, which nothing before it provides",
                                hint=f"provided by {', '.join(lacking.providers())}" if lacking.providers() else None)
        holding = given
        for position, item in enumerate(self.passes):
            missing = sorted(item.requires - holding)
            if missing:
                makers = sorted(name for name, cls in PASSES.items() if cls.establishes & set(missing))
                raise PipelineError(
                    f"pass {item.name} (number {position + 1} of {self}) requires {', '.join(missing)}, which does not hold there",
                    hint=f"established by {', '.join(makers)}" if makers else None,
                )
            holding = (holding & item.preserves) | item.establishes
        return holding

    def run(self, graph: Graph, ctx: PassContext | None = None) -> Graph:
        """`graph` after all passes.

        Raises: PipelineError before anything runs when the order is wrong; OptionError where the pass to stop after is not in it;
            VerifyError when a pass leaves a graph that breaks a rule or lacks a property that the pass establishes.
        """
        context = ctx or PassContext()
        self.check(attributes=context.attributes)
        if context.stop_after and all(item.name != context.stop_after for item in self.passes):
            raise OptionError(f"stop_after={context.stop_after!r} is no pass of the pipeline {self}",
                              hint=nearest(context.stop_after, [item.name for item in self.passes]))
        for item in self.passes:
            graph = _run_pass(item, graph, context)
            if item.name == context.stop_after:
                break
        return graph


def _run_pass(item: Pass, before: Graph, ctx: PassContext) -> Graph:
    ctx.rule_counts = {}
    ctx.num_run += 1
    trace = current()
    began = time.perf_counter()
    with trace.span(f"pass {item.name}", "pass", graph=before.name) as facts:
        after = item.run(before, ctx)
        facts.update(nodes_before=len(before.nodes), nodes_after=len(after.nodes), rules=dict(ctx.rule_counts))
    record = PassRecord(item.name, item, before, after, time.perf_counter() - began, ctx.rule_counts)
    if after is not before:
        _show(item, after, ctx, trace)
    if trace.shows("rules"):
        for rule, times in sorted(ctx.rule_counts.items()):
            trace.line("rules", f"{item.name}: {rule} x {times}")
    if ctx.on_pass is not None:
        ctx.on_pass(record)
    if ctx.verify >= 1 and after is not before:
        _verify(item, before, after)
    if ctx.verify >= 2:
        _check_properties(item, before, after)
    left_out = [name for name in item.provides if name not in ctx.attributes]
    if left_out:
        raise PipelineError(f"pass {item.name} says that it provides {left_out[0]!r}, but the context has no such attribute after it")
    return after


def _show(item: Pass, after: Graph, ctx: PassContext, trace: Trace) -> None:
    """Shows the graph after a pass that changed it: as lines, and as a file in the dump folder of the current compile."""
    if trace.shows("ir"):
        trace.line("ir", f"after {item}\n{print_graph(after)}")
    if trace.folder is not None:
        trace.dump(f"passes/{ctx.num_run:02}_{item.name}.txt", print_graph(after))


def _verify(item: Pass, before: Graph, after: Graph) -> None:
    # Nodes that a pass did not change were verified before; only new ones are verified, so that long graphs stay cheap.
    findings = verify_changes(before, after)
    if findings:
        first = findings[0]
        raise VerifyError(
            f"pass {item.name} left a graph that breaks the rule {first.rule}: {first.message}",
            where=f"%{first.node}" if first.node else f"graph @{after.name}",
            notes=(f"{len(findings)} findings", f"before:\n{print_graph(before)}", f"after:\n{print_graph(after)}"),
        )


def _check_properties(item: Pass, before: Graph, after: Graph) -> None:
    for prop in sorted(item.establishes):
        for text in CHECKERS[prop](after):
            raise VerifyError(f"pass {item.name} says that it establishes {prop}, but {text}", notes=(f"after:\n{print_graph(after)}",))
    for prop in sorted(item.preserves - item.establishes):
        if not CHECKERS[prop](before):
            for text in CHECKERS[prop](after):
                raise VerifyError(f"pass {item.name} says that it preserves {prop}, but {text}", notes=(f"after:\n{print_graph(after)}",))


# Pipeline text


def _split(text: str) -> list[str]:
    """The parts between commas outside of braces."""
    parts: list[str] = []
    depth, begin = 0, 0
    for at, char in enumerate(text + ","):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    if depth:
        raise OptionError(f"pipeline {text!r}: braces do not match")
    return [p for p in parts if p]


def _parse_pass(text: str) -> Pass:
    name, brace, rest = text.partition("{")
    cls = PASSES.get(name.strip())
    if cls is None:
        raise OptionError(f"unknown pass {name.strip()!r}", hint=nearest(name.strip(), PASSES) or f"known: {', '.join(sorted(PASSES))}")
    if brace and not rest.rstrip().endswith("}"):
        raise OptionError(f"pass {text!r}: text after the closing brace")
    known = {f.name: f for f in dataclasses.fields(cls)}
    options: dict[str, object] = {}
    for part in _split(rest.rstrip()[:-1]) if brace else []:
        key, equals, value = (s.strip() for s in part.partition("="))
        if key not in known or not equals:
            raise OptionError(f"pass {cls.name} has no option {key!r}", hint=f"known: {', '.join(sorted(known)) or 'none'}")
        options[key] = _option_value(cls.name, key, known[key].default, value)
    return cls(**options)


def _option_value(owner: str, key: str, default: object, text: str) -> object:
    match default:
        case bool() if text in ("true", "false"):
            return text == "true"
        case int() if not isinstance(default, bool) and re.fullmatch(r"-?\d+", text):
            return int(text)
        case float() if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|-?inf|nan", text):
            return float(text)
        case str():
            return text
    raise OptionError(f"pass {owner}: {key}={text!r} is not a {type(default).__name__}")


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
