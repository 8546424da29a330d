"""Where a model's time goes, on one page: `python -m benchmarks.profile bert-base --batch 64 --training`.

Prints the steps of the programs that tilefuse compiled (time, bytes, bandwidth, limit), then the kernels that the device ran for
tilefuse and for eager, each list sorted by time. Equal steps are one line with their count.
"""
from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.case import DTYPES, Tensors, as_tuple
from benchmarks.environment import default_device
from benchmarks.models import SEED
from benchmarks.timing import time_calls

ITEM_BYTES = {"f64": 8, "i64": 8, "u64": 8, "f32": 4, "i32": 4, "u32": 4, "f16": 2, "bf16": 2, "i16": 2, "u16": 2}


@dataclass
class Line:
    """Equal steps of one program together. Units: microseconds and bytes of all `count` steps in sum."""

    part: str
    kind: str
    name: str
    detail: str
    count: int = 0
    us: float = 0.0
    num_bytes: int = 0
    limit_us: float = 0.0
    flops: int = 0


@dataclass
class Report:
    """The printed text; one text, so that it can go to the screen and to a file."""

    lines: list[str] = field(default_factory=list)

    def add(self, text: str = "") -> None:
        """One more line, shown at once."""
        self.lines.append(text)
        print(text, flush=True)


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    found.add_argument("model", choices=sorted(ARCHITECTURES))
    found.add_argument("--batch", type=int, default=64)
    found.add_argument("--dtype", choices=sorted(DTYPES.keys() - {"tf32"}), default="",
                       help="f16 for inference, bf16 for training where not given")
    found.add_argument("--training", action="store_true", help="forward, loss and backward instead of inference")
    found.add_argument("--tiny", action="store_true", help="the small version of the model, to try the tool")
    found.add_argument("--device", default="", help="cpu or cuda; by default the GPU if there is one")
    found.add_argument("--top", type=int, default=40, help="lines of each list")
    found.add_argument("--repeats", type=int, default=10, help="runs of which each step's median is taken")
    found.add_argument("--no-eager", action="store_true", help="leave eager out")
    found.add_argument("--out", type=Path, help="write the page to this file as well")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the page."""
    options = parser().parse_args(arguments)
    device = torch.device(options.device) if options.device else default_device()
    dtype_name = options.dtype or ("bf16" if options.training else "f16")
    report = Report()
    report.add(f"{options.model} {'training' if options.training else 'inference'} {dtype_name} batch {options.batch} on {device}")
    architecture = ARCHITECTURES[options.model]
    torch.manual_seed(SEED)
    generator = torch.Generator(device).manual_seed(SEED)
    model = architecture.build(options.tiny).to(device).to(DTYPES[dtype_name]).train(options.training)
    inputs = [architecture.inputs(options.batch, options.tiny, device, DTYPES[dtype_name], generator) for _ in range(2)]
    if not options.no_eager:
        profile_eager(report, step_of(copy.deepcopy(model), architecture, options.training), inputs, device, options.top)
    profile_compiled(report, model, architecture, inputs, device, options)
    if options.out:
        options.out.write_text("\n".join(report.lines) + "\n", encoding="utf-8")
    return 0


def step_of(model: nn.Module, architecture: Architecture, training: bool, network: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function of a list of inputs that does one step: inference, or loss and gradients of the parameters of `model`."""
    run = model if network is None else network
    parameters = list(model.parameters())

    def infer(*arguments: torch.Tensor) -> Tensors:
        with torch.no_grad():
            return as_tuple(run(*arguments))

    def train(*arguments: torch.Tensor) -> Tensors:
        loss = architecture.loss(*as_tuple(run(*arguments)))
        return (loss, *torch.autograd.grad(loss, parameters))

    return train if training else infer


def profile_eager(report: Report, step: Callable[..., Any], inputs: Sequence[Tensors], device: torch.device, top: int) -> None:
    """The total of eager torch and its kernels."""
    timing, _ = time_calls([partial(step, *a) for a in inputs], device, budget_s=0.5)
    report.add(f"\neager: {timing.median_us:.1f} us a step ({timing.method})")
    list_kernels(report, step, inputs[0], device, top)


