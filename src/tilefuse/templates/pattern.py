"""schedule_pattern: from a set of nodes to a tile program, or the reason why one kernel cannot hold them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import traffic
from tilefuse.domain.domain import find_domain
from tilefuse.domain.online import with_online_sums
from tilefuse.domain.precision import keep_precision
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, EdgeLevel, Level, TileProgram, kernel_name
from tilefuse.domain.two_pass import two_pass
from tilefuse.domain.wide_squares import wide_squares
from tilefuse.ir.graph import Graph, Input, node_inputs
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.choose import choose
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import num_tiles
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.side_by_side import num_vectors
from tilefuse.templates.notation import print_template
from tilefuse.templates.packed.packed import Known, schedule_packed
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.staged.online.program import schedule_online
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitched import Tiles, schedule_like, schedule_stitched
from tilefuse.templates.transpose.record import Transpose
from tilefuse.templates.walk_legality import walk_refusal
from tilefuse.templates.walk_template import exchange_level, parameters_of, template_of

# Elements (steps, of reductions) of a pattern without products that one block computes about as fast as one more kernel is launched.
MAX_STEPS_OF_ONE_BLOCK = 1 << 16


def pattern_graph(graph: Graph, nodes: Sequence[str]) -> Graph:
    """The pattern as a graph of its own: inputs are the values it reads from outside, results those read outside or escaping."""
    wanted = set(nodes)
    inside = graph.in_order(wanted)
    inputs = tuple(Input(v, graph.type_of(v)) for v in node_inputs(inside))
    results = tuple(n.name for n in inside if n.name in graph.escaping or any(u not in wanted for u in graph.users_by_name[n.name]))
    return Graph(nodes[0] if nodes else "empty", inputs, inside, results)


def schedule_pattern(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec,
                     eager_rounding: bool = False, packing: bool = False, known: Known | None = None,
                     tiles: Tiles | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern on a device, or why there is none.

    eager_rounding: every value inside is rounded to its own type, also where it never leaves the kernel (see `precision.py`).
    packing: what has no data dependence on the rest becomes a part of a packed kernel (see `packed.py`); else all nodes must fit one walk.
    known: parts of packed kernels scheduled before, for the same device and rounding; tiles: those of stitched kernels.
    Requires: nodes are maps, gathers, reductions, scans, scatters or matrix products. Layouts give strides of values that are not dense
    row-major.
    """
    inner = pattern_graph(graph, nodes)
    if not inner.results:
        return Rejected(Reason.DOMAIN_MISMATCH, "nothing outside reads the pattern")
    products = any(n.category == "library" for n in inner.nodes)
    if packing:
        whole = inner if eager_rounding or products else keep_precision(inner)
        return schedule_packed(whole, layouts, device, partial(_schedule_part, eager_rounding=eager_rounding), known)
    if products:
        return _with_products(inner, layouts, device, eager_rounding, {} if tiles is None else tiles)
    return _one_walk_or_block(inner if eager_rounding else keep_precision(inner), layouts, device)


def _schedule_part(part: Graph, layouts: Layouts, device: DeviceSpec, wanted: Choice | None,
                   eager_rounding: bool) -> TileProgram | Rejected:
    """One part of a packed kernel: as a kernel of its own would be, or by the choice that is wanted."""
    if any(n.category == "library" for n in part.nodes) or isinstance(wanted, Stitched):
        return schedule_stitched(part, layouts, device, wanted if isinstance(wanted, Stitched) else None)
    part = part if eager_rounding else keep_precision(part)
    return _one_walk_or_block(part, layouts, device) if wanted is None else schedule_graph(part, layouts, device, wanted)


