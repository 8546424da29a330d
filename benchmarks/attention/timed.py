"""Tiles of walks timed beside the library's kernels: planned anywhere, compiled and checked by several processes, then timed by one.

    python -m benchmarks.attention.timed plan FOLDER --device h100               programs of near tiles of every case
    python -m benchmarks.attention.timed prepare FOLDER --part 0 --parts 8      those of every eighth case, right against double precision?
    python -m benchmarks.attention.timed time FOLDER --record FILE --budget 50  times of all that are ready, a line of JSON each

Prints a table; the record is what `benchmarks.attention.tiles` reads, with lines of the peers.
"""
from __future__ import annotations

import argparse
import gzip
import json
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention.cases import Attention, attention_of
from benchmarks.attention.listing import CASES
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
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import pipelined_walk_of, schedule_walk

# Tiles beyond this multiple of the least price are not timed.
FARTHEST = 1.5
# Largest difference from double precision over the largest element: roundings of operands and powers.
BOUND = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PEERS = (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION))


@dataclass(frozen=True)
class NearTile:
    """A tile's price and program. Units: microseconds."""

    us: float
    choice: PipelinedWalk
    program: TileProgram


def near_tiles(case: Attention, device: DeviceSpec, most: int) -> list[NearTile]:
    """The default and other tiles near its price, unlike each other."""
    graph = case.graph()
    sub = pattern_graph(graph, tuple(n.name for n in graph.nodes))
    form = walk_form(sub, {})
    assert not isinstance(form, Rejected), form
    ranked: list[NearTile] = []
    for choice in candidates(form, {}, device):
        program = schedule_walk(sub, {}, device, choice)
        if isinstance(program, TileProgram):
            ranked.append(NearTile(price_candidate(pipelined_walk_of(program).work, device).us, choice, program))
    ranked.sort(key=lambda tile: tile.us)
    kept = ranked[:1]
    alike: tuple[Callable[[PipelinedWalk], tuple[int, ...]], ...] = (
        lambda c: (c.warpgroups, c.bias_slots), lambda c: (c.warpgroups, c.columns // 32, c.bias_slots > 0),
        lambda c: (c.warpgroups, c.columns, c.band > 1))
    for key in alike:
        for tile in ranked:
            if len(kept) < most and tile.us < FARTHEST * ranked[0].us and key(tile.choice) not in {key(k.choice) for k in kept}:
                kept.append(tile)
    return kept


def error_of(case: Attention, inputs: list[torch.Tensor], y: torch.Tensor) -> float:
    """Largest difference from double precision over the largest element, in some rows of two heads."""
    worst = 0.0
    row = torch.linspace(0, case.rows - 1, min(case.rows, 300), device=y.device).long()
    for batch, head in {(0, 0), (case.batch - 1, case.heads - 1)}:
        want = case.rows_in_double(inputs, batch, head, row)
        got = y.reshape(case.batch, case.heads, case.rows, case.width)[batch, head, row].double()
        if bool((got.isnan() != want.isnan()).any()):
            return float("inf")
        worst = max(worst, float((got - want).nan_to_num().abs().max() / want.nan_to_num().abs().max().clamp(min=1e-3)))
    return worst


def arguments(program: Any, case: Attention, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs in a kernel's order: its inputs are named by their place in the function."""
    value_by_name = {v.name: v for v in program.spec.values}
    by_name = {f"arg{n}_1": x for n, x in enumerate(inputs)}
    return [by_name[name].reshape(value_by_name[name].shape) for name in program.spec.inputs]


def plan(folder: Path, most: int, device_name: str) -> None:
    """Programs of near tiles; each case's become a file."""
    device, options = device_by_name(device_name), Options.from_environment().with_overrides(jobs=1)
    for n, name in enumerate(CASES):
        rows = [(t.us, t.choice, lone_spec(t.program, device, options)) for t in near_tiles(attention_of(name), device, most)]
        _write(folder / f"{n:03d}.plan", (name, rows))
        print(name, *(_label(c) for _, c, _ in rows), sep="; ", flush=True)


def prepare(folder: Path, part: int, parts: int, limit_s: float) -> None:
    """Compiles and checks the programs of a part of the cases, the first of the list first."""
    from tilefuse.runtime.program import Program

    options, started = Options.from_environment().with_overrides(jobs=1), time.perf_counter()
    for path in sorted(folder.glob("*.plan"))[part::parts]:
        name, rows = _read(path)
        if time.perf_counter() - started > limit_s:
            print("late", name, flush=True)
            continue
        try:
            build_together([k for _, _, spec in rows for k in spec.kernels], options)
            case = attention_of(name)
            inputs, entry = case.inputs("cuda"), []
            for us, choice, spec in rows:
                program = Program(spec, {}, "cuda:0", options)
                y = program(*arguments(program, case, inputs))
                entry.append((us, choice, spec, error_of(case, inputs, y[0] if isinstance(y, (tuple, list)) else y)))
            _write(path.with_suffix(".ready"), (name, entry))
            print(name, len(entry), f"{time.perf_counter() - started:.0f} s", "errors", *(f"{e[3]:.1e}" for e in entry), flush=True)
        except Exception as error:  # one case must not end the others
            print("FAILED", name, type(error).__name__, str(error)[:300], flush=True)
        torch.cuda.empty_cache()


def _read(path: Path) -> Any:
    with gzip.open(path, "rb") as file:
        return pickle.load(file)


def _write(path: Path, what: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path.with_suffix(".tmp"), "wb", 1) as file:
        pickle.dump(what, file)
    path.with_suffix(".tmp").rename(path)


def peer_calls(case: Attention, inputs: list[torch.Tensor], peers: Sequence[tuple[str, SDPBackend]] = PEERS
               ) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The library's kernels that compute the case."""
    if case.kind in ("cap", "logs"):
        return
    row, column = torch.arange(case.rows, device="cuda")[:, None], torch.arange(case.keys, device="cuda")
    mask: torch.Tensor | None = None
    match case.kind:
        case "window":
            mask = (column <= row) & (row - column < case.number)
        case "prefix":
            mask = (column <= row) | (column < case.number)
        case "alibi":
            zeros = torch.zeros((1, case.heads, case.rows, case.keys), device="cuda")
            mask = case.scores(zeros, torch.arange(case.heads, device="cuda")[:, None, None], row).to(case.dtype)
        case "bias":
            mask = inputs[3]
        case "headbias":
            mask = inputs[3][None].expand(case.batch, -1, -1, -1)
        case "mask" | "padding":
            mask = inputs[3].expand(-1, -1, case.rows, -1)
        case "lengths":
            mask = (column < inputs[3]).expand(-1, -1, case.rows, -1)
    for label, backend in peers:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: torch.Tensor, backend: SDPBackend = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=case.kind == "causal",
                                                    enable_gqa=case.heads != case.key_heads)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(*inputs)
        except RuntimeError:
            continue
        yield label, call


def time_all(folder: Path, record: Path, budget_s: float, each_s: float, device_name: str) -> None:
    """Times every case that is ready, in the order of the list, until the budget ends."""
    from tilefuse.runtime.program import Program

    started, options, device = time.perf_counter(), Options.from_environment(), torch.device("cuda")
    print(torch.cuda.get_device_name(), flush=True)
    with record.open("w", encoding="utf-8") as out:
        for path in sorted(folder.glob("*.ready")):
            if time.perf_counter() - started > budget_s:
                print("no time for", path.name, flush=True)
                break
            name, entry = _read(path)
            case = attention_of(name)
            first = case.inputs(device)
            num_bytes = sum(x.numel() * x.element_size() for x in first)
            sets = [first, *([x.clone() for x in first] for _ in range(num_input_sets(num_bytes, device, 6) - 1))]
            head = {"case": name, "device": device_name, "run": record.name}

            def say(us: float, low: float, high: float, what: dict[str, Any], text: str, head: dict[str, str] = head) -> None:
                out.write(json.dumps(head | {"us": round(us, 2), "low": round(low, 2), "high": round(high, 2)} | what) + "\n")
                out.flush()
                print(f"  {us:9.2f} us  {text}", flush=True)

            print("==", name, flush=True)
            try:
                for label, call in peer_calls(case, first):
                    t, _ = time_calls([partial(call, *s) for s in sets], device, budget_s=each_s)
                    say(t.median_us, t.low_us, t.high_us, {"peer": label}, label)
                for us, choice, spec, error in entry:
                    if not error <= BOUND[case.dtype]:
                        print(f"      wrong by {error:.1e}: {_label(choice)}", flush=True)
                        continue
                    program = Program(spec, {}, "cuda:0", options)
                    given = [arguments(program, case, s) for s in sets]
                    t, _ = time_calls([partial(program, *g) for g in given], device, budget_s=each_s)
                    what = {"choice": compact(choice), "predicted": round(us, 1), "error": float(f"{error:.1e}")}
                    say(t.median_us, t.low_us, t.high_us, what, f"predicted {us:8.1f}  {_label(choice)}")
            except Exception as error:  # one case must not end the others
                print("FAILED", name, type(error).__name__, str(error)[:200], flush=True)
            del sets, first
            torch.cuda.empty_cache()


def compact(choice: PipelinedWalk) -> dict[str, int]:
    """The fields of a choice that are not at their defaults."""
    defaults = {f.name: f.default for f in fields(choice)}
    return {n: v for n, v in asdict(choice).items() if v != defaults[n]}


def _label(choice: PipelinedWalk) -> str:
    return " ".join(f"{n}={v}" for n, v in compact(choice).items())


def present_record() -> str:
    """The name of the record of the GPU that is present; the H100's where it is another one, or there is none."""
    return "h200" if torch.cuda.is_available() and "H200" in torch.cuda.get_device_name() else "h100"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("plan", "prepare", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--tiles", type=int, default=7)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--budget", type=float, default=50.0)
    parser.add_argument("--each", type=float, default=0.04)
    parser.add_argument("--device", default="")
    options = parser.parse_args()
    if options.what == "plan":
        plan(options.folder, options.tiles, options.device or "h200")
    elif options.what == "prepare":
        prepare(options.folder, options.part, options.parts, options.budget)
    else:
        time_all(options.folder, options.record, options.budget, options.each, options.device or present_record())


if __name__ == "__main__":
    main()
