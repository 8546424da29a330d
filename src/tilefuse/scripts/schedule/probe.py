"""Kernels that time one routine alone: the unfused kernel of its function without the other routines.

    load A      loop { Load A, Keep A }                        no words are computed or stored
    compute     Fill A, x       loop { Compute, Keep y }       operands stay on chip
    store z     Fill z          loop { Store z }
`Keep` uses the words so that compilers leave their loads in place. Source: Filipovic et al., section 4.2, simulated fusion environment.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.scripts.language.elementary import CallGraph, ElementaryFunction, FunctionCall, Variable, routine_macros
from tilefuse.scripts.language.routine_source import cut_routines
from tilefuse.scripts.schedule.elements import ATOMICS, LAST_BLOCK, SINGLE, Decision
from tilefuse.scripts.schedule.routines import FusedRoutines, schedule_routines
from tilefuse.scripts.schedule.steps import BlockBarrier, Clear, Compute, Fill, Keep, Load, Step, Store, elements_of
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class TimedRoutine:
    """One routine that a probe times: a function, the number of one of its implementations, and the routine's role ("load A")."""

    function: ElementaryFunction
    implementation: int
    routine: str

    @property
    def name(self) -> tuple[str, str, str]:
        """Its name in tables of times."""
        return self.function.timed_name, self.function.implementations[self.implementation].name, self.routine


def routine_classes(functions: Iterable[ElementaryFunction]) -> tuple[tuple[TimedRoutine, ...], ...]:
    """Classes of routines with the same text, threads and elements: one routine of each class is timed.

    Loads and stores of vectors and tiles are equal in most functions of a library.
    """
    classes: dict[object, list[TimedRoutine]] = {}
    for function in functions:
        for n, implementation in enumerate(function.implementations):
            for role, name in implementation.routines.items():
                if role.split()[0] not in ("load", "compute", "store") or not function.sizes:
                    continue
                parameter = role.partition(" ")[2]
                macros = routine_macros(function, implementation) | {"INDEX": "int", name: "routine", f"CONTIGUOUS_{parameter}": "1"}
                text = " ".join(cut_routines(implementation.source, macros, [name]).split())
                geometry = implementation.geometry
                classes.setdefault((text, geometry.threads, tuple(geometry.extents.values())), []).append(TimedRoutine(function, n, role))
    return tuple(tuple(members) for members in classes.values())


def probe_graph(function: ElementaryFunction, sizes: tuple[int, ...]) -> CallGraph:
    """A graph of one call; scalars are numbers."""
    by_name = dict(zip(function.sizes, sizes, strict=True))
    variables: dict[str, Variable] = {}
    arguments: list[str | float] = []
    for p in function.inputs:
        if not p.extents:
            arguments.append(0.5)
            continue
        variables[p.name] = Variable(p.name, p.dtype or function.dtype, tuple(by_name[e] for e in p.extents))
        arguments.append(p.name)
    for p in function.outputs:
        variables[p.name] = Variable(p.name, p.dtype or function.dtype, tuple(by_name[e] for e in p.extents))
    results = tuple(p.name for p in function.outputs)
    call = FunctionCall(function, tuple(arguments), results, by_name)
    return CallGraph(f"probe_{function.name}", variables, tuple(a for a in arguments if isinstance(a, str)), results, (call,))


def probe(function: ElementaryFunction, implementation: int, routine: str, instances: int, iterations: int, direction: str,
          extra_shared_bytes: int, sizes: tuple[int, ...], device: DeviceSpec) -> FusedRoutines | Rejected:
    """The kernel that times a routine ("load A", "compute", "store z"; "all" for the whole function) over operands of these sizes.

    The words it moves or computes with are those of the routine's operand, or of the function's largest one.
    """
    graph = probe_graph(function, sizes)
    finish = LAST_BLOCK if function.state or function.finishes else ATOMICS
    decision = Decision((0,), (implementation,), instances, iterations, direction, 1, finish)
    fused = schedule_routines(graph, decision, f"probe_{function.name}", device)
    if isinstance(fused, Rejected):
        return fused
    # A routine is timed over all tiles, also where its function skips those beyond a diagonal.
    fused = replace(fused, extra_shared_bytes=extra_shared_bytes, grid=replace(fused.grid, triangle=""))
    if routine == "all":
        return fused
    verb, _, parameter = routine.partition(" ")
    if verb not in ("load", "compute", "store"):
        return Rejected(Reason.UNSUPPORTED_OP, f"no routine {routine}")

    def is_probed(step: Step) -> bool:
        match step:
            case Load(e) | Store(e):
                return verb == type(step).__name__.lower() and fused.elements[e].owner[1] == parameter
            case Compute() | Clear():
                return verb == "compute"
        return isinstance(step, BlockBarrier) and verb == "compute"

    sections = [[s for s in section if is_probed(s)] for section in (fused.before, fused.group, fused.single, fused.edge)]
    named = list(dict.fromkeys(e for section in sections for s in section for e in elements_of(s) if e in fused.elements))
    loaded = {s.element for section in sections for s in section if isinstance(s, Load)}
    filled = [e for e in named if e not in loaded and not fused.elements[e].partial]
    read = [e for e in filled if not any(isinstance(s, Compute) and e in s.outputs for section in sections for s in section)]
    before, *tiles = sections
    first = [*(Fill(e) for e in filled), *before, *(Keep(e) for e in loaded if any(isinstance(s, Load) and s.element == e for s in before))]
    # Operands that stay on chip change from tile to tile, so that compilers cannot reuse the result of one tile.
    group, single, edge = ((*(Fill(e, True) for e in read), *section, *_uses(section, fused)) for section in tiles)
    accumulated = tuple(Keep(e) for e in named if fused.elements[e].partial and fused.reductions[fused.elements[e].variable].accumulated)
    reductions = {name: replace(r, finish=SINGLE) for name, r in fused.reductions.items()}
    return replace(fused, before=tuple(first), group=group, single=single, edge=edge, after=accumulated, reductions=reductions)


def _uses(section: Iterable[Step], fused: FusedRoutines) -> list[Step]:
    """Uses of the elements that a tile's steps load or compute, without those that accumulate over tiles."""
    uses: list[Step] = []
    for s in section:
        if isinstance(s, Load):
            uses.append(Keep(s.element))
        if isinstance(s, Compute):
            uses += [Keep(e) for e in s.outputs if not _accumulated(fused, e)]
    return uses


def _accumulated(fused: FusedRoutines, name: str) -> bool:
    e = fused.elements[name]
    return e.partial and fused.reductions[e.variable].accumulated
