"""Legality of row kernels: which mode with which numbers fits a pattern and a device. Choosers, tuning and templates by hand all ask here.

A `Rejected` names the numbers that decided it, and its remedy what a template may say instead, in the notation's words.
"""
from __future__ import annotations

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.resolved import Domain, Instance, resolved_dtype
from tilefuse.domain.stages import is_multi_stage
from tilefuse.domain.stages import stages as stage_by_key
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.rows.modes import (
    NO_ROW_AHEAD,
    AheadQueue,
    HeldQueue,
    PieceQueue,
    RowQueue,
    Rows,
    RowSettings,
    Split,
    Streamed,
    rows_of,
)
from tilefuse.templates.rows.reads import copies_of, fetched_touches
from tilefuse.templates.rows.starts import between_vectors, vectors_of


def rows_from(settings: RowSettings, domain: Domain, device: DeviceSpec) -> Rows | Rejected:
    """The choice that settings write, for a pattern and a device; or why it is none."""
    refusal = _carried_refusal(settings.span, settings.groups, domain)
    if refusal is not None:
        return refusal
    choice = rows_of(settings, domain.num_reduced)
    return choice if isinstance(choice, Rejected) else row_refusal(choice, domain, device) or choice


def row_refusal(choice: Rows, domain: Domain, device: DeviceSpec) -> Rejected | None:
    """Why a pattern has no kernel of this choice on the device; None where it has one."""
    return (_thread_refusal(choice, device) or _cover_refusal(choice, domain) or _vector_refusal(choice, domain)
            or _carried_refusal(choice.carried_rows, choice.groups, domain) or _mode_refusal(choice, domain, device))


