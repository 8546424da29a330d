"""Convolutions of 3 x 3 windows in f32: cuDNN's best algorithm against transformed tiles, layer by layer, with errors against f64.

    python -m benchmarks.winograd                      the layers of `LAYERS`, channels last, then row-major
    python -m benchmarks.winograd --layouts last --layers 64x64x56,512x512x7

cuDNN is timed without tf32 and with `cudnn.benchmark`, in both layouts; its best is the rival. Ours is the plan of `winograd=always`:
tiles, products and results, with filters computed beforehand, since the weight is a constant. Both run from CUDA graphs over rotating
inputs. Errors are the largest ones of the first images over the largest result. Other processes plan and compile meanwhile. One line of
JSON a layer and layout, then ratios.
"""
from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.timing import num_input_sets, time_calls
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.passes.manager import PassContext
from tilefuse.passes.precision import StatePrecision
from tilefuse.target.device import H200

LAST, ROW_MAJOR = "last", "row-major"
# Images whose results are compared with f64.
COMPARED_IMAGES = 2


@dataclass(frozen=True)
class Layer:
    """A convolution with padding 1 of square images. Units: images, channels, places."""

    network: str
    channels: int
    features: int
    side: int
    batch: int = 64

    @property
    def name(self) -> str:
        """As the command line has it."""
        return f"{self.channels}x{self.features}x{self.side}"

    @property
    def bytes_moved(self) -> int:
        """Bytes of image and result."""
        return 4 * self.batch * self.side**2 * (self.channels + self.features)

    @property
    def operations(self) -> int:
        """Operations of the direct convolution."""
        return 18 * self.batch * self.side**2 * self.channels * self.features

    def image_shape(self, batch: int = 0) -> tuple[int, int, int, int]:
        """Shape of the image."""
        return batch or self.batch, self.channels, self.side, self.side

    def graph(self) -> Graph:
        """The convolution in f32, without tf32."""
        b = TensorBuilder("layer")
        x, w = b.input("x", F32, self.image_shape()), b.input("w", F32, (self.features, self.channels, 3, 3), constant=True)
        graph = b.finish([b.convolution(x, w, None, (1, 1), ((1, 1), (1, 1)), (1, 1), 1)])
        return StatePrecision(convolutions="f32").run(graph, PassContext())

    def weight(self) -> np.ndarray:
        """The seeded weight, of results about as large as the image's elements."""
        drawn = np.random.default_rng(self.channels).standard_normal((self.features, self.channels, 3, 3))
        return (drawn / math.sqrt(9 * self.channels)).astype(np.float32)


# The layers of the mega-kernel paper's networks, the most different ones first.
LAYERS = (
    Layer("resnet", 64, 64, 56), Layer("resnet", 256, 256, 14), Layer("vgg", 128, 256, 56), Layer("yolo", 512, 1024, 13),
    Layer("resnet", 128, 128, 28), Layer("resnet", 512, 512, 7), Layer("densenet", 192, 48, 56, 48), Layer("yolo", 32, 64, 208),
    Layer("vgg", 64, 128, 112), Layer("vgg", 256, 512, 28), Layer("yolo", 64, 128, 104), Layer("yolo", 128, 256, 52),
    Layer("yolo", 256, 512, 26),
)


def facts_of(layer: Layer, layout: str) -> dict[str, Any]:
    """What a compile of a layer is told."""
    layouts = {"x": channels_last_strides(layer.image_shape())} if layout == LAST else {}
    results = {"convolution": channels_last_strides((layer.batch, layer.features, layer.side, layer.side))} if layout == LAST else {}
    return {"constants": {"w": layer.weight()}, "input_layouts": layouts, "result_layouts": results,
            "options": Options(winograd="always", float32_products="split")}


def compiled(layer: Layer, layout: str) -> Any:
    """The program of a layer on the GPU at hand."""
    return compile_graph(layer.graph(), device="cuda", **facts_of(layer, layout))


def prepare(layer: Layer, layout: str) -> None:
    """Plans and compiles a layer, for the cache."""
    compiled(layer, layout)


def predicted(layer: Layer, layout: str) -> dict[str, Any]:
    """Predicted times of the steps on an H200, without one: kernels in order, the product among them, and the library's convolution."""
    made = generate(layer.graph(), device=H200, **facts_of(layer, layout))
    return {"layer": layer.name, "layout": layout, "kernels_us": {k.program.name: round(k.cost.us, 1) for k in made.plan.kernels},
            "note": next((n for n in made.plan.notes if "F(" in n), "")}


