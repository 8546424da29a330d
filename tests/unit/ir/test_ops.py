"""The operator table: every record is whole, means what numpy or torch means on special values, and has a working adjoint."""
from __future__ import annotations

import math
import re
from itertools import product

import numpy as np
import pytest
import scipy.special
import torch

from tilefuse.base.errors import NameLookupError, TypeMismatchError
from tilefuse.ir import meaning
from tilefuse.ir.dtype import BOOL, DTYPES, F16, F32, F64, I32, I64, U8, DType
from tilefuse.ir.monoids import MONOIDS, Monoid, monoid_result
from tilefuse.ir.ops import OPERAND_CLASSES, SCALAR_OPS, SUPPORT_FUNCTIONS, conversion_text, convert, dtype_of, flops_of
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Const, Expr, Guard, Index, Lookup, Read, call, cast, const
from tilefuse.ir.text import parse_expr

SPECIAL_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-40, 3.0e38, math.inf, -math.inf, math.nan, 100.0, -88.0, 1e-8, 0.999]
SPECIAL_INTS = {"i32": [0, 1, -1, 2, -7, 31, 33, 2**31 - 1, -(2**31)], "i64": [0, 1, -1, 3, -9, 63, 65, 2**63 - 1, -(2**63)],
                "u32": [0, 1, 2, 7, 31, 33, 2**32 - 1], "u64": [0, 1, 2, 9, 63, 65, 2**64 - 1]}


def special(dtype: str) -> list[float | int | bool]:
    if dtype in ("i8", "u8", "i16", "u16"):
        return [0, 1, 2, 127]
    return SPECIAL_INTS.get(dtype) or ([False, True] if dtype == "bool" else SPECIAL_FLOATS)


def run(fn: str, dtype: str, *args: object) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(SCALAR_OPS[fn].meaning(*(np.asarray(a, dtype=NUMPY_DTYPES[dtype]) for a in args)))


def grid(dtype: str, arity: int) -> list[np.ndarray]:
    points = list(product(special(dtype), repeat=arity))
    with np.errstate(all="ignore"):
        return [np.array([p[n] for p in points], dtype=NUMPY_DTYPES[dtype]) for n in range(arity)]


CASES = [(op.name, dtype) for op in SCALAR_OPS.values() for dtype in op.dtypes]


# ---------------------------------------------------------------- completeness

@pytest.mark.parametrize("name", SCALAR_OPS)
def test_every_record_is_whole(name: str) -> None:
    op = SCALAR_OPS[name]
    assert op.name == name and op.doc and op.flops >= 1
    assert len(op.adjoint) == op.arity
    for texts in (op.cuda, op.host):
        assert sorted(texts) == sorted(op.dtypes)
        for text in texts.values():
            assert re.findall(r"\{(\d)\}", text) and sorted(re.findall(r"\{(\d)\}", text)) == [str(n) for n in range(op.arity)]
            for support in re.findall(r"\btf_\w+", text):
                assert support in SUPPORT_FUNCTIONS, f"{name} calls {support}, which nobody describes"


def test_support_functions_are_all_used() -> None:
    texts = [text for op in SCALAR_OPS.values() for texts in (op.cuda, op.host) for text in texts.values()]
    texts += [conversion_text(a, b) for a in DTYPES.values() for b in DTYPES.values()]
    assert set(SUPPORT_FUNCTIONS) == set(re.findall(r"\btf_\w+", " ".join(texts)))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_meaning_keeps_the_dtype_and_never_raises(name: str, dtype: str) -> None:
    op = SCALAR_OPS[name]
    args = grid(dtype, op.arity)
    if name == "select":
        args[0] = np.resize([True, False], args[1].shape)
    with np.errstate(all="ignore"):
        found = np.asarray(op.meaning(*args))
    assert found.dtype == NUMPY_DTYPES[dtype if op.result == "same" else op.result]
    assert found.shape == args[-1].shape
    # One at a time gives the same as all at once.
    with np.errstate(all="ignore"):
        single = [op.meaning(*(np.asarray(a[n]) for a in args)) for n in range(0, len(args[0]), 7)]
    wide = np.float64 if DTYPES[dtype].is_float and op.result == "same" else found.dtype
    np.testing.assert_array_equal(np.asarray(single, dtype=found.dtype).astype(wide), found[::7].astype(wide))


