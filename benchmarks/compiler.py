"""The compiler's own speed: import, cold and warm compile of BERT-base, launch overhead, time and memory as the graph grows, planning.

Every figure is taken in a process of its own, so that nothing is warm that a user would find cold. A cold compile has three parts: `traced`
until torch hands the graph over, `compiled` in the compiler, `called` for the rest of torch's work and the first call.
"""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.environment import default_device, describe
from benchmarks.planning_graphs import SHAPES
from benchmarks.record import Record

ROOT = Path(__file__).resolve().parents[1]
SIZES = (100, 300, 1000, 3000, 10000)
QUICK_SIZES = (100, 1000)

IMPORT = """
import json, sys, time
started = time.perf_counter()
import tilefuse
took = time.perf_counter() - started
print(json.dumps({"seconds": took, "torch": "torch" in sys.modules, "onnx": "onnx" in sys.modules}))
"""

COMPILE = """
import json, sys, time
import torch
from benchmarks.architectures import ARCHITECTURES
from benchmarks.environment import default_device
device, tiny = default_device(), {tiny}
made = ARCHITECTURES["bert-base"]
torch.manual_seed(0)
dtype = torch.float16 if device.type == "cuda" else torch.float32
model = made.build(tiny).to(device, dtype).eval()
inputs = made.inputs(1, tiny, device, dtype, torch.Generator(device).manual_seed(0))
with torch.no_grad():
    model(*inputs)
    from tilefuse.driver import torch_backend
    compile_part, passed = torch_backend.compile_part, []
    def timed(*arguments, **named):
        passed.append(time.perf_counter())
        part = compile_part(*arguments, **named)
        passed.append(time.perf_counter())
        return part
    torch_backend.compile_part = timed
    compiled = torch.compile(model, backend=torch_backend.backend, dynamic=False)
    started = time.perf_counter()
    compiled(*inputs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    ended = time.perf_counter()
phases = dict(zip(("traced", "compiled", "called"), (b - a for a, b in zip((started, *passed), (*passed, ended))))) if passed else {{}}
print(json.dumps({{"seconds": ended - started, **phases}}))
"""

GROWTH = """
import json, resource, sys, time
from tilefuse.ir.text import parse_graph
from tilefuse.driver.compile import generate_sources
from tilefuse.target.device import H200
from benchmarks.compiler import layered_graph
graph = parse_graph(layered_graph({nodes}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
program = generate_sources(graph, device=H200)
took = time.perf_counter() - started
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps({{"seconds": took, "nodes": len(graph.nodes), "grown_bytes": grown, "kernels": len(program.spec.kernels)}}))
"""

PLAN = """
import json, time
from tilefuse.base.options import Options
from tilefuse.driver.request import rarely_collected, traced
from tilefuse.ir.text import parse_graph
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200
from benchmarks.planning_graphs import SHAPES
graph = parse_graph(SHAPES["{shape}"]({nodes}))
with traced(Options()), rarely_collected():
    started = time.process_time()
    plan = plan_graph(graph, {{}}, H200, Options())
print(json.dumps({{"cpu_seconds": time.process_time() - started, "nodes": len(graph.nodes), "kernels": len(plan.kernels)}}))
"""

LAUNCH = """
import json, time
import torch, tilefuse
from benchmarks.environment import default_device
device = default_device()

def seconds(call, rounds=2000):
    for _ in range(50):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(rounds):
        call()
    took = (time.perf_counter() - started) / rounds
    if device.type == "cuda":
        torch.cuda.synchronize()
    return took

x = torch.randn(256, device=device)
program = tilefuse.compile(lambda x: torch.tanh(x) * 2, (x,), device=device.type if device.type == "cuda" else "host")
with torch.no_grad():
    eager, ours = seconds(lambda: torch.tanh(x)), seconds(lambda: program(x))
print(json.dumps({"eager_operator_us": eager * 1e6, "one_kernel_program_us": ours * 1e6}))
"""


