"""Timings of a routine say nothing of another text of it; a file's name is no script; fusions without routines say why."""
from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tilefuse.blas as blas
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.scripts.language.routine_library import read_library, shipped_folder
from tilefuse.scripts.plan import implementations as routine_implementations
from tilefuse.scripts.programs import ScriptSearch
from tilefuse.scripts.tune import script_key
from tilefuse.target.device import H200

SCRIPT = "vector x, y, z; scalar a; input a, x, y; z = saxpy(a, x, y); return z;"
SHAPES = {"x": (4096,), "y": (4096,), "a": ()}


def _key(folder: Path | None = None) -> str:
    return script_key(blas.compile(SCRIPT, **({} if folder is None else {"library": folder})).graph_for(SHAPES))


def test_a_changed_routine_is_timed_anew(tmp_path: Path) -> None:
    """Routine text, meaning and geometry count; what only people read does not."""
    plain = _key()
    assert plain == _key()
    keys = {plain}
    changes = [("vectors.h", "z[s] = ", "z[s] = 0 + "), ("function.toml", "alpha * x[i] + y[i]", "y[i] + alpha * x[i]")]
    for number, (file, old, new) in enumerate(changes):
        folder = tmp_path / str(number)
        shutil.copytree(shipped_folder() / "axpy", folder / "axpy")
        path = folder / "axpy" / file
        path.write_text(path.read_text().replace(old, new))
        keys.add(_key(folder))
    assert len(keys) == 3
    function = read_library().functions["saxpy"]
    assert replace(function, brief="other words").timed_name == function.timed_name != replace(function, neutral="1").timed_name


def test_options_that_decide_code_are_part_of_it() -> None:
    graph = blas.compile(SCRIPT).graph_for(SHAPES)
    plain = script_key(graph)
    assert script_key(graph, Options()) == plain == script_key(graph, Options(jobs=3)) != script_key(graph, Options(fast_math=True))


@pytest.mark.parametrize("text", ["bicgk.blas", "examples/bicgk.blas", "/absent/script"])
def test_the_name_of_a_file_is_told(text: str) -> None:
    with pytest.raises(UserError, match="did you mean to read the file"):
        blas.compile(text)


def test_fusions_without_routines_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that refuses everything, then candidates that were all pruned: each fusion has a reason of its own."""
    function = blas.compile(SCRIPT)
    search = ScriptSearch(function.graph_for(SHAPES), H200, Options())
    assert search.unimplemented() == ()
    monkeypatch.setattr(routine_implementations, "schedule_routines", lambda *_: Rejected(Reason.REGISTERS, "too many"))
    (calls, why), = search.unimplemented()
    assert calls == (0,) and why.reason is Reason.REGISTERS and why.detail.startswith("too many; ")
    without_registers = replace(H200, fitted=replace(H200.fitted, scripts=replace(H200.fitted.scripts, most_registers=0)))
    (_, why), = ScriptSearch(function.graph_for(SHAPES), without_registers, Options()).unimplemented()
    assert why.reason is Reason.REGISTERS and "at most 0" in why.detail
