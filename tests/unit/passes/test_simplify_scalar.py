"""Every scalar rule: its examples match, its exactness is what it says, on NaN, infinities, both zeros and subnormals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import BOOL, F16, F32, I32, I64, DType
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.interpret import interpret
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Const, Expr, Read, reads, transform
from tilefuse.ir.text import parse_expr, print_expr
from tilefuse.passes.scalar_rules import RULES, Rule
from tilefuse.passes.simplify_scalar import Simplifier, simplify_scalars

LEAVES: dict[str, DType] = {"x": F32, "y": F32, "h": F16, "n": I32, "m": I32, "k": I64, "b": BOOL}
INF, NAN = float("inf"), float("nan")
SPECIAL = {
    "float": [0.0, -0.0, 1.0, -1.0, 2.5, -3.0, INF, -INF, NAN, 1e-40, -1e-45, 1.1754944e-38, 65504.0, -7e4, 3e38, 0.1, 6e-8],
    "int": [0, 1, -1, 2, 3, -7, 2**31 - 1, -(2**31), 255],
    "bool": [False, True],
}
EXAMPLES = [(r, text) for r in RULES for text in r.examples]
IDS = [f"{r.name}: {text}" for r, text in EXAMPLES]


def read_dtype(value: str) -> DType:
    return LEAVES[value]


def evaluate(e: Expr, leaves: list[str]) -> np.ndarray:
    """Values of `e` at every combination of special values of the given leaves."""
    used = sorted(leaves)
    points = list(itertools.product(*(SPECIAL[LEAVES[v].kind] for v in used)))
    arrays = {}
    with np.errstate(all="ignore"):
        for n, v in enumerate(used):
            arrays[v] = np.array([p[n] for p in points]).astype(NUMPY_DTYPES[LEAVES[v].name])
    spread = transform(e, lambda x: Read(x.value, (axis("i"),)) if isinstance(x, Read) else x)
    node = Node("r", Type(dtype_of(e, read_dtype), (len(points),)), "map", ("i",), body=spread)
    inputs = tuple(Input(v, Type(LEAVES[v], (len(points),))) for v in used)
    (found,) = interpret(Graph("case", inputs, (node,), ("r",)), arrays)
    return np.asarray(found)


def same_bits(a: np.ndarray, c: np.ndarray) -> bool:
    """Equality of every bit, with all NaNs alike."""
    if a.dtype != c.dtype:
        return False
    if a.dtype.kind not in "biu":
        wide_a, wide_c = a.astype(np.float64), c.astype(np.float64)
        both_nan = np.isnan(wide_a) & np.isnan(wide_c)
        return bool((both_nan | ((wide_a == wide_c) & (np.signbit(wide_a) == np.signbit(wide_c)))).all())
    return bool((a == c).all())


@pytest.mark.parametrize("rule, text", EXAMPLES, ids=IDS)
def test_every_example_is_rewritten_and_exact_rules_keep_every_bit(rule: Rule, text: str) -> None:
    before = parse_expr(text)
    after = rule.apply(before, lambda e: dtype_of(e, read_dtype))
    assert after is not None, f"{rule.name} does not match its example {text}"
    assert dtype_of(after, read_dtype) == dtype_of(before, read_dtype), f"{text} -> {print_expr(after)} changes the dtype"
    if rule.exact:
        assert same_bits(evaluate(before, reads(before)), evaluate(after, reads(before))), f"{rule.name}: {text} -> {print_expr(after)}"


@pytest.mark.parametrize("rule, text", EXAMPLES, ids=IDS)
def test_a_rule_does_not_match_its_own_result_again(rule: Rule, text: str) -> None:
    """Otherwise the simplifier would run forever."""
    simplifier = Simplifier([rule], read_dtype)
    once = simplifier.run(parse_expr(text))
    assert simplifier.run(once) is once


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_every_rule_is_documented_and_has_examples(rule: Rule) -> None:
    assert rule.doc and rule.examples


@pytest.mark.parametrize("first, second", list(itertools.product(EXAMPLES, EXAMPLES))[::37])
def test_all_rules_together_keep_exact_examples(first: tuple[Rule, str], second: tuple[Rule, str]) -> None:
    """Rules do not undo each other: combined expressions settle, and exact rules stay exact in company."""
    a, c = parse_expr(first[1]), parse_expr(second[1])
    if dtype_of(a, read_dtype) != dtype_of(c, read_dtype):
        return
    whole = parse_expr(f"select(%b[], {print_expr(a)}, {print_expr(c)})")
    settled = simplify_scalars(whole, read_dtype, eager_rounding=True)
    assert simplify_scalars(settled, read_dtype, eager_rounding=True) is settled
    if len(reads(whole)) <= 4:
        assert same_bits(evaluate(whole, reads(whole)), evaluate(settled, reads(whole))), print_expr(settled)


@pytest.mark.parametrize(
    "text",
    [
        "add(%x[], 0.0:f32)",
        "mul(%x[], 0.0:f32)",
        "maximum(0.0:f32, %x[])",
        "div(%x[], 3.0:f32)",
        "eq(%x[], %x[])",
        "sub(%x[], %x[])",
        "logical_not(lt(%x[], %y[]))",
        "f32(f16(%x[]))",
        "sub(%x[], -0.0:f32)",
        "i32(f32(%n[]))",
        "maximum(maximum(%x[], 0.0:f32), -0.0:f32)",
        "i32(nan:f32)",
        "div(%x[], 0.0:f32)",
    ],
)
def test_what_would_not_be_exact_is_left_alone_under_eager_rounding(text: str) -> None:
    e = parse_expr(text)
    assert simplify_scalars(e, read_dtype, eager_rounding=True) is e


def test_round_trips_through_narrow_floats_go_and_quantisation_stays() -> None:
    assert (
        print_expr(simplify_scalars(parse_expr("f16(add(f32(f16(mul(f32(%h[]), 3.0:f32))), 1.0:f32))"), read_dtype))
        == "f16(add(mul(f32(%h[]), 3.0:f32), 1.0:f32))"
    )
    quantised = parse_expr("f32(f8e4m3(%x[]))")
    assert simplify_scalars(quantised, read_dtype) is quantised


def test_powers_of_large_expressions_are_not_repeated() -> None:
    e = parse_expr("pow(add(%x[], %y[]), 2.0:f32)")
    assert simplify_scalars(e, read_dtype) is e


def test_constants_fold_in_their_own_type() -> None:
    assert print_expr(simplify_scalars(parse_expr("bf16(div(1.0:f32, 3.0:f32))"), read_dtype)).endswith(":bf16")
    assert print_expr(simplify_scalars(parse_expr("u8(300:i32)"), read_dtype)) == "44:u8"


@pytest.mark.parametrize("p", [0.9, 0.1, 0.5, 2.0**-24, 1 - 2.0**-24, 2.0**-30, 0.5 + 2.0**-24])
def test_a_uniform_number_is_compared_by_its_bits_without_error(p: float) -> None:
    """Around the threshold itself: the words whose upper 24 bits are next to p * 2^24."""
    e = simplify_scalars(parse_expr(f"lt(random_uniform(%k[], %k[]), {p!r}:f32)"), read_dtype)
    assert isinstance(e, Call) and isinstance(e.args[1], Const)
    near = int(p * 2**24)
    words = np.array([w << 8 | low for w in range(max(near - 3, 0), min(near + 4, 2**24)) for low in (0, 255)], dtype=np.uint64)
    assert ((words >> 8) * 2.0**-24 < np.float32(p)).tolist() == (words < e.args[1].value).tolist()
