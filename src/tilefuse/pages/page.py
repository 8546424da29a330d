"""The page's text: template, styles and scripts of `assets/`, libraries of installed packages, and the programs as JSON.

Each program: label, explanation, drawing, sources by kernel name; where they are known also resources by kernel name, times of a
measured run in order of steps (`start_us`, `us`), priced answers to why two values share a kernel or not. `side` marks the two of a
comparison.
"""
from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefuse.pages.drawing import drawing_of
from tilefuse.pages.libraries import LIBRARIES, script_of

FOLDER = Path(__file__).parent / "assets"
SCRIPTS = ("words", "graph", "kernel", "why", "plots", "main")


def program_data(explanation: Mapping[str, Any], sources: Mapping[str, str], *, label: str = "", resources: Mapping[str, Any] | None = None,
                 times: Sequence[Mapping[str, Any]] = (), answers: Sequence[Mapping[str, Any]] = (),
                 side: int | None = None) -> dict[str, Any]:
    """One program of a page, as the module's text says."""
    data = {"label": label or str(explanation.get("name", "program")), "explanation": explanation, "drawing": drawing_of(explanation),
            "sources": dict(sources), "resources": dict(resources or {}), "times": list(times), "answers": list(answers)}
    return data if side is None else data | {"side": side}


def page_text(title: str, programs: Sequence[Mapping[str, Any]]) -> str:
    """The whole page. Exact: the same programs and packages give the same text. Raises: UnsupportedError where a package is missing."""
    parts = {
        "TITLE": html.escape(title),
        "STYLE": _file("page.css"),
        "SCRIPT": "\n".join(_file(f"{name}.js") for name in SCRIPTS),
        "LIBRARIES": "\n".join(f"<script>{script_of(lib)}</script>" for lib in LIBRARIES),
        # A script element ends at the first "</", and does not end at all behind "<!--<script", also inside a string.
        "DATA": json.dumps({"title": title, "programs": list(programs)}, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return re.sub("@([A-Z]+)@", lambda m: parts[m[1]], _file("page.html"))


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
