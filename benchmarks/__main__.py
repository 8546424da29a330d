"""Command line of the benchmarks: `python -m benchmarks SUITE`.

Suites: patterns, models, calls, stitched, products, workloads, arrays, blas, search, compiler, planner, sizes. Of records: show, join,
tables, readme (writes the README's table and docs/results.md), prune (keeps what these need and a line of history a run).
"""
from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import characteristics, quick, turns
from benchmarks.devices import places_of, visible_gpus, with_workers
from benchmarks.peers import INDUCTOR_MODE, PEERS
from benchmarks.products.verdict import verdict as products_verdict
from benchmarks.record import RESULTS, Record, joined
from benchmarks.report import OURS, device_text, plot, table, verdict
from benchmarks.timing import CLOCK_S

LIMIT_MIB = 1024
RATE_SIDE = 8192
# Suites of cases: what one request is called, the peers and torch.compile's mode unless others are asked for.
SUITES = {
    "patterns": ("pattern", "eager,inductor,jax", INDUCTOR_MODE),
    "models": ("model", "eager,inductor", "default"),
    "calls": ("call", "eager,inductor", "default"),
    "stitched": ("stitched", "eager,inductor", INDUCTOR_MODE),
    "blas": ("blas", "eager,inductor,jax", INDUCTOR_MODE),
    "workloads": ("workload", "eager,inductor", INDUCTOR_MODE),
    "arrays": ("array", "eager,inductor,unfused", "default"),
    "products": ("product", "eager,inductor,jax", INDUCTOR_MODE),
}

# Suites whose cases have a process of their own, and how long one peer may take then: what a compiler needs for a whole training step,
# and little enough that ten cases end within ten minutes on four devices. Units: seconds.
APART = {"workloads": 470.0}
TIMEOUT_S = 300.0
# How long a peer is timed where times say nothing.
PREPARED_CLOCK_S = 0.001
# Measuring processes a GPU: compilers of products work for seconds where a measurement takes one.
PROCESSES = {"products": 4}


