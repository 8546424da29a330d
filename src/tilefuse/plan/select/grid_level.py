"""The grid level: kernels that follow each other in a plan become tasks of one kernel, where that is allowed, legal and cheaper.

    before   k0 (norm)   k1 (product)   k2 (norm)   library call   k3 (map)   k4 (product)
    after    k0+k1+k2 as tasks                      library call   k3+k4 as tasks

A plan cuts between kernels where a block would need values of other blocks (`needs-grid-sync`), and wherever recomputing costs more than a
launch. Inside a kernel of tasks such a cut is a wait. Runs end at library calls, at kernels that cannot be bodies, and at updates in place.
Within a run the cheapest cuts are found: a kernel of tasks costs one launch, and a wait for each of its stages behind the first.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilefuse.base import trace
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import launches_us
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.pattern import Pattern, RejectedMerge, View
from tilefuse.plan.price.price import Pricer
from tilefuse.plan.price.products import library_product_us
from tilefuse.plan.price.structure import boundary
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.request import is_vector_product
from tilefuse.templates.tasks.build import Piece, Setting, build_tasks, piece_refusal, pieces_of
from tilefuse.templates.tasks.price import stage_us
from tilefuse.templates.tasks.record import Window


@dataclass(frozen=True, slots=True)
class Joined:
    """Kernels of a plan with runs of them as tasks. refused: neighbours that are no tasks of one kernel. Units: microseconds."""

    chosen: tuple[Chosen, ...]
    saved_us: float = 0.0
    refused: tuple[RejectedMerge, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """A kernel that may be a part of a kernel of tasks. item: the kernel or the library call that the plan has without the level."""

    kernel: Chosen
    item: Chosen
    pieces: tuple[Piece, ...]
    us: float
    stage_us: float


def join_in_tasks(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen], layouts: Layouts, pricer: Pricer,
                  options: Options) -> Joined:
    """The plan with the grid level, as `Options.grid_level` asks for it. Requires: `chosen` is in order of execution."""
    if options.grid_level == "off":
        return Joined(tuple(chosen))
    joining = _Joining(graph, views, layouts, pricer, options)
    for item in chosen:
        joining.add(item)
    joining.end_run()
    return Joined(tuple(joining.chosen), joining.saved_us, tuple(joining.refused))


class _Joining:
    """State of one pass over a plan: the kernels of the current run, and the decisions about those before it."""

    def __init__(self, graph: Graph, views: Mapping[str, View], layouts: Layouts, pricer: Pricer, options: Options) -> None:
        self.graph = graph
        self.views = views
        self.layouts = layouts
        self.device = pricer.device
        self.pricer = pricer
        self.options = options
        self.updated = {value for _, value in graph.updates}
        self.run: list[_Part] = []
        self.chosen: list[Chosen] = []
        self.refused: list[RejectedMerge] = []
        self.saved_us = 0.0
        self.verdicts: dict[int, Rejected | None] = {}

    def add(self, item: Chosen) -> None:
        """Takes the next kernel or call of the plan."""
        part = self._part(item) if item.priced is not None else self._call(item)
        if isinstance(part, Rejected):
            before = self.run[-1].item if self.run else self.chosen[-1] if self.chosen else None
            if before is not None:
                self._refuse(before, item, part)
            self.end_run()
            self.chosen.append(item)
            return
        self.run.append(part)

    def end_run(self) -> None:
        """Decides about the kernels of the run."""
        place = 0
        for size in _cheapest(self.run, self.device, self.options.grid_level == "always"):
            self._join(self.run[place:place + size])
            place += size
        self.run = []

    def _call(self, item: Chosen) -> _Part | Rejected:
        """A library call whose product a walk computes as well: its kernel may be a stage though the call is faster than a launch of it."""
        node = self.graph.node_by_name[item.pattern.nodes[-1]]
        if len(item.pattern.nodes) > 1 or not is_vector_product(node, self.graph):
            return Rejected(Reason.LIBRARY_CALL, f"%{node.name} is a call of {node.detail or node.kind}")
        pattern = Pattern((*self._views_of(node), node.name), (node.name,))
        priced = self.pricer.price(pattern)
        if isinstance(priced, Rejected):
            return priced
        return self._part(Chosen("single", pattern, priced), item, library_product_us(node, self.graph, self.device, self.layouts))

    def _views_of(self, node: Node) -> tuple[str, ...]:
        """The views through which a node reads memory, in graph order: a kernel computes them as subscripts."""
        inside: set[str] = set()
        waiting = list(node.operands)
        while waiting:
            name = waiting.pop()
            if name in self.views and name not in inside:
                inside.add(name)
                waiting += self.graph.node_by_name[name].reads()
        return tuple(n.name for n in self.graph.nodes if n.name in inside)

    def _part(self, kernel: Chosen, call: Chosen | None = None, call_us: float = 0.0) -> _Part | Rejected:
        """A kernel as a part. call: the library call that it replaces, if any."""
        priced = kernel.priced
        assert priced is not None
        if not self.updated.isdisjoint(kernel.pattern.written):
            return Rejected(Reason.UNSUPPORTED_OP, f"%{kernel.pattern.written[-1]} updates an input in place")
        program = self.pricer.as_part(priced.program)
        name_by_own = dict(zip((n.name for n in program.graph.nodes), kernel.pattern.nodes, strict=False))
        name_by_own |= dict(zip(priced.boundary, boundary(self.graph, kernel.pattern), strict=True))
        pieces = pieces_of(program, name_by_own)
        if isinstance(pieces, Rejected):
            return pieces
        pieces = tuple(replace(piece, program=self.pricer.as_part(piece.program)) for piece in pieces)
        for piece in pieces:
            key = id(piece.program)
            if key not in self.verdicts:
                self.verdicts[key] = piece_refusal(piece, self.device)
            if (why := self.verdicts[key]) is not None:
                return why
        us = priced.cost.us if call is None else call_us
        return _Part(kernel, call or kernel, pieces, us, sum(stage_us(p.program, self.device) for p in pieces))

    def _join(self, parts: Sequence[_Part]) -> None:
        """Adds parts as one kernel of tasks, or as kernels of their own where they are none."""
        joined = self._tasks(parts) if len(parts) > 1 else None
        alone_us = sum(p.us for p in parts)
        if isinstance(joined, Chosen) and joined.priced is not None and (
                self.options.grid_level == "always" or joined.priced.cost.us < alone_us):
            self.saved_us += alone_us - joined.priced.cost.us
            self.chosen.append(joined)
            return
        if isinstance(joined, Chosen) and joined.priced is not None:
            detail = f"{joined.priced.cost.us:.2f} us as tasks of one kernel, {alone_us:.2f} us as {len(parts)} kernels"
            self._refuse(parts[0].item, parts[-1].item, Rejected(Reason.WORSE_THAN_INCUMBENT, detail))
        elif isinstance(joined, Rejected):
            self._refuse(parts[0].item, parts[-1].item, joined)
            if len(parts) > 2:
                middle = len(parts) // 2
                self._join(parts[:middle])
                self._join(parts[middle:])
                return
        self.chosen.extend(p.item for p in parts)

    def _tasks(self, parts: Sequence[_Part]) -> Chosen | Rejected:
        nodes = {n for p in parts for n in p.kernel.pattern.nodes}
        written = tuple(v for p in parts for v in p.kernel.pattern.written)
        pattern = Pattern(tuple(n.name for n in self.graph.nodes if n.name in nodes), written)
        num_bytes = sum(self.graph.type_of(v).num_bytes for v in written)
        if num_bytes > self.device.memory_bytes:
            return Rejected(Reason.MEMORY, f"{num_bytes} bytes between the tasks, and {self.device.name} has {self.device.memory_bytes}")
        values = boundary(self.graph, pattern)
        windows = tuple(Window(v, self.views[v].base, self.views[v].offset) for v in values
                        if v in self.views and self.views[v].base in written)
        layouts = {v: self.layouts[v] for v in values if v in self.layouts}
        options = self.options
        setting = Setting(options.task_blocks, options.task_stages, options.task_ahead, options.task_limit_ms, options.task_times)
        pieces = [x for p in parts for x in p.pieces]
        program = build_tasks(pattern.graph(self.graph, "tasks"), layouts, pieces, windows, self.device, setting)
        if isinstance(program, Rejected):
            return program
        return Chosen("tasks", pattern, self.pricer.priced(program, values))

    def _refuse(self, first: Chosen, second: Chosen, why: Rejected) -> None:
        self.refused.append(RejectedMerge(first.pattern.nodes[-1], second.pattern.nodes[-1], why))
        trace.current().line("plan", f"no tasks of one kernel: {why}")


def _cheapest(parts: Sequence[_Part], device: DeviceSpec, always: bool) -> list[int]:
    """Numbers of neighbouring parts that share a kernel, in order; the sum of kernels and waits is least.

    Cost: quadratic in the parts, at most `SEARCH.tasks.kernels` each.
    """
    if always:
        most = SEARCH.tasks.kernels
        return [min(most, len(parts) - n) for n in range(0, len(parts), most)]
    figures, launch_us = device.fitted.tasks, launches_us(1, device)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(parts) + 1):
        options = [(best[end - 1][0] + parts[end - 1].us, 1)]
        us = launch_us + parts[end - 1].stage_us + figures.task_us
        for size in range(2, min(end, SEARCH.tasks.kernels) + 1):
            us += parts[end - size].stage_us + figures.task_us + figures.wait_us
            options.append((best[end - size][0] + us, size))
        best.append(min(options))
    sizes = []
    end = len(parts)
    while end:
        sizes.append(best[end][1])
        end -= best[end][1]
    return sizes[::-1]

