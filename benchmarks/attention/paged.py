"""Attention with few queries over caches in pages: kernels that look pages up, beside gathered copies, flex_attention and the read limit.

    python -m benchmarks.attention.paged                               times and checks all cases on the device at hand
    python -m benchmarks.attention.paged --predict h200                predicted times beside those of the bytes, without a device
    python -m benchmarks.attention.paged f16/ragged/8x32g8x1k8192p16x128 --record FILE
    python -m benchmarks.attention.paged --without flex contiguous     leaves these out, and the time to compile them

Names: type, lengths (full, or ragged: a quarter of the cache to all of it), batch x heads g key heads x queries k keys p rows of a page
x width. Keys and values lie at random pages of a cache with half as many more. Programs are those of whole compiles. "contiguous" is our
kernel on keys and values that were gathered before, not timed. "copy and" are torch's gathers and its fastest attention that takes the
lengths. The limit is the time of the bytes below the lengths, each once. Programs are compared with double precision before they are timed.
"""
from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention.cases import LOWEST, TYPES
from benchmarks.attention.timed import BOUND
from benchmarks.timing import num_input_sets, time_calls
from tilefuse.base.options import Options
from tilefuse.driver.compile import Generated, generate
from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec

NAME = re.compile(r"(?P<dtype>f16|bf16)/(?P<lengths>full|ragged)/(?P<batch>\d+)x(?P<heads>\d+)g(?P<key_heads>\d+)x(?P<rows>\d+)"
                  r"k(?P<keys>\d+)p(?P<page>\d+)x(?P<width>\d+)$")
CASES = (
    "f16/full/1x32g8x1k512p16x128", "f16/full/8x32g8x1k512p16x128", "f16/full/8x32g8x1k2048p16x128", "f16/full/1x32g8x1k8192p16x128",
    "f16/full/8x32g8x1k8192p16x128", "f16/full/8x32g8x1k8192p128x128", "f16/full/8x32g8x1k8192p8x128", "bf16/full/8x32g8x1k8192p16x64",
    "f16/ragged/32x32g8x1k8192p16x128", "f16/full/8x32g8x16k8192p16x128", "f16/full/8x32g8x1k131072p16x128",
    "f16/full/4x32g8x1024k4096p16x128",
)
BACKENDS = (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION), ("efficient", SDPBackend.EFFICIENT_ATTENTION))


