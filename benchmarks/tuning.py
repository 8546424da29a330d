"""How each template's parameters change the time of one kernel: every variant of a case compiled, checked and timed in one run.

    python -m benchmarks.tuning --only softmax --seconds 300

The choices in the folders of `tilefuse.templates` come from this table. Units: us, GB/s; `share` is the fraction of a copy of equal bytes.
"""
from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import CompilerError
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.build import GraphBuilder, read_at
from tilefuse.ir.dtype import DTYPES, F32, I64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import call, cast, const
from tilefuse.printers.cuda import print_cuda
from tilefuse.runtime.compilers.nvrtc import compile_cuda
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelCode, KernelStep, ProgramSpec, Value
from tilefuse.target.device import H200
from tilefuse.target.launch import Parameter
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.pattern import schedule_graph

TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i64": torch.int64}


def softmax(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("softmax")
    x = b.input("x", t, (m, n))
    top = b.add_reduction("m", "max", F32, (m,), ("i",), (("k", n),), cast(read_at(x, ["i", "k"]), F32))
    e = b.map("e", F32, (m, n), ("i", "j"), call("exp", call("sub", cast(read_at(x, ["i", "j"]), F32), read_at(top, ["i"]))))
    s = b.add_reduction("s", "sum", F32, (m,), ("i",), (("k", n),), read_at(e, ["i", "k"]))
    r = b.map("r", F32, (m,), ("i",), call("reciprocal", read_at(s, ["i"])))
    return b.finish([b.map("y", t, (m, n), ("i", "j"), cast(call("mul", read_at(e, ["i", "j"]), read_at(r, ["i"])), t))])


def layer_norm(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("layer_norm")
    x, w = b.input("x", t, (m, n)), b.input("w", t, (n,))
    body = cast(read_at(x, ["i", "k"]), F32)
    s = b.add_reduction("s", "sum", F32, (m,), ("i",), (("k", n),), body)
    q = b.add_reduction("q", "m2", F32, (m,), ("i",), (("k", n),), body)
    mean = b.map("mean", F32, (m,), ("i",), call("mul", read_at(s, ["i"]), const(1 / n, F32)))
    r = b.map("r", F32, (m,), ("i",), call("rsqrt", call("add", call("mul", read_at(q, ["i"]), const(1 / n, F32)), const(1e-5, F32))))
    y = call("mul", call("mul", call("sub", cast(read_at(x, ["i", "j"]), F32), read_at(mean, ["i"])), read_at(r, ["i"])),
             cast(read_at(w, ["j"]), F32))
    return b.finish([b.map("y", t, (m, n), ("i", "j"), cast(y, t))])


def add(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("add")
    x, z = b.input("x", t, (m, n)), b.input("z", t, (m, n))
    body = call("add", cast(read_at(x, ["i", "j"]), F32), cast(read_at(z, ["i", "j"]), F32))
    return b.finish([b.map("y", t, (m, n), ("i", "j"), cast(body, t) if t != F32 else body)])


def copy(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("copy")
    x = b.input("x", t, (m, n))
    return b.finish([b.map("y", t, (m, n), ("i", "j"), read_at(x, ["i", "j"]))])


def column_sum(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("column_sum")
    x = b.input("x", t, (m, n))
    return b.finish([b.add_reduction("s", "sum", F32, (n,), ("i",), (("k", m),), cast(read_at(x, ["k", "i"]), F32))])


def row_sum(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("row_sum")
    x = b.input("x", t, (m, n))
    return b.finish([b.add_reduction("s", "sum", F32, (m,), ("i",), (("k", n),), cast(read_at(x, ["i", "k"]), F32))])


def argmax(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("argmax")
    x = b.input("x", t, (m, n))
    return b.finish([b.add_reduction("s", "argmax", I64, (m,), ("i",), (("k", n),), cast(read_at(x, ["i", "k"]), F32))])


def transpose(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("transpose")
    x = b.input("x", t, (m, n))
    return b.finish([b.map("y", t, (n, m), ("i", "j"), read_at(x, ["j", "i"]))])


def cumsum(m: int, n: int, t: DType) -> Graph:
    b = GraphBuilder("cumsum")
    x = b.input("x", t, (m, n))
    s = b.add_scan("s", "sum", F32, (m, n), ("i", "j"), "j", cast(read_at(x, ["i", "j"]), F32))
    return b.finish([s if t == F32 else b.map("y", t, (m, n), ("i", "j"), cast(read_at(s, ["i", "j"]), t))])


def batch_norm(m: int, n: int, t: DType) -> Graph:
    """Statistics and normalisation of [64, m, n]: m channels, n positions."""
    b = GraphBuilder("batch_norm")
    x = b.input("x", t, (64, m, n))
    over = (("b", 64), ("h", n))
    body = cast(read_at(x, ["b", "c", "h"]), F32)
    s = b.add_reduction("s", "sum", F32, (m,), ("c",), over, body)
    q = b.add_reduction("q", "m2", F32, (m,), ("c",), over, body)
    count = 64 * n
    y = call("mul", call("sub", body, call("mul", read_at(s, ["c"]), const(1 / count, F32))),
             call("rsqrt", call("add", call("mul", read_at(q, ["c"]), const(1 / count, F32)), const(1e-5, F32))))
    return b.finish([b.map("y", t, (64, m, n), ("b", "c", "h"), cast(call("maximum", y, const(0, F32)), t))])


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


Reference = Callable[..., torch.Tensor]
CASES: dict[str, tuple[Callable[[int, int, DType], Graph], Reference]] = {
    "softmax": (softmax, lambda x: torch.softmax(x, -1)),
    "layer_norm": (layer_norm, lambda x, w: _normalised(x) * w),
    "add": (add, lambda x, z: x + z),
    "copy": (copy, lambda x: x.clone()),
    "column_sum": (column_sum, lambda x: x.sum(0)),
    "row_sum": (row_sum, lambda x: x.sum(1)),
    "argmax": (argmax, lambda x: x.argmax(1)),
    "transpose": (transpose, lambda x: x.t().contiguous()),
    "cumsum": (cumsum, lambda x: x.cumsum(1)),
    "batch_norm": (batch_norm, lambda x: torch.relu(torch.nn.functional.batch_norm(x, None, None, training=True))),
}
ROWS = ((1 << 18, 256), (1 << 16, 1024), (1 << 14, 4096), (1 << 13, 8192), (1 << 11, 32768), (1 << 10, 65536), (256, 262144))


def shapes_of(name: str) -> tuple[tuple[int, int], ...]:
    """Shapes of a case: 64 Mi elements each."""
    if name in ("softmax", "layer_norm", "row_sum", "argmax", "cumsum"):
        return ROWS
    if name == "batch_norm":
        return ((256, 56 * 56), (64, 112 * 112), (1024, 28 * 28))
    if name in ("column_sum",):
        return ((1 << 16, 1024), (1 << 14, 4096), (1 << 20, 64), (256, 262144))
    return ((8192, 8192),)


def code_of(tile: TileProgram) -> KernelCode:
    """The kernel of a tile program, as the runtime takes it."""
    kernel = compose(tile, H200)
    parameters = tuple(Parameter(p.origin or p.name, p.dtype.name, p.num_elements, p.role) for p in kernel.parameters)
    return KernelCode(kernel.name, kernel.name, print_cuda(kernel, H200), "cuda", "sm_90a", kernel.launch, parameters, (), tile.bytes_read,
                      tile.bytes_written)


def program_of(tile: TileProgram, code: KernelCode) -> Program:
    """A program of that kernel alone."""
    graph = tile.graph
    roles = {i.name: "input" for i in graph.inputs} | dict.fromkeys(graph.results, "result")
    from tilefuse.ir.affine import row_major_strides

    values = tuple(Value(n, graph.type_of(n).dtype.name, graph.type_of(n).shape, row_major_strides(graph.type_of(n).shape), r) for n,
                   r in roles.items())
    names = tuple(p.name if p.name in roles else "" for p in code.parameters)
    return Program(ProgramSpec(graph.name, "h200", tuple(i.name for i in graph.inputs), graph.results, values, (code,),
                               (KernelStep(0, names),)), {}, "cuda")


def time_us(program: Program, sets: list[list[torch.Tensor]]) -> float:
    """Median time of one launch, replayed as a CUDA graph over rotating inputs. Units: us."""
    for inputs in sets:
        program(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    rounds = 4
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for inputs in sets:
                program(*inputs)
    samples = []
    for _ in range(7):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) * 1e3 / (rounds * len(sets)))
    return statistics.median(samples)


def run_case(name: str, shape: tuple[int, int], dtype: DType, copy_bytes_per_s: float, deadline: float, most: int) -> None:
    """One case: all variants, best last ten printed."""
    build, reference = CASES[name]
    graph = build(*shape, dtype)
    base = schedule_graph(graph, {}, H200)
    if isinstance(base, Rejected):
        print(f"{name} {shape}: {base}")
        return
    tiles: list[TileProgram] = []
    for variant in neighbours(base, H200):
        tile = program_with(base, variant, H200)
        if isinstance(tile, TileProgram):
            tiles.append(tile)
    tiles = tiles[:most]
    with ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(lambda t: _try(t), tiles))
    generator = torch.Generator(device="cuda").manual_seed(1)
    sets = [[torch.randn(i.type.shape, device="cuda", generator=generator).to(TORCH[i.type.dtype.name]) for i in graph.inputs]
            for _ in range(2)]
    want = reference(*(x.double() if x.is_floating_point() else x for x in sets[0]))
    limit = (base.bytes_read + base.bytes_written) / copy_bytes_per_s * 1e6
    found = []
    for number, (tile, code) in enumerate(zip(tiles, codes)):
        if time.monotonic() > deadline:
            break
        if isinstance(code, str):
            found.append((1e9, number, tile, f"does not compile: {code[:150]}"))
            continue
        try:
            program = program_of(tile, code)
            got = program(*sets[0])[0]
            error = ((got.double() - want.double()).norm() / want.double().norm()).item()
            us = time_us(program, sets)
            found.append((us, number, tile, f"error {error:.1e}"))
        except (CompilerError, RuntimeError, ValueError) as failure:
            found.append((1e9, number, tile, str(failure)[:200]))
    for us, number, tile, note in sorted(found, key=lambda f: f[0])[:5] + [f for f in found if f[1] == 0]:
        mark = "*" if number == 0 else " "
        print(f"{mark}{name:10s} {dtype} {shape!s:18s} {us:9.1f} us  share {limit / us:.3f}  {note}  {tile.notation} "
              f"grid {tile.launch.num_blocks}", flush=True)
    del sets, want
    torch.cuda.empty_cache()


def _try(tile: TileProgram) -> KernelCode | str:
    try:
        code = code_of(tile)
        compile_cuda(code)
        return code
    except CompilerError as failure:
        return str(failure)


def main() -> None:
    """Command line: see the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--dtypes", default="f16,f32")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--most", type=int, default=40)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    big = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(big)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(9)]
    for start, stop in events:
        start.record()
        other.copy_(big)
        stop.record()
    torch.cuda.synchronize()
    copy_bytes_per_s = 2 * big.numel() * 4 / (statistics.median(s.elapsed_time(t) for s, t in events) / 1e3)
    print(f"copy {copy_bytes_per_s / 1e12:.3f} TB/s")
    del big, other
    for name in CASES:
        for dtype in arguments.dtypes.split(","):
            for shape in shapes_of(name):
                if re.search(arguments.only, f"{name}-{dtype}-{shape[0]}x{shape[1]}") and time.monotonic() < deadline:
                    run_case(name, shape, DTYPES[dtype], copy_bytes_per_s, deadline, arguments.most)


if __name__ == "__main__":
    main()
