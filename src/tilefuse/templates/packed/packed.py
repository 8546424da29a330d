"""Kernel packing: independent parts in one launch, each a tile program of its own over its own range of blocks.

    blocks 0 .. 99 : y0 = f(x0)    100 .. 131 : y1 = f(x1)    132 .. 147 : s = sum of z        one kernel, two groups

Parts that differ in nothing but their tensors are members of one group and run one body with operands from a table, so the code does
not grow with their number; for flat walks tensors may differ in size too. Source: kernel packing, FusionStitching 5.1, figure 5 (a).
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.parts import connected_parts
from tilefuse.domain.roofline import blocks_at_once, crowding_us, launches_us, price_work
from tilefuse.domain.tile import Choice, EdgeLevel, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.target.capabilities import ADDRESS_BYTES, PARAMETER_BYTES
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize, SizedForm
from tilefuse.templates.choose import choose_program
from tilefuse.templates.early import beside_others
from tilefuse.templates.neighbours import common_threads, part_refusal, with_threads
from tilefuse.templates.packed.shares import shared_blocks
from tilefuse.templates.parts import PackedGroup, Part
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.request import Request, has_products, is_vector_product, with_sums

# Tensors of one packed kernel: their addresses and nothing else are its parameters.
MAX_OPERANDS = PARAMETER_BYTES // ADDRESS_BYTES




@dataclass(frozen=True, slots=True)
class Packed:
    """The template of a packed kernel: groups take the launch's blocks one after the other."""

    template: ClassVar[str] = "packed"

    threads: int
    groups: tuple[PackedGroup, ...]

    @property
    def num_threads(self) -> int:
        """Threads a block, the same for all parts."""
        return self.threads

    @property
    def resident(self) -> int:
        """No bound on registers."""
        return 0

    @property
    def streams_results(self) -> bool:
        """As of `Choice`; each part asks its own choice."""
        return True


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """A part with its own tile program (of the first part of this structure, whose names it has)."""

    part: Graph
    structure: int
    program: TileProgram


def schedule_packed(request: Request) -> TileProgram | Rejected:
    """The packed tile program of a pattern, or why there is none; the program of its only part where it has one.

    Products with a vector that read one norm are tried as parts of which each computes the norm.
    Cost: each structure of parts is scheduled once, and once more for each number of threads that it shares with others.
    """
    whole = _packed(request, _schedule_parts(request))
    if not _share_reductions(request.graph):
        return whole
    # A block of one round would compute the norm for each of its rows.
    return _cheaper(whole, _packed(request, _schedule_parts(request, reductions=True), only_turns=True), request.device)


def _share_reductions(graph: Graph) -> bool:
    """Whether the pattern has products with a vector, and no others, of which several depend on one inner reduction."""
    products = [n for n in graph.nodes if n.category == "library"]
    if len(products) < 2 or not all(is_vector_product(n, graph) for n in products):
        return False
    return len(connected_parts(graph, recompute=True, reductions=True)) > len(connected_parts(graph, recompute=True))


def _cheaper(first: TileProgram | Rejected, second: TileProgram | Rejected, device: DeviceSpec) -> TileProgram | Rejected:
    """The program of less predicted time; the only program where one is refused, or the first refusal."""
    if isinstance(first, Rejected) or isinstance(second, Rejected):
        return second if isinstance(first, Rejected) and not isinstance(second, Rejected) else first
    return min((first, second), key=lambda p: _price_us(p, device))


def _packed(request: Request, scheduled: list[_Scheduled] | Rejected, only_turns: bool = False) -> TileProgram | Rejected:
    """The parts in one kernel, or why there is none. only_turns: by blocks in turns, or not at all."""
    if isinstance(scheduled, Rejected):
        return scheduled
    if len(scheduled) == 1:
        only, program = scheduled[0].part, scheduled[0].program
        return program if program.graph.type_by_name.keys() == only.type_by_name.keys() else choose_program(request.for_part(only))
    work = [s for s in scheduled if s.program.launch.num_blocks]
    if not work:
        return Rejected(Reason.DOMAIN_MISMATCH, "no part has any work to do")
    operands = sum(len(s.part.inputs) + len(s.part.results) for s in work)
    if operands > MAX_OPERANDS:
        return Rejected(Reason.TOO_MANY_OPERANDS, f"{operands} tensors, at most {MAX_OPERANDS} in one launch")
    in_turns = _in_turns(request, work)
    if only_turns and in_turns is None:
        return Rejected(Reason.RECOMPUTATION, "every row would compute the reduction that all parts share")
    in_one_round = Rejected(Reason.OTHER_TEMPLATE, "") if only_turns else _in_one_round(request, work)
    return in_one_round if in_turns is None else _cheaper(in_one_round, in_turns, request.device)


