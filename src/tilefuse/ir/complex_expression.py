"""Expressions over complex values become expressions over their parts.

    mul(%x[i], %y[i])   of c64[n]   ->   real: %x[i, 0] * %y[i, 0] - %x[i, 1] * %y[i, 1]      imaginary: ...

Both parts read the graph's values, which are pairs of reals in a last dimension of two.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilefuse.base.errors import TypeMismatchError
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.complex_functions import COMPLEX_FUNCTIONS, GIVES_BOOL, GIVES_REAL, Let, Parts
from tilefuse.ir.dtype import BOOL, C64, C128, COMPLEX_OF, DTYPES, I64, PART_OF, DType
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index, Lookup, Read, call, cast, const

# The axis over the two parts of a complex result.
PART_AXIS = "part"
_PARTWISE = {"add", "sub", "neg", "round"}
COMPLEX_BY_NAME = {t.name: t for t in (C64, C128)}


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of a complex expression. either: one expression over `PART_AXIS` that is both, where their form is the same."""

    real: Expr
    imaginary: Expr
    either: Expr | None = None

    @property
    def parts(self) -> Parts:
        """(real, imaginary)."""
        return self.real, self.imaginary

    def merged(self) -> Expr:
        """The element of the pairs at position `PART_AXIS`."""
        if self.either is not None:
            return self.either
        return call("select", call("eq", Index(axis(PART_AXIS)), const(0, I64)), self.real, self.imaginary)


@dataclass(frozen=True, slots=True)
class Splitter:
    """Splits expressions. dtype_of: the type of each value, a complex one for pairs of reals. let: names subexpressions with several
    uses."""

    dtype_of: Callable[[str], DType]
    let: Let = field(default=lambda e: e)

    def part_dtype_of(self, value: str) -> DType:
        """The type of a value's elements in the graph."""
        have = self.dtype_of(value)
        return PART_OF.get(have, have)

    def dtype(self, e: Expr) -> DType:
        """The type of an expression. Raises: TypeMismatchError where operands do not fit a function."""
        match e:
            case Const(_, dtype):
                return dtype
            case Read(value, _) | Lookup(value, _):
                return self.dtype_of(value)
            case Guard(_, then, _):
                return self.dtype(then)
            case Call(fn, args):
                return self._result_dtype(fn, [self.dtype(a) for a in args])
        return dtype_of(e, self.dtype_of)

    def _result_dtype(self, fn: str, args: Sequence[DType]) -> DType:
        if fn in COMPLEX_BY_NAME:
            return COMPLEX_BY_NAME[fn]
        if fn == "complex":
            return COMPLEX_OF[args[0]]
        if not any(a.is_complex for a in args):
            return dtype_of(Call(fn, tuple([Read(str(n), ()) for n in range(len(args))])), lambda value: args[int(value)])
        if fn in DTYPES:
            return DTYPES[fn]
        if fn != "select" and (fn not in COMPLEX_FUNCTIONS or len(set(args)) > 1):
            raise _of_reals(fn)
        return BOOL if fn in GIVES_BOOL else PART_OF[args[0]] if fn in GIVES_REAL else args[-1]

    def split(self, e: Expr) -> Expr | Split:
        """The parts of a complex expression; of a real one the expression over the graph's values.

        Raises: TypeMismatchError for a function that takes real numbers only, and for a conversion of complex numbers to real ones.
        """
        match e:
            case Const(_, dtype):
                return _constant(e) if dtype.is_complex else e
            case Read(value, index) if self.dtype_of(value).is_complex:
                return _by_part(lambda part: Read(value, (*index, part)))
            case Read() | Index():
                return e
            case Lookup(value, subscripts):
                plain = tuple([self._real(s) for s in subscripts])
                if not self.dtype_of(value).is_complex:
                    return Lookup(value, plain)
                return _by_part(lambda part: Lookup(value, (*plain, Index(part))))
            case Guard(bounds, then, otherwise):
                return _joined(lambda a, b: Guard(bounds, a, b), self.split(then), self.split(otherwise))
            case Call(fn, args):
                return self._call(fn, tuple([self.split(a) for a in args]))
        raise TypeError(f"not a scalar expression: {e!r}")

    def _call(self, fn: str, args: tuple[Expr | Split, ...]) -> Expr | Split:
        if fn in COMPLEX_BY_NAME:
            return self._widened(args[0], COMPLEX_BY_NAME[fn])
        if fn == "complex":
            real, imaginary = (_plain(a, fn) for a in args)
            return Split(real, imaginary)
        if not any(isinstance(a, Split) for a in args):
            return Call(fn, tuple([_plain(a, fn) for a in args]))
        if fn == "select":
            condition = _plain(args[0], fn)
            return _joined(lambda a, b: call("select", condition, a, b), args[1], args[2])
        if fn in DTYPES:
            return self._narrowed(args[0], fn)
        function = COMPLEX_FUNCTIONS.get(fn)
        if function is None or not all(isinstance(a, Split) for a in args):
            raise _of_reals(fn)
        splits = [a for a in args if isinstance(a, Split)]
        result = function(dtype_of(splits[0].real, self.part_dtype_of), self.let, *(s.parts for s in splits))
        if not isinstance(result, tuple):
            return result
        eithers = [s.either for s in splits]
        whole = call(fn, *(x for x in eithers if x is not None)) if fn in _PARTWISE and None not in eithers else None
        return Split(*result, whole)

    def _widened(self, x: Expr | Split, to: DType) -> Split:
        part = PART_OF[to]
        if isinstance(x, Split):
            either = None if x.either is None else self._as(x.either, part)
            return Split(self._as(x.real, part), self._as(x.imaginary, part), either)
        return Split(self._as(x, part), const(0, part))

    def _as(self, e: Expr, dtype: DType) -> Expr:
        return e if dtype_of(e, self.part_dtype_of) == dtype else cast(e, dtype)

    def _narrowed(self, x: Expr | Split, fn: str) -> Expr:
        assert isinstance(x, Split)
        if fn != "bool":
            raise TypeMismatchError(f"complex numbers are not converted to {fn}", hint="real(x), imag(x) and abs(x) are real")
        part = dtype_of(x.real, self.part_dtype_of)
        return call("logical_or", *(call("ne", p, const(0, part)) for p in x.parts))

    def _real(self, e: Expr) -> Expr:
        return _plain(self.split(e), "a subscript")


def _plain(result: Expr | Split, fn: str) -> Expr:
    if isinstance(result, Split):
        raise _of_reals(fn)
    return result


def _of_reals(fn: str) -> TypeMismatchError:
    return TypeMismatchError(f"{fn} takes real numbers, not complex ones")


def _by_part(element: Callable[[Affine], Expr]) -> Split:
    return Split(element(number(0)), element(number(1)), element(axis(PART_AXIS)))


def _constant(e: Const) -> Split:
    whole: complex = e.value
    real, imaginary = const(whole.real, PART_OF[e.dtype]), const(whole.imag, PART_OF[e.dtype])
    return Split(real, imaginary, real if real == imaginary else None)


def _joined(join: Callable[[Expr, Expr], Expr], a: Expr | Split, b: Expr | Split) -> Expr | Split:
    """A choice between two real expressions, or between two complex ones part by part."""
    if isinstance(a, Split) and isinstance(b, Split):
        either = None if a.either is None or b.either is None else join(a.either, b.either)
        return Split(join(a.real, b.real), join(a.imaginary, b.imaginary), either)
    return join(_plain(a, "a choice"), _plain(b, "a choice"))
