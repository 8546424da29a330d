"""Products of one row with several matrices of unlike row counts, behind a norm or not, with residuals or without."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.unit.templates.pattern_graphs import ROUNDOFF, SMALLEST, Arrays, Pattern, computed, narrow, smooth, wide
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.packed.packed import Packed, packed_like
from tilefuse.templates.packed.shares import shared_blocks
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.pattern import schedule_pattern


def products_of_one_row(rows: Sequence[int], length: int, dtype: str = "f32", norm: str = "rms", residual: bool = False) -> Pattern:
    """A row behind an RMS norm ("rms"), a layer norm ("layer") or none (""), times each matrix; all products read one value."""
    inputs, lines, results = [f"%x: {dtype}[1, {length}]"], _norm_lines(length, dtype, norm), []
    inputs += [f"%s: {dtype}[{length}]"] if norm else []
    for n, count in enumerate(rows):
        inputs.append(f"%w{n}: {dtype}[{count}, {length}]")
        lines.append(f"%p{n}: {dtype}[1, {count}] = library.matmul(%{'n' if norm else 'x'}, %w{n}) "
                     "{transpose_a=false, transpose_b=true, precision=\"ieee\"}")
        results.append(f"%p{n}")
        if residual:
            inputs.append(f"%r{n}: {dtype}[1, {count}]")
            added = narrow(f"add({wide(f'%p{n}[0, j]', dtype)}, {wide(f'%r{n}[0, j]', dtype)})", dtype)
            lines.append(f"%y{n}: {dtype}[1, {count}] = map [i, j] {{ {added} }}")
            results[-1] = f"%y{n}"
    types = ", ".join(f"{dtype}[1, {count}]" for count in rows)
    text = "\n".join([f"graph @products({', '.join(inputs)}) -> ({types}) {{", *lines, f"return {', '.join(results)}", "}"])

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        """A sum of n terms has error n u of their magnitudes; a norm adds its rounded elements, a residual a rounding of the product."""
        exact = {name: values.astype(np.float64) for name, values in arrays.items()}
        row, unit, error_of_term = exact["x"][0], ROUNDOFF[computed(dtype)], 2.0 * ROUNDOFF[computed(dtype)]
        magnitudes = np.abs(row)
        if norm:
            mean = row.mean() if norm == "layer" else 0.0
            scale = exact["s"] / np.sqrt(((row - mean) ** 2).mean() + 1e-5)
            row, magnitudes = (row - mean) * scale, (magnitudes + abs(mean)) * np.abs(scale)
            error_of_term += (length + 16) * unit + ROUNDOFF[dtype]
        found = []
        for n in range(len(rows)):
            weights = exact[f"w{n}"]
            error = magnitudes @ np.abs(weights).T * (length * unit + error_of_term)
            largest = np.abs(row @ weights.T) + np.abs(exact[f"r{n}"][0] if residual else 0.0) + error
            found.append((error + 2 * ROUNDOFF[dtype] * largest)[None] + SMALLEST[dtype])
        return found
    return Pattern(parse_graph(text), smooth, bounds)


def _norm_lines(length: int, dtype: str, norm: str) -> list[str]:
    """The nodes of a norm of %x, whose last one is %n."""
    read, at, weight = (wide(text, dtype) for text in ("%x[0, k]", "%x[0, j]", "%s[j]"))
    factor = f"%f: f32[1] = map [i] {{ rsqrt(add(mul(%q[0], {1 / length}:f32), 0.00001:f32)) }}"
    if norm == "rms":
        return [f"%q: f32[1] = reduce.sum [i] over [k < {length}] {{ mul({read}, {read}) }}", factor,
                f"%n: {dtype}[1, {length}] = map [i, j] {{ {narrow(f'mul(mul({at}, %f[0]), {weight})', dtype)} }}"]
    if norm == "layer":
        element = narrow(f"mul(mul(sub({at}, mul(%t[0], {1 / length}:f32)), %f[0]), {weight})", dtype)
        return [f"%t: f32[1] = reduce.sum [i] over [k < {length}] {{ {read} }}",
                f"%q: f32[1] = reduce.m2 [i] over [k < {length}] {{ {read} }}", factor,
                f"%n: {dtype}[1, {length}] = map [i, j] {{ {element} }}"]
    return []


def packed(graph: Graph, device: DeviceSpec = H200, fetches_early: bool = True) -> TileProgram:
    """The packed program of a graph."""
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, device, packing=True, fetches_early=fetches_early)
    assert isinstance(program, TileProgram), program
    assert isinstance(program.choice, Packed)
    return program


def in_turns(program: TileProgram, device: DeviceSpec) -> TileProgram:
    """The packed program whose blocks take turns, whatever its price."""
    assert isinstance(program.choice, Packed)
    groups = program.choice.groups
    shares = shared_blocks({n: g.program for n, g in enumerate(groups)}, {n: len(g.parts) for n, g in enumerate(groups)}, True, device)
    assert shares is not None
    shared = tuple(PackedGroup(shares[n], tuple(replace(p, num_blocks=shares[n].launch.num_blocks) for p in g.parts))
                   for n, g in enumerate(groups))
    made = packed_like(program, shared, device, shares[0].launch.num_threads)
    assert isinstance(made, TileProgram), made
    return made
