"""Patterns judged in one graph are not judged again in another, and nothing of a plan shows whether they were."""
from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.golden.workloads import WORKLOADS
from tests.unit.plan.graphs import layers, softmax
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.custom import custom_texts, register_function, unregister_function
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.plan.pattern import Cost, Pattern, Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price import structure
from tilefuse.plan.price.known_patterns import (
    Figures,
    Judgement,
    judgement_text,
    parse_judgement,
    renamed_reason,
)
from tilefuse.plan.price.price import Pricer, Scheduler
from tilefuse.plan.price.structure import Structures
from tilefuse.plan.select.ilp import Selection
from tilefuse.plan.select.selection_text import parse_selection, selection_text
from tilefuse.target.device import H200
from tilefuse.templates.staged.stitched.record import Stitched


class Kept:
    """A store in memory that counts."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.num_put = 0

    def get(self, digest: str) -> str | None:
        return self.texts.get(digest)

    def put(self, digest: str, text: str) -> None:
        self.texts[digest] = text
        self.num_put += 1


def planned(graph: Graph, store: Kept | None) -> Plan:
    return plan_graph(graph, {}, H200, Options(), store=store)


def num_new(graph: Graph, store: Kept) -> int:
    """Judgements that planning the graph adds."""
    before = store.num_put
    planned(graph, store)
    return store.num_put - before


def renamed(graph: Graph, suffix: str = "_of_another") -> Graph:
    """The graph with other names for all its values."""
    return parse_graph(re.sub(r"%([A-Za-z0-9_.]+)", rf"%\1{suffix}", print_graph(graph)))


def told(plan: Plan) -> tuple[object, ...]:
    """All that a plan decides and explains."""
    search = None if plan.search is None else replace(plan.search, seconds=0.0)
    return plan.steps, plan.rejected, plan.num_rejected, plan.objective_us, plan.unfused_us, search


def growing(count: int) -> Graph:
    """Layers that all differ in width, each a normalisation with a library product behind it."""
    widths = [640 + 64 * n for n in range(count + 1)]
    given = ", ".join(f"const %w{n}: f32[{a}, {b}]" for n, (a, b) in enumerate(pairwise(widths)))
    sums = ", ".join(f"f32[{w}]" for w in widths[:-1])
    lines = [f"graph @growing(%x0: f32[4096, {widths[0]}], {given}) -> (f32[4096, {widths[-1]}], {sums}) {{"]
    for n, (a, b) in enumerate(pairwise(widths)):
        lines += [f"  %t{n}: f32[4096, {a}] = map [i, j] {{ tanh(%x{n}[i, j]) }}",
                  f"  %s{n}: f32[4096] = reduce.sum [i] over [k < {a}] {{ %t{n}[i, k] }}",
                  f"  %d{n}: f32[4096, {a}] = map [i, j] {{ div(%t{n}[i, j], %s{n}[i]) }}",
                  f"  %c{n}: f32[{a}] = reduce.sum [j] over [k < 4096] {{ %d{n}[k, j] }}",
                  f"  %x{n + 1}: f32[4096, {b}] = library.matmul (%d{n}, %w{n})"]
    return parse_graph("\n".join([*lines, f"  return %x{count}, {', '.join(f'%c{n}' for n in range(count))}", "}"]))


def test_a_graph_with_other_names_has_nothing_new() -> None:
    store = Kept()
    assert num_new(layers(3), store) > 5
    assert num_new(renamed(layers(3)), store) == 0


def test_one_changed_node_judges_what_touches_it_only() -> None:
    store = Kept()
    first = num_new(growing(6), store)
    text = print_graph(renamed(growing(6)))
    changed = parse_graph(text.replace("tanh(%x3_of_another[i, j])", "exp(%x3_of_another[i, j])"))
    assert 0 < num_new(changed, store) <= first / 3
    assert num_new(changed, store) == 0


def test_a_model_that_shares_layers_judges_its_own_only() -> None:
    store = Kept()
    first = num_new(growing(4), store)
    assert 0 < num_new(growing(5), store) <= first / 2
    assert num_new(growing(3), store) <= first / 3  # what is last now was not before


@pytest.mark.parametrize("name", ["softmax", "layer-norm", "packed-kinds", "packed-updates", "stitched-gates",
                                  "norm-backward", "walked-attention"])
def test_a_plan_does_not_show_where_it_came_from(name: str) -> None:
    """Equal steps, names of kernels (digests of all that they are), reasons and figures: without a store, with an empty one, and with
    one that was filled by a graph of other names."""
    graph = WORKLOADS[name].graph
    store = Kept()
    planned(renamed(graph), store)
    filled = store.num_put
    afresh = told(planned(graph, None))
    assert told(planned(graph, store)) == afresh
    assert store.num_put == filled
    assert told(planned(graph, Kept())) == afresh


def test_repeated_layers_do_not_show_it_either() -> None:
    graph, store = layers(4), Kept()
    planned(renamed(layers(7)), store)
    assert told(planned(graph, store)) == told(planned(graph, None))


def steps_of_rows(steps: int) -> Graph:
    """A recurrence with a product that reads another row of one input in each step, and two rows in the gates."""
    lines = "\n".join(f"""%r{n}: f32[32, 64] = map [i, j] {{ add(%h{n - 1}[i, j], %x[{2 * n}, i, j]) }}
      %p{n}: f32[32, 64] = library.matmul (%r{n}, %w)
      %h{n}: f32[32, 64] = map [i, j] {{ mul(tanh(%p{n}[i, j]), %x[{2 * n + 1}, i, j]) }}""" for n in range(1, steps + 1))
    return parse_graph(f"""graph @steps(%h0: f32[32, 64], %x: f32[{2 * steps + 2}, 32, 64], const %w: f32[64, 64]) -> (f32[32, 64]) {{
      {lines}
      return %h{steps}
    }}""")


def test_patterns_with_products_that_read_from_another_start_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, scheduled = steps_of_rows(6), list[tuple[object, bool]]()
    whole, of_plans = Pricer._scheduled, Pricer._required

    def counted(self: Pricer, pattern: Pattern, values: tuple[str, ...], scheduler: Scheduler) -> TileProgram | Rejected:
        if (form := self._tiles_form(pattern, values)) is not None:
            scheduled.append((form, scheduler is self._ways.one))
        return whole(self, pattern, values, scheduler)

    def built(self: Pricer, pattern: Pattern, values: tuple[str, ...], scheduler: Scheduler) -> TileProgram:
        number = len(scheduled)
        program = of_plans(self, pattern, values, scheduler)
        del scheduled[number:]
        return program

    monkeypatch.setattr(Pricer, "_scheduled", counted)
    monkeypatch.setattr(Pricer, "_required", built)
    plan = planned(graph, Kept())
    assert len([form for form, is_one in scheduled if is_one]) == len({form for form, is_one in scheduled if is_one}) > 2
    assert told(plan) == told(planned(graph, None))


def test_reasons_speak_of_the_graph_at_hand() -> None:
    """No name of the graph that filled the store is in the other one's explanation."""
    store = Kept()
    planned(renamed(growing(3), "_elsewhere"), store)
    plan = planned(growing(3), store)
    assert plan.rejected == planned(growing(3), None).rejected and plan.num_rejected
    assert not any("_elsewhere" in str(r.rejected) for r in plan.rejected)


