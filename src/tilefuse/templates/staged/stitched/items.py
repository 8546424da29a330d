"""How the threads of a block share the items of a stage: the loop over them, and the bounds under which a thread has one."""
from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.target.fitted.stages import StitchFigures
from tilefuse.templates.staged.stitched.values import StitchValues


def items_together(steps: int, fitted: StitchFigures) -> int:
    """Items of a thread that load at the same time in `Items` with `together`, of so many: a divisor of them where they are many."""
    return 1 if steps <= fitted.unrolled_items else max(n for n in range(1, fitted.items_together + 1) if steps % n == 0)


class Items:
    """A loop in which the threads of a block share items, `lanes` neighbouring lanes each.

    Yields the item; sets the writer's `lane` and `active`: bounds under which this thread has an item. Where an item has one lane, the
    body itself stands under these bounds; where it has several, all threads run it, so that shuffles meet. together: the loads of some
    items of a thread are under way at the same time, as far as the number of its items can be divided.
    """

    def __init__(self, writer: StitchValues, count: int, lanes: int, together: bool = False) -> None:
        self.writer, self.count, self.lanes, self.together = writer, count, lanes, together
        self._loops = ExitStack()

    def __enter__(self) -> Affine:
        w = self.writer
        steps = -(-self.count * self.lanes // w.threads)
        fitted = w.device.fitted.stitch
        inner = items_together(steps, fitted) if self.together else 1
        if inner > 1:
            outer = self._loops.enter_context(w.loop("steps", steps // inner))
            turn = outer * inner + self._loops.enter_context(w.loop("step", inner, unroll=w.unroll))
        else:
            turn = self._loops.enter_context(w.loop("step", steps, unroll=w.unroll and steps <= fitted.unrolled_items))
        whole = steps * w.threads == self.count * self.lanes
        flat = w.let("item", turn * w.threads + axis("thread"), steps * w.threads)
        item = w.let("row", flat // self.lanes, -(-steps * w.threads // self.lanes)) if self.lanes > 1 else flat
        w.lane = flat % self.lanes if self.lanes > 1 else number(0)
        self._when = w.when(() if whole or self.lanes > 1 else [Bound(item, 0, self.count)])
        self._when.__enter__()
        w.active = () if whole else (Bound(item, 0, self.count),)
        if self.lanes == 1 or whole:
            w.active = ()
            w.narrow_to(item, self.count)
        return item

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._when.__exit__(kind, error, trace)
        self._loops.__exit__(kind, error, trace)
        self.writer.active, self.writer.lane = (), number(0)
