"""Programs by hand: the kernel that a template written by a person or a tuner determines, whatever its kind."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.schedule.notation import Attr, Step, Template, Worker
from tilefuse.schedule.online_program import online_by_hand
from tilefuse.schedule.packed_by_hand import packed_by_hand
from tilefuse.schedule.pattern import schedule_graph
from tilefuse.schedule.resolved import Domain
from tilefuse.schedule.stitched import stitched_by_hand
from tilefuse.schedule.template import Online, Stitched
from tilefuse.schedule.tile import Level, TileProgram
from tilefuse.schedule.walk_template import LAUNCH_SETTINGS, choice_by_hand, template_of
from tilefuse.schedule.whole_in_block import in_own_words
from tilefuse.target.device import DeviceSpec


def program_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The program of the same pattern that a template determines.

    Raises: as `choice_by_hand`; UserError where the template contradicts itself, or the scheduler rejects what it asks for.
    """
    for number, setting in enumerate(template.settings):
        if any(s.name == setting.name and s.value != setting.value for s in template.settings[:number]):
            raise UserError(f"setting {setting.name} is given twice, as {setting.value} too", where=setting.span, hint="leave one out")
    if isinstance(program.choice, Stitched):
        return stitched_by_hand(program, template, device)
    if program.template == "packed":
        return packed_by_hand(program, template, device, program_by_hand)
    if isinstance(program.choice, Online):
        return online_by_hand(program, template, device)
    template = in_own_words(template, program, device)
    choice = choice_by_hand(program, template, device)
    made = schedule_graph(program.graph, program.layouts, device, choice)
    where = template.schedules[0].span if template.schedules else None
    if isinstance(made, Rejected):
        raise UserError(f"the template cannot be met: {made}", where=where)
    domain = made.internal
    assert isinstance(domain, Domain)
    full = template_of(choice, domain, made.graph, made.launch)
    meant = {s.name: s for s in full.schedules}
    for schedule in template.schedules:
        wanted = meant[schedule.name]
        if not all(_agree(a, b) for a, b in zip(schedule.attrs, wanted.attrs, strict=True)):
            raise UserError(f"schedule {schedule.name} contradicts the others of its kernel", where=schedule.span,
                            hint=f"the kernel's loops then are: {wanted}")
        if not _keeps(schedule.keep, wanted.keep, schedule.name in made.graph.results):
            raise UserError(f"schedule {schedule.name} cannot keep its result there", where=schedule.span,
                            hint=f"these loops exchange it as in: {wanted}")
    told = {s.name: s for s in full.settings}
    for setting in template.settings:
        if setting.name in LAUNCH_SETTINGS and told[setting.name].value != setting.value:
            raise UserError(f"{setting.name}={setting.value}, but the schedules give {told[setting.name].value}", where=setting.span,
                            hint="leave it out, or change GRID and CTA")
    return made


def _keeps(written: tuple[Level, ...], meant: tuple[Level, ...], is_result: bool) -> bool:
    """Whether the destinations of a schedule are those of its kernel. The paper has no letter for global memory beside shared memory:
    that a value is a result as well may be left out, and so may where threads exchange it."""
    levels = set(written) - {Level.GLOBAL}
    return (not levels or levels == set(meant) - {Level.GLOBAL}) and (Level.GLOBAL not in written or is_result)


def _agree(written: Attr, meant: Attr) -> bool:
    """Whether a written attribute says the same; counts may be left out, and so may a single step inside a block."""
    if len(written) == 1 and len(meant) == 2 and written[0].worker is Worker.GRID and meant[1].count == 1:
        meant = meant[:1]
    return len(written) == len(meant) and all(_same_step(a, b) for a, b in zip(written, meant))


def _same_step(written: Step, meant: Step) -> bool:
    if written.worker is meant.worker:
        return written.count is None or meant.count is None or written.count == meant.count
    # The threads of a block may be one warp.
    return ({written.worker, meant.worker} == {Worker.CTA, Worker.WARP}
            and (written.count == meant.count or written == Step(Worker.CTA)))
