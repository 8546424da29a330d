"""Winograd's mega-kernel: cuDNN's best f32 algorithm, transforms and products as kernels, and as tasks of one kernel in groups of tiles.

    python -m benchmarks.winograd_groups                         the layers of `winograd.LAYERS`, channels last
    python -m benchmarks.winograd_groups --layers 64x64x56 --variants 12
    python -m benchmarks.winograd_groups --predict               predicted times and bytes alone; needs no GPU

A line of JSON a layer, as it is measured: times, errors against f64 (largest one over the largest result), predicted times and bytes. With
`--variants N` the kernel is timed with N other rhythms as well: distances, groups together, slots, blocks a task. Images rotate, so that no
call finds them in L2. Other processes plan and compile meanwhile.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from benchmarks.timing import num_input_sets, time_calls
from benchmarks.winograd import COMPARED_IMAGES, LAST, LAYERS, Layer, facts_of, summary
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import Generated, compile_graph, generate
from tilefuse.kernel.launch_contract import pointer_parameters
from tilefuse.printers.cuda import print_cuda
from tilefuse.runtime.compilers.nvrtc import compile_cuda
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelCode
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.tasks.chains.record import GroupedChain

FOUR, GROUPS = "off", "always"


def facts(layer: Layer, how: str) -> dict[str, Any]:
    """What a compile of a layer is told. how: the option `tile_groups`."""
    return {**facts_of(layer, LAST), "options": Options(winograd="always", float32_products="split", tile_groups=how)}


def prepare(layer: Layer, how: str) -> None:
    """Plans and compiles a layer, for the cache."""
    compile_graph(layer.graph(), device="cuda", **facts(layer, how))


def predicted(layer: Layer) -> dict[str, Any]:
    """Predicted times of both plans on an H200, and bytes: of image and result, of transformed tiles and products, of the rings."""
    row: dict[str, Any] = {"layer": layer.name, "network": layer.network, "batch": layer.batch, "boundary_mb": layer.bytes_moved // 10**6}
    four = generate(layer.graph(), device=H200, **facts(layer, FOUR)).plan
    row["four_predicted_us"] = round(four.objective_us, 1)
    plan = generate(layer.graph(), device=H200, **facts(layer, GROUPS)).plan
    chain = next((k for k in plan.kernels if isinstance(k.program.choice, GroupedChain)), None)
    if chain is None:
        return {**row, "groups": str(next((r.rejected for r in plan.rejected), "no chain"))}
    choice = chain.program.choice
    assert isinstance(choice, GroupedChain)
    shown = ("tasks", "group_length", "tasks_a_group", "blocks_a_task", "groups_together", "groups_ahead", "rounds_between", "ring_slots",
             "ring_bytes", "threads", "workers", "product")
    parameters = dict(chain.program.parameters)
    return {**row, "groups_predicted_us": round(plan.objective_us, 1), "handed_mb": [choice.handed_bytes(n) * choice.groups // 10**6
                                                                                     for n in range(2)],
            "rhythm": {name: parameters[name] for name in shown}}


Variant = tuple[dict[str, Any], KernelCode]


def variant(layer: Layer, number: int) -> Variant | None:
    """The chain's kernel with another rhythm, compiled for the cache: its parameters and its code. None: there is no such number."""
    planned, others = rhythms(layer)
    if planned is None or number >= len(others):
        return None
    kernel = compose(others[number], H200)
    code = replace(planned, source=print_cuda(kernel, H200), launch=kernel.launch, parameters=pointer_parameters(kernel))
    compile_cuda(code)
    return dict(others[number].parameters), code


@lru_cache(maxsize=1)
def rhythms(layer: Layer) -> tuple[KernelCode | None, list[TileProgram]]:
    """The kernel of a layer's chain as planned, None where the plan has no chain, and the programs of its other rhythms."""
    generated = generate(layer.graph(), device=H200, **facts(layer, GROUPS))
    place = next((n for n, k in enumerate(generated.plan.kernels) if isinstance(k.program.choice, GroupedChain)), None)
    if place is None:
        return None, []
    program = generated.plan.kernels[place].program
    others = (program_with(program, c, H200) for c in neighbours(program, H200)[1:])
    return generated.kernels[place], [p for p in others if not isinstance(p, Rejected)]


def with_code(generated: Generated, code: KernelCode) -> Program:
    """The program with another code for the kernel of that name."""
    kernels = tuple(code if k.name == code.name else k for k in generated.spec.kernels)
    return Program(replace(generated.spec, kernels=kernels), generated.constants, "cuda", copies_constants=True)


