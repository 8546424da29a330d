"""Every workload's small version: one step runs, changes what it should, and is judged against double precision."""
from __future__ import annotations

import pytest
import torch

from benchmarks import workloads
from benchmarks.launches import Launches
from benchmarks.workload import error_of, graph_size, joint_error, pattern_counts, pattern_times, shared_facts
from benchmarks.workloads import WORKLOADS, Workload, batch_as, by_name, name_of, state_on

CPU = torch.device("cpu")


def test_there_are_ten_with_names_of_their_own() -> None:
    """The cases that the command line lists are the table's rows."""
    names = [c["name"] for c in workloads.listed()]
    assert len(set(names)) == len(WORKLOADS) == 10
    assert all(name_of(by_name(name)) == name for name in names)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_a_step_runs_and_is_right(workload: Workload) -> None:
    """Eager in single precision agrees with double; training changes every group of its state, inference none."""
    torch.manual_seed(3)
    task = workload.make(True)
    fresh = task.state()
    batch = batch_as(task.batch(CPU, torch.Generator().manual_seed(3)), torch.float32)
    state = state_on(fresh, CPU, torch.float32)
    outputs = task.step(state, *batch)
    assert error_of(task, fresh, batch, outputs, state) < 1e-3
    changed = [any(not torch.equal(a, b) for a, b in zip(group, new)) for group, new in zip(fresh, state)]
    assert all(changed) if workload.name != "nmt" else not any(changed)
    assert graph_size(task, state_on(fresh, CPU, torch.float32), batch) > 10


def test_a_wrong_update_is_seen() -> None:
    """A state that did not change, or a loss that is off, is a large error."""
    task = by_name("logistic/training/f32").make(True)
    fresh = task.state()
    batch = task.batch(CPU, torch.Generator().manual_seed(1))
    state = state_on(fresh, CPU, torch.float32)
    outputs = task.step(state, *batch)
    assert error_of(task, fresh, batch, outputs, state_on(fresh, CPU, torch.float32)) == pytest.approx(1.0)
    assert error_of(task, fresh, batch, (outputs[0] * 1.5,), state) == pytest.approx(0.5, rel=1e-3)


def test_a_token_that_is_not_the_best_is_seen() -> None:
    """The translator's choices are judged by their logits."""
    task = by_name("nmt/inference/f16").make(True)
    fresh = task.state()
    batch = task.batch(CPU, torch.Generator().manual_seed(1))
    tokens, logits = task.step(fresh, *batch)
    assert error_of(task, fresh, batch, (tokens, logits), fresh) < 1e-3
    worst = tokens.clone()
    worst[:, -1] = logits[:, -1].argmin(-1)
    assert error_of(task, fresh, batch, (worst, logits), fresh) > 0.01


def test_joint_error() -> None:
    """Over all tensors together; absolute where nothing is wanted; infinite for what is not a number."""
    one, zero = torch.ones(4), torch.zeros(4)
    assert joint_error([one * 1.1, zero], [one, zero]) == pytest.approx(0.1, rel=1e-5)
    assert joint_error([one], [zero]) == pytest.approx(2.0)
    assert joint_error([one * float("nan")], [one]) == float("inf")


def test_figures_of_kernels() -> None:
    """Classes and shared memory are counted over kernels, times over what ran."""
    kernels = [{"category": "product", "launch": {"shared_bytes": 4096, "shared_requested_bytes": 8192}},
               {"category": "reduction", "launch": {"shared_bytes": 1024}}, {"category": "elementwise", "launch": {"shared_bytes": 0}},
               {"category": "elementwise", "launch": {"shared_bytes": 0}}]
    assert pattern_counts(kernels) == {"elementwise": 2, "reduction": 1, "product": 1}
    assert shared_facts(kernels) == {"share": 0.5, "average_bytes": 2560, "largest_bytes": 4096, "allocated_of_requested": 0.5}
    ran = [Launches("k_a", 1, 6.0, "memory"), Launches("k_b", 2, 2.0, "memory"), Launches("cublas", 1, 9.0, "product")]
    found = pattern_times(ran, {"k_a": "reduction", "k_b": "elementwise"}, {"k_a": 64, "k_b": 0})
    assert found == {"pattern_us": {"elementwise": 2.0, "reduction": 6.0, "product": 0.0}, "shared_time_share": 0.75}
    assert pattern_times(None, {}, {}) == {}
