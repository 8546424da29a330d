"""Index arithmetic in the C text of every shipped routine fits the type that it knows as INDEX, for operands of up to 2^33 words.

The text itself runs, with a class in place of the type that computes in 128 bits and tells what 32 (or 64) bits would not have held. Memory
is reserved and not filled: loads find zeros, stores touch a few pages.
"""
from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from random import Random

import pytest

from tests.unit.scripts.routine_runs import FLAGS, LIBRARY, script_graph
from tests.unit.templates.host_build import build
from tilefuse.printers import support
from tilefuse.scripts.compose.compose import compose_routines
from tilefuse.scripts.compose.namespace import Namespaces
from tilefuse.scripts.language.elementary import ElementaryFunction, Implementation, Parameter
from tilefuse.scripts.plan.fusions import find_fusions
from tilefuse.scripts.plan.implementations import implementations
from tilefuse.scripts.schedule.elements import Decision
from tilefuse.scripts.schedule.grid import Grid, bind_grid
from tilefuse.scripts.schedule.routines import FusedRoutines, wide_routines
from tilefuse.target.device import H200

# Draws of sizes and strides for each routine.
DRAWS = 40
# Space that pointers of routines lead to: 2^33 words of f32 and what lies up to a tile beyond.
SPACE_BYTES = 5 << 33
MAP_NORESERVE = 0x4000

CHECKED = """
#include <cstdint>
#include <cstring>
#include <type_traits>
static long long lost = 0;
template <class T> struct checked_index {
  long long v;
  checked_index() : v(0) {}
  template <class U, class = std::enable_if_t<std::is_integral<U>::value>> checked_index(U u) { set(u); }
  void set(__int128 u) { if (u != T(u)) ++lost; v = (long long)u; }
  operator long long() const { return v; }
};
#define OPERATOR(op)                                                                                                              \\
  template <class T> checked_index<T> operator op(checked_index<T> a, checked_index<T> b) {                                       \\
    checked_index<T> c; c.set((__int128)a.v op b.v); return c; }                                                                  \\
  template <class T, class U, class = std::enable_if_t<std::is_integral<U>::value>>                                               \\
  checked_index<T> operator op(checked_index<T> a, U b) { checked_index<T> c; c.set((__int128)a.v op b); return c; }              \\
  template <class T, class U, class = std::enable_if_t<std::is_integral<U>::value>>                                               \\
  checked_index<T> operator op(U a, checked_index<T> b) { checked_index<T> c; c.set((__int128)a op b.v); return c; }
OPERATOR(+) OPERATOR(-) OPERATOR(*)
#define COMPARISON(op)                                                                                                            \\
  template <class T> bool operator op(checked_index<T> a, checked_index<T> b) { return a.v op b.v; }                              \\
  template <class T, class U, class = std::enable_if_t<std::is_integral<U>::value>>                                               \\
  bool operator op(checked_index<T> a, U b) { return a.v op (long long)b; }                                                       \\
  template <class T, class U, class = std::enable_if_t<std::is_integral<U>::value>>                                               \\
  bool operator op(U a, checked_index<T> b) { return (long long)a op b.v; }
COMPARISON(<) COMPARISON(<=) COMPARISON(>) COMPARISON(>=) COMPARISON(==) COMPARISON(!=)
typedef checked_index<int> narrow_index;
typedef checked_index<long long> wide_index;
static float held[1 << 20];
struct anywhere { template <class T> operator T*() const { return reinterpret_cast<T*>(held); } };
extern "C" long long take_lost() { const long long found = lost; lost = 0; return found; }
"""


@dataclass(frozen=True)
class Moved:
    """A routine of one implementation that computes places: a load or store, or a `compute` that is told positions (of its first input)."""

    function: ElementaryFunction
    implementation: Implementation
    parameter: Parameter
    verb: str
    contiguous: bool
    entry: str

    @property
    def routine(self) -> str:
        """The routine's name in the metadata."""
        return self.verb if self.verb == "compute" else f"{self.verb} {self.parameter.name}"


