"""Attention within documents, whose boundaries are data: whole programs with and without bounds, beside flex_attention and cuDNN.

    python -m benchmarks.attention.documents                           times and checks all cases on the device at hand
    python -m benchmarks.attention.documents --predict h200            predicted times and the share of the turns that the data leaves
    python -m benchmarks.attention.documents bf16/documents8/4x16x4096x64 --record FILE

Programs hold the summaries' kernels. flex_attention has a table of blocks, made ahead and not timed; cuDNN has a dense mask. Lengths of
documents are those of a random split. Each program is compared with double precision before it is timed.
"""
from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention.cases import Attention, attention_of
from benchmarks.attention.timed import BOUND, PEERS, arguments, error_of
from benchmarks.timing import num_input_sets, time_calls
from tilefuse.base.options import Options
from tilefuse.driver.compile import Generated, generate
from tilefuse.driver.pipeline import DEVICE_PIPELINE
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec

CASES = (
    "bf16/documents2/4x16x4096x64", "bf16/documents8/4x16x4096x64", "bf16/documents32/4x16x4096x64", "bf16/documents8/4x16x4096x128",
    "bf16/documents16/1x16x16384x64", "bf16/documents16/1x16x16384x128", "bf16/documents64/1x32g8x32768x128",
    "f16/documents4/16x12x1024x64", "bf16/documents1/4x16x4096x64", "bf16/documents4096/4x16x4096x64",
)
BLOCK = 128


def program_of(case: Attention, device: DeviceSpec, bounded: bool = True) -> Generated:
    """The plan of a case, with bounds where they are predicted faster, or without any."""
    options = Options.from_environment()
    if not bounded:
        passes = ",".join(p for p in DEVICE_PIPELINE.split(",") if p != "bound-masks")
        options = options.with_overrides(device_passes=passes)
    return generate(case.graph(), constants={}, input_layouts={}, device=device, options=options)


def left_share(case: Attention, rows: int = BLOCK, columns: int = BLOCK) -> float:
    """Share of the causal tiles that have an element of one document, in all batches."""
    ids = case.inputs("cpu")[-1][:, 0, 0]
    size = -(-case.keys // columns)
    some = total = 0
    for of_batch in ids:
        for first in range(0, case.rows, rows):
            row = of_batch[first:first + rows]
            for tile in range(min(size, -(-(first + rows) // columns))):
                column = of_batch[tile * columns:(tile + 1) * columns]
                some, total = some + bool(row.min() <= column.max() and column.min() <= row.max()), total + 1
    return some / total


def peers(case: Attention, inputs: Sequence[torch.Tensor]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """flex_attention with its table of blocks, and the library with a dense mask."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    ids = inputs[-1][:, 0, 0].contiguous()

    def mask(b: torch.Tensor, h: torch.Tensor, r: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (c <= r) & (ids[b, r] == ids[b, c])

    table = create_block_mask(mask, case.batch, None, case.rows, case.keys, device="cuda")
    attend = torch.compile(flex_attention, dynamic=False)
    shared = case.heads != case.key_heads
    yield "flex", lambda q, k, v, *_: attend(q, k, v, block_mask=table, enable_gqa=shared)
    if case.batch * case.rows * case.keys > 1 << 30:
        return
    row, column = torch.arange(case.rows, device="cuda")[:, None], torch.arange(case.keys, device="cuda")
    dense = (column <= row) & (inputs[3] == inputs[4])

    def library(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(PEERS[0][1]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense, enable_gqa=shared)

    yield "cudnn", library


def predict(names: Sequence[str], device: DeviceSpec) -> None:
    """Prints predicted times of all kernels, with the share of turns that plans assume, and the share that the data leaves."""
    for name in names:
        case = attention_of(name)
        times = [[k.cost.us for k in program_of(case, device, bounded).plan.kernels] for bounded in (True, False)]
        print(f"{name}: {sum(times[0]):.1f} us in {len(times[0])} kernels, {sum(times[1]):.1f} us without bounds; the data leaves "
              f"{left_share(case):.2f} of the causal tiles")


def time_case(name: str, device: DeviceSpec, record: Callable[[dict[str, Any]], None], each_s: float) -> None:
    """Checks and times a case."""
    from tilefuse.runtime.program import Program

    case, place = attention_of(name), torch.device("cuda")
    first = case.inputs(place)
    num_bytes = sum(x.numel() * x.element_size() for x in first)
    sets = [first, *([x.clone() for x in first] for _ in range(num_input_sets(num_bytes, place, 6) - 1))]
    print(f"== {name}: the data leaves {left_share(case):.2f} of the causal tiles", flush=True)
    for label, bounded in (("bounded", True), ("all tiles", False)):
        made = program_of(case, device, bounded)
        program = Program(made.spec, {}, "cuda:0", Options.from_environment())
        found = program(*arguments(program, case, first))
        error = error_of(case, first, found[0] if isinstance(found, (tuple, list)) else found)
        if not error <= BOUND[case.dtype]:
            print(f"      WRONG by {error:.1e}: {label}", flush=True)
            continue
        given = [arguments(program, case, s) for s in sets]
        timed, _ = time_calls([partial(program, *g) for g in given], place, budget_s=each_s)
        predicted = sum(k.cost.us for k in made.plan.kernels)
        print(f"  {timed.median_us:9.2f} us  {label}, predicted {predicted:.1f}, {len(made.plan.kernels)} kernels, error {error:.1e}",
              flush=True)
        record({"case": name, "who": label, "us": round(timed.median_us, 2), "predicted": round(predicted, 1)})
    for label, call in peers(case, first):
        try:
            timed, _ = time_calls([partial(call, *s) for s in sets], place, budget_s=each_s)
        except Exception as error:  # a peer that fails must not end the case
            print("      no", label, type(error).__name__, str(error)[:120], flush=True)
            continue
        print(f"  {timed.median_us:9.2f} us  {label}", flush=True)
        record({"case": name, "who": label, "us": round(timed.median_us, 2)})


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention.documents", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--predict", default="", help="a device's name: prints predictions, and times nothing")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--each", type=float, default=0.05, help="seconds for one kernel")
    options = parser.parse_args(words)
    if options.predict:
        predict(options.cases, device_by_name(options.predict))
        return
    from tilefuse.driver.compile import present_device

    device, _ = present_device()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    lines: list[dict[str, Any]] = []
    for name in options.cases:
        time_case(name, device, lambda line: lines.append(line | {"device": device.name}), options.each)
        torch.cuda.empty_cache()
    if options.record:
        options.record.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
