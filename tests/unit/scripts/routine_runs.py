"""Runs fused kernels of routines on the host executor against NumPy in double precision, with computed rounding bounds."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.unit.templates.host_build import build_together, call
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import Kernel
from tilefuse.scripts.compose.compose import compose_routines
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.language.lower import ArgumentShape, call_graph, resolve
from tilefuse.scripts.language.routine_library import FunctionLibrary, read_library
from tilefuse.scripts.language.syntax import parse_script
from tilefuse.scripts.schedule.routines import FusedRoutines, extent_in_memory

Array = np.ndarray
FLAGS = ("-O0", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-w")
LIBRARY = read_library()

# Meanings of the library's functions, without the letter of the type.
MEANINGS: dict[str, Callable[..., object]] = {
    "axpy": lambda a, x, y: a * x + y, "scal": lambda a, x: a * x, "waxpby": lambda a, x, b, y: a * x + b * y,
    "vadd": lambda x, y: x + y, "vadd3": lambda w, y, z: w + y + z, "copy": lambda x: x, "vmul": lambda x, y: x * y,
    "swap": lambda x, y: (y, x),
    "rot": lambda x, y, c, s: (c * x + s * y, c * y - s * x), "dot": lambda x, y: x @ y, "asum": lambda x: np.abs(x).sum(),
    "nrm2": lambda x: np.sqrt((x * x).sum()), "iamax": lambda x: int(np.argmax(np.abs(x))) if x.size else 0,
    "gemv": lambda A, x: A @ x, "gemtv": lambda A, r: A.T @ r, "ger": lambda a, x, y, A: a * np.outer(x, y) + A,
    "madd": lambda A, B: A + B, "mscal": lambda a, A: a * A,
    "divide": lambda a, b: a / b, "multiply": lambda a, b: a * b, "negate": lambda a: -a, "sqrt": np.sqrt,
    "trmv": lambda A, x: np.tril(A) @ x, "trmtv": lambda A, x: np.tril(A).T @ x,
    "trmv_upper": lambda A, x: np.triu(A) @ x, "trmtv_upper": lambda A, x: np.triu(A).T @ x,
    "trmv_below": lambda A, x: np.tril(A, -1) @ x, "trmtv_below": lambda A, x: np.tril(A, -1).T @ x,
    "trmv_above": lambda A, x: np.triu(A, 1) @ x, "trmtv_above": lambda A, x: np.triu(A, 1).T @ x,
    "gemv_full": lambda a, A, x, b, y: a * (A @ x) + b * y, "gemtv_full": lambda a, A, r, b, s: a * (A.T @ r) + b * s,
}
# Where the size of a result is not what the function makes of the sizes of its operands.
SIZES: dict[str, Callable[..., object]] = {
    "isamax": lambda x: 0.0, "idamax": lambda x: 0.0, "srot": lambda x, y, c, s: (c * x + s * y, c * y + s * x),
    "drot": lambda x, y, c, s: (c * x + s * y, c * y + s * x),
}


def script_graph(text: str, shapes: Mapping[str, tuple[int, ...]], strides: Mapping[str, tuple[int, ...]] | None = None,
                 library: FunctionLibrary = LIBRARY) -> CallGraph:
    """The call graph of a script for arguments of these shapes; strides in words, dense where not given."""
    resolved = resolve(parse_script(text), library)
    given = {n: ArgumentShape(s, (strides or {}).get(n, ())) for n, s in shapes.items()}
    return call_graph(resolved, given)


def values(graph: CallGraph, seed: int = 0) -> dict[str, Array]:
    """Random inputs in double precision, exact in the graph's types."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in graph.inputs:
        v = graph.variables[name]
        found[name] = rng.uniform(-1, 1, v.shape).astype(NUMPY_DTYPES[v.dtype.name]).astype(np.float64)
    return found


