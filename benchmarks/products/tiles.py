"""Prices of tiles of products beside a record of their times, and figures of power fitted to it.

    python -m benchmarks.products.tiles [RECORD] [--device h100] [--fit copied_byte_pj,cycle_share,...]

Prints for each case the tile of the least price and its time over the fastest's. With --fit: least squares over the logarithms of
predicted over measured, by damped steps from today's figures (`PowerFigures`, `PipelinedFigures`); energies of multiply-adds are one
figure for each type, as `bf16`.
"""
from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np

from tilefuse.base.candidate import Rejected
from tilefuse.domain.roofline import price_work
from tilefuse.domain.work import Work
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.staged.pipelined.choose import choose_product
from tilefuse.templates.staged.pipelined.form import product_form
from tilefuse.templates.staged.pipelined.plan import ProductPlan
from tilefuse.templates.staged.pipelined.product_work import with_work
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.thread_work import result_operations

RECORD = Path(__file__).parents[1] / "results" / "tiles-h200-20261124.txt"
CASE = re.compile(r"== (?P<kind>\w+)/(?P<layout>[nt]{2})/(?:(?P<lead>\d+)\.(?P<other>\d+)x)?(\d+)x(\d+)x(\d+): ")
TILE = re.compile(r" +(T?)(\d+)x(\d+) d(\d+) s(\d+) w(\d+)(p?) b(\d+) g(\d+)(?: c(\d+))?(?: split(\d+))? +pred +[\d.]+ meas +([\d.]+) ")
TYPES = {"bf16": BF16, "f16": F16, "tf32": F32, "f32": F32}
# A tile within this of the fastest counts as found.
NEAR = 1.05


@dataclass(frozen=True)
class TimedTile:
    """A tile of a case with its time. Units: microseconds."""

    case: str
    plan: ProductPlan
    boundary: Work
    flops: int
    measured_us: float

    def price_us(self, device: DeviceSpec) -> float:
        """Its price by the device's figures. Units: microseconds."""
        return price_work(with_work(self.plan, self.boundary, self.flops, device).work, device).us


def product_of(case: re.Match[str]) -> Graph:
    """The product of a case's name: type, layout, [batch.]rows x columns x inner."""
    rows, columns, inner = map(int, case.groups()[4:])
    lead = (int(case["lead"]),) if case["lead"] else ()
    b, dtype = TensorBuilder("timed"), TYPES[case["kind"]]
    x = b.input("x", dtype, (*lead, inner, rows) if case["layout"][0] == "t" else (*lead, rows, inner))
    of_right = lead if case["other"] != "1" else ()
    w = b.input("w", dtype, (*of_right, columns, inner) if case["layout"][1] == "t" else (*of_right, inner, columns))
    y = b.matmul(x, w, transpose_a=case["layout"][0] == "t", transpose_b=case["layout"][1] == "t",
                 precision="tf32" if case["kind"] == "tf32" else "default")
    return Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([y]), PassContext())


def timed_tiles(record: Path, device: DeviceSpec) -> Iterator[TimedTile]:
    """Every tile of a record that is legal today."""
    name, graph = "", None
    for line in record.read_text(encoding="utf-8").splitlines():
        case, tile = CASE.match(line), TILE.match(line)
        if case is not None:
            name, graph = line.split(": ")[0].removeprefix("== "), product_of(case)
        elif tile is not None and graph is not None:
            rows, columns = (int(tile[3]), int(tile[2])) if tile[1] else (int(tile[2]), int(tile[3]))
            choice = Pipelined(rows, columns, int(tile[4]), int(tile[5]), int(tile[6]), int(tile[8]), int(tile[9]), bool(tile[7]),
                               int(tile[10] or 1), bool(tile[1]), int(tile[11] or 1))
            form = product_form(graph, {})
            assert not isinstance(form, Rejected), form
            plan = choose_product(form, device, choice)
            if not isinstance(plan, Rejected):
                yield TimedTile(name, plan, boundary_work(graph), result_operations(form, device), float(tile[12]))


