"""`compile`: a Python function of arrays as one program for each form of its arguments.

    step(parameters, x)  --trace-->  graph  --compile-->  program        the next call with such arguments only runs it

Donated arguments give their memory to results of their type: the program then updates in place, as a training step should.
"""
from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch

from tilefuse.arrays.array import Array
from tilefuse.arrays.evaluation.donation import mark_donated, take_donated
from tilefuse.arrays.evaluation.evaluate import Evaluation, compute, strides_of
from tilefuse.arrays.evaluation.nan import checks_nan, find_nan
from tilefuse.arrays.functions.random import generator
from tilefuse.arrays.functions.writing import num_writes, write_whole, written_since
from tilefuse.arrays.graph import graph_of, nodes_outside, walking
from tilefuse.arrays.nodes import ArrayNode, Source, common_device, number_of_type, user_place, user_span
from tilefuse.arrays.tracing import Readings, function_name, is_tracing, tracing
from tilefuse.arrays.trees import flatten, num_leaves, unflatten
from tilefuse.base.bounded import Bounded
from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, present_device
from tilefuse.driver.graph_passes import AttributedGraph, apply_passes
from tilefuse.driver.lowering.product_precision import with_precision
from tilefuse.driver.pipeline import over_kernels
from tilefuse.ir.dtype import I64
from tilefuse.ir.graph import Graph, Type
from tilefuse.passes.manager import Pipeline
from tilefuse.plan.rewrites.updated_layouts import layouts_of_updated
from tilefuse.runtime.calls.library import as_complex

# Programs of one function; when there are more, it is called with ever new forms of arguments.
MOST_PROGRAMS = 512


@dataclass(frozen=True)
class Traced:
    """A function traced for one form of arguments.

    graph     donated inputs are updated; results are the other outputs
    leaves    what the graph's inputs stand for: placeholders of arguments, the random key, arrays from outside
    form      the results' tree; outputs: for each leaf of it (result number, -1) or (-1, argument that it takes over)
    readings  what was read of networks, whose arrays and modes may change
    outside   what the graph takes from outside of the function: it is traced again when an array of these was written to after
              `num_writes` writes
    written   arguments that the function writes to, each with the output that they are then
    """

    graph: Graph
    leaves: tuple[ArrayNode, ...]
    placeholders: tuple[Source, ...]
    key: Source | None
    form: Any
    types: tuple[Type, ...]
    outputs: tuple[tuple[int, int], ...]
    readings: Readings
    outside: tuple[ArrayNode, ...]
    num_writes: int
    written: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Outside:
    """An array that a network holds: read again at each call. number, device: the type and place the program is compiled for."""

    now: Callable[[], ArrayNode]
    number: int
    device: str

    def is_as_before(self) -> bool:
        """Whether the object still has an array of the traced type and device."""
        node = self.now()
        return node.type_number == self.number and node.device == self.device


@dataclass
class _Entry:
    """A compiled form. sources: for each program input the argument's number, None for the key, or the array from outside."""

    traced: Traced
    program: Any
    sources: tuple[int | ArrayNode | _Outside | None, ...]
    donated: tuple[int, ...]
    consumed: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    device: str
    type_numbers: tuple[int, ...] = ()
    run: Any = None
    fixed: tuple[Any, ...] = ()
    guard: Any = field(default_factory=threading.Lock)
    # Of the outputs, those that the function returns: arguments that it wrote to follow.
    num_returned: int = 0
    # Number of writes to arrays at the time when `outside` was checked.
    seen_writes: int = -1
    # Whether the program has pairs of reals where an array is complex.
    is_complex: bool = False
    # The same arguments with a network in another mode (training and not), or with arrays of other types.
    other: _Entry | None = None
    # Attributes that the caller's passes left on the graph.
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def holds(self) -> bool:
        """Whether the networks that the function reads are in the state for which it was traced, but for the data of their arrays, and
        other arrays from outside were not written to."""
        writes = num_writes()
        if self.seen_writes != writes:
            if any(written_since(n, self.traced.num_writes) for n in self.traced.outside):
                return False
            self.seen_writes = writes
        return (all(now() == then for now, then in self.traced.readings.settings.values())
                and all(s.is_as_before() for s in self.sources if type(s) is _Outside))


