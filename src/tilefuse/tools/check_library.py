"""The checker of libraries of elementary functions: errors in metadata and routines, in the terms of their authors.

Metadata are read as usual. Then every routine is compiled for the host and called alone: a load must fill each thread's slots as its place
defines, `compute` must return the function's meaning, a store must write exactly its words. No GPU is needed.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilefuse.base.errors import CompilerError
from tilefuse.ir.affine import evaluate
from tilefuse.ir.dtype import F64
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.scripts.language.elementary import (
    CallGraph,
    ComposedFunction,
    ElementaryFunction,
    FunctionCall,
    Implementation,
    Parameter,
    ThreadMapping,
    Variable,
)
from tilefuse.scripts.language.lower import resolve
from tilefuse.scripts.language.meaning import graph_of_calls
from tilefuse.scripts.language.metadata import METADATA, Slip
from tilefuse.scripts.language.routine_library import AnyFunction, library_slips, read_library
from tilefuse.scripts.language.syntax import parse_script
from tilefuse.tools.routine_calls import Array, Routines, RoutineText, build, words_of

# Contents of memory where no routine has written.
UNTOUCHED = -77777.0
# Words behind each thread's part of an element that routines must leave alone: 16 bytes or 32, so that parts stay aligned.
GUARD = 4
# Roundings that a word of a result may collect beyond one for each term that it sums.
ROUNDINGS = 16


def check_library(folder: str | os.PathLike[str], functions: Sequence[str] = (), every_geometry: bool = True) -> list[Slip]:
    """Everything that is wrong with the functions of a library (all, or those named); an empty list means that it can be used.

    every_geometry: all that the metadata list; else the first and the last of each implementation.
    Raises: ToolchainError when there is no C++ compiler.
    """
    slips = library_slips(folder)
    if slips:
        return list(slips)
    library = read_library(folder, shipped=False)

    def is_named(function: AnyFunction) -> bool:
        return not functions or function.name in functions or function.called in functions

    composed = [s for c in library.composed.values() if is_named(c) for s in _composed(c, folder)]
    named = [f for f in library.functions.values() if is_named(f)]
    texts = [t for f in named for t in _texts(f, every_geometry)]
    built = build(texts)
    if isinstance(built, str):
        return [*composed, *_refused(texts)]
    slip_set: dict[Slip, None] = dict.fromkeys(composed)
    for routines in built:
        slip_set.update(dict.fromkeys(_Check(routines).findings()))
    return list(slip_set)


def _composed(function: ComposedFunction, folder: str | os.PathLike[str]) -> Iterator[Slip]:
    """Errors in the calls that a function is composed of, detected by a script of one call of it."""
    declared = "".join(f"{p.kind} {p.name}; " for p in function.inputs)
    names, results = (", ".join(p.name for p in ps) for ps in (function.inputs, function.outputs))
    text = f"{declared}input {names}; {results} = {function.called or function.name}({names}); return {results};"
    try:
        resolve(parse_script(text, function.name), read_library(folder))
    except CompilerError as error:
        yield Slip(str(Path(function.origin) / METADATA), f"calls.{function.dtype}", error.message, error.hint or "")


def _texts(function: ElementaryFunction, every_geometry: bool) -> Iterator[RoutineText]:
    """The implementations to try; the first geometry of each also with strided data."""
    groups: dict[str, list[Implementation]] = {}
    for implementation in function.implementations:
        groups.setdefault(implementation.name.split()[0], []).append(implementation)
    for geometries in groups.values():
        ends = geometries[:1] + geometries[1:][-1:]
        for implementation in geometries if every_geometry else ends:
            yield RoutineText(function, implementation, True)
        yield RoutineText(function, geometries[0], False)


def _refused(texts: Sequence[RoutineText]) -> list[Slip]:
    """The compiler's first words about each file that it refuses."""
    slip_by_file: dict[str, Slip] = {}
    for text in texts:
        if text.implementation.file in slip_by_file or isinstance(log := build([text]), tuple):
            continue
        errors = [line for line in log.splitlines() if "error" in line] or log.splitlines()[:1]
        file = text.implementation.file
        slip_by_file[file] = Slip(file, "", f"does not compile: {errors[0]}", "macros and helpers of routines: docs/blas.md")
    return list(slip_by_file.values())