def layered_graph(num_nodes: int, width: int = 64, rows: int = 128) -> str:
    """Text of a graph of about `num_nodes` nodes: layers of a row norm with a residual, each layer's bias another input.

    Eight nodes a layer: two reductions and six maps, one of which is used by the next layer too.
    """
    layers = max(1, num_nodes // 8)
    inputs = ", ".join(["%x0: f32[128, 64]", *(f"%b{n}: f32[64]" for n in range(layers))])
    lines = [f"graph @layers({inputs}) -> (f32[{rows}, {width}]) {{"]
    for n in range(layers):
        lines += [
            f"  %a{n}: f32[{rows}, {width}] = map [i, j] {{ add(%x{n}[i, j], %b{n}[j]) }}",
            f"  %s{n}: f32[{rows}] = reduce.sum [i] over [k < {width}] {{ %a{n}[i, k] }}",
            f"  %m{n}: f32[{rows}] = map [i] {{ mul(%s{n}[i], {1 / width!r}:f32) }}",
            f"  %c{n}: f32[{rows}, {width}] = map [i, j] {{ sub(%a{n}[i, j], %m{n}[i]) }}",
            f"  %q{n}: f32[{rows}] = reduce.sum [i] over [k < {width}] {{ mul(%c{n}[i, k], %c{n}[i, k]) }}",
            f"  %r{n}: f32[{rows}] = map [i] {{ rsqrt(add(mul(%q{n}[i], {1 / width!r}:f32), 0.001:f32)) }}",
            f"  %y{n}: f32[{rows}, {width}] = map [i, j] {{ tanh(mul(%c{n}[i, j], %r{n}[i])) }}",
            f"  %x{n + 1}: f32[{rows}, {width}] = map [i, j] {{ add(%x{n}[i, j], %y{n}[i, j]) }}",
        ]
    return "\n".join([*lines, f"  return %x{layers}", "}"]) + "\n"


def python(script: str, environment: dict[str, str], timeout_s: float = 600) -> dict[str, Any]:
    """The last line that a script printed, as JSON; a failure is a record with its reason."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    full = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **environment}
    try:
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=full, capture_output=True, text=True, timeout=timeout_s,
                              check=False)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "reason": f"{timeout_s:.0f} s"}
    if done.returncode:
        return {"status": "failed", "reason": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}",
                "trace": done.stderr[-3000:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {"status": "ok", **found}


def figures(quick: bool = False, tiny: bool = False) -> list[tuple[str, str]]:
    """Name and script of every figure, in order: the warm compile finds what the cold one left in the cache."""
    return [
        *((f"import/{number}", IMPORT) for number in range(3)),
        ("bert-base/cold", COMPILE.format(tiny=tiny)),
        ("bert-base/warm", COMPILE.format(tiny=tiny)),
        ("launch", LAUNCH),
        *((f"growth/{nodes}", GROWTH.format(nodes=nodes)) for nodes in (QUICK_SIZES if quick else SIZES)),
        *((f"plan/{shape}", PLAN.format(shape=shape, nodes=(QUICK_SIZES if quick else SIZES)[-1])) for shape in SHAPES),
    ]


def run(out: Path, *, only: str = "", quick: bool = False, budget_s: float = 0.0, tiny: bool = False, is_listed: bool = False) -> int:
    """Take every figure, print and store it, or only print their names. Exit status 1 if one failed."""
    chosen = [(name, script) for name, script in figures(quick, tiny) if re.search(only, name)]
    if is_listed:
        print("\n".join(name for name, _ in chosen))
        return 0
    record = Record.start(out, "compiler", describe(default_device()))
    started = time.monotonic()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, script in chosen:
            if budget_s and time.monotonic() - started > budget_s:
                break
            found = python(script, {"TILEFUSE_CACHE_DIR": folder} if name.startswith("bert-base/") else {})
            failed = failed or found["status"] != "ok"
            record.add(name, {"family": name.split("/")[0]}, "tilefuse", found)
            print(f"{name:<28} " + "  ".join(_shown(k, v) for k, v in found.items() if k not in ("trace", "status")), flush=True)
    print(f"record: {record.path}")
    return 1 if failed else 0


def _shown(key: str, value: object) -> str:
    return f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