def _one_walk_or_block(inner: Graph, layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
    """One walk over a domain; where no walk holds the pattern and it is small, one block that computes it in stages."""
    found = schedule_graph(inner, layouts, device)
    if isinstance(found, Rejected) and _fits_one_block(inner):
        stitched = schedule_stitched(inner, layouts, device)
        return found if isinstance(stitched, Rejected) else stitched
    return found


def _fits_one_block(graph: Graph) -> bool:
    """Whether a pattern with reductions is so small that one launch less is worth one block that computes its stages in turn."""
    steps = sum(n.type.num_elements * prod(e for _, e in n.over) for n in graph.nodes)
    return steps <= MAX_STEPS_OF_ONE_BLOCK and any(n.category == "reduce" for n in graph.nodes)


def _with_products(inner: Graph, layouts: Layouts, device: DeviceSpec, eager_rounding: bool, tiles: Tiles) -> TileProgram | Rejected:
    """Whole rows on chip, or an axis walked in tiles: what is estimated to be faster, or fits. Values of a walk stay unrounded."""
    whole = schedule_like(tiles, inner, layouts, device)
    if eager_rounding or device.kind != "cuda":
        return whole
    walked = schedule_online(inner, layouts, device)
    if isinstance(walked, Rejected):
        return whole
    return walked if isinstance(whole, Rejected) or walked.work_us < whole.work_us else whole


def schedule_graph(inner: Graph, layouts: Layouts, device: DeviceSpec, wanted: Choice | None = None) -> TileProgram | Rejected:
    """As `schedule_pattern`, for a pattern given as a graph of its own. `wanted`: a choice made by hand or by a tuner."""
    inner = _without_scans_of_one(inner)
    empty = [n for n in inner.nodes if 0 in n.type.shape or any(e == 0 for _, e in n.over)]
    if empty and len(inner.nodes) > 1:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{empty[0].name} is empty")
    own = {v: layouts[v] for v in inner.type_by_name if v in layouts}
    domain = find_domain(inner, own)
    if isinstance(domain, Rejected):
        return domain
    if len(domain.instances) > 3 * len(inner.nodes) + 16:
        return Rejected(Reason.RECOMPUTATION, f"{len(inner.nodes)} nodes would be computed at {len(domain.instances)} places")
    choice = wanted or choose(domain, device)
    if isinstance(choice, Rejected):
        return choice
    if isinstance(choice, Rows):
        online = with_online_sums(domain)
        again = choice if online is domain else wanted or choose(online, device)
        if not isinstance(again, Rejected):
            domain, choice = online, again
    if _keeps_rows(choice):
        domain = two_pass(domain)
    refused = None if wanted is None else walk_refusal(choice, domain, device)
    if refused is not None:
        return refused
    if device.kind == "host":
        domain = wide_squares(domain, isinstance(choice, Rows) and choice.threads == 1 < choice.vector)
    sizes = {v: t.num_bytes for v, t in inner.type_by_name.items()}
    moved = traffic(domain, sizes)
    launch = _launch(domain, choice)
    return TileProgram(
        name=kernel_name(inner), graph=inner, choice=choice,
        notation=print_template(template_of(choice, domain, inner, launch)), layouts=own,
        parameters=parameters_of(choice), levels=_levels(inner, domain, choice),
        launch=launch, bytes_read=moved.bytes_read, bytes_written=moved.bytes_written, flops=moved.flops, internal=domain)


def _keeps_rows(choice: Choice) -> bool:
    """Whether rows (or columns) stay on chip between the walks over them, so that two passes read them once."""
    match choice:
        case Rows(in_registers=held, slots=slots):
            return held or slots > 0
        case Columns(on_chip=held):
            return held
    return False


def _without_scans_of_one(graph: Graph) -> Graph:
    """`graph` with scans along an axis of extent 1 as the maps they are: no template carries a value along such an axis."""
    single = [n for n in graph.nodes if n.category == "scan" and n.extents[n.along] == 1]
    if not single:
        return graph
    return replace(graph, nodes=tuple(replace(n, kind="map", along="") if n in single else n for n in graph.nodes))


def _launch(domain: Domain, choice: Choice) -> Launch:
    total = prod(domain.extents[a] for a in domain.kept + domain.reduced) if domain.kept + domain.reduced else 1
    if total == 0 and not (domain.num_kept and domain.kept and any(i.shared for i in domain.instances)):
        reductions = any(i.shared for i in domain.instances)
        if not reductions or domain.num_kept == 0:
            return Launch(0, 1)
    match choice:
        case Pointwise(threads=threads, steps=steps):
            vectors = max(num_vectors(choice, domain.extents), 1 if total else 0)
            return Launch(-(-vectors // (threads * steps)), threads)
        case Transpose(order, read_axis, write_axis, rows, columns, threads):
            others = prod(domain.extents[a] for a in order if a not in (read_axis, write_axis))
            return Launch(others * -(-domain.extents[read_axis] // columns) * -(-domain.extents[write_axis] // rows), threads)
        case Rows():
            groups = choice.groups or -(-domain.num_kept // choice.rows)
            return Launch(groups * choice.cluster * choice.split, choice.threads * choice.rows, choice.cluster)
        case Columns():
            return Launch(num_tiles(domain, choice) * choice.split, choice.threads_x * choice.threads_y)
    raise TypeError(f"not a template: {choice!r}")


def _levels(graph: Graph, domain: Domain, choice: Choice) -> tuple[EdgeLevel, ...]:
    """Where the value of each edge inside the pattern lives: registers, except what threads exchange."""
    shared = {i.node.name for i in domain.instances if i.shared}
    exchange = exchange_level(choice)
    inside = {n.name for n in graph.nodes}
    return tuple(EdgeLevel(v, n.name, exchange if v in shared else Level.REGISTER) for n in graph.nodes for v in n.reads() if v in inside)
