"""Which kernels may approximate functions of f32, and how far the approximations are from the functions."""
from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from importlib import resources

import numpy as np
import pytest

from tests.unit.templates.fit_narrow import fits
from tests.unit.templates.host_build import FLAGS, build, compiler
from tilefuse.domain.tile import TileProgram
from tilefuse.ir import meaning
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.ops import NARROW_CUDA, NARROW_FLOPS, NARROW_ONE_PLUS, NARROW_ONE_PLUS_FLOPS, NARROW_SCALED, NARROW_SCALED_FLOPS, flops_of
from tilefuse.ir.scalar import Read, call, const
from tilefuse.ir.short_forms import short_flops, short_form
from tilefuse.ir.text import parse_graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_graph

ROWS = "  %s: f32[512] = reduce.sum [i] over [k < 1024] { exp(f32(%x[i, k])) }\n"
CASES = {
    "16 bits an element": (True, "f16", "f16[512, 1024]", "  %y: f16[512, 1024] = map [i, j] { f16(exp(f32(%x[i, j]))) }\n  return %y\n}"),
    "f32 an element": (False, "f16", "f32[512, 1024]", "  %y: f32[512, 1024] = map [i, j] { exp(f32(%x[i, j])) }\n  return %y\n}"),
    "f32 a row of f16": (True, "f16", "f32[512]", ROWS + "  return %s\n}"),
    "f32 a row of f32": (False, "f32", "f32[512]", ROWS.replace("f32(%x[i, k])", "%x[i, k]") + "  return %s\n}"),
    "mask of what is not approximated": (True, "f16", "bool[512, 1024]",
                                         "  %y: bool[512, 1024] = map [i, j] { lt(f32(%x[i, j]), 0.5:f32) }\n  return %y\n}"),
    "mask of what is": (False, "f16", "bool[512, 1024]",
                        "  %y: bool[512, 1024] = map [i, j] { lt(exp(f32(%x[i, j])), 0.5:f32) }\n  return %y\n}"),
    "i32 an element": (False, "f16", "i32[512, 1024]", "  %y: i32[512, 1024] = map [i, j] { i32(exp(f32(%x[i, j]))) }\n  return %y\n}"),
    "position a row": (True, "f16", "i64[512]",
                       "  %s: i64[512] = reduce.argmax [i] over [k < 1024] { exp(f32(%x[i, k])) }\n  return %s\n}"),
}


def graph_of(name: str) -> Graph:
    _, source, result, body = CASES[name]
    return parse_graph(f"graph @g(%x: {source}[512, 1024]) -> ({result}) {{\n{body}")


@pytest.mark.parametrize("name", CASES)
def test_only_results_that_cannot_show_it_allow_approximations(name: str) -> None:
    tile = schedule_graph(graph_of(name), {}, H200)
    assert isinstance(tile, TileProgram)
    assert compose(tile, H200).narrow == CASES[name][0]


# ---------------------------------------------------------------- error of the approximations

