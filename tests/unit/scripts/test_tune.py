"""The search over a script's programs: order, agreement of all of them, resumption, the best one is taken by later compiles."""
from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tilefuse import blas
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.base.search.limits import SEARCH
from tilefuse.driver.compile import present_device
from tilefuse.scripts.programs import ScriptSearch
from tilefuse.scripts.script import CompiledScript
from tilefuse.scripts.tune import ScriptTuner, best_known, num_sets, read_back, script_journal, script_key, written
from tilefuse.target.device import H200

AXPYDOT = "subvector32 w, v, u, z; scalar r; input w, v, u; z = saxpy(-0.75, v, w); r = sdot(z, u); return z, r;"
SIZES = {"w": (300,), "v": (300,), "u": (300,)}


@pytest.fixture
def function(tmp_path: Path) -> CompiledScript:
    return blas.compile(AXPYDOT, cache_dir=str(tmp_path))


def searched(function: CompiledScript) -> ScriptSearch:
    return function.search(function.graph_for(SIZES), present_device("host")[0])


def test_programs_come_in_order_of_predicted_time_and_agree(function: CompiledScript) -> None:
    trials = list(ScriptTuner(searched(function), "host").trials(6, 300.0, each=2))
    assert [t.rank for t in trials] == list(range(len(trials))) and len(trials) > 2
    assert trials[0].how.startswith("template") and searched(function).first().how == "template"
    assert [t.predicted_us for t in trials[1:]] == sorted(t.predicted_us for t in trials[1:])
    assert not any(isinstance(t.measured, Rejected) for t in trials), trials
    assert {"template", "routines"} <= {t.how.partition(":")[0] for t in trials}


def test_a_search_goes_on_where_it_stood(function: CompiledScript) -> None:
    first = list(itertools.islice(ScriptTuner(searched(function), "host").trials(4, 300.0, each=2), 2))
    again = list(ScriptTuner(searched(function), "host").trials(4, 300.0, each=2))
    assert [t.known for t in again] == [True, True, False, False]
    assert [t.measured for t in again[:2]] == [t.measured for t in first]


def test_later_compiles_take_the_fastest_program(function: CompiledScript) -> None:
    search = searched(function)
    trials = list(ScriptTuner(search, "host").trials(5, 300.0, each=2))
    best = min((t for t in trials if isinstance(t.measured, float)), key=lambda t: t.measured)
    known = best_known(searched(function))
    assert known is not None and known.how == best.how
    x = [torch.randn(300) for _ in range(3)]
    assert function.program_for(*x).choice.how == best.how
    z, r = function(*x)
    torch.testing.assert_close(z, x[0] - 0.75 * x[1])
    torch.testing.assert_close(r, z.dot(x[2]), rtol=1e-4, atol=1e-4)


def test_a_program_that_gives_other_results_is_rejected(function: CompiledScript) -> None:
    tuner = ScriptTuner(searched(function), "host")
    tuner._reference = [torch.zeros(300), torch.zeros(())]
    trial = next(tuner.trials(1, 300.0, each=1))
    assert isinstance(trial.measured, Rejected) and trial.measured.reason.value == "wrong-result"
    assert best_known(searched(function)) is None


def test_programs_as_data(function: CompiledScript) -> None:
    search = searched(function)
    for combination in itertools.islice(search.combinations(2), 5):
        back = read_back(search, written(combination))
        assert back is not None and written(back) == written(combination)
    broken = written(next(search.combinations(1)))
    for row in broken:
        row["kind"], row["decision"] = "routines", {"calls": [0, 1], "implementations": [999, 999]}
    assert read_back(search, broken) is None


def test_what_a_script_is_known_by(function: CompiledScript) -> None:
    key = script_key(function.graph_for(SIZES))
    renamed = blas.compile(AXPYDOT.replace("w", "first"))
    assert script_key(renamed.graph_for({"first": (300,), "v": (300,), "u": (300,)})) == key
    assert script_key(function.graph_for(dict.fromkeys("wvu", (301,)))) != key
    assert script_journal(present_device("host")[0], function.options).path is not None


def test_kinds(function: CompiledScript) -> None:
    x = [torch.randn(300) for _ in range(3)]
    for kind in ("template", "routines"):
        made = blas.compile(AXPYDOT, kind=kind)  # type: ignore[arg-type]
        assert made.program_for(*x).choice.how.startswith(kind)
        torch.testing.assert_close(made(*x)[0], x[0] - 0.75 * x[1])
    with pytest.raises(UserError, match="no kind of program 'fast'"):
        blas.compile(AXPYDOT, kind="fast")(*x)  # type: ignore[arg-type]
    plain = blas.compile(AXPYDOT, kind="routines", deterministic=True)
    assert "atomics" not in plain.program_for(*x).choice.how


def test_inputs_of_small_scripts_do_not_stay_in_the_cache() -> None:
    """Sixteen sets of 2^18 words fitted the second-level cache: the search preferred other programs than a cold call wants."""
    assert all(num_sets(size, H200.l2_bytes) * size >= 4 * H200.l2_bytes for size in (4 << 20, 16 << 20, 100 << 20, 1 << 30))
    assert num_sets(1 << 10, H200.l2_bytes) == SEARCH.scripts.input_sets and num_sets(0, H200.l2_bytes) == SEARCH.scripts.input_sets
    assert num_sets(1 << 40, H200.l2_bytes) == 2