def parser() -> argparse.ArgumentParser:
    """The options of all suites."""
    found = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    found.add_argument("suite", choices=(*SUITES, "compiler", "planner", "search", "sizes", "tables", "show", "join", "readme", "prune"))
    found.add_argument("record", nargs="?", type=Path, help="show: the record to print; tables: where the newest are not wanted, a folder; "
                       "join: a folder of one run's parts")
    found.add_argument("--peers", help="comma list of eager, inductor, jax (patterns, blas, products), unfused (arrays), aot_eager "
                       "(sizes); tilefuse always runs, \"\": alone")
    found.add_argument("--devices", default="", help="comma list of GPUs of this machine (or all; cpu is the host) that measure side by "
                       "side, all peers of a case on the same one; default: the first GPU")
    found.add_argument("--processes", type=int, default=0, help="measuring processes a device: they take turns on it, so that one compiles "
                       "while another measures; default: 4 a GPU for products, else 1; also of planner")
    found.add_argument("--only", default="", help="regular expression that a case's name must match")
    found.add_argument("--dtype", default="", help="comma list of f32, f16, bf16, tf32 (products)")
    found.add_argument("--quick", action="store_true", help="a case of each family, within three minutes")
    found.add_argument("--out", type=Path, default=RESULTS, help="folder for the record")
    found.add_argument("--resume", type=Path, help="continue this record (same machine and sources)")
    found.add_argument("--without", type=Path, help="leave out the cases that this record has: a later part of a run, for join")
    found.add_argument("--caches", type=Path, help="a folder of kernel caches that stays, for all processes: no compile time is recorded")
    found.add_argument("--prepare", action="store_true", help="fill the --caches: every peer compiles every case, side by side; times "
                       "say nothing then, and the record is thrown away")
    found.add_argument("--clock", type=float, default=CLOCK_S, help=f"seconds for which each peer is timed on a case (patterns, stitched, "
                       f"blas, products: {CLOCK_S})")
    found.add_argument("--budget", type=float, default=0.0, help="seconds after which no further case is started (0: none)")
    found.add_argument("--timeout", type=float, default=0.0, help="seconds that one peer may take on one case (workloads: 470; else 300)")
    found.add_argument("--size-mib", type=int, default=256, help="patterns: MiB that a case moves")
    found.add_argument("--inductor-mode", default="", help=f"torch.compile's mode (models, calls, arrays and --quick: default; else "
                       f"{INDUCTOR_MODE})")
    found.add_argument("--tiny", action="store_true", help="all but patterns: small versions, to try the harness")
    found.add_argument("--list", action="store_true", help="print the cases and stop")
    found.epilog = ("The record names the commit that git tells; in a copy without git that of the archive, or what BENCHMARK_COMMIT says. "
                    "Every run starts with empty kernel caches, so that compile times are those of cold compiles.")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run a suite. Exit status: 0, or 1 if any case of tilefuse failed or was wrong."""
    options = parser().parse_args(arguments)
    if options.quick:
        options.budget = options.budget or quick.BUDGET_S
    default_peers = SUITES[options.suite][1] if options.suite in SUITES else "eager,inductor,jax"
    if options.suite == "sizes":
        from benchmarks import sizes

        asked = None if options.peers is None else [p for p in options.peers.split(",") if p]
        return sizes.run(options.out, only=options.only, quick=options.quick, budget_s=options.budget, tiny=options.tiny,
                         is_listed=options.list, peers=asked)
    peers = [p for p in (default_peers if options.peers is None else options.peers).split(",") if p and p != OURS]
    unknown = [p for p in peers if p not in PEERS]
    if unknown:
        parser().error(f"unknown peers {', '.join(unknown)}; there are {', '.join(PEERS)}")
    match options.suite:
        case "show":
            if options.record is None:
                parser().error("show needs a record")
            return show(Record.load(options.record), peers)
        case "join":
            if options.record is None:
                parser().error("join needs the folder that holds the parts")
            return join(options.record, options.out)
        case "tables":
            from benchmarks import history, paper_tables

            newest = history.newest_records(options.record or RESULTS)
            print(paper_tables.text(newest.get("blas"), newest.get("search")))
            return 0
        case "readme":
            from benchmarks import readme

            print(readme.write(names_by_suite={suite: names_of(suite) for suite in SUITES}))
            return 0
        case "prune":
            from benchmarks import prune

            gone = prune.prune(names_by_suite={suite: names_of(suite) for suite in SUITES})
            print(*(f"deleted {path.name}" for path in gone), sep="\n")
            return 0
        case "planner":
            from benchmarks import planner

            return planner.run(options.out, only=options.only, quick=options.quick, budget_s=options.budget, tiny=options.tiny,
                               is_listed=options.list, processes=options.processes)
        case "search":
            from benchmarks import search

            return search.run(options.out, only=options.only, quick=options.quick, budget_s=options.budget, tiny=options.tiny,
                              listed=options.list, dtypes=set(filter(None, options.dtype.split(","))))
        case "compiler":
            from benchmarks import compiler

            return compiler.run(options.out, only=options.only, quick=options.quick, budget_s=options.budget, tiny=options.tiny,
                                is_listed=options.list)
    return measure_suite(options, peers)


def select(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The chosen cases of a suite as plain facts."""
    dtypes = set(filter(None, options.dtype.split(",")))
    listed: list[dict[str, Any]]
    match options.suite:
        case "patterns":
            from benchmarks import patterns

            listed = [{"name": c.name, "family": c.family, "dtype": c.dtype, "rank": c.rank, "min_of_limit": c.min_of_limit}
                      | ({} if c.min_speedup is None else {"min_speedup": c.min_speedup})
                      for c in patterns.cases(options.size_mib)]
        case "blas":
            from benchmarks import blas

            listed = blas.listed(options.tiny)
        case "stitched":
            from benchmarks import stitched

            listed = stitched.listed(options.tiny)
        case "products":
            from benchmarks.products import listing

            listed = listing.listed(options.tiny)
            if options.peers is not None:
                for case in listed:
                    del case["rivals"]  # peers that were asked for by name are measured on every case
        case "workloads":
            from benchmarks import workloads

            listed = workloads.listed()
        case "calls":
            from benchmarks import calls

            listed = calls.listed()
        case "arrays":
            from benchmarks import arrays

            listed = arrays.listed()
        case _:
            from benchmarks import models

            listed = models.listed()
    return [
        c for c in (quick.selected(options.suite, listed) if options.quick else listed)
        if (not dtypes or c["dtype"] in dtypes) and re.search(options.only, c["name"])
    ]


def names_of(suite: str) -> list[str]:
    """All cases of a suite, in its order."""
    return [c["name"] for c in select(parser().parse_args([suite]))]