def measured(layer: Layer, device: torch.device, budget_s: float, codes: Sequence[Variant]) -> dict[str, Any]:
    """Times and errors of one layer. Units: microseconds."""
    row = predicted(layer)
    weight = torch.from_numpy(layer.weight()).to(device)
    images = [torch.randn(layer.image_shape(), device=device).to(memory_format=torch.channels_last)
              for _ in range(num_input_sets(layer.bytes_moved, device))]
    exact = torch.nn.functional.conv2d(images[0][:COMPARED_IMAGES].double(), weight.double(), padding=1)

    def timed(name: str, call: Any, inputs: Sequence[torch.Tensor]) -> None:
        timing, result = time_calls([partial(call, x) for x in inputs], device, budget_s=budget_s)
        assert isinstance(result, torch.Tensor)
        error = (result[:COMPARED_IMAGES].double() - exact).abs().max() / exact.abs().max()
        row.update({f"{name}_us": round(timing.median_us, 2), f"{name}_error": float(f"{float(error):.3g}")})

    for name, how in (("four", FOUR), ("groups", GROUPS)):
        program = compile_graph(layer.graph(), device="cuda", **facts(layer, how))
        timed(name, lambda x, p=program: p(x)[0], images)
        row[f"{name}_steps_us"] = {step.name: round(step.us, 1) for step in program.profile(images[0], repeats=3)}
    if codes:
        generated = generate(layer.graph(), device=H200, **facts(layer, GROUPS))
        row["variants"] = []
        for parameters, code in codes:
            program = with_code(generated, code)
            timing, result = time_calls([lambda x=x, p=program: p(x)[0] for x in images], device, budget_s=budget_s)
            assert isinstance(result, torch.Tensor)
            error = float((result[:COMPARED_IMAGES].double() - exact).abs().max() / exact.abs().max())
            keys = ("tasks_a_group", "blocks_a_task", "groups_together", "groups_ahead", "rounds_between", "ring_slots", "workers",
                    "product")
            row["variants"].append([round(timing.median_us, 1), float(f"{error:.2g}"), {k: parameters[k] for k in keys}])
        row["variants"].sort(key=lambda v: v[0])
    library = partial(torch.nn.functional.conv2d, weight=weight, padding=1)
    last = partial(torch.nn.functional.conv2d, weight=weight.to(memory_format=torch.channels_last), padding=1)
    timed("cudnn_last", last, images)
    images = [x.contiguous() for x in images]
    timed("cudnn_row_major", library, images)
    row["cudnn_us"], row["ours_us"] = min(row["cudnn_last_us"], row["cudnn_row_major_us"]), row["groups_us"]
    row["cudnn_over_groups"], row["four_over_groups"] = (round(row[n] / row["groups_us"], 3) for n in ("cudnn_us", "four_us"))
    return row


def main() -> None:
    """Prints a line of JSON a layer, as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.winograd_groups", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="", help="channels x features x side, separated by commas; all of the list by default")
    parser.add_argument("--budget", type=float, default=0.05, help="seconds of timing a layer and rival")
    parser.add_argument("--processes", type=int, default=8, help="processes that plan and compile ahead")
    parser.add_argument("--variants", type=int, default=0, help="other rhythms of the chain that are timed")
    parser.add_argument("--out", default="", help="file to which the lines are also appended")
    parser.add_argument("--predict", action="store_true", help="predicted times alone, for an H200; needs no GPU")
    arguments = parser.parse_args()
    wanted = arguments.layers.split(",") if arguments.layers else [layer.name for layer in LAYERS]
    layers = [layer for layer in LAYERS if layer.name in wanted]

    def show(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        if arguments.out:
            with open(arguments.out, "a") as file:
                file.write(json.dumps(row) + "\n")

    if arguments.predict:
        for layer in layers:
            show(predicted(layer))
        return
    if not torch.cuda.is_available():
        parser.error("layers are timed on a GPU, and there is none")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda", torch.cuda.current_device())
    show({"device": torch.cuda.get_device_name(device), "cudnn": torch.backends.cudnn.version()})
    rows = []
    with ProcessPoolExecutor(max(arguments.processes, 1), mp_context=multiprocessing.get_context("spawn")) as pool:
        ready = [[pool.submit(prepare, layer, how) for how in (FOUR, GROUPS)] for layer in layers]
        codes: list[list[Future[Any]]] = [[pool.submit(variant, layer, n) for n in range(arguments.variants)] for layer in layers]
        for layer, futures, others in zip(layers, ready, codes, strict=True):
            try:
                for future in futures:
                    future.result()
                started = time.perf_counter()
                row = measured(layer, device, arguments.budget, [code for o in others if (code := o.result()) is not None])
            except Exception as failure:  # the other layers are still measured
                show({"layer": layer.name, "failed": f"{type(failure).__name__}: {failure}"[:600]})
                continue
            rows.append(row)
            show({**row, "measured_in_s": round(time.perf_counter() - started, 1)})
            torch.cuda.empty_cache()
    show(summary(rows))


if __name__ == "__main__":
    main()
