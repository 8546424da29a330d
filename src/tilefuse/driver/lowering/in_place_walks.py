"""Who reads an element that an update overwrites: in place is safe where only the thread does that then writes it.

    s = sum of g over rows;  n[i] = p[i] - rate * s[i]      the thread that stores n[i] has loaded p[i], and no other thread ever does

Every template shares elements among threads in its own way. What is not known here to be safe is copied.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilefuse.domain.regions import Span, holds, region_of, whole
from tilefuse.domain.resolved import Domain, Touch, resolved_walk
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Guard, Lookup, Read, walk
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.rows.modes import Held, Rows, Split, Streamed
from tilefuse.templates.staged.row_lanes import first_lane_pieces
from tilefuse.templates.staged.stitch_pattern import StitchPattern
from tilefuse.templates.staged.stitch_plan import Piece, Stage, StitchPlan


@dataclass(frozen=True, slots=True)
class Walk:
    """Values that a kernel, or one part of a packed kernel, computes together.

    nodes    in the plan's names; program: how, maybe with the names of an equal pattern
    name_of  the program's name for each value of the plan that it knows
    """

    nodes: tuple[str, ...]
    program: TileProgram
    name_of: Mapping[str, str]


class Walks:
    """The walks of a plan's kernels: one for each kernel, or one for each part of a packed kernel."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._parts: dict[str, dict[str, Walk]] = {}
        self._readers: dict[str, dict[str, int]] = {}

    def may_overwrite(self, kernel: PlannedKernel, value: str, target: str) -> bool:
        """Whether each element of `target` is read only by the thread that writes the same element of `value`, and before it does."""
        found = self._walk_of(kernel, value, target)
        if found is None:
            return False
        plan = found.program.internal
        if isinstance(plan, StitchPlan):
            return _in_stages(plan, found.name_of[value], found.name_of.get(target, ""))
        if not _is_walked_once(found.program, self.graph.type_of(value).num_elements):
            return False
        return _element_by_element(self.graph, found.nodes, target) or _read_before_sums(found, value, target)

    def lies_under(self, kernel: PlannedKernel, value: str, target: str) -> bool:
        """Whether a flat walk reads of `target` only the place in memory that it writes an element of `value` to, each in one thread.

        Requires: both start at one address and have as many elements, whatever their shapes.
        """
        found = self._walk_of(kernel, value, target)
        if found is None or found.program.template != "pointwise":
            return False
        domain, name = found.program.internal, found.name_of.get(target, "")
        assert isinstance(domain, Domain)
        at = next((offset for output, _, offset in domain.outputs if output == found.name_of[value]), None)
        touches = [t for i in domain.instances for t in resolved_walk(i.body) if isinstance(t, Touch) and t.value == name]
        once = domain.scatter is None and domain.num_kept * domain.num_reduced == self.graph.type_of(value).num_elements
        return bool(name) and once and at is not None and all(t.offset == at and not t.dynamic for t in touches)

    def _walk_of(self, kernel: PlannedKernel, value: str, target: str) -> Walk | None:
        """The walk that writes `value`; None where another part of the kernel reads `target`: it would read the old contents at a time
        of its own."""
        choice = kernel.program.choice
        theirs = kernel.program.graph
        if not isinstance(choice, Packed):
            names = dict(zip(kernel.pattern.nodes, (n.name for n in theirs.nodes), strict=True))
            return Walk(kernel.pattern.nodes, kernel.program, names | {there: here for here, there in kernel.binding})
        if kernel.name not in self._parts:
            ours = dict(zip((n.name for n in theirs.nodes), kernel.pattern.nodes, strict=True)) | dict(kernel.binding)
            self._add(kernel.name, choice, ours)
        found = self._parts[kernel.name].get(value)
        if found is None:
            return None
        mine = any(target in self.graph.node_by_name[n].reads() for n in found.nodes)
        return None if self._readers[kernel.name].get(target, 0) > mine else found

    def _add(self, kernel: str, choice: Packed, ours: Mapping[str, str]) -> None:
        parts = self._parts[kernel] = {}
        readers = self._readers[kernel] = {}
        for group in choice.groups:
            body = group.program.graph
            for part in group.parts:
                nodes = tuple(ours[n] for n in part.nodes)
                for value in dict.fromkeys(v for n in nodes for v in self.graph.node_by_name[n].reads()):
                    readers[value] = readers.get(value, 0) + 1
                names = dict(zip(nodes, (n.name for n in body.nodes), strict=True))
                names |= dict(zip((ours[v] for v in part.values), (*(i.name for i in body.inputs), *body.results), strict=True))
                parts.update(dict.fromkeys(nodes, Walk(nodes, group.program, names)))


def _element_by_element(graph: Graph, nodes: Collection[str], target: str) -> bool:
    """Whether these nodes read `target`, and whatever depends on it, only at the element that they compute."""
    shape = graph.type_of(target).shape
    depending = {target}
    for name in nodes:
        node = graph.node_by_name[name]
        if depending.isdisjoint(node.reads()):
            continue
        if node.category != "map" or node.type.shape != shape or node.body is None:
            return False
        here = tuple(map(axis, node.axes))
        for e in walk(node.body):
            if not isinstance(e, Lookup | Read) or e.value not in depending:
                continue
            if isinstance(e, Lookup) or not _is_at(e, here, shape):
                return False
        depending.add(name)
    return True


def _is_at(read: Read, here: Sequence[Affine], shape: Sequence[int]) -> bool:
    """Whether a read of a tensor of this shape is at `here`; where there is only one element it is, whatever is written."""
    return all(extent == 1 or index == at for index, at, extent in zip(read.index, here, shape, strict=True))


