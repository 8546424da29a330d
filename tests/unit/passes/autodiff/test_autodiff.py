"""The parts of autodiff: what adjoint texts become, what sums take out, how slices are put side by side."""
from __future__ import annotations

import numpy as np
import pytest

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F32, F64, DType
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Read, call, cast, const, walk
from tilefuse.ir.text import parse_expr
from tilefuse.passes import DEFAULT_PIPELINE, PassContext, Pipeline
from tilefuse.passes.autodiff.autodiff import gradient_graph
from tilefuse.passes.autodiff.scalar import UNKNOWN, BodyAdjoint, parsed_rule, rounded_back, simplified_call, told_by_result
from tilefuse.passes.autodiff.sums import INNER, _factored, _with_inner, side_by_side

X, Y, G = (Read(name, (axis("i"),)) for name in "xyg")
ONE, TWO, ZERO = (const(n, F64) for n in (1, 2, 0))
LESS = call("lt", X, Y)


def f64(_: str) -> DType:
    return F64


def adjoint(text: str, *, value: Expr | None = None) -> dict[str, Expr]:
    """Adjoints of the reads of a body over %x[i] and %y[i], for the gradient %g[i]."""
    found = BodyAdjoint({"x", "y"}, f64).run(parse_expr(text), G, value)
    return {item.read.value: item.adjoint for item in found}


def test_every_adjoint_text_is_a_rule() -> None:
    """All texts of the operator table parse, and name their own arguments only."""

    def leaves(rule: object) -> set[str]:
        if isinstance(rule, str):
            return {rule}
        return set().union(*(leaves(a) for a in rule[1])) if isinstance(rule, tuple) else set()

    for op in SCALAR_OPS.values():
        for text in op.adjoint:
            if text not in ("0", UNKNOWN):
                assert leaves(parsed_rule(text)) <= {f"x{n}" for n in range(op.arity)} | {"y", "g"}, op.name
    with pytest.raises(InternalError, match="neither a name"):
        parsed_rule("g + 1")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (simplified_call("mul", ONE, X), X),
        (simplified_call("mul", X, const(-1, F64)), call("neg", X)),
        (simplified_call("mul", TWO, call("mul", TWO, X)), call("mul", const(4, F64), X)),
        (simplified_call("add", ZERO, X), X),
        (simplified_call("sub", ZERO, call("neg", X)), X),
        (simplified_call("div", X, ONE), X),
        (simplified_call("pow", X, ONE), X),
        (simplified_call("select", LESS, G, G), G),
        (simplified_call("mul", TWO, call("select", LESS, X, ZERO)), call("select", LESS, call("mul", TWO, X), ZERO)),
    ],
)
def test_what_constants_settle_is_not_written(made: Expr, expected: Expr) -> None:
    assert made == expected


def test_a_product_with_itself_is_twice_one_contribution() -> None:
    assert adjoint("mul(%x[i], %x[i])") == {"x": call("mul", TWO, call("mul", G, X))}
    assert adjoint("add(%x[i], sub(%y[i], %x[i]))")["y"] == G


def test_the_result_is_read_again_at_the_root_only() -> None:
    value = Read("r", (axis("i"),))
    assert adjoint("exp(%x[i])", value=value) == {"x": call("mul", G, value)}
    assert adjoint("mul(exp(%x[i]), %y[i])", value=value)["x"] == call("mul", call("mul", G, Y), call("exp", X))


def test_relu_asks_its_result_and_the_constant_wins() -> None:
    value = Read("r", (axis("i"),))
    assert adjoint("maximum(%x[i], 0.0:f64)", value=value) == {"x": call("select", call("gt", value, ZERO), G, ZERO)}
    body = parse_expr("select(le(%x[i], 0.0:f64), 0.0:f64, %x[i])")
    assert isinstance(body, Call)
    assert told_by_result(body, value, lambda read: None).args[0] == call("le", value, ZERO)
    assert told_by_result(body, value, lambda read: Y).args[0] == call("le", Y, ZERO)
    strict = parse_expr("select(lt(%x[i], 0.0:f64), 0.0:f64, %x[i])")
    assert isinstance(strict, Call)
    assert told_by_result(strict, value, lambda read: None) is strict, "the result cannot tell 0 from less"


