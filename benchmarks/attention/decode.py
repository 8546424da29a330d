"""Attention with few queries: walks in parts and whole ones beside the library's kernels and the time of the bytes, in one call.

    python -m benchmarks.attention.decode                                       512 to 131072 keys, 1 and 8 batches, 32 heads on 32 and 8
    python -m benchmarks.attention.decode --keys 4096 --batches 1 --widths 128 --tiles 6 --record FILE
    python -m benchmarks.attention.decode --list --device h200                  the walks and their prices, without a device
    python -m benchmarks.attention.decode --prepare                             compiles all of them into the cache, and times none

For each case: the walk that a plan takes (`*`), the cheapest of each number of heads in a tile and of parts, and every backend of torch's
attention that computes it. A share is the time of the bytes, each once, over the time. Each walk is compared with double precision before
it is timed, and its results from call to call. The record has lines as of `benchmarks.attention.timed`, which
`benchmarks.attention.tiles` reads.
"""
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn.attention import SDPBackend

from benchmarks.attention.cases import Attention, attention_of
from benchmarks.attention.timed import BOUND, PEERS, NearTile, arguments, compact, error_of, peer_calls
from benchmarks.timing import num_input_sets, time_calls
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.roofline import price_candidate
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.lone_kernel import lone_spec
from tilefuse.driver.measure.measure import build_together
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.staged.walked.choose import candidates
from tilefuse.templates.staged.walked.form import walk_form
from tilefuse.templates.staged.walked.template import pipelined_walk_of, schedule_walk

KEYS, BATCHES, KEY_HEADS, WIDTHS = (512, 2048, 8192, 32768, 131072), (1, 8), (32, 8), (64, 128)
BACKENDS = (*PEERS, ("efficient", SDPBackend.EFFICIENT_ATTENTION), ("math", SDPBackend.MATH))
# Least difference of columns of two walks that are alike otherwise.
FAR_COLUMNS = 32
# Bytes of scores of a call that computes them all: beyond these, "math" is left out.
MOST_SCORES_BYTES = 1 << 28


@dataclass(frozen=True)
class DecodeTile(NearTile):
    """taken: a plan takes this walk."""

    taken: bool = False


def walks(case: Attention, device: DeviceSpec, most: int, others: int = 0) -> list[DecodeTile]:
    """The walk that a plan takes, and the cheapest ones of each number of heads and parts, by their predicted times. others: walks of the
    cheapest number of heads and parts in other columns, `FAR_COLUMNS` apart."""
    graph = case.graph()
    sub = pattern_graph(graph, tuple(n.name for n in graph.nodes))
    form = walk_form(sub, {})
    assert not isinstance(form, Rejected), form
    taken = schedule_walk(sub, {}, device)
    assert isinstance(taken, TileProgram), taken
    first = _tile(taken, device, True)
    best, all_by_key = {(first.choice.heads, first.choice.parts): first}, dict[tuple[int, int], list[DecodeTile]]()
    for choice in dict.fromkeys(candidates(form, {}, device)):
        program = schedule_walk(sub, {}, device, choice)
        if isinstance(program, Rejected):
            continue
        tile, key = _tile(program, device), (choice.heads, choice.parts)
        all_by_key.setdefault(key, []).append(tile)
        if key not in best or tile.us < best[key].us:
            best[key] = tile
    ranked = sorted(best.values(), key=lambda tile: tile.us)
    kept = ranked[:most] + [t for t in ranked[most:] if t.taken or t.choice.parts == t.choice.heads == 1]
    unlike = list[DecodeTile]()
    for tile in sorted(all_by_key[first.choice.heads, first.choice.parts], key=lambda t: t.us):
        if len(unlike) < others and all(abs(tile.choice.columns - t.choice.columns) >= FAR_COLUMNS for t in (first, *unlike)):
            unlike.append(tile)
    return kept + unlike


def _tile(program: TileProgram, device: DeviceSpec, taken: bool = False) -> DecodeTile:
    """A walk with its predicted time, as if it had been timed."""
    plan = pipelined_walk_of(program)
    return DecodeTile(price_candidate(plan.work, device).us, plan.choice, program, taken)


def bytes_us(case: Attention, device: DeviceSpec) -> float:
    """Time to read keys, values and queries and to write results once, at the device's rate. Units: microseconds."""
    elements = case.batch * (2 * case.key_heads * case.keys + 2 * case.heads * case.rows) * case.width
    return elements * case.dtype.itemsize / device.global_bytes_per_s * 1e6


def names(options: argparse.Namespace) -> list[str]:
    """The names of the cases, those of fewest bytes first."""
    def number(keys: int, batch: int, key_heads: int, width: int) -> int:
        return keys * batch * key_heads * width

    sizes = sorted(product(options.keys, options.batches, options.key_heads, options.widths), key=lambda s: number(*s))
    return [f"{options.dtype}/{options.kind}/{b}x{options.heads}{f'g{g}' if g != options.heads else ''}x{options.rows}k{k}x{w}"
            for k, b, g, w in sizes]


