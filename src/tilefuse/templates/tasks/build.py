"""From kernels that follow each other in a plan to one kernel of tasks: bodies, common threads, waits, blocks."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import blocks_at_once
from tilefuse.domain.tile import EdgeLevel, Level, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.capabilities import ADDRESS_BYTES, PARAMETER_BYTES
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.neighbours import common_threads
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tasks.bodies import body_refusal, common_body, composed_refusal
from tilefuse.templates.tasks.price import critical_path, stage_us
from tilefuse.templates.tasks.record import Stage, Tasks, Window


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a kernel of tasks that options give: fields of `Tasks`. at_once: stages whose tasks blocks hold at once, where they are
    enough: those of the next stage fetch their weights and wait while the present one runs."""

    together: int = 0
    at_once: int = 2
    ahead: bool = True
    limit_ms: int = 0
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel, or one part of a packed one: its program, its boundary values and nodes by the names of the whole."""

    program: TileProgram
    values: tuple[str, ...]
    nodes: tuple[str, ...]


def pieces_of(program: TileProgram, name_by_own: Mapping[str, str]) -> tuple[Piece, ...] | Rejected:
    """The pieces of a planned kernel: one, or the parts of a packed one. name_by_own: names in the plan of the program's values."""
    groups = kernel_template(program.choice).groups(program)
    if not groups:
        own = (*(i.name for i in program.graph.inputs), *program.graph.results)
        nodes = tuple(name_by_own.get(n.name, n.name) for n in program.graph.nodes)
        return (Piece(program, tuple(name_by_own[v] for v in own), nodes),)
    if any(g.any_size for g in groups):
        return Rejected(Reason.UNSUPPORTED_OP, f"%{program.graph.results[0]}: its parts share a body of any size")
    return tuple(Piece(g.program, tuple(name_by_own[v] for v in p.values), tuple(name_by_own.get(n, n) for n in p.nodes))
                 for g in groups for p in g.parts)


def piece_refusal(piece: Piece, device: DeviceSpec) -> Rejected | None:
    """Why a piece cannot be a stage of a kernel of tasks; None where it can."""
    return body_refusal(piece.program) or composed_refusal(piece.program, device)