def moved() -> list[Moved]:
    """The loads and stores of every function of f32: the first implementation of each name, with 16-byte accesses and without,
    equal texts once."""
    found: list[Moved] = []
    seen: set[str] = set()
    for f in LIBRARY.functions.values():
        if f.dtype.name != "f32":
            continue
        by_name: dict[str, Implementation] = {}
        for i in f.implementations:
            by_name.setdefault(i.name.split()[0], i)
        for implementation in by_name.values():
            positions = [p for p in f.inputs if f.positions and set(p.extents) == set(f.sizes)][:1]
            for verb, parameters in (("load", f.inputs), ("store", f.outputs), ("compute", positions)):
                for p in parameters:
                    called = verb if verb == "compute" else f"{verb} {p.name}"
                    if called in implementation.routines and p.dtype is None and p.extents:
                        for contiguous in (False, True):
                            r = Moved(f, implementation, p, verb, contiguous, f"call_{len(found)}")
                            if (own := routine_text(r, "INDEX")) not in seen:
                                seen.add(own)
                                found.append(r)
    return found


def routine_text(r: Moved, index: str) -> str:
    """The text that a kernel would carry for a routine, with a type for INDEX."""
    spaces = Namespaces(lambda _: index)
    spaces.routine(r.function, r.implementation, r.routine, frozenset([r.parameter.name] if r.contiguous else ()))
    (found,) = spaces.texts()
    return found.text


def passed(r: Moved, width: str) -> str:
    """The arguments of a call; places and sizes come from an array."""
    rank = len(r.parameter.extents)
    numbers = [f"{width}_index(at[{n}])" for n in range(3 * rank)]
    if r.verb != "compute":
        return ", ".join(["p", *numbers[:rank], "held", "tx", "ty", *numbers[rank:]])
    first = dict(zip(r.parameter.extents, numbers[rank:], strict=False))
    operands = ["anywhere()" if p.extents else "1.0f" for p in r.function.inputs] + ["anywhere()" for _ in r.function.outputs]
    return ", ".join([*operands, *(first[s] for s in r.function.sizes), "tx", "ty"])


ROUTINES = moved()


