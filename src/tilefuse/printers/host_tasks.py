"""Prints kernels of tasks for the host: one loop over all tasks, in their order or in another one that their waits allow.

Waits are proved to end before a kernel is printed. The host still tests each: another order may be illegal.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilefuse.kernel.expression import IndexScope
from tilefuse.kernel.ir import Group, Kernel, Stmt
from tilefuse.kernel.operand_table import constant_table
from tilefuse.kernel.tasks.order import OWN_COUNTERS, RECORD_FIELDS, TaskOrder, records_symbol
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tasks.tables import find_task, member_numbers, task_tables
from tilefuse.kernel.visit import index_names
from tilefuse.kernel.writer import Writer, comment_text


class TaskBlocks(Protocol):
    """The host printer of one kernel, as tasks use it."""

    kernel: Kernel
    out: Writer
    scope: IndexScope
    direct: bool
    scratch_bytes: int
    task_order: Sequence[int] | None

    def group_lines(self, group: Group) -> list[str]:
        """Lines of one task of a group."""

    def task_memory(self) -> None:
        """Prints memory that lives as long as the loop over the tasks."""

    def operands(self, group: Group, first: int) -> None:
        """Prints the current member's operands."""

    def shared_pointers(self, base: str) -> None:
        """Prints the typed pointers of the block's shared buffers."""

    def begin_group(self) -> None:
        """Prints the start of a task."""

    def end_group(self) -> None:
        """Prints the end of a task."""


def task_parameters(p: TaskBlocks) -> None:
    """Prints the tables of operands and numbers, and the order of tasks where it is another than the kernel's."""
    task_tables(p.kernel, f"static const {p.scope.index_type}", p.out)
    if p.task_order is not None:
        constant_table("tf_order", "static const int", p.task_order, p.out)


def declare_records(p: TaskBlocks) -> None:
    """Prints the array of the tasks' records, before the entry point."""
    order = p.kernel.tasks
    if order is not None and order.recorded:
        symbol = f"{records_symbol(p.kernel.name)}[{RECORD_FIELDS * order.num_tasks}]"
        p.out.line(f'extern "C" unsigned long long {symbol};')
        p.out.line(f"unsigned long long {symbol};")


def task_loop(p: TaskBlocks) -> None:
    """Prints the loop over the tasks."""
    order, out, index = _order(p.kernel), p.out, p.scope.index_type
    before = most = p.scratch_bytes
    bodies = []
    for group in p.kernel.groups:
        bodies.append(p.group_lines(group))
        most = max(most, p.scratch_bytes)
        p.scratch_bytes = before
    with out.block(""):
        out.line(f"const tf_scratch scratch({most or 128});")
        p.task_memory()
        with out.block(f"for ({index} tf_turn_of = 0; tf_turn_of < {order.num_tasks}; ++tf_turn_of)"):
            out.line(f"const {index} tf_number = {'tf_turn_of' if p.task_order is None else 'tf_order[tf_turn_of]'};")
            if order.recorded:
                out.line(f"{records_symbol(p.kernel.name)}[{RECORD_FIELDS} * tf_number] = tf_now_ns();")
            find_task(p.kernel, index, out)
            for number, (group, lines) in enumerate(zip(p.kernel.groups, bodies, strict=True)):
                with out.block(f"if (tf_body == {number})"):
                    _task(p, group, lines)
            if order.recorded:
                out.line(f"{records_symbol(p.kernel.name)}[{RECORD_FIELDS} * tf_number + 1] = tf_now_ns();")


def _task(p: TaskBlocks, group: Group, lines: list[str]) -> None:
    out, index = p.out, p.scope.index_type
    out.comment(comment_text(_order(p.kernel).names[p.kernel.groups.index(group)]))
    for name, text in member_numbers(p.kernel, group):
        out.line(f"const {index} {name} = {text};")
    p.operands(group, 0)
    used = index_names(group.body)
    for name in sorted(used & ({"thread", "rank"} if p.direct else {"rank"})):
        out.line(f"const {index} {name} = 0;")
    p.shared_pointers("scratch.memory")
    p.begin_group()
    out.lines += ["  " * out.depth + text if text else "" for text in lines]
    p.end_group()


def await_lines(p: TaskBlocks, s: Await) -> None:
    """Prints the test that a task's wait has ended."""
    text, order = p.scope.text, _order(p.kernel)
    name = '"' + comment_text(order.names[_group_of(p.kernel, s)]).replace('"', "'") + '"'
    with p.out.block(f"if (!tf_reached(tf_counters + {p.scope.operand(s.index)}, {text(s.count)}, {text(s.value)}))"):
        p.out.line(f"return tf_stuck(report, report_size, {name}, tf_number, {text(s.index)} - {OWN_COUNTERS}, {text(s.value)});")


def publish_line(p: TaskBlocks, s: Publish) -> None:
    """Prints the publication of a task."""
    p.out.line(f"++tf_counters[{p.scope.text(s.index)}];")


def declare_counters(p: TaskBlocks) -> None:
    """Prints the pointer to the counters, and their reset: an earlier call may have ended in the middle."""
    number = [b.name for b in p.kernel.parameters].index(_order(p.kernel).counters)
    p.out.line(f"unsigned int* const tf_counters = static_cast<unsigned int*>(arguments[{number}]);")
    counters_to_zero(p)


def counters_to_zero(p: TaskBlocks) -> None:
    """Prints the reset of the counters."""
    p.out.line(f"std::memset(tf_counters, 0, {_order(p.kernel).counter_words} * sizeof(unsigned int));")


def _group_of(kernel: Kernel, s: Stmt) -> int:
    return next(n for n, g in enumerate(kernel.groups) if any(x is s for x in g.body))


def _order(kernel: Kernel) -> TaskOrder:
    assert kernel.tasks is not None, "a kernel of tasks"
    return kernel.tasks
