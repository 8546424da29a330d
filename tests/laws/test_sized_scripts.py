"""Random scripts whose sizes are arguments: chosen for some sizes, right at others, in one workspace; with every access checked."""
from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.laws.random_scripts import random_script
from tests.unit.scripts.routine_runs import script_graph
from tests.unit.scripts.sized_runs import HostProgram, Shapes, check_accesses, check_at, made
from tilefuse.scripts.schedule.sizes import with_named_sizes

SEEDS = (3, 7, 20)
EXTENTS = (1, 2, 5, 17, 32, 63, 64, 65, 127, 130, 200, 257)


def drawn(random: Random, text: str, shapes: Shapes, most: int = 0) -> Shapes:
    """Other shapes of the script's inputs, drawn for each size by itself; all of them `most` where that is given."""
    graph = with_named_sizes(script_graph(text, shapes))
    sizes = {s: most or random.choice(EXTENTS) for v in graph.variables.values() for s in v.sizes}
    return {n: tuple(sizes[s] for s in graph.variables[n].sizes) for n in graph.inputs}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_scripts_are_right_at_every_size(seed: int, tmp_path: Path) -> None:
    script = random_script(seed)
    random = Random(seed)
    shapes = drawn(random, script.text, {n: a.shape for n, a in script.arguments.items()})
    program, search = made(script.text, shapes)
    others = [drawn(random, script.text, shapes, max(EXTENTS)), *(drawn(random, script.text, shapes) for _ in range(4))]
    check_at(HostProgram(program, search, tmp_path), script.text, others)
    check_accesses(program, script.text, [(others[1], len(program.cases) - 1)], tmp_path)
