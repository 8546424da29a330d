"""Machine code of generated kernels without a device: `python -m benchmarks.machine_code [--device h200] [--listing FOLDER] [CASE ...]`.

Plans the cases for a device that need not be present, compiles their kernels with NVRTC, and prints for each kernel the assembler's report
and what a step of its main loop holds: matrix instructions, waits, loads and stores by width, and everything else. Cases are those of the
suite `products`, of attention (`f16/plain/1x64x4096x64`) and of its gradients (`gradients/f16/plain/1x64x4096x64`); without any, five
kernels of ours whose loops differ.

The main loop is the innermost loop with matrix instructions. The disassembler is `nvdisasm`, of the CUDA toolkit or of the package
`nvidia-cuda-nvdisasm`.
"""
from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.attention import gradients
from benchmarks.attention.cases import NAME, attention_of
from benchmarks.disassembly import disassembler, disassembly
from benchmarks.products import fused
from tilefuse.driver.compile import generate_sources
from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.ir.graph import Graph
from tilefuse.runtime.compilers.nvrtc import Resources, compile_cuda, nvrtc_version, parse_resources
from tilefuse.target.catalog import device_by_name

CASES = ("linear-gelu/f16/8192x4096x1024", "gated-pair/bf16/4096x11008x4096", "linear-residual-layernorm/f16/16384x768x3072",
         "int8-weight-linear/bf16/16x11008x4096", "mlp/f16/65536x256x4", "f16/plain/1x64x4096x64")
GRADIENTS = "gradients/"
# Classes of instructions, the first that matches.
CLASSES = (("matrix", re.compile(r"(HGMMA|IGMMA|QGMMA|HMMA|IMMA)\.?[0-9x]*")), ("matrix wait", re.compile(r"WARPGROUP\.DEPBAR")),
           ("matrix start", re.compile(r"WARPGROUP\.ARRIVE")), ("barrier wait", re.compile(r"SYNCS\.PHASECHK")),
           ("barrier arrival", re.compile(r"SYNCS\.ARRIVE")), ("block barrier", re.compile(r"BAR\.")),
           ("tensor copy", re.compile(r"UTMALDG|UBLKCP")), ("tensor store", re.compile(r"UTMASTG")),
           ("global load", re.compile(r"LDG[.\w]*")), ("global store", re.compile(r"STG[.\w]*")),
           ("shared load", re.compile(r"LDSM?[.\w]*")), ("shared store", re.compile(r"STSM?[.\w]*")),
           ("local", re.compile(r"LDL|STL")), ("function unit", re.compile(r"MUFU")), ("branch", re.compile(r"BRA|EXIT|CALL|RET")))
# Classes that a table shows with their forms, as LDS.128.
WITH_FORM = ("matrix", "global load", "global store", "shared load", "shared store")
LABEL, INSTRUCTION = re.compile(r"^\.(\S+):"), re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)(.*?);")
TARGET = re.compile(r"`\(\.(\S+)\)")


@dataclass(frozen=True)
class Instruction:
    """One instruction. target: line of a branch's label; -1 for others."""

    name: str
    target: int = -1


@dataclass(frozen=True)
class KernelReport:
    """A kernel's resources, and how many instructions of each class are in the whole and in a step of its main loops."""

    name: str
    resources: Resources | None
    whole: Counter[str]
    loops: tuple[Counter[str], ...]


def instructions_of(listing: str) -> list[Instruction]:
    """The instructions of a disassembled function in order."""
    place_by_label: dict[str, int] = {}
    lines: list[tuple[str, str]] = []
    for line in listing.splitlines():
        if label := LABEL.match(line):
            place_by_label[label.group(1)] = len(lines)
        elif found := INSTRUCTION.match(line):
            lines.append((found.group(1), found.group(2)))
    named = [(name, TARGET.search(rest) if name.startswith("BRA") else None) for name, rest in lines]
    return [Instruction(name, place_by_label.get(target.group(1), -1) if target else -1) for name, target in named]


