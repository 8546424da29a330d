"""Prints kernels of tasks for CUDA: blocks take the next task, find its body and its operands, wait, run it and publish.

    number = next task
    for (;;) { if there is none, leave; take the next number; find body, member, task; run the body, which awaits and publishes itself }

A block takes the number of its next task before it begins the present one, so that nothing waits for the counter. Its next task is then
higher than its present one, and the lowest task that is not done is either some block's present task or free to be one: waits still end.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilefuse.kernel.expression import ExpressionPrinter, IndexScope
from tilefuse.kernel.ir import Buffer, Group, Kernel, Stmt
from tilefuse.kernel.tasks.order import COUNTER_WORDS, OWN_COUNTERS, RECORD_FIELDS, TaskOrder, records_symbol
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tasks.tables import find_task, member_numbers, operand_number, task_tables
from tilefuse.kernel.writer import Writer, comment_text, identifier
from tilefuse.target.capabilities import WARP


class TaskStatements(Protocol):
    """The CUDA printer of one kernel, as tasks use it."""

    kernel: Kernel
    out: Writer
    scope: IndexScope
    expressions: ExpressionPrinter

    def body(self, body: tuple[Stmt, ...]) -> None:
        """Prints the statements of one scope."""

    def statement(self, s: Stmt) -> None:
        """Prints one statement."""

    def pointer(self, b: Buffer) -> tuple[str, str]:
        """Type of the pointer to a buffer, and its qualifier."""


def task_operands(kernel: Kernel, index_type: str, out: Writer) -> str:
    """Prints the structure of pointers and the tables; returns the kernel's parameter list."""
    with out.block(f"struct {kernel.name}_operands", ";"):
        out.line(f"void* at[{len(kernel.parameters)}];")
    task_tables(kernel, f"__constant__ {index_type}", out)
    out.line(f"constexpr int tf_counter_words = {COUNTER_WORDS};")
    if _order(kernel).limit_ms:
        body_names(_order(kernel), out)
    if _order(kernel).recorded:
        count = RECORD_FIELDS * _order(kernel).num_tasks
        out.line(f'extern "C" __device__ unsigned long long {records_symbol(kernel.name)}[{count}];')
        out.line(f"__device__ unsigned long long {records_symbol(kernel.name)}[{count}];")
    return f"const __grid_constant__ {kernel.name}_operands tf_operands"


def task_loop(p: TaskStatements) -> None:
    """Prints the statements before the tasks, the loop over them, and the end of the block."""
    order, out, kernel = _order(p.kernel), p.out, p.kernel
    for s in kernel.body:
        if not isinstance(s, Group):
            p.statement(s)
    out.line("__shared__ int tf_taken[2];")
    out.line(f"unsigned int* const tf_counters = static_cast<unsigned int*>({_parameter(kernel, order.counters)});")
    out.line("int tf_next = tf_take_task(tf_counters);")
    out.line("if (threadIdx.x == 0) tf_taken[0] = tf_next;")
    out.line("__syncthreads();")
    with out.block("for (int tf_place = 0;; tf_place ^= 1)"):
        out.line("const int tf_number = tf_taken[tf_place];")
        out.line(f"if (tf_number >= {order.num_tasks}) break;")
        out.line("tf_next = tf_take_task(tf_counters);")
        if order.recorded:
            out.line("const unsigned long long tf_begin_ns = tf_now_ns();")
        find_task(kernel, p.scope.index_type, out)
        for number, group in enumerate(kernel.groups):
            head = f"if (tf_body == {number})" if number + 1 < len(kernel.groups) else ""
            with out.block(("else " if number else "") + head if number or head else ""):
                _task(p, group, order)
        if order.recorded:
            out.line(f"tf_record_task({records_symbol(kernel.name)}, tf_number, tf_begin_ns);")
    out.line(f"tf_leave_tasks<tf_counter_words>(tf_counters, {order.num_counters});")


def _task(p: TaskStatements, group: Group, order: TaskOrder) -> None:
    """Prints one group's body with the current member's operands and numbers."""
    kernel, out = p.kernel, p.out
    out.comment(comment_text(order.names[kernel.groups.index(group)]))
    with p.scope.nested():
        p.scope.enter_group(group)
        out.line("const int thread = tf_thread_again();")
        for name, text in member_numbers(kernel, group):
            out.line(f"const {p.scope.index_type} {name} = {text};")
        for n, slot in enumerate(group.slots):
            pointer, restrict = p.pointer(slot)
            source = f"static_cast<{pointer}>(tf_operands.at[{operand_number(kernel, group, n)}])"
            out.line(f"{pointer}{restrict} const {identifier(slot.name)} = {source};")
        p.expressions.narrow = group.narrow
        publishes = bool(group.body) and isinstance(group.body[-1], Publish)
        p.body(group.body[:-1] if publishes else group.body)
        # The other place: some thread may still read this task's number. The barrier behind it hands the next one to the block.
        out.line("if (threadIdx.x == 0) tf_taken[tf_place ^ 1] = tf_next;")
        if publishes:
            p.statement(group.body[-1])
        else:
            out.line("__syncthreads();")


def await_text(p: TaskStatements, s: Await) -> str:
    """The wait of a block; watched where the order has a limit."""
    order, text = _order(p.kernel), p.scope.text
    place = f"tf_counters + tf_counter_words * {p.scope.operand(s.index)}"
    if not order.limit_ms:
        return f"tf_await<tf_counter_words>({place}, {text(s.count)}, {text(s.value)});"
    return (f"tf_await_watched<tf_counter_words>({place}, {text(s.count)}, {text(s.value)}, (int)({text(s.index)}) - {OWN_COUNTERS}, "
            f"{order.limit_ms}, tf_body_names[tf_body], tf_number);")


def awaits_text(p: TaskStatements, waits: Sequence[Await]) -> list[str]:
    """Waits that follow each other: warps poll them side by side, and the block meets once. Watched ones one after another."""
    warps = p.kernel.launch.num_threads // WARP
    if _order(p.kernel).limit_ms or len(waits) > warps:
        return [await_text(p, s) for s in waits]
    text = p.scope.text
    polls = [f"tf_poll<tf_counter_words>(tf_counters + tf_counter_words * {p.scope.operand(s.index)}, {text(s.count)}, {text(s.value)}, "
             f"{n});" for n, s in enumerate(waits)]
    return [*polls, "__syncthreads();"]


def publish_text(p: TaskStatements, s: Publish) -> str:
    """The publication of a block's writes."""
    return f"tf_publish(tf_counters + tf_counter_words * {p.scope.operand(s.index)});"


def body_names(order: TaskOrder, out: Writer) -> None:
    """Prints the names of the groups' bodies, for messages of a watched kernel."""
    with out.block("__constant__ const char* const tf_body_names[] =", ";"):
        for name in order.names:
            out.line('"' + comment_text(name).replace('"', "'") + '",')


def _parameter(kernel: Kernel, name: str) -> str:
    return f"tf_operands.at[{[b.name for b in kernel.parameters].index(name)}]"


def _order(kernel: Kernel) -> TaskOrder:
    assert kernel.tasks is not None, "a kernel of tasks"
    return kernel.tasks
