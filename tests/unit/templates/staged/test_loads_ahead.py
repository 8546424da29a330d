"""Loads that stand before a stage's barrier: which of them move, and that what is computed stays the same."""
from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.golden.workloads import cuda_source, kernel_text, tile_program
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import axis, number
from tilefuse.ir.dtype import F16, F32
from tilefuse.ir.scalar import Bound, Call
from tilefuse.kernel.ir import Assign, Buffer, Declare, For, If, Let, Load, Reg, Stmt, VectorLoad
from tilefuse.target.device import H200
from tilefuse.templates.staged.stitched.loads_ahead import loads_ahead

INPUTS = {"x": Buffer("x", F16, 64, "global", "in", "x"), "b": Buffer("b", F32, 64, "global", "in", "b")}
THREAD, STEP = axis("thread"), axis("step")


def moved(body: Sequence[Stmt], num_registers: int = 16) -> tuple[list[Stmt], list[Stmt]]:
    """`loads_ahead` of statements, with names that end in their number."""
    names = iter(range(100))
    return loads_ahead(body, INPUTS, num_registers, lambda stem: f"{stem}_{next(names)}")


def loaded(body: Sequence[Stmt]) -> set[str]:
    """Buffers that statements load from, nested ones included."""
    buffers: set[str] = set()
    for s in body:
        match s:
            case VectorLoad(buffer=name) | Assign(value=Load(buffer=name)) | Declare(init=Load(buffer=name)):
                buffers.add(name)
            case For(body=inner) | If(body=inner):
                buffers |= loaded(inner)
    return buffers


def test_an_element_is_loaded_into_a_register_ahead() -> None:
    place = Let("place", THREAD % 8, 8)
    load = Load("b", F32, axis("place"))
    before, behind = moved([place, Declare("b_at", F32, None, load)])
    assert before == [Declare("b_at_ahead_0", F32), place, Assign(Reg("b_at_ahead_0", F32), load)]
    assert behind == [Declare("b_at", F32, None, Reg("b_at_ahead_0", F32))]


def test_every_turn_of_an_unrolled_loop_has_its_elements() -> None:
    """The array of all turns; a rolled loop keeps its loads."""
    turn = (Declare("v", F16, 2), VectorLoad("v", number(0), "x", STEP * 2 + THREAD * 8, 2))
    loop = For("step", number(0), number(4), 1, turn, unroll=True)
    (array, early), (late,) = moved([loop])
    assert array == Declare("v_ahead_0", F16, 8) and loaded([early]) == {"x"} and not loaded([late])
    assert isinstance(early, For) and early.body == (VectorLoad("v_ahead_0", STEP * 2, "x", STEP * 2 + THREAD * 8, 2),)
    rolled = For("step", number(0), number(4), 1, turn)
    assert moved([rolled]) == ([], [rolled])


def test_loads_keep_their_conditions() -> None:
    bounds = (Bound(THREAD, 0, 16),)
    (_, early), (late,) = moved([If(bounds, (Declare("b_at", F32, None, Load("b", F32, THREAD)),))])
    assert isinstance(early, If) and early.bounds == bounds and isinstance(late, If) and not loaded([late])


@pytest.mark.parametrize("body", [
    (Declare("t_at", F32, None, Load("t", F32, THREAD)),),
    (Declare("b_at", F32, None, Load("b", F32, number(0), ((Reg("n", F32), 1),))),),
    (Declare("b_at", F32, None, Call("neg", (Load("b", F32, THREAD),))),),
    (For("n", number(0), axis("count"), 1, (Declare("b_at", F32, None, Load("b", F32, axis("n"))),), unroll=True),),
], ids=["no input", "a place from memory", "inside of an expression", "a loop of unknown length"])
def test_other_loads_stay(body: tuple[Stmt, ...]) -> None:
    assert moved(body) == ([], list(body))


def test_registers_bound_what_is_moved() -> None:
    """The first loads that fit; none without a register."""
    body = [Declare(f"b{n}", F32, None, Load("b", F32, THREAD + n)) for n in range(3)]
    assert moved(body, 0) == ([], body)
    before, behind = moved(body, 2)
    assert len(before) == 4 and loaded(behind) == {"b"}


def test_gates_of_a_recurrence_load_before_the_barrier() -> None:
    """What is added to the products of an LSTM's step is on its way while their operands are."""
    program = tile_program("stitched-gates", H200)
    assert isinstance(program, TileProgram)
    body = kernel_text(cuda_source(program, H200))
    assert body.index("g_v_ahead, g + ") < body.index("__syncthreads") < body.index("= g_v_ahead[")
