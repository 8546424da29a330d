"""One page with all programs of a compiled object."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefuse.inspection.profile import Profile, profile_of
from tilefuse.inspection.subject import Part, subject_of
from tilefuse.runtime.page import running_data, spec_data, write_page
from tilefuse.runtime.program import Program


def write_view(compiled: Any, path: Path | str | None = None, *, arguments: Sequence[Any] | Mapping[str, Any] | None = None,
               show: bool = False) -> Path:
    """Writes the page and gives its path. arguments: those of a call, by place or by name, of which a run is measured.

    Raises: as `subject_of`, `write_page` and, with arguments, `profile_of`.
    """
    measured: Profile | None = None
    if arguments is not None:
        positional, named = ((), dict(arguments)) if isinstance(arguments, Mapping) else (tuple(arguments), {})
        measured = profile_of(compiled, positional, named)
    subject = subject_of(compiled)
    rows = [] if measured is None else list(measured.data["parts"])
    programs = []
    for part in subject.parts:
        row = next((r for r in rows if r["name"] == part.name and r["sizes"] == part.sizes), None)
        page = _data(part) | ({} if row is None else _times(row))
        beside = [f"{i.kind} at {i.place or 'a place not known'}: {i.what}: {i.reason}" for i in subject.in_torch
                  if i.kind != "operator" and (part.name == i.part or part.name.startswith(f"{i.part}_"))]
        explanation = page["explanation"]
        programs.append(page | {"explanation": {**explanation, "notes": [*explanation.get("notes", ()), *beside]}})
    return write_page(subject.name, programs, path, show=show)


def _data(part: Part) -> dict[str, Any]:
    label = f"{part.title}{f' ({part.function})' if part.function else ''}"
    return running_data(part.program, label=label) if isinstance(part.program, Program) else spec_data(part.program.spec, label=label)


def _times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Measured times of a program's steps, for its page."""
    return {"times": [{"start_us": s["start_us"], "us": s["us"]} for s in row["steps"]],
            "call_us": round(max((s["start_us"] + s["us"] for s in row["steps"]), default=0.0), 3)}