class Table:
    """Lines of the table and of the record."""

    def __init__(self, device: DeviceSpec, record: TextIO | None) -> None:
        self.device, self.record = device, record

    def say(self, case: Attention, us: float, text: str, what: dict[str, Any]) -> None:
        """One timed kernel."""
        print(f"  {us:9.2f} us  {bytes_us(case, self.device) / us:5.2f} of the bytes' rate  {text}", flush=True)
        if self.record is not None:
            run = Path(self.record.name).name
            self.record.write(json.dumps({"case": case.name, "device": self.device.name, "run": run, "us": round(us, 2)} | what) + "\n")
            self.record.flush()


def time_case(name: str, tiles: Sequence[tuple[DecodeTile, Any]], table: Table, options: argparse.Namespace) -> None:
    """Checks and times the walks of a case, and the library's kernels."""
    from tilefuse.runtime.program import Program

    case, place = attention_of(name), torch.device("cuda")
    first = case.inputs(place)
    num_bytes = sum(x.numel() * x.element_size() for x in first)
    sets = [first, *([x.clone() for x in first] for _ in range(num_input_sets(num_bytes, place, 6) - 1))]
    print(f"== {name}: {num_bytes / 1e6:.1f} MB, {bytes_us(case, table.device):.2f} us of bytes", flush=True)
    scores_bytes = case.batch * case.heads * case.rows * case.keys * 4
    backends = [b for b in BACKENDS if b[0] != "math" or scores_bytes < MOST_SCORES_BYTES]
    for label, call in peer_calls(case, first, backends):
        t, _ = time_calls([partial(call, *s) for s in sets], place, budget_s=options.each)
        table.say(case, t.median_us, label, {"peer": label})
    for tile, spec in tiles:
        program = Program(spec, {}, "cuda:0", Options.from_environment())
        given = [arguments(program, case, s) for s in sets]
        results = [program(*given[0]) for _ in range(3)]
        found = [r[0] if isinstance(r, (tuple, list)) else r for r in results]
        error = error_of(case, first, found[0]) if all(torch.equal(found[0], f) for f in found[1:]) else float("inf")
        label = f"{'*' if tile.taken else ' '} predicted {tile.us:8.2f}  {' '.join(f'{n}={v}' for n, v in compact(tile.choice).items())}"
        if not error <= BOUND[case.dtype]:
            print(f"      WRONG by {error:.1e}: {label}", flush=True)
            continue
        t, _ = time_calls([partial(program, *g) for g in given], place, budget_s=options.each)
        table.say(case, t.median_us, f"{label}  error {error:.1e}", {"choice": compact(tile.choice), "predicted": round(tile.us, 2),
                                                                    "error": float(f"{error:.1e}")})


def run(options: argparse.Namespace) -> None:
    """Plans and compiles the walks of all cases together, then times them one by one until the budget ends."""
    started = time.perf_counter()
    present = torch.cuda.is_available()
    device = device_by_name(options.device or ("h100" if present and "H200" not in torch.cuda.get_device_name() else "h200"))
    made = {name: walks(attention_of(name), device, options.tiles, options.columns) for name in names(options)}
    if options.list or not (present or options.prepare):
        for name, tiles in made.items():
            print(f"== {name}: {bytes_us(attention_of(name), device):.2f} us of bytes")
            for t in tiles:
                print(f"  predicted {t.us:8.2f} us  {'*' if t.taken else ' '} {' '.join(f'{n}={v}' for n, v in compact(t.choice).items())}")
        return
    settings = Options.from_environment()
    specs = {name: [(t, lone_spec(t.program, device, settings)) for t in tiles] for name, tiles in made.items()}
    build_together([k for tiles in specs.values() for _, spec in tiles for k in spec.kernels], settings)
    if options.prepare:
        return
    spent_s = time.perf_counter() - started
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {spent_s:.0f} s to plan and compile", flush=True)
    record = options.record.open("w", encoding="utf-8") if options.record else None
    table = Table(device, record)
    for name, tiles in specs.items():
        if time.perf_counter() - started > options.budget:
            print("no time for", name, flush=True)
            continue
        try:
            time_case(name, tiles, table, options)
        except Exception as error:  # one case must not end the others
            print("FAILED", name, type(error).__name__, str(error)[:300], flush=True)
        torch.cuda.empty_cache()
    if record is not None:
        record.close()


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention.decode", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("keys", KEYS), ("batches", BATCHES), ("key_heads", KEY_HEADS), ("widths", WIDTHS)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, nargs="+", default=default)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--rows", type=int, default=1, help="queries a head")
    parser.add_argument("--kind", default="plain", help="as in the names of cases: plain, alibi, cap30, lengths ..")
    parser.add_argument("--dtype", default="f16", choices=("f16", "bf16"))
    parser.add_argument("--tiles", type=int, default=3, help="walks of each case")
    parser.add_argument("--columns", type=int, default=0, help="walks in other columns of each case")
    parser.add_argument("--each", type=float, default=0.04, help="seconds for one kernel")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for everything")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--device", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    run(parser.parse_args(words))


if __name__ == "__main__":
    main()