@dataclass(frozen=True)
class Paged:
    """softmax(q k' / sqrt(width)) v over the keys of each batch below its length, `page` of which lie together in memory."""

    name: str
    dtype: torch.dtype
    lengths: str
    batch: int
    heads: int
    key_heads: int
    rows: int
    keys: int
    page: int
    width: int

    @property
    def pages_of_batch(self) -> int:
        """Pages of the keys of a batch."""
        return self.keys // self.page

    @property
    def num_pages(self) -> int:
        """Pages in memory."""
        return self.batch * self.pages_of_batch * 3 // 2

    def inputs(self, device: str | torch.device, seed: int = 0) -> list[Tensor]:
        """Queries, pages of keys and of values, numbers of pages, lengths."""
        draw = torch.Generator(device=device).manual_seed(seed)
        q = torch.randn((self.batch, self.heads, self.rows, self.width), device=device, generator=draw).to(self.dtype)
        shape = (self.num_pages, self.page, self.key_heads, self.width)
        caches = [torch.empty(shape, dtype=self.dtype, device=device).normal_(generator=draw) for _ in range(2)]
        table = torch.randperm(self.num_pages, device=device, generator=draw)[:self.batch * self.pages_of_batch]
        least = self.keys if self.lengths == "full" else self.keys // 4
        lengths = torch.randint(least, self.keys + 1, (self.batch,), device=device, generator=draw)
        return [q, *caches, table.reshape(self.batch, self.pages_of_batch), lengths]

    def gathered(self, pages: Tensor, table: Tensor) -> Tensor:
        """Keys or values as a tensor of heads."""
        return pages[table].reshape(self.batch, self.keys, self.key_heads, self.width).transpose(1, 2)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        """The definition on keys and values of heads."""
        k, v = (x.repeat_interleave(self.heads // self.key_heads, 1) for x in (k, v))
        seen = torch.arange(self.keys, device=q.device) < lengths[:, None, None, None]
        return torch.softmax(torch.where(seen, q @ k.mT * self.width**-0.5, LOWEST), -1).to(self.dtype) @ v

    def definition(self, q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        """The definition on pages."""
        return self.attention(q, self.gathered(keys, table), self.gathered(values, table), lengths)

    def read_bytes(self, lengths: Tensor) -> int:
        """Bytes of keys and values below the lengths, of queries and of results."""
        elements = 2 * self.key_heads * self.width * int(lengths.sum()) + 2 * self.batch * self.heads * self.rows * self.width
        return elements * self.dtype.itemsize

    def error_of(self, inputs: Sequence[Tensor], y: Tensor) -> float:
        """Largest difference from double precision over the largest element, of the first head and the last one."""
        q, keys, values, table, lengths = inputs
        worst = 0.0
        for batch, head in ((0, 0), (self.batch - 1, self.heads - 1)):
            key_head = head * self.key_heads // self.heads
            k, v = (x[table[batch], :, key_head].flatten(0, 1)[:int(lengths[batch])].double() for x in (keys, values))
            want = torch.softmax(q[batch, head].double() @ k.mT * self.width**-0.5, -1) @ v
            worst = max(worst, float((y[batch, head].double() - want).abs().max() / want.abs().max()))
        return worst


def paged_of(name: str) -> Paged:
    """The case of a name. Raises: ValueError for a name of another form."""
    match = NAME.match(name)
    if match is None:
        raise ValueError(f"{name} names no attention over pages")
    numbers = (int(match[n]) for n in ("batch", "heads", "key_heads", "rows", "keys", "page", "width"))
    return Paged(name, TYPES[match["dtype"]], match["lengths"], *numbers)


def compiled(fn: Callable[..., Tensor], inputs: Sequence[Tensor], device: DeviceSpec) -> Generated:
    """A function as a program. inputs: of the sizes of a call."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import _disable_current_modes

    with FakeTensorMode():
        fake = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in inputs]
        traced = make_fx(lambda *given: fn(*given), decomposition_table=decompositions())(*fake)
    with _disable_current_modes():
        graph = Pipeline.parse(DEFAULT_PIPELINE).run(import_fx(traced, "paged").graph, PassContext())
    return generate(graph, constants={}, input_layouts={}, device=device, options=Options.from_environment())


def peers(case: Paged, inputs: Sequence[Tensor]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """torch's gathers and attention, and flex_attention that reads pages."""
    from torch.nn.attention import sdpa_kernel

    shared = case.heads != case.key_heads
    seen = (torch.arange(case.keys, device="cuda") < inputs[4][:, None])[:, None, None].expand(-1, -1, case.rows, -1)
    for label, backend in BACKENDS:
        def library(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, backend: SDPBackend = backend) -> Tensor:
            mask = None if case.lengths == "full" else seen
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, case.gathered(keys, table), case.gathered(values, table), attn_mask=mask,
                                                    enable_gqa=shared)

        yield f"copy and {label}", library
    yield "flex", _flex(case, inputs)


def _flex(case: Paged, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """flex_attention over all pages of the cache, by a table of blocks that names those of a batch, made ahead and not timed."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    table, lengths = inputs[3], inputs[4]
    # Pages of other batches come behind all keys.
    place = torch.full((case.batch, case.num_pages), case.pages_of_batch, device=table.device)
    place.scatter_(1, table, torch.arange(case.pages_of_batch, device=table.device).expand(case.batch, -1))

    def mask(b: Tensor, h: Tensor, r: Tensor, c: Tensor) -> Tensor:
        return place[b, c // case.page] * case.page + c % case.page < lengths[b]

    rows = 128
    tiles = -(-case.rows // rows)
    used = (lengths + case.page - 1) // case.page
    # As many columns as there are pages; those beyond the used ones are not read.
    numbers = torch.nn.functional.pad(table, (0, case.num_pages - case.pages_of_batch))
    blocks = BlockMask.from_kv_blocks(used[:, None, None].expand(-1, 1, tiles).int().contiguous(),
                                      numbers[:, None, None].expand(-1, 1, tiles, -1).int().contiguous(), BLOCK_SIZE=(rows, case.page),
                                      mask_mod=mask, seq_lengths=(case.rows, case.num_pages * case.page))
    attend = torch.compile(flex_attention, dynamic=False)

    def call(q: Tensor, keys: Tensor, values: Tensor, *_: Tensor) -> Any:
        k, v = (x.flatten(0, 1).transpose(0, 1)[None].expand(case.batch, -1, -1, -1) for x in (keys, values))
        return attend(q, k, v, block_mask=blocks, enable_gqa=case.heads != case.key_heads)

    return call


def predict(names: Sequence[str], device: DeviceSpec) -> None:
    """Prints the predicted time of each program's kernels beside that of the bytes of a full cache."""
    for name in names:
        case = paged_of(name)
        q, cache = (case.batch, case.heads, case.rows, case.width), (case.num_pages, case.page, case.key_heads, case.width)
        given = [torch.empty(s, dtype=case.dtype, device="meta") for s in (q, cache, cache)]
        integers = [torch.empty(s, dtype=torch.long, device="meta") for s in ((case.batch, case.pages_of_batch), (case.batch,))]
        kernels = compiled(case.definition, [*given, *integers], device).plan.kernels
        limit_us = case.read_bytes(torch.full((case.batch,), case.keys)) / device.global_bytes_per_s * 1e6
        print(f"{name}: {sum(k.cost.us for k in kernels):.1f} us in {len(kernels)} kernels, {limit_us:.1f} us of bytes; "
              f"{kernels[-1].program.notation}", flush=True)


def programs(case: Paged, inputs: Sequence[Tensor], device: DeviceSpec, without: Sequence[str]
             ) -> Iterator[tuple[str, Callable[..., Any], int]]:
    """Our programs as functions of the inputs, and the number of their kernels: on pages, and on keys and values gathered before."""
    from tilefuse.runtime.program import Program

    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def gathered(of: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if id(of) not in kept:
            kept[id(of)] = tuple(case.gathered(x, of[3]).contiguous() for x in of[1:3])  # type: ignore[assignment]
        return of[0], *kept[id(of)], of[4]

    for label, fn, operands in (("pages", case.definition, tuple), ("contiguous", case.attention, gathered)):
        if label in without:
            continue
        made = compiled(fn, operands(inputs), device)
        program = Program(made.spec, {}, "cuda:0", Options.from_environment())

        def call(of: Sequence[Tensor], program: Program = program, operands: Callable[..., tuple[Tensor, ...]] = operands) -> Any:
            by_name = {f"arg{n}_1": x for n, x in enumerate(operands(of))}
            return partial(program, *(by_name[name] for name in program.spec.inputs))

        yield label, call, len(made.plan.kernels)


def time_case(name: str, device: DeviceSpec, record: Callable[[dict[str, Any]], None], each_s: float, without: Sequence[str]) -> None:
    """Checks and times a case. without: labels that are left out."""
    case, place = paged_of(name), torch.device("cuda")
    first = case.inputs(place)
    num_bytes = sum(x.numel() * x.element_size() for x in first)
    sets = [first, *([x.clone() for x in first] for _ in range(num_input_sets(num_bytes, place, 4) - 1))]
    limit_us = case.read_bytes(first[4]) / device.global_bytes_per_s * 1e6
    print(f"== {name}: {case.read_bytes(first[4]) / 1e6:.1f} MB, {limit_us:.2f} us of bytes", flush=True)

    def time(label: str, calls: list[Callable[[], Any]], more: dict[str, Any]) -> None:
        timed, _ = time_calls(calls, place, budget_s=each_s)
        print(f"  {timed.median_us:9.2f} us  {limit_us / timed.median_us:5.2f} of the bytes' rate  {label} {more or ''}", flush=True)
        record({"case": name, "who": label, "us": round(timed.median_us, 2), "limit_us": round(limit_us, 2)} | more)

    for label, call, kernels in programs(case, first, device, without):
        calls = [call(s) for s in sets]
        found = calls[0]()
        error = case.error_of(first, found[0] if isinstance(found, (tuple, list)) else found)
        if error <= BOUND[case.dtype]:
            time(label, calls, {"kernels": kernels, "error": float(f"{error:.1e}")})
        else:
            print(f"      WRONG by {error:.1e}: {label}", flush=True)
    for label, peer in peers(case, first):
        if label in without:
            continue
        try:
            error = case.error_of(first, peer(*first))
            time(label, [partial(peer, *s) for s in sets], {"error": float(f"{error:.1e}")})
        except Exception as failed:  # a peer that fails must not end the case
            print("      no", label, type(failed).__name__, str(failed)[:120], flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention.paged", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--predict", default="", help="a device's name: prints predictions, and times nothing")
    parser.add_argument("--without", nargs="+", default=(), help="labels: pages, contiguous, flex, copy and cudnn ..")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--each", type=float, default=0.04, help="seconds for one kernel")
    options = parser.parse_args(words)
    if options.predict:
        predict(options.cases, device_by_name(options.predict))
        return
    from tilefuse.driver.compile import present_device

    device, _ = present_device()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    lines: list[dict[str, Any]] = []
    for name in options.cases:
        time_case(name, device, lambda line: lines.append(line | {"device": device.name}), options.each, options.without)
        torch.cuda.empty_cache()
        if options.record:
            options.record.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
