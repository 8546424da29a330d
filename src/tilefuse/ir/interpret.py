"""The reference interpreter: the meaning of every node, in numpy. Slow and plain; everything else is compared with it.

A body is evaluated for all points of the iteration domain at once, in row-major blocks that bound the memory. Sums and
products of floats are accumulated in f64 and rounded once: the reference for every order of combination.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from tilefuse.base.errors import IndexRangeError, InternalError, NameLookupError, ShapeError, TypeMismatchError, UnsupportedOpError, nearest
from tilefuse.ir.affine import Affine, evaluate
from tilefuse.ir.dtype import DTYPES, DType
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.library.meaning import LIBRARY_MEANINGS
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.ops import SCALAR_OPS, convert, dtype_of
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, Call, Const, Expr, Guard, Index, Lookup, Read

Array = np.ndarray[Any, Any]
Library = Callable[[Node, list[Array]], Any]
Range = tuple[int, int]

BLOCK_ELEMENTS = 1 << 21  # points of an iteration domain evaluated at once; temporaries take a few times 8 bytes each


class Outcome(list[Array]):
    """The results in order; `updates` holds the new contents of the updated inputs, by input name."""

    def __init__(self, results: list[Array], updates: dict[str, Array]) -> None:
        super().__init__(results)
        self.updates = updates


def interpret(graph: Graph, inputs: Mapping[str, Array], library: Library | None = None) -> Outcome:
    """Runs the graph on numpy arrays. `library` performs the library nodes that have no plain meaning: it gets the node and its
    operands' arrays and returns the node's value, or the list of all results of the call.

    Shapes: every input as the graph declares it.
    Raises: NameLookupError for a missing input, ShapeError or TypeMismatchError for one that does not fit, UnsupportedOpError for
    a library node without meaning when `library` is None, InternalError for a read out of range.
    """
    values: dict[str, Array] = {i.name: _checked_input(i.name, i.type, inputs) for i in graph.inputs}
    last_use = {value: n for n, node in enumerate(graph.nodes) for value in node.reads()}
    with np.errstate(all="ignore"):
        for n, node in enumerate(graph.nodes):
            values[node.name] = _run_node(node, values, graph, library)
            for value in node.reads():
                if last_use[value] == n and value not in graph.escaping:
                    del values[value]
    return Outcome([values[r] for r in graph.results], {target: values[v] for target, v in graph.updates})


def _checked_input(name: str, expected: Type, inputs: Mapping[str, Array]) -> Array:
    if name not in inputs:
        raise NameLookupError(f"input %{name} is missing", hint=nearest(name, inputs))
    array = np.asarray(inputs[name])
    if array.shape != expected.shape:
        raise ShapeError(f"input %{name} is declared {expected}, got shape {list(array.shape)}")
    if array.dtype != NUMPY_DTYPES[expected.dtype.name]:
        raise TypeMismatchError(f"input %{name} is declared {expected}, got {array.dtype}")
    return array


def _run_node(node: Node, values: Mapping[str, Array], graph: Graph, library: Library | None) -> Array:
    match node.category:
        case "map" | "gather":
            result = _run_map(node, values)
        case "reduce":
            result = _run_reduce(node, values, _body_dtype(node, graph))
        case "scan":
            result = _run_scan(node, values)
        case "scatter":
            result = _run_scatter(node, values)
        case "library":
            result = _run_library(node, [values[v] for v in node.operands], library)
        case _:
            raise InternalError(f"unknown node kind {node.kind}", where=f"%{node.name}")
    if result.shape != node.type.shape or result.dtype != NUMPY_DTYPES[node.type.dtype.name]:
        raise InternalError(f"%{node.name} should be {node.type}, its value is {result.dtype}{list(result.shape)}")
    return result


def _body_dtype(node: Node, graph: Graph) -> DType:
    assert node.body is not None
    return dtype_of(node.body, lambda name: graph.type_of(name).dtype)


def _run_library(node: Node, operands: list[Array], library: Library | None) -> Array:
    meaning = LIBRARY_MEANINGS.get(node.detail)
    if meaning is not None:
        wide = meaning(node, operands)
        return np.asarray(wide).astype(NUMPY_DTYPES[node.type.dtype.name]).reshape(node.type.shape)
    if library is None:
        raise UnsupportedOpError(f"library operator {node.detail} has no plain meaning", where=f"%{node.name}",
                                 hint="pass `library=` to interpret")
    outputs = library(node, operands)
    if isinstance(outputs, (list, tuple)):
        result = node.attribute("result", 0)
        outputs = outputs[result if isinstance(result, int) else 0]
    return np.asarray(outputs)


# ---------------------------------------------------------------- bodies

def row_major_blocks(extents: tuple[int, ...], limit: int) -> Iterator[tuple[Range, ...]]:
    """The domain cut into boxes of about `limit` points, each contiguous in row-major order, in that order."""
    if prod(extents) <= max(limit, 1):
        yield tuple((0, extent) for extent in extents)
        return
    inner = prod(extents[1:])
    step = max(limit // max(inner, 1), 1)
    for start in range(0, extents[0], step):
        head = (start, min(start + step, extents[0]))
        for rest in row_major_blocks(extents[1:], max(limit, 1)):
            yield (head, *rest)


class _Domain:
    """A box of an iteration domain: each axis as an array along its own dimension, so that expressions broadcast."""

    def __init__(self, names: tuple[str, ...], ranges: tuple[Range, ...]) -> None:
        rank = len(names)
        self.ranges = dict(zip(names, ranges, strict=True))
        self.dimension = {name: d for d, name in enumerate(names)}
        self.shape = tuple(high - low for low, high in ranges)
        self.axis = {
            name: np.arange(low, high, dtype=np.int64).reshape([-1 if d == e else 1 for e in range(rank)])
            for d, (name, (low, high)) in enumerate(zip(names, ranges, strict=True))
        }


class _Evaluator:
    """Evaluates one body over one domain. The result broadcasts to the domain's shape."""

    def __init__(self, values: Mapping[str, Array], domain: _Domain) -> None:
        self.values = values
        self.domain = domain

    def full(self, e: Expr) -> Array:
        """The value of `e` at every point of the domain."""
        return np.broadcast_to(self.evaluate(e, None), self.domain.shape)

    def affine(self, e: Affine) -> Array:
        """Values of an index expression over the domain."""
        return np.asarray(evaluate(e, self.domain.axis), dtype=np.int64)

    def evaluate(self, e: Expr, active: Array | None) -> Array:
        """`active`: where the value is used (None: everywhere); elsewhere reads may be out of range and give anything."""
        match e:
            case Const(_, dtype):
                return np.asarray(e.value, dtype=NUMPY_DTYPES[dtype.name])
            case Index(affine):
                return self.affine(affine)
            case Read(value, index):
                return self.read(value, index, active)
            case Lookup(value, subscripts):
                array = self.values[value]
                at = [clamped(self.evaluate(s, active), extent) for s, extent in zip(subscripts, array.shape, strict=True)]
                return np.asarray(array[tuple(at)])
            case Call("in_range", (index, Const() as limit)):
                return checked(self.evaluate(index, active), int(limit.value), active)
            case Call(fn, args):
                return apply(fn, [self.evaluate(a, active) for a in args])
            case Guard(tests, then, otherwise):
                inside = self.hold(tests)
                first = self.evaluate(then, inside if active is None else inside & active)
                second = self.evaluate(otherwise, ~inside if active is None else ~inside & active)
                return np.where(inside, first, second)
        raise InternalError(f"not a scalar expression: {e!r}")

    def hold(self, tests: tuple[Bound, ...]) -> Array:
        """Where all bounds hold."""
        inside: Array = np.asarray(True)
        for b in tests:
            at = self.affine(b.index)
            inside = inside & (at >= b.low) & (at < b.high)
        return np.asarray(inside)

    def read(self, value: str, index: tuple[Affine, ...], active: Array | None) -> Array:
        """Elements of a value at affine subscripts; as a strided view where possible."""
        array = self.values[value]
        view = self.strided(array, index)
        if view is not None:
            return view
        at: list[Array] = []
        for d, (e, extent) in enumerate(zip(index, array.shape, strict=True)):
            subscript = self.affine(e)
            outside = (subscript < 0) | (subscript >= extent)
            if outside.any():
                if active is None or (outside & active).any():
                    raise InternalError(f"read out of range: %{value}[{', '.join(map(str, index))}], dimension {d} of extent {extent}")
                if extent == 0:
                    return np.zeros((), dtype=array.dtype)
                subscript = clamped(subscript, extent)
            at.append(subscript)
        return np.asarray(array[tuple(at)])

    def strided(self, array: Array, index: tuple[Affine, ...]) -> Array | None:
        """The read as a slice and a transposition, where every subscript is a constant or one axis of its own, in range."""
        slices: list[slice | int] = []
        order: list[int] = []
        for e, extent in zip(index, array.shape, strict=True):
            if len(e.terms) > 1 or (e.terms and not isinstance(e.terms[0][0], str)):
                return None
            if not e.terms:
                if not 0 <= e.const < extent:
                    return None
                slices.append(e.const)
                continue
            name, step = e.terms[0]
            assert isinstance(name, str)
            low, high = self.domain.ranges[name]
            first, last = e.const + step * low, e.const + step * (high - 1)
            if high <= low or not (0 <= first < extent and 0 <= last < extent) or self.domain.dimension[name] in order:
                return None
            stop = last + (1 if step > 0 else -1)
            slices.append(slice(first, stop if stop >= 0 else None, step))
            order.append(self.domain.dimension[name])
        view = np.asarray(array[tuple(slices)])
        places = sorted(range(len(order)), key=lambda n: order[n])
        shape = [1] * len(self.domain.shape)
        for n in places:
            shape[order[n]] = view.shape[n]
        return view.transpose(places).reshape(shape)