class Compiled:
    """A compiled function: called like the function it was made of, on arrays, torch tensors and numpy arrays in any nesting."""

    def __init__(self, fn: Callable[..., Any], donate: Sequence[int] | int, device: Any, options: dict[str, Any]) -> None:
        self.function = fn
        self.__name__ = function_name(fn)
        self.__doc__ = fn.__doc__
        self.donate = tuple(donate) if isinstance(donate, (tuple, list)) else (donate,)
        if any(type(n) is not int or n < 0 for n in self.donate):
            raise UserError(f"donate= takes positions of arguments, 0 for the first, not {donate!r}", where=user_span())
        self._device = None if device is None else Evaluation.device_named(device)
        # A text is the compiler's own pipeline, an option; a list names passes that run before it.
        listed = options.get("passes", "")
        self._passes: tuple[str, ...] = () if isinstance(listed, str) else tuple(listed)
        if not isinstance(listed, str):
            options = {name: value for name, value in options.items() if name != "passes"}
        self._options = Options.from_environment().with_overrides(**options)
        self._entries: Bounded[tuple[Any, ...], _Entry] = Bounded(MOST_PROGRAMS)
        self._names = _parameter_names(fn)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if is_tracing():
            return self.function(*args, **named)
        leaves: list[Any] = []
        form = self._form(args, named, leaves)
        entry, nodes = self._entry(args, named, form, leaves)
        if not entry.traced.written:
            return unflatten(entry.traced.form, iter(self._run(entry, nodes)))
        targets = [_target(self.__name__, leaves, n) for n in entry.traced.written]
        results = self._run(entry, nodes)
        for target, output in zip(targets, entry.traced.written.values(), strict=True):
            write_whole(target, results[output])
        return unflatten(entry.traced.form, iter(results[:entry.num_returned]))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance is the first argument, a setting like any object that is no array."""
        return self if instance is None else partial(self, instance)

    def view(self, path: Any = None, *, show: bool = False) -> Any:
        """Writes one page with the programs made so far and returns its path, as `Program.view`.

        Raises: UserError where there is no program yet.
        """
        from tilefuse.runtime.page import running_data, write_page

        programs = self.programs
        if not programs:
            raise UserError("the function has no program yet", hint="programs are made for the arguments of a call: call it once")
        pages = [running_data(p, label=f"{p.spec.name} {n}") for n, p in enumerate(programs, 1)]
        return write_page(programs[0].spec.name, pages, path, show=show)

    @property
    def programs(self) -> tuple[Any, ...]:
        """The programs made so far (`runtime.program.Program`), one for each form of arguments."""
        return tuple(e.program for first in self._entries.values() for e in (first, first.other) if e is not None)

    @property
    def attributes(self) -> tuple[Mapping[str, Any], ...]:
        """Attributes that the passes of `passes=[...]` left on the graph of each of `programs`."""
        return tuple(e.attributes for first in self._entries.values() for e in (first, first.other) if e is not None)

    def lower(self, *args: Any, **named: Any) -> Graph:
        """The graph of a call with such arguments, without compiling or running it."""
        leaves: list[Any] = []
        paths: list[str] = []
        form = self._form(args, named, leaves, paths)
        return self._trace(form, self._nodes(leaves), paths, args).graph

    def program_of(self, *args: Any, **named: Any) -> Any:
        """The program for such arguments, compiled and not run."""
        leaves: list[Any] = []
        form = self._form(args, named, leaves)
        return self._entry(args, named, form, leaves)[0].program

    # Calls

    def _form(self, args: tuple[Any, ...], named: dict[str, Any], leaves: list[Any], paths: list[str] | None = None) -> Any:
        if paths is None:
            parts = tuple([flatten(a, leaves) for a in args])
            return parts, flatten(named, leaves) if named else None
        names = [self._names[n] if n < len(self._names) else f"x{n}" for n in range(len(args))]
        parts = tuple([flatten(a, leaves, name, paths) for a, name in zip(args, names, strict=True)])
        return parts, flatten(named, leaves, "", paths) if named else None

    def _nodes(self, leaves: Sequence[Any]) -> list[ArrayNode]:
        nodes: list[ArrayNode] = [x.node if x.__class__ is Array or isinstance(x, Array) else Evaluation.source(x, None, None, None)
                                  for x in leaves]
        pending = [n for n in nodes if n.buffer is None]
        if pending:
            compute(pending)
        if self._device is not None:
            nodes = [n if n.device == self._device else Evaluation.moved(n, self._device, False) for n in nodes]
        return nodes

    def _entry(self, args: tuple[Any, ...], named: dict[str, Any], form: Any, leaves: Sequence[Any]) -> tuple[_Entry, list[ArrayNode]]:
        nodes = self._nodes(leaves)
        devices = {n.device for n in nodes}
        key = (form, tuple([n.type_number for n in nodes]), devices.pop() if len(devices) == 1 else tuple([n.device for n in nodes]))
        entry = self._entries.get(key)
        if entry is not None and not entry.holds():
            entry = entry.other if entry.other is not None and entry.other.holds() else None
        if entry is None:
            paths: list[str] = []
            self._form(args, named, [], paths)
            entry = self._compile(self._trace(form, nodes, paths, args), nodes, args)
            first = self._entries.put(key, entry)
            if first is not entry:
                first.other = entry
        return entry, nodes

    def _run(self, entry: _Entry, nodes: list[ArrayNode]) -> list[Array]:
        buffers = [n.buffer for n in nodes]
        if entry.donated:
            recorded = entry.run.recorded_in_place() if entry.is_complex and entry.run is not None else ()
            take_donated(entry.donated, entry.strides, buffers, recorded)
        inputs: list[Any] = []
        for source in entry.sources:
            if isinstance(source, int):
                inputs.append(buffers[source])
            elif source is None:
                inputs.append(Evaluation.source(np.asarray([generator.next_number()], np.int64), I64, entry.device, None).buffer)
            else:
                node = source.now() if isinstance(source, _Outside) else source
                if node.buffer is None:
                    compute((node,))
                inputs.append(node.buffer)
        traced = entry.traced
        if checks_nan():
            find_nan(traced.graph, inputs, entry.device, self._options)
        results = self._results(entry, inputs)
        if entry.consumed:
            mark_donated([nodes[n] for n in entry.consumed], self.__name__, user_place())
        arrays: list[Array] = []
        taken = {id(b) for b in inputs}
        for (number, argument), of, type_number in zip(traced.outputs, traced.types, entry.type_numbers):
            tensor = buffers[argument] if argument >= 0 else results[number]
            if argument < 0:
                tensor = as_complex(tensor) if of.dtype.is_complex else tensor
                if id(tensor) in taken:
                    tensor = tensor.detach()  # arrays do not share a tensor object, so that donating one is seen by the other
                taken.add(id(tensor))
            arrays.append(Array(Source(of, entry.device, tensor, "", "data", type_number)))
        return arrays

    def _results(self, entry: _Entry, inputs: list[Any]) -> list[Any]:
        """Results of one call. inputs: tensors of the program's inputs, complex ones as they are."""
        arguments = [torch.view_as_real(x) if x.is_complex() else x for x in inputs] if entry.is_complex else inputs
        if not (self._options.cuda_graph and entry.program.device.type == "cuda"):
            results: list[Any] = entry.program(*arguments)
            return results
        with entry.guard:
            return self._replayed(entry, inputs, arguments)

    def _replayed(self, entry: _Entry, inputs: list[Any], arguments: list[Any]) -> list[Any]:
        """Results of a recorded call. arguments: `inputs`, pairs of reals in place of complex tensors."""
        if entry.run is None:
            names = entry.program.spec.inputs
            unmoved = [name for name, s in zip(names, entry.sources) if (s in entry.donated if type(s) is int else s is not None)]
            entry.run = entry.program.capture(*arguments, zero_copy=unmoved, copy_results=True)
        # The same tensors in the same places: a training step that gets its own results back. Views of complex tensors are new each time.
        fixed = tuple([inputs[i] for i in entry.run.zero_copy])
        same = len(fixed) == len(entry.fixed) and all(map(is_, fixed, entry.fixed))
        if same and all(arguments[i].device == entry.program.device for i in entry.run.copied):
            with torch.cuda.device(entry.program.device):
                results: list[Any] = entry.run.again(arguments)
        else:
            results = entry.run(*arguments)
        entry.fixed = fixed
        return results

    # Tracing and compiling

    def _trace(self, form: Any, nodes: Sequence[ArrayNode], paths: Sequence[str], args: tuple[Any, ...]) -> Traced:
        device = self._device or (common_device(nodes) if nodes else Evaluation.default_device())
        own = tuple(Source(n.type, device, None, path, "placeholder") for n, path in zip(nodes, paths, strict=True))
        key = Source(Type(I64, (1,)), device, None, "random_key", "placeholder")
        parts, named = form
        with tracing(self.__name__, (*own, key)) as readings, generator.tracing(Array(key)) as draws:
            handles = [Array(p) for p in own]
            rest = iter(handles)
            arguments = [unflatten(part, rest) for part in parts]
            keywords = {} if named is None else unflatten(named, rest)
            result = self.function(*arguments, **keywords)
        outputs: list[Any] = []
        out_form = flatten(result, outputs)
        arrays = [x if isinstance(x, Array) else Array(Evaluation.source(x, None, device, None)) for x in outputs]
        written = {n: handle for n, (handle, source) in enumerate(zip(handles, own, strict=True)) if handle.node is not source}
        if not arrays and not written:
            raise UserError(f"{self.__name__} gives no array, so there is nothing to compile", where=user_span(),
                            hint="return the arrays that it computes")
        places = {array.node: n for n, array in reversed(list(enumerate(arrays)))}
        for handle in written.values():
            if places.setdefault(handle.node, len(arrays)) == len(arrays):
                arrays.append(Array(handle.node))
        with walking:
            graph, leaves = _in_argument_order(*graph_of(arrays, _graph_name(self.__name__)), own)
            outside = nodes_outside(arrays, {*own, key})
        after = {n: places[handle.node] for n, handle in written.items()}
        pairs = self._pairs(form, out_form, own, arrays, args, after)
        results, updates, taken = self._updated(graph, leaves, own, pairs)
        captured = tuple(n for n in outside if n not in readings.arrays)
        return Traced(replace(graph, results=results, updates=updates), leaves, own, key if draws.num_drawn else None, out_form,
                      tuple(a.node.type for a in arrays), taken, readings, captured, num_writes(), after)

    def _updated(self, graph: Graph, leaves: tuple[ArrayNode, ...], own: tuple[Source, ...],
                 pairs: dict[int, int]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[tuple[int, int], ...]]:
        """(results, updates, outputs) of the graph with donated inputs updated by the outputs that take them over."""
        name_of = {leaf: i.name for leaf, i in zip(leaves, graph.inputs, strict=True)}
        results: list[str] = []
        updates: list[tuple[str, str]] = []
        outputs: list[tuple[int, int]] = []
        for number, value in enumerate(graph.results):
            target = name_of.get(own[pairs[number]]) if number in pairs else None
            if target is not None and target != value:
                updates.append((target, value))
                outputs.append((-1, pairs[number]))
            elif number in pairs and target is not None:
                outputs.append((-1, pairs[number]))  # given back as it came
            else:
                outputs.append((len(results), -1))
                results.append(value)
        return tuple(results), tuple(updates), tuple(outputs)

    def _pairs(self, form: Any, out_form: Any, own: Sequence[Source], arrays: Sequence[Array], args: tuple[Any, ...],
               written: Mapping[int, int]) -> dict[int, int]:
        """Output number -> donated argument leaf that it takes over: what the leaf is after writes to it, then parts of the results of a
        donated argument's form, then whatever has the type."""
        spans, at = [], 0
        for part in form[0]:
            spans.append((at, at + num_leaves(part)))
            at = spans[-1][1]
        donated = [n for n in self.donate if n < len(spans)]
        if len(donated) < len(self.donate) and len(args) == len(spans):
            raise UserError(f"argument {max(self.donate)} of {self.__name__} is donated, and there are {len(args)}", where=user_span())
        free = {leaf for n in donated for leaf in range(*spans[n])}
        pairs: dict[int, int] = {}
        for leaf, output in written.items():
            if leaf in free and output not in pairs:
                pairs[output] = leaf
                free.discard(leaf)
        pieces = list(enumerate_parts(out_form))
        for n in donated:
            low, high = spans[n]
            for place, part in pieces:
                fits = part == form[0][n] and not any(place + k in pairs or low + k not in free for k in range(high - low))
                if fits and all(arrays[place + k].node.type == own[low + k].type for k in range(high - low)):
                    pairs.update({place + k: low + k for k in range(high - low)})
                    free -= set(range(low, high))
                    break
        for number, array in enumerate(arrays):
            if number not in pairs:
                match = next((leaf for leaf in sorted(free) if own[leaf].type == array.node.type), None)
                if match is not None:
                    pairs[number] = match
                    free.discard(match)
        return pairs

    def _compile(self, traced: Traced, nodes: Sequence[ArrayNode], args: tuple[Any, ...]) -> _Entry:
        graph = traced.graph
        device = self._device or (common_device(nodes) if nodes else Evaluation.default_device())
        place_of: dict[ArrayNode | None, int | None] = {leaf: n for n, leaf in enumerate(traced.placeholders)}
        place_of[traced.key] = None
        again = traced.readings.arrays
        sources: list[int | ArrayNode | _Outside | None] = [
            place_of[leaf] if leaf in place_of else _Outside(again[leaf], leaf.type_number, leaf.device) if leaf in again else leaf
            for leaf in traced.leaves]
        passed, attributes = self._after_passes(graph, device) if self._passes else (graph, {})
        precise = with_precision(passed, self._options.float32_products)
        chosen_layouts = layouts_of_updated(precise, present_device(device)[0], self._options)
        layouts: dict[str, tuple[int, ...]] = dict(chosen_layouts)
        consumed = self._consumed(traced, args)
        strides: list[tuple[int, ...]] = []
        donated = [n for n in consumed if any(argument == n for _, argument in traced.outputs)]
        name_of = {s: i.name for s, i in zip(sources, graph.inputs, strict=True) if isinstance(s, int)}
        for n in donated:
            chosen = chosen_layouts.get(name_of.get(n, ""))
            if chosen is not None and nodes[n].type.dtype.is_complex:
                chosen = tuple([s // 2 for s in chosen[:-1]])
            strides.append(chosen or _dense(nodes[n].type.shape))
        for number, name in name_of.items():
            buffer = nodes[number].buffer
            if number not in donated and not buffer.is_contiguous() and 0 not in buffer.stride():
                layouts[name] = strides_of(buffer)
        constants = dict(attributes.get("constants", {}))
        program = compile_graph(passed, constants=constants, input_layouts=layouts, device=device, options=self._options,
                                result_layouts={v: chosen_layouts[t] for t, v in passed.updates if t in chosen_layouts})
        return _Entry(traced, program, tuple(sources), tuple(donated), consumed, tuple(strides), device,
                      tuple(map(number_of_type, traced.types)), num_returned=num_leaves(traced.form), attributes=attributes,
                      is_complex=any(leaf.type.dtype.is_complex for leaf in traced.leaves))

    def _after_passes(self, graph: Graph, device: str) -> tuple[Graph, Mapping[str, Any]]:
        """The traced graph after the passes that the caller named, and its attributes.

        Raises: UserError for passes that make kernels, and where the graph takes or gives something else then.
        """
        if over_kernels(Pipeline.parse(",".join(self._passes))):
            raise UserError(f"compile({self.__name__}) makes kernels by itself, after the passes {', '.join(self._passes)}",
                            where=user_span(), hint="passes over kernels run in tilefuse.apply_passes")
        spec, place = present_device(device)
        rewritten = apply_passes(AttributedGraph(graph, spec, place, self._options, {"constants": {}, "leaves": ()}), self._passes)
        after = rewritten.graph
        own = [i for i in after.inputs if i.name not in rewritten["constants"]]
        has_inputs = [(i.name, i.type) for i in own] == [(i.name, i.type) for i in graph.inputs]
        if not has_inputs or [after.type_of(r) for r in after.results] != [graph.type_of(r) for r in graph.results] \
                or [t for t, _ in after.updates] != [t for t, _ in graph.updates]:
            raise UserError(f"after the passes {', '.join(self._passes)} the graph of {self.__name__} has other inputs or results",
                            where=user_span(), hint="a pass may change the computation, not the arguments and results of a call")
        return after, rewritten.attributes

    def _consumed(self, traced: Traced, args: tuple[Any, ...]) -> tuple[int, ...]:
        """Numbers of all leaves of donated arguments."""
        donated: list[int] = []
        at = 0
        for n, arg in enumerate(args):
            leaves: list[Any] = []
            flatten(arg, leaves)
            if n in self.donate:
                donated.extend(range(at, at + len(leaves)))
            at += len(leaves)
        return tuple(donated)


def _in_argument_order(graph: Graph, leaves: tuple[ArrayNode, ...], own: Sequence[Source]) -> tuple[Graph, tuple[ArrayNode, ...]]:
    """The graph with arguments as its first inputs, in their order; arrays from outside follow."""
    place_of: dict[ArrayNode, int] = {leaf: n for n, leaf in enumerate(own)}
    order = sorted(range(len(leaves)), key=lambda n: (place_of.get(leaves[n], len(own)), n))
    return replace(graph, inputs=tuple(graph.inputs[n] for n in order)), tuple(leaves[n] for n in order)


def _no_target(name: str, kind: str) -> UserError:
    return UserError(f"{name} writes to an argument, and a {kind} is given for it", where=user_span(),
                     hint="give an array: asarray(x, copy=True)")


def _target(name: str, leaves: Sequence[Any], number: int) -> Array:
    """The caller's array that a call writes to. Raises: UserError where it is no array, or is passed for several arguments."""
    target = leaves[number]
    if not isinstance(target, Array):
        raise _no_target(name, type(target).__name__)
    if isinstance(target.node, Source) and target.node.role != "data":
        raise _no_target(name, target.node.role)
    if sum(leaf is target for leaf in leaves) > 1:
        raise UserError(f"{name} writes to an argument, and the same array is given for another one too", where=user_span(),
                        hint="give a copy for one of them: asarray(x, copy=True)")
    return target


def enumerate_parts(form: Any, at: int = 0) -> Any:
    """(number of its first leaf, form) of every part of a tree's form, larger parts first."""
    yield at, form
    if form != "*" and form[0] != "=":
        for part in form[-1]:
            yield from enumerate_parts(part, at)
            at += num_leaves(part)


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _graph_name(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).strip("_") or "function"


def _parameter_names(fn: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def compile(fn: Callable[..., Any] | None = None, *, donate: Sequence[int] | int = (), device: Any = None, **options: Any) -> Any:
    """A compiled function of arrays, or a decorator that makes one.

    fn is traced once for each form, types and shapes of its arguments; arguments that are no arrays (numbers, strings, None) are
    settings and make other programs. passes: names of passes that run over the traced graph before the compiler's own
    (`tilefuse.graph_pass`, rewriting passes); `.attributes` has what they left.
    donate: numbers of arguments whose memory results may take over; these arrays cannot be used afterwards.
    device: where it runs; default: where its arguments lie. options: fields of `Options` (fuse, cuda_graph, ...).
    Raises: UserError, with the line, where Python control flow needs an array's value; errors of the compiler.
    """
    if fn is None:
        return lambda function: Compiled(function, donate, device, options)
    if not callable(fn):
        raise UserError(f"compile takes a function of arrays, not a {type(fn).__name__}", where=user_span(),
                        hint="tilefuse.compile takes models and graphs")
    return Compiled(fn, donate, device, options)
