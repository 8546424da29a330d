"""Saved programs read as data: nothing of the file is loaded as code, and it may be for another processor or GPU."""
from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.runtime.archive import PROGRAM, SPLIT
from tilefuse.runtime.explanation import explanation_data
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.runtime.spec_json import spec_from_json
from tilefuse.runtime.stores.cache import DAMAGE


@contextmanager
def opened_file(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive. Raises: UserError for a file that is damaged, or of which something is missing."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (*DAMAGE, KeyError, TypeError, OSError) as cause:
        raise UserError(f"{path} is not a readable saved program: {cause}", hint="compile and save it again") from cause


def saved_specs(path: Path) -> tuple[list[ProgramSpec], dict[str, Any]]:
    """The specs in a saved file (one, or those of a model's parts) and the facts of a model in parts ({} where it is one program).

    Raises: UserError for a file that is damaged or of another version.
    """
    with opened_file(path) as archive:
        if SPLIT not in archive.namelist():
            return [spec_from_json(archive.read(PROGRAM).decode())], {}
        facts: dict[str, Any] = json.loads(archive.read(SPLIT))
        specs = []
        for number in range(int(facts["programs"])):
            with archive.open(f"programs/{number}") as file, zipfile.ZipFile(file) as inner:
                specs.append(spec_from_json(inner.read(PROGRAM).decode()))
        return specs, facts


def saved_explanation(path: Path) -> dict[str, Any]:
    """The explanation that a saved file carries. Raises: as `saved_specs`; UserError for a program without one."""
    specs, facts = saved_specs(path)
    explanations = [explanation_data(spec) for spec in specs]
    if not explanations or not all(explanations):
        raise UserError(f"{path} carries no explanation", hint="programs of scripts have none; tilefuse info FILE lists the contents")
    if not facts:
        return explanations[0]
    from tilefuse.driver.explain.explain import joined_explanations

    return joined_explanations(path.stem, str(facts["device"]), explanations, (), ())