def _price_us(program: TileProgram, device: DeviceSpec) -> float:
    """Time of the kernel as one of many. Units: microseconds. Source: `domain/roofline.py`."""
    template = kernel_template(program.choice)
    return price_work(beside_others(template.work(program, device), template.overlaps(program.choice), program, device), device).us


def _in_turns(request: Request, work: list[_Scheduled]) -> TileProgram | None:
    """The packed program whose parts share the blocks that run at once; None where a part's blocks take no turns."""
    members = Counter(s.structure for s in work)
    shares = shared_blocks({s.structure: s.program for s in work}, members, request.fetches_early, request.device)
    if shares is None:
        return None
    shared = [_Scheduled(s.part, s.structure, shares[s.structure]) for s in work]
    threads = shared[0].program.launch.num_threads
    return _program(request, shared, _grouped(shared, request.device, threads), threads)


def _in_one_round(request: Request, work: list[_Scheduled]) -> TileProgram | Rejected:
    """The packed program whose parts have as many blocks as their own kernels have, or why there is none."""
    distinct = {s.structure: s.program for s in work}
    for program in distinct.values():
        if (why := part_refusal(program)) is not None:
            return why
    device = request.device
    threads = common_threads(tuple(distinct.values()), device)
    if isinstance(threads, Rejected):
        return threads
    alike = _with_common_threads(work, distinct, threads, request)
    if isinstance(alike, Rejected):
        return alike
    groups = _grouped(alike, device, threads)
    if len(groups) > SEARCH.packing.bodies:
        return Rejected(Reason.UNSUPPORTED_OP, f"{len(groups)} different bodies, at most {SEARCH.packing.bodies} in one kernel")
    crowded = _occupancy_conflict(groups, device, threads, len(work))
    return crowded if crowded is not None else _program(request, alike, groups, threads)


def _schedule_parts(request: Request, reductions: bool = False) -> list[_Scheduled] | Rejected:
    """Every part that has elements, with its program; one that a kernel cannot hold is taken apart where its results share internal
    maps only.

    reductions: each product has its own copy of the internal reductions that it depends on.
    """
    scheduled: list[_Scheduled] = []
    known = request.known
    # First nodes that read the same inputs together, then those that depend on each other, then those that only share maps.
    todo = [(part, 0) for part in reversed(connected_parts(request.graph, siblings=True))]
    while todo:
        part, step = todo.pop()
        if all(0 in n.type.shape for n in part.nodes):
            continue
        if not part.results:
            return Rejected(Reason.DOMAIN_MISMATCH, f"nothing outside reads %{part.nodes[0].name}")
        structure = known.structure(part, request.layouts)
        products = has_products(part)
        if step == 0 and (products or len(part.inputs) + len(part.results) > SEARCH.packing.sibling_operands):
            # Products that share an operand, or maps of it, have tiles of their own each.
            apart = connected_parts(part, recompute=products, reductions=reductions and products)
            todo.extend((p, 2 if products else 1) for p in reversed(apart))
            continue
        program = known.programs.get((structure, None))
        if program is None:
            program = known.programs[structure, None] = choose_program(request.for_part(part))
        if isinstance(program, Rejected):
            smaller = [part] if step == 2 else connected_parts(part, recompute=step == 1)
            if len(smaller) < 2 and step == 0:
                smaller, step = connected_parts(part, recompute=True), 1
            if len(smaller) < 2:
                return program
            todo.extend((p, step + 1) for p in reversed(smaller))
            continue
        scheduled.append(_Scheduled(_as_computed(part, program), structure, program))
    return scheduled


