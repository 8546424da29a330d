"""Index arithmetic of kernels over tensors beyond 2^31 elements fits the types it is printed with, and reaches no element outside.

Nothing is allocated: kernels are composed for drawn shapes, and their index expressions are computed at the corners of the launch and at
drawn points, with the width that C++ gives each of them (`index_points.py`).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from tests.laws.index_points import Points
from tests.unit.scripts.routine_scripts import SEQUENCES, sequence
from tests.unit.scripts.sized_runs import made
from tests.unit.templates import online_graphs, stitched_graphs
from tests.unit.templates import pattern_graphs as patterns
from tests.unit.templates.packed_graphs import side_by_side, update
from tests.unit.templates.staged.pipelined import product_graphs
from tilefuse.base.errors import UnsupportedError
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.counts import count_value
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.widths import with_index_bits
from tilefuse.printers.cuda import print_cuda
from tilefuse.scripts.compose.compose import compose_routines
from tilefuse.scripts.plan.fusions import find_fusions
from tilefuse.scripts.plan.implementations import implementations
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.scripts.sized_programs import SizedProgram
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates import schedule_pattern
from tilefuse.templates.compose import compose
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.template import schedule_product

DEVICES = {"h200": H200, "host": host_device()}
DRAWS = 3
Strides = Mapping[str, tuple[int, ...]]


def beyond(random: Random, each: int = 1) -> int:
    """A number of rows of `each` elements: 2^31 to 2^33 elements together, or just fewer than 2^31. Half of them are multiples of 8."""
    elements = (1 << 31) - int(2 ** random.uniform(0, 26)) if random.random() < 0.25 else int(2 ** random.uniform(31, 33))
    count = elements // each + 1
    return count + -count % 8 if random.random() < 0.5 else count | 1


def length(random: Random, most: int = 1 << 18) -> int:
    """A length of rows: sometimes odd, sometimes whole vectors, sometimes whole blocks."""
    return max(int(2 ** random.uniform(0, most.bit_length() - 1)) // (step := random.choice((1, 8, 128))) * step, 2)


def pool(random: Random) -> Graph:
    """Means of windows side by side, as of avg_pool2d(x, 11)."""
    k, out = random.choice((2, 3, 8, 11, 40)), random.choice((14, 51, 186))
    images = beyond(random, (k * out) ** 2)
    return parse_graph(f"""graph @pool(%x: f32[{images}, {k * out}, {k * out}]) -> (f32[{images}, {out}, {out}]) {{
      %s: f32[{images}, {out}, {out}] = reduce.sum [n, h, w] over [p < {k}, q < {k}] {{ %x[n, {k}*h + p, {k}*w + q] }}
      return %s
    }}""")


def numbers(random: Random) -> Graph:
    """Values made of positions: few elements, numbers beyond 2^31."""
    rows, columns, step = length(random, 4096), length(random, 4096), random.choice((1 << 20, 3 << 24, (1 << 33) + 1))
    return parse_graph(f"""graph @numbers() -> (i64[{rows}, {columns}], f32[{rows}, {columns}]) {{
      %n: i64[{rows}, {columns}] = map [i, j] {{ index({step}*i + 7*j + -5) }}
      %r: f32[{rows}, {columns}] = map [i, j] {{ random_uniform(3:i64, index({step}*i + j)) }}
      return %n, %r
    }}""")


def wide_divisor(random: Random) -> Graph:
    """Rows of more than 2^32 elements under a reshape that cuts them."""
    columns = random.choice(((1 << 32) + 8, 3 << 31, 5 << 31))
    return parse_graph(f"""graph @cut(%x: i8[{columns}, 3], %y: i8[3, {columns}]) -> (i8[{3 * columns}]) {{
      %z: i8[{3 * columns}] = map [i] {{ i8(add(i32(%x[(i % {columns}), (i // {columns})]), i32(%y[(i // {columns}), (i % {columns})]))) }}
      return %z
    }}""")


def strided(random: Random) -> tuple[Graph, Strides]:
    """A few elements of a tensor whose rows lie far apart: of a slice, expanded, or of every second one."""
    rows, columns = length(random, 4096), length(random, 4096)
    pitch = beyond(random, rows)
    graph = patterns.softmax(rows, columns).graph if random.random() < 0.5 else patterns.transpose(rows, columns).graph
    return graph, {graph.inputs[0].name: (pitch, random.choice((0, 1, 2)))}


def sliced(random: Random) -> Graph:
    """Rows of a large tensor from the end, and every third of them."""
    rows, columns = beyond(random, 4096), 4096
    return parse_graph(f"""graph @sliced(%x: f32[{rows}, {columns}]) -> (f32[{rows // 3}, {columns}], f32[64, {columns}]) {{
      %a: f32[{rows // 3}, {columns}] = map [i, j] {{ exp(%x[{rows - 1} + -3*i, j]) }}
      %b: f32[64, {columns}] = map [i, j] {{ exp(%x[i + {rows - 64}, {columns - 1} + -1*j]) }}
      return %a, %b
    }}""")


def small_times_large(random: Random) -> Graph:
    """A few elements read often: the walk is large, memory is not."""
    rows, columns = beyond(random, 96), 96
    return parse_graph(f"""graph @often(%x: f32[{columns}], %y: f32[{rows}]) -> (f32[{rows}, {columns}]) {{
      %z: f32[{rows}, {columns}] = map [i, j] {{ mul(%x[j], %y[i]) }}
      return %z
    }}""")


def embedding(random: Random) -> Graph:
    """Rows of a table, few or many, of a table that is small or large."""
    width = length(random, 8192)
    words, count = (beyond(random, width), 4096) if random.random() < 0.5 else (4096, beyond(random, width))
    kinds: list[Callable[[int, int, int], patterns.Pattern]] = [patterns.embedding, patterns.embedding_sum, patterns.scatter_add]
    return random.choice(kinds)(words, width, count).graph


def windows(random: Random) -> Graph:
    size = random.choice((56, 112, 450))
    return patterns.max_pool(beyond(random, 64 * size * size), 64, size, size).graph


def down(random: Random, make: Callable[[int, int], patterns.Pattern]) -> Graph:
    """A pattern along columns: of few columns or of many."""
    wide = random.choice((64, 1000, 1 << 14, 1 << 20))
    return make(beyond(random, wide), wide).graph if random.random() < 0.5 else make(wide, beyond(random, wide)).graph


def rows_of(make: Callable[..., patterns.Pattern], most: int = 1 << 18) -> Callable[[Random], Graph]:
    def draw(random: Random) -> Graph:
        n = length(random, most)
        return make(beyond(random, n), n).graph
    return draw


def attention(random: Random) -> Graph:
    keys, width = random.choice((64, 77, 128)), random.choice((32, 64))
    return stitched_graphs.attention(beyond(random, keys * width), keys, width, F16)


ONE_WALK: dict[str, Callable[[Random], Graph | tuple[Graph, Strides]]] = {
    "maps": rows_of(patterns.bias_gelu), "scaled": rows_of(patterns.scaled_columns), "positions": numbers, "far-rows": strided,
    "slices": sliced, "broadcast": small_times_large, "wide-divisor": wide_divisor, "transpose": lambda r: down(r, patterns.transpose),
    "images": lambda r: patterns.channels_last(beyond(r, 3 * 448 * 448), 3, 448, 448, "f16").graph,
    "turned-rows": lambda r: patterns.turned_rows(beyond(r, 100 * 96), 100, 96, "f16").graph,
    "softmax": rows_of(patterns.softmax), "norm": rows_of(patterns.layer_norm), "sums": rows_of(patterns.row_sum, 1 << 31),
    "extremes": rows_of(patterns.row_extremes, 1 << 33), "entropy": rows_of(patterns.cross_entropy), "scan": rows_of(patterns.running_sum),
    "column-sums": lambda r: down(r, patterns.column_sum), "deviation": lambda r: down(r, patterns.column_deviation),
    "softmax-down": lambda r: down(r, patterns.softmax_down), "full-sum": lambda r: down(r, patterns.full_sum),
    "norm-backward": lambda r: patterns.norm_backward((n := length(r, 4096)) and beyond(r, n), n, 132, "f16").graph,
    "batch-norm": lambda r: patterns.batch_norm(beyond(r, 256 * 784), 256, 28, 28, "f16").graph,
    "windows": windows, "pool": pool, "tables": embedding,
    "concatenation": lambda r: patterns.concatenation(beyond(r, 1500), r.choice((1, 500, 1024)), 500, "f16").graph,
    "pieces": lambda r: patterns.three_pieces(beyond(r, 100), (33, 40, 27)).graph,
    "padding": lambda r: patterns.padded(beyond(r, (n := length(r, 4096))), n, 5, 3).graph,
}
SEVERAL: dict[str, Callable[[Random], Graph]] = {
    "packed": lambda r: side_by_side([update(beyond(r)), update(7), update(beyond(r, 5), 5)], shared=("rate",)).graph,
    "packed-kinds": lambda r: side_by_side([update(beyond(r)), patterns.row_sum(beyond(r, 96), 96), patterns.softmax(beyond(r, 96), 96)],
                                           shared=("rate",)).graph,
    "packed-turns": lambda r: side_by_side([patterns.transpose(136, beyond(r, 136), "f16") for _ in range(3)]).graph,
    "stitched-attention": attention,
    "stitched-softmax": lambda r: stitched_graphs.product_softmax(beyond(r, 128), 64, 128, F16),
    "stitched-layers": lambda r: stitched_graphs.clamped_layers(beyond(r, 64), (64, 128, 64), F16),
    "stitched-gates": lambda r: stitched_graphs.lstm_cell(beyond(r, 512), 128),
    "walked": lambda r: online_graphs.with_logarithm(beyond(r, 1000 * 64), 1000, 1000, 64, 64, F16),
    "walked-long": lambda r: online_graphs.merged_heads(*(2 * [beyond(r, 6 * 64)]), 64, 64, F16),
}


def product(random: Random) -> tuple[Graph, Strides]:
    """A product with more elements in the result or in an operand than 31 bits count; operands that maps describe, and others."""
    columns, inner = length(random, 1 << 16), length(random, 4096)
    rows = beyond(random, random.choice((columns, inner)))
    turned = (random.random() < 0.3, random.random() < 0.7)
    if random.random() < 0.3:
        return product_graphs.gated(rows, columns, inner, BF16), {}
    pitch = rows + 3 if turned[0] else inner + 8 + inner % 3
    return product_graphs.plain(rows, columns, inner, BF16, turned), {"x": (pitch, 1)}


def checked(kernel: Kernel, random: Random) -> Points:
    """The kernel's index arithmetic at the corners of its launch and at drawn points."""
    blocks, threads = kernel.launch.num_blocks, kernel.launch.num_threads
    points = Points(kernel, random)
    edges = {first - k for g in kernel.groups for first in (g.first_block, g.first_block + g.num_blocks) for k in (0, 1)}
    points.run(sorted({n for n in {0, blocks - 1, random.randrange(blocks), *edges} if 0 <= n < blocks}),
               sorted({0, threads - 1, random.randrange(threads)}))
    assert points.num_checked
    return points


def assert_fits(kernel: Kernel, random: Random) -> None:
    """No error where the kernel says so, and where it says 64 bits, a need for them or no proof."""
    points = checked(kernel, random)
    assert not points.errors, f"{kernel.name}, {kernel.index_bits} bits: {points.errors[0]}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ONE_WALK)
def test_walks_fit_their_widths(name: str, device: str) -> None:
    """Every template of one walk, as the device's own schedule takes it."""
    random, composed = Random(f"{name} {device}"), 0
    for _ in range(DRAWS):
        drawn = ONE_WALK[name](random)
        graph, layouts = drawn if isinstance(drawn, tuple) else (drawn, {})
        for part in graph.nodes if len(graph.nodes) > 1 else ():
            program = schedule_pattern(graph, [part.name], layouts, DEVICES[device])
            if isinstance(program, TileProgram):
                assert_fits(compose(program, DEVICES[device]), random)
        program = schedule_pattern(graph, [n.name for n in graph.nodes], layouts, DEVICES[device])
        if isinstance(program, TileProgram):
            composed += 1
            assert_fits(compose(program, DEVICES[device]), random)
    assert composed or len(graph.nodes) > 1


@pytest.mark.parametrize("name", SEVERAL)
def test_composed_kernels_fit_their_widths(name: str) -> None:
    """Packed, stitched and walked kernels on a device."""
    random, composed = Random(name), 0
    for _ in range(DRAWS):
        graph = SEVERAL[name](random)
        program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=name.startswith("packed"))
        if isinstance(program, TileProgram):
            composed += 1
            assert_fits(compose(program, H200), random)
    assert composed


def test_pipelined_products_fit_their_widths() -> None:
    """By both roles: coordinates of boxes, places in slots, elements that threads load and store by themselves."""
    random, copied = Random("pipelined"), set()
    for _ in range(8 * DRAWS):
        graph, layouts = product(random)
        program = schedule_product(graph, layouts, H200)
        assert isinstance(program, TileProgram), program
        kernel = with_index_bits(compose_product(program, H200))
        copied.add(len(kernel.maps))
        assert_fits(kernel, random)
    assert {0, 3} <= copied


@pytest.mark.parametrize("name", SEQUENCES)
def test_fused_routines_fit_their_widths(name: str) -> None:
    """Scripts over vectors and matrices beyond 2^31 words: predicted best, and some others."""
    random = Random(name)
    m, n = beyond(random, 40000), 40000
    graph = sequence(name, m, n) if "m" in "".join(SEQUENCES[name][1].values()) else sequence(name, 1, beyond(random))
    for fusion in find_fusions(graph).legal:
        for implementation in islice(implementations(graph, fusion, H200), 0, 40, 13):
            if isinstance(implementation.content, FusedRoutines):
                for kernel in compose_routines(implementation.content):
                    assert_fits(kernel, random)


@pytest.mark.parametrize("name", [*SEQUENCES, "strmv", "strmtv"])
def test_kernels_whose_sizes_are_given_fit_their_widths(name: str) -> None:
    """At the largest sizes that each case allows, long one way or the other, and at drawn ones: every product and quotient of sizes too."""
    random = Random(name)
    if name in SEQUENCES:
        text, shapes = SEQUENCES[name]
    else:
        text, shapes = f"matrix A; vector x; input A, x; y = {name}(A, x); return y;", {"A": "nn", "x": "n"}
    program, _ = made(text, {v: tuple({"m": 3000, "n": 5000}[e] for e in s) for v, s in shapes.items()})
    for number, case in enumerate(program.cases):
        for sizes in drawn_sizes(random, program, number):
            for step in program.steps:
                kernel = step.kernels[number]
                assert kernel.blocks is not None
                assert kernel.index_bits == 32 or case.name.endswith("wide"), f"{kernel.name} needs 64 bits"
                blocks = count_value(kernel.blocks, sizes)
                points = Points(kernel, random, sizes)
                points.run(sorted({0, blocks - 1, random.randrange(blocks)}), (0, kernel.launch.num_threads - 1))
                assert points.num_checked and not points.errors, f"{kernel.name}, {kernel.index_bits} bits, {sizes}: {points.errors[0]}"


def drawn_sizes(random: Random, program: SizedProgram, case: int) -> Iterator[dict[str, int]]:
    """Sizes that keep a case's limits: as large as they can be, each in turn the longest."""
    step = 4 if program.cases[case].aligned else 1
    for longest in (*program.sizes, ""):
        sizes = dict.fromkeys(program.sizes, program.cases[case].most_extent)
        for other in (s for s in program.sizes if s != longest):
            sizes[other] = random.choice((1, 77, 4096, 40000)) if longest else 1 << 40
        while not all(count_value(count, sizes) <= most for _, count, most in program.limits[case]):
            larger = max(sizes, key=lambda s: sizes[s])
            sizes[larger] = sizes[larger] * 63 // 64
        yield {s: max(v // step * step, step) for s, v in sizes.items()}


def test_the_law_finds_indices_that_are_too_narrow() -> None:
    """The same kernels with 32 bits are found wrong."""
    for pattern in (patterns.bias_gelu(1 << 21, 3072), patterns.softmax(1 << 22, 1032), patterns.transpose(1 << 16, 1 << 16),
                    patterns.max_pool(600, 64, 450, 450)):
        graph = pattern.graph
        program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
        assert isinstance(program, TileProgram)
        assert checked(replace(compose(program, H200), index_bits=32), Random(1)).errors, graph.name
    program = schedule_product(product_graphs.plain(200_000, 46401, 64, BF16), {}, H200)
    assert isinstance(program, TileProgram)
    assert checked(compose_product(program, H200), Random(1)).errors


def test_what_fits_stays_narrow() -> None:
    """Just below 2^31 elements indices have 32 bits: 64-bit ones cost registers."""
    for graph in (patterns.bias_gelu((1 << 31) // 4096 - 256, 4096).graph, patterns.softmax((1 << 31) // 1024 - 1024, 1024).graph):
        program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
        assert isinstance(program, TileProgram)
        assert compose(program, H200).index_bits == 32


def test_more_blocks_than_a_launch_has_are_refused() -> None:
    graph = patterns.row_sum(1 << 36, 4096, "bf16").graph
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(program, TileProgram)
    with pytest.raises(UnsupportedError, match="blocks"):
        compose(program, H200)


def test_rows_beyond_the_end_are_padded_at_every_size() -> None:
    """Of a stitched kernel's last tile: the guard of its zeros has no upper end."""
    for rows in (1003, (1 << 30) + 3, (1 << 33) + 3):
        program = schedule_pattern(graph := stitched_graphs.norm_before_product(rows, 64, 64), [n.name for n in graph.nodes], {}, H200)
        assert isinstance(program, TileProgram)
        guards = [line for line in print_cuda(compose(program, H200), H200).splitlines() if f">= {rows})" in line]
        assert guards
