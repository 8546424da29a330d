"""Patterns and plans: which nodes share a kernel, and at which level each value travels.

A pattern is a set of nodes for one kernel together with the values it writes. A node may belong to several patterns when recomputing it is
cheaper than storing it; every value in memory has exactly one writer. A plan covers the whole graph in the order of execution. Its text
form is in `text.py`.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilefuse.base.candidate import Rejected
from tilefuse.base.construction import quickly_built
from tilefuse.domain.tile import EdgeLevel, TileProgram
from tilefuse.ir.graph import Graph, Input, Node, node_inputs
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.library.side_by_side import KIND as SIDE_BY_SIDE
from tilefuse.ir.library.side_by_side import OPERATOR, windows_of


@quickly_built
@dataclass(frozen=True, slots=True)
class Pattern:
    """Nodes for one kernel, in graph order, and those of their values that other kernels, library calls or the caller need."""

    nodes: tuple[str, ...]
    written: tuple[str, ...]

    def graph(self, whole: Graph, name: str = "pattern") -> Graph:
        """The pattern as a graph of its own: inputs are its boundary values, results the values it writes.

        Cost: linear in the pattern, independent of the size of the whole graph.
        """
        nodes = tuple(whole.node_by_name[n] for n in self.nodes)
        inputs = tuple(Input(v, whole.type_of(v)) for v in node_inputs(nodes))
        return Graph(name, inputs, nodes, self.written)


# The source of a cost that was measured.
MEASUREMENT = "measurement"


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of one kernel or call. source: the resource that limits a prediction ("bandwidth", "flops", "launch"), or `MEASUREMENT`.

    Units: microseconds.
    """

    us: float
    source: str


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """One kernel of a plan.

    program   its template and launch; kernels that are equal up to names hold the same object, with the first one's names
    binding   (value in `program.graph`, value of the plan's graph) of every boundary value
    generator proposer of the pattern: "single", "connect", "recompute", "substitution", "exploratory", "walk", "packing", "pack" (by
              greedy planning), "text"
    limit_us  the time its boundary bytes need at the device's full bandwidth
    """

    name: str
    pattern: Pattern
    program: TileProgram
    binding: tuple[tuple[str, str], ...]
    generator: str
    cost: Cost
    limit_us: float

    def edge_levels(self, renaming: Mapping[str, str]) -> tuple[EdgeLevel, ...]:
        """Levels of the edges inside the kernel, each once; `renaming` maps the program's names to the plan's.

        Parts of a packed kernel that compute the same value have edges in common, possibly at two levels.
        """
        return tuple(dict.fromkeys(EdgeLevel(renaming.get(e.producer, e.producer), renaming.get(e.user, e.user), e.level)
                                   for e in self.program.levels))

    @property
    def levels(self) -> tuple[EdgeLevel, ...]:
        """Levels of the edges inside the kernel, in the names of the plan's graph."""
        own = dict(zip((n.name for n in self.program.graph.nodes), self.pattern.nodes)) | dict(self.binding)
        return self.edge_levels(own)


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """One call of a library operator. `results`: (number of the result, value) pairs, one a node of the call."""

    operator: str
    operands: tuple[str, ...]
    results: tuple[tuple[int, str], ...]

    @property
    def runs(self) -> bool:
        """Whether the program has a step for it. Parts of a value that are written where they lie need none."""
        return self.operator != OPERATOR


@dataclass(frozen=True, slots=True)
class View:
    """A value that is a strided window onto another value's memory: no kernel, no memory. Units: elements."""

    value: str
    base: str
    offset: int
    strides: tuple[int, ...]


def outside_reads(graph: Graph, nodes: Sequence[str]) -> dict[str, None]:
    """Values from outside that nodes read, in order of occurrence; views under their own names (an ordered set)."""
    inside = set(nodes)
    return {v: None for n in nodes for v in graph.node_by_name[n].reads() if v not in inside}


def read_values(graph: Graph, views: Mapping[str, View], pattern: Pattern) -> dict[str, None]:
    """Values in memory that a pattern reads; a view counts as its base (an ordered set)."""
    read = {views[v].base if v in views else v: None for v in outside_reads(graph, pattern.nodes)}
    # Tasks of one kernel read windows of what others of its tasks write.
    return read if read.keys().isdisjoint(pattern.written) else {v: None for v in read if v not in pattern.written}


def needed_nodes(graph: Graph, pattern: Pattern) -> frozenset[str]:
    """Nodes of a pattern from which its written values are computed, these included."""
    inside, stack = set(pattern.nodes), list(pattern.written)
    needed: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack += [v for v in graph.node_by_name[name].reads() if v in inside]
    return frozenset(needed)


PlanStep = PlannedKernel | LibraryCall


@dataclass(frozen=True, slots=True)
class RejectedMerge:
    """Two patterns that do not share a kernel (named by their last nodes), and the reason."""

    first: str
    second: str
    rejected: Rejected


