"""Shared-memory plans: nothing that lives together overlaps, dominated places are shared, the smaller of two plans is taken."""
from __future__ import annotations

import random
from itertools import combinations

import pytest

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.domain.storage import Request, SharedPlan, aligned, best_fit, conflict, plan_shared, share_by_dominance

CHAIN = {"a": (), "b": ("a",), "c": ("b",)}


def planned(requests: list[Request], operands: dict[str, tuple[str, ...]]) -> SharedPlan:
    found = plan_shared(requests, operands)
    assert isinstance(found, SharedPlan)
    return found


def overlaps(requests: list[Request], offsets: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs that live at the same time and share a byte."""
    return [(a.name, b.name) for a, b in combinations(requests, 2) if conflict(a, b) and a.num_bytes and b.num_bytes
            and offsets[a.name] < offsets[b.name] + b.num_bytes and offsets[b.name] < offsets[a.name] + a.num_bytes]


def test_the_third_of_a_chain_takes_the_place_of_the_first() -> None:
    requests = [Request("a", 64, 0, 1), Request("b", 32, 1, 2), Request("c", 64, 2, 3)]
    found = planned(requests, CHAIN)
    assert (found.allocated_bytes, found.requested_bytes, found.live_bytes) == (96, 160, 96)
    assert found.offset_by_name["a"] == found.offset_by_name["c"]
    assert "96 of 160 bytes" in str(found)


def test_an_elementwise_value_takes_its_operands_place_in_the_motivating_example() -> None:
    """Figure 1 of FusionStitching: `add` reuses the 94 x 94 floats of `dot_1`."""
    size = 94 * 94 * 4
    operands: dict[str, tuple[str, ...]] = {"dot_1": (), "scaled": ("dot_1",), "add": ("scaled",), "reduce_1": ("add",),
                                            "exp": ("add", "reduce_1"), "dot_2": ("exp",)}
    requests = [Request("dot_1", size, 0, 1), Request("add", size, 1, 3, overwrites=("dot_1",)), Request("reduce_1", 94 * 4, 2, 3)]
    found = planned(requests, operands)
    assert found.allocated_bytes == aligned(size) + aligned(94 * 4)
    apart = planned([Request(r.name, r.num_bytes, r.first, r.last) for r in requests], operands)
    assert apart.allocated_bytes == 2 * aligned(size), "a value still read in the stage is not overwritten"


def test_a_value_that_another_branch_still_reads_is_not_shared() -> None:
    """a is read by b and by d; b does not dominate it."""
    operands: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("b",), "d": ("a", "c")}
    requests = [Request("a", 64, 0, 3), Request("b", 64, 1, 2), Request("c", 64, 2, 3)]
    _, offsets = share_by_dominance(requests, operands)
    assert offsets["a"] not in (offsets["b"], offsets["c"])
    assert overlaps(requests, offsets) == []


def test_dominated_values_that_are_not_taken_over_are_reclaimed() -> None:
    """The join takes one of two branches' places; the other is free for what follows."""
    operands: dict[str, tuple[str, ...]] = {"a": (), "b": (), "j": ("a", "b"), "k": ("j",)}
    requests = [Request("a", 64, 0, 1), Request("b", 64, 0, 1), Request("j", 64, 2, 3), Request("k", 64, 3, 4)]
    _, offsets = share_by_dominance(requests, operands)
    assert max(offsets.values()) == 64 and overlaps(requests, offsets) == []


def test_best_fit_takes_the_tightest_gap() -> None:
    requests = [Request("big", 64, 0, 0), Request("wall", 48, 0, 9), Request("late", 32, 5, 6), Request("later", 64, 5, 9)]
    _, offsets = best_fit(requests)
    assert overlaps(requests, offsets) == []
    assert offsets["later"] == offsets["big"]


@pytest.mark.parametrize("seed", range(40))
def test_random_flows_never_overlap_and_the_smaller_plan_is_taken(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"n{i}" for i in range(draw.randint(1, 14))]
    operands: dict[str, tuple[str, ...]] = {}
    for place, name in enumerate(names):
        operands[name] = tuple(draw.sample(names[:place], min(place, draw.randint(0, 3))))
    last = {n: max([i for i, m in enumerate(names) if n in operands[m]], default=i) for i, n in enumerate(names)}
    wanted = draw.sample(names, draw.randint(0, len(names)))
    requests = [Request(n, draw.choice((4, 16, 100, 1000)), i, last[n]) for i, n in enumerate(names) if n in wanted]
    found = planned(requests, operands)
    sized = [Request(r.name, aligned(r.num_bytes), r.first, r.last) for r in requests]
    assert overlaps(sized, dict(found.offset_by_name)) == [], f"seed {seed}"
    for _, offsets in (best_fit(sized), share_by_dominance(sized, operands)):
        assert overlaps(sized, offsets) == [], f"seed {seed}"
        assert found.allocated_bytes <= max((offsets[r.name] + r.num_bytes for r in sized), default=0)
    assert found.live_bytes <= found.allocated_bytes <= found.requested_bytes
    assert all(at % 16 == 0 for at in found.offset_by_name.values())


def test_a_value_that_overwrites_another_is_read_before_its_turn() -> None:
    """`m` and `s` read the row that `y` overwrites; with `y` for both, they read `y` before it stands in the flow."""
    operands = {"q": (), "m": ("y",), "s": ("y", "m"), "y": ("m", "s"), "v": (), "o": ("y", "v")}
    requests = [Request("q", 64, 0, 1), Request("y", 32, 1, 4), Request("v", 48, 3, 4), Request("m", 96, 2, 3), Request("s", 32, 3, 3)]
    assert overlaps(requests, share_by_dominance(requests, operands)[1]) == []
    assert overlaps(requests, dict(planned(requests, operands).offset_by_name)) == []


def test_what_does_not_fit_is_a_rejected_candidate_with_its_numbers() -> None:
    found = plan_shared([Request("a", 200_000, 0, 1), Request("b", 100_000, 1, 2)], CHAIN, limit_bytes=232448)
    assert isinstance(found, Rejected) and found.reason is Reason.SHARED_MEMORY
    assert "300000 bytes" in found.detail and "232448" in found.detail and "%a 200000" in found.detail and "smaller tile" in found.detail
    assert planned([], CHAIN).allocated_bytes == 0


@pytest.mark.parametrize("requests", [[Request("z", 4, 0, 1)], [Request("a", 4, 2, 1)], [Request("a", 4, 0, 1), Request("a", 4, 0, 1)]])
def test_requests_that_make_no_sense_are_our_fault(requests: list[Request]) -> None:
    with pytest.raises(InternalError, match="shared-memory request"):
        plan_shared(requests, CHAIN)