def test_guards_stand_around_contributions() -> None:
    bound = (Bound(axis("i"), 1, 3),)
    found = BodyAdjoint({"x", "y"}, f64).run(Guard(bound, X, call("neg", Y)), G, None)
    assert [item.adjoint for item in found] == [Guard(bound, G, ZERO), Guard(bound, ZERO, call("neg", G))]


def test_conversions_on_the_way_do_not_round() -> None:
    wide = call("mul", Read("w", ()), Read("w", ()))

    def kinds(name: str) -> DType:
        return F32 if name == "w" else BF16

    assert rounded_back(cast(wide, BF16), BF16, F32, kinds) == wide
    assert rounded_back(cast(Read("n", ()), F32), F32, BF16, kinds) == Read("n", ())
    assert rounded_back(const(1, F32), F32, BF16, kinds) == const(1, BF16)


def test_sums_take_out_what_does_not_vary() -> None:
    """g * ((x - m) * r) summed over k, with r and m fixed: r comes out, m stays inside its difference."""
    varying = Read("x", (axis("k"),))
    fixed = Read("r", (axis("i"),))
    body = call("mul", Read("g", (axis("k"),)), call("mul", call("sub", varying, Read("m", ())), fixed))
    outside, inside = _factored(body, {"k"})
    assert outside is not None
    assert _with_inner(outside, G) == call("mul", G, fixed)
    assert inside == call("mul", Read("g", (axis("k"),)), call("sub", varying, Read("m", ())))
    assert _factored(varying, {"k"}) == (None, varying)
    assert INNER not in (X, Y)


def test_slices_side_by_side_become_a_choice() -> None:
    i = axis("i")
    terms: list[Expr] = [Guard((Bound(i, 2, 4),), Y, ZERO), X, Guard((Bound(i - 1, -1, 1),), G, ZERO)]
    assert side_by_side(terms, ("i",), (4,), ZERO) == [X, Guard((Bound(i, 0, 2),), G, Y)]
    overlapping: list[Expr] = [Guard((Bound(i, 0, 3),), X, ZERO), Guard((Bound(i, 1, 4),), Y, ZERO)]
    assert len(side_by_side(overlapping, ("i",), (4,), ZERO)) == 2
    assert side_by_side([Guard((Bound(i, 1, 2),), X, ZERO)], ("i",), (4,), ZERO)[0] == Guard(
        (Bound(i, 0, 1),), ZERO, Guard((Bound(i, 1, 2),), X, ZERO))


def test_a_recurrence_that_reads_its_input_step_by_step() -> None:
    """The gradient of the input is a choice between the steps', with no sum of zeros; that of the weight one product after the passes."""
    b = TensorBuilder("steps")
    x, w = b.input("x", F32, (2, 5, 3)), b.input("w", F32, (3, 3))
    h = b.full((2, 3), 0.0, F32)
    for t in range(5):
        h = b.elementwise("tanh", b.elementwise("add", b.select(x, 1, t), b.matmul(h, w)))
    made = gradient_graph(b.finish([b.reduce(h, "sum")]), "reduce_sum", [x, w])
    (of_x,) = [n for n in made.nodes if n.name == "d_x"]
    assert of_x.body is not None and not any(isinstance(e, Call) for e in walk(of_x.body))
    ready = Pipeline.parse(DEFAULT_PIPELINE).run(made, PassContext())
    products = [n for n in ready.nodes if n.kind == "library.matmul" and ready.type_of(n.name).shape == (3, 3)]
    assert len(products) <= 1


def test_constant_gradients_are_not_kept() -> None:
    """Of a sum of sums nothing is left but a constant, whatever the shapes on the way."""
    b = TensorBuilder("constant")
    x = b.input("x", F64, (2, 3))
    made = gradient_graph(b.finish([b.reduce(b.reduce(b.permute(x, (1, 0)), "sum", 0), "sum")]), "reduce_sum_1", [x])
    (node,) = made.nodes[3:]
    assert isinstance(node.body, Const) and node.body.value == 1.0 and node.type.shape == (2, 3)
    assert number(0).is_const and np.prod(node.type.shape) == 6