def profile_compiled(report: Report, model: nn.Module, architecture: Architecture, inputs: Sequence[Tensors], device: torch.device,
                     options: argparse.Namespace) -> None:
    """The total of tilefuse, its steps one by one, and the kernels that the device saw."""
    from tilefuse.driver import torch_backend

    torch_backend.reset()
    compiled = torch.compile(model, backend=torch_backend.backend, dynamic=False, options={"strict": True})
    step = step_of(model, architecture, options.training, compiled)
    step(*inputs[0])
    given = arguments_of(torch_backend.compiled_parts(), lambda: step(*inputs[0]))
    timing, _ = time_calls([partial(step, *a) for a in inputs], device, budget_s=0.5)
    report.add(f"\ntilefuse: {timing.median_us:.1f} us a step ({timing.method})")
    lines: dict[tuple[str, ...], Line] = {}
    for part, tensors in given:
        counts = part.program.counts
        before, copied = counts.library_copies, counts.argument_copies / max(counts.calls, 1)
        times = part.program.profile(*tensors, repeats=options.repeats)
        copies = (counts.library_copies - before) // (options.repeats + 2)
        found = [line_of(part.kind, part.program, n, row) for n, row in enumerate(times)]
        report.add(f"  {part.kind}: {summary(found)}; {copied:.0f} arguments and {copies} library results copied; "
                   f"memory: {part.program.memory}")
        for line in found:
            known = lines.setdefault((line.part, line.kind, line.name, line.detail), Line(line.part, line.kind, line.name, line.detail))
            known.count += 1
            known.us += line.us
            known.num_bytes += line.num_bytes
            known.limit_us += line.limit_us
            known.flops += line.flops
    print_steps(report, list(lines.values()), options.top)
    list_kernels(report, step, inputs[0], device, options.top)