def checked(index: Array, extent: int, active: Array | None) -> Array:
    """Indices that must be one of 0 .. extent - 1 where they are used. Raises: IndexRangeError."""
    outside = (index < 0) | (index >= extent)
    if outside.any() and (active is None or (outside & active).any()):
        bad = np.broadcast_to(index, np.shape(outside))[outside if active is None else outside & active]
        raise IndexRangeError(f"index {bad.flat[0]} is outside 0 .. {extent - 1}")
    return clamped(index, extent)


def clamped(subscript: Array, extent: int) -> Array:
    """Subscripts moved into 0 .. extent - 1, as i64."""
    return np.minimum(np.maximum(subscript, 0), extent - 1).astype(np.int64)


_DTYPE_OF_NUMPY = {numpy_dtype: DTYPES[name] for name, numpy_dtype in NUMPY_DTYPES.items()}


def apply(fn: str, args: list[Array]) -> Array:
    """A scalar function or conversion applied to arrays. Requires: numpy's floating-point warnings are off."""
    if fn in DTYPES:
        return convert(args[0], _DTYPE_OF_NUMPY[args[0].dtype], DTYPES[fn])
    return np.asarray(SCALAR_OPS[fn].meaning(*args))


# ---------------------------------------------------------------- node kinds

def _run_map(node: Node, values: Mapping[str, Array]) -> Array:
    assert node.body is not None
    out = np.empty(node.type.shape, dtype=NUMPY_DTYPES[node.type.dtype.name])
    if out.size == 0:
        return out
    for ranges in row_major_blocks(node.type.shape, BLOCK_ELEMENTS):
        box = tuple(slice(low, high) for low, high in ranges)
        out[box] = _Evaluator(values, _Domain(node.axes, ranges)).full(node.body)
    return out