@dataclass
class _Check:
    """One implementation, tried at sizes that fill the tile, leave part of it, and hold one word."""

    routines: Routines

    def __post_init__(self) -> None:
        self.text = self.routines.text
        self.function, self.implementation = self.text.function, self.text.implementation
        self.dtype: np.dtype[Any] = NUMPY_DTYPES[self.function.dtype.name]
        self.random = np.random.default_rng(0)

    def slip(self, routine: str, message: str, remedy: str) -> Slip:
        """An error of the implementation, with its remedy."""
        name = self.implementation.routines.get(routine, routine)
        return Slip(self.implementation.file, f"{name} ({self.implementation.name})", message, remedy)

    def findings(self) -> Iterator[Slip]:
        """Findings of places, loads, stores and computations, the first of each kind."""
        for p in (*self.function.inputs, *self.function.outputs):
            if p.extents:
                tile = self.tile(p)
                gap = self.gap(p)
                if gap is not None:
                    yield gap
                    return
                for shape, at in _situations(tile):
                    finding = self.load(p, shape, at) if p in self.function.inputs else self.store(p, shape, at)
                    if finding is not None:
                        yield finding
                        break
        unneutral = None if self.function.state else self.unneutral()
        wrong = [unneutral] if unneutral is not None else list(self.compute())
        if not wrong and self.function.state and (unneutral := self.unneutral_state()) is not None:
            wrong = [unneutral]
        yield from wrong

    def tile(self, p: Parameter) -> tuple[int, ...]:
        """Extents of a parameter's part in a tile."""
        return tuple(self.implementation.geometry.extents[e] for e in p.extents)

    # -- places

    def words(self, p: Parameter) -> tuple[Array, ...]:
        """Coordinates of each word of the element's memory (thread-major, or shared); -1 where padding of a pitch lies."""
        place = self.implementation.places[p.name]
        if isinstance(place, ThreadMapping):
            bx, by = self.implementation.geometry.threads
            grids = np.meshgrid(np.arange(by), np.arange(bx), *(np.arange(s) for s in place.slots), indexing="ij")
            values = dict(zip(("ty", "tx", *(f"s{n}" for n in range(len(place.slots)))), grids, strict=True))
            return tuple(np.broadcast_to(evaluate(a, values), grids[0].shape).reshape(-1) for a in place.at)
        tile = self.tile(p)
        if len(tile) == 1:
            return (np.arange(tile[0]),)
        rows, columns = np.meshgrid(np.arange(tile[0]), np.arange(tile[1] + place.pad), indexing="ij")
        return rows.reshape(-1), np.where(columns < tile[1], columns, -1).reshape(-1)

    def gap(self, p: Parameter) -> Slip | None:
        """A word of the tile that no thread's slots have."""
        covered = np.zeros(self.tile(p), np.bool_)
        where = self.words(p)
        inside = np.all([(w >= 0) & (w < n) for w, n in zip(where, covered.shape, strict=True)], axis=0)
        covered[tuple(w[inside] for w in where)] = True
        if covered.all():
            return None
        word = [int(i) for i in np.argwhere(~covered)[0]]
        return Slip(str(Path(self.function.origin) / METADATA), f"places.{p.name} ({self.implementation.name})",
                    f"no thread holds word {word} of the tile of {p.name} {list(covered.shape)}",
                    "make `tile` and the slots with their coordinates agree")

    def gathered(self, p: Parameter, data: Array, at: Sequence[int]) -> Array:
        """Contents that the element's memory should have of data: its words, or the padding."""
        where = self.words(p)
        own = [w + a for w, a in zip(where, at, strict=True)]
        inside = np.all([o < n for o, n in zip(own, data.shape, strict=True)], axis=0)
        clamped = tuple(np.minimum(o, n - 1) for o, n in zip(own, data.shape, strict=True))
        contents = np.where(inside, data[clamped], self.routines.padding(p.name)).astype(self.dtype)
        contents[np.any([w < 0 for w in where], axis=0)] = UNTOUCHED
        return contents

    def place_of(self, p: Parameter, word: int) -> str:
        """Which word of an element's memory this is, in the library's terms."""
        place = self.implementation.places[p.name]
        if not isinstance(place, ThreadMapping):
            return f"e[{word}]"
        thread, slot = divmod(word, place.words)
        bx = self.implementation.geometry.threads[0]
        return f"e[{slot}] of thread tx = {thread % bx}, ty = {thread // bx}"

    def memory(self, p: Parameter, data: Array) -> tuple[Array, Array, tuple[int, ...]]:
        """(memory with room around, the data's view of it, strides in words): dense rows of 16-byte multiples, or every third word.

        A tile that begins at the last word ends inside the buffer: a routine that ignores the ends of the data is reported, and corrupts
        nothing.
        """
        step = 1 if self.text.contiguous else 3
        row = (data.shape[-1] + 3) // 4 * 4 * step + (0 if self.text.contiguous else 1)
        strides = (row, step) if data.ndim == 2 else (step,)
        room = sum(t * s for t, s in zip(self.tile(p), strides, strict=True)) + 64
        whole = np.full(2 * room + row * (data.shape[0] if data.ndim == 2 else 1), UNTOUCHED, self.dtype)
        start = (-whole.ctypes.data % 16) // self.dtype.itemsize + room // 16 * 16
        view = np.lib.stride_tricks.as_strided(whole[start:], data.shape, tuple(s * self.dtype.itemsize for s in strides))
        return whole, view, strides

    def guarded(self, p: Parameter, value: float) -> tuple[Array, Array, tuple[Array, ...], int]:
        """(an element's memory filled with a value; its words, one row a thread; those behind each row and behind all, which no routine may
        write; words from one thread's part to the next)."""
        total, pitch = words_of(self.text, p)
        rows = total // pitch if pitch else 1
        words = total // rows
        # After the last part, as much space again: a routine with a wrong size is reported, and corrupts nothing.
        whole = np.full(rows * (words + GUARD) + total + 64, UNTOUCHED, self.dtype)
        parts, rest = np.split(whole, [rows * (words + GUARD)])
        each = parts.reshape(rows, words + GUARD)
        each[:, :words] = value
        return whole, each[:, :words], (each[:, words:], rest), words + GUARD if pitch else 0

    def overrun(self, routine: str, p: Parameter) -> Slip:
        """That a routine writes behind the memory of an element."""
        total, pitch = words_of(self.text, p)
        room = f"{pitch} a thread" if pitch else f"{total} in shared memory"
        return self.slip(routine, f"words behind the element of {p.name} are written: it has {room}",
                         f"write WORDS_{p.name} words a thread, or the tile's rows of PITCH_{p.name} words in shared memory")

    # -- neutral elements

    def unneutral(self) -> Slip | None:
        """Whether `neutral` changes a value that it is brought together with: tried on extremes, on small numbers and on whole ones."""
        function = self.function
        if not function.kind.reduces:
            return None
        start = np.asarray(self.routines.start(), self.dtype)
        limits = np.finfo(self.dtype)
        values = [0.0, 1.0, -3.0, float(limits.tiny), -float(limits.tiny), float(limits.max), -float(limits.max), np.inf, -np.inf]
        with np.errstate(invalid="ignore", over="ignore"):
            combined = {v: _COMBINES[function.operator](np.asarray(v, self.dtype), start) for v in values}
        wrong = next((v for v in values if combined[v] != np.asarray(v, self.dtype)), None)
        if wrong is None:
            return None
        return Slip(str(Path(function.origin) / METADATA), "neutral",
                    f"{function.neutral} is {start:g} and not neutral: brought together with {wrong:g} by {function.operator} it gives "
                    f"{combined[wrong]:g}", f"an element that leaves every value as it is: {_NEUTRAL[function.operator]}")

    def unneutral_state(self) -> Slip | None:
        """Whether the neutral partial value, combined before or after another, changes the other's final result."""
        function, sizes = self.function, dict(self.implementation.geometry.extents)
        threads = self.implementation.geometry.threads[0] * self.implementation.geometry.threads[1]
        if set(function.meaning) != {p.name for p in function.outputs} or any(p.extents for p in function.outputs):
            return None
        for alike in (None, -3.0, 3.0, *self.extremes()):
            inputs = {p.name: self.drawn(tuple(sizes[e] for e in p.extents), alike) if p.extents else np.asarray(2.0, self.dtype)
                      for p in function.inputs}
            expected = meaning_of(function, sizes, inputs)
            state, out = self.states(inputs, threads)
            if state is None:
                return None
            each = self.routines.state_bytes()
            alone = state.copy()
            self.routines.fold(alone, threads, out)
            plain = out.copy()
            for name, place in (("in front", 0), ("behind", threads)):
                with_neutral = np.insert(state.reshape(threads, each), place, self.neutral_state(each), axis=0).reshape(-1)
                self.routines.fold(with_neutral, threads + 1, out)
                p = function.outputs[0]
                changed = out != plain and not (np.isnan(out) and np.isnan(plain))
                # A state that starts from a value that is not neutral has absorbed larger values before anything is combined.
                swallowed = alike is not None and np.isfinite(plain) and np.isfinite(expected[p.name]) and \
                    abs(float(plain) - float(expected[p.name])) > 0.5 * abs(float(expected[p.name]))
                if changed or swallowed:
                    data = "drawn numbers" if alike is None else f"words that are all {alike:g}"
                    return Slip(str(Path(function.origin) / METADATA), "neutral",
                                f"{function.neutral} is not neutral: with {data}, {name} of the partial values, {p.name} is {out:g}, and "
                                f"{expected[p.name] if swallowed else plain:g} without it",
                                "a partial value that `combine` leaves others by")
        return None

    def extremes(self) -> tuple[float, ...]:
        """Numbers whose squares and sums over a tile are finite still, large and small."""
        root = float(np.finfo(self.dtype).max) ** 0.4
        return (root, -root, 1 / root)

    def neutral_state(self, each: int) -> Array:
        """The neutral partial value as bytes."""
        state = np.zeros(each, np.uint8)
        self.routines.neutral(state, 1)
        return state

    def states(self, inputs: dict[str, Array], threads: int) -> tuple[Array | None, Array]:
        """Partial values of all threads for one whole tile of this data, and space for their final results."""
        function = self.function
        elements = [self.gathered(p, inputs[p.name], (0,) * len(p.extents)) for p in function.inputs if p.extents]
        pitches = [words_of(self.text, p)[1] for p in function.inputs if p.extents]
        p = function.outputs[0]
        total, pitch = words_of(self.text, p)
        out = np.zeros((), NUMPY_DTYPES[(p.dtype or function.dtype).name])
        if total != threads:
            return None, out
        state = np.zeros(total * self.routines.state_bytes(), np.uint8)
        self.routines.neutral(state, total)
        scalars = np.asarray([inputs[q.name] for q in function.inputs if not q.extents], self.dtype)
        self.routines.compute([*elements, state], [*pitches, pitch], scalars, (0,) * len(function.sizes))
        return state, out

    # -- routines

    def load(self, p: Parameter, shape: tuple[int, ...], at: tuple[int, ...]) -> Slip | None:
        """Whether each slot holds the word that its place says."""
        data = (np.arange(np.prod(shape)) % 9973 + 1).reshape(shape).astype(self.dtype)
        _, view, strides = self.memory(p, data)
        view[...] = data
        memory, own, beyond, pitch = self.guarded(p, UNTOUCHED)
        self.routines.access(f"load {p.name}", view, strides, memory, pitch, at, shape)
        element = own.reshape(-1)
        if _touched(beyond):
            return self.overrun(f"load {p.name}", p)
        expected = self.gathered(p, data, at)
        wrong = np.flatnonzero(~((element == expected) | np.isnan(element) & np.isnan(expected)))
        wrong = wrong[expected[wrong] != UNTOUCHED]
        if not wrong.size:
            return None
        word = int(wrong[0])
        coordinate = tuple(int(w[word]) + a for w, a in zip(self.words(p), at, strict=True))
        inside = all(c < n for c, n in zip(coordinate, shape, strict=True))
        here = f"word {list(coordinate)} of {p.name}"
        said = here if inside else f"the padding, as {here} {list(shape)} is outside the data"
        actual = "nothing" if element[word] == UNTOUCHED else f"{element[word]:g}"
        return self.slip(f"load {p.name}", f"{self.place_of(p, word)} should hold {said} ({expected[word]:g}), it holds {actual}",
                         f"make the routine and places.{p.name} agree; words outside the data get PAD_{p.name}")

    def store(self, p: Parameter, shape: tuple[int, ...], at: tuple[int, ...]) -> Slip | None:
        """Whether the words of the tile, and no others, are written, each by the first thread that holds it."""
        total, pitch = words_of(self.text, p)
        data = np.zeros(shape, self.dtype)
        own = [w + a for w, a in zip(self.words(p), at, strict=True)]
        inside = np.all([o < n for o, n in zip(own, shape, strict=True)], axis=0) & ~np.any([w < 0 for w in self.words(p)], axis=0)
        expected = np.full(shape, UNTOUCHED, self.dtype)
        element = np.arange(total).astype(self.dtype)
        for word in np.flatnonzero(inside)[::-1]:  # the first holder last
            expected[tuple(int(o[word]) for o in own)] = element[word]
        for backwards in (False, True):
            whole, view, strides = self.memory(p, data)
            view[...] = UNTOUCHED
            self.routines.access(f"store {p.name}", view, strides, element, pitch, at, shape, backwards)
            wrong = np.argwhere(view != expected)
            if wrong.size:
                place = tuple(int(i) for i in wrong[0])
                is_expected = expected[place] != UNTOUCHED
                what = "is not written" if view[place] == UNTOUCHED else \
                    "does not come from the first thread that holds it" if is_expected else "is written, and lies outside the tile"
                return self.slip(f"store {p.name}", f"word {list(place)} of {p.name} {what} (data {list(shape)}, tile at {list(at)})",
                                 "store each word of the tile that lies inside the data, by the holder of lowest ty, tx")
            view[...] = UNTOUCHED
            if (whole != UNTOUCHED).any():
                return self.slip(f"store {p.name}", f"memory outside {p.name} is written (data {list(shape)}, tile at {list(at)})",
                                 "leave out words at or beyond the number of rows, columns or words")
        return None

    def compute(self) -> Iterator[Slip]:
        """Whether tiles return the function's meaning: a whole one, and parts of one whose other words are padding."""
        if set(self.function.meaning) != {p.name for p in self.function.outputs}:
            return
        whole = dict(self.implementation.geometry.extents)
        part = {size: extent // 2 + 1 for size, extent in whole.items()}
        for sizes, alike in ((whole, None), (part, None), (part, -3.0), (part, 3.0)):
            slips = list(self.computed(sizes, alike))
            yield from slips
            if slips:
                return

    def computed(self, sizes: dict[str, int], alike: float | None) -> Iterator[Slip]:
        """Whether one tile with data of these sizes returns the function's meaning; `alike`: the value of all words, random where None."""
        function, geometry = self.function, self.implementation.geometry
        inputs = {p.name: self.drawn(tuple(sizes[e] for e in p.extents), alike) if p.extents else
                  np.asarray(self.random.choice([0.5, 2.0, 3.0]), self.dtype) for p in function.inputs}
        expected = meaning_of(function, sizes, inputs)
        elements = [self.gathered(p, inputs[p.name], (0,) * len(p.extents)) for p in function.inputs if p.extents]
        pitches = [words_of(self.text, p)[1] for p in function.inputs if p.extents]
        threads = geometry.threads[0] * geometry.threads[1]
        start = self.routines.start() if function.kind.reduces and not function.state else UNTOUCHED
        states: list[Array] = []
        behind: list[tuple[Array, ...]] = []
        for p in function.outputs:
            if function.state:
                total, pitch = words_of(self.text, p)
                states.append(np.zeros(total * self.routines.state_bytes(), np.uint8))
                self.routines.neutral(states[-1], total)
                elements.append(states[-1])
            else:
                memory, own, beyond, pitch = self.guarded(p, start)
                states.append(own)
                behind.append(beyond)
                elements.append(memory)
            pitches.append(pitch)
        scalars = np.asarray([inputs[p.name] for p in function.inputs if not p.extents], self.dtype)
        self.routines.compute(elements, pitches, scalars, (0,) * len(function.sizes))
        yield from (self.overrun("compute", p) for p, beyond in zip(function.outputs, behind) if _touched(beyond))
        for p, element in zip(function.outputs, states, strict=True):
            if function.state and p.extents:
                continue
            if function.state:
                got = np.zeros((), NUMPY_DTYPES[(p.dtype or function.dtype).name])
                self.routines.fold(element, threads, got)
            else:
                got = self.combined(p, element.reshape(-1), start)
            got = got[tuple(slice(sizes[e]) for e in p.extents)]
            finding = self.compared(p, got, expected[p.name], sizes)
            if finding is not None:
                yield finding

    def drawn(self, shape: tuple[int, ...], alike: float | None) -> Array:
        """Random data of a shape; all words `alike` where that is a number."""
        return (self.random.integers(-4, 5, shape) if alike is None else np.full(shape, alike)).astype(self.dtype)

    def combined(self, p: Parameter, element: Array, start: float) -> Array:
        """The output's tile: its words, or the partial values that several threads hold of each brought together, from `start` on."""
        where = self.words(p) if p.extents else (np.zeros(element.size, np.int64),)
        is_word = ~np.any([w < 0 for w in where], axis=0)
        index = tuple(w[is_word] for w in where)
        shape = self.tile(p) or (1,)
        if not self.function.kind.reduces:
            tile = np.full(shape, np.nan)
            tile[index] = element[is_word]
        else:
            tile = np.full(shape, start)
            _COMBINES[self.function.operator].at(tile, index, element[is_word].astype(np.float64))
        return tile.reshape(self.tile(p))

    def compared(self, p: Parameter, got: Array, expected: Array, sizes: dict[str, int]) -> Slip | None:
        """The first word that is off by more than the roundings of its terms."""
        reduced = int(np.prod([self.implementation.geometry.extents[e] for e in self.function.over])) if self.function.over else 1
        scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
        bound = (reduced + ROUNDINGS) * float(np.finfo(self.dtype).eps) * scale
        with np.errstate(invalid="ignore"):
            off = ~(np.abs(got.astype(np.float64) - expected) <= bound) & ~(np.isnan(got) & np.isnan(expected)) & (got != expected)
        if not off.any():
            return None
        place = tuple(int(i) for i in np.argwhere(off)[0]) if off.ndim else ()
        word = f"{p.name}{list(place) if place else ''}"
        whole = dict(self.implementation.geometry.extents)
        filled = "" if sizes == whole else f" with data {list(sizes.values())} of {list(whole.values())} words, the others padding,"
        remedy = f"compare the routine with meaning.{p.name} and with the places of {METADATA}"
        if filled:
            remedy += "; padding and `neutral` must change nothing" if self.function.kind.reduces else ""
        return self.slip("compute", f"{word} of one tile{filled} is {got[place]:g}, the meaning gives {expected[place]:g}", remedy)


def _touched(guards: Sequence[Array]) -> bool:
    """Whether a routine has written to words that it must leave alone."""
    return any((words != UNTOUCHED).any() for words in guards)


_NEUTRAL = {"+": "0", "max": "-tf_inf_f32(), or of f64", "min": "tf_inf_f32(), or of f64"}
_COMBINES = {"+": np.add, "max": np.maximum, "min": np.minimum}


def _situations(tile: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(shape of the data, first word of the tile): inside, cut at the end, one word."""
    yield tuple(2 * t for t in tile), tile
    yield tuple(t + t // 2 + 1 for t in tile), tile
    yield (1,) * len(tile), (0,) * len(tile)
    if len(tile) == 2:
        yield (2 * tile[0], tile[1] - 1), (tile[0], 0)


def meaning_of(function: ElementaryFunction, sizes: dict[str, int], given: dict[str, Array]) -> dict[str, Array]:
    """The outputs by the meanings, in f64. Requires: every output has a meaning."""
    wide = replace(function, dtype=F64) if function.dtype.name == "f32" else function
    variables = {p.name: Variable(p.name, p.dtype or wide.dtype, tuple(sizes[e] for e in p.extents)) for p in (*wide.inputs, *wide.outputs)}
    names = tuple(p.name for p in wide.inputs)
    outputs = tuple(p.name for p in wide.outputs)
    graph = graph_of_calls(CallGraph("meaning", variables, names, outputs, (FunctionCall(wide, names, outputs, sizes),))).graph
    values = interpret(graph, {i.name: given[i.name].astype(np.float64) for i in graph.inputs})
    return dict(zip(outputs, values, strict=True))
