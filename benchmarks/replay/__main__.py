"""Prices of measured kernels by today's model, without a device: `python -m benchmarks.replay [RECORD ...]`.

    --worst N            kernels furthest off that are listed, with the parts of their prices
    --only REGEX         labels
    --template NAME      one template
    --half fit|check     one half: kernels of a graph count to one of them
    --set NAME=VALUE     another value of a fitted figure, as endings.last_block_us=2; several, separated by commas
    --fit NAME,...       least squares over the logarithms of predicted over measured time of the half "fit", from today's figures
    --regret             measured time of what the model picks over the best of the alternatives that were timed

Records are those of the suite `planner` that hold their kernels as texts; without any the newest of these.
"""
from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from benchmarks.record import RESULTS, Record
from benchmarks.replay import fit, regret, report
from benchmarks.replay.rows import of_half, replayed
from tilefuse.target.catalog import device_by_name


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--worst", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--template", default="")
    parser.add_argument("--half", default="", choices=("", "fit", "check"))
    parser.add_argument("--set", default="", dest="figures")
    parser.add_argument("--fit", default="")
    parser.add_argument("--regret", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Exit status: 0, or 1 where no record holds kernels."""
    chosen = options()
    device = fit.with_figures(device_by_name(chosen.device), fit.figures_of_text(chosen.figures))
    # Records may hold kernels of one label: each keeps the run that it is of.
    cases = {f"{label} @{path.stem[-15:]}": case for path in chosen.records or newest() for label, case in Record.load(path).cases.items()
             if "kernel" in case and re.search(chosen.only, label) and chosen.template in ("", case["template"])}
    if not cases:
        print("no record with kernels", file=sys.stderr)
        return 1
    if chosen.fit:
        values = fit.fitted(cases, device, chosen.fit.split(","))
        print("\n".join(f"{name} = {value:.4g}" for name, value in values.items()))
        device = fit.with_figures(device, values)
    rows, refused = replayed(cases, device)
    rows = of_half(rows, chosen.half)
    print(report.summary(rows))
    print(report.worst(rows, chosen.worst, device))
    print(report.refusals(refused, chosen.worst))
    if chosen.regret:
        print(regret.report(rows, device))
    return 0


def newest() -> list[Path]:
    """The newest record of the suite that holds kernels."""
    paths = sorted(RESULTS.glob("planner-*.json"), reverse=True)
    return [next(p for p in paths if any("kernel" in case for case in Record.load(p).cases.values()))]


if __name__ == "__main__":
    sys.exit(main())