def digests_count() -> None:
    """Everything that decides a kernel decides its digest."""
    graph = softmax()

    def digest(graph: Graph, nodes: tuple[str, ...] = ("e", "y"), written: tuple[str, ...] = ("y",), more: object = None,
               **layouts: tuple[int, ...]) -> str:
        return Structures(graph, layouts).digest(Pattern(nodes, written), more)

    def with_text(old: str, new: str) -> Graph:
        text = print_graph(graph)
        assert old in text
        return parse_graph(text.replace(old, new))

    others = [
        digest(graph, written=("e", "y")), digest(graph, nodes=("m", "e", "y")), digest(graph, nodes=("e",), written=("e",)),
        digest(graph, x=(1, 4)), digest(graph, y=(1, 4)), digest(graph, more="packed"), digest(graph, more=Stitched((4, 8), 128)),
        digest(with_text("exp(", "tanh(")), digest(with_text("[4, 8]", "[4, 16]")), digest(with_text("f16(div", "f16(mul")),
        digest(with_text("map [i, j] { exp(sub(f32(%x[i, j]), %m[i])) }", "map [i, j] { exp(sub(%m[i], f32(%x[i, j]))) }")),
    ]
    assert len({digest(graph), *others}) == len(others) + 1
    assert digest(graph) == digest(renamed(graph), ("e_of_another", "y_of_another"), ("y_of_another",))


