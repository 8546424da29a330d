"""From a set of nodes to a tile program, or the reason why one kernel cannot hold them. `choose.py` asks the templates."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.graph import Graph, Input, node_inputs
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.choose import choose_program
from tilefuse.templates.parts import Known
from tilefuse.templates.request import Request, in_precision, walked_pattern
from tilefuse.templates.staged.stitched.record import Tiles
from tilefuse.templates.walk import walk_template


def pattern_graph(graph: Graph, nodes: Sequence[str]) -> Graph:
    """The pattern as a graph of its own: inputs are the values it reads from outside, results those read outside or escaping."""
    names = set(nodes)
    inside = graph.in_order(names)
    inputs = tuple(Input(v, graph.type_of(v)) for v in node_inputs(inside))
    results = tuple(n.name for n in inside if n.name in graph.escaping or any(u not in names for u in graph.users_by_name[n.name]))
    return Graph(nodes[0] if nodes else "empty", inputs, inside, results)


def schedule_pattern(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec,
                     eager_rounding: bool = False, packing: bool = False, known: Known | None = None,
                     tiles: Tiles | None = None, replaces_calls: bool = False, fetches_early: bool = True) -> TileProgram | Rejected:
    """The tile program of a pattern on a device, or why there is none.

    eager_rounding: every value inside is rounded to its own type, also where it never leaves the kernel (see `precision.py`).
    packing: nodes without data dependence on the rest become parts of a packed kernel (see `packed.py`); else one body holds all nodes.
    known: parts of packed kernels scheduled before, for the same device and rounding; tiles: those of stitched kernels.
    replaces_calls: the kernel competes with calls of the library, so templates leave products that the library clearly computes faster.
    fetches_early: kernels may fetch inputs while the one ahead of them still runs.
    Requires: nodes are maps, gathers, reductions, scans, scatters or matrix products. Layouts give strides of values that are not dense
    row-major.
    """
    inner = pattern_graph(graph, nodes)
    if not inner.results:
        return Rejected(Reason.DOMAIN_MISMATCH, "nothing outside reads the pattern")
    return choose_program(Request(in_precision(inner, eager_rounding), layouts, device, eager_rounding, packing,
                                  fetches_early=fetches_early, replaces_calls=replaces_calls, choices={} if tiles is None else tiles,
                                  known=Known() if known is None else known))


def schedule_graph(graph: Graph, layouts: Layouts, device: DeviceSpec, choice: Choice | None = None) -> TileProgram | Rejected:
    """As `schedule_pattern`, for a pattern given as a graph of its own, in the precision that its types have.

    choice: of one walk, made by hand or by a tuner. Raises: InternalError for a choice of another template.
    """
    if choice is None:
        return choose_program(Request(graph, layouts, device))
    pattern = walked_pattern(graph, layouts, device)
    return pattern if isinstance(pattern, Rejected) else walk_template(choice).program_by(pattern, choice)
