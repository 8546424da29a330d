"""Programs with sizes as arguments, run on the host executor: the emitted text, and their kernels with every access checked."""
from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.scripts.routine_runs import FLAGS, check_results, from_memory, in_memory, reference, script_graph, values
from tests.unit.templates.host_build import build, build_together, call
from tilefuse.base.options import Options
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.counts import count_value
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import For, Kernel, LastBlock, Let, OfTwo, Touched
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.programs import ScriptSearch
from tilefuse.scripts.schedule.sizes import expected_sizes, with_named_sizes
from tilefuse.scripts.sized_programs import SizedProgram, sized_program
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.tools.emit.sized import emit_sized

Shapes = Mapping[str, tuple[int, ...]]


def made(text: str, shapes: Shapes, device: DeviceSpec = H200, cases: slice = slice(None),
         strides: Mapping[str, tuple[int, ...]] | None = None) -> tuple[SizedProgram, ScriptSearch]:
    """The program that is chosen for some sizes, of routines, with some of its cases."""
    graph = with_named_sizes(script_graph(text, shapes, strides), strides or ())
    search = ScriptSearch(graph, device, Options(), "routines")
    return with_cases(sized_program(search, search.first(), device, Options()), cases), search


def with_cases(program: SizedProgram, cases: slice) -> SizedProgram:
    """The program with some of its cases."""
    steps = tuple(replace(s, kernels=s.kernels[cases]) for s in program.steps)
    return replace(program, cases=program.cases[cases], limits=program.limits[cases], steps=steps)


class HostProgram:
    """The emitted text for the processor, compiled."""

    def __init__(self, program: SizedProgram, search: ScriptSearch, folder: Path) -> None:
        files = emit_sized(program, "go", "out", host_device(), search.script_name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "out.h").write_text(files.header)
        self.program = program
        self.library = build(files.cu, folder, (*FLAGS, f"-I{folder}"))
        self.library.go_workspace_bytes.restype = self.library.go_zero_bytes.restype = ctypes.c_size_t
        self.library.go_refusal.restype = ctypes.c_char_p
        self.work = np.zeros(0, np.uint8)

    def arguments(self, sizes: Mapping[str, int]) -> list[ctypes.c_longlong]:
        """The sizes as the function takes them."""
        return [ctypes.c_longlong(sizes[s]) for s in self.program.sizes]

    def refusal(self, **sizes: int) -> str:
        """Why a call with these sizes would be refused; "" if it would not."""
        found = self.library.go_refusal(*self.arguments(sizes))
        return found.decode() if found else ""

    def prepare(self, graph: CallGraph) -> None:
        """A workspace for the sizes of a graph, as the header asks for it: zeros, then anything."""
        given = self.arguments(expected_sizes(graph))
        self.work = np.full(self.library.go_workspace_bytes(*given), 0xEE, np.uint8)
        self.work[:self.library.go_zero_bytes(*given)] = 0

    def run(self, graph: CallGraph, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The results for the sizes and inputs of a graph with named sizes."""
        memory = {n: in_memory(graph, n, v) for n, v in given.items()}
        memory |= {n: in_memory(graph, n, np.full(graph.variables[n].shape, np.nan) if graph.variables[n].dtype.is_float else
                                np.full(graph.variables[n].shape, -1)) for n in graph.outputs}
        pointers = [ctypes.c_void_p(memory[n].ctypes.data) for n in (*graph.inputs, *graph.outputs)]
        status = self.library.go(*self.arguments(expected_sizes(graph)), *pointers, ctypes.c_void_p(self.work.ctypes.data),
                                 ctypes.c_size_t(self.work.size))
        assert status == 0, self.refusal(**expected_sizes(graph))
        return {n: from_memory(graph, n, memory[n]) for n in graph.outputs}


def check_at(program: HostProgram, text: str, sizes: Sequence[Shapes]) -> None:
    """Asserts that results are right at all these sizes, twice each and in one workspace for the largest of them, which come first."""
    graphs = [with_named_sizes(script_graph(text, s)) for s in sizes]
    program.prepare(graphs[0])
    for graph in (*graphs, *graphs[::-1]):
        given = values(graph)
        check_results(graph, given, program.run(graph, given), {n: v.shape for n, v in graph.variables.items()})


def bound(x: Any, sizes: Mapping[str, int]) -> Any:
    """A kernel, or a part of one, with sizes that a launch gives in place of their names."""
    by_name = {n: number(v) for n, v in sizes.items()}
    match x:
        case Affine():
            return substitute(x, by_name)
        case Kernel():
            known = {s.name: count_value(s.count, sizes) for s in x.sizes}
            buffers = tuple(b if b.count is None else replace(b, num_elements=count_value(b.count, sizes), count=None) for b in x.buffers)
            blocks = x.launch.num_blocks if x.blocks is None else count_value(x.blocks, sizes)
            return replace(x, buffers=buffers, launch=replace(x.launch, num_blocks=blocks), sizes=(), blocks=None,
                           body=bound(x.body, {**sizes, **known}))
        case Let(name, OfTwo(function, left, right), extent):
            return Let(name, OfTwo(function, substitute(left, by_name), substitute(right, by_name)), extent)
        case For(step=Affine() as step):
            return bound(replace(x, step=substitute(step, by_name).const), sizes)
        case LastBlock(count=Affine() as count):
            return bound(replace(x, count=substitute(count, by_name).const), sizes)
        case Touched(scaled=scaled) if scaled:
            index = x.index
            for e, size in scaled:
                index = index + e * substitute(size, by_name).const
            return bound(replace(x, index=index, scaled=()), sizes)
        case tuple():
            return tuple(bound(part, sizes) for part in x)
        case _ if is_dataclass(x):
            return replace(x, **{f.name: bound(getattr(x, f.name), sizes) for f in fields(x) if f.init})  # type: ignore[type-var]
    return x


def check_accesses(program: SizedProgram, text: str, sizes: Sequence[tuple[Shapes, int]], folder: Path) -> None:
    """Asserts that the checking mode finds nothing and results are right, at these sizes; with each the number of a case."""
    graphs = [with_named_sizes(script_graph(text, s)) for s, _ in sizes]
    kernels = [bound(step.kernels[case], expected_sizes(g)) for g, (_, case) in zip(graphs, sizes, strict=True) for step in program.steps]
    library = build_together([(k, True) for k in kernels], folder, FLAGS)
    for n, graph in enumerate(graphs):
        given = values(graph)
        memory = {name: in_memory(graph, name, v) for name, v in given.items()}
        for k, step in enumerate(program.steps, n * len(program.steps)):
            own = {b.name: a for a, b in zip(step.arguments, kernels[k].parameters, strict=True)}
            mine = {b.name: memory[own[b.name]][:b.num_elements] for b in kernels[k].parameters if own[b.name] in memory}
            out, status, report = call(getattr(library, f"{kernels[k].name}_{k}"), kernels[k], mine)
            assert status == 0, f"{expected_sizes(graph)}: {report}"
            memory |= {own[b.name]: out[b.name] for b in kernels[k].parameters}
        known, _ = reference(graph, given)
        found = {name: from_memory(graph, name, memory[name].astype(NUMPY_DTYPES[graph.variables[name].dtype.name]))
                 for name in graph.outputs}
        assert known.keys() >= found.keys()
        check_results(graph, given, found, expected_sizes(graph))