# The instructions at the ends of the error that the PTX ISA allows them; `first` and `second` are -1, 0 or 1.
HARDWARE = """
#include <cmath>
#define TF_INLINE static inline
static float first = 0, second = 0;
static float tf_hardware_exp2(float a) {
  const double y = std::exp2((double)a) * (1.0 + first * 0x1p-22);
  return std::fabs(y) < 0x1p-126 ? 0.0f : (float)y;
}
static float tf_hardware_log2(float a) {
  const double y = std::log2((double)a);
  return (float)(a > 0.5f && a < 2.0f ? y + first * 0x1p-22 : y * (1.0 + first * 0x1p-22));
}
static float tf_hardware_reciprocal(float a) { return (float)(1.0 / (double)a * (1.0 + second * 0x1p-23)); }
static float tf_hardware_reciprocal_normal(float a) {
  const float y = tf_hardware_reciprocal(a);
  return std::fabs(y) < 0x1p-126f ? 0.0f * y : y;
}
static float tf_hardware_div(float a, float b) { return (float)((double)a / (double)b * (1.0 + second * 0x1p-22)); }
static float tf_hardware_sqrt(float a) { return (float)(std::sqrt((double)a) * (1.0 + second * 0x1p-23)); }
"""
APPLY = """
extern "C" void apply_{name}(const float* x, float* y, long n, int a, int b) {{
  first = a; second = b;
  for (long i = 0; i < n; ++i) y[i] = tf_narrow_{call};
}}
"""
# Scale and factor of GELU, and the factor's binary logarithm.
SCALE, FACTOR, LOG2_FACTOR = float(np.float32(0.5**0.5)), 0.5, -1.0
# Calls of forms that take constants; others are called with the operand alone.
CALLS = {
    "one_plus_erf": "one_plus_erf(x[i], 1.0f, 1.0f, 0.0f)", "one_plus_tanh": "one_plus_tanh(x[i], 1.0f, 1.0f, 0.0f)",
    "scaled_one_plus_erf": f"one_plus_erf(x[i], {SCALE!r}f, {FACTOR}f, {LOG2_FACTOR}f)",
    "scaled_one_plus_tanh": f"one_plus_tanh(x[i], {SCALE!r}f, {FACTOR}f, {LOG2_FACTOR}f)",
    "scaled_exp": f"scaled_exp(x[i], -{SCALE!r}f, {FACTOR}f, {LOG2_FACTOR}f)",
}
# Functions of one operand: the exact one in f64.
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p, "reciprocal": lambda x: 1 / x,
    "sigmoid": meaning.sigmoid, "sqrt": np.sqrt, "tanh": np.tanh, "erf": meaning.erf,
    "one_plus_erf": lambda x: meaning.erfc(-x), "one_plus_tanh": lambda x: 2 * meaning.sigmoid(2 * x),
    "scaled_one_plus_erf": lambda x: FACTOR * meaning.erfc(-SCALE * x),
    "scaled_one_plus_tanh": lambda x: 2 * FACTOR * meaning.sigmoid(2 * SCALE * x), "scaled_exp": lambda x: FACTOR * np.exp(-SCALE * x),
}
# one_plus_erf: what the fit leaves where erfc is small.
FLOOR = dict.fromkeys(("one_plus_erf", "scaled_one_plus_erf"), 3e-11 + 1e-12)
# Functions that lose what rounding a large operand costs.
OF_LARGE = ("exp", "exp2", "scaled_exp", "one_plus_tanh", "scaled_one_plus_tanh", "sigmoid")


