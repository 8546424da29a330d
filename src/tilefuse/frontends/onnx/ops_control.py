"""ONNX control flow and sequences, resolved while importing: branches chosen, loops unrolled, sequences kept as lists of values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilefuse.frontends.onnx.call import Call, Value, onnx_op
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.scalar import NUMPY_DTYPES

# Steps beyond this make graphs that take longer to compile than the loop is worth.
UNROLL_LIMIT = 512


@onnx_op("If")
def branch(n: Call) -> list[Value]:
    """The branch taken where the condition is known; else both, and a choice of every result if their types agree."""
    condition = n.operand(0)
    if condition.array is not None:
        name = "then_branch" if bool(condition.array.reshape(-1)[0]) else "else_branch"
        return n.importer.run_subgraph(n.needed_attr(name), [], n)
    first = n.importer.run_subgraph(n.needed_attr("then_branch"), [], n)
    second = n.importer.run_subgraph(n.needed_attr("else_branch"), [], n)
    names = [[_tensor(n, v) for v in side] for side in (first, second)]
    if any(a is None or b is None or n.b.type_of(a) != n.b.type_of(b) for a, b in zip(*names)):
        n.known(0, "the condition (the branches' results differ in type)")
    chosen = n.b.reshape(n.b.cast(n[0], BOOL), ())
    depends = condition.depends.union(*(v.depends for v in (*first, *second)))
    return [Value(name=n.b.where(chosen, a, b), depends=depends) for a, b in zip(*names) if a is not None and b is not None]


def _tensor(n: Call, value: Value) -> str | None:
    return None if value.items is not None else n.importer.materialise(value, n.label)


@onnx_op("Loop")
def loop(n: Call) -> list[Value]:
    """Unrolled: the trip count and every condition must be known."""
    body = n.needed_attr("body")
    limit = n.ints(0, "the trip count")[0] if n.has(0) else None
    going = bool(n.known(1, "the condition").reshape(-1)[0]) if n.has(1) else True
    carried = [n.operand(i) for i in range(2, len(n.inputs))]
    scanned: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while going and (limit is None or step < limit):
        if step >= UNROLL_LIMIT:
            raise n.unsupported(f"more than {UNROLL_LIMIT} steps to unroll")
        results = n.importer.run_subgraph(body, [Value(array=np.asarray(step, np.int64)), Value(array=np.asarray(True)), *carried], n)
        if results[0].array is None:
            raise n.unsupported(f"its condition after step {step} depends on data computed when running")
        going = bool(results[0].array.reshape(-1)[0])
        carried = results[1 : 1 + len(carried)]
        for values, new in zip(scanned, results[1 + len(carried) :]):
            values.append(new)
        step += 1
    if step == 0 and scanned:
        # The body is imported once for its results' types; its values are unused.
        results = n.importer.run_subgraph(body, [Value(array=np.asarray(0, np.int64)), Value(array=np.asarray(True)), *carried], n)
        return [*carried, *(_none_of(n, value) for value in results[1 + len(carried) :])]
    return [*carried, *(stacked(n, values, 0) for values in scanned)]


def _none_of(n: Call, value: Value) -> Value:
    """No elements like `value`, along a new first axis."""
    have = n.b.type_of(n.importer.materialise(value, n.label))
    return Value(array=np.zeros((0, *have.shape), NUMPY_DTYPES[have.dtype.name]))


@onnx_op("Scan")
def scan(n: Call) -> list[Value]:
    """Unrolled over the scanned axis, whose extent is static."""
    if n.version < 9:
        raise n.unsupported("the batched form of opset 8")
    body, count = n.needed_attr("body"), n.needed_attr("num_scan_inputs")
    states = [n.operand(i) for i in range(len(n.inputs) - count)]
    first = len(states)
    axes = n.attr("scan_input_axes", [0] * count)
    directions = n.attr("scan_input_directions", [0] * count)
    outputs = len(body.output) - len(states)
    out_axes, out_directions = n.attr("scan_output_axes", [0] * outputs), n.attr("scan_output_directions", [0] * outputs)
    steps = n.shape(first)[n.axis(axes[0], len(n.shape(first)))]
    if steps == 0:
        raise n.unsupported("an axis without elements to walk")
    if steps > UNROLL_LIMIT:
        raise n.unsupported(f"{steps} steps to unroll (at most {UNROLL_LIMIT})")
    scanned: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(steps):
        slices = [_step_slice(n, first + i, axes[i], steps - 1 - step if directions[i] else step) for i in range(count)]
        results = n.importer.run_subgraph(body, [*states, *slices], n)
        states = results[:first]
        for values, new in zip(scanned, results[first:]):
            values.append(new)
    stacked_results = [stacked(n, values[::-1] if back else values, at) for values, at, back in zip(scanned, out_axes, out_directions)]
    return [*states, *stacked_results]


def _step_slice(n: Call, i: int, axis: int, step: int) -> Value:
    value = n.operand(i)
    if value.array is not None:
        return Value(array=np.take(value.array, step, axis))
    return Value(name=n.b.select(n[i], axis, step), depends=value.depends)


def stacked(n: Call, values: Sequence[Value], axis: int) -> Value:
    """The values one after another along a new axis."""
    arrays = [v.array for v in values if v.array is not None]
    if len(arrays) == len(values):
        return Value(array=np.stack(arrays, axis))
    names = [n.importer.materialise(v, n.label) for v in values]
    return Value(name=n.b.stack(names, axis), depends=frozenset[str]().union(*(v.depends for v in values)))


# Sequences and optionals


def items(n: Call, i: int) -> tuple[Value, ...]:
    """The elements of operand `i`."""
    elements = n.operand(i).items
    if elements is None:
        raise n.unsupported("sequences that come from outside or hold sequences")
    return elements


def place(n: Call, i: int, length: int, default: int) -> int:
    """A known position in a sequence of `length` elements, counted from the front."""
    at = n.ints(i, "the position")[0] if n.has(i) else default
    return at + length if at < 0 else at


@onnx_op("SequenceEmpty")
def sequence_empty(n: Call) -> Value:
    return Value(items=())


@onnx_op("SequenceConstruct")
def sequence_construct(n: Call) -> Value:
    return Value(items=tuple(n.operand(i) for i in range(len(n.inputs))))


@onnx_op("SequenceInsert")
def sequence_insert(n: Call) -> Value:
    have = items(n, 0)
    at = place(n, 2, len(have), len(have))
    if not 0 <= at <= len(have):
        raise n.wrong(f"position {at} is outside a sequence of {len(have)} elements")
    return Value(items=(*have[:at], n.operand(1), *have[at:]))


@onnx_op("SequenceErase")
def sequence_erase(n: Call) -> Value:
    have = items(n, 0)
    at = place(n, 1, len(have), len(have) - 1)
    if not 0 <= at < len(have):
        raise n.wrong(f"position {at} is outside a sequence of {len(have)} elements")
    return Value(items=(*have[:at], *have[at + 1 :]))


@onnx_op("SequenceAt")
def sequence_at(n: Call) -> Value:
    have = items(n, 0)
    at = place(n, 1, len(have), 0)
    if not 0 <= at < len(have):
        raise n.wrong(f"position {at} is outside a sequence of {len(have)} elements")
    return have[at]


@onnx_op("SequenceLength")
def sequence_length(n: Call) -> Value:
    return Value(array=np.asarray(len(items(n, 0)), np.int64))


@onnx_op("ConcatFromSequence")
def concat_from_sequence(n: Call) -> Value:
    have = items(n, 0)
    if n.attr("new_axis", 0):
        return stacked(n, have, n.needed_attr("axis"))
    names = [n.importer.materialise(v, n.label) for v in have]
    return Value(name=n.b.concatenate(names, n.needed_attr("axis")), depends=frozenset[str]().union(*(v.depends for v in have)))


@onnx_op("SplitToSequence")
def split_to_sequence(n: Call) -> Value:
    """Pieces of the given sizes; of one size where `split` is a number; single slices where it is missing."""
    have = n.shape(0)
    at = n.axis(n.attr("axis", 0), len(have))
    extent = have[at]
    if n.has(1):
        lengths = n.known(1, "the sizes")
        size = int(lengths.reshape(-1)[0])
        sizes = [min(size, extent - i) for i in range(0, extent, size)] if lengths.ndim == 0 else [int(s) for s in lengths]
    else:
        sizes = [1] * extent
    parts = n.b.split(n[0], sizes, at)
    if not n.has(1) and not n.attr("keepdims", 1):
        parts = [n.b.squeeze(p, [at]) for p in parts]
    return Value(items=tuple(Value(name=p, depends=n.operand(0).depends) for p in parts))


@onnx_op("SequenceMap")
def sequence_map(n: Call) -> list[Value]:
    """The body once for every element of the first sequence; other sequences go along, tensors are the same for all."""
    body = n.needed_attr("body")
    beside = [n.operand(i) for i in range(1, len(n.inputs))]
    if any(v.items is not None and len(v.items) != len(items(n, 0)) for v in beside):
        raise n.wrong("its sequences differ in length")
    results: list[list[Value]] = [[] for _ in body.output]
    for at, element in enumerate(items(n, 0)):
        operands = [element, *(v if v.items is None else v.items[at] for v in beside)]
        for values, new in zip(results, n.importer.run_subgraph(body, operands, n)):
            values.append(new)
    return [Value(items=tuple(values)) for values in results]


@onnx_op("OptionalHasElement")
def optional_has_element(n: Call) -> Value:
    return Value(array=np.asarray(n.has(0)))


@onnx_op("OptionalGetElement", "Optional")
def optional_element(n: Call) -> Value:
    if not n.has(0):
        raise n.unsupported("optionals without an element")
    return n.operand(0)