def test_everything_that_decides_a_kernel_counts() -> None:
    digests_count()


def test_attributes_and_order_of_operands_count() -> None:
    """Products that differ in precision, or in which operand stands twice, are no equals: neither in one graph nor between two."""
    graph = parse_graph("""graph @g(%x: f32[64, 64], %w: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) {
      %a: f32[64, 64] = library.matmul (%x, %w)
      %b: f32[64, 64] = library.matmul (%x, %w) {precision = "tf32"}
      return %a, %b
    }""")
    forms = Structures(graph, {})
    first, second = Pattern(("a",), ("a",)), Pattern(("b",), ("b",))
    assert forms.key(first) != forms.key(second)
    assert forms.digest(first) != forms.digest(second)


def custom_function_counts() -> None:
    """A function of another text under the same name."""
    graph = parse_graph("graph @g(%x: f32[64]) -> (f32[64]) {\n  %y: f32[64] = map [i] { exp(%x[i]) }\n  return %y\n}")
    found = set()
    for text in ("x * 2", "x * 3"):
        register_function("twofold", "(x: float) -> float", text, meaning=lambda x: x)
        try:
            calling = parse_graph(print_graph(graph).replace("exp(", "twofold("))
            found.add(Structures(calling, {}).digest(Pattern(("y",), ("y",))))
        finally:
            unregister_function("twofold")
    assert len(found) == 2


def test_the_text_of_a_custom_function_counts() -> None:
    custom_function_counts()


@pytest.mark.parametrize(("attribute", "fault", "test"), [
    ("custom_texts", lambda graph: (), custom_function_counts),
    ("anonymous", lambda node, reads: (node.kind, node.type), digests_count),
    ("digest_text", lambda text: text.replace("exp", "tanh"), digests_count),
])
def test_a_digest_that_forgets_something_is_found(attribute: str, fault: object, test: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert custom_texts(softmax()) == ()
    monkeypatch.setattr(structure, attribute, fault)
    with pytest.raises(AssertionError):
        test()  # type: ignore[operator]


NAMES = ("a", "b.1", "y")


@pytest.mark.parametrize("judged", [
    Judgement((Figures("row", 132, 1 << 40, 3), Cost(1 / 3, "bandwidth"), 1e-9), None),
    Judgement((Figures("stitched", 1, 2, 3, (0, 2)), Cost(2.0, "launch"), 0.0), Stitched((16, 64), 256, 8)),
    Judgement(Rejected(Reason.DOMAIN_MISMATCH, "%a is needed at [k0] but %b.1 at 3%; see %y."), None),
])
def test_judgements_round_trip(judged: Judgement) -> None:
    text = judgement_text(judged, NAMES)
    assert text is not None and "\n" not in text
    assert parse_judgement(text, NAMES) == judged
    elsewhere = parse_judgement(text, ("p", "q", "r"))
    assert elsewhere is not None and (elsewhere == judged) == (not isinstance(judged.verdict, Rejected))


def test_a_reason_that_names_a_stranger_is_not_kept() -> None:
    assert judgement_text(Judgement(Rejected(Reason.MEMORY, "%stranger is empty"), None), NAMES) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", "null", '["no-such-reason", "x", null]', '[["row", 1], [1, "x"], 2, null]',
                                  '["memory", "\x01999\x02", null]', '[["row", 1, 2, 3, 4, []], [1], 2, null]', "[[1, 2], 3, 4, [5]]"])
def test_what_is_no_judgement_is_not_believed(text: str) -> None:
    assert parse_judgement(text, NAMES) is None
    assert parse_selection(text, 4) is None


def test_selections_round_trip() -> None:
    chosen = Selection((0, 3), 1.5, 1.5, 2, 1, 0.0, True)
    assert parse_selection(selection_text(chosen), 4) == chosen
    assert parse_selection(selection_text(chosen), 3) is None  # of another program


def test_a_reason_is_told_again_in_the_names_of_another_pattern() -> None:
    why = Rejected(Reason.UNSUPPORTED_OP, "%b reads %a.1, 2 of 3")
    assert renamed_reason(why, ("a.1", "b"), ("x", "y")) == Rejected(Reason.UNSUPPORTED_OP, "%y reads %x, 2 of 3")
    assert renamed_reason(why, ("b",), ("y",)) is None