@dataclass(frozen=True, slots=True)
class Search:
    """Record of an integer program's search.

    planner       origin of the plan: "ilp" the integer program; "both" greedy connecting, when no known choice of candidates saves more;
                  "greedy" greedy connecting, when its plan is cheaper after packing, or no program could be built; "seeded" an earlier
                  plan at other sizes, which the program packed
    objective_us  time that the chosen candidates save compared with one kernel per unit: the sum of f(P) of FusionStitching 4.1
    bound_us      upper bound on the objective of any choice of candidates; `proven`: equal to the objective up to the solver's tolerance
    rounds, cuts  number of solver runs, and rows added in between; equal components of the program count once
    greedy_us     predicted time of the plan of greedy connecting
    peak_bytes    peak bytes of intermediate values alive at one time
    candidates    (generator, number of its candidates that have a schedule)
    rejected      (reason, number of candidates)
    """

    planner: str
    objective_us: float
    bound_us: float
    rounds: int
    cuts: int
    seconds: float = field(compare=False)
    proven: bool
    greedy_us: float
    peak_bytes: int
    candidates: tuple[tuple[str, int], ...]
    rejected: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DraftKernel:
    """A kernel of a draft: its generator and the nodes that it owns.

    share    of its parts' time that it takes (`seeded.parts_us`); fills: whether it has a block for every multiprocessor. Both are of
             kernels that hold products, whose calls by the library are the other choice; 0 and False for others.
    steps    sets of its nodes that greedy connecting joined on its way
    """

    generator: str
    nodes: tuple[str, ...]
    share: float = 0.0
    fills: bool = False
    steps: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan before independent kernels were packed, for plans of other sizes to start from.

    packed   nodes of every launch that later holds several of the kernels
    light    nodes that each of their users computes for itself
    """

    kernels: tuple[DraftKernel, ...]
    packed: tuple[tuple[str, ...], ...]
    light: frozenset[str]


@dataclass(frozen=True, slots=True)
class Start:
    """An earlier plan that a plan started from.

    sizes     (name, extents) of the inputs of the earlier plan's graph
    kept      number of kernels of the earlier plan that stand; given_up: the others, with the reasons
    merged    how often two neighbours became one kernel
    """

    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    kept: int
    given_up: tuple[str, ...]
    merged: int


@dataclass(frozen=True)
class Plan:
    """A cover of the graph by kernels, library calls and views.

    steps      in order of execution
    layouts    strides of values that are not dense row-major
    rejected   merges that were tried and refused, at most `found.MAX_REJECTED_KEPT` of them; `num_rejected` counts all
    search     record of the integer program's search; None: greedy connecting alone
    draft      decisions from which plans of other sizes may start; start: the earlier plan that this one started from, if any
    timed_calls  measured times of library calls by the node that they compute: calls of the plan, and calls that its kernels replace
    Units: `objective_us` is the predicted time of all kernels and of the products that a kernel could hold; `unfused_us` is the time of
    one kernel per node and one call per product. `unfused_bytes` are the bytes that these kernels would read and write,
    `unfused_kernels` is their number, `unfused_kernels_us` their time, and `alone_us` the time of each by its node.
    """

    graph: Graph
    device: str
    steps: tuple[PlanStep, ...]
    views: tuple[View, ...]
    layouts: Layouts
    objective_us: float
    unfused_us: float
    unfused_kernels: int
    unfused_bytes: int
    rejected: tuple[RejectedMerge, ...] = ()
    num_rejected: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)
    search: Search | None = None
    unfused_kernels_us: float = 0.0
    alone_us: Mapping[str, float] = field(default_factory=dict, compare=False)
    draft: Draft | None = field(default=None, compare=False, repr=False)
    start: Start | None = field(default=None, compare=False)
    timed_calls: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def kernels(self) -> tuple[PlannedKernel, ...]:
        """The kernels, in order of execution."""
        return tuple(s for s in self.steps if isinstance(s, PlannedKernel))

    @property
    def windows(self) -> tuple[View, ...]:
        """Values in the memory of others: views, and parts that kernels write where they lie in a value."""
        parts = (View(w.part, n.name, w.offset, w.strides) for n in self.graph.nodes if n.kind == SIDE_BY_SIDE for w in windows_of(n))
        return (*self.views, *parts)

    @property
    def library_calls(self) -> tuple[LibraryCall, ...]:
        """The library calls, in order of execution."""
        return tuple(s for s in self.steps if isinstance(s, LibraryCall))

    @property
    def programs(self) -> tuple[TileProgram, ...]:
        """The distinct tile programs, in order of first use."""
        seen: dict[int, TileProgram] = {}
        for kernel in self.kernels:
            seen.setdefault(id(kernel.program), kernel.program)
        return tuple(seen.values())


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a plan breaks, with the value or kernel concerned."""

    rule: str
    where: str
    message: str


def verify_plan(plan: Plan) -> list[Finding]:
    """Broken rules of a plan: each value has one writer, all needed values are written, and before they are read. Empty: the plan is
    legal."""
    findings: list[Finding] = []
    view_of = {v.value: v.base for v in plan.views}
    ready = {i.name for i in plan.graph.inputs}

    def owner(value: str) -> str:
        while value in view_of:
            value = view_of[value]
        return value

    def need(values: Iterable[str], reader: str) -> None:
        findings.extend(Finding("written-before-read", v, f"{reader} reads %{v} before anything writes it")
                        for v in values if owner(v) not in ready)

    def give(values: Iterable[str], writer: str) -> None:
        for value in values:
            if value in ready:
                findings.append(Finding("one-writer", value, f"{writer} writes %{value} again"))
            ready.add(value)

    for step in plan.steps:
        match step:
            case PlannedKernel():
                nodes = [plan.graph.node_by_name[n] for n in step.pattern.nodes]
                own = set(step.pattern.written)
                need((v for v in node_inputs(nodes) if owner(v) not in own), step.name)
                give(step.pattern.written, step.name)
            case LibraryCall():
                need(step.operands, step.operator)
                give((v for _, v in step.results), step.operator)
    need(sorted(plan.graph.escaping), "the caller")
    return findings


def is_library(node: Node) -> bool:
    """Whether the node is a call of the framework or of a vendor library; such nodes are never in patterns."""
    return node.category == "library"
