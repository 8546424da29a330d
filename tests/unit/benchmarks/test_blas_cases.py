"""The BLAS suite: every sequence at every size in both types, scripts that parse, listings."""
from __future__ import annotations

import inspect

import pytest

from benchmarks.__main__ import main
from benchmarks.blas import SEQUENCES, SIDES, SOLVERS, VECTORS, cases
from benchmarks.case import Case
from tilefuse import blas

ELEVEN = {"axpydot", "atax", "bicgk", "gemv", "gemvt", "scal", "gemver", "gesummv", "madd", "vadd", "waxpby"}


def test_the_sequences_of_the_paper_at_every_size() -> None:
    assert {s.name for s in SEQUENCES} == ELEVEN
    made = cases()
    assert len(made) == len({c.name for c in made}) == 2 * 6 * (len(SEQUENCES) + len(SOLVERS))
    first = {c.name.rpartition("/")[2] for c in made if c.rank == 0}
    assert made[0].dtype == "f32" and first == {f"{SIDES[-1]}x{SIDES[-1]}", str(VECTORS[-1])}


@pytest.mark.parametrize("case", [c for c in cases(tiny=True) if c.rank in (0, 6)], ids=lambda c: c.name)
def test_scripts_take_the_arguments_that_the_torch_forms_take(case: Case) -> None:
    assert len(blas.compile(case.script).inputs) == len(inspect.signature(case.function).parameters)


@pytest.mark.parametrize("suite", ["blas", "search"])
def test_listings(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([suite, "--list", "--only", "bicgk"]) == 0
    assert "bicgk" in capsys.readouterr().out
