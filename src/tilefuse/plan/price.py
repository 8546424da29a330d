"""Pricing: the schedule and the cost of a pattern, remembered by structure.

The scheduler and the cost model are the only judges of a pattern; this file asks each of them once for every structure.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.plan.cost import CostModel
from tilefuse.plan.pattern import Cost, Pattern
from tilefuse.plan.products import NO_PRODUCTS, Products
from tilefuse.plan.structure import Structures, boundary
from tilefuse.schedule.stitched import computed_by_several
from tilefuse.schedule.tile import Layouts, TileProgram
from tilefuse.target.device import DeviceSpec

Scheduler = Callable[[Graph, Sequence[str], Layouts, DeviceSpec], TileProgram | Rejected]


# Part of a call's time that a product's own kernel may take at most where it holds nothing else: both times are estimates.
# Source: one H200, f16, as CUDA graphs: 8 x 512 by 512 x 512 takes 3.4 us as a call and 2.2 us as a kernel.
OWN_KERNEL_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Priced:
    """A pattern that has a schedule. `boundary` are the boundary values in the program's names, in canonical order."""

    program: TileProgram
    cost: Cost
    limit_us: float
    boundary: tuple[str, ...]


class Pricer:
    """Schedules and prices patterns of one graph for one device; patterns equal up to names get the same object."""

    def __init__(self, graph: Graph, layouts: Layouts, device: DeviceSpec, options: Options, scheduler: Scheduler,
                 model: CostModel, packer: Scheduler | None = None, products: Products = NO_PRODUCTS) -> None:
        """packer: schedules patterns of independent parts as packed kernels; None: there are none. products: library operators that a
        kernel may hold."""
        self._graph = graph
        self._layouts = layouts
        self._device = device
        self._options = options
        self._scheduler = scheduler
        self._packer = packer
        self._model = model
        self.products = products
        self._structures = Structures(graph, layouts)
        self._known: dict[tuple[int, ...], Priced | Rejected] = {}
        self._packed: dict[tuple[int, ...], Priced | Rejected] = {}
        self._call_us: dict[str, float] = {}
        self._updated = frozenset(v for _, v in graph.updates)
        self.num_scheduled = 0

    def calls_us(self, nodes: Iterable[str]) -> float:
        """What the library takes for those of the nodes that a kernel could hold instead; other calls are in every plan alike.

        Units: microseconds.
        """
        total = 0.0
        for name in nodes:
            if name not in self._call_us:
                self._call_us[name] = self.products.call_us(self._graph.node_by_name[name])
            total += self._call_us[name]
        return total

    def call_or_kernel(self, core: Sequence[str], pattern: Pattern) -> tuple[float, Priced | None]:
        """What a library unit takes by itself, and the kernel that does it where that is plainly faster than the call.

        core: the unit's nodes; pattern: its kernel's. Units: microseconds.
        """
        call_us = self.calls_us(core)
        if not call_us or len(core) > 1 or not self.products.alone(self._graph.node_by_name[core[0]]):
            return call_us, None
        kernel = self.price(pattern)
        if isinstance(kernel, Rejected) or kernel.cost.us > OWN_KERNEL_SHARE * call_us:
            return call_us, None
        return kernel.cost.us, kernel

    def form(self, pattern: Pattern) -> tuple[int, ...]:
        """Equal for patterns that are equal up to names."""
        return self._structures.key(pattern)

    def knows(self, pattern: Pattern, limited: bool = True) -> bool:
        """Whether a pattern of this structure was priced already."""
        return self._structures.key(pattern) in (self._known if limited else self._packed)

    def price(self, pattern: Pattern, limited: bool = True) -> Priced | Rejected:
        """The pattern's kernel and what it costs, or why there is none.

        limited: the nodes make one walk, within the limit on operands; else independent parts become one packed kernel.
        """
        store = self._known if limited else self._packed
        key = self._structures.key(pattern)
        found = store.get(key)
        if found is None:
            found = store[key] = self._schedule(pattern) if limited else self._pack(pattern)
        if self._updated.isdisjoint(pattern.written) or isinstance(found, Rejected):
            return found
        return self._refused(pattern, found) or found

    def _refused(self, pattern: Pattern, priced: Priced) -> Rejected | None:
        """Why a pattern that updates an input is no kernel though its structure is one: the update would need a copy besides."""
        several = computed_by_several(priced.program)
        names = dict(zip(priced.boundary, boundary(self._graph, pattern), strict=True)) if several else {}
        copied = [names[v] for v in sorted(several) if names[v] in self._updated]
        if not copied:
            return None
        return Rejected(Reason.NEEDS_GRID_SYNC, f"several blocks compute %{copied[0]}, the new contents of an input that they read")

    def _schedule(self, pattern: Pattern) -> Priced | Rejected:
        values = boundary(self._graph, pattern)
        if len(pattern.nodes) > 1 and len(values) > self._options.max_kernel_operands:
            return Rejected(Reason.TOO_MANY_OPERANDS, f"{len(values)} tensors, at most {self._options.max_kernel_operands}")
        return self._made(pattern, values, self._scheduler)

    def _pack(self, pattern: Pattern) -> Priced | Rejected:
        if self._packer is None:
            return Rejected(Reason.UNSUPPORTED_OP, "this scheduler packs no kernels")
        return self._made(pattern, boundary(self._graph, pattern), self._packer)

    def _made(self, pattern: Pattern, values: tuple[str, ...], scheduler: Scheduler) -> Priced | Rejected:
        self.num_scheduled += 1
        layouts = {v: self._layouts[v] for v in values if v in self._layouts}
        program = scheduler(pattern.graph(self._graph), pattern.nodes, layouts, self._device)
        if isinstance(program, Rejected):
            return program
        return Priced(program, self._model.cost(program), self._model.limit_us(program), values)


def require(priced: Priced | Rejected, name: str) -> Priced:
    """The priced pattern. Raises: InternalError where it was rejected though it must have a schedule."""
    if isinstance(priced, Rejected):
        raise InternalError(f"no schedule for %{name} alone: {priced}", hint="please report it with the graph's text (TILEFUSE_DUMP_DIR)")
    return priced
