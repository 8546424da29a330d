"""An activation of one's own, three ways: from array operations, registered as a C expression, and the built-in one.

    python examples/custom_activation.py            the kernels side by side
    python examples/custom_activation.py --time     and their times, on a GPU where there is one

All three are one kernel that reads each element once and writes it once; only the expression in its middle differs.
"""
from __future__ import annotations

import sys
import time

import tilefuse
import tilefuse.array as ta


def my_sigmoid(x: ta.Array) -> ta.Array:
    """As one writes it down."""
    return 1 / (1 + ta.exp(-x))


registered = ta.register_operator("my_sigmoid", "(x: float) -> float", "1 / (1 + exp(-x))", adjoint="g * y * (1 - y)")
WAYS = {"array operations": my_sigmoid, "registered": registered, "built-in": ta.sigmoid}


def middle(source: str) -> list[str]:
    """The lines of a kernel that compute: those of its innermost loop."""
    return source.rpartition("for (int v = 0;")[2].partition("\n")[2].partition("  }\n")[0].splitlines()


def compare(dtype: str = "float32", size: int = 1 << 20) -> None:
    """Prints the lines of each kernel that compute, and checks that everything else is the same."""
    shapes = set()
    for name, fn in WAYS.items():
        x = ta.placeholder((size,), dtype, "x")
        made = tilefuse.apply_passes(fn(x), ["fusion", "codegen"], device="h200")
        (code,) = set(made["kernel"].values())
        shapes.add((code.launch, code.bytes_read, code.bytes_written, tuple((p.dtype, p.num_elements, p.role) for p in code.parameters)))
        print(f"{dtype} {name}: one kernel, {code.bytes_read + code.bytes_written} bytes, computes")
        print("\n".join(middle(code.source)))
    assert len(shapes) == 1, "the kernels differ in more than their expression"


def gradients() -> None:
    """All three have the same derivative."""
    x = ta.linspace(-6, 6, 97, dtype=ta.float64)
    found = [ta.grad(ta.sum(fn(x)), x) for fn in WAYS.values()]
    ta.evaluate(*found)
    assert max(float(ta.max(ta.abs(g - found[-1]))) for g in found) < 1e-15


def measure(dtype: str, size: int, repeats: int = 7) -> None:
    """Time of each against the built-in, taken in turns; the best of several rounds."""
    import torch

    x = ta.evaluate(ta.random.normal((size,), dtype=dtype, seed=1))
    programs = {name: ta.compile(fn).program_of(x) for name, fn in WAYS.items()}
    data = x.buffer()
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(repeats):
        for name, program in programs.items():
            seconds = _gpu_seconds(torch, program, data) if data.is_cuda else _seconds(program, data)
            best[name] = min(best[name], seconds)
    for name, seconds in best.items():
        print(f"{dtype} {name:>16}: {seconds * 1e6:9.1f} us, {seconds / best['built-in']:.3f} of the built-in")


def _seconds(program: object, data: object) -> float:
    began = time.perf_counter()
    program(data)  # type: ignore[operator]
    return time.perf_counter() - began


def _gpu_seconds(torch: object, program: object, data: object, launches: int = 50) -> float:
    """Inside a recorded graph, so that only the kernel counts."""
    program(data)  # type: ignore[operator]
    graph = torch.cuda.CUDAGraph()  # type: ignore[attr-defined]
    with torch.cuda.graph(graph):  # type: ignore[attr-defined]
        for _ in range(launches):
            program(data)  # type: ignore[operator]
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[attr-defined]
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / launches


if __name__ == "__main__":
    compare()
    compare("float16")
    gradients()
    if "--time" in sys.argv:
        for kind in ("float32", "float16"):
            measure(kind, 1 << 26)
