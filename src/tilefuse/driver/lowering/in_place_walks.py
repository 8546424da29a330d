"""Which kernels may write an update over the old contents: those that have read each element by then, in whichever thread.

    s = sum of g over rows;  n[i] = p[i] - rate * s[i]      the thread that stores n[i] has loaded p[i], and no other thread ever does

Each template spreads elements over threads in its own way and is asked about it. An update that is not known to be safe is copied.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Lookup, Read, walk
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.registry import kernel_template


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
        """Whether each element of `target` has been read, by whatever thread, when an element of `value` overwrites it."""
        walk_of_value = self._walk_of(kernel, value, target)
        if walk_of_value is None:
            return False
        program, names = walk_of_value.program, walk_of_value.name_of
        template = kernel_template(program.choice)
        if template.loads_where_it_stores(program, names[value]) and _element_by_element(self.graph, walk_of_value.nodes, target):
            return True
        return template.reads_end_before_writes(program, names[value], names.get(target, ""))

    def lies_under(self, kernel: PlannedKernel, value: str, target: str) -> bool:
        """Whether each thread of a kernel reads of `target` only the places in memory to which it writes elements of `value`.

        Requires: both start at one address and have as many elements, whatever their shapes.
        """
        walk_of_value = self._walk_of(kernel, value, target)
        if walk_of_value is None:
            return False
        program, names = walk_of_value.program, walk_of_value.name_of
        # A body that parts of several sizes share is known for the largest of them.
        if program.graph.type_of(names[value]).num_elements != self.graph.type_of(value).num_elements:
            return False
        return kernel_template(program.choice).reads_where_it_stores(program, names[value], names.get(target, ""))

    def _walk_of(self, kernel: PlannedKernel, value: str, target: str) -> Walk | None:
        """The walk that writes `value`; None where another part of the kernel reads `target`: it would read the old contents at a time
        of its own."""
        program = kernel.program
        groups = kernel_template(program.choice).groups(program)
        if not groups:
            names = dict(zip(kernel.pattern.nodes, (n.name for n in program.graph.nodes), strict=True))
            return Walk(kernel.pattern.nodes, program, names | {there: here for here, there in kernel.binding})
        if kernel.name not in self._parts:
            plan_names = dict(zip((n.name for n in program.graph.nodes), kernel.pattern.nodes, strict=True)) | dict(kernel.binding)
            self._add(kernel.name, groups, plan_names)
        part = self._parts[kernel.name].get(value)
        if part is None:
            return None
        reads_target = any(target in self.graph.node_by_name[n].reads() for n in part.nodes)
        return None if self._readers[kernel.name].get(target, 0) > reads_target else part

    def _add(self, kernel: str, groups: Sequence[PackedGroup], plan_names: Mapping[str, str]) -> None:
        walks = self._parts[kernel] = {}
        readers = self._readers[kernel] = {}
        for group in groups:
            body = group.program.graph
            for part in group.parts:
                # Sums that a part computes in place of a product are nodes of the part alone: the plan's graph has the product.
                names = {plan_names[n]: own.name for n, own in zip(part.nodes, body.nodes, strict=True) if n in plan_names}
                nodes = tuple(names)
                for value in dict.fromkeys(v for n in nodes for v in self.graph.node_by_name[n].reads()):
                    readers[value] = readers.get(value, 0) + 1
                names |= dict(zip((plan_names[v] for v in part.values), (*(i.name for i in body.inputs), *body.results), strict=True))
                walks.update(dict.fromkeys(nodes, Walk(nodes, group.program, names)))


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