def _as_computed(part: Graph, program: TileProgram) -> Graph:
    """A part with the nodes of its program, under its own names: a walk computes products with vectors as the sums they are."""
    return part if len(program.graph.nodes) == len(part.nodes) else with_sums(part)


def _with_common_threads(work: list[_Scheduled], distinct: dict[int, TileProgram], threads: int,
                         request: Request) -> list[_Scheduled] | Rejected:
    """The parts with programs of `threads` threads a block."""
    programs = request.known.programs
    alike: dict[int, TileProgram] = {}
    for structure, program in distinct.items():
        if program.choice.num_threads != threads:
            choice = with_threads(program, threads, request.device)
            again = programs.get((structure, choice))
            if again is None:
                again = programs[structure, choice] = kernel_template(program.choice).program_with(program, choice, request.device)
            if isinstance(again, Rejected):
                return again
            program = again
        alike[structure] = program
    return [_Scheduled(s.part, s.structure, alike[s.structure]) for s in work]


def _grouped(work: list[_Scheduled], device: DeviceSpec, threads: int) -> tuple[PackedGroup, ...]:
    """Parts with one body together, the groups that move most first: their blocks fill the device while the others' come in between."""
    form_of: dict[int, SizedForm | None] = {}
    # By the first structure that runs the body.
    first_of: dict[Hashable, int] = {}
    members_of: dict[int, list[_Scheduled]] = {}
    home: dict[int, list[_Scheduled]] = {}
    for s in work:
        if s.structure not in form_of:
            choice = s.program.choice
            any_size = kernel_template(choice).any_size
            form = form_of[s.structure] = None if any_size is None else any_size.form(s.program)
            first = s.structure if form is None else first_of.setdefault((type(choice), form.key), s.structure)
            home[s.structure] = members_of.setdefault(first, [])
        home[s.structure].append(s)
    groups = [_group(members, form_of, device, threads) for members in members_of.values()]
    moved = [sum(s.program.bytes_moved for s in members) for members in members_of.values()]
    return tuple(groups[n] for n in sorted(range(len(groups)), key=lambda n: (-moved[n], n)))


def _group(members: list[_Scheduled], form_of: dict[int, SizedForm | None], device: DeviceSpec, threads: int) -> PackedGroup:
    """Parts that run one body: with their extents in it where all have the same, else a body of any size, as of the largest part."""
    if len({s.structure for s in members}) == 1:
        program = members[0].program
        return PackedGroup(program, tuple(_part(s.part, program.launch.num_blocks) for s in members))
    forms = [form for s in members if (form := form_of[s.structure]) is not None]
    largest = max(range(len(forms)), key=lambda n: (forms[n].num_elements, -n))
    program = replace(members[largest].program, internal=forms[largest].domain)
    parts = tuple(_part(s.part, 0, form.num_elements) for s, form in zip(members, forms, strict=True))
    return regrouped(PackedGroup(program, parts, any_size=True), any_size_of(program).choice(program, threads, device))


def regrouped(group: PackedGroup, choice: Choice) -> PackedGroup:
    """A group of parts of any size with the body of another choice."""
    any_size = any_size_of(group.program)
    parts = tuple(replace(p, num_blocks=any_size.num_blocks(choice, p.num_elements)) for p in group.parts)
    return PackedGroup(any_size.body(group.program, choice, max(p.num_blocks for p in parts)), parts, any_size=True)


def any_size_of(program: TileProgram) -> AnySize[Any]:
    """How parts of different sizes share the body of a program. Raises: InternalError where its template has no such bodies."""
    any_size = kernel_template(program.choice).any_size
    if any_size is None:
        raise InternalError(f"parts of different sizes share the body {program.name}, and those of {program.template} have fixed sizes")
    return any_size


def _part(part: Graph, num_blocks: int, num_elements: int = 0) -> Part:
    return Part((*(i.name for i in part.inputs), *part.results), tuple(n.name for n in part.nodes), num_blocks, num_elements)


