"""Plants faults in packed kernels: in their tables, in the operands of members, and in the bounds of the flat walk."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.packed_graphs import side_by_side, total, update
from tests.unit.templates.pattern_graphs import Pattern, row_sum
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.ir import Buffer, For, Group, If, Kernel, Member, Stmt
from tilefuse.target.device import H200
from tilefuse.templates import schedule_pattern
from tilefuse.templates.compose import compose

PATTERNS = {
    "sizes": side_by_side([update(700), update(3, 5), update(9)], shared=("rate",)),
    "kinds": side_by_side([row_sum(7, 300), row_sum(7, 300), update(33), update(90), total(9000), total(9000)]),
}
pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]


def kernel_of(pattern: Pattern) -> Kernel:
    program = schedule_pattern(pattern.graph, [n.name for n in pattern.graph.nodes], {}, H200, packing=True)
    assert isinstance(program, TileProgram)
    return compose(program, H200)


def with_group(kernel: Kernel, number: int, group: Group) -> Kernel:
    return replace(kernel, body=tuple(group if n == number else g for n, g in enumerate(kernel.groups)))


def with_member(group: Group, number: int, member: Member) -> Group:
    return replace(group, members=tuple(member if n == number else m for n, m in enumerate(group.members)))


def mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """(what was changed, the changed kernel)."""
    sizes = {b.name: b for b in kernel.parameters}
    for n, group in enumerate(kernel.groups):
        for k, member in enumerate(group.members):
            what = f"member {k} of group {n}"
            if member.num_blocks > 1:
                shorter = with_member(group, k, replace(member, num_blocks=member.num_blocks - 1))
                yield f"{what}: a block less", with_group(kernel, n, shorter)
            for j, value in enumerate(member.numbers):
                for other in (value - 1, value + 1):
                    if other >= 0:
                        numbers = (*member.numbers[:j], other, *member.numbers[j + 1:])
                        changed = with_member(group, k, replace(member, numbers=numbers))
                        yield f"{what}: number {j} is {other}", with_group(kernel, n, changed)
            following = group.members[(k + 1) % len(group.members)]
            for j, own in enumerate(member.arguments):
                theirs = following.arguments[j]
                # Blocks run one after the other here: that members do not share a counter is tested where they are composed.
                if theirs != own and sizes[own].role != "counter" and not _same(sizes[own], sizes[theirs]):
                    arguments = (*member.arguments[:j], theirs, *member.arguments[j + 1:])
                    changed = with_member(group, k, replace(member, arguments=arguments))
                    yield f"{what}: operand {j} of the next one", with_group(kernel, n, changed)
        # Other templates than the flat walk have their faults planted alone.
        for k, body in enumerate(_without_guards(group.body) if group.numbers else ()):
            yield f"group {n}: guard {k} dropped", with_group(kernel, n, replace(group, body=body))


def _same(a: Buffer, b: Buffer) -> bool:
    """Whether two parameters are the same value: nothing would change."""
    return a.origin == b.origin and a.role in ("in", "inout")


def _without_guards(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    """The body without one of its outermost guards, or without one of several bounds of one."""
    for n, s in enumerate(body):
        if isinstance(s, If):
            yield (*body[:n], *s.body, *body[n + 1:])
            if len(s.bounds) > 1:
                for k in range(len(s.bounds)):
                    fewer = replace(s, bounds=s.bounds[:k] + s.bounds[k + 1:])
                    yield (*body[:n], fewer, *body[n + 1:])
        if isinstance(s, For):
            for inner in _without_guards(s.body):
                yield (*body[:n], replace(s, body=inner), *body[n + 1:])


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_every_planted_fault_shows(name: str, tmp_path: Path) -> None:
    """No mutant passes the checking mode and gives the right results; the unchanged kernel does."""
    pattern = PATTERNS[name]
    kernel = kernel_of(pattern)
    listed = [("unchanged", kernel), *mutants(kernel)]
    library = build_together([(k, True) for _, k in listed], tmp_path, SHORT_CHECKED_FLAGS)
    values = pattern.inputs(np.random.default_rng(11))
    wanted = interpret(pattern.graph, values)
    buffers = {b.name: values[b.origin].reshape(-1) for b in kernel.parameters if b.role == "in"}
    outputs = {b.origin: b.name for b in kernel.parameters if b.role == "out"}
    silent = []
    for n, (what, mutant) in enumerate(listed):
        memory, status, _ = call(getattr(library, f"{kernel.name}_{n}"), mutant, buffers)
        right = status == 0 and all(np.array_equal(memory[outputs[r]].reshape(w.shape), w)
                                    for r, w in zip(pattern.graph.results, wanted, strict=True))
        if right:
            silent.append(what)
    assert silent == ["unchanged"]
    assert len(listed) > 20
