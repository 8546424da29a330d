"""The beginning of a stitched kernel: what it fetches while the kernel ahead still runs, and operands of stages to come.

    copy x, copy weights  |  wait for the kernel ahead  |  copy its result h, x @ w, h @ u, gates ...
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tilefuse.kernel.asynchronous import AsyncCopy, AwaitEarlier
from tilefuse.kernel.early import PAST_CACHE_BYTES
from tilefuse.kernel.ir import Buffer, Load, VectorLoad
from tilefuse.kernel.visit import parts, statements
from tilefuse.templates.staged.kernel_ends import prefetch_lines
from tilefuse.templates.staged.stitched.plan import Stage
from tilefuse.templates.staged.stitched.values import StitchValues


def begin(w: StitchValues, stages: Sequence[Stage], num_blocks: int, emit_stage: Callable[[Stage], None]) -> list[Stage]:
    """Statements before the stages, and the stages that are left: copies of settled values stand before the wait for the kernel ahead.

    emit_stage: writes the statements of one stage.

    Only copies before the first barrier are moved: their tiles lie beside each other, in any order. Products stay behind the wait: made
    before it, they hold up the kernel that still runs (32 steps of an LSTM took 190 us instead of 160 on an H200).
    """
    first = next((n for n, s in enumerate(stages) if s.kind != "copy" or s.barrier), len(stages))
    early = [s for s in stages[:first] if _started(w, s, emit_stage)]
    direct = _direct(w)
    # A chain of small products otherwise waits for memory once a product.
    asked = bool(direct) and all(b.origin in w.settled for b in direct)
    if asked:
        prefetch_lines(w, direct, num_blocks, w.threads)
    late = [s for s in stages[:first] if s not in early]
    if early or asked:
        w.emit(AwaitEarlier())
    if not asked:
        prefetch_lines(w, direct, num_blocks, w.threads)
    return [*late, *stages[first:]]


def _started(w: StitchValues, stage: Stage, emit_stage: Callable[[Stage], None]) -> bool:
    """Starts a stage's copies here, if it copies a settled value and nothing of it comes through the first-level cache."""
    (piece,) = (w.plan.pieces[k] for k in stage.pieces)
    if piece.value not in w.settled:
        return False
    was_copying = w.copying
    with w.nested() as tried:
        emit_stage(stage)
    copies = list(statements(tried.statements))
    loads = any(isinstance(part, (Load, VectorLoad)) for s in copies for part in parts(s))
    if loads or any(isinstance(s, AsyncCopy) and s.num_elements * piece.dtype.itemsize != PAST_CACHE_BYTES for s in copies):
        w.copying = was_copying
        return False
    w.emit(*tried.statements)
    return True


def _direct(w: StitchValues) -> list[Buffer]:
    """Operands that every block reads from global memory, stage after stage, where the cache has room for all of them."""
    direct = dict.fromkeys(p.value for p in w.plan.pieces if p.kind == "copy" and not p.stored and p.value in w.buffers
                           and not any(s.offset.terms for s in p.region))
    buffers = [w.buffers[v] for v in direct]
    num_bytes = sum(b.num_elements * b.dtype.itemsize for b in buffers)
    if w.device.kind != "cuda" or len(buffers) < 2 or num_bytes > w.device.l2_bytes * w.device.fitted.traffic.pending_l2_share:
        return []
    return buffers

