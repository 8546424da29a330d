"""Subject of `tilefuse view` for one argument: a model's plan with priced reasons, a measured run of it, or the file of an explanation."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefuse.base.errors import OptionError, UserError
from tilefuse.runtime.archive import is_saved
from tilefuse.tools.saved_file import saved_specs
from tilefuse.tools.scripts import PlannedScript, is_script


def shown_programs(model: str, shapes: Sequence[str], device: str, option: Sequence[str], target: str, measure: bool, *, label: str = "",
                   side: int | None = None) -> list[dict[str, Any]]:
    """The programs of a page for one argument of the command: one, or those of a model that runs in parts.

    Raises: UserError for a file that is no explanation; OptionError where a device that is not here should be measured; as compiling.
    """
    if model.endswith(".json"):
        return _explained(read_explanation(Path(model)), {}, label, side)
    if not measure and is_saved(Path(model)):
        from tilefuse.runtime.page import spec_data

        specs, _ = saved_specs(Path(model))
        titles = [label or Path(model).stem] if len(specs) == 1 else [f"{label or Path(model).stem} {n} of {len(specs)}"
                                                                       for n in range(1, len(specs) + 1)]
        return [spec_data(spec, label=title, side=side if len(specs) == 1 else None) for spec, title in zip(specs, titles, strict=True)]
    if measure:
        if target:
            raise OptionError(f"--measure runs the model, and {target} need not be present", hint="leave out --target or --measure")
        if is_script(model):
            raise OptionError(f"--measure does not run the script {model}", hint="`tilefuse blas` times it; its kernels: call what "
                              "tilefuse.blas.compile gives, then tilefuse.view(script, arguments=(...))")
        return [_measured(model, shapes, device, option, label) | ({} if side is None else {"side": side})]
    return _planned(model, shapes, device, option, target, label, side)


def read_explanation(path: Path) -> dict[str, Any]:
    """The explanation in a file, as `explain --json` prints it. Raises: UserError where it is none."""
    try:
        explanation = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise UserError(f"cannot read the explanation {path}: {cause}") from cause
    if not isinstance(explanation, dict) or "kernels" not in explanation or not ("graph" in explanation or explanation.get("parts")):
        raise UserError(f"{path} is no explanation with a graph", hint="tilefuse explain MODEL --json > FILE writes one")
    return explanation


def _explained(explanation: Mapping[str, Any], sources: Mapping[str, str], label: str, side: int | None) -> list[dict[str, Any]]:
    """Programs of an explanation: its parts, where the model runs in parts."""
    from tilefuse.pages.page import program_data

    parts = explanation.get("parts")
    if not parts:
        return [program_data(explanation, sources, label=label, side=side)]
    return [program_data(part, sources, label=f"{label or explanation['name']} {number} of {len(parts)}")
            for number, part in enumerate(parts, 1)]


def _planned(model: str, shapes: Sequence[str], device: str, option: Sequence[str], target: str, label: str,
             side: int | None) -> list[dict[str, Any]]:
    """The plan alone, with why its steps are apart or together; a model that runs in parts shows its programs so far.

    Raises: UserError for a model in parts of which none is planned before its sizes are known; as compiling.
    """
    from tilefuse.base.options import Options
    from tilefuse.driver.compile import Generated
    from tilefuse.driver.explain.why import page_answers
    from tilefuse.runtime.page import spec_data
    from tilefuse.tools.programs import parse_options, planned_program

    planned = planned_program(model, list(shapes), device, list(option), target, quiet=False)
    if isinstance(planned, Generated):
        options = Options.from_environment().with_overrides(**parse_options(option))
        return [spec_data(planned.spec, label=label, answers=page_answers(planned.plan, planned.device, options), side=side)]
    if isinstance(planned, PlannedScript):
        return [spec_data(planned.spec, label=label, side=side)]
    explanation = planned.explain(json=True)
    if not explanation.get("parts"):
        raise UserError(f"{model} runs in parts, of which none is planned before a call tells its sizes",
                        hint="call the compiled model, then its .view(path)")
    return _explained(explanation, {k.name: k.source for k in planned.kernels}, label, side)


def _measured(model: str, shapes: Sequence[str], device: str, option: Sequence[str], label: str) -> dict[str, Any]:
    """The compiled program with the times of a run on drawn inputs."""
    from tilefuse.runtime.page import running_data
    from tilefuse.runtime.program import Program
    from tilefuse.tools.console import working
    from tilefuse.tools.programs import arguments_of, first_call, load_and_compile

    with working(f"compiling {model}", quiet=False):
        source, program_of_model, _ = load_and_compile(model, list(shapes), device, list(option))
    arguments, named = arguments_of(source, program_of_model)
    first_call(source, program_of_model, arguments, named)
    program = getattr(program_of_model, "program", program_of_model)
    if not isinstance(program, Program) or named:
        raise UserError(f"{model} runs in parts, of which no single run is measured", hint="leave out --measure")
    flat = arguments if program is program_of_model else program_of_model.leaves(arguments)
    return running_data(program, flat, label=label)
