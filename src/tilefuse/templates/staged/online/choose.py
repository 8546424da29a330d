"""Tiles of a kernel that walks an axis between two products: what lies on chip, in which form, and how long it takes.

A block holds some rows of the results for the whole walk; of each right operand it holds the part that belongs to the columns of one turn.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import (
    FMA_PER_CYCLE,
    INNER,
    MMA_COLUMNS,
    MMA_INNER,
    MMA_INNER_F32,
    MMA_PER_CYCLE,
    MMA_ROWS,
    WARP,
    Tiling,
    contraction_of,
    f32_pad,
    matrix_arithmetic,
    product_cycles,
)
from tilefuse.ir.dtype import DType
from tilefuse.ir.ops import NARROW_FLOPS, SCALAR_OPS
from tilefuse.ir.scalar import Call, Expr, Guard, Read, children
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.online.products import NARROW, ROW, WALK, WIDTH, OnlineForm, Operand
from tilefuse.templates.staged.online.record import Online

# Threads that share a row where threads multiply: a row's reductions stay in half a warp.
LANES = 16
# Elements of the inner axis that a thread multiplies at once.
STEP = 4
# Functions that the special unit computes.
SPECIAL = frozenset(["exp", "exp2", "log", "log2", "tanh", "sigmoid", "reciprocal", "div", "sqrt", "rsqrt", "sin", "cos", "erf"])


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    us: float = 0.0
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
        return _padded(self.form.scores[number].inner, step if self.unit == "mma" else STEP)

    def width(self, number: int) -> int:
        """Columns of a weighted product with zeros up to whole instructions or vectors."""
        return _padded(self.form.weighted[number].width, MMA_COLUMNS if self.unit == "mma" else LANES * self.vector)


@dataclass(frozen=True, slots=True)
class Work:
    """Facts that do not depend on the tiles. `arithmetic`: how the matrix unit multiplies (`contraction.Tiling`), None where it does not.

    Units: `flops` operations and `special` functions of the special unit for one score.
    """

    arithmetic: str | None
    flops: int
    special: int


def choose_online(form: OnlineForm, device: DeviceSpec, wanted: Online | None = None) -> OnlinePlan | Rejected:
    """The tiles with the least estimated time, or why there are none. `wanted`: tiles made by hand or by a tuner."""
    best: OnlinePlan | None = None
    why: Rejected | None = None
    work = Work(_arithmetic(form), *_operations(form))
    for choice in [wanted] if wanted is not None else _candidates(form):
        found = _fit(form, choice, work, device)
        if isinstance(found, Rejected):
            why = why or found
        elif best is None or found.us < best.us:
            best = found
    return best or why or Rejected(Reason.SHARED_MEMORY, "no tile fits")


def _unit(arithmetic: str | None, choice: Online, device: DeviceSpec) -> str:
    """"mma" where the matrix unit multiplies the operands; those of f32 only where each warp has whole instructions' rows."""
    if device.kind != "cuda" or arithmetic is None or arithmetic and choice.rows % (MMA_ROWS * (choice.threads // WARP)):
        return "fma"
    return "mma"


def _arithmetic(form: OnlineForm) -> str | None:
    """How the matrix unit multiplies the operands of all products (`contraction.Tiling`); None where it does not, or differently."""
    found: set[str | None] = set()
    for name in (*(s.value for s in form.scores), *(w.value for w in form.weighted)):
        contraction = contraction_of(form.graph.node_by_name[name], form.graph)
        assert contraction is not None, "the form holds products only"
        found.add(matrix_arithmetic(contraction, form.graph.type_of(contraction.left).dtype, form.graph.type_of(contraction.right).dtype))
    types = {o.dtype.name for o in operands(form)}
    return found.pop() if len(found) == 1 and len(types) == 1 else None


def operands(form: OnlineForm) -> Iterator[Operand]:
    """All operands from outside."""
    for s in form.scores:
        yield from (s.left, s.right)
    for w in form.weighted:
        yield w.right


def _candidates(form: OnlineForm) -> Iterator[Online]:
    for threads in (128, 256):
        for rows in (16, 32, 64, 128, 256):
            for columns in (16, 32, 64, 128):
                if columns < 2 * form.length or columns == 16:
                    yield from (Online(rows, columns, threads, stages) for stages in (1, 2))


def _fit(form: OnlineForm, choice: Online, work: Work, device: DeviceSpec) -> OnlinePlan | Rejected:
    """The kernel of one choice, or why it does not fit. Units: as the records."""
    if choice.threads < WARP or choice.threads % WARP or choice.threads > device.max_threads_per_block or choice.columns % LANES:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{choice.threads} threads and {choice.columns} columns are no whole warps and tiles")
    unit = _unit(work.arithmetic, choice, device)
    each = MMA_ROWS * (choice.threads // WARP) if unit == "mma" else choice.threads // LANES
    if choice.rows % each or not choice.rows or choice.stages not in (1, 2):
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{choice.rows} rows are no multiple of {each}, or stages are not 1 or 2")
    widest = max((w.width for w in form.weighted), default=0)
    vector = next(v for v in (4, 2, 1) if v == 1 or widest >= v * LANES)
    made = OnlinePlan(form, choice, unit, choice.rows // each, vector, (), 0, work.arithmetic or "" if unit == "mma" else "")
    registers = registers_of(made, device)
    if registers > min(device.max_registers_per_thread, device.registers_per_multiprocessor // choice.threads):
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread for {choice.rows} x {choice.columns} scores")
    made = replace(made, tiles=tuple(_placed(_tiles(made))))
    made = replace(made, shared_bytes=max((t.offset_bytes + t.num_bytes for t in made.tiles), default=0))
    if made.shared_bytes > device.shared_bytes_per_block:
        return Rejected(Reason.SHARED_MEMORY, f"{made.shared_bytes} bytes of shared memory, at most {device.shared_bytes_per_block}")
    return _timed(made, work, device)


def _padded(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def _tiles(plan: OnlinePlan) -> Iterator[OnChip]:
    """Contents of shared memory. Rows of every tile are so far apart that those read together start in different banks."""
    choice, form = plan.choice, plan.form
    extent = {ROW: choice.rows, WALK: choice.columns}

    def tile(role: str, number: int, operand: Operand, more: dict[str, int], stages: int = choice.stages) -> OnChip:
        sizes = extent | more
        # Where threads multiply, rows of the tile are those of the product, however memory runs.
        rows, columns = operand.rows, operand.columns
        if plan.unit == "fma" and (rows in (INNER, WIDTH)):
            rows, columns = columns, rows
        if plan.arithmetic:
            pitch = sizes[columns] + f32_pad(sizes[columns], columns == (INNER if role == "right" else WALK))
        else:
            pitch = _pitch(sizes[columns], operand.dtype)
        return OnChip(role, number, operand.dtype, sizes[rows], sizes[columns], pitch, stages, operand)

    for n, s in enumerate(form.scores):
        if plan.unit == "fma":
            yield tile("left", n, s.left, {INNER: plan.inner(n)}, 1)
        yield tile("right", n, s.right, {INNER: plan.inner(n)})
    for n, w in enumerate(form.weighted):
        yield tile("weight", n, w.right, {WIDTH: plan.width(n)})
        if plan.unit == "fma":
            yield OnChip("powers", n, form.sum_dtype, choice.rows, choice.columns, _pitch(choice.columns, form.sum_dtype), 1)


def _pitch(columns: int, dtype: DType) -> int:
    unit = ACCESS_BYTES // dtype.itemsize
    return (-(-columns // unit) | 1) * unit


def _placed(tiles: Iterable[OnChip]) -> Iterator[OnChip]:
    offset = 0
    for t in tiles:
        yield replace(t, offset_bytes=offset)
        offset += _padded(t.num_bytes, 128)


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
            sums, left, powers = 2 * sums, 2 * left + 12 * m + 16, 0
        rows = 2 * m * (3 * len(form.tops) + len(form.sums))
        return fitted.matrix_registers + scores + max(powers // 2, 16) + sums + left + rows
    m, n = plan.warp_rows, choice.columns // LANES
    sums = sum(m * plan.width(k) // LANES for k in range(len(form.weighted)))
    return fitted.thread_registers + words * (len(form.scores) * m * n + sums + m * (3 * len(form.tops) + len(form.sums))
                                              + max(STEP * (m + 1), n + m))


# -- time ----------------------------------------------------------------------------------------------------------------------

def _timed(plan: OnlinePlan, work: Work, device: DeviceSpec) -> OnlinePlan:
    """The plan with its estimate. Units: microseconds, without launch and without the traffic to global memory that must be."""
    form, choice, fitted = plan.form, plan.choice, device.fitted.online
    turns = -(-form.length // choice.columns)
    elements = choice.rows * choice.columns
    depth = sum(plan.inner(n) for n in range(len(form.scores))) + sum(plan.width(n) for n in range(len(form.weighted)))
    multiplications = elements * depth
    if plan.unit == "mma":
        product = multiplications / MMA_PER_CYCLE
        if plan.arithmetic:
            t = Tiling("mma", plan.warp_rows, choice.columns // MMA_COLUMNS, step=MMA_INNER_F32, arithmetic=plan.arithmetic)
            product = sum(product_cycles(t, choice.rows, choice.columns, plan.inner(n), choice.threads, True)[0]
                          for n in range(len(form.scores)))
            for n in range(len(form.weighted)):
                t = replace(t, columns=plan.width(n) // MMA_COLUMNS)
                product += product_cycles(t, choice.rows, plan.width(n), choice.columns, choice.threads, True)[0]
        # Right fragments are read from shared memory once for all row tiles of a warp.
        shared = choice.columns * depth * form.scores[0].right.dtype.itemsize * (choice.threads // WARP) / fitted.shared_bytes_per_cycle
    else:
        product = multiplications / FMA_PER_CYCLE * (fitted.double_cost if form.sum_dtype.itemsize == 8 else 1.0)
        m, n = plan.warp_rows, choice.columns // LANES
        shared = multiplications * form.sum_dtype.itemsize / fitted.shared_bytes_per_cycle * (1 / (4 * n) + 1 / (2 * m)) / 2
    moved_bytes = sum(t.rows * t.columns * t.dtype.itemsize for t in plan.tiles if t.role in ("right", "weight"))
    moved = moved_bytes / device.fitted.traffic.l2_bytes_per_cycle
    # The rest: the element's own operations, maximum, sum and conversion, and its functions. What is summed up is seldom rescaled.
    beside = elements * ((work.flops + 4) / FMA_PER_CYCLE + work.special / fitted.special_per_cycle / 2)
    matrix = plan.unit == "mma"
    beside *= fitted.matrix_beside if matrix and not plan.arithmetic else fitted.thread_beside
    busy = max(max(product, shared) + beside, moved)
    wait = fitted.turn_cycles + (fitted.fetch_cycles if choice.stages == 1 else 0.0)
    threads = device.max_threads_per_multiprocessor // choice.threads
    by_registers = device.registers_per_multiprocessor // (choice.threads * -(-registers_of(plan, device) // 8) * 8)
    resident = max(1, min(threads, by_registers, device.shared_bytes_per_multiprocessor // (plan.shared_bytes + 1024)))
    side_by_side = min(resident, -(-plan.num_blocks // device.num_multiprocessors))
    # Blocks start as others end, so the last round is seldom whole.
    rounds = plan.num_blocks / (device.num_multiprocessors * side_by_side)
    rounds = (rounds + ceil(rounds)) / 2
    cycles = fitted.counted_share * rounds * (turns * (side_by_side * busy + wait / side_by_side) + fitted.block_cycles)
    clock = device.flops_per_s / (device.num_multiprocessors * 2 * FMA_PER_CYCLE)
    total = plan.num_blocks * turns * elements * (2 * depth + work.flops)
    return replace(plan, us=fitted.least_us + cycles / clock * 1e6, flops=total)


def _operations(form: OnlineForm) -> tuple[int, int]:
    """(operations, functions of the special unit) of one score; what several bodies have in common counts once."""
    narrow = form.scores[0].left.dtype.name in NARROW
    seen: set[Expr] = set()
    stack: list[Expr] = [t.body for t in (*form.totals, *(w.total for w in form.weighted))]
    flops = special = 0
    while stack:
        e = stack.pop()
        if e in seen or isinstance(e, Read):
            continue
        seen.add(e)
        if isinstance(e, Call) and e.fn in SCALAR_OPS:
            flops += NARROW_FLOPS.get(e.fn, SCALAR_OPS[e.fn].flops) if narrow else SCALAR_OPS[e.fn].flops
            special += e.fn in SPECIAL
        elif isinstance(e, Guard):
            flops += 2 * len(e.bounds)
        stack.extend(children(e))
    return flops, special