Partial = tuple[Array, ...]


def _accumulator(dtype: DType) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype.is_float else NUMPY_DTYPES[dtype.name]


def _partial(monoid: str, x: Array, dtype: DType, offset: int) -> Partial:
    """The components of the elements along the last dimension, whose positions start at `offset`; floats in f64 where they are summed."""
    match monoid:
        case "sum":
            return (np.sum(x, axis=-1, dtype=_accumulator(dtype)),)
        case "prod":
            return (np.prod(x, axis=-1, dtype=_accumulator(dtype)),)
        case "max":
            return (np.max(x, axis=-1),)
        case "min":
            return (np.min(x, axis=-1),)
        case "any":
            return (np.any(x, axis=-1),)
        case "all":
            return (np.all(x, axis=-1),)
        case "argmax" | "argmin":
            at = np.argmax(x, axis=-1) if monoid == "argmax" else np.argmin(x, axis=-1)
            return np.take_along_axis(x, at[..., None], axis=-1)[..., 0], np.asarray(at, dtype=np.int64) + offset
        case "m2":
            wide = x.astype(np.float64)
            mean = np.mean(wide, axis=-1)
            return np.full(mean.shape, float(x.shape[-1])), mean, np.sum((wide - mean[..., None]) ** 2, axis=-1)
    raise InternalError(f"unknown monoid {monoid}")


