"""Random task programs that are safe, faults planted in them, and an oracle that plays adversary against every pair of tasks."""
from __future__ import annotations

from dataclasses import replace
from random import Random

from tilefuse.kernel.tasks.program import Need, Task, TaskProgram, Touch


def safe_program(draw: Random) -> TaskProgram:
    """Stages of tasks, each with a counter; a stage reads values of earlier ones and awaits them, in whole or by parts; places of values
    in a workspace are used again where the last readers are known to be done."""
    tasks: list[Task] = []
    stages: list[tuple[int, int, str]] = []  # (counter, tasks, value)
    readers: dict[str, list[int]] = {}       # value -> stages that read it
    free: list[str] = []
    for number in range(draw.randint(2, 6)):
        count = draw.randint(1, 4)
        sources = draw.sample(range(number), min(number, draw.randint(0, 2)))
        awaited = set(sources)
        value = f"v{number}"
        if free and draw.random() < 0.5:
            # A place whose writer and readers are all awaited by this stage.
            value = draw.choice(free)
            awaited |= {n for n, s in enumerate(stages) if s[2] == value} | set(readers.get(value, []))
        needs = tuple(Need(stages[s][0], stages[s][1]) for s in sorted(awaited))
        read = tuple(Touch(stages[s][2], 0, 8 * stages[s][1], False) for s in sources if stages[s][2] != value)
        read = tuple(t for t in read if _latest(stages, t.value) in awaited)
        for t in range(count):
            touches = (*read, Touch(value, 8 * t, 8 * t + 8, True))
            tasks.append(Task(f"{number}.{t}", needs, (number,), touches))
        for s in sources:
            readers.setdefault(stages[s][2], []).append(number)
        stages.append((number, count, value))
        free.append(value)
    return TaskProgram(tuple(tasks))


def _latest(stages: list[tuple[int, int, str]], value: str) -> int:
    return max(n for n, s in enumerate(stages) if s[2] == value)


FAULTS = ("dropped publish", "dropped wait", "count one too low", "swapped order", "reused slot")


def with_fault(program: TaskProgram, fault: str, draw: Random) -> TaskProgram | None:
    """The program with a fault at a random place; None where it has no place for it."""
    tasks = list(program.tasks)
    match fault:
        case "dropped publish":
            n = draw.randrange(len(tasks))
            tasks[n] = replace(tasks[n], publishes=())
        case "dropped wait" | "count one too low":
            waiting = [n for n, t in enumerate(tasks) if t.needs]
            if not waiting:
                return None
            n = draw.choice(waiting)
            k = draw.randrange(len(tasks[n].needs))
            needs = list(tasks[n].needs)
            needs[k:k + 1] = [] if fault == "dropped wait" else [Need(needs[k].counter, needs[k].value - 1)]
            tasks[n] = replace(tasks[n], needs=tuple(needs))
        case "swapped order":
            if len(tasks) < 2:
                return None
            a, b = sorted(draw.sample(range(len(tasks)), 2))
            tasks[a], tasks[b] = tasks[b], tasks[a]
        case "reused slot":
            values = sorted({t.value for task in tasks for t in task.touches})
            if len(values) < 2:
                return None
            old, new = draw.sample(values, 2)
            tasks = [replace(task, touches=tuple(replace(t, value=new) if t.value == old else t for t in task.touches)) for task in tasks]
    return TaskProgram(tuple(tasks))


def is_safe(program: TaskProgram) -> bool:
    """Whether one block finishes all tasks in order, and no adversary can begin a task while an earlier one that it conflicts with, however
    long that one takes, is not done."""
    counters: dict[int, int] = {}
    for task in program.tasks:
        if any(counters.get(n.counter, 0) < n.value for n in task.needs):
            return False
        for c in task.publishes:
            counters[c] = counters.get(c, 0) + 1
    return not any(conflicts(program.tasks[a], program.tasks[b]) and _begins_without(program, a, b)
                   for b in range(len(program.tasks)) for a in range(b))


def conflicts(a: Task, b: Task) -> bool:
    """Whether two tasks touch one element of which one of them writes."""
    return any(x.value == y.value and (x.writes or y.writes) and x.first < y.last and y.first < x.last
               for x in a.touches for y in b.touches)


def _begins_without(program: TaskProgram, stuck: int, late: int) -> bool:
    """Whether task `late` can begin though task `stuck` never ends."""
    counters: dict[int, int] = {}
    left = [n for n in range(len(program.tasks)) if n not in (stuck, late)]
    while True:
        ready = [n for n in left if all(counters.get(x.counter, 0) >= x.value for x in program.tasks[n].needs)]
        if not ready:
            return all(counters.get(x.counter, 0) >= x.value for x in program.tasks[late].needs)
        for n in ready:
            left.remove(n)
            for c in program.tasks[n].publishes:
                counters[c] = counters.get(c, 0) + 1


def ends_with_tickets(program: TaskProgram, blocks: int, draw: Random) -> bool:
    """Whether blocks that take the number of their next task before they run the present one end all tasks; a block starts at any time.

    Between two events the adversary has any block that can go on take its next step: start, or end its task.
    """
    counters: dict[int, int] = {}
    taken = done = 0
    held: list[list[int] | None] = [None] * blocks

    def can_go_on(block: int) -> bool:
        numbers = held[block]
        if numbers is None:
            return True
        return numbers[0] < len(program.tasks) and all(counters.get(n.counter, 0) >= n.value for n in program.tasks[numbers[0]].needs)

    while ready := [b for b in range(blocks) if can_go_on(b)]:
        block = draw.choice(ready)
        numbers = held[block]
        if numbers is None:
            held[block] = [taken, taken + 1]
            taken += 2
            continue
        for c in program.tasks[numbers[0]].publishes:
            counters[c] = counters.get(c, 0) + 1
        done += 1
        held[block] = [numbers[1], taken]
        taken += 1
    return done == len(program.tasks)
