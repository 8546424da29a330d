"""Packed kernels by hand: templates of some parts; the others stay as the scheduler chose them.

    pack { 12 x { w1 [GRID-CTA_1024]; steps=2; } 1 x { s [GRID-CTA_4,CTA_64]; } };

A part is found by any value that one of its members computes, and all alike members follow. One launch has one number of threads: parts
that say none follow those that do, where they can.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import NameLookupError, UserError, nearest
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.neighbours import program_with, with_threads
from tilefuse.templates.notation import Schedule, Template
from tilefuse.templates.packed.packed import Packed, packed_like, regrouped
from tilefuse.templates.packed.shares import replacement_refusal
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.walk import walk_template


def packed_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The packed kernel of the program's pattern with the parts that a template determines.

    In a template without `pack` each schedule is of the part that computes its value, as in figure 5 (a) of FusionStitching, and settings
    are of all these parts.
    Raises: NameLookupError for a value that no part computes; UserError for a wrong number of members, two templates of one part, or
    numbers of threads that parts cannot share; as `program_by_hand`.
    """
    packed = program.choice
    assert isinstance(packed, Packed)
    template_by_group: dict[int, Template] = {}
    counted = bool(template.parts)
    for count, part in template.parts or tuple((1, part) for part in _by_part(packed, template)):
        place = _place(packed, part)
        where = part.schedules[0].span
        if place in template_by_group:
            raise UserError(f"two templates of one part: %{part.schedules[0].name} is computed by a part that has one", where=where)
        members = len(packed.groups[place].parts)
        if counted and count != members:
            raise UserError(f"the part of %{part.schedules[0].name} has {members} members, and the template {count}", where=where,
                            hint=f"{members} x {{ ... }}")
        template_by_group[place] = _with_own_names(packed.groups[place], part)
    groups = [_by_hand(g, template_by_group[n], device) if n in template_by_group else g for n, g in enumerate(packed.groups)]
    threads = _common(packed, groups, template_by_group)
    alike = tuple(g if g.program.choice.num_threads == threads else _with_threads(g, threads, device) for g in groups)
    packed_program = packed_like(program, alike, device, threads)
    if isinstance(packed_program, Rejected):
        raise UserError(f"the template cannot be met: {packed_program}", where=next(iter(template_by_group.values())).schedules[0].span)
    return packed_program


def _by_part(packed: Packed, template: Template) -> tuple[Template, ...]:
    """A list of schedules as one template a part. Raises: UserError for unlike schedules of alike members; as `_place`."""
    schedules_by_group: dict[int, list[Schedule]] = {}
    for schedule in template.schedules:
        place = _place(packed, replace(template, schedules=(schedule,)))
        group = packed.groups[place]
        (own,) = _with_own_names(group, Template((schedule,))).schedules
        schedules = schedules_by_group.setdefault(place, [])
        for other, before in ((o, _with_own_names(group, Template((o,))).schedules[0]) for o in schedules):
            if before.name == own.name and (before.attrs, before.keep) != (own.attrs, own.keep):
                raise UserError(f"%{schedule.name} and %{other.name} are computed alike, and their schedules differ", where=schedule.span,
                                hint="members of one part share its template")
        if all(_with_own_names(group, Template((o,))).schedules[0].name != own.name for o in schedules):
            schedules.append(schedule)
    return tuple(replace(template, schedules=tuple(s)) for s in schedules_by_group.values()) or (template,)


def _place(packed: Packed, template: Template) -> int:
    """Which group a template is of: the one that computes the first value with a schedule that no other group computes too, as several
    compute a norm that they share; where there is none, the first group that computes the first value."""
    if not template.schedules:
        raise UserError("a part of a packed kernel is found by the values that it computes, and the template has no schedule",
                        hint="as in: 2 x { y [GRID-CTA_1024]; steps=2; }")
    homes = {s.name: [n for n, group in enumerate(packed.groups) if any(s.name in part.nodes for part in group.parts)]
             for s in template.schedules}
    first = template.schedules[0]
    for places in (*(p for p in homes.values() if len(p) == 1), homes[first.name]):
        if places:
            return places[0]
    names = [node for group in packed.groups for part in group.parts for node in part.nodes]
    raise NameLookupError(f"no part computes %{first.name}", where=first.span,
                          hint=nearest(first.name, names) or f"values: {', '.join(names[:SEARCH.texts.listed])}")


def _with_own_names(group: PackedGroup, template: Template) -> Template:
    """The template in the names of the group's body, which are those of one member."""
    member = max(group.parts, key=lambda p: sum(s.name in p.nodes for s in template.schedules))
    own = dict(zip(member.nodes, (n.name for n in group.program.graph.nodes), strict=True))
    return replace(template, schedules=tuple(replace(s, name=own.get(s.name, s.name)) for s in template.schedules))


def _by_hand(group: PackedGroup, template: Template, device: DeviceSpec) -> PackedGroup:
    if group.any_size:
        return regrouped(group, walk_template(group.program.choice).choice_by_hand(group.program, template, device))
    body = program_by_hand(group.program, template, device)
    if (why := replacement_refusal(body, group.program)) is not None:
        raise UserError(f"a part of a packed kernel cannot be like this: {why}", where=template.schedules[0].span)
    return _with_program(group, body)


def _with_program(group: PackedGroup, program: TileProgram) -> PackedGroup:
    return PackedGroup(program, tuple(replace(p, num_blocks=program.launch.num_blocks) for p in group.parts))


def _common(packed: Packed, groups: Sequence[PackedGroup], template_by_group: dict[int, Template]) -> int:
    """The number of threads of all parts. Raises: UserError where templates ask for different ones."""
    asked: dict[int, int] = {}
    for n in template_by_group:
        threads = groups[n].program.choice.num_threads
        if threads != packed.threads:
            asked.setdefault(threads, n)
    if len(asked) > 1:
        where = template_by_group[max(asked.values())].schedules[0].span
        raise UserError(f"parts of {' and '.join(map(str, sorted(asked)))} threads a block; a launch has one number", where=where)
    return next(iter(asked), packed.threads)


def _with_threads(group: PackedGroup, threads: int, device: DeviceSpec) -> PackedGroup:
    """A group that follows the others' number of threads."""
    choice = with_threads(group.program, threads, device)
    if group.any_size and choice is not None:
        return regrouped(group, choice)
    body = None if choice is None else program_with(group.program, choice, device)
    if body is None or isinstance(body, Rejected):
        why = f": {body}" if isinstance(body, Rejected) else ""
        raise UserError(f"the part of %{group.program.graph.results[0]} has no form with blocks of {threads} threads{why}",
                        hint=f"it has {group.program.choice.num_threads} now")
    return _with_program(group, body)
