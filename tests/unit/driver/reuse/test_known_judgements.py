"""A changed model judges what changed, also in another process; other compilers, devices, options and functions judge anew."""
from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.plan.price.test_known_patterns import growing
from tilefuse.base import trace
from tilefuse.base.options import Options
from tilefuse.driver.compile import Generated, generate
from tilefuse.driver.reuse import known_programs
from tilefuse.driver.reuse.known_judgements import family, judgements
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.runtime.spec_json import spec_to_json
from tilefuse.target.device import H200


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options with an empty cache folder, and known judgements switched on."""
    monkeypatch.setattr(known_programs, "enabled", True)
    return Options(cache_dir=str(tmp_path))


def planned(graph: Graph, options: Options) -> tuple[Generated, int]:
    """Plan and sources for an H200, and how many structures were scheduled for it."""
    with trace.tracing(trace.Trace(options)) as told:
        made = generate(graph, constants={}, device=H200, options=options)
    return made, sum(e["args"]["scheduled"] for e in told.events if e["name"] == "planned")


def changed(graph: Graph) -> Graph:
    """One node in the middle computes something else."""
    return parse_graph(print_graph(graph).replace("tanh(%x1[i, j])", "exp(%x1[i, j])"))


def test_a_changed_model_schedules_what_changed(options: Options) -> None:
    _, first = planned(growing(4), options)
    made, again = planned(changed(growing(4)), options)
    assert 0 < again < first
    afresh, everything = planned(changed(growing(4)), options.with_overrides(plan_cache=False))
    assert everything > again
    told, told_afresh = made.explain(json=True), afresh.explain(json=True)
    assert told.pop("options") != told_afresh.pop("options")
    for plan in (told["plan"], told_afresh["plan"]):
        del plan["seconds"]
    assert told == told_afresh
    assert replace(made.spec, explanation="") == replace(afresh.spec, explanation="")  # plan and sources, byte for byte
    assert planned(changed(growing(4)), options)[1] == 0


def test_another_process_finds_them(options: Options) -> None:
    made, first = planned(growing(3), options)
    fingerprint = known_programs.compiler_fingerprint()  # this process's: nobody may edit the compiler under the test
    script = f"""
import hashlib
from tests.unit.plan.price.test_known_patterns import growing
from tilefuse.runtime.spec_json import spec_to_json
from tests.unit.driver.reuse.test_known_judgements import planned
from tilefuse.base.options import Options
from tilefuse.driver.reuse import known_programs
known_programs.compiler_fingerprint = lambda: {fingerprint!r}
made, scheduled = planned(growing(3), Options(cache_dir={options.cache_dir!r}))
print(scheduled, hashlib.sha256(spec_to_json(made.spec).encode()).hexdigest())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert first > 0 and done.stdout.split() == ["0", hashlib.sha256(spec_to_json(made.spec).encode()).hexdigest()]


def families_differ() -> None:
    base = Options()
    others = [family(replace(H200, launch_us=9.0), base), family(H200, base.with_overrides(max_kernel_nodes=7)),
              family(H200, base.with_overrides(eager_rounding=True)), family(H200, base.with_overrides(stitch=False))]
    assert len({family(H200, base), *others}) == len(others) + 1
    assert family(H200, base) == family(H200, base.with_overrides(cache_dir="elsewhere", progress=False))
    assert family(H200, base) == family(H200, base.with_overrides(planner="greedy")), "planners choose among the same judgements"


def test_device_and_options_count() -> None:
    families_differ()


def test_the_compilers_own_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = family(H200, Options())
    monkeypatch.setattr(known_programs, "compiler_fingerprint", lambda: "another")
    assert family(H200, Options()) != before


@pytest.mark.parametrize("changes", [{"cache": False}, {"plan_cache": False}, {"measure": True}, {"verify": 2}])
def test_some_compiles_keep_nothing(options: Options, changes: dict[str, object]) -> None:
    with judgements(H200, options.with_overrides(**changes)) as store:
        assert store is None


def test_a_damaged_store_costs_a_warning(options: Options) -> None:
    from tilefuse.runtime.stores import judgement_store

    made, _ = planned(growing(2), options)
    for path in Path(options.cache_dir).rglob("judgements/*/*.bin"):
        path.write_bytes(path.read_bytes()[:-5])
    judgement_store._stores.clear()
    with pytest.warns(match="damaged judgements"):
        again, scheduled = planned(growing(2), options)
    assert scheduled > 0 and again.spec == made.spec
