"""Networks for training, once as symbolic arrays and once in torch: LeNet, ResNet-18, ResNet-50. Names and shapes of weights are equal,
so that the state of one is the state of the other.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from tilefuse import array as ta
from tilefuse import nn
from tilefuse.nn.initialise import Seed, generator


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling. Shapes: [N, 1, 28, 28] -> [N, classes]"""

    def __init__(self, classes: int = 10, seed: Seed = 0) -> None:
        super().__init__()
        draws = generator(seed)
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2, seed=draws)
        self.conv2 = nn.Conv2d(6, 16, 5, seed=draws)
        self.full1 = nn.Linear(400, 120, seed=draws)
        self.full2 = nn.Linear(120, 84, seed=draws)
        self.full3 = nn.Linear(84, classes, seed=draws)

    def forward(self, x: Any) -> Any:
        x = nn.max_pool(nn.relu(self.conv1(x)), 2)
        x = nn.max_pool(nn.relu(self.conv2(x)), 2)
        x = ta.reshape(x, (x.shape[0], 400))
        return self.full3(nn.relu(self.full2(nn.relu(self.full1(x)))))


class TorchLeNet(torch_nn.Module):
    """The same in torch."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = torch_nn.Conv2d(1, 6, 5, padding=2), torch_nn.Conv2d(6, 16, 5)
        self.full1, self.full2, self.full3 = torch_nn.Linear(400, 120), torch_nn.Linear(120, 84), torch_nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.reshape(x.shape[0], 400)
        return self.full3(F.relu(self.full2(F.relu(self.full1(x)))))


class Block(nn.Module):
    """A residual block: convolutions of these windows with batch norms, ReLU between them and after the sum."""

    def __init__(self, before: int, widths: Sequence[int], windows: Sequence[int], strides: Sequence[int], seed: Seed) -> None:
        super().__init__()
        inside = before
        for number, (width, window, stride) in enumerate(zip(widths, windows, strides), 1):
            setattr(self, f"conv{number}", nn.Conv2d(inside, width, window, stride, window // 2, bias=False, seed=seed))
            setattr(self, f"norm{number}", nn.BatchNorm2d(width))
            inside = width
        self.count = len(widths)
        self.short = None
        if max(strides) != 1 or before != inside:
            self.short = nn.Sequential(nn.Conv2d(before, inside, 1, max(strides), bias=False, seed=seed), nn.BatchNorm2d(inside))

    def forward(self, x: Any) -> Any:
        y = x
        for number in range(1, self.count + 1):
            y = getattr(self, f"norm{number}")(getattr(self, f"conv{number}")(y))
            y = nn.relu(y) if number < self.count else y
        return nn.relu(y + (x if self.short is None else self.short(x)))


class TorchBlock(torch_nn.Module):
    """The same in torch."""

    def __init__(self, before: int, widths: Sequence[int], windows: Sequence[int], strides: Sequence[int]) -> None:
        super().__init__()
        inside = before
        for number, (width, window, stride) in enumerate(zip(widths, windows, strides), 1):
            setattr(self, f"conv{number}", torch_nn.Conv2d(inside, width, window, stride, window // 2, bias=False))
            setattr(self, f"norm{number}", torch_nn.BatchNorm2d(width))
            inside = width
        self.count = len(widths)
        self.short = None
        if max(strides) != 1 or before != inside:
            self.short = torch_nn.Sequential(torch_nn.Conv2d(before, inside, 1, max(strides), bias=False), torch_nn.BatchNorm2d(inside))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in range(1, self.count + 1):
            y = getattr(self, f"norm{number}")(getattr(self, f"conv{number}")(y))
            y = F.relu(y) if number < self.count else y
        return F.relu(y + (x if self.short is None else self.short(x)))


@dataclass(frozen=True)
class Plan:
    """A ResNet: blocks a stage, width of the first one, whether blocks are bottlenecks, classes."""

    blocks: tuple[int, ...]
    width: int
    deep: bool
    classes: int = 1000

    def shapes(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
        """For every block: channels before it, widths, windows and strides of its convolutions."""
        found = []
        before = self.width
        for stage, count in enumerate(self.blocks):
            inner = self.width * 2**stage
            for number in range(count):
                stride = 2 if stage and number == 0 else 1
                widths = (inner, inner, 4 * inner) if self.deep else (inner, inner)
                found.append((before, widths, (1, 3, 1) if self.deep else (3, 3), (1, stride, 1) if self.deep else (stride, 1)))
                before = widths[-1]
        return found


class ResNet(nn.Module):
    """Shapes: images [N, 3, side, side] -> [N, classes]"""

    def __init__(self, plan: Plan, seed: Seed = 0) -> None:
        super().__init__()
        draws = generator(seed)
        self.conv, self.norm = nn.Conv2d(3, plan.width, 7, 2, 3, bias=False, seed=draws), nn.BatchNorm2d(plan.width)
        shapes = plan.shapes()
        self.layers = nn.Sequential(*(Block(*shape, seed=draws) for shape in shapes))
        self.classify = nn.Linear(shapes[-1][1][-1], plan.classes, seed=draws)

    def forward(self, images: Any) -> Any:
        x = nn.max_pool(nn.relu(self.norm(self.conv(images))), 3, stride=2, padding=1)
        return self.classify(ta.mean(self.layers(x), axis=(2, 3)))


class TorchResNet(torch_nn.Module):
    """The same in torch."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.conv, self.norm = torch_nn.Conv2d(3, plan.width, 7, 2, 3, bias=False), torch_nn.BatchNorm2d(plan.width)
        shapes = plan.shapes()
        self.layers = torch_nn.Sequential(*(TorchBlock(*shape) for shape in shapes))
        self.classify = torch_nn.Linear(shapes[-1][1][-1], plan.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(images))), 3, 2, 1)
        return self.classify(self.layers(x).mean((2, 3)))


@dataclass(frozen=True)
class Network:
    """How to make both versions, and the shape of one image; `tiny` asks for a small one."""

    arrays: Callable[[bool], nn.Module]
    torch: Callable[[bool], torch_nn.Module]
    image: Callable[[bool], tuple[int, int, int]]
    classes: Callable[[bool], int]


def _resnet(blocks: tuple[int, ...], deep: bool) -> Network:
    def plan(tiny: bool) -> Plan:
        return Plan((1, 1), 8, deep, 10) if tiny else Plan(blocks, 64, deep)

    return Network(lambda tiny: ResNet(plan(tiny)), lambda tiny: TorchResNet(plan(tiny)),
                   lambda tiny: (3, 32, 32) if tiny else (3, 224, 224), lambda tiny: plan(tiny).classes)


NETWORKS = {
    "lenet": Network(lambda tiny: LeNet(), lambda tiny: TorchLeNet(), lambda tiny: (1, 28, 28), lambda tiny: 10),
    "resnet18": _resnet((2, 2, 2, 2), False),
    "resnet50": _resnet((3, 4, 6, 3), True),
}


def load_into(model: torch_nn.Module, state: dict[str, Any]) -> None:
    """Gives the torch network the parameters and statistics of the other one."""
    own = model.state_dict()
    model.load_state_dict({name: torch.from_numpy(state[name]) if name in state else value for name, value in own.items()})
