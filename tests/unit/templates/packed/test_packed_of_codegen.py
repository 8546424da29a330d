"""Packed kernels compute what their graphs mean, on the host and, scheduled for a device, in checking mode."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.packed_graphs import side_by_side, total, update
from tests.unit.templates.pattern_graphs import (
    Pattern,
    bias_gelu,
    column_sum,
    embedding,
    full_sum,
    integers,
    layer_norm,
    row_sum,
    scatter_add,
    softmax,
    transpose,
)
from tests.unit.templates.stitched_graphs import turned_product, two_results
from tests.unit.templates.test_compose import assert_within, buffer_of
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.lowering.in_place import alias_members
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.visit import may_alias_itself, written_buffers
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates import schedule_pattern
from tilefuse.templates.compose import compose
from tilefuse.templates.flat.compose_any_size import REST
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.staged.stitched.record import Stitched

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
DEVICES = {"host": host_device(), "h200": H200}


def zeros(*shape: int) -> Pattern:
    """A result without any operand."""
    return Pattern(parse_graph(f"""graph @zeros() -> (f32[{', '.join(map(str, shape))}]) {{
      %z: f32[{', '.join(map(str, shape))}] = map [{', '.join(f'i{n}' for n in range(len(shape)))}] {{ 0.0:f32 }}
      return %z
    }}"""), integers)


PATTERNS: dict[str, Pattern] = {
    "sizes": side_by_side([update(64, 33), update(7), update(1), update(2, 3, 5), update(1000), update(4), update()], shared=("rate",)),
    "equal-sizes": side_by_side([update(12, 5) for _ in range(9)], shared=("rate",)),
    "some-empty": side_by_side([update(300), update(0, 4), update(5, 5), update(0)], shared=("rate",)),
    "two-dtypes": side_by_side([update(300), update(70, dtype="f16"), update(9), update(700, dtype="f16")], shared=("rate",)),
    "templates": side_by_side([row_sum(40, 300), update(500), column_sum(64, 48), transpose(128, 136), update(77), softmax(9, 333)]),
    "norms": side_by_side([layer_norm(6, 768), layer_norm(6, 768), layer_norm(3, 768), row_sum(7, 33)]),
    "last-blocks": side_by_side([full_sum(64, 64), full_sum(64, 64), column_sum(700, 32), total(5000), total(9000)]),
    "gathers": side_by_side([embedding(50, 32, 20), embedding(50, 32, 20), scatter_add(40, 8, 30), bias_gelu(8, 64)]),
    "no-operands": side_by_side([zeros(5, 3), zeros(100), zeros(2)]),
    # Products by stages: equal ones share a body, others and walks stand beside them.
    "products": side_by_side([Pattern(two_results(9, 5, 11), integers), Pattern(two_results(9, 5, 11), integers), update(300),
                              Pattern(turned_product(33, 20, 9, (True, False)), integers), row_sum(7, 33)]),
    "products-of-one-operand": side_by_side([Pattern(turned_product(m, 20, 12, (False, False)), integers) for m in (9, 17, 9)],
                                            shared=("w",)),
    "one": update(300),
}
PLACES = [(name, place) for name in sorted(PATTERNS) for place in sorted(DEVICES) if place == "h200" or not name.startswith("products")]


def packed(name: str, device: DeviceSpec) -> TileProgram:
    """The packed program of a pattern."""
    graph = PATTERNS[name].graph
    found = schedule_pattern(graph, [n.name for n in graph.nodes], {}, device, packing=True)
    assert not isinstance(found, Rejected), found
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Kernel, object]]:
    """Every kernel with its entry."""
    kernels = {(name, place): compose(packed(name, DEVICES[place]), DEVICES[place]) for name, place in PLACES}
    flags = SHORT_CHECKED_FLAGS
    listed = [(k, place == "h200") for (_, place), k in kernels.items()]
    built = build_together(listed, tmp_path_factory.mktemp("packed"), flags)
    return {key: (k, getattr(built, f"{k.name}_{n}")) for n, (key, k) in enumerate(kernels.items())}


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_packed_kernel_computes_its_graph(name: str, place: str, library: dict[tuple[str, str], tuple[Kernel, object]]) -> None:
    """No finding of the checking mode, every result within its bound, counters at zero."""
    pattern = PATTERNS[name]
    kernel, entry = library[name, place]
    values = pattern.inputs(np.random.default_rng(5))
    initial = {b.origin: values[pattern.graph.node_by_name[b.origin].operands[0]] for b in kernel.parameters if b.role == "inout"}
    buffers = {b.name: (values | initial)[b.origin].reshape(-1) for b in kernel.parameters if b.role in ("in", "inout")}
    with np.errstate(all="ignore"):
        wanted = interpret(pattern.graph, values)
        bounds = pattern.bounds(values) if pattern.bounds else [None] * len(wanted)
    memory, status, report = call(entry, kernel, buffers)  # type: ignore[arg-type]
    assert status == 0, report
    for result, value, bound in zip(pattern.graph.results, wanted, bounds, strict=True):
        if value.size:
            assert_within(memory[buffer_of(kernel, result).name].reshape(value.shape), value, bound, f"{name} %{result} on {place}")
    assert not any(memory[b.name].any() for b in kernel.parameters if b.role == "counter")


@pytest.mark.parametrize("name", sorted(set(PATTERNS) - {"one"}))
def test_groups_share_out_the_blocks_and_nobody_shares_what_is_written(name: str) -> None:
    """Groups follow each other without a gap; every parameter belongs to one member, in the order of the table of pointers."""
    kernel = compose(packed(name, H200), H200)
    first = 0
    for group in kernel.groups:
        assert group.first_block == first
        assert all(m.num_blocks > 0 for m in group.members)
        first += group.num_blocks
    assert first == kernel.launch.num_blocks
    assert [a for g in kernel.groups for m in g.members for a in m.arguments] == [b.name for b in kernel.parameters]
    written = [b.origin for b in kernel.parameters if b.role in ("out", "inout")]
    assert len(set(written)) == len(written)


def test_equal_products_share_a_body() -> None:
    """One group for both, also where they have an operand in common: each has tiles of its own."""
    for name, groups in (("products", 4), ("products-of-one-operand", 2)):
        choice = packed(name, H200).choice
        assert isinstance(choice, Packed) and len(choice.groups) == groups
        assert max(len(g.parts) for g in choice.groups if isinstance(g.program.choice, Stitched)) == 2


def test_members_of_any_size_share_one_body() -> None:
    """The source does not grow with the number of tensors, but for its tables."""
    few, many = (side_by_side([update(n, 3) for n in range(2, count + 2)], shared=("rate",)).graph for count in (3, 40))
    sources = []
    for graph in (few, many):
        program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=True)
        assert isinstance(program, TileProgram)
        kernel = compose(program, H200)
        assert len(kernel.groups) == 1
        assert len(kernel.groups[0].members) == len(graph.results) // 2
        sources.append(print_cuda(kernel, H200))
    assert len(sources[1].splitlines()) - len(sources[0].splitlines()) < 12
    assert "const __grid_constant__" in sources[1]


def test_elements_behind_the_last_vector_have_code_only_where_there_are_some() -> None:
    """Sizes that a vector divides need no rest."""
    whole = side_by_side([update(4), update(400)], shared=("rate",)).graph
    odd = side_by_side([update(4), update(401)], shared=("rate",)).graph
    for graph, has_rest in ((whole, False), (odd, True)):
        program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=True)
        assert isinstance(program, TileProgram)
        names = [name for name, _ in compose(program, H200).groups[0].numbers]
        assert (REST in names) == has_rest


def test_shared_memory_is_the_largest_of_the_parts_and_blocks_are_the_sum() -> None:
    program = packed("templates", H200)
    assert isinstance(program.choice, Packed)
    kernel = compose(program, H200)
    alone = [compose(replace(g.program, name="alone"), H200).launch for g in program.choice.groups if not g.any_size]
    assert kernel.launch.shared_bytes == max(launch.shared_bytes for launch in alone)
    assert kernel.launch.num_blocks == sum(g.num_blocks for g in kernel.groups)
    assert {launch.num_threads for launch in alone} == {kernel.launch.num_threads}


def test_a_member_updated_in_place_makes_its_slots_promise_nothing(tmp_path: Path) -> None:
    """Both slots of the body may point to the same memory then; other slots keep their promise."""
    kernel = compose(packed("sizes", H200), H200)
    origin = {b.origin: b.name for b in kernel.parameters}
    aliased = alias_members(kernel, {origin["q_4"]: origin["p_4"]})
    group = aliased.groups[0]
    assert set(group.shared) == {s.name for s, a in zip(group.slots, group.members[0].arguments, strict=True)
                                 if a.startswith(("p_", "q_")) or s.origin[0] in "pq"}
    assert set(group.shared) <= may_alias_itself(aliased)
    source = print_cuda(aliased, H200)
    for slot in group.slots:
        assert (f"__restrict__ const {slot.name} =" in source) == (slot.name not in group.shared)
    assert next(b.role for b in aliased.parameters if b.name == origin["p_4"]) == "inout"
    assert origin["q_4"] in written_buffers(aliased)