def _is_walked_once(program: TileProgram, num_elements: int) -> bool:
    """Whether a walk over a domain computes each of these elements in one thread, reading what it needs for it there and then."""
    match program.choice, program.internal:
        case Columns(), Domain() as domain:
            # One value a column: the thread that has the whole sum stores it. Whole columns are read ahead by threads without work too.
            return domain.num_reduced > 1 and num_elements == domain.num_kept
        case Rows(mode=Held() | Streamed() | Split()), Domain() as domain:
            # One value a row: one thread, of the last block where several share a row, computes and stores it.
            return domain.num_reduced > 1 and num_elements == domain.num_kept
    return program.template == "pointwise"


def _read_before_sums(found: Walk, value: str, target: str) -> bool:
    """Whether a walk reads an element of `target` for the elements of the row (or column) whose sum decides what overwrites it, and all
    threads meet between: a bias that is added to each element, and updated by the sum of the gradients of these elements.

        read p[i]  for all k   ->   barrier, last block   ->   p[i] = p[i] - rate * s[i]
    """
    program, domain = found.program, found.program.internal
    assert isinstance(domain, Domain)
    choice, name = program.choice, found.name_of.get(target, "")
    if isinstance(choice, Rows):
        meets, tile, held = choice.split > 1 or choice.threads > 32 or choice.threads == 1, choice.rows, choice.in_registers
    elif isinstance(choice, Columns):
        # Tiles that have a vector in common read each other's columns.
        alone = between_columns(domain, choice) is None
        meets, tile, held = alone and (choice.split > 1 or choice.threads_y > 1), choice.vector * choice.threads_x, choice.on_chip
    else:
        return False
    # Threads without a row or column of their own read another block's.
    meets = meets and (domain.num_kept <= tile or domain.num_kept % tile == 0)
    # Elements that are on chip are written when the sum is there.
    if held and any(offset.axes() & set(domain.reduced) for _, _, offset in domain.outputs):
        return False
    sums = {i.key for i in domain.instances if i.shared}
    if not (name and meets) or domain.has_scan or domain.scatter is not None or any(i.carried for i in domain.instances):
        return False
    for i in domain.instances:  # in evaluation order: users follow what they use
        if not sums.isdisjoint(i.uses):
            sums.add(i.key)
            if i.depends & set(domain.reduced) or i.shared:
                return False  # the elements are walked again after a sum
    at = next((offset for output, _, offset in domain.outputs if output == found.name_of[value]), None)
    touches = [t for i in domain.instances for t in resolved_walk(i.body) if isinstance(t, Touch) and t.value == name]
    return at is not None and all(t.offset == at and not t.dynamic for t in touches)


def _in_stages(plan: StitchPlan, value: str, target: str) -> bool:
    """Whether a stitched kernel reads of `target` only what the same block overwrites: at the same element in the loop that does, or
    before a barrier in front of that loop.

    Blocks have no element of the value in common: every axis of the grid leads to other elements of it. What several blocks compute, each
    from the old contents, is not overwritten.
    """
    graph = plan.graph
    stitcher = StitchPattern(graph)
    if not target or stitcher.analyse() is not None:
        return False
    stitcher.kept = plan.kept
    home = {k: n for n, s in enumerate(plan.stages) for k in (*s.pieces, *s.products)}
    written = [p for p in plan.pieces if p.value == value]
    if len(written) != 1 or written[0].kind != "map" or written[0].grid_axes != {name for name, _ in plan.grid}:
        return False
    shape = graph.type_of(target).shape
    own, at = written[0], home[written[0].key]
    beside: list[Piece] = []
    for p in plan.pieces:
        if p.value == target:
            # A copy that no stage brings on chip is read where it lies, by the products that are its users.
            regions, users = [p.region], [p.key] if p.key in home else [k for k, s in plan.sources.items() if p.key in s]
        elif p.kind == "copy":
            continue
        else:
            spans = dict(zip(stitcher.axes(p.value), p.region, strict=True)) | {a: Span(number(0), e) for a, e in stitcher.over(p.value)}
            places = [index for v, index in stitcher.touches(p.value) if v == target]
            looked_up = [whole(shape)] if target in stitcher.looked_up(p.value) else []
            here = tuple(map(axis, stitcher.axes(p.value)))
            if home[p.key] == at and places and not looked_up and all(index == here for index in places):
                beside.append(p)
                continue
            regions = [*looked_up, *(region_of(index, spans, shape, dict(plan.grid)) for index in places)]
            users = [p.key] if regions else []
        if not all(holds(own.region, r) for r in regions):
            return False
        if any(home[k] >= at or not any(s.barrier for s in plan.stages[home[k] + 1:at + 1]) for k in users):
            return False
    return _read_once(plan, plan.stages[at], own, beside)


def _read_once(plan: StitchPlan, stage: Stage, own: Piece, beside: Sequence[Piece]) -> bool:
    """Whether the pieces of a loop that read the old element do so in the thread that overwrites it, and do not read it again then.

    A second piece finds the element in a register, unless it reads it under a guard; rows are walked once for each piece.
    """
    if stage.kind == "rows":
        one_lane = first_lane_pieces(plan, stage)
        whole_rows = len(own.region) > min(len(plan.pieces[k].region) for k in stage.pieces)
        return all(p is own for p in beside) and (whole_rows or stage.lanes == 1 or own.key in one_lane)
    guarded = any(isinstance(e, Guard) for n in plan.graph.nodes if n.body is not None for e in walk(n.body))
    return stage.kind in ("map", "product") and all(p.region == own.region for p in beside) and (len(beside) < 2 or not guarded)
