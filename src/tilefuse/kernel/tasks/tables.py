"""Text of a task's body, member, operands and numbers in generated code: ranges and progressions where possible, tables elsewhere.

    tf_number    the task, in the order of the kernel          tf_body, tf_member, tf_task    its place, by `find_task`
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilefuse.kernel.ir import Group, Kernel
from tilefuse.kernel.operand_table import constant_table
from tilefuse.kernel.tasks.mixture import Mixture, Phase, TaskSequence
from tilefuse.kernel.tasks.order import Round, rounds_of
from tilefuse.kernel.visit import written_buffers
from tilefuse.kernel.writer import Writer, identifier


def changed_slots(kernel: Kernel) -> frozenset[str]:
    """Slots whose memory some task of the kernel writes, under any name: their loads must pass the first-level cache."""
    if kernel.tasks is None:
        return frozenset()
    window_of = {window: base for window, base, _ in kernel.tasks.aliases}
    written = {window_of.get(name, name) for name in written_buffers(kernel) & {b.name for b in kernel.parameters}}
    return frozenset(slot.name for g in kernel.groups for n, slot in enumerate(g.slots)
                     if any(window_of.get(m.arguments[n], m.arguments[n]) in written for m in g.members))


def task_tables(kernel: Kernel, declaration: str, out: Writer) -> None:
    """Prints the tables of operands and numbers that are no progression over a group's members."""
    for name, values in _lists(kernel):
        if _computed(values) is None:
            constant_table(name, declaration, values, out)


def operand_number(kernel: Kernel, group: Group, slot: int) -> str:
    """Text of the parameter number of the current member's slot."""
    numbers = {b.name: n for n, b in enumerate(kernel.parameters)}
    return _by_member(_slot_table(kernel, group, slot), [numbers[m.arguments[slot]] for m in group.members])


def member_numbers(kernel: Kernel, group: Group) -> Iterator[tuple[str, str]]:
    """(identifier, text) of each of the group's numbers for the current member."""
    for n, (name, _) in enumerate(group.numbers):
        yield identifier(name), _by_member(_number_table(kernel, group, name), [m.numbers[n] for m in group.members])


def find_task(kernel: Kernel, index_type: str, out: Writer) -> None:
    """Prints `tf_body`, `tf_member` and `tf_task` of the task `tf_number`."""
    assert kernel.tasks is not None
    if kernel.tasks.mixture is not None:
        _find_in_mixture(kernel.tasks.mixture, index_type, out)
        return
    rounds = rounds_of(kernel.tasks.segments)
    out.line(f"{index_type} tf_task = tf_number;")
    out.line("int tf_body = 0, tf_member = 0;")
    before = 0
    for n, r in enumerate(rounds):
        condition = f"tf_task < {r.num_tasks}" if not before else f"(tf_task -= {before}) < {r.num_tasks}"
        head = "else" if n and n + 1 == len(rounds) else f"{'else ' if n else ''}if ({condition})"
        with out.block(head if len(rounds) > 1 else ""):
            if head == "else":
                out.line(f"tf_task -= {before};")
            _find_in_round(r, index_type, out)
        before = r.num_tasks


def _find_in_round(r: Round, index_type: str, out: Writer) -> None:
    if r.repeats > 1:
        out.line(f"const {index_type} tf_turn = tf_task / {r.tasks_each};")
        out.line(f"tf_task -= tf_turn * {r.tasks_each};")
    before = 0
    for n, s in enumerate(r.stretches):
        last = n + 1 == len(r.stretches)
        condition = f"tf_task < {s.num_tasks}" if not before else f"(tf_task -= {before}) < {s.num_tasks}"
        head = ("else" if n else "") if last else f"{'else ' if n else ''}if ({condition})"
        with out.block(head):
            if last and before:
                out.line(f"tf_task -= {before};")
            step = "" if not s.member_step else f" + (int)tf_turn * {s.member_step}" if s.member_step != 1 else " + (int)tf_turn"
            out.line(f"tf_body = {s.group}, tf_member = {s.first_member}{step};")
        before = s.num_tasks


def _lists(kernel: Kernel) -> Iterator[tuple[str, list[int]]]:
    numbers = {b.name: n for n, b in enumerate(kernel.parameters)}
    for group in kernel.groups:
        for n in range(len(group.slots)):
            yield _slot_table(kernel, group, n), [numbers[m.arguments[n]] for m in group.members]
        for n, (name, _) in enumerate(group.numbers):
            yield _number_table(kernel, group, name), [m.numbers[n] for m in group.members]


def _slot_table(kernel: Kernel, group: Group, slot: int) -> str:
    return f"tf_at_{kernel.groups.index(group)}_{slot}"


def _number_table(kernel: Kernel, group: Group, name: str) -> str:
    return f"tf_{identifier(name)}_{kernel.groups.index(group)}"


