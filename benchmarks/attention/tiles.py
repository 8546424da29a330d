"""Prices of walks' tiles beside records of their times, and figures fitted to them.

    python -m benchmarks.attention.tiles [RECORD ...] [--fit busy_shares.1,turn_cycles,...] [--every]

Prints for each case the tile of the least price among those that were timed, and its time over the fastest's. With --fit: least squares
over the logarithms of predicted over measured, by damped steps from today's figures (`WalkFigures`; `busy_shares.1` is one of several).
A record has a line of JSON for each tile: case, device, run, us, choice.
"""
from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import geometric_mean, quantiles
from typing import Any

import numpy as np

from benchmarks.attention.cases import attention_of
from tilefuse.base.candidate import Rejected
from tilefuse.domain.roofline import price_candidate
from tilefuse.domain.work import Work
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.staged.search import cheapest_plan
from tilefuse.templates.staged.walked.choose import candidates, fit_walk
from tilefuse.templates.staged.walked.form import WalkForm, walk_form
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.walk_work import TurnScores, turn_of, turn_scores, with_work

RESULTS = Path(__file__).parents[1] / "results"
RECORDS = tuple(sorted(p for kind in ("attention-tiles", "decode") for p in RESULTS.glob(f"{kind}-*.jsonl")))
# A tile within this of the fastest counts as found.
NEAR = 1.05


@dataclass(frozen=True)
class Priced:
    """What prices of a case's tiles need."""

    form: WalkForm
    boundary: Work
    scores: TurnScores
    plans: dict[tuple[PipelinedWalk, str], WalkPlan | Rejected] = field(default_factory=dict)

    def plan(self, choice: PipelinedWalk, device: DeviceSpec) -> WalkPlan | Rejected:
        """The plan of a tile with its work."""
        key = choice, device.name
        if key not in self.plans:
            self.plans[key] = fit_walk(self.form, {}, choice, device)
        plan = self.plans[key]
        if isinstance(plan, Rejected):
            return plan
        return with_work(plan, turn_of(plan, self.scores, device), self.boundary, self.scores, device)

    def cheapest(self, device: DeviceSpec) -> PipelinedWalk:
        """The tile that a plan takes."""
        plan = cheapest_plan(candidates(self.form, {}, device), partial(self.plan, device=device), device)
        assert isinstance(plan, WalkPlan), plan
        return plan.choice


@dataclass(frozen=True)
class TimedTile:
    """A tile of a case with its time. run: cases are compared within a run only. Units: microseconds."""

    case: str
    device: str
    run: str
    choice: PipelinedWalk
    measured_us: float

    def price_us(self, device: DeviceSpec) -> float:
        """Its price by the device's figures; 0 where the tile is illegal today. Units: microseconds."""
        plan = priced(self.case).plan(self.choice, device)
        return 0.0 if isinstance(plan, Rejected) else price_candidate(plan.work, device).us


@lru_cache(maxsize=256)
def priced(case: str) -> Priced:
    """The form of a case. Raises: ValueError for one that no walk computes."""
    graph = attention_of(case).graph()
    form = walk_form(pattern_graph(graph, tuple(n.name for n in graph.nodes)), {})
    if isinstance(form, Rejected):
        raise ValueError(f"{case}: {form}")
    return Priced(form, boundary_work(form.online.graph), turn_scores(form))


def timed_tiles(records: Sequence[Path]) -> Iterator[TimedTile]:
    """Every tile that plans may take: those whose warpgroups take turns are left out."""
    for path in records:
        for line in path.read_text(encoding="utf-8").splitlines():
            tile = json.loads(line)
            if "choice" in tile and not tile["choice"].get("in_turn"):
                yield TimedTile(tile["case"], tile["device"], tile["run"], PipelinedWalk(**tile["choice"]), tile["us"])


