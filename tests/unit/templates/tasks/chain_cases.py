"""Chains in groups for tests: small graphs of a producer, a product and a user, their kernels with any rhythm, and runs on the host."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch

from tests.unit.templates.host_build import CHECKED_FLAGS, FLAGS, build, call
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import axis
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Input, Node, Type, node_inputs
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.scalar import Read, const
from tilefuse.ir.scalar import call as function
from tilefuse.kernel.ir import Kernel
from tilefuse.passes.device.minimal_filtering import minimal_filtering
from tilefuse.passes.device.transformed_tiles import TransformBuilder, Windows, windows_of
from tilefuse.printers.host import print_host
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import program_with
from tilefuse.templates.tasks.chains.build import USUAL, Patterns, build_chain, chains_of_length
from tilefuse.templates.tasks.chains.record import GroupedChain, Rhythm


@dataclass(frozen=True)
class ChainCase:
    """Patterns of a chain with inputs, and its result in f64 in the order of memory."""

    patterns: Patterns
    inputs: dict[str, np.ndarray]
    expected: np.ndarray
    tolerance: float

    def program(self, rhythm: Rhythm | None = None) -> TileProgram:
        """The chain's program, with another rhythm if one is given."""
        if rhythm is None:
            program = build_chain(self.patterns, H200)
            assert not isinstance(program, Rejected), program
            return program
        program = next(chains_of_length(self.patterns, rhythm.length, H200, USUAL))
        assert not isinstance(program, Rejected), program
        assert isinstance(program.choice, GroupedChain)
        other = program_with(program, replace(program.choice, rhythm=rhythm), H200)
        assert not isinstance(other, Rejected), other
        return other

    def kernel(self, rhythm: Rhythm | None = None) -> Kernel:
        """The chain's kernel."""
        return compose(self.program(rhythm), H200)

    def run(self, kernel: Kernel, folder: Path, check: bool = False, order: Sequence[int] | None = None) -> tuple[float, str]:
        """Largest error over the largest result, and the report of a run that did not end well."""
        library = build(print_host(kernel, check, order), folder, CHECKED_FLAGS if check else FLAGS)
        arrays = {b.name: self.inputs[b.origin] for b in kernel.parameters if b.role == "in"}
        after, status, report = call(getattr(library, kernel.name), kernel, arrays)
        out = next(after[b.name] for b in kernel.parameters if b.role == "out")
        error = np.abs(out.astype(np.float64) - self.expected.ravel()).max() / np.abs(self.expected).max()
        assert status or not any(after[b.name].any() for b in kernel.parameters if b.role == "counter"), "counters are zero again"
        return float(error), report if status else ""


def _part(nodes: Sequence[Node], types: dict[str, Type], result: str) -> Graph:
    return Graph("part", tuple(Input(v, types[v]) for v in node_inputs(nodes)), tuple(nodes), (result,))


def _patterns(parts: Sequence[Sequence[Node]], inputs: Sequence[Input], layouts: dict[str, tuple[int, ...]]) -> Patterns:
    nodes = [n for part in parts for n in part]
    types = {i.name: i.type for i in inputs} | {n.name: n.type for n in nodes}
    whole = Graph("chain", tuple(inputs), tuple(nodes), (nodes[-1].name,))
    producer, product, user = (_part(part, types, part[-1].name) for part in parts)
    return Patterns(whole, producer, product, user, (parts[0][-1].name, parts[1][-1].name), layouts)


