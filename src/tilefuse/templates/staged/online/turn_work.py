"""Work of a kernel that walks an axis between two products: cycles of a block's turns by unit, waits, bytes of every level."""
from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

from tilefuse.base.construction import replace
from tilefuse.domain.contraction import Tiling, product_cycles
from tilefuse.domain.roofline import blocks_at_once
from tilefuse.domain.work import BlockWork, LeastBlocks, StageWork, Unit, Work
from tilefuse.ir.ops import NARROW_FLOPS, SCALAR_OPS
from tilefuse.ir.scalar import Call, Expr, Guard, Lookup, Read, children, indexed_axes, walk
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_INNER_F32, WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.staged.online.plan import LANES, OnlinePlan, operands, padded
from tilefuse.templates.staged.online.products import LEAD, NARROW, ROW, WALK, OnlineForm

# Functions that the special unit computes.
SPECIAL = frozenset(["exp", "exp2", "log", "log2", "tanh", "sigmoid", "reciprocal", "div", "sqrt", "rsqrt", "sin", "cos", "erf"])


@dataclass(frozen=True, slots=True)
class Score:
    """Operations of one score between the products. Units: `flops` operations, `special` functions of the special unit."""

    flops: int
    special: int


def with_work(plan: OnlinePlan, blocks: BlockWork, boundary: Work, score: Score) -> OnlinePlan:
    """The plan with its operations and its work. boundary: the work of its boundary values. blocks: of `blocks_of`."""
    choice = plan.choice
    l2_bytes, shared_bytes = _traffic(plan)
    work = replace(boundary, grid=Launch(plan.num_blocks, choice.threads, 1, plan.shared_bytes), blocks=(blocks,),
                   l2_bytes=l2_bytes, shared_bytes=shared_bytes)
    flops = plan.num_blocks * turns_of(plan) * choice.rows * choice.columns * (2 * _depth(plan) + score.flops)
    return replace(plan, work=work, flops=flops)


