"""The state of a kernel that walks an axis, as its parts write it: statements, buffers and tiles, registers that hold an element.

Its parts (`fragments`, `operands`, `lazy`, `turn`) take it as a parameter; `compose` puts them together.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.ir.affine import Affine, bounds, linearise, number
from tilefuse.ir.dtype import EXACT_F32
from tilefuse.ir.scalar import Bound, Call, Expr, Index, Read
from tilefuse.kernel.ir import Buffer, KExpr, Load, Reg
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.graph_values import GraphResolver, GraphStatements
from tilefuse.templates.staged.online.plan import OnChip, OnlinePlan
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.online.turn_work import SPECIAL


class OnlineState(GraphStatements):
    """The statements of one kernel so far, and what its parts share. `env` gives the form's axes at the current point."""

    def __init__(self, program: TileProgram, plan: OnlinePlan, device: DeviceSpec) -> None:
        super().__init__(program, program.graph, device)
        self.plan, self.form = plan, plan.form
        self.here = _Here(self)
        self.shared: dict[OnChip, Buffer] = {}
        self.add_boundary()
        for tile in plan.tiles:
            origin = tile.operand.value if tile.operand else self.form.weighted[tile.number].total.value
            self.shared[tile] = Buffer(self.fresh(f"{origin}_tile"), tile.dtype, tile.elements * tile.stages, "shared", "", origin,
                                       tile.offset_bytes)
        self.first_row = number(0)
        self.place_of_thread = (number(0), number(0))
        # Arrays of what is carried along the walk, by value.
        self.carried: dict[str, Reg] = {}
        # Variables of unrolled loops: constants in the machine code.
        self.unrolled: frozenset[str] = frozenset()
        self.tails = {WALK: self.form.length, ROW: self.form.num_rows}

    @contextlib.contextmanager
    def at(self, **point: Affine) -> Iterator[None]:
        """Inside, axes of the form are at these places."""
        kept = dict(self.env)
        self.env.update(point)
        yield
        self.env = kept

    def global_offset(self, value: str, index: tuple[Affine, ...]) -> Affine:
        """Offset of an element in global memory, its subscripts over the form's axes. Units: elements."""
        return self.index(linearise(index, self.strides(value)))

    def known(self, e: Expr) -> KExpr | None:
        """The register that holds an element at the current point, if one does."""
        return self.loaded((e,))

    def remember(self, e: Expr, held: KExpr) -> None:
        """From here on (in this frame) the element is in a register."""
        self.hold((e,), held)

    def element(self, e: Expr, guarded: bool = False) -> KExpr:
        """An expression of the form at the current point."""
        return self.here.expression(e, guarded)

    def keep(self, e: Expr, value: KExpr, stem: str) -> KExpr:
        """A value in a register of its own, so that what follows finds it."""
        reg = self.register(value, kernel_dtype(value), stem)
        self.remember(e, reg)
        return reg

    @contextlib.contextmanager
    def loop(self, stem: str, stop: int | Affine, *, unroll: bool = False, **options: Any) -> Iterator[Affine]:
        """As of `Statements`; the variables of unrolled loops are remembered."""
        with super().loop(stem, stop, unroll=unroll, **options) as place:
            self.unrolled |= place.axes() if unroll else frozenset()
            yield place

    def is_on_chip(self, e: Read) -> bool:
        """Whether an element of a boundary value lies in shared memory, zeros beyond the value's end."""
        return False

    def converted_place(self, e: Affine) -> KExpr:
        """An index expression in f32, the part that unrolled loops settle as a constant: a conversion is slow, and an addition is not.

        Exact: all whole numbers in question are floats.
        """
        fixed = Affine(tuple(t for t in e.terms if Affine((t,)).axes() <= self.unrolled), 0)
        rest, span = e - fixed, bounds(e, self.extents)
        parts = [span, *(bounds(part, self.extents) for part in (fixed, rest))]
        if not fixed.terms or not rest.terms or any(s is None or s[0] <= -EXACT_F32 or s[1] >= EXACT_F32 for s in parts):
            return Call("f32", (Index(e),))
        return Call("add", (Call("f32", (Index(rest),)), Call("f32", (Index(fixed),))))

    def beyond(self, **point: Affine) -> tuple[Bound, ...]:
        """The bounds under which a point lies in the walked value, those that always hold left out."""
        tails = tuple(Bound(self.simplified(e), 0, self.tails[a]) for a, e in point.items())
        return tuple(b for b in tails if not self.always(b))


class _Here(GraphResolver):
    """Expressions of the form at the writer's current point: what a register holds is not computed again."""

    writer: OnlineState

    def index(self, e: Affine) -> Affine:
        return self.writer.index(e)

    def expression(self, e: Expr, guarded: bool = False) -> KExpr:
        held = self.writer.known(e)
        return super().expression(e, guarded) if held is None else held

    def read(self, e: Read, guarded: bool) -> KExpr:
        w = self.writer
        if e.value not in w.buffers:
            raise InternalError(f"%{e.value} is read before it is computed; please report")
        load = Load(w.buffers[e.value].name, w.buffers[e.value].dtype, self.offset(e))
        return load if guarded else w.keep(e, load, e.value)

    def offset(self, e: Read) -> Affine:
        return self.writer.global_offset(e.value, e.index)

    def call(self, e: Call[Expr], guarded: bool) -> KExpr:
        result = super().call(e, guarded)
        if e.fn == "f32" and isinstance(result, Call) and isinstance(result.args[0], Index):
            return self.writer.converted_place(result.args[0].affine)
        return self.writer.keep(e, result, e.fn) if e.fn in SPECIAL and not guarded else result
