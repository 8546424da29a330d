"""One graph with and without the template: the choice, its text, its price on an H200, its CUDA, and its result on this machine."""
import torch

import tilefuse
from examples.strided_template import StridedTemplate
from tilefuse.templates.registry import registered


def model(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Three maps, one kernel."""
    return torch.tanh(x + bias) * x


inputs = torch.randn(3001, 517), torch.randn(517)


def show() -> None:
    """Text and price of the kernel on an H200."""
    kernel = tilefuse.compile(model, inputs, target="h200").plan.kernels[0]
    print(f"{kernel.program.notation}  predicted {kernel.cost.us:.2f} us")


show()
with registered(StridedTemplate()):
    show()
    print(tilefuse.compile(model, inputs, target="h200").kernels[0].source.partition('extern "C"')[2])
    program = tilefuse.compile(model, inputs, device="host")
    error = (program(*inputs) - model(*inputs)).abs().max()
    print(f"largest error on the host: {error:.1e}")