def report(tiles: Sequence[TimedTile], devices: dict[str, DeviceSpec], every: bool) -> tuple[int, int]:
    """Prints the tile of the least price of each case and run. Returned: those near the fastest, and all."""
    near, ratios, losses = 0, [], []
    keys = list(dict.fromkeys((t.case, t.device, t.run) for t in tiles))
    for key in keys:
        timed = [(p, t) for t in tiles if (t.case, t.device, t.run) == key and (p := t.price_us(devices[t.device]))]
        (price_us, chosen), best = min(timed, key=lambda p: p[0]), min(t.measured_us for _, t in timed)
        ratios += [p / t.measured_us for p, t in timed]
        losses.append(chosen.measured_us / best)
        near += losses[-1] <= NEAR
        default = priced(key[0]).cheapest(devices[key[1]])
        was_timed = any(t.choice == default for _, t in timed)
        print(f"{key[0]:30s} {key[1]} {_text(chosen.choice):12s} {losses[-1]:.3f} of the fastest of {len(timed)}, predicted over measured "
              f"{price_us / chosen.measured_us:.3f}" + ("" if was_timed else f"; default {_text(default)} not timed"))
        if every:
            for p, t in sorted(timed, key=lambda p: p[1].measured_us):
                print(f"    {t.measured_us:8.1f} us {p:8.1f} predicted, {p / t.measured_us:.3f}: {t.choice}")
    mean = math.sqrt(sum(math.log(r) ** 2 for r in ratios) / len(ratios))
    print(f"within {NEAR:.2f}: {near} of {len(keys)}, in geometric mean {geometric_mean(losses):.3f}; predicted "
          f"over measured: quartiles {' '.join(f'{q:.3f}' for q in quantiles(ratios, n=4))}, root of the mean square {mean:.3f}")
    return near, len(keys)


def _text(c: PipelinedWalk) -> str:
    return f"{c.columns}x{c.warpgroups}" + (f" b{c.bias_slots}" if c.bias_slots else "") + (f" band {c.band}" if c.band > 1 else "")


def with_figures(device: DeviceSpec, value_by_name: dict[str, float]) -> DeviceSpec:
    """The device with other figures of walks."""
    walks = device.fitted.walks
    for name, value in value_by_name.items():
        field, _, place = name.partition(".")
        changed: Any = value
        if place:
            changed = tuple(value if n == int(place) else x for n, x in enumerate(getattr(walks, field)))
        walks = replace(walks, **{field: changed})
    return replace(device, fitted=replace(device.fitted, walks=walks))


def figure_of(device: DeviceSpec, name: str) -> float:
    """One of these figures as it is."""
    field, _, place = name.partition(".")
    value = getattr(device.fitted.walks, field)
    return float(value[int(place)] if place else value)


def fitted(tiles: Sequence[TimedTile], names: Sequence[str], devices: dict[str, DeviceSpec], num_steps: int = 12) -> dict[str, float]:
    """Figures that make the squares of the logarithms of predicted over measured least; each stays within a factor of four a step.

    Cases count alike, however many of their tiles were timed.
    """
    at = np.log([max(figure_of(next(iter(devices.values())), n), 1e-3) for n in names])
    counts = {t.case: sum(o.case == t.case for o in tiles) for t in tiles}
    legal = [t for t in tiles if t.price_us(devices[t.device])]
    weights = np.array([counts[t.case] ** -0.5 for t in legal])

    def errors(logs: np.ndarray) -> np.ndarray:
        values = dict(zip(names, map(float, np.exp(logs)), strict=True))
        others = {n: with_figures(d, values) for n, d in devices.items()}
        return weights * np.log([t.price_us(others[t.device]) / t.measured_us for t in legal])

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
    parser.add_argument("records", nargs="*", type=Path, default=RECORDS)
    parser.add_argument("--fit", default="")
    parser.add_argument("--every", action="store_true", help="print every tile")
    options = parser.parse_args()
    tiles = list(timed_tiles(options.records))
    devices = {name: device_by_name(name) for name in dict.fromkeys(t.device for t in tiles)}
    if options.fit:
        value_by_name = fitted(tiles, options.fit.split(","), devices)
        print(value_by_name)
        devices = {n: with_figures(d, value_by_name) for n, d in devices.items()}
    report(tiles, devices, options.every)


if __name__ == "__main__":
    main()
