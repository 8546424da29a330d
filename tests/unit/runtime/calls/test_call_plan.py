"""Work of a call as data: slots, arena, allocation and release."""
from __future__ import annotations

import dataclasses

import pytest

from tests.unit.runtime.handmade import host_kernel, value
from tilefuse.base.errors import InternalError
from tilefuse.runtime.calls.call_plan import WAITING_BYTES, plan_calls, root_of
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec, Value
from tilefuse.target.launch import Parameter

COUNT = 1 << 19  # two mebibytes of f32: "large" for the memory plan
SHAPE = (COUNT,)


def chain(length: int, shape: tuple[int, ...] = (4, 32)) -> ProgramSpec:
    """x -> t0 -> t1 ... -> y, one kernel each."""
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    roles = ["input", *(["intermediate"] * (length - 1)), "result"]
    steps = tuple(KernelStep(0, (a, b)) for a, b in zip(names, names[1:]))
    values = tuple(value(n, r, shape) for n, r in zip(names, roles))
    return ProgramSpec("chain", "host", ("x",), ("y",), values, (host_kernel("k", "a[i]", count=values[0].shape[0]),), steps)


def test_intermediates_of_a_chain_share_the_arena() -> None:
    plan = plan_calls(chain(6))
    assert plan.memory.arena_bytes == 2 * 512
    assert plan.num_slots == 12 and [len(plan.slots_by_root[n]) for n in ("x", "y")] == [1, 1]
    assert plan.allocate_before == ((), (), (), (), (), ("y",), ())


def test_peak_is_not_above_allocating_one_by_one() -> None:
    """Large intermediates around a large library result: the arena would be held too long, so they are tensors of their own."""
    roles = {"x": "input", "t": "intermediate", "u": "intermediate", "m": "intermediate", "n": "intermediate", "y": "result"}
    values = tuple(value(name, role, SHAPE) for name, role in roles.items())
    steps = (KernelStep(0, ("x", "t")), KernelStep(0, ("t", "u")), KernelStep(0, ("u", "t")), KernelStep(0, ("x", "m")),
             LibraryStep("f", ("m",), ("n",)), LibraryStep("f", ("n",), ("y",)))
    plan = plan_calls(ProgramSpec("p", "host", ("x",), ("y",), values, (host_kernel("k", "a[i]", COUNT),), steps))
    assert plan.memory.arena_bytes == 0 and plan.memory.peak_bytes == 2 * 4 * COUNT
    assert plan.release_after[2] == ("t", "u") and plan.release_after[4] == ("m",)


def test_view_of_a_view_has_the_sum_of_offsets() -> None:
    values = {"b": value("b", "input", (8, 8)), "v": value("v", "view", (4, 8), (8, 1), base="b", offset=8),
              "w": value("w", "view", (8,), (1,), base="v", offset=3)}
    assert root_of(values["w"], values) == ("b", 44)


def test_counters_of_all_kernels_share_memory_and_workspace_dies_with_its_step() -> None:
    kernel = dataclasses.replace(host_kernel("k", "a[i]"), parameters=(
        Parameter("x", "f32", 128, "in"), Parameter("w", "f32", 1000, "workspace"), Parameter("c", "u32", 4, "counter"),
        Parameter("d", "u32", 4, "counter"), Parameter("y", "f32", 128, "out")))
    steps = (KernelStep(0, ("x", "", "", "", "t0")), KernelStep(0, ("t0", "", "", "", "y")))
    spec = dataclasses.replace(chain(2), kernels=(kernel,), steps=steps)
    plan = plan_calls(spec)
    assert plan.memory.counter_bytes == 512 and [s.offset_bytes for s in plan.counter_slots] == [0, 256, 0, 256]
    assert plan.memory.arena_bytes == 4096 + 512


@pytest.mark.parametrize(("change", "said"), [
    ({"steps": (KernelStep(0, ("x", "nowhere")),)}, "unknown value 'nowhere'"),
    ({"steps": (KernelStep(0, ("x",)),)}, "takes 2 arguments"),
    ({"steps": (KernelStep(0, ("x", "")),)}, "no value for parameter y"),
    ({"steps": ()}, "reads y, which no step writes"),
    ({"steps": (CopyStep("t0", "y"),)}, "reads t0, which no step writes"),
])
def test_spec_that_contradicts_itself(change: dict[str, object], said: str) -> None:
    with pytest.raises(InternalError, match=said):
        plan_calls(dataclasses.replace(chain(2), **change))  # type: ignore[arg-type]


def test_argument_of_another_dtype_is_refused() -> None:
    spec = chain(2)
    values = tuple(dataclasses.replace(v, dtype="f16") if v.name == "t0" else v for v in spec.values)
    with pytest.raises(InternalError, match="parameter y is f32, value t0 is f16"):
        plan_calls(dataclasses.replace(spec, values=values))


def test_view_cycle_is_refused() -> None:
    values: dict[str, Value] = {"a": value("a", "view", base="b"), "b": value("b", "view", base="a")}
    with pytest.raises(InternalError, match="view of itself"):
        root_of(values["a"], values)


def test_inputs_that_nothing_needs_any_more_are_let_go_together() -> None:
    """Values of a quarter of what may wait: every fourth step releases, and the last step none."""
    count = WAITING_BYTES // 16
    values = (*(value(f"x{n}", "input", (count,)) for n in range(10)), *(value(f"y{n}", "result", (count,)) for n in range(10)))
    steps = tuple(KernelStep(0, (f"x{n}", f"y{n}")) for n in range(10))
    spec = ProgramSpec("p", "host", tuple(f"x{n}" for n in range(10)), tuple(f"y{n}" for n in range(10)), values,
                       (host_kernel("k", "a[i]", count),), steps)
    assert not any(plan_calls(spec).release_after)
    plan = plan_calls(dataclasses.replace(spec, given_up=spec.inputs))
    assert {n: names for n, names in enumerate(plan.release_after) if names} == {3: ("x0", "x1", "x2", "x3"), 7: ("x4", "x5", "x6", "x7")}


def kept_and_partial(given_up: tuple[str, ...]) -> ProgramSpec:
    """Twelve steps, each of which reads a value of 32 MiB that was kept and adds a partial sum of 512 KiB, which the last step reads."""
    kept, small = (1 << 23,), (1 << 17,)
    values = (*(value(f"x{n}", "input", kept) for n in range(12)), *(value(f"p{n}", "intermediate", small) for n in range(12)),
              value("y", "result", small))
    first = last = host_kernel("k", "a[i]", small[0])
    first = dataclasses.replace(first, parameters=(Parameter("x", "f32", kept[0], "in"), *first.parameters[1:]))
    last = dataclasses.replace(last, parameters=(*(Parameter(f"p{n}", "f32", small[0], "in") for n in range(12)), *last.parameters[1:]))
    steps = (*(KernelStep(0, (f"x{n}", f"p{n}")) for n in range(12)), KernelStep(1, (*(f"p{n}" for n in range(12)), "y")))
    return ProgramSpec("p", "host", tuple(f"x{n}" for n in range(12)), ("y",), values, (first, last), steps, given_up=given_up)


def test_no_arena_is_held_while_what_was_kept_still_fills_the_memory() -> None:
    names = tuple(f"x{n}" for n in range(12))
    held, freed = plan_calls(kept_and_partial(())), plan_calls(kept_and_partial(names))
    assert held.memory.arena_bytes == 12 << 19 and freed.memory.arena_bytes == 0
    assert freed.allocate_before[5] == ("p5",) and freed.release_after[5] == ("x5",)