def samples() -> np.ndarray:
    """Special values, every f16, and f32 numbers dense in logarithm on both sides of 0 and around 1."""
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-38, 2.0**-126, 88.0, -88.0, -103.0, 20.0, -20.0])
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    sizes = np.exp2(np.linspace(-30, 7, 60_001))
    close = np.linspace(-1, 1, 20_001) * 0.3
    return np.concatenate([special, halves, sizes, -sizes, close, 1 + close, 1 + np.linspace(-1, 1, 2001) * 2.0**-10]).astype(np.float32)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The support header itself, compiled for the host."""
    if compiler() is None:
        pytest.skip("no C++ compiler")
    header = (resources.files("tilefuse.printers.support") / "cuda_narrow.cuh").read_text()
    source = HARDWARE + header.partition("//@ tf_narrow_random_normal")[0]
    source += "".join(APPLY.format(name=name, call=CALLS.get(name, f"{name}(x[i])")) for name in EXACT)
    return build(source, tmp_path_factory.mktemp("narrow"), (*FLAGS, "-ffp-contract=off", "-Wno-unused-function"))


@pytest.mark.parametrize("name", EXACT)
def test_approximations_keep_their_error(name: str, library: ctypes.CDLL) -> None:
    """Relative error below 2^-16, for exp and exp2 of large operands what rounding the operand costs; special values as the exact ones."""
    x = samples()
    with np.errstate(all="ignore"):
        exact = np.asarray(EXACT[name](x.astype(np.float64)))
        as_f32 = exact.astype(np.float32)
        apply = getattr(library, f"apply_{name}")
        for first, second in ((0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)):
            got = np.empty_like(x)
            apply(x.ctypes.data_as(ctypes.c_void_p), got.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(x.size), first, second)
            special = ~np.isfinite(as_f32) | (as_f32 == 0)
            same = (got == as_f32) | (np.isnan(got) & np.isnan(as_f32)) | (np.abs(got) < 2.0**-124) & (np.abs(as_f32) < 2.0**-124)
            # Next to an overflow the error may decide; what is below 2^-124 may be lost.
            overflow = (np.abs(exact) > 3e38) & (np.abs(got) > 3e38)
            assert (same | overflow)[special].all(), (name, x[special & ~same][:5], got[special & ~same][:5])
            bound = 2.0**-16 + (np.abs(x.astype(np.float64)) * 2.0**-23 if name in OF_LARGE else 0)
            near = np.abs(got - exact) <= bound * np.abs(exact) + FLOOR.get(name, 0.0)
            wrong = ~special & ~near & ~same & ~overflow
            assert not wrong.any(), (name, x[wrong][:5], got[wrong][:5], exact[wrong][:5])


def test_every_approximation_is_tried_here() -> None:
    forms = {f"{kind}one_plus_{name}" for name in NARROW_ONE_PLUS for kind in ("", "scaled_")}
    forms |= {f"scaled_{name}" for name in NARROW_SCALED}
    assert set(NARROW_CUDA) - {"random_normal", "div"} | forms == set(EXACT)


def test_coefficients_are_those_of_the_fit() -> None:
    """To the digits that a least-squares fit has on any machine."""
    header = (resources.files("tilefuse.printers.support") / "cuda_narrow.cuh").read_text()
    for name, coefficients in fits().items():
        body = header.partition(f"//@ {name}\n")[2].partition("//@ ")[0]
        written = [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?(?=f)", body)]
        for c in coefficients:
            assert any(abs(w - c) <= 2e-5 * abs(c) for w in written), (name, c)


FORMS = {
    "mul(mul({x}, 0.5:f32), add(1:f32, erf(mul({x}, 0.75:f32))))": "tf_narrow_one_plus_erf({x}, 0.75f, 0.5f, (-1.0f))",
    "mul(add(erf(mul(0.75:f32, {x})), 1:f32), mul(0.25:f32, {x}))": "tf_narrow_one_plus_erf({x}, 0.75f, 0.25f, (-2.0f))",
    "mul({x}, add(1:f32, tanh(mul({x}, 0.75:f32))))": "tf_narrow_one_plus_tanh({x}, 0.75f, 1.0f, 0.0f)",
    "add(1:f32, erf(mul({x}, -0.75:f32)))": "tf_narrow_one_plus_erf(({x} * (-0.75f)), 1.0f, 1.0f, 0.0f)",
    "mul(2:f32, add(1:f32, erf({x})))": "(2.0f * tf_narrow_one_plus_erf({x}, 1.0f, 1.0f, 0.0f))",
    "mul({x}, add(2:f32, erf({x})))": "(2.0f + tf_narrow_erf({x}))",
    "mul({x}, mul(exp(mul({x}, -0.5:f32)), 0.25:f32))": "tf_narrow_scaled_exp({x}, (-0.5f), 0.25f, (-2.0f))",
    "mul(0.5:f32, exp({x}))": "tf_narrow_scaled_exp({x}, 1.0f, 0.5f, (-1.0f))",
    "mul(2:f32, exp(mul({x}, -0.5:f32)))": "(2.0f * tf_narrow_exp(({x} * (-0.5f))))",
}


@pytest.mark.parametrize("form", FORMS)
def test_constants_become_part_of_short_forms(form: str) -> None:
    """Positive factors up to 1 and positive scales; others stay multiplications."""
    body = form.format(x="f32(%x[i])")
    graph = parse_graph(f"graph @g(%x: f16[512]) -> (f16[512]) {{\n  %y: f16[512] = map [i] {{ f16({body}) }}\n  return %y\n}}")
    tile = schedule_graph(graph, {}, H200)
    assert isinstance(tile, TileProgram)
    text = print_cuda(compose(tile, H200), H200)
    (line,) = (ln for ln in text[text.index('extern "C"'):].splitlines() if re.search(r"one_plus|narrow_(erf|exp|scaled_exp)\(", ln))
    operand = re.search(r"tf_narrow_\w+\(\(?\(?([\w\[\]]+(?:\([\w\[\]]+\))?)", line)
    assert operand and FORMS[form].format(x=operand.group(1)) in line, line


def test_prices_count_short_forms() -> None:
    """GELU: seven multiply-adds, an exponential, a comparison, a difference, a product; and what is no short form as everywhere."""
    x = Read("x", ())
    form = call("mul", call("mul", x, const(0.5, F32)), call("add", const(1, F32), call("erf", call("mul", x, const(0.75, F32)))))
    assert short_flops(form) == NARROW_ONE_PLUS_FLOPS["erf"] + 1
    assert short_flops(call("erf", x)) == NARROW_FLOPS["erf"] and short_flops(call("add", x, x)) == flops_of(call("add", x, x)) == 1
    gauss = call("mul", const(0.4, F32), call("exp", call("mul", call("mul", x, x), const(-0.5, F32))))
    assert short_flops(gauss) == NARROW_SCALED_FLOPS["exp"] + 1
    assert short_form(call("mul", x, x)) is None and short_form(call("mul", call("add", const(1, F32), call("erf", x)), x)) is None
