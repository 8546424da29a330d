"""Kernels of tasks on the host executor: right results in their own and in random legal orders; planted faults are found twice."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.unit.templates.host_build import compiler
from tests.unit.templates.tasks.task_runs import MODELS, largest_error, legal_order, run_case, task_case
from tilefuse.base.errors import InternalError
from tilefuse.kernel.asynchronous import Prefetch
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.tasks.extract import TASK, program_of, stretches, value
from tilefuse.kernel.tasks.proof import prove
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tasks.tables import changed_slots
from tilefuse.kernel.visit import parts
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Sums of up to 176 products of numbers around 1, in f32, of four layers.
TOLERANCE = 2e-5


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_checked_in_order(name: str, tmp_path: Path) -> None:
    """One kernel for the whole model, every access checked, its counters zero again."""
    case = task_case(name)
    assert len(case.kernels) == 1 and case.kernels[0].tasks is not None
    results, reports = run_case(case, case.kernels, tmp_path, check=True)
    assert not reports and largest_error(results, case.expected) < TOLERANCE


@needs_compiler
@pytest.mark.parametrize("seed", range(2))
def test_checked_in_random_legal_orders(seed: int, tmp_path: Path) -> None:
    """No order that the waits allow changes a result, or is a race."""
    case = task_case("recurrence")
    order = legal_order(case.kernels[0], Random(seed))
    assert sorted(order) == list(range(len(order))) != order
    results, reports = run_case(case, case.kernels, tmp_path, check=True, orders=[order])
    assert not reports and largest_error(results, case.expected) < TOLERANCE


def with_fault(kernel: Kernel, fault: str) -> Kernel:
    """The kernel with a fault in its waits. The second group has waits of all kinds of places in the order."""
    group = kernel.groups[1]
    names = [n for n, _ in group.numbers]
    match fault:
        case "dropped publish":
            group = kernel.groups[0]
            changed = replace(group, body=tuple(s for s in group.body if not isinstance(s, Publish)))
        case "dropped wait":
            changed = replace(group, body=tuple(s for s in group.body if not isinstance(s, Await)))
        case "count one too low":
            place = names.index("tf_tasks_0")
            members = tuple(replace(m, numbers=(*m.numbers[:place], max(m.numbers[place] - 1, 0), *m.numbers[place + 1:]))
                            for m in group.members)
            changed = replace(group, members=members)
        case "swapped order":
            assert kernel.tasks is not None
            first, second, *others = kernel.tasks.segments
            return replace(kernel, tasks=replace(kernel.tasks, segments=(second, first, *others)))
    return replace(kernel, body=tuple(changed if s is group else s for s in kernel.body))


FAULTS = {"dropped publish": "endless wait", "dropped wait": "unordered", "count one too low": "unordered", "swapped order": "endless wait"}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["decode", "chain"])
def test_the_proof_finds_planted_faults(name: str, fault: str) -> None:
    """In the kernel IR as it would be printed."""
    kernel = task_case(name).kernels[0]
    assert prove(program_of(kernel)) == []
    assert FAULTS[fault] in {f.rule for f in prove(program_of(with_fault(kernel, fault)))}


@needs_compiler
@pytest.mark.parametrize(("fault", "told"), [("dropped wait", "race"), ("count one too low", "race"),
                                             ("dropped publish", "wait for tasks that are not before it")])
def test_the_checker_finds_planted_faults(fault: str, told: str, tmp_path: Path) -> None:
    """Also when the tasks run one after the other."""
    case = task_case("chain")
    _, reports = run_case(case, [with_fault(case.kernels[0], fault)], tmp_path, check=True)
    assert told in "".join(reports)


@needs_compiler
def test_the_host_stops_at_an_endless_wait(tmp_path: Path) -> None:
    """An order that the waits forbid ends the kernel with the names of task and counter; counters that it leaves do no harm."""
    case = task_case("chain")
    kernel = case.kernels[0]
    assert kernel.tasks is not None
    first, last = kernel.tasks.segments[0].num_tasks, kernel.tasks.num_tasks - 1
    _, reports = run_case(case, [kernel], tmp_path, orders=[[*range(first), last, *range(first, last)]])
    assert f"task {last} (" in reports[0] and "waits for counter" in reports[0]
    results, reports = run_case(case, [kernel], tmp_path, counters=7)
    assert not reports and largest_error(results, case.expected) < TOLERANCE


def test_a_wait_behind_an_access_is_refused() -> None:
    """The order of a body's statements is part of the proof."""
    kernel = task_case("chain").kernels[0]
    group = kernel.groups[1]
    turned = replace(group, body=(*(s for s in group.body if not isinstance(s, Await)), *(s for s in group.body if isinstance(s, Await))))
    with pytest.raises(InternalError, match="waits behind its first access"):
        program_of(replace(kernel, body=tuple(turned if s is group else s for s in kernel.body)))


def test_weights_are_fetched_before_the_wait() -> None:
    """A product's rows of weights, once each and within the matrix; nothing that another task of the kernel writes."""
    kernel = task_case("chain").kernels[0]
    changed = changed_slots(kernel)
    fetched = {}
    for group in kernel.groups:
        waits = [n for n, s in enumerate(group.body) if isinstance(s, Await)]
        for n, s in enumerate(group.body):
            for p in (p for p in parts(s) if isinstance(p, Prefetch)):
                assert n < waits[0] and p.buffer not in changed
                fetched[p.buffer] = s
    assert fetched, "the products' weights"
    for group in kernel.groups:
        names = {s.name for s in group.slots} & fetched.keys()
        for run in stretches(group, kernel.launch.num_threads, group.members[0].num_blocks, names):
            size = next(s.num_elements for s in group.slots if s.name == run.slot)
            starts = [value(run.start, {TASK: t}) for t in range(group.members[0].num_blocks)]
            assert run.length <= size and max(starts) < size
            if run.start.axes():  # each task its own part: together the whole
                assert starts[0] == 0 and max(starts) + run.length >= size


def test_cuda_text() -> None:
    """Loads of values that other tasks write pass the first-level cache and carry no promise that nobody else writes them."""
    kernel = task_case("chain").kernels[0]
    text = print_cuda(kernel, H200)
    assert "tf_take_task(tf_counters)" in text and "tf_leave_tasks<tf_counter_words>(tf_counters" in text and "red.release.gpu" in text
    assert "ld.acquire.gpu" in text and "tf_vector_load_changed" in text
    for slot in changed_slots(kernel):
        assert f"__restrict__ const {slot} =" not in text
    assert "__restrict__" in text, "weights keep it"