def reference(graph: CallGraph, given: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Every variable in double precision, and for each a bound of |value| without cancellation (all terms positive)."""
    known, size = dict(given), {n: np.abs(v) for n, v in given.items()}
    for one in graph.calls:
        meaning = MEANINGS["iamax" if one.function.name in ("isamax", "idamax") else one.function.name[1:]]
        for table, kind in ((known, "value"), (size, "size")):
            arguments = [table[a] if isinstance(a, str) else np.float64(abs(a) if kind == "size" else a) for a in one.arguments]
            if kind == "size" and "divide" in one.function.name:
                arguments[1] = np.abs(known[str(one.arguments[1])]) if isinstance(one.arguments[1], str) else arguments[1]
            if kind == "size" and one.function.name in SIZES:
                made = SIZES[one.function.name](*arguments)
            else:
                made = meaning(*arguments)
            results = made if isinstance(made, tuple) else (made,)
            for name, value in zip(one.results, results, strict=True):
                table[name] = np.abs(np.asarray(value, np.float64)) if kind == "size" else np.asarray(value, np.float64)
    return known, size


def in_memory(graph: CallGraph, name: str, value: Array) -> Array:
    """An array as the kernels find it: with its strides, gaps filled with numbers that show when they are read."""
    v = graph.variables[name]
    flat = np.full(max(extent_in_memory(graph, name), 1), 7e8, NUMPY_DTYPES[v.dtype.name])
    if value.size:
        shape = value.T if v.is_transposed else value
        np.lib.stride_tricks.as_strided(flat, v.shape, tuple(s * flat.itemsize for s in v.word_strides))[...] = shape
    return flat


def from_memory(graph: CallGraph, name: str, flat: Array) -> Array:
    """The contents of a variable."""
    v = graph.variables[name]
    if 0 in v.shape:
        return np.zeros(v.shape)
    return np.lib.stride_tricks.as_strided(flat, v.shape, tuple(s * flat.itemsize for s in v.word_strides)).astype(np.float64)


def kernels_of(fused: Sequence[FusedRoutines]) -> list[Kernel]:
    """All kernels, in order, under names of their own."""
    found: list[Kernel] = []
    for f in fused:
        found += [replace(k, name=f"{k.name}_{len(found) + n}") for n, k in enumerate(compose_routines(f))]
    return found


class Built:
    """Kernels of several fusions, compiled together; each can be run by itself."""

    def __init__(self, programs: Sequence[Sequence[FusedRoutines]], folder: Path, check: bool = True) -> None:
        self.programs = programs
        self.kernels = [kernels_of(p) for p in programs]
        flat = [(k, check) for p in self.kernels for k in p]
        self.library = build_together(flat, folder, FLAGS)
        self.start = [sum(len(p) for p in self.kernels[:n]) for n in range(len(programs))]

    def run(self, number: int, given: Mapping[str, Array]) -> dict[str, Array]:
        """Contents of all variables that a program's kernels write. The checking mode must find nothing."""
        graph = self.programs[number][0].graph
        memory = {name: in_memory(graph, name, v) for name, v in given.items()}
        for n, kernel in enumerate(self.kernels[number]):
            function = getattr(self.library, f"{kernel.name}_{self.start[number] + n}")
            mine = {b.name: memory[b.name][:b.num_elements] for b in kernel.parameters if b.name in memory}
            out, status, report = call(function, kernel, mine)
            assert status == 0, f"{self.programs[number][0].decision}: {report}"
            memory |= {b.name: out[b.name] for b in kernel.parameters}
        return {r: from_memory(graph, r, memory[r]) for c in graph.calls for r in c.results if r in memory}


def check_results(graph: CallGraph, given: Mapping[str, Array], got: Mapping[str, Array], note: object = "") -> None:
    """Asserts that results are within a rounding bound of the double-precision ones (Higham 2002, section 3.1)."""
    known, size = reference(graph, given)
    depth = 4 + 2 * len(graph.calls) + sum(max(s for s in (*c.sizes.values(), 1)) for c in graph.calls if c.function.kind.reduces)
    for name, value in got.items():
        unit = 2.0 ** (-24 if graph.variables[name].dtype.name == "f32" else -53)
        error, bound = np.abs(value - known[name]), 2 * depth * unit * size[name] + 1e-300
        assert value.shape == known[name].shape
        assert (error <= bound).all(), f"{note}: %{name} is off by {error.max()}, bound {np.asarray(bound).max()}"
