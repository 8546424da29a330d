"""Whole networks of convolutions in f32: eager torch, and tilefuse with convolutions as calls and over transformed tiles.

    python -m benchmarks.winograd_nets [--nets vgg16 resnet50] [--batch 64] [--without max-autotune] [--tiny]

Networks are timm's, with random weights, for inference. cuDNN runs without tf32 and with `cudnn.benchmark`; of eager torch's two layouts
the faster one counts. Weights are constants (`keep_weights`), so that filters are transformed once. `error` is the largest difference from
f64 arithmetic over the largest result, of the first images. One line of JSON a network and competitor.
"""
from __future__ import annotations

import argparse
import copy
import importlib
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.environment import default_device
from benchmarks.timing import time_calls
from tilefuse.driver.torch_backend import backend

# Networks of the paper's table by timm's names, and how many images they take at once.
NETS = {"vgg16": 64, "resnet50": 64, "darknet53": 64, "densenet161": 48}
SIDE, TINY_SIDE = 224, 64
# Images whose results are compared with f64.
COMPARED_IMAGES = 2
SEED = 5
Step = Callable[[Tensor], Tensor]


def ours(model: nn.Module, winograd: str) -> Step:
    """The model by tilefuse, with convolutions by that option."""
    compiled: Step = torch.compile(model, backend=backend, dynamic=False, fullgraph=True,
                                   options={"winograd": winograd, "keep_weights": True})
    return compiled


def competitors(model: nn.Module, images: Tensor) -> dict[str, tuple[Callable[[], Step], Tensor]]:
    """How to make each competitor's step, and its images."""
    last = images.to(memory_format=torch.channels_last)
    return {
        "eager": (lambda: model, images),
        "eager, channels last": (lambda: copy.deepcopy(model).to(memory_format=torch.channels_last), last),  # type: ignore[call-overload]
        "max-autotune": (lambda: torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True), images),
        "tilefuse": (lambda: ours(model, "off"), images),
        "tilefuse, transformed tiles": (lambda: ours(model, "auto"), images),
    }


def measure(name: str, batch: int, side: int, without: Sequence[str], device: torch.device) -> dict[str, float]:
    """Prints a line for each competitor. Returns their times. Units: microseconds."""
    torch.manual_seed(SEED)
    model = importlib.import_module("timm").create_model(name).to(device).eval()
    images = torch.randn(batch, 3, side, side, device=device)
    exact = copy.deepcopy(model).double()(images[:COMPARED_IMAGES].double())
    us_by_name: dict[str, float] = {}
    for who, (make, given) in competitors(model, images).items():
        if who in without:
            continue
        torch._dynamo.reset()
        row: dict[str, Any] = {"net": name, "batch": batch, "who": who}
        started = time.perf_counter()
        try:
            step = make()
            got = step(given)[:COMPARED_IMAGES]
            row |= {"first call, s": round(time.perf_counter() - started, 1)}
            timing, _ = time_calls([partial(step, given)], device, budget_s=0.5)
        except Exception as failure:  # the others are still measured
            print(json.dumps({**row, "failed": f"{type(failure).__name__}: {failure}"[:300]}), flush=True)
            continue
        us_by_name[who] = timing.median_us
        error = float((got.double() - exact).abs().max() / exact.abs().max())
        print(json.dumps({**row, "us": round(timing.median_us, 1), "error": float(f"{error:.1e}")}), flush=True)
    return us_by_name


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.winograd_nets", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--batch", type=int, default=0, help="images at once (0: as in the paper)")
    parser.add_argument("--without", nargs="*", default=[], help="competitors that are left out")
    parser.add_argument("--tiny", action="store_true", help="two small images, to try the script")
    asked = parser.parse_args()
    device = default_device()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        for name in asked.nets:
            batch = 2 if asked.tiny else asked.batch or NETS[name]
            us = measure(name, batch, TINY_SIDE if asked.tiny else SIDE, asked.without, device)
            rivals = [t for who, t in us.items() if not who.startswith("tilefuse")]
            for who in ("tilefuse", "tilefuse, transformed tiles"):
                if rivals and who in us:
                    ratio = min(rivals) / us[who]
                    print(f"{name}: {who} {us[who]:.1f} us, the best of the others {min(rivals):.1f} ({ratio:.3f})", flush=True)


if __name__ == "__main__":
    main()
