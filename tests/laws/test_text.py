"""Laws of the text form: round trips, equal text if and only if equal graph, printing never raises."""
from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.random_graphs import graphs
from tilefuse.base.errors import ParseError
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import DTYPES, F32
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.scalar import Call, Guard, Read, const
from tilefuse.ir.text import parse_expr, parse_graph, print_expr, print_graph
from tilefuse.ir.verify import verify

attribute = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6,
)


@given(graphs())
def test_parsing_what_was_printed_gives_the_graph(graph: Graph) -> None:
    text = print_graph(graph)
    assert parse_graph(text) == graph
    assert print_graph(parse_graph(text)) == text


@given(graphs(num_nodes=2), graphs(num_nodes=2))
def test_equal_text_if_and_only_if_equal_graph(a: Graph, b: Graph) -> None:
    assert (print_graph(a) == print_graph(b)) == (a == b)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True), attribute, max_size=4))
def test_attributes_round_trip(attributes: dict[str, object]) -> None:
    node = Node("y", Type(F32, (2,)), "library.aten.op.default", operands=("x",), attributes=tuple(sorted(attributes.items())))
    graph = Graph("g", (Input("x", Type(F32, (2,))),), (node,), ("y",))
    found = parse_graph(print_graph(graph))
    assert found == graph
    assert repr(found) == repr(graph)  # True and 1 and 1.0 are equal to Python, but not to us


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_name_round_trips(name: str, other: str) -> None:
    graph = Graph(name, (Input(other, Type(F32, ())),), (), (other,))
    assert parse_graph(print_graph(graph)) == graph


@given(st.sampled_from(sorted(DTYPES)), st.floats() | st.integers())
def test_constants_round_trip(dtype: str, value: float | int) -> None:
    if not DTYPES[dtype].is_float and isinstance(value, float):
        value = int(value) if abs(value) < 1e30 else 0
    e = const(value, DTYPES[dtype])
    assert parse_expr(print_expr(e)) == e
    assert print_expr(parse_expr(print_expr(e))) == print_expr(e)


@given(st.text(alphabet="graph@%xy()[]{}<>=,:?-+*/ \n\"0123456789.ifn", max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Whatever is read, the answer is a graph or a ParseError with a place."""
    try:
        parse_graph(text)
    except ParseError as error:
        assert error.where is not None


@given(graphs(num_nodes=3), st.data())
def test_a_damaged_text_is_refused_with_its_place(graph: Graph, data: st.DataObject) -> None:
    text = print_graph(graph)
    at = data.draw(st.integers(0, len(text) - 1))
    piece = data.draw(st.sampled_from(["", "(", ")", "%", "5", "[", ",", " x ", "//", "~"]))
    try:
        parse_graph(text[:at] + piece + text[at + 1:])
    except ParseError as error:
        assert error.where is not None and error.where.line >= 1


@given(graphs(num_nodes=3), st.data())
def test_printing_and_verifying_never_raise(graph: Graph, data: st.DataObject) -> None:
    """Also on graphs that break the rules."""
    if not graph.nodes:
        return
    n = data.draw(st.integers(0, len(graph.nodes) - 1))
    node = graph.nodes[n]
    broken = data.draw(st.sampled_from([
        replace(node, kind="mystery.sum"),
        replace(node, axes=(*node.axes, "z")),
        replace(node, body=None),
        replace(node, type=Type(F32, (9, 9))),
        replace(node, body=Read("nothing", (number(3),))),
        replace(node, body=Call("nothing", ())),
        replace(node, body=Guard((), const(1, F32), const(2, DTYPES["i8"]))),
        replace(node, along="q"),
        replace(node, over=(("i", 3), ("i", -2))),
        replace(node, target=(const(1, F32),)),
        replace(node, operands=("a", "b")),
        replace(node, name=""),
    ]))
    damaged = replace(graph, nodes=(*graph.nodes[:n], broken, *graph.nodes[n + 1:]), results=("missing", *graph.results))
    assert print_graph(damaged)
    assert verify(damaged)
