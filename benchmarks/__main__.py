"""Command line of the benchmarks: `python -m benchmarks patterns|models|stitched|workloads|compiler|show|readme`."""
from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import characteristics
from benchmarks.peers import INDUCTOR_MODE, PEERS
from benchmarks.record import RESULTS, Record
from benchmarks.report import OURS, plot, table, verdict
from benchmarks.supervise import Bench

LIMIT_MIB = 1024
RATE_SIDE = 8192
# Suites of cases: what one request is called, the peers and torch.compile's mode unless others are asked for.
SUITES = {
    "patterns": ("pattern", "eager,inductor,jax", INDUCTOR_MODE),
    "models": ("model", "eager,inductor", "default"),
    "stitched": ("stitched", "eager,inductor", INDUCTOR_MODE),
    "workloads": ("workload", "eager,inductor", INDUCTOR_MODE),
}


def parser() -> argparse.ArgumentParser:
    """The options of all suites."""
    found = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    found.add_argument("suite", choices=(*SUITES, "compiler", "planner", "show", "readme"))
    found.add_argument("record", nargs="?", type=Path, help="show: the record to print")
    found.add_argument("--peers", default="", help="comma list of eager, inductor, jax; tilefuse always runs (patterns: all; else no jax)")
    found.add_argument("--only", default="", help="regular expression that a case's name must match")
    found.add_argument("--dtype", default="", help="comma list of f32, f16, bf16")
    found.add_argument("--quick", action="store_true", help="the small selection")
    found.add_argument("--out", type=Path, default=RESULTS, help="folder for the record")
    found.add_argument("--resume", type=Path, help="continue this record (same machine and sources)")
    found.add_argument("--budget", type=float, default=0.0, help="seconds after which no further case is started (0: none)")
    found.add_argument("--timeout", type=float, default=300.0, help="seconds that one peer may take on one case")
    found.add_argument("--size-mib", type=int, default=256, help="patterns: MiB that a case moves")
    found.add_argument("--inductor-mode", default="", help=f"torch.compile's mode (models: default; else {INDUCTOR_MODE})")
    found.add_argument("--tiny", action="store_true", help="all but patterns: small versions, to try the harness")
    found.add_argument("--list", action="store_true", help="print the cases and stop")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run a suite. Exit status: 0, or 1 if any case of tilefuse failed or was wrong."""
    options = parser().parse_args(arguments)
    default_peers = SUITES[options.suite][1] if options.suite in SUITES else "eager,inductor,jax"
    peers = [p for p in (options.peers or default_peers).split(",") if p and p != OURS]
    unknown = [p for p in peers if p not in PEERS]
    if unknown:
        parser().error(f"unknown peers {', '.join(unknown)}; there are {', '.join(PEERS)}")
    match options.suite:
        case "show":
            if options.record is None:
                parser().error("show needs a record")
            return show(Record.load(options.record), peers)
        case "readme":
            from benchmarks import readme

            print(readme.write())
            return 0
        case "planner":
            from benchmarks import planner

            return planner.run(options.out, only=options.only, quick=options.quick, budget_s=options.budget, tiny=options.tiny)
        case "compiler":
            from benchmarks import compiler

            return compiler.run(options.out, only=options.only, quick=options.quick, budget_s=options.budget, tiny=options.tiny)
    return measure_suite(options, peers)


def select(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The chosen cases of a suite as plain facts."""
    dtypes = set(filter(None, options.dtype.split(",")))
    listed: list[dict[str, Any]]
    match options.suite:
        case "patterns":
            from benchmarks import patterns

            listed = [{"name": c.name, "family": c.family, "dtype": c.dtype, "rank": c.rank, "min_of_limit": c.min_of_limit}
                      for c in patterns.cases(options.size_mib)]
        case "stitched":
            from benchmarks import stitched

            listed = stitched.listed(options.tiny)
        case "workloads":
            from benchmarks import workloads

            listed = workloads.listed()
        case _:
            from benchmarks import models

            listed = models.listed()
    return [
        c for c in listed
        if (not options.quick or c["rank"] == 0) and (not dtypes or c["dtype"] in dtypes) and re.search(options.only, c["name"])
    ]