def arguments_of(parts: Sequence[Any], run: Callable[[], object]) -> list[tuple[Any, list[torch.Tensor]]]:
    """Each compiled part that one `run` calls, with the tensors it is called with (kept alive, updated ones copied)."""
    found: list[tuple[Any, list[torch.Tensor]]] = []

    def record(part: Any, original: Callable[[list[Any]], list[torch.Tensor]]) -> Callable[[list[Any]], list[torch.Tensor]]:
        updated = [name in part.program.spec.updates for name in part.program.spec.inputs]

        def call(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            found.append((part, [t.clone() if again else t for t, again in zip(tensors, updated)]))
            return original(tensors)

        return call

    # A part's boxed call is fixed when it is compiled: its program's, or that of its recordings.
    calls = [(part, part._run) for part in parts]
    for part, original in calls:
        part._run = record(part, original)
    try:
        run()
    finally:
        for part, original in calls:
            part._run = original
    return found


def line_of(kind: str, program: Any, number: int, row: Any) -> Line:
    """A step's line: its time from `row`, for library calls and copies the bytes of what they touch and the operations of products."""
    step = program.spec.steps[number]
    value_by_name = {v.name: v for v in program.spec.values}
    match type(step).__name__:
        case "LibraryStep":
            operands = [value_by_name[n] for n in step.operands]
            results = [value_by_name[n] for n in step.results if n]
            detail = " ".join(shape_text(v) for v in operands) + " -> " + " ".join(shape_text(v) for v in results)
            flops = product_flops(step.operator, operands, results, dict(step.attributes))
            return Line(kind, row.kind, step.operator, detail, 1, row.us, sum(map(bytes_of, (*operands, *results))), 0.0, flops)
        case "CopyStep":
            target = value_by_name[step.target]
            return Line(kind, row.kind, "copy", shape_text(target), 1, row.us, 2 * bytes_of(target))
    launch = program.spec.kernels[step.kernel].launch
    cluster = f"c{launch.cluster}" if launch.cluster != 1 else ""
    return Line(kind, row.kind, row.name, f"{launch.num_blocks}x{launch.num_threads}{cluster}", 1, row.us, row.num_bytes, row.limit_us)


def shape_text(value: Any) -> str:
    """Dtype and shape; strides as well where the value is not dense row-major."""
    step = 1
    dense: list[int] = []
    for extent in reversed(value.shape):
        dense.insert(0, step)
        step *= extent
    plain = all(s == d for s, d, n in zip(value.strides, dense, value.shape) if n > 1)
    text = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return text if plain else f"{text}@{','.join(map(str, value.strides))}"


def bytes_of(value: Any) -> int:
    """Bytes of a value's elements."""
    return int(math.prod(value.shape) * ITEM_BYTES.get(value.dtype, 1))


def product_flops(operator: str, operands: Sequence[Any], results: Sequence[Any], attributes: dict[str, Any]) -> int:
    """Operations of a product or convolution; 0 for other calls."""
    if not results or len(operands) < 2:
        return 0
    outputs = math.prod(results[0].shape)
    if operator == "matmul":
        return int(2 * outputs * operands[0].shape[-2 if attributes.get("transpose_a") else -1])
    if operator == "convolution":
        return int(2 * outputs * math.prod(operands[1].shape[1:]))
    return 0


def summary(found: Sequence[Line]) -> str:
    """Count and time of kernels, library calls and copies."""
    parts = []
    for kind in ("kernel", "library", "copy"):
        of_kind = [line for line in found if line.kind == kind]
        if of_kind:
            limit = sum(line.limit_us for line in of_kind)
            told = f" (limit {limit:.1f})" if limit else ""
            parts.append(f"{len(of_kind)} {kind} steps {sum(line.us for line in of_kind):.1f} us{told}")
    return ", ".join(parts)


def print_steps(report: Report, lines: Sequence[Line], top: int) -> None:
    """The steps sorted by time."""
    report.add(f"{'us':>9} {'n':>4} {'us each':>8} {'MiB each':>8} {'GB/s':>7} {'limit':>8} {'TF/s':>6}  step (first letter: the part)")
    shown = sorted(lines, key=lambda line: -line.us)
    for line in shown[:top]:
        rate = line.num_bytes / line.us / 1e3 if line.us else 0.0
        limit = f"{line.limit_us:8.1f}" if line.limit_us else " " * 8
        teraflops = f"{line.flops / line.us / 1e6:6.1f}" if line.us and line.flops else " " * 6
        report.add(f"{line.us:9.1f} {line.count:4d} {line.us / line.count:8.2f} {line.num_bytes / line.count / 2**20:8.2f} {rate:7.0f} "
                   f"{limit} {teraflops}  {line.part[0]} {line.name} {line.detail}"[:220])
    rest = shown[top:]
    if rest:
        report.add(f"{sum(line.us for line in rest):9.1f} {sum(line.count for line in rest):4d} in {len(rest)} further lines")


def list_kernels(report: Report, step: Callable[..., Any], arguments: Tensors, device: torch.device, top: int) -> None:
    """Kernels that torch's profiler saw in one step (operators where there is no GPU), sorted by time."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    rounds = 3
    step(*arguments)
    wait(device)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(rounds):
            step(*arguments)
        wait(device)
    rows = [(_own_us(e, on_gpu) / rounds, e.count / rounds, e.key) for e in seen.key_averages()]
    rows = sorted((r for r in rows if r[0] > 0), key=lambda r: -r[0])
    what = "kernels" if on_gpu else "operators"
    report.add(f"  {what} by torch.profiler: {sum(r[1] for r in rows):.0f} calls, {sum(r[0] for r in rows):.1f} us a step")
    for us, count, name in rows[:top]:
        report.add(f"{us:9.1f} {count:6.1f} {us / count:8.2f}  {name[:150]}")
    rest = rows[top:]
    if rest:
        report.add(f"{sum(r[0] for r in rest):9.1f} {sum(r[1] for r in rest):6.1f} in {len(rest)} further {what}")


def _own_us(event: Any, on_gpu: bool) -> float:
    """Time of an event without what it calls. Units: microseconds."""
    if not on_gpu:
        return float(event.self_cpu_time_total)
    return float(getattr(event, "self_device_time_total", 0) or getattr(event, "self_cuda_time_total", 0))


def wait(device: torch.device) -> None:
    """Waits until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
