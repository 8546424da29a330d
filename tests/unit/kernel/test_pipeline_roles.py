"""The two projections of a pipeline's tree."""
from __future__ import annotations

from tilefuse.ir.affine import axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.ir import Barrier, Comment, Declare, For, If, Let, Reg, Stmt, Store
from tilefuse.kernel.pipeline import Consume, EachWarpgroup, Produce, ReleaseSlots, SkipSlots, WarpgroupWait
from tilefuse.kernel.pipeline_roles import absent_tree, consumer_tree, producer_tree

ROW = Let("row", axis("tile") * 8, 64)
WARP = Let("warp", axis("thread") // 32, 8)
FILL = Produce("ab", "s", (Store("x", axis("row") + axis("s"), const(1, F32)),), 32)
USE: Consume[Stmt] = Consume("ab", "s", (WarpgroupWait(0),))
OTHER = Store("y", axis("warp"), Reg("sum", F32))


def tree() -> tuple[Stmt, ...]:
    """A persistent block with a main loop, a branch for some tiles and an epilogue."""
    branch = If((Bound(axis("tile"), 1, 8),), (FILL,), (OTHER,))
    return (Comment("tiles"), For("tile", axis("block"), number(8), 4, (
        ROW, WARP, Declare("sum", F32, 4), For("k", number(0), number(3), 1, (FILL, USE)), branch,
        For("u", number(0), number(2), 1, (OTHER,)), Barrier(), ReleaseSlots("ab"))),)


def test_producers_run_fillings_and_their_names() -> None:
    """Loops without fillings, names of other statements and the consumers' statements are left out."""
    assert producer_tree(tree()) == (For("tile", axis("block"), number(8), 4, (
        ROW, For("k", number(0), number(3), 1, (FILL,)), If((Bound(axis("tile"), 1, 8),), (FILL,), ()))),)


def test_consumers_run_the_rest() -> None:
    """A branch that held a filling keeps its other side."""
    loop, = (s for s in consumer_tree(tree()) if isinstance(s, For))
    assert loop.body == (ROW, WARP, Declare("sum", F32, 4), For("k", number(0), number(3), 1, (USE,)),
                         If((Bound(axis("tile"), 1, 8),), (), (OTHER,)), For("u", number(0), number(2), 1, (OTHER,)), Barrier(),
                         ReleaseSlots("ab"))


def test_a_loop_of_fillings_alone_leaves_nothing_to_consumers() -> None:
    """Slots that are filled ahead of their first use."""
    ahead = (For("k", number(0), number(3), 1, (FILL,)), USE)
    assert consumer_tree(ahead) == (USE,) and producer_tree(ahead) == ahead[:1]


def test_turns_have_fillings_uses_and_slots_that_others_use() -> None:
    """Producers fill for each warpgroup, a consumer runs its own turn, and passes over the slots of the others."""
    loop = For("k", number(0), number(7), 2, (FILL, USE))
    exists = Bound(axis("tile") + axis("g"), 0, 8)
    turn = EachWarpgroup("g", (ROW, loop), (ReleaseSlots("ab"), OTHER), (exists,))
    assert producer_tree((turn,)) == (EachWarpgroup("g", (ROW, For("k", number(0), number(7), 2, (FILL,))), (), (exists,)),)
    assert consumer_tree((turn,)) == (EachWarpgroup("g", (ROW, For("k", number(0), number(7), 2, (USE,))), turn.after, (exists,)),)
    assert absent_tree(turn.body) == (SkipSlots("ab", 4),)


def test_slots_of_two_rings_are_passed_over() -> None:
    """Operands that come two ways are used one inside the other."""
    both: Consume[Stmt] = Consume("copied", "c", (ROW, Consume("loaded", "l", (WarpgroupWait(0),))))
    assert absent_tree((FILL, both)) == (SkipSlots("loaded", 1), SkipSlots("copied", 1))
    assert absent_tree((For("k", number(0), number(3), 1, (both,)),)) == (SkipSlots("loaded", 3), SkipSlots("copied", 3))


def test_loops_of_unknown_length_stay_where_others_use_slots() -> None:
    """Their bounds keep the names that they need."""
    loop = For("k", number(0), axis("row"), 1, (USE, USE))
    branch = If((Bound(axis("k"), 0, 2),), (USE,))
    assert absent_tree((ROW, WARP, loop)) == (ROW, For("k", number(0), axis("row"), 1, (SkipSlots("ab", 1), SkipSlots("ab", 1))))
    assert absent_tree((For("k", number(0), number(3), 1, (branch,)),)) == (
        For("k", number(0), number(3), 1, (If((Bound(axis("k"), 0, 2),), (SkipSlots("ab", 1),)),)),)
