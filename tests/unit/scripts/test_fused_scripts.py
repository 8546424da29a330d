"""Whole scripts as combinations of fused kernels: the eleven sequences, and random scripts, against NumPy in double precision."""
from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from tests.unit.scripts.routine_runs import Built, check_results, script_graph, values
from tests.unit.scripts.routine_scripts import SEQUENCES, sequence
from tests.unit.templates.host_build import compiler
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.plan.combinations import Combination, FusionImplementation, combinations
from tilefuse.scripts.plan.fusions import find_fusions
from tilefuse.scripts.plan.implementations import implementations
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.target.device import H200

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def some_combinations(graph: CallGraph, count: int, seed: int) -> list[Combination]:
    """The best combination, the one without fusions, and others of a wide choice of implementations."""
    numbers = random.Random(seed)
    ways: dict[tuple[int, ...], list[FusionImplementation]] = {}
    for f in find_fusions(graph).legal:
        built = list(itertools.islice(implementations(graph, f, H200), 40))
        ways[f.calls] = [built[0], *numbers.sample(built[1:], min(3, len(built) - 1))]
    found = list(itertools.islice(combinations(graph, ways), 200))
    alone = max(found, key=lambda c: len(c.parts))
    return [found[0], alone, *numbers.sample(found, min(count, len(found)))]


def run_all(graph: CallGraph, chosen: list[Combination], folder: Path, check: bool) -> None:
    """Runs combinations and compares every variable that they write."""
    programs = [[p.content for p in c.parts if isinstance(p.content, FusedRoutines)] for c in chosen]
    built = Built(programs, folder, check)
    given = values(graph, 3)
    for n, combination in enumerate(chosen):
        got = built.run(n, given)
        assert set(graph.outputs) <= set(got)
        check_results(graph, given, got, [str(p) for p in combination.parts])


@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_sequences(name: str, tmp_path: Path) -> None:
    """The best predicted, the unfused and some other combination of each sequence, over sizes that no tile divides."""
    graph = sequence(name, 131, 259)
    run_all(graph, some_combinations(graph, 1, 5), tmp_path, check=True)


@pytest.mark.parametrize("name", ["bicgk", "gemver", "axpydot"])
def test_sequences_in_double_precision(name: str, tmp_path: Path) -> None:
    """As above, by the functions of double precision."""
    graph = sequence(name, 67, 130, double=True)
    run_all(graph, some_combinations(graph, 0, 6)[:1], tmp_path, check=True)


@pytest.mark.parametrize("seed", range(4))
def test_random_scripts(seed: int, tmp_path: Path) -> None:
    """Random scripts over vectors and matrices: fused as predicted best, and at random, they compute what the calls mean."""
    graph = random_script(seed)
    run_all(graph, some_combinations(graph, 1, seed), tmp_path, check=False)


def random_script(seed: int) -> CallGraph:
    """A script of up to six calls whose operands are drawn from what is there; its last results are returned."""
    numbers = random.Random(seed)
    m, n = numbers.choice([1, 33, 130]), numbers.choice([1, 70, 257])
    vectors: dict[int, list[str]] = {m: ["a0"], n: ["b0"]} if m != n else {m: ["a0", "b0"]}
    matrices = ["A"]
    lines: list[str] = []
    made: list[str] = []
    for k in range(numbers.randint(3, 6)):
        size = numbers.choice(list(vectors))
        x, y = numbers.choice(vectors[size]), numbers.choice(vectors[size])
        A, name = numbers.choice(matrices), f"t{k}"
        forms = {
            "saxpy": (f"{name} = saxpy(0.5, {x}, {y});", size), "sscal": (f"{name} = sscal(-0.5, {x});", size),
            "sdot": (f"{name} = sdot({x}, {y});", 0), "sasum": (f"{name} = sasum({x});", 0), "snrm2": (f"{name} = snrm2({x});", 0),
            "sgemv": (f"{name} = sgemv({A}, {numbers.choice(vectors[n])});", m),
            "sgemtv": (f"{name} = sgemtv({A}, {numbers.choice(vectors[m])});", n),
            "sger": (f"{name} = sger(0.25, {numbers.choice(vectors[m])}, {numbers.choice(vectors[n])}, {A});", -1),
        }
        text, made_size = forms[numbers.choice(sorted(forms))]
        lines.append(text)
        made.append(name)
        if made_size > 0:
            vectors[made_size].append(name)
        elif made_size < 0:
            matrices.append(name)
    body = " ".join(lines)
    shapes = {v: s for v, s in {"A": (m, n), "a0": (m,), "b0": (n,)}.items() if re.search(rf"[(,] ?{v}[,)]", body)}
    declared = " ".join(f"{'matrix' if v == 'A' else 'vector'} {v};" for v in shapes)
    return script_graph(f"{declared} input {', '.join(shapes)}; {body} return {', '.join(made)};", shapes)