# ---------------------------------------------------------------- meanings against independent references

TORCH_OF = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "neg": torch.neg, "abs": torch.abs, "minimum": torch.minimum,
    "maximum": torch.maximum, "fmin": torch.fmin, "fmax": torch.fmax, "div": torch.div, "floordiv": torch.floor_divide,
    "mod": torch.remainder, "fmod": torch.fmod, "pow": torch.pow, "reciprocal": torch.reciprocal, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin,
    "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh,
    "acosh": torch.acosh, "atanh": torch.atanh, "erf": torch.erf, "erfc": torch.erfc, "erfinv": torch.erfinv,
    "lgamma": torch.lgamma, "digamma": torch.digamma, "sigmoid": torch.sigmoid, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "atan2": torch.atan2, "hypot": torch.hypot, "copysign": torch.copysign,
    "nextafter": torch.nextafter, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite, "signbit": torch.signbit,
    "bit_and": torch.bitwise_and, "bit_or": torch.bitwise_or, "bit_xor": torch.bitwise_xor, "bit_not": torch.bitwise_not,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
    "logical_not": torch.logical_not,
}

ABSOLUTE = {"digamma": 1e-6, "lgamma": 1e-14}  # both have zeros, near which torch's error is absolute


@pytest.mark.parametrize(("name", "dtype"), [c for c in CASES if c[0] in TORCH_OF and c[1] in ("f64", "f32", "i32", "i64", "bool")])
def test_meaning_is_torchs(name: str, dtype: str) -> None:
    """On all combinations of special values, where torch has an answer (its integer division by zero raises)."""
    args = grid(dtype, SCALAR_OPS[name].arity)
    if dtype.startswith("i") and name in ("floordiv", "mod", "fmod"):
        keep = (args[1] != 0) & ~((args[1] == -1) & (args[0] == args[0].min()))
        args = [a[keep] for a in args]
    if dtype.startswith("i") and name == "pow":
        args = [a[args[1] >= 0] for a in args]
    if name in ("sin", "cos", "tan"):
        args = [np.where(np.abs(a) > 1e30, 1.0, a).astype(a.dtype) for a in args]
    if dtype == "f32" and name in ("mod", "fmod"):  # torch's vectors lose quotients beyond f32
        with np.errstate(all="ignore"):
            keep = np.isfinite(args[0] / args[1]) | ~np.isfinite(args[0])
        args = [a[keep] for a in args]
    expected = TORCH_OF[name](*(torch.from_numpy(a) for a in args)).numpy()
    with np.errstate(all="ignore"):
        found = np.asarray(SCALAR_OPS[name].meaning(*args))
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    # torch's vectorised functions are within a few units in the last place; subnormal results may be flushed.
    epsilon = np.finfo(found.dtype).eps
    np.testing.assert_allclose(found, expected, rtol=32 * epsilon, atol=ABSOLUTE.get(name, 2 * np.finfo(found.dtype).tiny))


