"""C expressions read as calls of the operator table: values as C computes them, and refusals where it would compute something else."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilefuse.base.errors import CompilerError, NameLookupError, UserError
from tilefuse.ir.custom_expression import table_text
from tilefuse.ir.ops import SCALAR_OPS

NAMES = {"x": "x0", "b": "x1", "y": "y", "g": "g"}
GIVEN = {"x0": -2.5, "x1": 0.75, "y": 3.0, "g": 2.0}


def value(text: str) -> Any:
    functions = {name: lambda *given, op=op: op.meaning(*(np.asarray(a) for a in given)) for name, op in SCALAR_OPS.items()}
    return float(eval(table_text(text, NAMES, "adjoint"), functions, {n: np.float64(v) for n, v in GIVEN.items()}))


@pytest.mark.parametrize("text, wanted", [
    ("g * y * (1 - y)", -12.0),
    ("x > 0 ? x : b > 0 ? 5 : 6", 5.0),
    ("x if x > 0 else 5 if b > 0 else 6", 5.0),
    ("(x > 0) + (b > 0) * 3", 3.0),
    ("x > 0 || !(b > 1) && g ? 1.0 : 2.0", 1.0),
    ("!x", 0.0),
    ("-b ** 2", -0.5625),
    ("x - b - g", -5.25),
    ("x / b / g", -2.5 / 0.75 / 2),
    ("T(1) / 2", 0.5),
    ("(T)1 / 2 + (float)b + double(x)", 0.5 + 0.75 - 2.5),
    ("int(x) * 1.0", -2.0),
    ("0.1f", float(np.float32(0.1))),
    ("expf(b) + fabsf(x) + fmaxf(x, b)", math.exp(0.75) + 2.5 + 0.75),
    ("max(x, b) - min(x, b)", 3.25),
    ("round(x)", -3.0),  # C: halves away from zero
    ("rint(x)", -2.0),
    ("fdim(b, x) + fdim(x, b)", 3.25),
    ("where(x > 0, 1, 2)", 2.0),
    ("sigmoid(0)", 0.5),
    ("1e-3 /* small */ + .5 // and half", 0.501),
    ("return g * x;", -5.0),
    ("T e = x * x, f = e + 1; const T h = f; return h;", 7.25),
    ("T s = 0; if (x > 0) s = 1; else if (b > 0) { s = 2; s += g; } s *= 10; return s;", 40.0),
    ("if (x > 0) { return 1.0; } if (g > 1) if (b > 1) return 2.0; else return 3.0; return 4.0;", 3.0),
    ("bool p = x; return p + 1.0;", 2.0),
])
def test_values_are_those_of_c(text: str, wanted: float) -> None:
    assert value(text) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("text, error, words", [
    ("1 / 2 * x", UserError, "quotient of two integers"),
    ("(x > 0 ? 1 : 0) / 2", UserError, "quotient of two integers"),
    ("x < b < g", UserError, "two comparisons in a row"),
    ("x ^ 2", UserError, "no arithmetic"),
    ("x[0]", UserError, "no arithmetic"),
    ("x b", UserError, "follows a whole expression"),
    ("(x", UserError, "is missing before 'the end'"),
    ("x *", UserError, "is no expression"),
    ("z", NameLookupError, "unknown name z"),
    ("tgamma(x)", NameLookupError, "calls tgamma"),
    ("pow(x)", NameLookupError, "calls pow with 1 arguments"),
    ("T a = x; T a = b; return a;", UserError, "declared twice"),
    ("a = x; return a;", UserError, "not declared"),
    ("T a; return a;", UserError, "gets no value"),
    ("while (x > 0) return x; return b;", UserError, "'while' cannot be read"),
    ("if (x > 0) return x;", UserError, "not every way"),
    ("T a = x * x; " + "a *= a; " * 14 + "return a;", UserError, "too long"),
])
def test_refusals(text: str, error: type[CompilerError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        table_text(text, NAMES, "adjoint of operator mine")
    assert str(caught.value).startswith("adjoint of operator mine")
