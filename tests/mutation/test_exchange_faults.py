"""Plants faults in exchanges between the blocks of a cluster inside a pipeline: each is found by the rule that it breaks."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.row_cases import RowCase
from tests.unit.templates.staged.pipelined.row_graphs import activated_norm
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.kernel.ir import Barrier, ClusterStore, Kernel, Let, Shuffle, Stmt
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined

pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]

# One cluster of two blocks takes three tiles of rows, so that both copies of the exchange are used, one of them twice.
CASE = RowCase(lambda: activated_norm(130, 70, 8), Pipelined(64, 64, 64, 2, 1, 1, 2, cluster=2), amplified=16)


def _exchange(make: Callable[[Barrier], tuple[Stmt, ...]]) -> Callable[[Kernel], Kernel]:
    """Changes the barriers that wait for signalled stores."""
    def mutant(kernel: Kernel) -> Kernel:
        return replace(kernel, body=changed(kernel.body, lambda s: make(s) if isinstance(s, Barrier) and s.signal is not None else None))
    return mutant


def _sends(make: Callable[[ClusterStore], tuple[Stmt, ...]], last: int = 0) -> Callable[[Kernel], Kernel]:
    """Changes the signalled stores, or the last ones."""
    def mutant(kernel: Kernel) -> Kernel:
        sends = [s for s in statements(kernel.body) if isinstance(s, ClusterStore)][-last:]
        return replace(kernel, body=changed(kernel.body, lambda s: make(s) if isinstance(s, ClusterStore) and s in sends else None))
    return mutant


def _without_meeting(kernel: Kernel) -> Kernel:
    return replace(kernel, body=tuple(s for s in kernel.body if not isinstance(s, Barrier)))


def _other_phase(s: Barrier) -> tuple[Stmt, ...]:
    assert s.phase is not None
    return (replace(s, phase=number(1) - s.phase),)


def _one_copy(kernel: Kernel) -> Kernel:
    """Every tile uses the first copy, and its barrier in the phase of the tile."""
    def at_first(s: Stmt) -> tuple[Stmt, ...] | None:
        if not isinstance(s, Let) or s.name not in ("copy", "phase"):
            return None
        turn, = s.value.axes()
        return (replace(s, value=number(0) if s.name == "copy" else axis(turn) % 2),)
    return replace(kernel, body=changed(kernel.body, at_first))


def _one_copy_a_group(kernel: Kernel) -> Kernel:
    """Every tile of a warpgroup uses its first copy, and its barrier in the phase of the tile."""
    def at_first(s: Stmt) -> tuple[Stmt, ...] | None:
        if not isinstance(s, Let) or s.name not in ("copy", "phase"):
            return None
        group, turn = axis("group"), axis("turn")
        return (replace(s, value=group * 2 if s.name == "copy" else turn % 2),)
    return replace(kernel, body=changed(kernel.body, at_first))


FAULTS: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "fewer bytes": (_exchange(lambda s: (replace(s, num_bytes=s.num_bytes - 4),)), "bytes of an exchange are not those that are sent"),
    "a store that is not sent": (_sends(lambda s: (), 1), "bytes of an exchange are not those that are sent"),
    "a store too many": (_sends(lambda s: (s, s), 1), "bytes of an exchange are not those that are sent"),
    "no wait": (_exchange(lambda s: ()), "race, read and write"),
    "the other phase": (_exchange(_other_phase), "exchange in a phase that is not the barrier's next"),
    "another barrier": (_sends(lambda s: (replace(s, signal=number(7)),)), "no such transaction barrier"),
    "to a block that is none": (_sends(lambda s: (replace(s, rank=s.rank + 2),)), "no such rank in the cluster"),
    "blocks have not met": (_without_meeting, "shared memory of another block used before the first cluster barrier"),
    "one copy for all tiles": (_one_copy, "race, read and write"),
    "no shuffle": (lambda k: replace(k, body=changed(k.body, lambda s: () if isinstance(s, Shuffle) else None)),
                   "read of an unset register"),
}


# Warpgroups that take turns, each with exchanges of its own: five tiles of rows, three of them the first one's.
IN_TURN = RowCase(lambda: activated_norm(300, 70, 8), Pipelined(64, 64, 64, 2, 2, 1, 2, True, 2), amplified=16)


def _of_all_threads(s: Barrier) -> tuple[Stmt, ...]:
    return (replace(s, signal=number(0)),)


FAULTS_IN_TURN: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "one copy for all tiles": (_one_copy_a_group, "race, read and write"),
    "the other warpgroup's barrier": (_exchange(_of_all_threads), "bytes of an exchange are not those that are sent"),
    "the other phase": (_exchange(_other_phase), "exchange in a phase that is not the barrier's next"),
}


# The same in scattered clusters, which meet at counters in global memory.
SCATTERED = replace(IN_TURN, wanted=Pipelined(64, 64, 64, 2, 2, 1, 4, True, 2, scattered=True))


def _meetings(make: Callable[[Barrier], tuple[Stmt, ...]]) -> Callable[[Kernel], Kernel]:
    """Changes the barriers at counters."""
    def mutant(kernel: Kernel) -> Kernel:
        return replace(kernel, body=changed(kernel.body, lambda s: make(s) if isinstance(s, Barrier) and s.counter else None))
    return mutant


def _at(s: Barrier, moved: Callable[[Affine], Affine]) -> tuple[Stmt, ...]:
    assert s.index is not None
    return (replace(s, index=moved(s.index)),)


FAULTS_SCATTERED: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "no meeting": (_meetings(lambda s: ()), "race, read and write"),
    "of a block alone": (_meetings(lambda s: (replace(s, scope="block", counter="", index=None),)), "race, read and write"),
    "one copy for all tiles": (_one_copy_a_group, "counter used again before another meeting of its team"),
    "one counter for all clusters": (_meetings(lambda s: _at(s, lambda i: i % 4)), "counter of a meeting is another team's"),
    "a counter that is none": (_meetings(lambda s: _at(s, lambda i: i + 100)), "no such counter"),
}


@pytest.mark.parametrize(("case", "faults"), [(CASE, FAULTS), (IN_TURN, FAULTS_IN_TURN), (SCATTERED, FAULTS_SCATTERED)],
                         ids=["together", "in turn", "scattered"])
def test_findings_name_the_fault(case: RowCase, faults: dict[str, tuple[Callable[[Kernel], Kernel], str]], tmp_path: Path) -> None:
    """Faults of order and of counts are found also where the host's result happens to be right."""
    kernel = compose_product(case.program(), H200)
    kernels = [kernel, *(change(kernel) for change, _ in faults.values())]
    library = build_together([(k, True) for k in kernels], tmp_path, CHECKED_FLAGS)
    inputs = case.inputs(case.program().graph)
    arrays = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    for n, (name, message) in enumerate([("none", ""), *((name, message) for name, (_, message) in faults.items())]):
        _, status, report = call(getattr(library, f"{kernel.name}_{n}"), kernels[n], arrays)
        assert (status > 0) == bool(message) and message in report, (name, report)
