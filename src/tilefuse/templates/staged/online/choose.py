"""Tiles of a kernel that walks an axis between two products: what lies on chip, in which form; the cheapest ones are taken.

A block holds some rows of the results for the whole walk; of each right operand it holds the part that belongs to the columns of one turn.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.construction import replace
from tilefuse.domain.contraction import INNER, any_contraction_of, f32_pad, matrix_arithmetic
from tilefuse.domain.roofline import least_blocks_us, price_stages, price_work
from tilefuse.domain.work import BlockWork, StageWork
from tilefuse.ir.dtype import DType
from tilefuse.target.capabilities import MMA_ROWS, WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.request import Price
from tilefuse.templates.staged.online.plan import LANES, OnChip, OnlinePlan, operands, padded, registers_of
from tilefuse.templates.staged.online.products import ROW, WALK, WIDTH, OnlineForm, Operand
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.turn_work import blocks_of, least_blocks_of, loads_of, score_of, turn_of, with_work
from tilefuse.templates.staged.search import Rank, cheapest


class _Shaped(NamedTuple):
    """A plan whose tiles are not placed yet, one turn of it, and registers of a thread."""

    plan: OnlinePlan
    turn: StageWork
    registers: int


def choose_online(form: OnlineForm, device: DeviceSpec, by_hand: Online | None = None,
                  ceiling: Price | None = None) -> OnlinePlan | Rejected:
    """The tiles whose work has the least price, or why there are none. `by_hand`: tiles made by hand or by a tuner.

    ceiling: as of `search.cheapest`.
    """
    arithmetic, score, boundary, loads = _arithmetic(form), score_of(form), boundary_work(form.graph), loads_of(form)
    boundary_parts = price_work(boundary, device)
    of_tiles: dict[tuple[int, int, int], tuple[StageWork, int] | Rejected] = {}
    known: dict[Online, _Shaped] = {}

    def shaped(choice: Online) -> _Shaped | Rejected:
        plan = _shape(form, choice, arithmetic, device)
        if isinstance(plan, Rejected):
            return plan
        tiles = choice.rows, choice.columns, choice.threads
        if tiles not in of_tiles:
            registers = registers_of(plan, device)
            of_tiles[tiles] = _why_too_many(registers, choice, device) or (turn_of(plan, score, loads, device), registers)
        facts = of_tiles[tiles]
        return facts if isinstance(facts, Rejected) else _Shaped(plan, *facts)

    def least(choice: Online) -> Rank | Rejected:
        of = shaped(choice)
        if isinstance(of, Rejected):
            return of
        known[choice] = of
        stages_us = least_blocks_us(least_blocks_of(*of, device), device)
        return boundary_parts.us_with(stages_us), stages_us

    def ranked(choice: Online, _bound: Rank, _best: Rank | None) -> tuple[Rank, tuple[OnlinePlan, BlockWork]] | Rejected:
        of = known[choice] if choice in known else shaped(choice)
        if isinstance(of, Rejected):
            return of
        plan = _fit(of.plan, device)
        if isinstance(plan, Rejected):
            return plan
        blocks = blocks_of(plan, of.turn, of.registers, device)
        return price_stages(boundary_parts, blocks, device), (plan, blocks)

    best = cheapest([by_hand] if by_hand is not None else _candidates(form), least, ranked, ceiling)
    return best if isinstance(best, Rejected) else with_work(*best, boundary, score)


def _unit(arithmetic: str | None, choice: Online, device: DeviceSpec) -> str:
    """"mma" where the matrix unit multiplies the operands; those of f32 only where each warp has whole instructions' rows."""
    if device.kind != "cuda" or arithmetic is None or arithmetic and choice.rows % (MMA_ROWS * (choice.threads // WARP)):
        return "fma"
    return "mma"


def _arithmetic(form: OnlineForm) -> str | None:
    """How the matrix unit multiplies the operands of all products (`contraction.Tiling`); None where it does not, or differently."""
    kinds: set[str | None] = set()
    for name in (*(s.value for s in form.scores), *(w.value for w in form.weighted)):
        contraction = any_contraction_of(form.graph.node_by_name[name], form.graph)
        assert contraction is not None, "the form holds products only"
        kinds.add(matrix_arithmetic(contraction, form.graph.type_of(contraction.left).dtype, form.graph.type_of(contraction.right).dtype))
    types = {o.dtype.name for o in operands(form)}
    return kinds.pop() if len(kinds) == 1 and len(types) == 1 else None


def _candidates(form: OnlineForm) -> Iterator[Online]:
    for threads in (128, 256):
        for rows in (16, 32, 64, 128, 256):
            for columns in (16, 32, 64, 128):
                if columns < 2 * form.length or columns == 16:
                    yield from (Online(rows, columns, threads, stages) for stages in (1, 2))


def _shape(form: OnlineForm, choice: Online, arithmetic: str | None, device: DeviceSpec) -> OnlinePlan | Rejected:
    """The kernel of one choice without tiles in shared memory, or why there is none. Units: as the records."""
    if choice.threads < WARP or choice.threads % WARP or choice.threads > device.max_threads_per_block or choice.columns % LANES:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{choice.threads} threads and {choice.columns} columns are no whole warps and tiles")
    unit = _unit(arithmetic, choice, device)
    each = MMA_ROWS * (choice.threads // WARP) if unit == "mma" else choice.threads // LANES
    if choice.rows % each or not choice.rows or choice.stages not in (1, 2):
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{choice.rows} rows are no multiple of {each}, or stages are not 1 or 2")
    widest = max((w.width for w in form.weighted), default=0)
    vector = next(v for v in (4, 2, 1) if v == 1 or widest >= v * LANES)
    return OnlinePlan(form, choice, unit, choice.rows // each, vector, (), 0, arithmetic or "" if unit == "mma" else "")


def _why_too_many(registers: int, choice: Online, device: DeviceSpec) -> Rejected | None:
    """Why a thread has too few registers; None where they suffice."""
    if registers > min(device.max_registers_per_thread, device.registers_per_multiprocessor // choice.threads):
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread for {choice.rows} x {choice.columns} scores")
    return None


def _fit(plan: OnlinePlan, device: DeviceSpec) -> OnlinePlan | Rejected:
    """The kernel with its tiles, or why these do not fit."""
    tiles = tuple(_placed(_tiles(plan)))
    shared_bytes = max((t.offset_bytes + t.num_bytes for t in tiles), default=0)
    if shared_bytes > device.shared_bytes_per_block:
        return Rejected(Reason.SHARED_MEMORY, f"{shared_bytes} bytes of shared memory, at most {device.shared_bytes_per_block}")
    return replace(plan, tiles=tiles, shared_bytes=shared_bytes)


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
        offset += padded(t.num_bytes, 128)