def turns_of(plan: OnlinePlan) -> int:
    """Turns of a block."""
    return -(-plan.form.length // plan.choice.columns)


def turn_of(plan: OnlinePlan, score: Score, loads: int, device: DeviceSpec) -> StageWork:
    """One turn where the next one's operands come in meanwhile: products and reads of their operands overlap.

    loads: `loads_of` the form. Its tiles need not be placed.
    """
    form, choice, fitted = plan.form, plan.choice, device.fitted.online
    elements = choice.rows * choice.columns
    # Maximum, sum, rescaling and conversion of a score are four operations; what is summed up is seldom rescaled.
    share = fitted.matrix_beside if plan.unit == "mma" and not plan.arithmetic else fitted.thread_beside
    load_cycles = device.fitted.walks.load_cycles * loads if plan.unit == "mma" else 0.0
    beside: tuple[tuple[Unit, float], ...] = (
        ("threads", elements * (score.flops + 4) / device.fitted.stitch.multiply.fma_per_cycle * share + elements * load_cycles),
        ("special", elements * score.special / fitted.special_per_cycle / 2 * share))
    line_bytes = sum(plan.inner(n) * s.right.dtype.itemsize for n, s in enumerate(form.scores))
    line_bytes += sum(plan.width(n) * w.right.dtype.itemsize for n, w in enumerate(form.weighted))
    moved = line_bytes * choice.columns / device.fitted.traffic.l2_bytes_per_cycle
    return StageWork(((_products(plan, device), *beside), (("shared", _read_bytes(plan) / fitted.shared_bytes_per_cycle), *beside),
                      (("l2", moved),)), fitted.turn_cycles)


def _waiting(turn: StageWork, plan: OnlinePlan, device: DeviceSpec) -> StageWork:
    """The turn of a plan, which waits for its operands where they have one place each."""
    return replace(turn, wait_cycles=turn.wait_cycles + device.fitted.online.fetch_cycles) if plan.choice.stages == 1 else turn


def blocks_of(plan: OnlinePlan, turn: StageWork, registers: int, device: DeviceSpec) -> BlockWork:
    """Cycles and waits of the blocks. turn: of `turn_of`. registers: of `registers_of`."""
    choice, fitted = plan.choice, device.fitted.online
    return BlockWork(plan.num_blocks, choice.threads, _resident(plan, registers, device), turns_of(plan), (_waiting(turn, plan, device),),
                     (StageWork((), fitted.block_cycles),), fitted.overlap)


def least_blocks_of(plan: OnlinePlan, turn: StageWork, registers: int, device: DeviceSpec) -> LeastBlocks:
    """Bound on the blocks of a plan whose tiles are not placed yet: shared memory may limit the blocks of a multiprocessor further."""
    choice, fitted, turns = plan.choice, device.fitted.online, turns_of(plan)
    waits = turns * (turn.wait_cycles + (fitted.fetch_cycles if choice.stages == 1 else 0.0))
    return LeastBlocks(plan.num_blocks, choice.threads, _resident(plan, registers, device), turns * turn.busy_cycles, waits,
                       fitted.block_cycles, fitted.overlap)


def _resident(plan: OnlinePlan, registers: int, device: DeviceSpec) -> int:
    """Blocks that fit a multiprocessor."""
    return max(blocks_at_once(plan.choice.threads, padded(registers, 8), plan.shared_bytes, device), 1)


def _products(plan: OnlinePlan, device: DeviceSpec) -> tuple[Unit, float]:
    """Cycles of the products of one turn, and the unit that multiplies."""
    form, choice, fitted = plan.form, plan.choice, device.fitted.stitch.multiply
    multiplications = choice.rows * choice.columns * _depth(plan)
    if plan.unit != "mma":
        double_cost = device.fitted.online.double_cost if form.sum_dtype.itemsize == 8 else 1.0
        return "threads", multiplications / fitted.fma_per_cycle * double_cost
    if not plan.arithmetic:
        return "tensor", multiplications / fitted.mma_per_cycle
    t = Tiling("mma", plan.warp_rows, choice.columns // MMA_COLUMNS, step=MMA_INNER_F32, arithmetic=plan.arithmetic)
    cycles = sum(product_cycles(fitted, t, choice.rows, choice.columns, plan.inner(n), choice.threads, True)[0]
                 for n in range(len(form.scores)))
    for n in range(len(form.weighted)):
        t = replace(t, columns=plan.width(n) // MMA_COLUMNS)
        cycles += product_cycles(fitted, t, choice.rows, plan.width(n), choice.columns, choice.threads, True)[0]
    return "tensor", cycles


def _depth(plan: OnlinePlan) -> int:
    """Multiply-adds of one score: inner extents of the first products, widths of the second ones."""
    return sum(plan.inner(n) for n in range(len(plan.form.scores))) + sum(plan.width(n) for n in range(len(plan.form.weighted)))


def _read_bytes(plan: OnlinePlan) -> float:
    """Bytes that a block reads from shared memory in a turn: right fragments once for all row tiles of a warp. Units: bytes."""
    form, choice, depth = plan.form, plan.choice, _depth(plan)
    if plan.unit == "mma":
        return choice.columns * depth * form.scores[0].right.dtype.itemsize * (choice.threads // WARP)
    across = choice.columns // LANES
    return choice.rows * choice.columns * depth * form.sum_dtype.itemsize * (1 / (4 * across) + 1 / (2 * plan.warp_rows)) / 2


def _traffic(plan: OnlinePlan) -> tuple[int, int]:
    """(bytes between L2 and the multiprocessors, bytes written to and read from shared memory) of all blocks. Units: bytes.

    Operands of the walked columns come once a block, those of its rows once.
    """
    form, choice = plan.form, plan.choice
    turns = -(-form.length // choice.columns)
    extents = {LEAD: 1, ROW: min(choice.rows, form.num_rows), WALK: form.length}
    block = sum(s.inner * (extents[ROW] * s.left.dtype.itemsize + form.length * s.right.dtype.itemsize) for s in form.scores)
    block += sum(form.length * w.width * w.right.dtype.itemsize for w in form.weighted)
    block += sum(_beside(plan, extents))
    read = _read_bytes(plan)
    walked = sum(t.rows * t.columns * t.dtype.itemsize for t in plan.tiles if t.role != "left")
    once = sum(t.rows * t.columns * t.dtype.itemsize for t in plan.tiles if t.role == "left")
    written = sum(form.graph.type_of(r).num_bytes for r in form.graph.results)
    return plan.num_blocks * block + written, plan.num_blocks * (turns * (walked + int(read)) + once)


def _beside(plan: OnlinePlan, extents: dict[str, int]) -> Iterator[int]:
    """Bytes of boundary values that a block reads beside the operands (biases, masks)."""
    form = plan.form
    known = {o.value for o in operands(form)} | {r.value for r in form.reads.values()}
    bodies: list[Expr] = [t.body for t in (*form.totals, *(w.total for w in form.weighted))]
    bodies += [b for b in (*(s.bias for s in form.scores), *(w.bias for w in form.weighted)) if b is not None]
    reads = dict.fromkeys(e for body in bodies for e in walk(body) if isinstance(e, Read | Lookup) and e.value not in known)
    inputs = {v.name: v.type for v in form.graph.inputs}
    for e in reads:
        if e.value in inputs:
            yield prod(extents.get(a, 1) for a in indexed_axes(e)) * inputs[e.value].dtype.itemsize


def loads_of(form: OnlineForm, brought: Collection[Expr] = ()) -> int:
    """Values with rows and columns that threads load for each score. brought: reads of values on chip."""
    loads = dict.fromkeys(e for body in _bodies(form) for e in walk(body) if isinstance(e, Read | Lookup) and e not in brought)
    inputs = {i.name for i in form.graph.inputs}
    return sum(e.value in inputs and indexed_axes(e) >= {ROW, WALK} for e in loads)


def _bodies(form: OnlineForm) -> list[Expr]:
    """Everything that is computed for each score."""
    return [*(t.body for t in (*form.totals, *(w.total for w in form.weighted))), *(e for _, e in form.element_results)]


def score_of(form: OnlineForm) -> Score:
    """Operations of one score; what several bodies have in common counts once."""
    narrow = form.scores[0].left.dtype.name in NARROW
    seen: set[Expr] = set()
    stack = _bodies(form)
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
    return Score(flops, special)
