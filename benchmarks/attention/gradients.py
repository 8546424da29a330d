"""Gradients of attention timed beside the library's: kernels of ours by their definition, flash's and cuDNN's calls.

    python -m benchmarks.attention.gradients                          every case; lines of a table, right against double precision?
    python -m benchmarks.attention.gradients --record FILE            and a line of JSON each
    python -m benchmarks.attention.gradients bf16/causal/4x16x4096x64 some cases, in the names of `benchmarks.attention.cases`
    python -m benchmarks.attention.gradients --predict h200           predicted times alone, on any machine
    python -m benchmarks.attention.gradients --plan FOLDER --device h200     programs planned on any machine, and those timed on a device:
    python -m benchmarks.attention.gradients --planned FOLDER

Times are those of the gradients alone, from a forward pass that has kept the logarithms of its sums, with rotated inputs. Below a case are
its kernels, each with its time by events and its predicted one. The option `attention_gradients` takes the same kernels for torch's calls.
"""
from __future__ import annotations

import argparse
import gzip
import json
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.attention.cases import Attention, attention_of
from benchmarks.attention.timed import present_record
from benchmarks.timing import num_input_sets, time_calls
from tilefuse.base.options import Options
from tilefuse.domain.roofline import price_work
from tilefuse.driver.compile import generate
from tilefuse.driver.measure.measure import build_together
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.graph import Graph, Input, Type
from tilefuse.ir.library.attention_gradient_call import AttentionGradientCall
from tilefuse.plan.price.attention import attention_gradient_work
from tilefuse.plan.rewrites.attention_gradient import RESULTS, gradient_definition
from tilefuse.runtime.calls.step_times import StepTime
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec

# Lengths with as many heads as make 64 * 4096 rows of them; the shapes that the forward pass is timed at; heads that share keys.
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
WIDTHS = (64, 128)
ROWS_OF_ALL_HEADS, MOST_HEADS, HEADS = 64 * 4096, 1024, 16
SHAPES = ("f16/plain/16x12x512x64", "f16/plain/64x12x197x64", "f16/plain/64x12x128x64", "bf16/causal/2x32g8x4096x64",
          "bf16/causal/2x32g8x4096x128", "bf16/plain/2x32g8x4096x128")
# Largest difference from double precision over the largest element: roundings of operands, powers and results.
BOUND = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
A = torch.ops.aten


def names_of_cases() -> tuple[str, ...]:
    """Every case that is timed."""
    lengths = (f"{dtype}/{kind}/{max(min(ROWS_OF_ALL_HEADS // n, MOST_HEADS) // HEADS, 1)}x{min(ROWS_OF_ALL_HEADS // n, HEADS)}x{n}x{width}"
               for width in WIDTHS for n in LENGTHS for dtype, kind in (("f16", "plain"), ("bf16", "causal")))
    return (*lengths, *SHAPES)