def _combine(monoid: str, a: Partial, b: Partial) -> Partial:
    """Two partial results together, `a` of the earlier positions."""
    match monoid:
        case "sum":
            return (a[0] + b[0],)
        case "prod":
            return (a[0] * b[0],)
        case "max":
            return (np.maximum(a[0], b[0]),)
        case "min":
            return (np.minimum(a[0], b[0]),)
        case "any":
            return (a[0] | b[0],)
        case "all":
            return (a[0] & b[0],)
        case "argmax" | "argmin":
            better = (b[0] > a[0] if monoid == "argmax" else b[0] < a[0]) | (b[0] != b[0])
            take = better & (a[0] == a[0])
            return np.where(take, b[0], a[0]), np.where(take, b[1], a[1])
        case "m2":
            total = a[0] + b[0]
            delta = b[1] - a[1]
            return total, a[1] + delta * (b[0] / total), a[2] + b[2] + delta * delta * (a[0] * b[0] / total)
    raise InternalError(f"unknown monoid {monoid}")


def _run_reduce(node: Node, values: Mapping[str, Array], body_dtype: DType) -> Array:
    assert node.body is not None
    monoid = MONOIDS[node.detail]
    out = np.empty(node.type.shape, dtype=NUMPY_DTYPES[node.type.dtype.name])
    reduced = tuple(extent for _, extent in node.over)
    names = (*node.axes, *(name for name, _ in node.over))
    num_reduced = prod(reduced)
    if out.size == 0:
        return out
    if num_reduced == 0:
        empty = monoid.finish(monoid.identity(body_dtype), body_dtype)
        out[...] = empty.value
        return out
    for ranges in row_major_blocks(node.type.shape, BLOCK_ELEMENTS // num_reduced):
        box = tuple(slice(low, high) for low, high in ranges)
        shape = tuple(high - low for low, high in ranges)
        total: Partial | None = None
        offset = 0
        for inner in row_major_blocks(reduced, BLOCK_ELEMENTS):
            element = _Evaluator(values, _Domain(names, (*ranges, *inner))).full(node.body).reshape(*shape, -1)
            part = _partial(node.detail, element, body_dtype, offset)
            total = part if total is None else _combine(node.detail, total, part)
            offset += element.shape[-1]
        assert total is not None
        out[box] = total[-1].astype(out.dtype)
    return out


def _run_scan(node: Node, values: Mapping[str, Array]) -> Array:
    element = _run_map(node, values)
    d = node.axes.index(node.along)
    match node.detail:
        case "sum":
            return np.cumsum(element, axis=d, dtype=_accumulator(node.type.dtype)).astype(element.dtype)
        case "prod":
            return np.cumprod(element, axis=d, dtype=_accumulator(node.type.dtype)).astype(element.dtype)
        case "max":
            return np.maximum.accumulate(element, axis=d)
        case "min":
            return np.minimum.accumulate(element, axis=d)
        case "logaddexp":
            return np.logaddexp.accumulate(element, axis=d, dtype=_accumulator(node.type.dtype)).astype(element.dtype)
    raise InternalError(f"unknown monoid {node.detail}", where=f"%{node.name}")


_SCATTER_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _run_scatter(node: Node, values: Mapping[str, Array]) -> Array:
    """Elements in row-major order of the domain: of several that `set` one place, the last stays."""
    assert node.body is not None
    base = values[node.operands[0]]
    wide = node.detail in ("sum", "prod") and node.type.dtype.is_float
    out = base.astype(np.float64) if wide else base.copy()
    extents = tuple(extent for _, extent in node.over)
    if prod(extents) == 0 or out.size == 0:
        return base.copy()
    for ranges in row_major_blocks(extents, BLOCK_ELEMENTS):
        evaluator = _Evaluator(values, _Domain(tuple(name for name, _ in node.over), ranges))
        element = evaluator.full(node.body)
        at = [evaluator.full(t) for t in node.target]
        inside = np.ones(element.shape, dtype=np.bool_)
        for subscript, extent in zip(at, out.shape, strict=True):
            inside &= (subscript >= 0) & (subscript < extent)
        places = tuple(subscript[inside].astype(np.int64) for subscript in at)
        if node.detail == "set":
            out[places] = element[inside] if places else element[inside][-1]
        elif places:
            _SCATTER_UFUNCS[node.detail].at(out, places, element[inside])
        else:
            for one in element[inside]:
                out[()] = _SCATTER_UFUNCS[node.detail](out[()], one)
    return out.astype(base.dtype)


