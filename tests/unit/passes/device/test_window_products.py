"""Convolutions whose windows share no element as products: what they compute, which ones, and when."""
from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

from tests.laws.changed_graphs import CHANGED
from tests.unit.passes.device.rewriting import rewritten
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.pipeline import context_of
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, F64, DType
from tilefuse.ir.graph import Attribute, Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.verify import check
from tilefuse.passes.device.convolution_layouts import WEIGHT_OPERAND
from tilefuse.passes.device.disjoint_windows import disjoint_windows
from tilefuse.passes.device.window_products import MultiplyWindows, WindowChoice, window_choices, with_products
from tilefuse.passes.facts import CallerLayouts
from tilefuse.passes.manager import Pipeline
from tilefuse.passes.precision import StatePrecision
from tilefuse.plan.pattern import Plan
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200


@dataclass(frozen=True)
class Convolution:
    """A convolution's geometry, a number for each dimension; () for that of an operator without such a setting."""

    image: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    transposed: bool = False
    extra: tuple[int, ...] = ()
    groups: int = 1

    def graph(self, dtype: DType = F64, bias: bool = False, backward: bool = False, batch: int = 2, channels: int = 3,
              features: int = 5) -> Graph:
        """The convolution, or the three gradients of one call."""
        b = TensorBuilder("convolution")
        weight = (channels, features) if self.transposed else (features, channels)
        x = b.input("x", dtype, (batch, channels, *self.image))
        w = b.input("w", dtype, (weight[0], weight[1] // self.groups, *self.window))
        settings = (self.stride, self.padding or None, self.dilation or None, self.groups)
        added = b.input("b", dtype, (features,)) if bias else None
        more = (self.extra or None,) if self.transposed else ()
        y = (b.convolution_transpose if self.transposed else b.convolution)(x, w, added, *settings, *more)
        if not backward:
            return b.finish([y])
        node = next(n for n in b.finish([y]).nodes if n.name == y)
        attributes: dict[str, Attribute] = dict(node.attributes) | {"mask": (True, True, True)}
        attributes.pop("has_bias")
        b = TensorBuilder("gradients")
        g = b.input("g", dtype, node.type.shape)
        x, w = b.input("x", dtype, (batch, channels, *self.image)), b.input("w", dtype, (weight[0], weight[1], *self.window))
        kinds = (b.type_of(x), b.type_of(w), replace(node.type, shape=(features,)))
        return b.finish([b.library("gradient", "convolution_backward", kind, (g, x, w), attributes | {"result": n})
                         for n, kind in enumerate(kinds)])


CASES = {
    "patches": Convolution((8, 12), (4, 3), (4, 3)),
    "patches that leave a rest": Convolution((9, 14), (4, 3), (4, 3)),
    "gaps between windows": Convolution((9, 8), (2, 1), (3, 4)),
    "one place": Convolution((5, 7), (1, 1), (1, 1)),
    "every other place": Convolution((5, 7), (1, 1), (2, 3)),
    "one window": Convolution((5, 3), (5, 3), (1, 1)),
    "one window along one side": Convolution((7, 6), (5, 2), (3, 2)),
    "padded": Convolution((7, 6), (3, 4), (3, 4), ((1, 1), (2, 2))),
    "padded with one window": Convolution((4, 2), (3, 4), (4, 1), ((1, 1), (1, 1))),
    "padded unequally": Convolution((7, 6), (3, 2), (3, 2), ((0, 2), (1, 0))),
    "places apart": Convolution((11, 9), (2, 3), (4, 5), (), (3, 2)),
    "a signal": Convolution((17,), (4,), (4,)),
    "a volume": Convolution((4, 5, 7), (2, 2, 3), (2, 2, 3)),
    "transposed": Convolution((3, 2), (2, 4), (2, 4), transposed=True),
    "transposed with gaps": Convolution((3, 2), (2, 1), (3, 4), transposed=True, extra=(1, 2)),
    "transposed and cropped": Convolution((3, 4), (3, 3), (3, 3), ((1, 1), (0, 0)), transposed=True),
    "a transposed volume": Convolution((2, 3, 2), (2, 1, 2), (2, 1, 2), transposed=True),
}


def multiplied(graph: Graph) -> Graph:
    """The graph with every convolution as products, whatever they cost."""
    choices = []
    for node in graph.nodes:
        if node.kind in WEIGHT_OPERAND:
            windows = disjoint_windows(node, graph)
            assert not isinstance(windows, Rejected), windows
            choices.append(WindowChoice((node,), windows))
    return with_products(graph, choices)


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs."""
    generator = np.random.default_rng(11)
    return {i.name: generator.standard_normal(i.type.shape) for i in graph.inputs}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["plain", "bias", "gradients"])
def test_products_give_what_the_convolution_gives(name: str, form: str) -> None:
    """In f64, for the image, the bias and every gradient."""
    graph = CASES[name].graph(bias=form == "bias", backward=form == "gradients")
    products = multiplied(graph)
    check(products, name)
    assert not any(n.kind in WEIGHT_OPERAND for n in products.nodes)
    inputs = drawn(graph)
    for ours, theirs in zip(interpret(products, inputs), interpret(graph, inputs), strict=True):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-12 * max(np.abs(np.asarray(theirs)).max(), 1.0))


def test_gradients_share_a_matrix() -> None:
    """The gradient of the image and that of the weight read the result's gradient as one matrix."""
    products = multiplied(CASES["patches"].graph(backward=True))
    calls = [n for n in products.nodes if n.kind == "library.matmul"]
    assert len(calls) == 2 and calls[0].operands[0] == calls[1].operands[0]


@pytest.mark.parametrize(("case", "told"), [
    (Convolution((9, 9), (3, 3), (2, 3)), "windows of %convolution share elements: 3 places 1 apart, 2 from one window to the next"),
    (Convolution((9, 9), (2, 2), (3, 3), (), (3, 3)), "share elements: 2 places 3 apart, 3 from"),
    (Convolution((8, 8), (2, 2), (2, 2), groups=3), "%convolution has 3 groups, and a product has one"),
])
def test_other_convolutions_are_refused(case: Convolution, told: str) -> None:
    graph = case.graph(channels=3, features=6)
    refused = disjoint_windows(graph.nodes[-1], graph)
    assert isinstance(refused, Rejected) and told in refused.detail
    assert rewritten(MultiplyWindows(), graph, H200) is graph


def test_other_devices_and_types_keep_their_calls() -> None:
    graph = Convolution((32, 32), (8, 8), (8, 8)).graph(F16, batch=64, features=256)
    assert rewritten(MultiplyWindows(), graph, host_device()) is graph


RECORD = Path(__file__).parents[4] / "benchmarks" / "results" / "convolutions-h200-20261124.txt"
ROW = re.compile(r"(?P<dtype>\w+) (?P<image>[\dx]+) by (?P<weight>[\dx]+) +(?P<us>[\d. |nan]+)")
DTYPES = {"f16": F16, "bf16": BF16, "tf32": F32, "f32": F32}


@dataclass(frozen=True)
class Timed:
    """A line of the record: the library's convolution in its faster layout, its product, and the choice. Units: microseconds.

    copy_us: of the windows at the rate of a copy.
    """

    case: str
    call_us: float
    product_us: float
    copy_us: float
    choice: WindowChoice


def timed() -> list[Timed]:
    """Every line, with the choice of the pass."""
    rows = []
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        row = ROW.match(line)
        if row is None:
            continue
        batch, channels, *image = map(int, row["image"].split("x"))
        features, *window = map(int, row["weight"].split("x"))
        graph = Convolution(tuple(image), tuple(window), tuple(window)).graph(
            DTYPES[row["dtype"]], batch=batch, channels=channels, features=features)
        if row["dtype"] == "f32":
            graph = Pipeline((StatePrecision("f32", "f32"),)).run(graph, context_of(H200, Options()))
        row_major, last, _, product, *_ = (float(us) for us in row["us"].replace("|", " ").split())
        prices = context_of(H200, Options()).prices
        assert prices is not None
        (choice,) = window_choices(graph, H200, prices, CallerLayouts())
        copied = 2 * graph.type_of("x").num_bytes if prod(window) > 1 else 0
        rows.append(Timed(row[0].split("  ")[0], min(row_major, last), product, copied / H200.global_bytes_per_s * 1e6, choice))
    return rows


def test_choices_follow_the_measured_times() -> None:
    """Where a product with its copy took two thirds of the call's time or less, it is taken; no choice costs more than a quarter."""
    rows = timed()
    assert len(rows) > 40
    for row in rows:
        product_us = row.product_us + row.copy_us
        if product_us <= row.call_us * 2 / 3 and prod(row.choice.windows.weight[2:] if row.choice.windows else ()) > 1:
            assert row.choice.is_taken or row.case.startswith("f16 32x512x1000"), row
        assert (product_us if row.choice.is_taken else row.call_us) <= 1.25 * min(product_us, row.call_us) or not row.choice.is_taken, row


def plan_of(graph: Graph) -> Plan:
    return generate(graph, constants={}, device=H200, options=replace(Options(), plan_cache=False)).plan


def test_patches_of_images_become_one_copy_and_a_product() -> None:
    """The patches of ViT: one kernel copies the windows, and no other one turns the image."""
    plan = plan_of(Convolution((224, 224), (16, 16), (16, 16)).graph(F16, True, batch=64, features=768))
    assert not any(n.kind in WEIGHT_OPERAND for n in plan.graph.nodes)
    assert plan.kernels[0].pattern.nodes == ("x_matrix",)
    assert sum("x" in dict(k.binding).values() for k in plan.kernels) == 1
    assert any(note.startswith("%convolution: planned as products; predicted") for note in plan.notes)


def test_small_patches_are_one_kernel_with_their_product() -> None:
    """Producing threads gather the windows; tokens that the graph reads from the image are a view of the product."""
    plan = plan_of(CHANGED["multiply-windows"].graph)
    assert len(plan.steps) == 1 and any(note.startswith("%y: planned as products; predicted") for note in plan.notes)