def measure_suite(options: argparse.Namespace, peers: list[str]) -> int:
    """Measure every chosen case for every peer on every chosen device; print and store after each."""
    import torch

    from benchmarks.environment import default_device, describe
    from benchmarks.suite import Run, earlier_seconds, families_in_turn, longest_first

    cases = select(options)
    if options.list:
        print("\n".join(c["name"] for c in cases))
        return 0
    try:
        places = places_of(options.devices, visible_gpus(torch.cuda.device_count(), os.environ))
    except ValueError as wrong:
        parser().error(f"--devices: {wrong}")
    if options.processes < 0:
        parser().error(f"--processes is {options.processes}; give 1 or more")
    places = with_workers(places, options.processes or (PROCESSES.get(options.suite, 1) if any(p.visible for p in places) else 1))
    if options.prepare and not options.caches:
        parser().error("--prepare fills the caches of --caches, which is not there")
    if options.caches:
        options.caches.mkdir(parents=True, exist_ok=True)
    if options.without:
        known = Record.load(options.without)
        cases = [c for c in cases if not all(known.has(c["name"], p) for p in (OURS, *(p for p in peers if p in c.get("rivals", peers))))]
    if options.prepare:
        options.out, options.clock = Path(tempfile.mkdtemp(prefix="tilefuse-prepared-")), PREPARED_CLOCK_S
        os.environ[turns.VARIABLE] = ""
    device = default_device() if any(p.visible for p in places) else torch.device("cpu")
    record = Record.load(options.resume) if options.resume else Record.start(options.out, options.suite, describe(device))
    kind, _, default_mode = SUITES[options.suite]
    mode = options.inductor_mode or (quick.INDUCTOR_MODE if options.quick else default_mode)
    record.header["inductor_mode"] = mode
    request = {"what": kind, "size_mib": options.size_mib, "inductor_mode": mode, "tiny": options.tiny, "clock_s": options.clock}
    if len({p.name for p in places}) > 1:
        cases = longest_first(cases, earlier_seconds(options.suite, RESULTS))
    elif options.suite == "products":
        cases = families_in_turn(cases)
    limits = [] if options.prepare else limits_of(options, device.type == "cuda")
    run = Run(record, places, peers, request, limits=limits, budget_s=options.budget,
              timeout_s=options.timeout or APART.get(options.suite, TIMEOUT_S), apart=options.suite in APART and not options.quick,
              caches=options.caches)
    try:
        run.measure(cases)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
    if options.prepare:
        ended = {name: {told["status"] for told in entry["peers"].values()} for name, entry in record.cases.items()}
        failed = [name for name, statuses in ended.items() if statuses - {"ok", "skipped"}]
        print(f"prepared {len(record.cases)} of {len(cases)} cases" + (f"; without a result: {', '.join(failed)}" if failed else ""))
        return 1 if failed else 0
    record.arrange([c["name"] for c in select(options)])
    return show(record, peers)


def join(folder: Path, out: Path) -> int:
    """Make one record a suite of the parts below a folder. Exit status: 0, or 1 where some do not belong together."""
    suites: dict[str, list[Record]] = {}
    for path in sorted(folder.rglob("*.json")):
        part = Record.load(path)
        suites.setdefault(part.header["suite"], []).append(part)
    out.mkdir(parents=True, exist_ok=True)
    for suite, parts in suites.items():
        try:
            record = joined(parts, out)
        except ValueError as wrong:
            print(f"{suite}: {wrong}", file=sys.stderr)
            return 1
        if suite in SUITES:
            record.arrange(names_of(suite))
        record.write()
        print(f"{suite}: {len(parts)} parts, {len(record.cases)} cases: {record.path}")
    return 0


def limits_of(options: argparse.Namespace, on_gpu: bool) -> list[dict[str, Any]]:
    """Requests for what a device can do: copy bandwidth, and where cases count operations the rate of a large product. Others need none."""
    asked: list[dict[str, Any]] = []
    if options.suite in ("patterns", "stitched", "blas", "arrays", "products"):
        sizes = [64, 256, LIMIT_MIB] if on_gpu else [8 if options.tiny else options.size_mib]
        asked.append({"what": "bandwidth", "key": "copy_curve_bytes_per_s", "sizes_mib": sizes})
    if options.suite in ("stitched", "products"):
        from benchmarks import stitched
        from benchmarks.products import listing

        dtypes = stitched.dtypes() if options.suite == "stitched" else listing.dtypes()
        asked.append({"what": "rates", "key": "flops_per_s", "side": RATE_SIDE if on_gpu else 256, "dtypes": dtypes})
    return asked


def show(record: Record, peers: list[str]) -> int:
    """Print a record and draw it beside itself."""
    record.write()
    print(table(record, peers))
    print()
    if record.header.get("suite") == "workloads":
        print(characteristics.text(record))
        print()
    if record.header.get("suite") == "calls":
        from benchmarks import calls

        print(calls.markdown(record))
        print()
    print(f"{device_text(record)}, commit {record.header.get('commit')}")
    rates = record.header.get("flops_per_s")
    if rates:
        print("large products: " + ", ".join(f"{dtype} {rate / 1e12:.3g} TFLOP/s" for dtype, rate in rates.items()))
    print(products_verdict(record) if record.header.get("suite") == "products" else verdict(record))
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