def row_steps_of(choice: Rows | RowSettings, domain: Domain) -> int:
    """Least `chunks` of a choice with its threads, cluster and split. Units: vectors a thread."""
    return max(1, -(-vectors_of(domain, choice) // (choice.threads * choice.cluster * choice.split)))


def _thread_refusal(c: Rows, device: DeviceSpec) -> Rejected | None:
    if c.cluster > device.max_cluster_blocks:
        return _illegal(f"clusters of {c.cluster} blocks, and {device.name} has at most {device.max_cluster_blocks}",
                        f"CLUSTER_{device.max_cluster_blocks} or fewer")
    if c.threads > 32 and c.threads % 32:
        return _illegal(f"{c.threads} threads a row are no whole warps", "a multiple of 32")
    if c.threads < 32 and c.threads & (c.threads - 1):
        return _illegal(f"{c.threads} lanes a row are no power of two", "1, 2, 4, 8, 16 or 32")
    return None


def _cover_refusal(c: Rows, domain: Domain) -> Rejected | None:
    """The threads' vectors must cover the row; elements that fill no vector are walked behind the others, unless registers hold them."""
    length = domain.num_reduced
    covered = c.threads * c.chunks * c.vector * c.cluster * c.split
    anywhere = between_vectors(domain, c) is not None
    held = vectors_of(domain, c) * c.vector if anywhere else length
    if covered >= (held if c.in_registers or anywhere else length // c.vector * c.vector):
        return None
    return _illegal(f"rows of {length} elements{' on chip' if c.in_registers else ''}, but threads x chunks x vector are {covered}",
                    f"chunks={row_steps_of(c, domain)} at least, or no chunks: they follow from the rest")


def _vector_refusal(c: Rows, domain: Domain) -> Rejected | None:
    length = domain.num_reduced
    streams = isinstance(c.mode, Streamed | Split) and not domain.has_scan and c.cluster == 1
    if c.threads * c.cluster > 1 and length % c.vector and not streams and between_vectors(domain, c) is None:
        whole = next(v for v in (16, 8, 4, 2, 1) if length % v == 0)
        return _illegal(f"rows of {length} elements are no whole vectors of {c.vector}, and several threads share one",
                        f"vector={whole}, or on_chip=false")
    if c.groups and length // c.vector % c.cluster:
        return _illegal(f"rows of {length // c.vector} vectors, which {c.cluster} persistent blocks of a cluster do not share evenly",
                        f"CLUSTER_n where n divides {length // c.vector}")
    return None


def _carried_refusal(carried_rows: int, groups: int, domain: Domain) -> Rejected | None:
    """Sums down the columns are one a group: the pattern says how many groups there are, and of how many rows."""
    carried = next((i.node for i in domain.instances if i.carried), None)
    if carried is None:
        return _illegal(f"{groups} blocks of {carried_rows} rows each", "span=0") if carried_rows else None
    wanted_rows, wanted_groups = carried.over[0][1], carried.type.shape[0]
    if (carried_rows, groups) == (wanted_rows, wanted_groups):
        return None
    return _illegal(f"{groups} blocks of {carried_rows} rows each",
                    f"the sums down the columns are split so: GRID_{wanted_groups}, span={wanted_rows}")


def _mode_refusal(c: Rows, domain: Domain, device: DeviceSpec) -> Rejected | None:
    """Needs of the mode: of its copies, of what its threads tell each other, of a row that other blocks finish."""
    match c.mode:
        case AheadQueue() if not runs_ahead(domain, c):
            return _illegal(*NO_ROW_AHEAD)
        case Split(blocks=blocks) if is_multi_stage(domain):
            return _illegal(f"{blocks} blocks share a row whose elements are needed again after its reductions",
                            "the reduced dimension without GRID, or CLUSTER_n")
        case Streamed(batch=batch) if batch > 1 and c.threads > 1 and domain.has_scan:
            return _illegal(f"a scan along rows that {c.threads} threads read in batches of {batch}", "batch=1, or on_chip=true")
        case PieceQueue(slots=slots) if domain.has_scan:
            return _illegal(f"a scan along rows of which {slots} pieces are in a queue", f"batch={c.chunks}, or on_chip=true")
        case PieceQueue():
            return queue_refusal(domain, device, c.reduced_order, c.threads * c.vector)
        case HeldQueue() | RowQueue() | AheadQueue():
            return queue_refusal(domain, device, c.reduced_order, c.share_of(domain.num_reduced))
    return None


def queue_refusal(domain: Domain, device: DeviceSpec, reduced: tuple[str, ...], elements: int) -> Rejected | None:
    """Why asynchronous bulk copies do not bring `elements` elements of each row into a slot of a queue; None where they do."""
    if device.kind == "cuda" and not device.capabilities.bulk_copies:
        return _illegal(f"a queue of rows takes asynchronous bulk copies, and {device.name} has none", "stages=0")
    fetched = fetched_touches(domain)
    if not fetched:
        return _illegal("no operand of a queue has an element for each of a row at a place known before the row", "stages=0")
    for t in fetched:
        if copies_of(t, domain, reduced, elements) is None:
            return _illegal(f"{elements} elements of %{t.value} are no aligned runs of 16 bytes, as copies into a queue take them",
                            "stages=0, or another vector")
    return None


def runs_ahead(domain: Domain, choice: Rows) -> bool:
    """Whether rows of the choice can be reduced one turn and finished the next, held by nothing but their queue meanwhile.

    That takes a single exchange between a row's threads, of values that travel as signalled stores do. A sum of squared deviations alone,
    or with the sum of the same elements, is one exchange where `moments.joins_moments` holds. Requires: an `AheadQueue`.
    """
    shared = [i for i in domain.instances if i.shared and not i.carried]
    if choice.threads * choice.cluster <= 32 or not shared or domain.has_scan or any(i.second_of is not None for i in shared):
        return False
    if any(i.node.detail not in ("sum", "max", "min", "m2") or resolved_dtype(i.body, domain).itemsize < 4 for i in shared):
        return False
    squares = [i for i in shared if i.node.detail == "m2" or i.squares_of is not None]
    others = [i for i in shared if i not in squares]
    depth = stage_by_key(domain)
    if any(depth[i.key] for i in others) or any(depth[i.key] for i in squares if i.squares_of is None):
        return False
    return not squares or _squares_join(domain, choice, squares, others)


def _squares_join(domain: Domain, choice: Rows, squares: list[Instance], others: list[Instance]) -> bool:
    """Whether squared deviations travel with the sum of the same elements."""
    vectors, tail = divmod(domain.num_reduced, choice.vector)
    joined = tail == 0 and choice.threads % 32 == 0 and (choice.cluster > 1 or vectors == choice.chunks * choice.threads)
    return joined and len(squares) == 1 and len(others) <= 1 and all(
        o.node.detail == "sum" and (o.key == squares[0].squares_of or o.body == squares[0].body) for o in others)


def _illegal(detail: str, remedy: str) -> Rejected:
    return Rejected(Reason.ILLEGAL_TEMPLATE, detail, remedy)
