"""Every rule of the verifier: a graph that breaks it is found, its neighbour that keeps it is not."""
from __future__ import annotations

import pytest

from tilefuse.base.errors import VerifyError
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import RULES, check, verify

HEAD = "graph @g(%x: f32[4, 6], %ids: i64[4], %h: f16[4], %b: bool[4], %e: f32[0]) -> (f32[4]) {\n"
SPOILT: list[tuple[str, str]] = [
    ("one-definition", "%x: f32[4] = map [i] { 1.0:f32 }"),
    ("defined-before-use", "%y: f32[4] = map [i] { %later[i] }\n%later: f32[4] = map [i] { 1.0:f32 }"),
    ("axes-match", "%y: f32[4] = map [i, j] { 1.0:f32 }"),
    ("axes-match", "%y: f32[4, 4] = map [i, i] { 1.0:f32 }"),
    ("axes-match", "%y: f32[4] = map [i] { %x[i, k] }"),
    ("axes-match", "%y: f32[4] = map [i] { f32(index(k)) }"),
    ("axes-match", "%y: f32[4] = map [i] { %x[i, (k % 6)] }"),
    ("axes-match", "%y: f32[4] = map [i] { guard(0 <= k < 3 ? 1.0:f32 : 2.0:f32) }"),
    ("axes-match", "%y: f32[4] = reduce.sum [i] over [i < 3] { 1.0:f32 }"),
    ("axes-match", "%y: f32[4] = scan.sum [i] along j { 1.0:f32 }"),
    ("subscripts-match", "%y: f32[4] = map [i] { %x[i] }"),
    ("subscripts-match", "%y: f32[4] = gather [i] { lookup(%x, %ids[i]) }"),
    ("subscripts-match", "%y: f32[4, 6] = scatter.sum over [i < 4] into %x at [index(i)] { 1.0:f32 }"),
    ("reads-in-range", "%y: f32[4] = map [i] { %x[i + 1, 0] }"),
    ("reads-in-range", "%y: f32[4] = map [i] { %x[i, -1*i + 2] }"),
    ("reads-in-range", "%y: f32[4] = map [i] { guard(0 <= i < 3 ? %x[i + 2, 0] : 0.0:f32) }"),
    ("reads-in-range", "%y: f32[4] = map [i] { guard(0 <= i < 3 ? 0.0:f32 : %x[i + 1, 0]) }"),
    ("reads-in-range", "%y: f32[4] = gather [i] { lookup(%e, %ids[i]) }"),
    ("lookups-placed", "%y: f32[4] = map [i] { lookup(%x, %ids[i], 0:i64) }"),
    ("lookups-placed", "%y: f32[4] = reduce.sum [i] over [k < 2] { lookup(%x, %ids[i], 0:i64) }"),
    ("types-match", "%y: f16[4] = map [i] { add(%h[i], %h[i]) }"),
    ("types-match", "%y: f32[4] = map [i] { %h[i] }"),
    ("types-match", "%y: f16[4] = reduce.sum [i] over [k < 2] { %h[i] }"),
    ("types-match", "%y: f32[4] = reduce.argmax [i] over [k < 6] { %x[i, k] }"),
    ("types-match", "%y: f32[4] = gather [i] { lookup(%x, f32(%ids[i]), 0:i64) }"),
    ("types-match", "%y: f32[4, 6] = scatter.sum over [i < 4] into %x at [%x[i, 0], 0:i64] { 1.0:f32 }"),
    ("types-match", "%y: f32[4] = scatter.sum over [i < 4] into %x at [%ids[i]] { 1.0:f32 }"),
    ("types-match", "%y: bool[4] = reduce.any [i] over [k < 2] { index(k) }"),
]
SOUND: list[str] = [
    "%y: f32[4] = map [i] { guard(0 <= i + 1 < 4 ? %x[i + 1, 0] : 0.0:f32) }",
    "%y: f32[4] = map [i] { guard(0 <= i < 3 ? 0.0:f32 : %x[i + -3, 0]) }",
    "%y: f32[9] = map [i] { guard(0 <= i + -2 < 4 ? %x[i + -2, i + -1] : 0.0:f32) }",
    "%y: f32[4] = map [i] { guard(0 <= i + -1 < 4, 0 <= i + 5 < 7 ? %x[i + -1, i + 5 + -2] : 0.0:f32) }",
    "%y: f32[24] = map [k] { %x[(k // 6), (k % 6)] }",
    "%y: f32[4, 6] = map [i, j] { %x[-1*i + 3, -1*j + 5] }",
    "%y: f32[0] = map [i] { %x[i + 100, 0] }",
    "%y: f32[4] = reduce.sum [i] over [k < 0] { %x[i, k + 100] }",
    "%y: f16[4] = map [i] { select(%b[i], %h[i], 0.5:f16) }",
    "%y: f16[4] = scatter.set over [i < 4] into %h at [%ids[i]] { %h[i] }",
    "%y: i64[4] = reduce.argmax [i] over [k < 6] { %x[i, k] }",
    "%y: f32[4, 6] = gather [i, j] { lookup(%x, %ids[i], index(j + 100)) }",
    "%y: f32[4] = map [i] { guard(0 <= i < 4 ? %x[i, 0] : %x[i + 50, 0]) }",
    "%y: f32[10] = map [i] { guard(0 <= i < 4 ? %x[i, 0] : guard(4 <= i < 6 ? %x[i + -4, 1] : %x[i + -6, 2])) }",
]


@pytest.mark.parametrize(("rule", "node"), SPOILT)
def test_a_broken_rule_is_found(rule: str, node: str) -> None:
    graph = parse_graph(f"{HEAD}{node}\nreturn %x }}", check=False)
    assert rule in {finding.rule for finding in verify(graph)}
    with pytest.raises(VerifyError, match=rule):
        check(graph, "a test")


@pytest.mark.parametrize("node", SOUND)
def test_a_sound_node_is_left_alone(node: str) -> None:
    graph = parse_graph(f"{HEAD}{node}\nreturn %y }}", check=False)
    assert verify(graph) == []
    check(graph, "a test")


@pytest.mark.parametrize("tail", [
    "return %nothing", "update %nothing = %x return %x", "update %x = %ids return %x", "update %x = %nothing return %x",
    "update %x = %x update %x = %x return %x",
])
def test_results_and_updates(tail: str) -> None:
    graph = parse_graph(f"{HEAD}{tail} }}", check=False)
    assert {finding.rule for finding in verify(graph)} == {"results-exist"}


def test_every_rule_has_a_test() -> None:
    assert {rule for rule, _ in SPOILT} | {"known-kind", "results-exist"} == set(RULES)


def test_many_findings_are_cut_short() -> None:
    nodes = "\n".join(f"%y{n}: f32[4] = map [i] {{ %x[i, 9] }}" for n in range(30))
    with pytest.raises(VerifyError, match="30 rule.*(?s:.)*and 10 more"):
        check(parse_graph(f"{HEAD}{nodes}\nreturn %x }}", check=False), "a test")