def call_of(case: Attention, library: str = "flash") -> tuple[AttentionGradientCall, dict[str, Type]]:
    """The library's call for the gradients of a case, and the types of its operands."""
    dtype = DTYPES[{torch.float16: "f16", torch.bfloat16: "bf16"}[case.dtype]]
    q = (case.batch, case.heads, case.rows, case.width)
    shapes = {**dict.fromkeys("qyg", q), **dict.fromkeys("kv", (case.batch, case.key_heads, case.keys, case.width))}
    types = {name: Type(dtype, shapes[name]) for name in "qkvyg"} | {"l": Type(DTYPES["f32"], q[:3])}
    return AttentionGradientCall("g", "q", "k", "v", "y", "l", "", case.width ** -0.5, case.kind == "causal", library,
                                 ("dq", "dk", "dv", ""), case.heads // case.key_heads), types


def graph_of(case: Attention) -> Graph:
    """The gradients of a case as their definition."""
    call, types = call_of(case)
    return gradient_definition(call, types, RESULTS[:3])


@dataclass(frozen=True)
class Planned:
    """A case's program without machine code. kernels: (template, tiles, predicted time) of each, in the program's order.

    Units: microseconds.
    """

    name: str
    device: str
    spec: ProgramSpec
    kernels: tuple[tuple[str, str, float], ...]

    @property
    def us(self) -> float:
        """Predicted time of all kernels. Units: microseconds."""
        return sum(k[2] for k in self.kernels)


def planned(name: str, device: DeviceSpec) -> Planned:
    """The definition of a case's gradients, planned."""
    made = generate(graph_of(attention_of(name)), constants={}, input_layouts={}, device=device, options=Options.from_environment())
    return Planned(name, device.name, made.spec, tuple(
        (k.program.template, " ".join(f"{n}={v}" for n, v in k.program.parameters if k.program.template == "walked_back"), k.cost.us)
        for k in made.plan.kernels))


def saved(name: str, folder: Path) -> Path:
    """The file of a case's plan."""
    return folder / (name.replace("/", "_") + ".plan")


def write(of: Planned, folder: Path) -> None:
    """Saves a case's plan."""
    folder.mkdir(parents=True, exist_ok=True)
    saved(of.name, folder).write_bytes(gzip.compress(pickle.dumps((of.name, of.device, of.spec, of.kernels))))


def read(name: str, folder: Path) -> Planned:
    """A saved plan."""
    return Planned(*pickle.loads(gzip.decompress(saved(name, folder).read_bytes())))


def library_features(case: Attention, library: str, device: DeviceSpec) -> tuple[float, float]:
    """Time of the products of a library's gradients at the whole rate, and of one pass over the operands and results. Units: us."""
    figures = replace(device.fitted.attention, gradient_rate_shares=((library, 1.0),), gradient_passes=((library, 1.0),),
                      gradient_start_us=((library, 0.0),))
    call, types = call_of(case, library)
    graph = Graph("g", tuple(Input(n, t) for n, t in (types | {f"d{n}": types[n] for n in "qkv"}).items()), (), ())
    work = attention_gradient_work(call, graph, replace(device, fitted=replace(device.fitted, attention=figures)))
    assert work is not None
    of_products, of_bytes = (price_work(replace(work, launches=0, **without), device).us
                             for without in ({"serial_bytes": 0}, {"operations": ()}))
    return of_products, of_bytes


def fit(record: Path) -> None:
    """Prints the figures of each library's gradients by least squares over the relative differences."""
    rows = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    for library in ("flash", "cudnn"):
        timed = [r for r in rows if r["who"] == library]
        device = device_by_name(timed[0]["device"])
        of_case = np.array([(*library_features(attention_of(r["case"]), library, device), 1.0) for r in timed])
        us = np.array([r["us"] for r in timed]) - device.graph_launch_us
        slow, passes, start_us = np.linalg.lstsq(of_case / us[:, None], np.ones(len(us)), rcond=None)[0]
        print(f"{library}: share {1 / slow:.3f}, passes {passes:.2f}, start {start_us:.1f} us; predicted over measured",
              *(f"{ratio:.2f}" for ratio in of_case @ (slow, passes, start_us) / us))


def forward(case: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, library: str) -> Sequence[Any]:
    """The library's results, as its gradients take them."""
    causal = case.kind == "causal"
    if library == "flash":
        return A._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return A._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)


def backward(case: Attention, library: str, g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
             kept: Sequence[Any]) -> Sequence[torch.Tensor]:
    """The library's gradients."""
    y, logs, cum_q, cum_k, max_q, max_k, seed, offset = kept[:8]
    causal = case.kind == "causal"
    if library == "flash":
        return A._scaled_dot_product_flash_attention_backward(g, q, k, v, y, logs, cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset)
    return A._scaled_dot_product_cudnn_attention_backward(g, q, k, v, y, logs, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, causal)


def exact(case: Attention, g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of the first batch's first head of keys in double precision."""
    group = case.heads // case.key_heads
    q, g = (x[0, :group].double().requires_grad_() for x in (q, g))
    k, v = (x[0, :1].double().requires_grad_() for x in (k, v))
    s = q @ k.mT * case.width ** -0.5
    if case.kind == "causal":
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), float("-inf"))
    return torch.autograd.grad(s.softmax(-1) @ v, (q, k, v), g.detach())


def calls_of(case: Attention, sets: Sequence[Sequence[torch.Tensor]], program: Program) -> Iterator[tuple[str, list[partial[Any]]]]:
    """Each competitor and its calls, one for each set of inputs. Heads that share keys are repeated for the libraries."""
    group = case.heads // case.key_heads
    calls: list[partial[Any]] = []
    for g, q, k, v in sets:
        y, logs = forward(case, q, *(x.repeat_interleave(group, 1) for x in (k, v)), "flash")[:2]
        # The program is planned for results as they lie for such queries: nothing is copied.
        value_by_name = {"g": g, "q": q, "k": k, "v": v, "y": y.contiguous(), "l": logs[..., :case.rows].contiguous()}
        calls.append(partial(program, *(value_by_name[n] for n in program.spec.inputs)))
    yield "ours", calls
    for library in ("flash", "cudnn"):
        calls = []
        for g, q, k, v in sets:
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
            calls.append(partial(backward, case, library, g, q, k, v, forward(case, q, k, v, library)))
        yield library, calls


