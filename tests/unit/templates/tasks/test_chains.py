"""Chains in groups on the host executor: against f64, in order and in random legal orders, every access checked; planted faults."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler
from tests.unit.templates.tasks.chain_cases import CASES, legal_order, plain, winograd
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.tasks.bundles import prove_bundles
from tilefuse.kernel.tasks.extract import bundles_of, program_of
from tilefuse.kernel.tasks.proof import prove
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.target.device import H200
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.tasks.chains.build import axes_of_chain
from tilefuse.templates.tasks.chains.record import PRODUCER, PRODUCT, USER, GroupedChain, Rhythm, mixture_of
from tilefuse.templates.tasks.chains.regroup import Grouping, regrouped

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# The least distances and rings; two groups side by side; more of each than there is use for.
RHYTHMS = {"least": Rhythm(64, 1, 1, 1, (2, 2)), "two together": Rhythm(64, 2, 3, 1, (5, 4)), "wide": Rhythm(64, 1, 3, 2, (6, 5))}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_in_order_and_checked(name: str, tmp_path: Path) -> None:
    """With the distances of the model: right, and no access out of place or out of order."""
    case = CASES[name]()
    error, report = case.run(case.kernel(), tmp_path, check=True)
    assert not report and error < case.tolerance


@needs_compiler
@pytest.mark.parametrize("rhythm", RHYTHMS)
def test_small_rings_in_random_legal_orders(rhythm: str, tmp_path: Path) -> None:
    """Slots are used again several times; no order that the waits allow changes a result, or is a race."""
    case = winograd(9, 8, 16, 29, 1, 4, True)
    kernel = case.kernel(RHYTHMS[rhythm])
    assert len(kernel.groups[0].members) == 9
    order = legal_order(kernel, Random(len(rhythm)))
    assert sorted(order) == list(range(len(order))) != order
    for tried in (None, order):
        error, report = case.run(kernel, tmp_path, check=True, order=tried)
        assert not report and error < case.tolerance
    assert prove(program_of(kernel)) == [] == prove_bundles(bundles_of(kernel))


def with_body(kernel: Kernel, number: int, **changes: object) -> Kernel:
    """The kernel with fields of one group replaced."""
    group = kernel.groups[number]
    return replace(kernel, body=tuple(replace(s, **changes) if s is group else s for s in kernel.body))  # type: ignore[arg-type]


def with_fault(kernel: Kernel, fault: str) -> Kernel:
    """The kernel with a fault in its waits, its order or its rings."""
    product, user = kernel.groups[PRODUCT], kernel.groups[USER]
    names = [n for n, _ in product.numbers]
    assert kernel.tasks is not None and kernel.tasks.mixture is not None
    match fault:
        case "dropped publish":
            return with_body(kernel, PRODUCT, body=tuple(s for s in product.body if not isinstance(s, Publish)))
        case "dropped wait":
            return with_body(kernel, USER, body=tuple(s for s in user.body if not isinstance(s, Await)))
        case "count one too low":
            body = tuple(replace(s, value=s.value - 1) if isinstance(s, Await) and not s.value.axes() else s for s in product.body)
            return with_body(kernel, PRODUCT, body=body)
        case "slot reused too early":
            place = names.index("tf_slot_m")
            members = tuple(replace(m, numbers=(*m.numbers[:place], n % (len({x.numbers[place] for x in product.members}) - 1),
                                                *m.numbers[place + 1:])) for n, m in enumerate(product.members))
            return with_body(kernel, PRODUCT, members=members)
        case "no wait for the last reader":
            body = tuple(s for s in product.body if not (isinstance(s, Await) and s.value.axes()))
            return with_body(kernel, PRODUCT, body=body)
    first, second, *others = kernel.tasks.mixture.phases
    assert fault == "swapped order"
    return replace(kernel, tasks=replace(kernel.tasks, mixture=replace(kernel.tasks.mixture, phases=(second, first, *others))))


@needs_compiler
@pytest.mark.parametrize("fault", ["dropped publish", "dropped wait", "count one too low", "slot reused too early",
                                   "no wait for the last reader", "swapped order"])
def test_faults_are_found(fault: str, tmp_path: Path) -> None:
    """By both proofs; and by the checking mode of the host executor, which knows the order that waits establish."""
    case = winograd(9, 8, 16, 29, 1, 4, True)
    kernel = with_fault(case.kernel(RHYTHMS["wide"]), fault)
    assert prove_bundles(bundles_of(kernel)) and prove(program_of(kernel))
    assert case.run(kernel, tmp_path, check=True)[1], "the checking mode ends the kernel"


@pytest.mark.parametrize("name", CASES)
def test_patterns_over_groups_mean_the_same(name: str) -> None:
    """The interpreter's values of %v, %m and the result, group by group; those behind the end of the axis mean nothing."""
    case = CASES[name]()
    patterns = case.patterns
    axes = axes_of_chain(patterns)
    assert isinstance(axes, tuple)
    places = dict(zip(patterns.handed, axes, strict=True))
    extent = patterns.whole.type_of(patterns.handed[0]).shape[axes[0]]
    grouping = Grouping(extent, 16)
    shapes = {i.name: i.type.shape for i in patterns.whole.inputs}
    draw = np.random.default_rng(1)
    data = {n: draw.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    values = dict(data)
    for graph in (patterns.producer, patterns.product, patterns.user):
        values[graph.results[0]], = interpret(graph, {i.name: values[i.name] for i in graph.inputs})
    for graph in (patterns.producer, patterns.product, patterns.user):
        own = {v: p for v, p in places.items() if v in graph.type_by_name}
        grouped = regrouped(graph, own, grouping)
        assert grouped is not None
        given = {i.name: in_groups(values[i.name], own[i.name], grouping) if i.name in own else values[i.name] for i in grouped.inputs}
        result = graph.results[0]
        out, = interpret(grouped, given)
        expected = in_groups(values[result], own[result], grouping) if result in own else values[result]
        present = in_groups(np.ones_like(values[result]), own[result], grouping) if result in own else 1.0
        np.testing.assert_allclose(out * present, expected, rtol=1e-5, atol=1e-5)


def in_groups(value: np.ndarray, place: int, grouping: Grouping) -> np.ndarray:
    """The value with an axis cut in groups, which come first; zeros behind its end."""
    missing = grouping.count * grouping.length - grouping.extent
    padded = np.pad(value, [(0, missing if n == place else 0) for n in range(value.ndim)])
    shape = (*padded.shape[:place], grouping.count, grouping.length, *padded.shape[place + 1:])
    return np.moveaxis(padded.reshape(shape), place, 0)


def test_the_order_is_that_of_algorithm_1() -> None:
    """Producers of the distance first; then rounds of products with their share of producers, users some rounds behind; then the rest."""
    case = winograd(9, 8, 16, 29, 1, 4, True)
    program = case.program(RHYTHMS["wide"])
    choice = program.choice
    assert isinstance(choice, GroupedChain)
    sizes = [choice.tasks(n) for n in range(3)]
    order = list(mixture_of(choice).places())
    assert len(order) == choice.groups * sum(sizes)
    distance = 3 * sizes[PRODUCER]
    assert {body for body, _, _ in order[:distance]} == {PRODUCER} and order[distance][0] != PRODUCER or order[distance + 1][0] == PRODUCT
    first = {body: next(n for n, (b, _, _) in enumerate(order) if b == body) for body in (PRODUCT, USER)}
    assert first[USER] - first[PRODUCT] >= 2 * sizes[PRODUCT]
    # In the middle each stretch of one round has its share of all three bodies.
    middle = order[len(order) // 2:len(order) // 2 + sum(sizes)]
    shares = [sum(b == body for b, _, _ in middle) for body in range(3)]
    assert all(abs(a - b) <= 1 for a, b in zip(shares, sizes, strict=True))


def test_neighbours_are_proved() -> None:
    """Rhythms that a tuner tries are other kernels; rings that are too small are refused."""
    case = winograd(9, 8, 16, 29, 1, 4, True)
    program = case.program(RHYTHMS["wide"])
    others = neighbours(program, H200)[1:]
    assert len(others) > 8
    for choice in Random(1).sample(others, 6):
        other = program_with(program, choice, H200)
        assert other.choice == choice and dict(other.parameters) != dict(program.parameters)  # type: ignore[union-attr]
    choice = program.choice
    assert isinstance(choice, GroupedChain)
    small = program_with(program, replace(choice, rhythm=replace(choice.rhythm, slots=(3, 3))), H200)
    assert "wait for later ones" in str(small)


def test_a_chain_without_a_shared_axis_is_refused() -> None:
    """The other operand is the producer's: columns of %m are no tiles of %v."""
    case = plain()
    turned = replace(case.patterns, handed=("b", "m"))
    assert "is no product of" in str(axes_of_chain(turned))
