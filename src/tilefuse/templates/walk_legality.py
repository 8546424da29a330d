"""Legality of walks over a domain: which choice fits a pattern and a device. Rows have `rows/legality.py`, which is asked here too."""
from __future__ import annotations

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.stages import is_multi_stage
from tilefuse.domain.tile import Choice
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.side_by_side import last_axis
from tilefuse.templates.rows.legality import row_refusal
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.transpose.record import Transpose


def walk_refusal(choice: Choice, domain: Domain, device: DeviceSpec) -> Rejected | None:
    """Why a pattern has no kernel of this choice on the device; None where it has one. Tiles are judged by `transpose_refusal`."""
    match choice:
        case Rows():
            return row_refusal(choice, domain, device)
        case Columns():
            return _columns_refusal(choice, domain)
        case Pointwise():
            return _pointwise_refusal(choice, domain)
        case _:
            return None


def first_refusal(*rules: tuple[bool, str, str]) -> Rejected | None:
    """The first rule that does not hold. A rule is: whether it holds, what is wrong where it does not, the remedy."""
    return next((Rejected(Reason.ILLEGAL_TEMPLATE, detail, remedy) for legal, detail, remedy in rules if not legal), None)


def _pointwise_refusal(choice: Pointwise, domain: Domain) -> Rejected | None:
    if choice.side == 1:
        return None
    if not choice.across:
        return first_refusal((False, "nothing that it touches runs along another axis than the others", "side=1"))
    length = domain.extents[last_axis(choice.order, domain.extents)]
    return first_refusal(
        (choice.side <= 32 and choice.side & (choice.side - 1) == 0, f"side={choice.side} lanes are no part of a warp",
         "2 to 32, a power of two"),
        (length % choice.vector == 0, f"warps across two axes take whole vectors, and {length} elements are none of {choice.vector}",
         f"vector={_widest_whole(length)}, or side=1"))


def transpose_refusal(choice: Transpose, base: Transpose, domain: Domain) -> Rejected | None:
    """Why tiles of a transposition are not legal; base: the scheduler's own choice, whose widths lie as memory allows."""
    read_extent, write_extent = domain.extents[choice.read_axis], domain.extents[choice.write_axis]
    along_run, down = (choice.rows, choice.columns) if choice.depth == 0 else (choice.columns, choice.rows)
    # Wider ones than were chosen are not aligned in memory, or reach beyond the ends of the axes.
    widths = [(name, getattr(choice, name), getattr(base, name)) for name in ("read_vector", "write_vector", "depth")]
    return first_refusal(
        (choice.depth != 0 or choice.columns == read_extent, f"tiles of {choice.columns} columns are no runs of memory",
         f"columns={read_extent}"),
        (not choice.writes_run or choice.rows == write_extent, f"tiles of {choice.rows} rows are no runs of memory",
         f"rows={write_extent}"),
        (choice.depth > 0 or not choice.writes_run, "a tile is one run on one side only", "depth=1, or writes_run=false"),
        ((choice.depth == 0, choice.writes_run) == (base.depth == 0, base.writes_run), "tiles are runs of memory on another side",
         f"depth={base.depth}, writes_run={str(base.writes_run).lower()}"),
        *((width == most or width > 0 and most % width == 0, f"{name}={width} does not fit how the values lie",
           f"{name}={most} or a divisor of it") for name, width, most in widths),
        (along_run % choice.read_vector == 0 and down % max(choice.depth, 1) == 0
         and (choice.columns if choice.writes_run else choice.rows) % choice.write_vector == 0,
         f"tiles of {choice.rows} x {choice.columns} are no whole vectors of {choice.read_vector} and {choice.write_vector}",
         "sides that are powers of two"))


def _columns_refusal(choice: Columns, domain: Domain) -> Rejected | None:
    covered = choice.threads_y * choice.chunks * choice.split
    return first_refusal(
        (domain.num_kept % choice.vector == 0 or between_columns(domain, choice) is not None,
         f"{domain.num_kept} columns are no whole vectors of {choice.vector}", f"vector={_widest_whole(domain.num_kept)}"),
        (covered >= domain.num_reduced, f"columns of {domain.num_reduced} elements, but threads x chunks are {covered}",
         f"chunks={column_steps_of(choice, domain)} at least"),
        (choice.split == 1 or not choice.on_chip and not is_multi_stage(domain),
         f"{choice.split} blocks share a column whose elements are needed again after its reductions",
         "the reduced dimension without GRID"))


def written_columns_refusal(choice: Columns) -> Rejected | None:
    """Why a template may not write these columns; choosers may leave threads along the columns away where these end."""
    return first_refusal((choice.threads_x & (choice.threads_x - 1) == 0 and choice.threads_y & (choice.threads_y - 1) == 0,
                          f"{choice.threads_x} x {choice.threads_y} threads are no powers of two", "powers of two"))


def column_steps_of(choice: Columns, domain: Domain) -> int:
    """Least `chunks` of a choice with its threads and split. Units: rows a thread."""
    return max(1, -(-domain.num_reduced // (choice.threads_y * choice.split)))


def _widest_whole(length: int) -> int:
    """The widest vector of which `length` elements are whole ones."""
    return next(v for v in (16, 8, 4, 2, 1) if length % v == 0)
