"""Programs by hand: the kernel that a template written by a person or a tuner determines, whatever its kind."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Template, agree, keeps
from tilefuse.templates.packed.packed_by_hand import packed_by_hand
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.staged.online.program import online_by_hand
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitched_by_hand import stitched_by_hand
from tilefuse.templates.walk_template import LAUNCH_SETTINGS, choice_by_hand, template_of
from tilefuse.templates.whole_in_block import in_own_words


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
        if not all(agree(a, b) for a, b in zip(schedule.attrs, wanted.attrs, strict=True)):
            raise UserError(f"schedule {schedule.name} contradicts the others of its kernel", where=schedule.span,
                            hint=f"the kernel's loops then are: {wanted}")
        if not keeps(schedule.keep, wanted.keep, schedule.name in made.graph.results):
            raise UserError(f"schedule {schedule.name} cannot keep its result there", where=schedule.span,
                            hint=f"these loops exchange it as in: {wanted}")
    told = {s.name: s for s in full.settings}
    for setting in template.settings:
        if setting.name in LAUNCH_SETTINGS and told[setting.name].value != setting.value:
            raise UserError(f"{setting.name}={setting.value}, but the schedules give {told[setting.name].value}", where=setting.span,
                            hint="leave it out, or change GRID and CTA")
    return made
