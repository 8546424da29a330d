"""The BLAS suite: every sequence at every size in both types, scripts that parse, listings."""
from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from benchmarks import paper_tables
from benchmarks.__main__ import main
from benchmarks.blas import SEQUENCES, SIDES, SOLVERS, VECTORS, cases
from benchmarks.case import Case
from benchmarks.record import Record
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


def test_the_papers_tables_come_from_records(tmp_path: Path) -> None:
    """Rates and ratios of a made-up record: 1 us for what cuBLAS takes 2, the second program best, the third slowest."""
    peers = {"eager": {"status": "ok", "us": 2.0}, "tilefuse": {"status": "ok", "us": 1.0, "bytes": 4000}}
    sequences = Record(tmp_path / "blas.json", {"device": "made up"}, {"scal/f32/8": {"peers": {}}, "scal/f32/1000": {"peers": peers}})
    row = {"programs": [{"us": 2.0}, {"us": 1.0}, {"us": 4.0}, {"us": None}], "num_implementations": 3, "num_timed": 3, "first_s": 0.01,
           "list_s": 0.02, "search_s": 1.5}
    searches = Record(tmp_path / "search.json", {"device": "made up"}, {"scal/f32/1000": row})
    printed = paper_tables.text(sequences, searches)
    assert "| scal | 1 | 0 | 2.00 | 1.05 | B |" in printed and "| scal | 2.00 | - | 4 |" in printed
    assert "| scal | 3 | 2 | 50.0% | 25.0% |" in printed and "| scal | 0.010 | 0.020 | 1.5 (3 programs) |" in printed