def _occupancy_conflict(groups: tuple[PackedGroup, ...], device: DeviceSpec, threads: int, num_parts: int) -> Rejected | None:
    """Why parts that stream would be slowed down by what other parts need of a multiprocessor; None where that costs less than the
    launches saved."""
    if device.kind != "cuda":
        return None
    needs = [_needs(g, device) for g in groups]
    registers, shared = max(r for r, _ in needs), max(s for _, s in needs)
    together = blocks_at_once(threads, registers, shared, device) * threads
    if together == 0:
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread and {shared} bytes of shared memory for {threads} threads")
    lost_us, fitted = 0.0, device.fitted.packed
    for g, (own_registers, own_shared) in zip(groups, needs, strict=True):
        num_bytes = g.program.bytes_moved * len(g.parts)
        alone = min(blocks_at_once(threads, own_registers, own_shared, device) * threads, fitted.streaming_threads)
        if num_bytes >= fitted.small_bytes and together < alone:
            lost_us += crowding_us(num_bytes, together, alone, device)
    saved_us = launches_us(num_parts - 1, device)
    if lost_us <= saved_us:
        return None
    return Rejected(Reason.REGISTERS, f"{together} threads a multiprocessor would be left, which costs {lost_us:.2f} us; "
                    f"launches save {saved_us:.2f} us")


def blocks_together(groups: tuple[PackedGroup, ...], device: DeviceSpec, threads: int) -> int:
    """Blocks that fit a multiprocessor at once, of whatever parts: each has the registers and shared memory of the part that needs most."""
    needs = [_needs(g, device) for g in groups]
    return blocks_at_once(threads, max(r for r, _ in needs), max(s for _, s in needs), device)


def _needs(group: PackedGroup, device: DeviceSpec) -> tuple[int, int]:
    """Registers a thread, and bytes of shared memory a block, of a group's body."""
    needed = kernel_template(group.program.choice).resources(group.program, device)
    return needed.registers, needed.shared_bytes


def _program(request: Request, work: list[_Scheduled], groups: tuple[PackedGroup, ...], threads: int) -> TileProgram:
    levels: list[EdgeLevel] = []
    for s in work:
        own = dict(zip((n.name for n in s.program.graph.nodes), (n.name for n in s.part.nodes), strict=True))
        levels += [EdgeLevel(own[e.producer], own[e.user], e.level) for e in s.program.levels]
    return TileProgram(
        name=f"packed_{groups[0].program.name}"[:SEARCH.texts.packed_name_characters], graph=request.graph,
        choice=Packed(threads, groups), notation=_notation(groups),
        layouts={v: request.layouts[v] for v in request.graph.type_by_name if v in request.layouts},
        parameters=_parameters(groups, threads),
        levels=tuple(levels), launch=Launch(sum(g.num_blocks for g in groups), threads),
        bytes_read=sum(s.program.bytes_read for s in work), bytes_written=sum(s.program.bytes_written for s in work),
        flops=sum(s.program.flops for s in work))


def packed_like(program: TileProgram, groups: tuple[PackedGroup, ...], device: DeviceSpec, threads: int) -> TileProgram | Rejected:
    """A packed program of the same parts in the same groups, whose bodies were chosen in another way; or why they do not fit a launch."""
    registers, shared = map(max, zip(*(_needs(g, device) for g in groups), strict=True))
    if device.kind == "cuda" and blocks_at_once(threads, registers, shared, device) == 0:
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread and {shared} bytes of shared memory for {threads} threads")
    return replace(program, notation=_notation(groups), parameters=_parameters(groups, threads), choice=Packed(threads, groups),
                   launch=Launch(sum(g.num_blocks for g in groups), threads))


def _notation(groups: tuple[PackedGroup, ...]) -> str:
    return "pack { " + " ".join(f"{len(g.parts)} x {{ {g.program.notation} }}" for g in groups) + " };"


def _parameters(groups: tuple[PackedGroup, ...], threads: int) -> tuple[tuple[str, object], ...]:
    texts = ((f"group {n}", f"{len(g.parts)} x {g.program.notation}" + (" of any size" if g.any_size else "")
             + "".join(f", {name} {value}" for name, value in g.program.parameters)) for n, g in enumerate(groups))
    return (*texts, ("threads", threads))