def test_gamma_and_error_functions_against_scipy() -> None:
    x = np.concatenate([np.linspace(-5.3, 30, 701), [1e-6, 1e5, 1e300]])
    np.testing.assert_allclose(meaning.digamma(x), scipy.special.digamma(x), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(meaning.lgamma(x), scipy.special.gammaln(x), rtol=1e-12, atol=1e-13)
    for order in (1, 2, 5):
        ahead = x[x > 0] if order > 1 else x
        np.testing.assert_allclose(meaning.polygamma(np.array(float(order)), ahead), scipy.special.polygamma(order, ahead), rtol=1e-12)
    # psi_2(x) = psi_2(x + 1) - 2 / x^3
    np.testing.assert_allclose(meaning.polygamma(np.array(2.0), np.array([-1.3])),
                               scipy.special.polygamma(2, 0.7) + 2 * (0.3**-3 + 1.3**-3), rtol=1e-12)
    y = np.concatenate([np.linspace(-1, 1, 999), 1 - np.logspace(-15, -1, 60), np.logspace(-300, -1, 60)])
    np.testing.assert_allclose(meaning.erfinv(y), scipy.special.erfinv(y), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["i32", "i64", "u32", "u64"])
def test_integer_division_by_python(dtype: str) -> None:
    """Against Python's unbounded integers, wrapped; 0 where the divisor is 0."""
    bits = DTYPES[dtype].bits

    def wrap(value: int) -> int:
        value %= 1 << bits
        return value - (1 << bits) if dtype.startswith("i") and value >> (bits - 1) else value

    def truncated(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    for a, b in product(special(dtype), repeat=2):
        assert run("floordiv", dtype, a, b) == (wrap(a // b) if b else 0), (a, b)
        assert run("truncdiv", dtype, a, b) == (wrap(truncated(a, b)) if b else 0), (a, b)
        assert run("mod", dtype, a, b) == (a % b if b else 0), (a, b)
        assert run("fmod", dtype, a, b) == (a - b * truncated(a, b) if b else 0), (a, b)
        assert run("shift_left", dtype, a, b) == (wrap(a << b) if 0 <= b < bits else 0), (a, b)
        assert run("shift_right", dtype, a, b) == (a >> b if 0 <= b < bits else (-1 if a < 0 else 0)), (a, b)
        if 0 <= b < 100:
            assert run("pow", dtype, a, b) == wrap(a**b), (a, b)
    if dtype.startswith("i"):
        assert [int(run("pow", dtype, a, -3)) for a in (1, -1, 0, 5)] == [1, -1, 0, 0]


def test_fma_rounds_once() -> None:
    a = np.float32(1 + 2**-12)
    assert run("fma", "f32", a, a, -1.0) == np.float32(2**-11 + 2**-24)
    assert np.float32(a * a) - np.float32(1) != run("fma", "f32", a, a, -1.0)


# ---------------------------------------------------------------- random numbers

def test_philox_known_vectors() -> None:
    """Source: kat_vectors of the authors' Random123 library, philox4x32 with 10 rounds (counter words 2 and 3 are 0 for us)."""
    words = meaning.philox(np.int64(0), np.int64(0))
    assert [int(w) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def reference_philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> list[int]:
    """The round function written out on Python integers."""
    (k0, k1), c = key, list(counter)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def test_philox_reference_meets_the_published_vectors() -> None:
    """Source: Random123's kat_vectors, all three lines for philox4x32-10."""
    ones = 0xFFFFFFFF
    assert reference_philox((ones, ones), (ones,) * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert reference_philox((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)) == [
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize(("seed", "counter"), [(0, 1), (-1, -1), (2**62 + 12345, 2**40 + 7), (42, 2**32)])
def test_philox_halves(seed: int, counter: int) -> None:
    def halves(x: int) -> tuple[int, int]:
        return x & 0xFFFFFFFF, (x >> 32) & 0xFFFFFFFF

    expected = reference_philox(halves(seed), (*halves(counter), 0, 0))
    assert [int(w) for w in meaning.philox(np.int64(seed), np.int64(counter))] == expected


@pytest.mark.parametrize("seed", [0, -1, 2**62 + 12345])
@pytest.mark.parametrize("first", [0, 4 * 2**32 - 2, 2**62 + 1, -6])
def test_four_counters_share_a_block(seed: int, first: int) -> None:
    """random_bits(seed, c) is word (c mod 4) of Philox at c div 4, also across 32 bits and for negative counters."""
    counters = np.arange(first, first + 9, dtype=np.int64)
    halves = [(x & 0xFFFFFFFF, (x >> 32) & 0xFFFFFFFF) for x in (seed, *(c // 4 for c in counters.tolist()))]
    expected = [reference_philox(halves[0], (*block, 0, 0))[c % 4] for block, c in zip(halves[1:], counters.tolist(), strict=True)]
    assert meaning.random_bits(np.int64(seed), counters).tolist() == expected
    assert meaning.random_bits(np.int64(seed), np.int64(first)) == expected[0]


def test_first_random_bits_are_the_published_vector() -> None:
    assert meaning.random_bits(np.int64(0), np.arange(4)).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_random_numbers_have_their_distributions() -> None:
    counter = np.arange(200_000, dtype=np.int64)
    uniform = meaning.random_uniform(np.int64(7), counter)
    assert uniform.dtype == np.float32 and uniform.min() >= 0 and uniform.max() < 1
    # Mean and variance within five standard errors of 200,000 draws.
    assert abs(uniform.mean() - 0.5) < 5 * math.sqrt(1 / 12 / counter.size)
    normal = meaning.random_normal(np.int64(7), counter)
    assert np.isfinite(normal).all()
    assert abs(normal.mean()) < 5 / math.sqrt(counter.size)
    assert abs(normal.var() - 1) < 5 * math.sqrt(2 / counter.size)
    # The numbers that share a block are not correlated: four standard errors of a product's mean over the 50,000 blocks.
    for x in (uniform - 0.5, normal):
        lanes = x.reshape(-1, 4).astype(np.float64)
        products = [(lanes[:, a] * lanes[:, b]).mean() / lanes.var() for a in range(4) for b in range(a)]
        assert max(map(abs, products)) < 4 / math.sqrt(lanes.shape[0])


# ---------------------------------------------------------------- adjoints

PLACEHOLDERS = ("x0", "x1", "x2", "y", "g")


def evaluate_adjoint(text: str, values: dict[str, np.ndarray]) -> np.ndarray:
    """An adjoint's text in f64: bare numbers are f64 constants."""
    plain = re.sub(r"\b(x0|x1|x2|y|g)\b", lambda m: f"%{m.group()}[]", text)
    plain = re.sub(r"(?<![\w.])(-?\d+(?:\.\d+)?)(?![\w.])", r"\1:f64", plain)

    def go(e: Expr) -> np.ndarray:
        match e:
            case Const():
                return np.float64(e.value)
            case Read(value, _):
                return values[value]
            case Call(fn, args):
                return np.asarray(SCALAR_OPS[fn].meaning(*(go(a) for a in args)))
        raise AssertionError(e)

    return np.asarray(go(parse_expr(plain)), dtype=np.float64)


DOMAINS = {"acosh": (1.2, 3.0), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "erfinv": (-0.9, 0.9),
           "log": (0.2, 3), "log2": (0.2, 3), "log10": (0.2, 3), "log1p": (-0.5, 3), "sqrt": (0.2, 3), "rsqrt": (0.2, 3), "cbrt": (0.2, 3),
           "pow": (0.3, 2.5), "lgamma": (0.3, 4), "reciprocal": (0.3, 3), "div": (0.3, 3), "hypot": (0.3, 3), "tan": (-1, 1),
           "mod": (0.3, 3), "fmod": (0.3, 3), "digamma": (0.3, 4), "polygamma": (0.5, 4)}


@pytest.mark.parametrize("name", [op.name for op in SCALAR_OPS.values() if "f64" in op.dtypes and op.result == "same"])
def test_adjoint_is_the_derivative(name: str) -> None:
    """Against central differences in f64; "0" only for functions that are flat almost everywhere; an order is a whole number."""
    op = SCALAR_OPS[name]
    rng = np.random.default_rng(3)
    low, high = DOMAINS.get(name, (-2.0, 2.0))
    args = [rng.uniform(low, high, 50) for _ in range(op.arity)]
    if name == "select":
        args[0] = np.asarray(args[0] > 0)
    if name == "polygamma":
        args[0] = np.tile([1.0, 2.0], 25)
    if name == "nextafter":
        pytest.skip("differs from its operand by one unit in the last place")
    step = 1e-6
    with np.errstate(all="ignore"):
        y = np.asarray(op.meaning(*args))
        values = {f"x{n}": a for n, a in enumerate(args)} | {"y": y, "g": np.full(50, 1.5)}
        for n, text in enumerate(op.adjoint):
            if args[n].dtype == np.bool_ or (name, n) == ("polygamma", 0):
                continue
            up, down = ([a + (s if k == n else 0) for k, a in enumerate(args)] for s in (step, -step))
            difference = 1.5 * (np.asarray(op.meaning(*up)) - np.asarray(op.meaning(*down))) / (2 * step)
            found = np.broadcast_to(evaluate_adjoint(text, values), 50)
            smooth = np.abs(difference) < 1e4  # steps of floor and its like
            np.testing.assert_allclose(found[smooth], difference[smooth], rtol=1e-5, atol=1e-6, err_msg=f"{name}, argument {n}")


# ---------------------------------------------------------------- conversions

def test_conversions_match_numpy_and_torch() -> None:
    x = np.array([0.0, -0.0, 1.5, -1.5, 2.5, 300.7, -300.7, 65519.0, 65520.0, 1e-8, np.inf, np.nan], dtype=np.float32)
    for to in ("f16", "bf16", "f64", "f8e5m2", "f8e4m3"):
        expected = torch.from_numpy(x).to({"f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64, "f8e5m2": torch.float8_e5m2,
                                           "f8e4m3": torch.float8_e4m3fn}[to]).double().numpy()
        np.testing.assert_array_equal(convert(x, F32, DTYPES[to]).astype(np.float64), expected, err_msg=to)
    finite = np.array([0.9, -0.9, 1.5, -1.5, 100.7, -100.7], dtype=np.float32)
    for to in ("i8", "i16", "i32", "i64"):
        np.testing.assert_array_equal(convert(finite, F32, DTYPES[to]), np.trunc(finite).astype(NUMPY_DTYPES[to]))
    assert convert(np.array([300, -1]), I64, U8).tolist() == [44, 255]
    assert convert(np.array([0.1, 0.0, -0.0, np.nan]), F64, BOOL).tolist() == [True, False, False, True]
    for to in DTYPES.values():
        for source in DTYPES.values():
            assert convert(np.zeros(2, NUMPY_DTYPES[source.name]), source, to).dtype == NUMPY_DTYPES[to.name]
            assert conversion_text(source, to).count("{0}") == 1


# ---------------------------------------------------------------- types

def reads(name: str) -> DType:
    return {"h": F16, "x": F32, "d": F64, "n": I32, "b": BOOL}[name]


@pytest.mark.parametrize(("text", "expected"), [
    ("add(%x[], 1.0:f32)", F32), ("f16(add(f32(%h[]), %x[]))", F16), ("lt(%x[], %x[])", BOOL), ("select(%b[], %h[], %h[])", F16),
    ("index(3)", I64), ("random_uniform(index(1), index(2))", F32), ("lookup(%h, %n[])", F16), ("guard( ? %d[] : 0.0:f64)", F64),
])
def test_dtype_of(text: str, expected: DType) -> None:
    assert dtype_of(parse_expr(text), reads) == expected


@pytest.mark.parametrize(("e", "message"), [
    (call("add", Read("h", ()), Read("h", ())), "got f16"),
    (call("add", Read("x", ()), Read("d", ())), "differ in dtype: f32, f64"),
    (call("exp", Read("n", ())), "exp takes f32 f64"),
    (call("exp", Read("x", ()), Read("x", ())), "takes 1 operands, got 2"),
    (call("select", Read("x", ()), Read("x", ()), Read("x", ())), "condition"),
    (Call("f32", ()), "takes one operand"),
    (Guard((), Read("x", ()), Read("d", ())), "branches"),
    (Lookup("h", (Read("x", ()),)), "not an integer"),
])
def test_dtype_of_misuse(e: Expr, message: str) -> None:
    with pytest.raises(TypeMismatchError, match=re.escape(message)):
        dtype_of(e, reads)


def test_unknown_function_offers_names() -> None:
    with pytest.raises(NameLookupError, match="did you mean .*sqrt"):
        dtype_of(call("sqrtt", Read("x", ())), reads)


def test_flops_count_the_dearer_branch() -> None:
    assert flops_of(Guard((), call("add", Read("x", ()), Read("x", ())), const(0, F32))) == 1
    assert flops_of(cast(call("exp", call("add", Read("x", ()), Read("x", ()))), F16)) > 2


# ---------------------------------------------------------------- monoids

def apply_expr(e: Expr) -> np.ndarray:
    match e:
        case Const(_, dtype):
            return np.asarray(e.value, dtype=NUMPY_DTYPES[dtype.name])
        case Call(fn, args):
            with np.errstate(all="ignore"):
                return np.asarray(SCALAR_OPS[fn].meaning(*(apply_expr(a) for a in args)))
        case Index(affine):
            return np.asarray(affine.const)
    raise AssertionError(e)


def constant(value: np.ndarray, dtype: DType) -> Const:
    return const(value.item(), dtype)


def folded(monoid: Monoid, elements: list[object], dtype: DType, shape: str) -> np.ndarray:
    """The elements combined by the record's own expressions, from the left or as a balanced tree, identity included."""
    types = monoid.components(dtype)
    parts = [monoid.lift(const(x, dtype), const(n, I64), dtype) for n, x in enumerate(elements)]
    parts = [monoid.identity(dtype), *parts, monoid.identity(dtype)]

    def combine(a: tuple[Const, ...], b: tuple[Const, ...]) -> tuple[Const, ...]:
        return tuple(constant(apply_expr(e), t) for e, t in zip(monoid.combine(a, b, dtype), types, strict=True))

    if shape == "left":
        total = parts[0]
        for p in parts[1:]:
            total = combine(total, p)
    else:
        while len(parts) > 1:
            half = [combine(parts[n], parts[n + 1]) for n in range(0, len(parts) - 1, 2)]
            parts = half + ([parts[-1]] if len(parts) % 2 else [])
        total = parts[0]
    return apply_expr(monoid.finish(total, dtype))


REFERENCES = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
              "argmax": np.argmax, "argmin": np.argmin, "m2": lambda x: np.sum((x - x.mean()) ** 2), "logaddexp": np.logaddexp.reduce}
SAMPLES = {
    "f32": [[1.5], [1.0, -2.0, 4.0, 4.0, -2.0], [math.nan, 1.0, math.nan], [3.0, math.nan, 5.0], [-math.inf, -math.inf], [math.inf, 1.0],
            [2.0] * 6],
    "i32": [[3], [5, -1, 5, -1, 2], [-(2**31), -(2**31)], [2**31 - 1]],
    "bool": [[True], [False], [True, False, True], [False, False]],
}


@pytest.mark.parametrize("shape", ["left", "tree"])
@pytest.mark.parametrize(("name", "dtype"), [(n, t) for n, m in MONOIDS.items() for t in SAMPLES if t in OPERAND_CLASSES[m.operands]])
def test_monoid_expressions_are_numpys_reductions(name: str, dtype: str, shape: str) -> None:
    for elements in SAMPLES[dtype]:
        with np.errstate(all="ignore"):
            expected = REFERENCES[name](np.array(elements, dtype=NUMPY_DTYPES[dtype]))
        found = folded(MONOIDS[name], list(elements), DTYPES[dtype], shape)
        if name in ("m2", "logaddexp"):
            np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=str(elements))
        else:
            np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype), err_msg=f"{name} {elements}")


def test_m2_of_large_values_does_not_meet_an_empty_side() -> None:
    """An identity beside 3e38 must not make inf * 0."""
    assert folded(MONOIDS["m2"], [3e38], F32, "left") == 0
    assert folded(MONOIDS["m2"], [], F32, "left") == 0


def test_monoid_results() -> None:
    assert monoid_result("argmax", F32) == I64
    assert monoid_result("sum", I32) == I32
    with pytest.raises(TypeMismatchError):
        monoid_result("sum", F16)
    with pytest.raises(NameLookupError):
        monoid_result("mean", F32)
