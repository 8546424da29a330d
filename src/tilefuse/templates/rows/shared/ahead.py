"""Rows that a block begins with, prefetched into L2 while the kernel ahead still runs."""
from __future__ import annotations

from collections.abc import Collection

from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Touch
from tilefuse.ir.affine import number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.asynchronous import Prefetch
from tilefuse.target.memory import LINE_BYTES
from tilefuse.templates.levels import pending_bytes
from tilefuse.templates.rows.walk import RowState


def prefetch_rows(state: RowState, touches: Collection[Touch]) -> None:
    """Prefetches of the first rows of each team, by its threads: as many as a block's share of L2 allows that pending operands may take.

    Requires: each touch is one run of the row.
    """
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    of_turn = c.groups * c.rows
    turn_bytes = of_turn * domain.num_reduced * sum(t.dtype.itemsize for t in touches)
    room_bytes = pending_bytes(w.device) * min(c.groups / w.device.num_multiprocessors, 1.0)
    turns = min(max(int(room_bytes // turn_bytes), 1), -(-domain.num_kept // of_turn))
    with e.loop("begun", turns, unroll=True) as begun:
        row = e.let("row_begun", (begun * c.rows + state.row_of_block) * c.groups + state.row, turns * of_turn)
        for t in touches:
            step = LINE_BYTES // t.dtype.itemsize
            lines = -(-domain.num_reduced // step)
            with e.loop("lines", -(-lines // c.threads), unroll=True) as some:
                line = e.let("line", some * c.threads + state.place, -(-lines // c.threads) * c.threads)
                with e.when([Bound(line, 0, lines), Bound(row, 0, domain.num_kept)]):
                    e.narrow_to(row, domain.num_kept)
                    env = flat_axes(c.kept_order, row, domain.extents, e.extents)
                    env |= flat_axes(c.reduced_order, number(0), domain.extents, e.extents)
                    e.emit(Prefetch(e.buffers[t.value].name, substitute(t.offset, env, e.extents) + line * step))
