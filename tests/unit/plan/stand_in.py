"""A scheduler for planner tests: accepts what a simple rule accepts, with traffic counted from the pattern's boundary."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import EdgeLevel, Level, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.flat.record import Pointwise


def schedule_by_rows(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
    """One kernel for nodes that agree on the leading extent; anything else does not compose."""
    leading = {graph.type_of(n).shape[:1] for n in nodes}
    if len(leading) > 1:
        return Rejected(Reason.DOMAIN_MISMATCH, f"leading extents {sorted(leading)}")
    inside = set(nodes)
    levels = tuple(EdgeLevel(v, n, Level.REGISTER) for n in nodes for v in graph.node_by_name[n].reads() if v in inside)
    rows = max((e for shape in leading for e in shape), default=1)
    return TileProgram(
        graph.name, graph, Pointwise((), 1, 128, 1, True), "", {}, (), levels, Launch(max(rows, 1), 128),
        bytes_read=sum(i.type.num_bytes for i in graph.inputs), bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results),
        flops=sum(graph.type_of(n).num_elements for n in nodes), internal=Domain((), (), {}))
