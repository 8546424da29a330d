"""From chosen patterns to the plan: names of kernels, shared programs, bindings, totals."""
from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.pattern import LibraryCall, Pattern, Plan, PlannedKernel, PlanStep, RejectedMerge, Search, View
from tilefuse.plan.price.price import Priced
from tilefuse.plan.price.structure import boundary
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class Chosen:
    """A pattern of the cover with its price; a price of None marks a library call.

    core: nodes that no other pattern owns, where connecting made the pattern: all except views and recomputed nodes.
    """

    generator: str
    pattern: Pattern
    priced: Priced | None
    core: tuple[str, ...] = ()


def assemble(graph: Graph, device: DeviceSpec, layouts: Layouts, views: dict[str, View], chosen: Sequence[Chosen], objective_us: float,
             unfused_us: float, unfused: Sequence[Chosen], rejected: tuple[RejectedMerge, ...], num_rejected: int,
             search: Search | None = None) -> Plan:
    """The plan. Kernels with one price share one program, named after the first of them."""
    named: dict[int, TileProgram] = {}
    taken: set[str] = set()
    steps: list[PlanStep] = []
    num_kernels = 0
    for item in chosen:
        if item.priced is None:
            steps.append(library_call(graph, item.pattern))
            continue
        program = named.get(id(item.priced))
        if program is None:
            program = named[id(item.priced)] = replace(item.priced.program, name=kernel_name(item.priced.program, taken))
        binding = tuple(zip(item.priced.boundary, boundary(graph, item.pattern), strict=True))
        steps.append(PlannedKernel(f"k{num_kernels}", item.pattern, program, binding, item.generator, item.priced.cost,
                                   item.priced.limit_us))
        num_kernels += 1
    alone = [c.priced for c in unfused if c.priced is not None]
    return Plan(graph, device.name, tuple(steps), tuple(views.values()), dict(layouts), objective_us,
                unfused_us=unfused_us, unfused_kernels=len(alone),
                unfused_bytes=sum(p.figures.bytes_moved for p in alone),
                rejected=rejected, num_rejected=num_rejected, search=search,
                unfused_kernels_us=sum(p.cost.us for p in alone),
                alone_us={c.pattern.nodes[-1]: c.priced.cost.us for c in unfused if c.priced is not None})


def library_call(graph: Graph, pattern: Pattern) -> LibraryCall:
    """The call whose results are the nodes of a library unit."""
    nodes = [graph.node_by_name[n] for n in pattern.nodes]
    results = []
    for node in nodes:
        which = node.attribute("result", 0)
        assert isinstance(which, int)
        results.append((which, node.name))
    return LibraryCall(nodes[0].detail, nodes[0].operands, tuple(results))


def kernel_name(program: TileProgram, taken: set[str]) -> str:
    """A readable symbol that differs from those in `taken` (and joins them): stems of the last nodes and a hash of the program.

    The hash makes a kernel's name depend on its computation and not on its place in the plan, so that the cache still has it when the model
    around it changes.
    """
    stems = dict.fromkeys(re.sub(r"(_\d+)+$", "", re.sub(r"[^0-9A-Za-z_]+", "_", n.name)) for n in program.graph.nodes)
    stem = "_".join(list(stems)[-3:])[-SEARCH.texts.stem_characters:].strip("_")
    program_text = repr((program.graph, sorted(program.layouts.items()), program.template, program.parameters, program.launch))
    digest = hashlib.sha256(program_text.encode()).hexdigest()
    length = 8
    while (name := f"k_{stem}_{digest[:length]}") in taken and length < len(digest):
        length += 1
    taken.add(name)
    return name