@cache
def plain(rows: int = 300, inner: int = 48, columns: int = 40) -> ChainCase:
    """y = relu(x + b) w * s + r: no convolution."""
    t, c, k = axis("t"), axis("c"), axis("k")
    shapes = {"x": (rows, inner), "b": (inner,), "w": (inner, columns), "s": (columns,), "r": (rows, columns)}
    v = Node("v", Type(F32, (rows, inner)), "map", ("t", "c"),
             body=function("maximum", function("add", Read("x", (t, c)), Read("b", (c,))), const(0.0, F32)))
    m = Node("m", Type(F32, (rows, columns)), "library.matmul", operands=("v", "w"),
             attributes=(("precision", "default"), ("transpose_a", False), ("transpose_b", False)))
    y = Node("y", Type(F32, (rows, columns)), "map", ("t", "k"),
             body=function("add", function("mul", Read("m", (t, k)), Read("s", (k,))), Read("r", (t, k))))
    draw = np.random.default_rng(rows)
    data = {n: draw.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    wide = {n: a.astype(np.float64) for n, a in data.items()}
    expected = np.maximum(wide["x"] + wide["b"], 0) @ wide["w"] * wide["s"] + wide["r"]
    patterns = _patterns(((v,), (m,), (y,)), [Input(n, Type(F32, s)) for n, s in shapes.items()], {})
    return ChainCase(patterns, {n: a.ravel() for n, a in data.items()}, expected, 1e-5)


@cache
def winograd(batch: int, channels: int, features: int, side: int, padding: int, results: int, last: bool) -> ChainCase:
    """relu(convolution(x) + bias) over transformed tiles of results x results places, with filters at hand."""
    b = TensorBuilder("layer")
    shape = batch, channels, side, side
    x, w = b.input("x", F32, shape), b.input("w", F32, (features, channels, 3, 3))
    bias = b.input("bias", F32, (features,))
    graph = b.finish([b.convolution(x, w, bias, (1, 1), ((padding, padding),) * 2, (1, 1), 1)])
    node = next(n for n in graph.nodes if n.kind == "library.convolution")
    windows = windows_of(node, graph)
    assert isinstance(windows, Windows)
    filtering = minimal_filtering(results)
    parts = TransformBuilder(graph).of(node, windows, filtering, "default", last)
    outputs = parts.outputs[:2]
    end = outputs[-1]
    read = Read(end.name, tuple(map(axis, end.axes)))
    relu = Node("y", end.type, "map", end.axes, body=function("maximum", read, const(0.0, F32)))
    filters = parts.filters[-1]
    inputs = [Input("x", Type(F32, shape)), Input(filters.name, filters.type), Input("bias", Type(F32, (features,)))]
    patterns = _patterns((parts.tiles, (parts.product,), (*outputs, relu)), inputs, {"x": channels_last_strides(shape)} if last else {})
    draw = np.random.default_rng(side)
    image, weight = draw.standard_normal(shape), draw.standard_normal((features, channels, 3, 3)) / (3 * channels**0.5)
    offset = draw.standard_normal(features)
    image, weight, offset = (a.astype(np.float32).astype(np.float64) for a in (image, weight, offset))
    expected = torch.relu(torch.nn.functional.conv2d(*(torch.from_numpy(a) for a in (image, weight, offset)), padding=padding)).numpy()
    g = np.array([[float(e) for e in row] for row in filtering.filters])
    transformed = np.einsum("pi,kcij,qj->pqkc", g, weight, g).astype(np.float32)
    memory = image.transpose(0, 2, 3, 1) if last else image
    data = {"x": memory.ravel(), filters.name: transformed.ravel(), "bias": offset}
    return ChainCase(patterns, data, expected.transpose(0, 2, 3, 1) if last else expected, 3e-5)


def legal_order(kernel: Kernel, draw: Random) -> list[int]:
    """A random order of a kernel's tasks in which each comes behind those that it waits for."""
    from tests.unit.templates.tasks.task_runs import legal_order as random_order

    return random_order(kernel, draw)


CASES = {
    "no convolution": plain,
    "channels last, F(4x4), odd sizes": lambda: winograd(3, 20, 24, 13, 1, 4, True),
    "channels last, F(2x2)": lambda: winograd(5, 16, 40, 14, 0, 2, True),
    "row-major, F(4x4)": lambda: winograd(9, 12, 16, 15, 2, 4, False),
}