def build_tasks(graph: Graph, layouts: Layouts, pieces: Sequence[Piece], windows: Sequence[Window],
                device: DeviceSpec, setting: Setting = Setting()) -> TileProgram | Rejected:
    """The kernel of tasks of pieces in order, or why there is none.

    graph: of all pieces together, whose results are all values that pieces write. Requires: `piece_refusal` has nothing against a piece.
    """
    programs = {id(p.program): p.program for p in pieces}
    if len(programs) > SEARCH.tasks.bodies:
        return Rejected(Reason.UNSUPPORTED_OP, f"{len(programs)} different bodies, at most {SEARCH.tasks.bodies} in one kernel")
    # The addresses of the tensors and that of the counters are the kernel's parameters.
    num_values, most_values = len(graph.inputs) + len(graph.results), PARAMETER_BYTES // ADDRESS_BYTES - 1
    if num_values > most_values:
        return Rejected(Reason.TOO_MANY_OPERANDS, f"{num_values} tensors, at most {most_values} in one kernel of tasks")
    threads = common_threads(tuple(programs.values()), device)
    if isinstance(threads, Rejected):
        return threads
    bodies: dict[int, TileProgram] = {}
    for key, program in programs.items():
        body = common_body(program, threads, device)
        if body is None:
            return Rejected(Reason.REGISTERS, f"%{program.graph.results[0]} has no form of {threads} threads a block")
        why = None if body is program else body_refusal(body) or composed_refusal(body, device)
        if why is not None:
            return why
        bodies[key] = body
    workers = _workers(tuple(bodies.values()), threads, setting.together, device)
    if isinstance(workers, Rejected):
        return workers
    number_of = {key: n for n, key in enumerate(bodies)}
    stages = _stages(pieces, number_of, bodies, windows)
    # Stages side by side have a block on each multiprocessor, so that each can use all of the memory's bandwidth.
    at_once = max(min(setting.at_once, workers // max(device.num_multiprocessors, 1)), 1) if device.kind == "cuda" else 1
    tiles = tuple(-(-b.launch.num_blocks // max(workers // at_once, 1)) for b in bodies.values())
    body_us = [stage_us(b, device) for b in bodies.values()]
    us = tuple(body_us[s.body] for s in stages)
    choice = Tasks(threads, workers, tuple(bodies.values()), tiles, stages, tuple(windows), us, setting.together, setting.ahead,
                   setting.limit_ms, setting.recorded, tuple(programs.values()))
    return _program(graph, layouts, replace(choice, workers=min(workers, _most_at_once(choice, at_once))), pieces, device)


def _most_at_once(choice: Tasks, at_once: int) -> int:
    """Largest number of tasks of stages that run side by side, and of those that follow them up to `at_once` waits apart."""
    depths: list[int] = []
    tasks: list[int] = []
    for n, stage in enumerate(choice.stages):
        depths.append(max((depths[a] + 1 for a in stage.awaits), default=0))
        tasks += [0] * (depths[n] + 1 - len(tasks))
        tasks[depths[n]] += choice.num_tasks(n)
    return max(sum(tasks[n:n + at_once]) for n in range(len(tasks)))


def _workers(bodies: Sequence[TileProgram], threads: int, bound: int, device: DeviceSpec) -> int | Rejected:
    """Blocks that the device holds at once: more would only take tasks from each other. bound: as `Tasks.together`."""
    if device.kind != "cuda":
        return max(device.num_multiprocessors, 1)
    needs = [kernel_template(b.choice).resources(b, device) for b in bodies]
    registers, shared = max(n.registers for n in needs), max(n.shared_bytes for n in needs)
    if bound:
        registers = min(registers, device.registers_per_multiprocessor // (threads * bound))
    together = min(blocks_at_once(threads, registers, shared, device), bound or device.max_blocks_per_multiprocessor)
    if not together:
        need = f"{threads} threads with about {registers} registers each and {shared} bytes of shared memory"
        return Rejected(Reason.REGISTERS, f"no block of {need} fits a multiprocessor of {device.name}")
    return together * device.num_multiprocessors


def _stages(pieces: Sequence[Piece], number_of: Mapping[int, int], bodies: Mapping[int, TileProgram],
            windows: Sequence[Window]) -> tuple[Stage, ...]:
    """The pieces as stages; each awaits the writers of its operands, without those that another of them is behind."""
    base_of = {w.value: w.base for w in windows}
    writer: dict[str, int] = {}
    behind: list[frozenset[int]] = []
    stages = []
    for n, piece in enumerate(pieces):
        inputs = len(piece.program.graph.inputs)
        direct = {writer[v] for v in (base_of.get(x, x) for x in piece.values[:inputs]) if v in writer}
        needed = tuple(sorted(a for a in direct if not any(a in behind[b] for b in direct if b != a)))
        behind.append(frozenset(direct).union(*(behind[a] for a in direct)))
        writer |= dict.fromkeys(piece.values[inputs:], n)
        # A form with other threads may compute the same values in another order of nodes; boundary values keep their order.
        stages.append(Stage(number_of[id(piece.program)], piece.values, piece.nodes, needed))
    return tuple(stages)


def _program(graph: Graph, layouts: Layouts, choice: Tasks, pieces: Sequence[Piece], device: DeviceSpec) -> TileProgram:
    written = {v: n for n, p in enumerate(pieces) for v in p.values[len(p.program.graph.inputs):]}
    read = [v for v in dict.fromkeys(v for p in pieces for v in p.values[:len(p.program.graph.inputs)]) if v not in written]
    named = [v for v in read if v not in {w.value for w in choice.windows}]
    path_us, path = critical_path(choice.stages, choice.us, device)
    num_tasks = sum(choice.num_tasks(n) for n in range(len(choice.stages)))
    parameters = (("tasks", num_tasks), ("stages", len(choice.stages)), ("bodies", len(choice.bodies)),
                  ("counters", sum(any(n in s.awaits for s in choice.stages) for n in range(len(choice.stages)))),
                  ("waits", sum(len(s.awaits) for s in choice.stages)), ("critical path", f"{len(path)} stages, {path_us:.2f} us"),
                  *((f"stage {n}", _stage_text(choice, n, n in path)) for n in range(len(choice.stages))),
                  ("threads", choice.threads), ("workers", choice.workers), ("weights_ahead", choice.ahead))
    return TileProgram(
        name=f"tasks_{choice.bodies[0].name}"[:SEARCH.texts.packed_name_characters], graph=graph, choice=choice, notation=_notation(choice),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts}, parameters=parameters, levels=_levels(choice, pieces),
        launch=Launch(choice.workers, choice.threads),
        bytes_read=sum(graph.type_of(v).num_bytes for v in named),
        bytes_written=sum(graph.type_of(v).num_bytes for v in graph.results),
        flops=sum(p.program.flops for p in pieces))


def _stage_text(choice: Tasks, n: int, critical: bool) -> str:
    stage = choice.stages[n]
    awaits = f", awaits {', '.join(map(str, stage.awaits))}" if stage.awaits else ""
    tiles = choice.tiles[stage.body]
    each = f" of {tiles} tiles" if tiles > 1 else ""
    results = ", ".join(stage.values[len(choice.bodies[stage.body].graph.inputs):])
    return (f"body {stage.body}, {choice.num_tasks(n)} tasks{each}{awaits}, {choice.us[n]:.2f} us"
            + (", on the critical path" if critical else "") + f", writes {results}")


def _notation(choice: Tasks) -> str:
    counts = [sum(s.body == n for s in choice.stages) for n in range(len(choice.bodies))]
    return "tasks { " + " ".join(f"{count} x {{ {b.notation} }}" for count, b in zip(counts, choice.bodies, strict=True)) + " };"


def _levels(choice: Tasks, pieces: Sequence[Piece]) -> tuple[EdgeLevel, ...]:
    """Levels inside the stages, and those of the values that go from stage to stage."""
    levels: list[EdgeLevel] = []
    for piece in pieces:
        own = dict(zip((n.name for n in piece.program.graph.nodes), piece.nodes, strict=False))
        levels += [EdgeLevel(own.get(e.producer, e.producer), own.get(e.user, e.user), e.level) for e in piece.program.levels]
    base_of = {w.value: w.base for w in choice.windows}
    written: set[str] = set()
    for piece in pieces:
        inputs = [i.name for i in piece.program.graph.inputs]
        for own_name, name in zip(inputs, piece.values, strict=False):
            if base_of.get(name, name) not in written:
                continue
            users = [n for n, node in zip(piece.nodes, piece.program.graph.nodes, strict=False) if own_name in node.reads()]
            levels += [EdgeLevel(base_of.get(name, name), user, Level.GRID) for user in users]
        written |= set(piece.values[len(inputs):])
    return tuple(dict.fromkeys(levels))
