"""Plans that start from earlier ones of other sizes: what is kept, what is given up, and when planning begins from nothing."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.plan.graphs import SOFTMAX, layers, softmax
from tilefuse.base import trace
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Plan, verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.seeded import Seed, SeedKernel, parse_seed, seed_of, structure_of
from tilefuse.plan.text.text import print_plan
from tilefuse.target.device import H200


def norms(rows: int, width: int, count: int = 2) -> Graph:
    """Layers of a row norm with a residual behind it, each with its own bias."""
    inputs = ", ".join(["%x0: f32[R, W]", *(f"%b{n}: f32[W]" for n in range(count))])
    lines = [f"graph @norms({inputs}) -> (f32[R, W]) {{"]
    for n in range(count):
        lines += [f"  %a{n}: f32[R, W] = map [i, j] {{ add(%x{n}[i, j], %b{n}[j]) }}",
                  f"  %s{n}: f32[R] = reduce.sum [i] over [k < W] {{ %a{n}[i, k] }}",
                  f"  %c{n}: f32[R, W] = map [i, j] {{ sub(%a{n}[i, j], mul(%s{n}[i], {1 / width!r}:f32)) }}",
                  f"  %q{n}: f32[R] = reduce.sum [i] over [k < W] {{ mul(%c{n}[i, k], %c{n}[i, k]) }}",
                  f"  %x{n + 1}: f32[R, W] = map [i, j] {{ add(%x{n}[i, j], mul(%c{n}[i, j], rsqrt(%q{n}[i]))) }}"]
    text = "\n".join([*lines, f"  return %x{count}", "}"])
    return parse_graph(text.replace("R]", f"{rows}]").replace("[R,", f"[{rows},").replace("W", str(width)))


def planned(graph: Graph, seed: Seed | None = None, **options: object) -> Plan:
    plan = plan_graph(graph, {}, H200, Options().with_overrides(**options), seed=seed)
    assert verify_plan(plan) == []
    return plan


def reason(graph: Graph, seed: Seed, **options: object) -> str:
    """Why a plan does not start from a seed."""
    with trace.tracing(trace.Trace(Options())) as told:
        plan = planned(graph, seed, **options)
    assert plan.start is None and print_plan(plan) == print_plan(planned(graph, **options))
    (event,) = (e for e in told.events if e["name"] == "earlier plan not used")
    return str(event["args"]["reason"])  # type: ignore[index]


def made_seed(graph: Graph) -> Seed:
    seed = seed_of(planned(graph))
    assert seed is not None
    return seed


def seed_with(graph: Graph, *kernels: str, light: str = "") -> Seed:
    """A seed of these kernels, each a list of node names."""
    number = graph.position_by_name

    def numbers(names: str) -> tuple[int, ...]:
        return tuple(number[n] for n in names.split())

    return Seed(structure_of(graph, {}), (), tuple(SeedKernel("connect", numbers(k), 0.0, False) for k in kernels), (), numbers(light))


@pytest.mark.parametrize(("there", "here"), [((64, 128), (96, 128)), ((96, 512), (4096, 1024)), ((4096, 1024), (8, 64))])
def test_a_plan_of_other_sizes_is_found_again(there: tuple[int, int], here: tuple[int, int]) -> None:
    """Kernels and predicted time are those of a plan from nothing; tiles, prices and the program are of the sizes at hand."""
    seeded, afresh = planned(norms(*here), made_seed(norms(*there))), planned(norms(*here))
    assert seeded.start is not None and seeded.start.kept == len(seeded.kernels) and not seeded.start.given_up
    assert [k.pattern for k in seeded.kernels] == [k.pattern for k in afresh.kernels]
    assert [k.program for k in seeded.kernels] == [k.program for k in afresh.kernels]
    assert seeded.objective_us == afresh.objective_us
    assert seeded.start.sizes[0] == ("x0", there)


def test_fewer_structures_are_scheduled() -> None:
    """Beside single nodes: those of the kernels and of what neighbours and packing offer, not all that generators propose."""
    seed = made_seed(norms(64, 128, count=6))
    counts = []
    for given in (None, seed):
        with trace.tracing(trace.Trace(Options())) as told:
            planned(norms(96, 256, count=6), given)
        counts += [e["args"]["scheduled"] for e in told.events if e["name"] == "planned"]  # type: ignore[index]
    assert counts[1] < counts[0] / 2


def test_the_same_seed_gives_the_same_plan() -> None:
    seed = made_seed(norms(64, 128))
    again = parse_seed(seed.text())
    assert again == seed and again.text() == seed.text()
    assert print_plan(planned(norms(640, 128), seed)) == print_plan(planned(norms(640, 128), again))


def test_a_plan_that_started_from_another_is_no_seed() -> None:
    assert seed_of(planned(norms(96, 128), made_seed(norms(64, 128)))) is None


def test_kernels_that_are_illegal_here_are_given_up() -> None:
    """Sums over rows and over columns do not meet in one kernel; the rest of the seed is kept, and the nodes are planned again."""
    graph = parse_graph("""graph @g(%x: f32[512, 640]) -> (f32[640], f32[512], f32[512, 640]) {
  %a: f32[512, 640] = map [i, j] { exp(%x[i, j]) }
  %r: f32[512] = reduce.sum [i] over [k < 640] { %a[i, k] }
  %c: f32[640] = reduce.sum [j] over [k < 512] { %a[k, j] }
  %e: f32[512] = map [i] { exp(%r[i]) }
  %y: f32[512, 640] = map [i, j] { mul(%x[i, j], %c[j]) }
  return %c, %e, %y
}""")
    plan = planned(graph, seed_with(graph, "r c", "e", "y", light="a"))
    assert plan.start is not None and plan.start.kept == 2
    (told,) = plan.start.given_up
    assert "the kernel of %c" in told
    assert plan.objective_us <= planned(graph).objective_us * 1.02


def test_an_illegal_kernel_is_taken_apart_as_it_was_joined() -> None:
    """A softmax of rows and a sum of columns are no kernel; what greedy connecting had joined before is one, and is not joined again."""
    graph = parse_graph(SOFTMAX.replace("4", "512").replace("8", "640").replace("f16[512, 640]) {", "f16[512, 640], f32[640]) {").replace(
        "  return %y", "  %c: f32[640] = reduce.sum [j] over [k < 512] { f32(%x[k, j]) }\n  return %y, %c"))
    (kernel,) = seed_with(graph, "m e s y c").kernels
    number = graph.position_by_name
    seed = replace(seed_with(graph), kernels=(replace(kernel, steps=(tuple(number[n] for n in "mesy"), (number["e"], number["s"]))),))
    plan = planned(graph, seed)
    assert plan.start is not None and plan.start.merged == 0 and plan.start.kept == 1
    assert "reduces 512 elements" in plan.start.given_up[0]
    assert [k.pattern for k in plan.kernels] == [k.pattern for k in planned(graph).kernels]


def test_kernels_that_are_dearer_than_their_parts_are_given_up() -> None:
    """A product of many rows with a weight of 256 KiB and what stands around it: one kernel is legal, and slower than three steps."""
    graph = parse_graph("""graph @g(%x: f32[4096, 512], %w: f32[512, 128]) -> (f32[4096, 128]) {
  %a: f32[4096, 512] = map [i, j] { tanh(%x[i, j]) }
  %p: f32[4096, 128] = library.matmul (%a, %w)
  %y: f32[4096, 128] = map [i, j] { exp(%p[i, j]) }
  return %y
}""")
    plan = planned(graph, seed_with(graph, "a p y"))
    assert plan.start is not None and "for its parts" in plan.start.given_up[0]
    assert plan.objective_us == planned(graph).objective_us


def test_neighbours_are_merged_where_that_is_cheaper() -> None:
    """A seed of single nodes leads to what greedy connecting finds."""
    graph = softmax()
    plan = planned(graph, seed_with(graph, "m", "e", "s", "y"))
    assert [k.pattern.nodes for k in plan.kernels] == [("m", "e", "s", "y")]
    assert plan.start is not None and plan.start.merged == 3 and plan.start.kept == 4


def test_another_graph_is_planned_from_nothing() -> None:
    other = parse_graph(SOFTMAX.replace("exp(sub", "exp(add").replace("f16[", "f32[").replace("f16(div", "f32(div"))
    assert "differs in more than sizes" in reason(other, made_seed(softmax()))


def test_kernels_that_wait_for_each_other_are_no_plan() -> None:
    graph = parse_graph("""graph @g(%x: f32[64], %z: f32[64]) -> (f32[64], f32[64]) {
  %a: f32[64] = map [i] { exp(%x[i]) }
  %b: f32[64] = map [i] { exp(%z[i]) }
  %c: f32[64] = map [i] { add(%a[i], %z[i]) }
  %d: f32[64] = map [i] { add(%b[i], %x[i]) }
  return %c, %d
}""")
    # a with d, and b with c: each holds what the other reads.
    assert "wait for each other" in reason(graph, seed_with(graph, "a d", "b c"))


def test_options_that_plan_otherwise_do_not_start_from_seeds() -> None:
    seed = made_seed(norms(64, 128))
    for options in ({"planner": "greedy"}, {"fuse": False}, {"peak_memory_mb": 64}):
        assert "another way to plan" in reason(norms(96, 128), seed, **options)


def test_products_that_stand_otherwise_against_the_library_are_planned_again() -> None:
    """Few rows of layers are kernels with their products, many are calls and kernels between them."""
    seed = made_seed(layers(3, rows=16))
    assert any(k.share for k in seed.kernels)
    assert "of its parts' time, there" in reason(layers(3, rows=65536), seed)
    assert planned(layers(3, rows=18), seed).start is not None


def test_kernels_that_fill_the_device_there_only_are_planned_again() -> None:
    seed = made_seed(layers(2, rows=8))
    other = replace(seed, kernels=tuple(replace(k, fills=not k.fills) for k in seed.kernels))
    assert "fills the device there and not here" in reason(layers(2, rows=8), other)