def measured(layer: Layer, layout: str, device: torch.device, budget_s: float) -> dict[str, Any]:
    """Times and errors of one layer in one layout, of cuDNN and ours. Units: microseconds."""
    memory_format = torch.channels_last if layout == LAST else torch.contiguous_format
    weight = torch.from_numpy(layer.weight()).to(device)
    images = [torch.randn(layer.image_shape(), device=device).to(memory_format=memory_format)
              for _ in range(num_input_sets(layer.bytes_moved, device))]
    library = partial(torch.nn.functional.conv2d, weight=weight.to(memory_format=memory_format), padding=1)
    program = compiled(layer, layout)
    exact = torch.nn.functional.conv2d(images[0][:COMPARED_IMAGES].double(), weight.double(), padding=1)
    row: dict[str, Any] = {"layer": layer.name, "network": layer.network, "layout": layout}
    for name, call in (("cudnn", library), ("ours", lambda x: program(x)[0])):
        timing, result = time_calls([partial(call, x) for x in images], device, budget_s=budget_s)
        assert isinstance(result, torch.Tensor)
        error = (result[:COMPARED_IMAGES].double() - exact).abs().max() / exact.abs().max()
        row |= {f"{name}_us": round(timing.median_us, 2), f"{name}_error": float(f"{float(error):.3g}")}
    row["steps_us"] = {step.name: round(step.us, 1) for step in program.profile(images[0], repeats=3)}
    row["direct_tflops"] = {n: round(layer.operations / row[f"{n}_us"] / 1e6, 1) for n in ("cudnn", "ours")}
    return row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """cuDNN's best layout over ours, a layer: ratios and their geometric mean."""
    ratios: dict[str, float] = {}
    for name in dict.fromkeys(r["layer"] for r in rows):
        mine = [r for r in rows if r["layer"] == name]
        ratios[name] = round(min(r["cudnn_us"] for r in mine) / min(r["ours_us"] for r in mine), 3)
    mean = math.exp(sum(map(math.log, ratios.values())) / max(len(ratios), 1))
    return {"cudnn_over_ours": ratios, "geometric_mean": round(mean, 3)}


def main() -> None:
    """Prints a line of JSON a layer and layout, as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.winograd", description=__doc__)
    parser.add_argument("--layers", default="", help="channels x features x side, separated by commas; all of the list by default")
    parser.add_argument("--layouts", default=f"{LAST},{ROW_MAJOR}", help=f"{LAST}, {ROW_MAJOR}, or both separated by a comma")
    parser.add_argument("--budget", type=float, default=0.05, help="seconds of timing a layer and library")
    parser.add_argument("--processes", type=int, default=8, help="processes that plan and compile ahead")
    parser.add_argument("--predict", action="store_true", help="predicted times alone, for an H200; needs no GPU")
    arguments = parser.parse_args()
    wanted = arguments.layers.split(",") if arguments.layers else [layer.name for layer in LAYERS]
    cases = [(layer, layout) for layout in arguments.layouts.split(",") for layer in LAYERS if layer.name in wanted]
    if not arguments.predict and not torch.cuda.is_available():
        parser.error("layers are timed on a GPU, and there is none")
    context = multiprocessing.get_context("spawn")
    work: Callable[[Layer, str], Any] = predicted if arguments.predict else prepare
    with ProcessPoolExecutor(max(arguments.processes, 1), mp_context=context) as pool:
        ready = [pool.submit(work, *case) for case in cases]
        if arguments.predict:
            for future in ready:
                print(json.dumps(future.result()), flush=True)
            return
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        device = torch.device("cuda", torch.cuda.current_device())
        print(json.dumps({"device": torch.cuda.get_device_name(device), "cudnn": torch.backends.cudnn.version()}), flush=True)
        rows = []
        for case, future in zip(cases, ready, strict=True):
            future.result()
            rows.append(measured(*case, device, arguments.budget))
            print(json.dumps(rows[-1]), flush=True)
            torch.cuda.empty_cache()
        print(json.dumps(summary(rows)), flush=True)


if __name__ == "__main__":
    main()
