"""The grid level in plans: off by default, by price, wherever legal; and the reasons where it is not."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.unit.templates.tasks.task_models import NormedChain, Recurrence
from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import Generated, generate_sources
from tilefuse.driver.measure.measure import DiskRecords
from tilefuse.driver.planning import plan_on_device
from tilefuse.plan.pattern import Plan
from tilefuse.plan.price.lone_call import LoneCall
from tilefuse.plan.price.measure import Timing
from tilefuse.plan.text.text import print_plan
from tilefuse.runtime.stores.measurements import Journal
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.registry import kernel_template

FREE = replace(H200, fitted=replace(H200.fitted, tasks=replace(H200.fitted.tasks, wait_us=0.0, task_us=0.0)))
# Waits that cost nothing, and launches that do not pass while the kernel ahead ends.
LATE = replace(FREE, capabilities=replace(FREE.capabilities, early_start=False))


def planned(device: DeviceSpec = H200, model: torch.nn.Module | None = None, width: int = 64, **options: Any) -> Plan:
    """The plan of a chain of three small products with norms."""
    torch.manual_seed(0)
    with torch.no_grad():
        return generate_sources(model or NormedChain(3), (torch.randn(1, width),), device=device, plan_cache=False, **options).plan


def steps(device: DeviceSpec, width: int = 48, **options: Any) -> Generated:
    """The plan and kernels of three steps of an LSTM."""
    torch.manual_seed(0)
    with torch.no_grad():
        given = (torch.randn(3, 1, width), torch.randn(1, width), torch.randn(1, width))
        return generate_sources(Recurrence(3, width), given, device=device, plan_cache=False, **options)


def generators(plan: Plan) -> list[str]:
    """Generators of the plan's kernels, those of tasks and others."""
    return ["tasks" if k.generator == "tasks" else "" for k in plan.kernels]


def reasons(plan: Plan) -> list[str]:
    """Reasons of refused merges that speak of tasks or stages."""
    return [f"{r.rejected.reason.value}: {r.rejected.detail}" for r in plan.rejected]


def test_off_is_the_default() -> None:
    """No plan changes unless the option asks for it."""
    plan = planned()
    assert generators(plan) == [""] * 3 and plan.objective_us == planned(grid_level="off").objective_us


def test_price_decides() -> None:
    """Waits that cost nothing make one kernel where launches do not pass early, and the plan is the faster by them; dear ones do not."""
    plan, off = steps(LATE, grid_level="priced").plan, steps(LATE).plan
    assert generators(plan) == ["tasks"] and plan.objective_us < off.objective_us
    dear = replace(H200, fitted=replace(H200.fitted, tasks=replace(H200.fitted.tasks, wait_us=50.0)))
    assert generators(planned(dear, grid_level="priced")) == [""] * 3
    assert generators(planned(dear, grid_level="always")) == ["tasks"]


def test_the_kernel_explains_itself() -> None:
    """Stages, tasks, counters and the critical path are parameters of the kernel; values between stages are at the grid level."""
    kernel = planned(grid_level="always").kernels[0]
    parameters = dict(kernel.program.parameters)
    assert parameters["stages"] == 3 and parameters["counters"] == 2 and str(parameters["critical path"]).startswith("3 stages")
    assert "awaits 0" in str(parameters["stage 1"])
    assert [e.level.value for e in kernel.levels].count("grid") >= 2


@pytest.mark.parametrize(("device", "reason"), [
    (replace(H200, registers_per_multiprocessor=1 << 10), "registers: no block of"),
    (replace(H200, memory_bytes=128), "memory: "),
])
def test_a_device_too_small(device: DeviceSpec, reason: str) -> None:
    """The plan goes without the level, and says why."""
    plan = planned(device, grid_level="always")
    assert "tasks" not in generators(plan) and any(r.startswith(reason) for r in reasons(plan)), reasons(plan)


def test_blocks_that_must_fit_a_multiprocessor() -> None:
    """The option bounds registers and decides how many blocks take tasks; more than fit are no kernel of tasks."""
    one, two = (steps(H200, 1024, grid_level="always", task_blocks=n) for n in (1, 2))
    for n, made in ((1, one), (2, two)):
        code = next(c for c in made.spec.kernels if "tf_take_task" in c.source)
        assert f", {n})" in code.source.partition("__launch_bounds__")[2][:12]
        assert code.launch.num_blocks <= n * H200.num_multiprocessors
    assert two.plan.kernels[0].program.launch.num_blocks > one.plan.kernels[0].program.launch.num_blocks