def report(tiles: Sequence[TimedTile], device: DeviceSpec) -> tuple[int, int]:
    """Prints the tile of the least price of each case. Returned: cases in which it is near the fastest, and all."""
    cases, near = list(dict.fromkeys(t.case for t in tiles)), 0
    for case in cases:
        timed = [t for t in tiles if t.case == case]
        chosen, best = min(timed, key=lambda t: t.price_us(device)), min(t.measured_us for t in timed)
        near += chosen.measured_us <= NEAR * best
        c = chosen.plan.choice
        print(f"{case:34s} {c.rows}x{c.columns} w{c.warpgroups}{'p' if c.pingpong else ''} {chosen.measured_us / best:.3f} of the fastest, "
              f"predicted over measured {chosen.price_us(device) / chosen.measured_us:.3f}")
    ratios = [t.price_us(device) / t.measured_us for t in tiles]
    mean = math.sqrt(sum(math.log(r) ** 2 for r in ratios) / len(ratios))
    quartiles = " ".join(f"{q:.3f}" for q in quantiles(ratios, n=4))
    print(f"within {NEAR:.2f}: {near} of {len(cases)}; predicted over measured: quartiles {quartiles}, root of the mean square {mean:.3f}")
    return near, len(cases)


def with_figures(device: DeviceSpec, value_by_name: dict[str, float]) -> DeviceSpec:
    """The device with other figures of power and of pipelined products."""
    power, pipelined = device.fitted.power, device.fitted.pipelined
    energies = tuple((t, value_by_name.get(t, e)) for t, e in power.multiply_add_pj)
    of_power: dict[str, Any] = {n: v for n, v in value_by_name.items() if hasattr(power, n)}
    of_products: dict[str, Any] = {n: v for n, v in value_by_name.items() if hasattr(pipelined, n)}
    power, pipelined = replace(power, multiply_add_pj=energies, **of_power), replace(pipelined, **of_products)
    return replace(device, fitted=replace(device.fitted, power=power, pipelined=pipelined))


def figure_of(device: DeviceSpec, name: str) -> float:
    """One of these figures as it is."""
    power = device.fitted.power
    of_type = dict(power.multiply_add_pj).get(name)
    return of_type if of_type is not None else float(getattr(power if hasattr(power, name) else device.fitted.pipelined, name))


def fitted(tiles: Sequence[TimedTile], device: DeviceSpec, names: Sequence[str], num_steps: int = 12) -> dict[str, float]:
    """Figures that make the squares of the logarithms of predicted over measured least; each stays within a factor of four a step."""
    at = np.log([figure_of(device, n) for n in names])

    def errors(logs: np.ndarray) -> np.ndarray:
        other = with_figures(device, dict(zip(names, map(float, np.exp(logs)), strict=True)))
        return np.log([t.price_us(other) / t.measured_us for t in tiles])

    damping, step = 1e-2, 3e-3
    best = errors(at)
    for _ in range(num_steps):
        slopes = np.stack([(errors(at + step * unit) - best) / step for unit in np.eye(len(names))], axis=1)
        normal = slopes.T @ slopes
        away = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + damping), slopes.T @ best)
        moved = at - np.clip(away, -math.log(4), math.log(4))
        now = errors(moved)
        at, best, damping = (moved, now, damping / 3) if now @ now < best @ best else (at, best, damping * 5)
    return dict(zip(names, map(float, np.exp(at)), strict=True))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", nargs="?", type=Path, default=RECORD)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--fit", default="")
    options = parser.parse_args()
    device = device_by_name(options.device)
    tiles = list(timed_tiles(options.record, device))
    if options.fit:
        # Parts of the inner axis and swapped operands have figures of their own.
        plain = [t for t in tiles if t.plan.choice.split == 1 and not t.plan.choice.swapped]
        value_by_name = fitted(plain, device, options.fit.split(","))
        print(value_by_name)
        device = with_figures(device, value_by_name)
    report(tiles, device)


if __name__ == "__main__":
    main()
