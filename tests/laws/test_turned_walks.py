"""Walks over tensors that are turned, reshaped, padded and read with gaps, as an H200 would take them, compute what the graph means.

The kernels run in the host's checking mode: no element is written twice, none outside, none left out.
"""
from __future__ import annotations

from itertools import permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.test_compose import buffer_of
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.pattern import schedule_graph

EXTENTS = (1, 2, 3, 5, 8, 9, 16, 17, 24, 33, 40)
WIDE = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "i8": "i32", "i32": "i32"}
AXES = "abc"
GRAPHS = 24


def turned_graph(random: Random) -> Graph:
    """Up to three results of one tensor, each turned, some reshaped to a matrix, some padded with zeros behind their rows."""
    dtype = random.choice(sorted(WIDE))
    extents = dict(zip(AXES, (random.choice(EXTENTS) for _ in AXES)))
    stored = random.choice(list(permutations(AXES)))
    second = random.choice([None, *permutations(AXES)])
    inputs = [f"%x: {dtype}[{', '.join(str(extents[a]) for a in stored)}]"]
    if second is not None:
        inputs.append(f"%z: {dtype}[{', '.join(str(extents[a]) for a in second)}]")
    zero = "0" if dtype.startswith("i") else "0.0"

    def element(at: dict[str, str]) -> str:
        wide = WIDE[dtype]
        own = f"{wide}(%x[{', '.join(at[a] for a in stored)}])" if wide != dtype else f"%x[{', '.join(at[a] for a in stored)}]"
        if second is None:
            body = f"add({own}, {own})"
        else:
            other = f"%z[{', '.join(at[a] for a in second)}]"
            body = f"add({own}, {wide}({other}))" if wide != dtype else f"add({own}, {other})"
        return f"{dtype}({body})" if wide != dtype else body

    nodes, types = [], []
    for n in range(random.randint(1, 3)):
        order = random.choice(list(permutations(AXES)))
        sizes = [extents[a] for a in order]
        if random.random() < 0.4:
            shape = [sizes[0] * sizes[1], sizes[2]]
            at = {order[0]: f"(i // {sizes[1]})", order[1]: f"(i % {sizes[1]})", order[2]: "j"}
            names = ["i", "j"]
        else:
            shape, names = sizes, ["i", "j", "k"]
            at = dict(zip(order, names))
        body = element(at)
        if random.random() < 0.3:
            inside, shape = shape[-1], [*shape[:-1], -(-shape[-1] // 8) * 8]
            body = f"guard(0 <= {names[-1]} < {inside} ? {body} : {zero}:{dtype})" if shape[-1] > inside else body
        text = f"{dtype}[{', '.join(map(str, shape))}]"
        nodes.append(f"%y{n}: {text} = map [{', '.join(names)}] {{ {body} }}")
        types.append(text)
    results = ", ".join(f"%y{n}" for n in range(len(nodes)))
    return parse_graph(f"graph @turned({', '.join(inputs)}) -> ({', '.join(types)}) {{\n" + "\n".join(nodes) + f"\nreturn {results}\n}}")


def choices(program: TileProgram, random: Random) -> list[Choice | None]:
    """The choice of the device, and walks across two axes made by hand."""
    found: list[Choice | None] = [None]
    choice, domain = program.choice, program.internal
    if isinstance(choice, Pointwise):
        long = [a for a in choice.order if domain.extents[a] > 1]  # type: ignore[union-attr]
        if len(long) > 1:
            length = domain.extents[long[-1]]  # type: ignore[union-attr]
            vector = random.choice([v for v in (1, 2, 4, 8) if length % v == 0])
            found.append(Pointwise(choice.order, vector, random.choice((32, 64, 96)), random.choice((1, 2, 3)), random.random() < 0.5,
                                   random.choice(long[:-1]), random.choice((2, 4, 8, 16, 32))))
    return found


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("seed", range(4))
def test_turned_walks_compute_their_graphs(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    made = []
    for _ in range(GRAPHS):
        graph = turned_graph(random)
        layouts = {}
        if random.random() < 0.3:
            *outer, last = graph.type_of("x").shape
            pitch = last + random.choice((1, 7, 8 - last % 8))
            layouts["x"] = (outer[1] * pitch, pitch, 1) if len(outer) == 2 else (pitch, 1)
        program = schedule_graph(graph, layouts, H200)
        if not isinstance(program, TileProgram):
            continue  # results of several shapes need several kernels
        for wanted in choices(program, random):
            again = schedule_graph(graph, layouts, H200, wanted)
            assert isinstance(again, TileProgram)
            made.append((again, layouts, compose(again, H200)))
    assert len(made) > GRAPHS // 3
    library = build_together([(kernel, True) for _, _, kernel in made], tmp_path, SHORT_CHECKED_FLAGS)
    draw = np.random.default_rng(seed)
    for n, (program, layouts, kernel) in enumerate(made):
        given = {i.name: draw.integers(-20, 21, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in program.graph.inputs}
        memory = {}
        for b in kernel.parameters:
            if b.origin in given:
                array = given[b.origin]
                if b.origin in layouts:
                    spread = np.zeros(b.num_elements, array.dtype)
                    np.lib.stride_tricks.as_strided(spread, array.shape, [s * array.itemsize for s in layouts[b.origin]])[...] = array
                    array = spread
                memory[b.name] = array.ravel()
        held, status, report = call(getattr(library, f"{kernel.name}_{n}"), kernel, memory)
        assert status == 0, (program.choice, report)
        for result, value in zip(program.graph.results, interpret(program.graph, given), strict=True):
            np.testing.assert_array_equal(held[buffer_of(kernel, result).name].reshape(value.shape), value, err_msg=str(program.choice))