def main_loops(code: Sequence[Instruction]) -> list[Sequence[Instruction]]:
    """The innermost loops with matrix instructions: from the target of a branch back to the branch.

    Waits that are tried again lie behind the last instruction of a kernel, and branch back from there: no loops.
    """
    spans = sorted({(i.target, n + 1) for n, i in enumerate(code) if 0 <= i.target <= n}, key=lambda s: s[1] - s[0])
    spans = [(first, end) for first, end in spans if not any(i.name == "EXIT" for i in code[first:end])]
    chosen: list[tuple[int, int]] = []
    for first, end in spans:
        if any(class_of(i.name) == "matrix" for i in code[first:end]) and not any(first <= f and e <= end for f, e in chosen):
            chosen.append((first, end))
    return [code[first:end] for first, end in sorted(chosen)]


def class_of(name: str) -> str:
    """The class of an instruction."""
    return next((kind for kind, pattern in CLASSES if pattern.match(name)), "other")


def counted(code: Sequence[Instruction]) -> Counter[str]:
    """Instructions by class, with their form where it tells the width."""
    counts: Counter[str] = Counter()
    for i in code:
        kind = class_of(i.name)
        counts[f"{kind} {i.name}" if kind in WITH_FORM else kind] += 1
    return counts


def graph_of(name: str) -> Graph:
    """The graph of a case, from tensors without data. Raises SystemExit for a name that no suite has."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import _disable_current_modes

    if name.startswith(GRADIENTS) and NAME.match(name.removeprefix(GRADIENTS)):
        return gradients.graph_of(attention_of(name.removeprefix(GRADIENTS)))
    if NAME.match(name):
        return attention_of(name).graph()
    case = next((c for c in fused.cases(False) if c.name == name), None)
    if case is None:
        raise SystemExit(f"no case {name!r}: `python -m benchmarks products --list` prints those of products")
    with FakeTensorMode():
        inputs = case.inputs(torch.device("cpu"), torch.Generator())
        traced = make_fx(case.function, decomposition_table=decompositions())(*inputs)
    with _disable_current_modes():
        return import_fx(traced, "case").graph


def reports(name: str, device: str, listings: Path | None) -> Iterator[KernelReport]:
    """The kernels of a case. listings: folder for their machine code as text; None: not kept. Raises SystemExit without a disassembler."""
    command = disassembler(with_labels=True)
    if command is None:
        raise SystemExit("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm, or put the CUDA toolkit's bin folder on the PATH")
    generated = generate_sources(graph_of(name), device=device_by_name(device))
    for kernel in generated.spec.kernels:
        entry = compile_cuda(kernel)
        assert entry.payload
        with tempfile.TemporaryDirectory() as folder:
            listing = disassembly(command, entry.payload, Path(folder, f"{kernel.name}.cubin"))
        if listings is not None:
            listings.mkdir(parents=True, exist_ok=True)
            (listings / f"{kernel.name}.sass").write_text(listing, encoding="utf-8")
            (listings / f"{kernel.name}.cu").write_text(kernel.source, encoding="utf-8")
        code = instructions_of(listing)
        yield KernelReport(kernel.name, parse_resources(entry.log), counted(code), tuple(counted(loop) for loop in main_loops(code)))


def text_of(report: KernelReport) -> str:
    """A kernel's report as indented lines."""
    r = report.resources
    resources = "" if r is None else f", {r.num_registers} registers, {r.spill_bytes} bytes spilled, {r.stack_bytes} of stack"
    lines = [f"  {report.name}: {report.whole.total()} instructions{resources}"]
    lines += [f"    step {n + 1}, {loop.total()} instructions: " + ", ".join(f"{count} {kind}" for kind, count in loop.most_common())
              for n, loop in enumerate(report.loops)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the reports of the cases."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.machine_code", description=__doc__)
    options.add_argument("cases", nargs="*", metavar="CASE")
    options.add_argument("--device", default="h200", help="a device's name, as `h100`")
    options.add_argument("--listing", type=Path, help="folder for sources and machine code")
    asked = options.parse_args(arguments)
    print(f"NVRTC {nvrtc_version()}, {asked.device}")
    for name in asked.cases or CASES:
        print(name, *(text_of(r) for r in reports(name, asked.device, asked.listing)), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