def _progression(values: Sequence[int]) -> int | None:
    """The constant step between values; None where there is none."""
    step = values[1] - values[0] if len(values) > 1 else 0
    return step if all(b - a == step for a, b in zip(values, values[1:], strict=False)) else None


def _by_member(table: str, values: Sequence[int]) -> str:
    computed = _computed(values)
    return f"{table}[tf_member]" if computed is None else computed


def _computed(values: Sequence[int]) -> str | None:
    """Text that computes a member's value; None where only a table has it.

        3, 5, 7, 9      3 + tf_member * 2         0, 1, 2, 0, 1      tf_member % 3         0, 0, 1, 1, 1      tf_member >= 2
    """
    step = _progression(values)
    if step is not None:
        start = f"{values[0]} + " if values[0] else ""
        return str(values[0]) if not step else f"{start}tf_member" if step == 1 else f"{start}tf_member * {step}"
    period = max(values) + 1
    if all(v == n % period for n, v in enumerate(values)):
        return f"tf_member % {period}"
    first = values.index(1) if 1 in values else len(values)
    if all(v == (n >= first) for n, v in enumerate(values)):
        return f"(tf_member >= {first})"
    return None


def _find_in_mixture(mixture: Mixture, index_type: str, out: Writer) -> None:
    """Prints the place of a task among phases, rounds, columns and shares."""
    out.line(f"{index_type} tf_task = tf_number;")
    out.line("int tf_body = 0, tf_member = 0;")
    before = 0
    for n, phase in enumerate(mixture.phases):
        condition = f"tf_task < {phase.num_tasks}" if not before else f"(tf_task -= {before}) < {phase.num_tasks}"
        last = n + 1 == len(mixture.phases)
        head = "else" if n and last else "" if last else f"{'else ' if n else ''}if ({condition})"
        with out.block(head):
            if n and last:
                out.line(f"tf_task -= {before};")
            _find_in_phase(phase, index_type, out)
        before = phase.num_tasks
    for n, sequence in enumerate(mixture.sequences):
        with out.block(f"{'else ' if n else ''}if (tf_body == {n})" if n + 1 < len(mixture.sequences) else "else" if n else ""):
            _find_in_sequence(sequence, index_type, out)


def _find_in_phase(phase: Phase, index_type: str, out: Writer) -> None:
    """Prints the number of a task in its body's sequence. A column found by division is at most a few places off."""
    out.line(f"const {index_type} tf_turn = tf_task / {phase.tasks_each};")
    out.line(f"tf_task -= tf_turn * {phase.tasks_each};")
    if len(phase.shares) == 1:
        share = phase.shares[0]
        out.line(f"tf_body = {share.group};")
        out.line(f"tf_task += {share.first} + tf_turn * {share.count};")
        return

    def start(share_count: int, column: str) -> str:
        return f"{share_count // phase.columns} * {column}" if share_count % phase.columns == 0 else (
            f"{share_count} * {column} / {phase.columns}")

    def column_start(column: str) -> str:
        return " + ".join(start(s.count, column) for s in phase.shares)

    out.line(f"{index_type} tf_column = tf_task * {phase.columns} / {phase.tasks_each};")
    out.line(f"while ({column_start('tf_column')} > tf_task) --tf_column;")
    out.line(f"while ({column_start('(tf_column + 1)')} <= tf_task) ++tf_column;")
    out.line(f"tf_task -= {column_start('tf_column')};")
    for n, s in enumerate(phase.shares):
        out.line(f"const {index_type} tf_start_{n} = {start(s.count, 'tf_column')};")
        if n + 1 < len(phase.shares):
            out.line(f"const {index_type} tf_own_{n} = {start(s.count, '(tf_column + 1)')} - tf_start_{n};")
    for n, s in enumerate(phase.shares):
        test = f"tf_task < tf_own_{n}" if not n else f"(tf_task -= tf_own_{n - 1}) < tf_own_{n}"
        is_last = n + 1 == len(phase.shares)
        with out.block("else" if is_last else f"{'else ' if n else ''}if ({test})"):
            if is_last:
                out.line(f"tf_task -= tf_own_{n - 1};")
            out.line(f"tf_body = {s.group};")
            out.line(f"tf_task += {s.first} + tf_turn * {s.count} + tf_start_{n};")


def _find_in_sequence(sequence: TaskSequence, index_type: str, out: Writer) -> None:
    """Prints the member and the task of a number in a body's sequence."""
    each = sequence.tasks * sequence.together
    out.line(f"const {index_type} tf_some = tf_task / {each};")
    out.line(f"tf_task -= tf_some * {each};")
    if sequence.together == 1:
        out.line("tf_member = (int)tf_some;")
        return
    out.line(f"const {index_type} tf_left = {sequence.members} - tf_some * {sequence.together};")
    out.line(f"const {index_type} tf_beside = tf_left < {sequence.together} ? tf_left : {sequence.together};")
    out.line(f"tf_member = (int)(tf_some * {sequence.together} + tf_task % tf_beside);")
    out.line("tf_task /= tf_beside;")
