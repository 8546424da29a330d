"""Many small operator cases as one program, on any executor: starting a compiler costs more than most of the cases.

The same list runs on the host executor here and on a device in `tests/gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.end_to_end.torch.reference import assert_same, flat, trace
from tests.end_to_end.torch.test_operators import CASES, inputs_for
from tilefuse.driver.compile import compile_graph
from tilefuse.driver.model import restore
from tilefuse.frontends.imported import Imported
from tilefuse.ir.rewrite import rename_values

BATCH = 32
Drawn = tuple[str, Callable[..., Any], list[torch.Tensor]]


def batches(all_dtypes: bool) -> list[list[tuple[str, int]]]:
    """(case number, dtype number) pairs in batches; only the first dtype of each case, or all."""
    listed = [(str(n), d) for n, case in enumerate(CASES) for d in range(len(case[3]) if all_dtypes else 1)]
    return [listed[at : at + BATCH] for at in range(0, len(listed), BATCH)]


def batch_name(batch: Sequence[tuple[str, int]]) -> str:
    """First and last case of a batch."""
    first, last = (CASES[int(batch[at][0])][0].replace(" ", "-") for at in (0, -1))
    return f"{first}...{last}"


def failures(batch: Sequence[tuple[str, int]], device: str) -> list[str]:
    """Faults of a batch compiled for a device, one line a case; results are judged against torch on the host."""
    drawn: list[Drawn] = []
    for number, at in batch:
        name, function, makers, dtypes = CASES[int(number)]
        drawn.append((f"{name}-{str(dtypes[at])[6:]}", function, inputs_for(name, makers, dtypes[at])))
    imported = [trace(function, inputs) for _, function, inputs in drawn]
    if device != "host":
        # Traced on the host, attention is an operator that exists only there (on a device the models' tests cover it).
        there = [not any(n.kind.endswith("_for_cpu.default") for n in i.graph.nodes) for i in imported]
        drawn = [d for d, kept in zip(drawn, there, strict=True) if kept]
        imported = [i for i, kept in zip(imported, there, strict=True) if kept]
    outcomes = run_merged(imported, [inputs for _, _, inputs in drawn], device)
    wrong: list[str] = []
    for (name, function, inputs), made in zip(drawn, outcomes, strict=True):
        try:
            assert_same([t.cpu() for t in made], flat(function(*inputs)))
        except AssertionError as error:
            wrong.append(f"{name}: {' '.join(str(error).split())[:300]}")
    return wrong


def run_merged(graphs: Sequence[Imported], inputs: Sequence[Sequence[torch.Tensor]], device: str) -> list[list[torch.Tensor]]:
    """Outputs of every graph on its inputs, from one compiled program."""
    whole = replace(graphs[0].graph, name="merged", inputs=(), nodes=(), results=(), updates=())
    data: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    layouts: dict[str, tuple[int, ...]] = {}
    spans: list[tuple[int, int]] = []
    place = "cuda" if device.startswith("cuda") else "cpu"
    for number, (imported, given) in enumerate(zip(graphs, inputs, strict=True)):
        names = {value: f"p{number}_{value}" for value in imported.graph.type_by_name}
        graph = rename_values(imported.graph, names)
        spans.append((len(whole.results), len(graph.results)))
        whole = replace(
            whole,
            inputs=whole.inputs + graph.inputs,
            nodes=whole.nodes + graph.nodes,
            results=whole.results + graph.results,
            updates=whole.updates + graph.updates,
        )
        constants |= {names[k]: v for k, v in imported.constants.items()}
        layouts |= {names[k]: v for k, v in imported.layouts.items()}
        data |= {names[k]: t.to(place) for k, t in zip(imported.arguments, given, strict=True) if k is not None}
    program = compile_graph(whole, constants=constants, input_layouts=layouts, device=device)
    results = program(*(data[name] for name in program.spec.inputs))
    found: list[list[torch.Tensor]] = []
    for imported, given, (first, count) in zip(graphs, inputs, spans, strict=True):
        own = results[first : first + count]
        outputs = [restore(o, own, given) for o in imported.outputs] if imported.outputs else own
        found.append([t for t in outputs if isinstance(t, torch.Tensor)])
    return found
