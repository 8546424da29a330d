"""From the patterns of a producer, a product and a user to one kernel of tasks in groups of tiles, or the reason why there is none.

    %v = producer(..)   %m = %v x weights   y = user(%m, ..)      over places t of one axis      ->      groups of places, each a chain

A chain is legal where the accesses of the composed bodies show that the blocks of a group touch elements of that group of %v and %m alone.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import COLUMN, ROW, contraction_of
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import EdgeLevel, Level, TileProgram
from tilefuse.ir.affine import axis
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.tasks.extract import span_of, steps_of
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.choose import choose_program
from tilefuse.templates.registry import kernel_template, kernel_templates
from tilefuse.templates.request import Request, in_precision
from tilefuse.templates.tasks.bodies import body_refusal, common_body, composed_refusal
from tilefuse.templates.tasks.build import Setting
from tilefuse.templates.tasks.chains.price import blocks_a_task, ranked_products, workers_of
from tilefuse.templates.tasks.chains.record import PRODUCER, PRODUCT, USER, GroupedChain, Rhythm, mixture_of
from tilefuse.templates.tasks.chains.regroup import Grouping, regrouped

USUAL = Setting()


@dataclass(frozen=True, slots=True)
class Patterns:
    """The three patterns of a chain, each a graph of its own, and all of them together.

    handed: names of %v and %m. alone: their programs as kernels of their own, empty where the product is a call.
    """

    whole: Graph
    producer: Graph
    product: Graph
    user: Graph
    handed: tuple[str, str]
    layouts: Layouts
    eager_rounding: bool = False
    alone: tuple[TileProgram, ...] = ()


def build_chain(patterns: Patterns, device: DeviceSpec, setting: Setting = USUAL) -> TileProgram | Rejected:
    """The cheapest chain of the patterns by predicted time, or why there is none. Cost: composes three bodies for each length of groups."""
    if device.kind != "cuda":
        return Rejected(Reason.UNSUPPORTED_OP, "a processor's caches keep tiles between kernels that follow each other")
    best: tuple[float, TileProgram] | None = None
    refusal: Rejected | None = None
    for length in SEARCH.tasks.group_lengths:
        for program in chains_of_length(patterns, length, device, setting):
            if isinstance(program, Rejected):
                refusal = refusal or program
                continue
            us = price_work(kernel_template(program.choice).work(program, device), device).us
            if best is None or us < best[0]:
                best = us, program
    return best[1] if best is not None else refusal or Rejected(Reason.DOMAIN_MISMATCH, "no length of groups is tried")


def axes_of_chain(patterns: Patterns) -> tuple[int, int] | Rejected:
    """Numbers of the shared axis in %v and in %m: the rows of the product, or its columns."""
    v, m = patterns.handed
    contraction = contraction_of(patterns.product.node_by_name[m], patterns.product)
    if contraction is None or v not in (contraction.left, contraction.right) or contraction.left == contraction.right:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{m} is no product of %{v} and another value")
    if contraction.bias:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{m} adds a bias")
    is_left = contraction.left == v
    name, index = (ROW, contraction.left_index) if is_left else (COLUMN, contraction.right_index)
    place = next((n for n, e in enumerate(index) if e == axis(name)), None)
    if place is None:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{v} has no axis of its own in %{m}")
    return place, contraction.axes.index(name)


def chains_of_length(patterns: Patterns, length: int, device: DeviceSpec, setting: Setting) -> Iterator[TileProgram | Rejected]:
    """Chains with groups of one length."""
    axes = axes_of_chain(patterns)
    if isinstance(axes, Rejected):
        yield axes
        return
    v, m = patterns.handed
    grouping = Grouping(patterns.whole.type_of(v).shape[axes[0]], length)
    graphs = [regrouped(g, {x: p for x, p in ((v, axes[0]), (m, axes[1])) if x in g.type_by_name}, grouping)
              for g in (patterns.producer, patterns.product, patterns.user)]
    producer, product, user = graphs
    if producer is None or product is None or user is None:
        yield Rejected(Reason.DOMAIN_MISMATCH, f"%{v} or %{m} is computed from groups, or used, by more than maps")
        return
    ends = tuple(_end(graph, patterns, device) for graph in (producer, user))
    refusal = next((e for e in ends if isinstance(e, Rejected)), None)
    products = _products(product, device) if refusal is None else refusal
    if isinstance(products, Rejected):
        yield products
        return
    first, last = (e for e in ends if isinstance(e, TileProgram))
    group_bytes = sum(patterns.whole.type_of(x).num_bytes for x in (v, m)) // grouping.count
    ranked = ranked_products(first, products, last, setting.together, grouping.count, group_bytes, device)
    if not ranked:
        yield Rejected(Reason.REGISTERS, f"no block of all three bodies fits a multiprocessor of {device.name}")
    ends_by_threads: dict[int, tuple[TileProgram | None, TileProgram | None]] = {}
    for p in ranked[:SEARCH.tasks.chain_products]:
        threads = p.choice.num_threads
        if threads not in ends_by_threads:
            ends_by_threads[threads] = common_body(first, threads, device), common_body(last, threads, device)
        start, end = ends_by_threads[threads]
        if start is not None and end is not None:
            yield from _with_bodies(patterns, (start, p, end), grouping, device, setting)


def _with_bodies(patterns: Patterns, bodies: tuple[TileProgram, ...], grouping: Grouping, device: DeviceSpec,
                 setting: Setting) -> Iterator[TileProgram | Rejected]:
    """Chains of three bodies, in the rhythms that are tried."""
    refusal = next((why for b in bodies if (why := composed_refusal(b, device)) is not None), None)
    blocks = _blocks_of_group(patterns, bodies, grouping.count, device) if refusal is None else refusal
    if isinstance(blocks, Rejected):
        yield blocks
        return
    workers = workers_of(bodies, setting.together, device)
    each = blocks_a_task(bodies, blocks, grouping.count)
    base = GroupedChain(bodies[0].choice.num_threads, workers, Rhythm(grouping.length, 1, 1, 1, (1, 1)), bodies, patterns.handed,
                        grouping.count, blocks, each, patterns.alone, setting.limit_ms, setting.recorded, setting.together)
    rhythms = [r for together in SEARCH.tasks.groups_together if (r := _rhythm(base, together, device)) is not None]
    if not rhythms:
        yield Rejected(Reason.MEMORY, f"groups of {grouping.length} places in flight exceed a share of {device.name}'s L2")
    for rhythm in rhythms:
        yield chain_program(patterns.whole, patterns.layouts, replace(base, rhythm=rhythm), device)


def with_other_products(program: TileProgram, choice: GroupedChain, device: DeviceSpec) -> Iterator[GroupedChain]:
    """The chain with other bodies for its product, the fastest by predicted time first."""
    first, product, last = choice.bodies
    products = _products(product.graph, device)
    patterns = Patterns(program.graph, first.graph, product.graph, last.graph, choice.handed, program.layouts, alone=choice.alone)
    grouping = Grouping(choice.groups * choice.rhythm.length, choice.rhythm.length)
    setting = Setting(choice.resident, limit_ms=choice.limit_ms, recorded=choice.recorded)
    group_bytes = choice.handed_bytes(0) + choice.handed_bytes(1)
    ranked = [] if isinstance(products, Rejected) else ranked_products(first, products, last, choice.resident, choice.groups, group_bytes,
                                                                       device)
    others = [p for p in ranked if p.choice != product.choice]
    for p in others[:SEARCH.tasks.other_products]:
        ends = [common_body(end, p.choice.num_threads, device) for end in (first, last)]
        if ends[0] is not None and ends[1] is not None:
            other = next(_with_bodies(patterns, (ends[0], p, ends[1]), grouping, device, setting))
            if isinstance(other, TileProgram) and isinstance(other.choice, GroupedChain):
                yield other.choice


def _end(graph: Graph, patterns: Patterns, device: DeviceSpec) -> TileProgram | Rejected:
    """The program of a producer or a user over groups."""
    return choose_program(Request(in_precision(graph, patterns.eager_rounding), patterns.layouts, device, patterns.eager_rounding))


def _products(graph: Graph, device: DeviceSpec) -> list[TileProgram] | Rejected:
    """Programs of the product whose blocks may be tasks: of each template the cheapest one, and those near it."""
    programs: list[TileProgram] = []
    refusals: list[Rejected] = []
    for template in (t for t in kernel_templates() if not t.packs):
        program = template.propose(Request(graph, {}, device, is_part=True, is_task=True))
        why = program if isinstance(program, Rejected) else body_refusal(program) or composed_refusal(program, device)
        if why is not None:
            refusals.append(why)
        elif isinstance(program, TileProgram):
            own = kernel_template(program.choice)
            others = (own.program_with(program, choice, device) for choice in own.neighbours(program, device))
            programs += (program, *(p for p in others if isinstance(p, TileProgram)))
    return programs or next((r for r in refusals if r.reason is not Reason.OTHER_TEMPLATE), refusals[0])


def _blocks_of_group(patterns: Patterns, bodies: Sequence[TileProgram], groups: int, device: DeviceSpec) -> tuple[int, ...] | Rejected:
    """Blocks of each body in a group, or why they touch other groups' elements."""
    counts: list[int] = []
    for n, body in enumerate(bodies):
        kernel = kernel_template(body.choice).compose(body, device)
        values = {patterns.handed[0]} if n == PRODUCER else {patterns.handed[1]} if n == USER else set(patterns.handed)
        length_by_slot = {b.name: body.graph.type_of(b.origin).num_elements // groups for b in kernel.parameters if b.origin in values}
        count = _blocks(kernel, length_by_slot, groups)
        if count is None:
            return Rejected(Reason.NEEDS_GRID_SYNC, f"blocks of %{body.graph.results[0]} need elements of several groups")
        counts.append(count)
    return tuple(counts)


def _blocks(kernel: Kernel, length_by_slot: dict[str, int], groups: int) -> int | None:
    """Blocks of a group: so many blocks further, each access lies one group further; the first ones touch the first group alone."""
    total = kernel.launch.num_blocks
    least, most = (total, total) if groups == 1 else (-(-total // groups), total // (groups - 1))
    for count in range(least, min(most, least + SEARCH.tasks.group_counts) + 1):
        steps = steps_of(kernel, "block", count, set(length_by_slot))
        if groups > 1 and any(step != length_by_slot[slot] for slot, step in steps):
            continue
        spans = [(span_of(kernel.body, slot, kernel.launch.num_threads, count), length) for slot, length in length_by_slot.items()]
        if all(span is not None and span[0] >= 0 and span[1] <= length for span, length in spans):
            return count
    return None


def _rhythm(choice: GroupedChain, together: int, device: DeviceSpec) -> Rhythm | None:
    """Distances at which the tasks that one waits for are done when it is taken, or the largest whose rings fit a share of L2.

    A task's parents stand as many tasks before it as blocks run at once. The ring holds the groups between, and as many again: a slot's
    last reader is done when its next writer is taken.
    """
    most_bytes = device.l2_bytes * device.fitted.tasks.ring_l2_share
    rounds = -(-choice.workers // (choice.tasks_a_group * together))
    while rounds:
        ahead = rounds * together
        slots = min(2 * ahead + together, choice.groups), min((2 * rounds + 1) * together, choice.groups)
        rhythm = Rhythm(choice.rhythm.length, together, ahead, rounds, slots)
        if replace(choice, rhythm=rhythm).ring_bytes <= most_bytes:
            return rhythm
        rounds -= 1
    return None


def chain_program(graph: Graph, layouts: Layouts, choice: GroupedChain, device: DeviceSpec) -> TileProgram:
    """The tile program of a chain. graph: of all three patterns together."""
    rhythm, mixture = choice.rhythm, mixture_of(choice)
    v, m = choice.handed
    names = [n.name for n in graph.nodes]
    inner = tuple(EdgeLevel(e.producer, e.user, e.level) for b in choice.bodies for e in b.levels
                  if e.producer in names and e.user in names and e.producer not in (v, m))
    edges = tuple(EdgeLevel(value, u, Level.GRID) for value in (v, m) for u in graph.users_by_name[value])
    parameters = (("tasks", mixture.num_tasks), ("groups", choice.groups), ("group_length", rhythm.length),
                  ("tasks_a_group", tuple(choice.tasks(n) for n in range(3))), ("blocks_a_task", choice.each),
                  ("groups_together", rhythm.together), ("groups_ahead", rhythm.ahead), ("rounds_between", rhythm.between),
                  ("ring_slots", rhythm.slots), ("ring_bytes", choice.ring_bytes), ("counters", 3 * choice.groups),
                  ("threads", choice.threads), ("workers", choice.workers), ("product", choice.bodies[PRODUCT].notation))
    notation = "grouped chain { " + " ".join(f"{{ {b.notation} }}" for b in choice.bodies) + " };"
    own = {i.name for i in graph.inputs} | set(graph.results)
    return TileProgram(
        name=f"chain_{choice.bodies[USER].name}"[:SEARCH.texts.packed_name_characters], graph=graph, choice=choice, notation=notation,
        layouts={name: layouts[name] for name in graph.type_by_name if name in layouts and name in own}, parameters=parameters,
        levels=tuple(dict.fromkeys((*inner, *edges))), launch=Launch(min(choice.workers, mixture.num_tasks), choice.threads),
        bytes_read=sum(i.type.num_bytes for i in graph.inputs), bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results),
        flops=sum(b.flops for b in choice.bodies))
