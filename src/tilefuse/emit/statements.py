"""Statements being written: frames, fresh names, loops, guards and named index expressions. Every composer uses them.

A frame is a stretch of straight-line statements (a loop body, a guarded body, the kernel itself). Values computed in an outer frame are
visible in the inner ones.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.ir.affine import Affine, axis, bounds, number, simplify, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.names import plain_name
from tilefuse.ir.scalar import Bound, Const
from tilefuse.kernel.ir import Assign, Buffer, Declare, For, If, KExpr, Let, Reg, Stmt
from tilefuse.kernel.writer import free_identifier

# Names that generated code must not use for the user's values: C++ keywords, and names that the printers declare.
RESERVED = frozenset(["alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class", "const", "constexpr",
                      "continue", "default", "delete", "do", "double", "else", "enum", "explicit", "export", "extern", "false", "float",
                      "for", "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "not", "operator", "or",
                      "private", "protected", "public", "register", "return", "short", "signed", "sizeof", "static", "struct", "switch",
                      "template", "this", "throw", "true", "try", "typedef", "typename", "union", "unsigned", "using", "virtual", "void",
                      "volatile", "while", "xor", "thread", "block", "rank", "cluster", "lane", "warp", "shared", "arguments", "report",
                      "half", "main"])


@dataclass
class Frame:
    """Statements being written, and the values that they have computed: instances, loaded elements, resolved expressions."""

    statements: list[Stmt] = field(default_factory=list)
    values: dict[int, KExpr] = field(default_factory=dict)
    loads: dict[tuple[object, ...], KExpr] = field(default_factory=dict)
    expressions: dict[object, KExpr] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)


class Statements:
    """Writes the statements of one kernel. `env` gives every axis in force as an index expression over kernel names."""

    def __init__(self) -> None:
        self.frames: list[Frame] = [Frame()]
        self.env: dict[str, Affine] = {}
        self.names: set[str] = set(RESERVED)
        self.buffers: dict[str, Buffer] = {}
        self.cache: dict[str, str] = {}

    @property
    def frame(self) -> Frame:
        """The innermost frame."""
        return self.frames[-1]

    @property
    def extents(self) -> dict[str, int]:
        """Extents of all axes in scope."""
        merged: dict[str, int] = {}
        for f in self.frames:
            merged |= f.extents
        return merged

    def emit(self, *statements: Stmt) -> None:
        """Appends statements to the innermost frame."""
        self.frame.statements.extend(statements)

    def fresh(self, stem: str) -> str:
        """A name whose identifier is not used in this kernel yet."""
        base = plain_name(stem)
        if base[0].isdigit() or base.startswith(("__", "tf_")):
            base = "v" + base
        return free_identifier(base, self.names)

    @contextlib.contextmanager
    def nested(self) -> Iterator[Frame]:
        """Opens a frame. The caller wraps its statements in a loop or a guard."""
        frame = Frame()
        self.frames.append(frame)
        try:
            yield frame
        finally:
            self.frames.pop()

    @contextlib.contextmanager
    def loop(self, stem: str, stop: int | Affine, *, start: int | Affine = 0, step: int = 1, unroll: bool = False, simd: bool = False,
             extent: int | None = None, rolled: bool = False) -> Iterator[Affine]:
        """Puts the statements emitted inside into a loop; yields the loop variable. A loop of one step needs no loop statement.

        extent: bound on the variable if `stop` is not a number.
        """
        first = number(start) if isinstance(start, int) else start
        last = number(stop) if isinstance(stop, int) else stop
        if first.is_const and last.is_const and first.const + step >= last.const > first.const:
            yield first
            return
        name = self.fresh(stem)
        with self.nested() as inner:
            inner.extents[name] = extent if extent is not None else last.const
            yield axis(name)
        self.emit(For(name, first, last, step, tuple(inner.statements), unroll, simd, rolled))

    def lanes(self, count: int, unroll: bool) -> AbstractContextManager[Affine]:
        """A loop over the elements of a vector: unrolled for registers, else left to the host's vectoriser."""
        return self.loop("v", count, unroll=unroll, simd=not unroll)

    @contextlib.contextmanager
    def when(self, bounds: Iterable[Bound]) -> Iterator[None]:
        """Puts the statements emitted inside under a guard; no guard if the bounds always hold."""
        needed = tuple(b for b in bounds if not self.always(b))
        if not needed:
            yield
            return
        with self.nested() as inner:
            yield
        if inner.statements:
            self.emit(If(needed, tuple(inner.statements)))

    def always(self, bound: Bound) -> bool:
        """Whether a bound holds everywhere in the current frame."""
        span = bounds(bound.index, self.extents)
        return span is not None and bound.low <= span[0] and span[1] < bound.high

    def never(self, bound: Bound) -> bool:
        """Whether a bound holds nowhere in the current frame."""
        span = bounds(bound.index, self.extents)
        return span is not None and (span[1] < bound.low or bound.high <= span[0])

    def let(self, stem: str, value: Affine, extent: int) -> Affine:
        """Names an index expression. Constants and single names are returned unchanged."""
        simple = simplify(value, self.extents)
        if simple.is_const or (len(simple.terms) == 1 and simple.const == 0 and simple.terms[0][1] == 1
                               and isinstance(simple.terms[0][0], str)):
            return simple
        name = self.fresh(stem)
        self.emit(Let(name, simple, extent))
        self.frame.extents[name] = extent
        return axis(name)

    def narrow_to(self, name: Affine, count: int) -> None:
        """Records for the current frame that a name lies below `count`, as its guard says. Other expressions record nothing."""
        if len(name.terms) == 1 and name.const == 0 and isinstance(name.terms[0][0], str):
            self.frame.extents[name.terms[0][0]] = max(count, 1)

    def index(self, e: Affine) -> Affine:
        """An index expression over root axes as one over kernel names."""
        return substitute(e, self.env, self.extents)

    def combine(self, monoid: str, into: list[Reg], other: Iterable[KExpr], dtype: DType) -> None:
        """into = combine(into, other). All components are computed from the old ones."""
        new = KERNEL_MONOIDS[monoid].combine(tuple(into), tuple(other), dtype)
        if len(into) == 1:
            self.emit(Assign(into[0], new[0]))
            return
        held = [self.register(e, part.dtype, "next") for e, part in zip(new, into, strict=True)]
        for part, e in zip(into, held, strict=True):
            self.emit(Assign(part, e))

    def loaded(self, key: tuple[object, ...]) -> KExpr | None:
        """The register that holds a memory element at the current point, else None. key: as in `hold`."""
        for f in reversed(self.frames):
            held = f.loads.get(key)
            if held is not None:
                return held
        return None

    def hold(self, key: tuple[object, ...], held: KExpr) -> None:
        """Records that a register holds the element `key` from here on, in this frame."""
        self.frame.loads[key] = held

    def register(self, e: KExpr, dtype: DType, stem: str) -> KExpr:
        """`e` in a register variable. A register or a constant is returned unchanged."""
        if isinstance(e, (Reg, Const)):
            return e
        name = self.fresh(stem)
        self.emit(Declare(name, dtype, None, e))
        return Reg(name, dtype)