class Scatters(torch.nn.Module):
    """Rows added up at indices, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([3, 1, 3]))
        self.register_buffer("first", torch.randn(4, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: [1, 64] -> [4, 64]"""
        once = self.first.index_add(0, self.places, x.expand(3, 64))
        return self.first.index_add(0, self.places, once[:3])


def test_kernels_that_are_no_tasks_say_why() -> None:
    """Where none of them can be a task, no run of kernels is there to say it of: the reason was lost."""
    plan = planned(grid_level="always", model=Scatters())
    assert "tasks" not in generators(plan) and len(plan.kernels) > 1
    assert sum("is a scatter" in r for r in reasons(plan)) == len(plan.kernels) - 1


def test_rows_of_persistent_blocks_become_tasks_by_other_blocks() -> None:
    """Products of one row fetch their weights in persistent blocks, which fill the device; as tasks their blocks end with their rows."""
    plan = planned(grid_level="always", model=NormedChain(3, 1024), width=1024)
    alone = planned(model=NormedChain(3, 1024), width=1024)
    assert any(kernel_template(k.program.choice).part_refusal(k.program) is not None for k in alone.kernels)
    assert generators(plan) == ["tasks"]


def test_a_written_plan_has_no_tasks() -> None:
    """The text of such a plan is for reading; following it is refused with the way out."""
    text = print_plan(planned(grid_level="always"))
    assert " by tasks cost" in text
    with pytest.raises(UserError, match="consists of tasks"):
        planned(plan=text)


class Sorted(torch.nn.Module):
    """Maps with a library call in between."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(torch.exp(x), -1)
        return torch.softmax(torch.tanh(torch.sort(y).values), -1)


def test_library_calls_end_a_run() -> None:
    """A call of the library stays one, with kernels before and behind it."""
    plan = planned(model=Sorted(), grid_level="always")
    assert len(plan.library_calls) == 1
    assert any("is a call of" in r for r in reasons(plan)) or len(plan.kernels) <= 2


class Watch:
    """Measures by a rule: a kernel of tasks takes `tasks_us`, every other one 1 us."""

    def __init__(self, tasks_us: float) -> None:
        self.tasks_us = tasks_us
        self.num_tasks = 0

    def prepare(self, programs: Sequence[TileProgram]) -> None:
        """Nothing is compiled."""

    def measure(self, program: TileProgram) -> Timing:
        """Its time by the rule."""
        self.num_tasks += program.template == "tasks"
        return Timing(self.tasks_us if program.template == "tasks" else 1.0, 0.01, 11)

    def measure_call(self, call: LoneCall) -> Timing:
        """A library call takes longer than any kernel here."""
        return Timing(100.0, 0.01, 11)


@pytest.mark.parametrize(("tasks_us", "expected"), [(2.5, ["tasks"]), (3.5, [""] * 3)])
def test_measured_times_decide(tasks_us: float, expected: list[str]) -> None:
    """By prediction the level gains. Its kernel and the three that it stands for are timed, and the faster plan stays."""
    watch = Watch(tasks_us)
    options = Options(grid_level="priced")
    ready = steps(LATE, grid_level="priced").plan
    assert generators(ready) == ["tasks"]
    plan = plan_on_device(ready.graph, ready.layouts, LATE, options, result_layouts={}, layouts={}, measurer=watch,
                          records=DiskRecords(Journal(None)), clock=lambda: 0.0)
    assert generators(plan) == expected and watch.num_tasks == 1
    if not expected[0]:
        told = "one kernel 3.50 us, 3 kernels 3.00 us"
        assert any(note.startswith("replaced after timing") and note.endswith(told) for note in plan.notes)


def test_measured_figures_decide_for_kernels() -> None:
    """The figures of an H200: a launch costs less than a stage here, and the plan says what the level would have taken."""
    plan = planned(grid_level="priced")
    as_tasks = planned(grid_level="always")
    assert generators(plan) == ([""] * 3 if as_tasks.objective_us >= planned().objective_us else ["tasks"])
    assert plan.objective_us <= min(as_tasks.objective_us, planned().objective_us) + 1e-9
