"""Users' texts for the planner and questions to it: plans and templates in files, and why two values are or are not in one kernel."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilefuse.base.errors import OptionError, UserError
from tilefuse.tools.console import emit_json, results


def with_files(option: Sequence[str] | None, plan: Path | None, template: Path | None) -> list[str]:
    """The `-O` flags with the texts of the two files. Raises: UserError for a file that is not there; ParseError naming its line."""
    from tilefuse.plan.text.text import parse_plan
    from tilefuse.templates.notation import parse_template

    flags = list(option or ())
    if plan is not None:
        text = _text(plan, "plan")
        parse_plan(text, str(plan))
        flags.append(f"plan={text}")
    if template is not None:
        text = _text(template, "template")
        parse_template(text, str(template))
        flags.append(f"template={text}")
    return flags


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise UserError(f"cannot read the {what} {path}: {cause}") from cause


def answer_why(made: Any, names: tuple[str, str], option: Sequence[str] | None, as_json: bool) -> None:
    """Print why two values of a planned program are or are not in one kernel. Raises: NameLookupError for an unknown value."""
    from tilefuse.base.options import Options
    from tilefuse.plan.text.edit import setting_of_plan
    from tilefuse.plan.text.why import why
    from tilefuse.tools.programs import parse_options

    first, second = (n.lstrip("%") for n in names)
    if not first or not second:
        raise OptionError("--why needs the names of two values", hint="--why A B")
    options = Options.from_environment().with_overrides(**parse_options(option or ()))
    answer = why(made.plan, setting_of_plan(made.plan, made.device, options), first, second)
    if as_json:
        emit_json(asdict(answer))
        return
    results().print(answer.text(), markup=False, highlight=False)
