"""Legality of tiles of a transposition that a template writes."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.templates.transpose.record import Transpose
from tilefuse.templates.walk_legality import first_refusal


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