def error_of(case: Attention, inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> float:
    """Largest difference from double precision over the largest element, in the first head of keys."""
    group = case.heads // case.key_heads
    worst = 0.0
    for n, (x, want) in enumerate(zip(gradients, exact(case, *inputs), strict=False)):
        # The libraries' gradients of repeated heads are one for each.
        repeated = n > 0 and x.shape[1] != case.key_heads
        heads = x[0, :1 if n and not repeated else group].double()
        heads = heads.sum(0, keepdim=True) if repeated else heads
        worst = max(worst, float((heads - want).abs().max() / want.abs().max().clamp(min=1e-3)))
    return worst


def kernels_text(kernels: Sequence[tuple[str, str, float]], steps: Sequence[StepTime]) -> list[str]:
    """A line for each kernel: its predicted time, its time, its tiles."""
    if len(kernels) != len(steps):
        return [f"{t.us:9.1f} us  {t.name}" for t in steps]
    pairs = zip(steps, kernels, strict=True)
    return [f"{t.us:9.1f} us  predicted {us:9.1f}  {template} {tiles}".rstrip() for t, (template, tiles, us) in pairs]


def time_case(made: Planned, each_s: float) -> list[dict[str, Any]]:
    """Times of one case as rows of a record."""
    case, rows = attention_of(made.name), list[dict[str, Any]]()
    q, k, v = case.inputs("cuda")[:3]
    first = [torch.randn_like(q), q, k, v]
    num_bytes = 2 * sum(x.numel() * x.element_size() for x in first)
    sets = [first, *([x.clone() for x in first] for _ in range(num_input_sets(num_bytes, torch.device("cuda"), 4) - 1))]
    program = Program(made.spec, {}, "cuda:0", Options.from_environment())
    for label, calls in calls_of(case, sets, program):
        try:
            timing, result = time_calls(calls, torch.device("cuda"), budget_s=each_s)
        except RuntimeError as error:
            print(f"  {label}: {str(error)[:160]}", flush=True)
            continue
        assert isinstance(result, tuple | list)
        wrong = error_of(case, first, result) if case.rows <= 8192 else float("nan")
        row = {"device": made.device, "case": made.name, "who": label, "us": round(timing.median_us, 2), "low": round(timing.low_us, 2),
               "high": round(timing.high_us, 2), "error": float(f"{wrong:.1e}"), "right": not wrong > BOUND[case.dtype]}
        if label == "ours":
            steps = program.profile(*calls[0].args, repeats=10)
            row |= {"predicted": round(made.us, 1), "kernels": [f"{t} {c}".strip() for t, c, _ in made.kernels],
                    "predicted_us": [round(k[2], 1) for k in made.kernels], "kernel_us": [round(t.us, 1) for t in steps]}
            print(*(f"    {line}" for line in kernels_text(made.kernels, steps)), sep="\n", flush=True)
        rows.append(row)
    return rows


def time_cases(names: Sequence[str], device: DeviceSpec, given: argparse.Namespace) -> None:
    """Builds the programs of all cases together, then times them one by one, until the budget is spent."""
    started, lines = time.perf_counter(), list[str]()
    made = [read(n, given.planned) if given.planned else planned(n, device) for n in names]
    build_together([k for of in made for k in of.spec.kernels], Options.from_environment())
    print(f"{torch.cuda.get_device_name()}, {time.perf_counter() - started:.0f} s to plan and compile", flush=True)
    for of in made:
        if time.perf_counter() - started > given.budget:
            print("no time for", of.name, flush=True)
            continue
        try:
            rows = time_case(of, given.each)
        except Exception as error:  # one case must not end the others
            print("FAILED", of.name, type(error).__name__, str(error)[:300], flush=True)
            continue
        by_name = {r["who"]: r["us"] for r in rows}
        peers = [us for who, us in by_name.items() if who != "ours"]
        ratio = f"{min(peers) / by_name['ours']:5.2f}" if peers and "ours" in by_name else ""
        shown = (f"{r['who']} {r['us']:9.1f} ({r['error']:.0e}{'' if r['right'] else ' WRONG'})" for r in rows)
        print(f"{of.name:36} predicted {of.us:9.1f}", *shown, "best of the libraries over ours", ratio, flush=True)
        lines += [json.dumps(r) for r in rows]
        if given.record:
            given.record.write_text("\n".join(lines) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--predict", default="", help="name of a device: predicted times alone")
    parser.add_argument("--plan", type=Path, help="folder for programs without machine code, which --planned takes")
    parser.add_argument("--planned", type=Path)
    parser.add_argument("--device", default="", help="that programs are planned for; by default the one that is present")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--fit", type=Path, help="record: figures of the libraries' gradients, `AttentionFigures`")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds, after which no case begins")
    parser.add_argument("--each", type=float, default=0.1)
    given = parser.parse_args(words)
    if given.fit:
        fit(given.fit)
        return
    names = given.cases or names_of_cases()
    device = device_by_name(given.predict or given.device or present_record())
    if not given.predict and not given.plan:
        time_cases(names, device, given)
        return
    for name in names:
        of = planned(name, device)
        print(f"{name:36} {of.us:9.1f} us  {'; '.join(f'{t} {us:.1f} {c}'.strip() for t, c, us in of.kernels)}", flush=True)
        if given.plan:
            write(of, given.plan)


if __name__ == "__main__":
    main()
