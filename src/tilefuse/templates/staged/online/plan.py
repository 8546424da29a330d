"""Plan of a kernel that walks an axis between two products: its tiles on chip, how threads share them, the registers that they need."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilefuse.base.construction import quickly_built
from tilefuse.domain.work import Work
from tilefuse.ir.dtype import DType
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_INNER, MMA_INNER_F32
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.online.products import OnlineForm, Operand
from tilefuse.templates.staged.online.record import Online

# Threads that share a row where threads multiply: a row's reductions stay in half a warp.
LANES = 16
# Elements of the inner axis that a thread multiplies at once.
STEP = 4


@quickly_built
@dataclass(frozen=True, slots=True)
class OnChip:
    """A tile in shared memory, rows `pitch` elements apart; `fill`: rows and columns from the end of the value on hold zeros.

    role  "left", "right" (of score `number`), "weight" or "powers" (of weighted product `number`)
    """

    role: str
    number: int
    dtype: DType
    rows: int
    columns: int
    pitch: int
    stages: int
    operand: Operand | None = None
    offset_bytes: int = 0

    @property
    def elements(self) -> int:
        """Elements of one stage."""
        return self.rows * self.pitch

    @property
    def num_bytes(self) -> int:
        """All stages."""
        return self.elements * self.stages * self.dtype.itemsize


@quickly_built
@dataclass(frozen=True, slots=True)
class OnlinePlan:
    """One kernel: the form, its tiles, and how threads share them.

    unit       "mma" or "fma"
    warp_rows  mma: instructions of 16 rows a warp; fma: rows a thread
    vector     fma: neighbouring columns of weighted products a thread takes together
    arithmetic as of `contraction.Tiling`
    """

    form: OnlineForm
    choice: Online
    unit: str
    warp_rows: int
    vector: int
    tiles: tuple[OnChip, ...]
    shared_bytes: int
    arithmetic: str = ""
    work: Work = Work()
    flops: int = 0

    @property
    def num_blocks(self) -> int:
        return self.form.num_leads * -(-self.form.num_rows // self.choice.rows)

    def tile(self, role: str, number: int) -> OnChip:
        """The tile of an operand."""
        return next(t for t in self.tiles if t.role == role and t.number == number)

    def inner(self, number: int) -> int:
        """Inner extent of a score with zeros up to whole instructions or steps."""
        step = MMA_INNER_F32 if self.arithmetic else MMA_INNER
        return padded(self.form.scores[number].inner, step if self.unit == "mma" else STEP)

    def width(self, number: int) -> int:
        """Columns of a weighted product with zeros up to whole instructions or vectors."""
        return padded(self.form.weighted[number].width, MMA_COLUMNS if self.unit == "mma" else LANES * self.vector)


def operands(form: OnlineForm) -> Iterator[Operand]:
    """All operands from outside."""
    for s in form.scores:
        yield from (s.left, s.right)
    for w in form.weighted:
        yield w.right


def padded(extent: int, unit: int) -> int:
    """The extent with zeros up to whole units."""
    return -(-extent // unit) * unit


def registers_of(plan: OnlinePlan, device: DeviceSpec) -> int:
    """Estimate of the registers that a thread needs for its arrays and beside them. Units: registers of 32 bits."""
    form, choice, fitted = plan.form, plan.choice, device.fitted.online
    words = form.sum_dtype.itemsize // 4
    if plan.unit == "mma":
        m = plan.warp_rows
        scores = len(form.scores) * m * choice.columns // 2
        powers = m * choice.columns // 4
        sums = sum(m * plan.width(n) // 2 for n in range(len(form.weighted)))
        left = sum(m * plan.inner(n) // 4 for n in range(len(form.scores)))
        if plan.arithmetic:
            # Operands are twice as wide and have halves; powers take the place of scores, and sums are kept until the new ones are known.
            sums, left, powers = 2 * sums, 2 * left + fitted.left_fragment_registers * m + fitted.right_fragment_registers, 0
        rows = 2 * m * (3 * len(form.tops) + len(form.sums))
        return fitted.matrix_registers + scores + max(powers // 2, 16) + sums + left + rows
    m, n = plan.warp_rows, choice.columns // LANES
    sums = sum(m * plan.width(k) // LANES for k in range(len(form.weighted)))
    return fitted.thread_registers + words * (len(form.scores) * m * n + sums + m * (3 * len(form.tops) + len(form.sums))
                                              + max(STEP * (m + 1), n + m))
