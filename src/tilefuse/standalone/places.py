"""Storage of a program outside Python: every value lies in an input, a result, the weights, or one workspace.

The runtime keeps operands of library calls as tensors; here all memory of a call has an offset in the workspace.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.runtime.calls.arena import Extent, aligned, place
from tilefuse.runtime.calls.call_plan import ITEMSIZE, root_of, storage_bytes, storage_span
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec, Value


@dataclass(frozen=True, slots=True)
class Place:
    """The first byte of a value. Units: bytes. kind: "input", "result" (of number `number`), "weights" or "workspace"."""

    kind: str
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output of the model: a value of the program, its dimensions permuted, then repeated to `expanded`."""

    value: str
    name: str
    permutation: tuple[int, ...] | None = None
    expanded: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One result as the caller gets it. `source`: a value that must be copied into it at the end, with the strides
    `source_strides`; "" where steps write it. Units: elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    source: str = ""
    source_strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything lies. Units: bytes.

    counters: first byte and size of the memory that is zero before a call. temporaries: of named extra memory, as requested.
    """

    by_name: Mapping[str, Place]
    results: tuple[Result, ...]
    temporaries: Mapping[str, int]
    counter_offset: int
    counter_bytes: int
    workspace_bytes: int
    weight_bytes: int


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor. Units: elements."""
    return tuple(prod(shape[d + 1:]) for d in range(len(shape)))


def plain_results(spec: ProgramSpec) -> tuple[Wanted, ...]:
    """The program's own results as they are."""
    return tuple(Wanted(name, title) for name, title in zip(spec.results, spec.told_results, strict=True))


def results_of(spec: ProgramSpec, wanted: Sequence[Wanted]) -> tuple[tuple[Result, ...], dict[str, int]]:
    """The results, and the number of the result in whose memory a storage lies.

    A result whose memory is the whole of a storage that the program makes is written in place; a window onto something, an
    input, a constant, or a value given twice is copied.
    """
    values = {v.name: v for v in spec.values}
    owners: dict[str, int] = {}
    results: list[Result] = []
    for number, want in enumerate(wanted):
        value = values[want.value]
        root, offset = root_of(value, values)
        shape, strides = value.shape, value.strides
        if want.permutation is not None:
            shape, strides = tuple(shape[d] for d in want.permutation), tuple(strides[d] for d in want.permutation)
        if want.expanded is not None:
            missing = len(want.expanded) - len(shape)
            strides = (0,) * missing + tuple(0 if n == 1 and wide != 1 else s
                                             for n, s, wide in zip(shape, strides, want.expanded[missing:], strict=True))
            shape = want.expanded
        own = values[root].role in ("intermediate", "result") and root not in owners
        whole = offset == 0 and storage_bytes(values[root]) == storage_bytes(value) and is_dense(shape, strides)
        if own and whole:
            owners[root] = number
            results.append(Result(want.name, value.dtype, shape, strides))
        else:
            results.append(Result(want.name, value.dtype, shape, row_major(shape), want.value, strides))
    return tuple(results), owners


def place_values(spec: ProgramSpec, wanted: Sequence[Wanted], weights: Mapping[str, int], weight_bytes: int,
                 temporaries: Sequence[Extent] = ()) -> Places:
    """Places of all values.

    weights: offset of every constant in the file of weights. temporaries: more memory that steps need, by steps as in the program.
    Units: bytes.
    """
    values = {v.name: v for v in spec.values}
    results, owners = results_of(spec, wanted)
    inputs = {name: number for number, name in enumerate(spec.inputs)}
    life = _lives(spec, values, [w.value for w in wanted])
    extents = [Extent(name, storage_bytes(values[name]), first, last) for name, (first, last) in life.items()
              if values[name].role in ("intermediate", "result") and name not in owners]
    placed = place([*extents, *temporaries])
    counters = _counter_bytes(spec)
    by_name: dict[str, Place] = {}
    for value in spec.values:
        root, offset = root_of(value, values)
        if root in inputs:
            by_name[value.name] = Place("input", inputs[root], offset)
        elif root in owners:
            by_name[value.name] = Place("result", owners[root], offset)
        elif root in weights:
            by_name[value.name] = Place("weights", 0, weights[root] + offset)
        elif root in placed.offset_by_name:
            by_name[value.name] = Place("workspace", 0, aligned(counters) + placed.offset_by_name[root] + offset)
    extra = {e.name: aligned(counters) + placed.offset_by_name[e.name] for e in temporaries}
    return Places(by_name, results, extra, 0, counters, aligned(counters) + placed.num_bytes, weight_bytes)


def _lives(spec: ProgramSpec, values: Mapping[str, Value], result_names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """First and last step that touches each storage; values that are copied into a result live to the end."""
    life: dict[str, tuple[int, int]] = {}

    def touch(name: str, step: int) -> None:
        root, _ = root_of(values[name], values)
        first, _ = life.get(root, (step, step))
        life[root] = (first, step)

    for number, step in enumerate(spec.steps):
        match step:
            case KernelStep(_, arguments):
                names = [n for n in arguments if n]
            case LibraryStep(_, operands, results):
                names = [*operands, *(n for n in results if n)]
            case CopyStep(source, target):
                names = [source, target]
        for name in names:
            touch(name, number)
    for name in result_names:
        touch(name, len(spec.steps))
    return life


def _counter_bytes(spec: ProgramSpec) -> int:
    """Bytes of the counters of the kernel that has most; all kernels use the same, one after the other. Units: bytes."""
    most = 0
    for kernel in spec.kernels:
        most = max(most, sum(aligned(p.num_elements * ITEMSIZE[p.dtype]) for p in kernel.parameters if p.role == "counter"))
    return most


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether every byte from the first element to the last belongs to one element."""
    return storage_span(shape, strides) == prod(shape) and all(s or n <= 1 for n, s in zip(shape, strides))