def text(routines: list[Moved]) -> str:
    """The routines with both checked types, and a function for each that calls it for all threads of an instance."""
    parts: list[str] = []
    for width in ("narrow", "wide"):
        for r in routines:
            name = r.implementation.routines[r.routine]
            x, y = r.implementation.geometry.threads
            body = routine_text(r, f"{width}_index")
            parts.append(f"namespace of_{width}_{r.entry} {{\n{body}}}\n"
                         f'extern "C" void {width}_{r.entry}(float* p, const long long* at) {{\n'
                         f"  for (int ty = 0; ty < {y}; ++ty)\n    for (int tx = 0; tx < {x}; ++tx)\n"
                         f"      of_{width}_{r.entry}::{name}({passed(r, width)});\n}}\n")
    whole = "".join(parts)
    return "#include <cmath>\n" + CHECKED + support.paste("host", whole) + whole


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All routines, compiled with the checked types."""
    made = build(text(ROUTINES), tmp_path_factory.mktemp("routines"), FLAGS)
    made.take_lost.restype = ctypes.c_longlong
    return made


@pytest.fixture(scope="module")
def space() -> Iterator[int]:
    """The address of a large stretch of memory that holds zeros and takes no room."""
    memory = mmap.mmap(-1, SPACE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    view = ctypes.c_char.from_buffer(memory)
    yield ctypes.addressof(view)
    del view
    memory.close()


def drawn(random: Random, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides: up to 2^33 words together, often around 2^31, rows near or far apart."""
    words = int(2 ** random.choice((random.uniform(10, 33), random.uniform(30.9, 31.1), 31))) - random.choice((0, 1, 77, 4096))
    if rank == 1:
        stride = random.choice((1, 1, 2, 5))
        return (max(words // stride, 1),), (stride,)
    rows = max(int(2 ** random.uniform(0, 20)), 1)
    pitch = max(words // rows, 1)
    columns = max(int(pitch * random.choice((1, 0.9, 1e-3))), 1)
    return (rows, columns), ((pitch, 1) if random.random() < 0.8 else (1, max(rows, words // columns)))


def bits_for(r: Moved, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, Grid, dict[str, int]]:
    """The bits of INDEX in a kernel of this call alone, its grid and the words of its tiles."""
    size_of = dict(zip(r.parameter.extents, shape, strict=True))
    sizes = {n: size_of.get(n, 1) for n in r.function.sizes}
    if r.function.triangle:
        sizes = dict.fromkeys(sizes, max(shape))
    f = r.function
    declared = " ".join(f"{p.kind} {p.name};" for p in f.inputs)
    results = ", ".join(f"out_{p.name}" for p in f.outputs)
    inputs = ", ".join(p.name for p in f.inputs)
    script = f"{declared} input {inputs}; {results} = {f.called or f.name}({inputs}); return {results};"
    given = {r.parameter.name: strides} if r.verb == "load" else {}
    graph = script_graph(script, {p.name: tuple(sizes[e] for e in p.extents) for p in f.inputs}, given)
    decision = Decision((0,), (r.function.implementations.index(r.implementation),))
    grid = bind_grid(graph, (0,))
    assert isinstance(grid, Grid)
    tiles = {d: r.implementation.geometry.extents[s] for s, d in grid.axis_of[0].items()}
    by_size = {s: tiles[d] for s, d in grid.axis_of[0].items()}
    return (64 if wide_routines(graph, decision, grid, tiles) else 32), grid, by_size


def corners(random: Random, r: Moved, shape: tuple[int, ...], tiles: dict[str, int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(first words, ends) of tiles: at the start, at the end, whole ones (whose ends are their own) and others."""
    words = [tiles[e] for e in r.parameter.extents]
    last = [(n - 1) // w * w for n, w in zip(shape, words, strict=True)]
    for first in ([0] * len(shape), last, [random.randrange(n // w + 1) * w if n > w else 0 for n, w in zip(shape, words, strict=True)]):
        first = [min(a, b) for a, b in zip(first, last, strict=True)]
        whole = all(a + w <= n for a, w, n in zip(first, words, shape, strict=True))
        yield tuple(first), tuple(a + w for a, w in zip(first, words, strict=True)) if whole else shape


@pytest.mark.parametrize("number", range(len(ROUTINES)), ids=[f"{r.function.name}-{r.implementation.name.split()[0]}-{r.verb}-"
                                                              f"{r.parameter.name}{'-16' if r.contiguous else ''}" for r in ROUTINES])
def test_places_fit_the_index_type(number: int, library: ctypes.CDLL, space: int) -> None:
    """INDEX as the compiler chooses it holds every number that the routine's text computes of its places."""
    r = ROUTINES[number]
    random = Random(f"{r.function.name} {r.parameter.name} {r.contiguous}")
    for _ in range(DRAWS):
        shape, strides = drawn(random, len(r.parameter.extents))
        if r.function.triangle and len(shape) == 2:
            shape = (min(shape),) * 2
        if r.contiguous or r.verb != "load":
            strides = (shape[1], 1) if len(shape) == 2 else (1,)
            shape = (shape[0], max(shape[1] // 4 * 4, 4)) if len(shape) == 2 else shape
            strides = (shape[1], 1) if len(shape) == 2 else (1,)
        bits, _, tiles = bits_for(r, shape, strides)
        for first, ends in corners(random, r, shape, tiles):
            if sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) * 4 + 4096 > SPACE_BYTES:
                continue
            at = (ctypes.c_longlong * (3 * len(shape)))(*strides, *first, *ends)
            getattr(library, f"{'wide' if bits == 64 else 'narrow'}_{r.entry}")(ctypes.c_void_p(space), at)
            assert library.take_lost() == 0, f"{bits} bits: shape {shape}, strides {strides}, tile at {first}"


def test_the_law_finds_types_that_are_too_narrow(library: ctypes.CDLL, space: int) -> None:
    """The last tile of a matrix beyond 2^31 words in 32 bits."""
    r = next(r for r in ROUTINES if r.verb == "load" and len(r.parameter.extents) == 2 and not r.contiguous)
    at = (ctypes.c_longlong * 6)(1 << 20, 1, (1 << 12) - 64, 0, 1 << 12, 1 << 20)
    getattr(library, f"narrow_{r.entry}")(ctypes.c_void_p(space), at)
    assert library.take_lost() > 0
    assert bits_for(r, (1 << 12, 1 << 20), (1 << 20, 1))[0] == 64


def test_a_tile_beyond_the_data_counts() -> None:
    """100 rows far apart have fewer than 2^31 words, a tile of 128 rows has more: once refused as a fault of the compiler."""
    script, shapes = "matrix A; vector x; input A, x; y = sgemv(A, x); return y;", {"A": (100, 100), "x": (100,)}
    graph = script_graph(script, shapes, {"A": (20_000_000, 1)})
    (fusion,) = find_fusions(graph).legal
    types = set()
    for implementation in implementations(graph, fusion, H200):
        assert isinstance(implementation.content, FusedRoutines)
        kernel = compose_routines(implementation.content)[0]
        tile = prod(implementation.content.tiles[d] for d in "y")
        wide = "sgemv" in implementation.content.wide_routines
        assert wide == ((100 + tile) * 20_000_000 + 100 + implementation.content.tiles["x"] > 2**31 - 1)
        types.add(wide)
        assert kernel.body
    assert types == {False, True}
