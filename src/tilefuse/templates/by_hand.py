"""Programs by hand: the kernel that a template written by a person or a tuner determines, as the program's own template reads it."""
from __future__ import annotations

from tilefuse.base.errors import UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Template
from tilefuse.templates.registry import kernel_template


def program_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The program of the same pattern that a template determines.

    Raises: as `KernelTemplate.program_by_hand`; UserError for a setting that is given twice; InternalError for a choice of no template.
    """
    for number, setting in enumerate(template.settings):
        if any(s.name == setting.name and s.value != setting.value for s in template.settings[:number]):
            raise UserError(f"setting {setting.name} is given twice, as {setting.value} too", where=setting.span, hint="leave one out")
    return kernel_template(program.choice).program_by_hand(program, template, device)