def measure_suite(options: argparse.Namespace, peers: list[str]) -> int:
    """Measure every chosen case for every peer; print and store after each."""
    from benchmarks.environment import default_device, describe

    started = time.monotonic()
    cases = select(options)
    if options.list:
        print("\n".join(c["name"] for c in cases))
        return 0
    record = Record.load(options.resume) if options.resume else Record.start(options.out, options.suite, describe(default_device()))
    bench = Bench(record.path.with_suffix(".log"))
    kind, _, default_mode = SUITES[options.suite]
    mode = options.inductor_mode or default_mode
    record.header["inductor_mode"] = mode
    try:
        if options.suite in ("patterns", "stitched"):
            measure_limits(options, bench, record)
        for number, case in enumerate(cases, 1):
            for peer in (*peers, OURS):
                left = options.budget - (time.monotonic() - started) if options.budget else float("inf")
                if left < 5:
                    print(f"budget spent: {number - 1} of {len(cases)} cases are complete", file=sys.stderr)
                    return show(record, peers)
                if record.has(case["name"], peer):
                    continue
                request = {"what": kind, "case": case["name"], "peer": peer, "size_mib": options.size_mib,
                           "inductor_mode": mode, "tiny": options.tiny}
                measured = bench.ask(request, min(options.timeout, max(left, 20)))
                record.add(case["name"], case, peer, measured)
                figure = f"{measured['us']:.1f} us" if "us" in measured else (measured.get("reason") or "").partition("\n")[0][:160]
                print(f"[{number}/{len(cases)}] {case['name']} {peer}: {measured['status']} {figure}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
    finally:
        bench.stop()
    return show(record, peers)


def measure_limits(options: argparse.Namespace, bench: Bench, record: Record) -> None:
    """Copy bandwidth, and for stitched patterns the rate of a large product, of this run; once a record."""
    on_gpu = bool(record.header.get("cuda"))
    if "copy_bytes_per_s" not in record.header:
        sizes = [64, 256, LIMIT_MIB] if on_gpu else [8 if options.tiny else options.size_mib]
        curve = bench.ask({"what": "bandwidth", "sizes_mib": sizes}, options.timeout).get("bytes_per_s", {})
        record.header["copy_curve_bytes_per_s"] = curve
        record.header["copy_bytes_per_s"] = curve.get(str(sizes[-1]))
    if options.suite == "stitched" and "flops_per_s" not in record.header:
        asked = {"what": "rates", "side": RATE_SIDE if on_gpu else 256}
        record.header["flops_per_s"] = bench.ask(asked, options.timeout).get("flops_per_s", {})


def show(record: Record, peers: list[str]) -> int:
    """Print a record and draw it beside itself."""
    record.write()
    print(table(record, peers))
    print()
    if record.header.get("suite") == "workloads":
        print(characteristics.text(record))
        print()
    rate = record.header.get("copy_bytes_per_s")
    print(f"{record.header.get('device')}" + (f", copy {rate / 1e12:.2f} TB/s" if rate else "") + f", commit {record.header.get('commit')}")
    rates = record.header.get("flops_per_s")
    if rates:
        print("large products: " + ", ".join(f"{dtype} {rate / 1e12:.3g} TFLOP/s" for dtype, rate in rates.items()))
    print(verdict(record))
    print(f"record: {record.path}")
    picture = record.path.with_suffix(".png")
    if plot(record, peers, picture):
        print(f"plot:   {picture}")
    if record.header.get("suite") == "workloads" and characteristics.plot(record, record.path.with_suffix(".figures.png")):
        print(f"plot:   {record.path.with_suffix('.figures.png')}")
    failed = [c for c, e in record.cases.items() if e["peers"].get(OURS, {}).get("status") not in ("ok", "skipped", None)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
