"""Emitter: turns resolved scalar bodies into kernel statements, each value once in the innermost frame that can hold it.

A frame is a stretch of straight-line statements (a loop body, a guarded body, the kernel itself). Values computed in an outer frame are
visible in the inner ones. A value that no frame holds is computed in the current frame on request.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterable
from math import prod

from tilefuse.base.errors import InternalError
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.resolved import Domain, Instance, Resolved, ResolvedLeaf, Touch, Use, resolved_children, resolved_dtype, resolved_walk
from tilefuse.emit.statements import Statements
from tilefuse.emit.subscripts import clamped
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import BOOL, F64, I32, I64, DType
from tilefuse.ir.resolver import Resolver
from tilefuse.ir.scalar import Call, Const, Index, checked_extent, const
from tilefuse.kernel.checked_index import counts_from_end
from tilefuse.kernel.expression import INT32_MAX
from tilefuse.kernel.ir import Assign, Comment, Declare, InRange, KernelLeaf, KExpr, Load, Reg

# Strict and non-strict comparison by which an arg-reduction prefers an element.
ARG_COMPARISON = {"argmax": ("gt", "le"), "argmin": ("lt", "ge")}


class Emitter(Statements, Resolver[ResolvedLeaf, KernelLeaf]):
    """Writes the statements of one kernel over a domain. `env` gives every root axis as an index expression over kernel names.

    `expression` converts a resolved expression to a kernel expression and first emits the operands that need statements.
    """

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self.domain = domain
        self.dimensions: dict[str, tuple[tuple[int, int], ...]] = {}  # extent and stride of every dimension of a boundary value
        self.neighbours = 0  # > 0 inside loops whose steps read adjacent elements: L1 holds the rest of a line for the next step

    # -- values --------------------------------------------------------------------------------------------------

    def find(self, key: int) -> KExpr | None:
        """The value of an instance if it is already computed at the current point, else None."""
        for f in reversed(self.frames):
            if key in f.values:
                return f.values[key]
        return None

    def value(self, key: int) -> KExpr:
        """The value of an instance at the current point."""
        known = self.find(key)
        if known is not None:
            return known
        instance = self.domain.instances[key]
        if instance.shared:
            raise InternalError(f"%{instance.node.name} is used before its reduction is done; please report")
        if instance.serial:
            value = self._serial(instance)
        else:
            value = self._scalar(instance)
        self.frame.values[key] = value
        return value

    def _scalar(self, instance: Instance) -> KExpr:
        body = instance.body
        if isinstance(body, (Use, Const)):
            return self.expression(body)
        value = self.expression(body)
        name = self.fresh(instance.node.name)
        dtype = instance.node.type.dtype
        self.emit(Declare(name, dtype, None, value))
        return Reg(name, dtype)

    def _serial(self, instance: Instance) -> KExpr:
        """A reduction by this thread alone: a loop over its own axes."""
        starts = self.identities(instance)
        parts = [Reg(self.fresh(f"{instance.node.name}_{n}" if n else instance.node.name), start.dtype) for n, start in enumerate(starts)]
        self.emit(Comment(f"%{instance.node.name}: {instance.node.kind} by one thread"))
        for part, start in zip(parts, starts, strict=True):
            self.emit(Declare(part.name, part.dtype, None, start))
        saved = dict(self.env)
        with contextlib.ExitStack() as stack:
            for loop, extent in instance.serial:
                self.env[loop] = stack.enter_context(self.loop(loop, extent, unroll=extent <= 8))
            self.neighbours += 1
            self.accumulate(instance, parts)
            self.neighbours -= 1
        self.env = saved
        return self.finished(instance, parts)

    def identities(self, instance: Instance) -> tuple[Const, ...]:
        """Initial value of each component of a reduction, in the type that this kernel holds it in.

        An arg-reduction holds its position in 32 bits if the reduced domain allows: half the registers and shuffles. An empty domain needs
        64 bits, because its position is the greatest i64.
        """
        monoid = KERNEL_MONOIDS[instance.node.detail]
        starts = monoid.identity(self.dtype(instance.body))
        if monoid.name in ARG_COMPARISON:
            return (starts[0], const(INT32_MAX, I32)) if self._narrow_position(instance) else starts
        return starts

    def _narrow_position(self, instance: Instance) -> bool:
        return 0 < prod(e for _, e in instance.node.over) < INT32_MAX

    def finished(self, instance: Instance, parts: list[Reg]) -> KExpr:
        """The result of a reduction from its components."""
        result: KExpr = KERNEL_MONOIDS[instance.node.detail].finish(tuple(parts), self.dtype(instance.body))
        if instance.node.detail in ARG_COMPARISON and parts[1].dtype != I64:
            return Call("i64", (result,))
        dtype, summed = instance.node.type.dtype, self.dtype(instance.body)
        # Sums of narrow types keep their accumulation type, except those that the host widens together with squared deviations.
        if instance.node.detail == "m2" and summed != dtype or instance.node.detail == "sum" and summed == F64 != dtype:
            return Call(dtype.name, (result,))
        return result

    def accumulate(self, instance: Instance, parts: list[Reg]) -> None:
        """parts = combine(parts, lift(body)), at the current point."""
        monoid = KERNEL_MONOIDS[instance.node.detail]
        dtype = self.dtype(instance.body)
        body = self.register(self.expression(instance.body), dtype, instance.node.name + "_x")
        position: KExpr = const(0, I64)
        if len(parts) > 1 and instance.position is not None:
            position = Index(self.index(instance.position))
        if monoid.name in ARG_COMPARISON:
            self._accumulate_arg(instance, parts, body, position, dtype)
            return
        self.combine(monoid.name, parts, monoid.lift(body, position, dtype), dtype)

    def _accumulate_arg(self, instance: Instance, parts: list[Reg], x: KExpr, position: KExpr, dtype: DType) -> None:
        """Combines one element into an arg-reduction.

        A thread reads its elements in ascending order. A tie therefore never wins, and positions need no comparison. "not <=" prefers a
        NaN, and a held NaN is never replaced."""
        best, at = parts
        strict, loose = ARG_COMPARISON[instance.node.detail]
        if dtype.is_float:
            is_number, no_better = Call("logical_not", (Call("isnan", (best,)),)), Call("logical_not", (Call(loose, (x, best)),))
            better: KExpr = Call("logical_and", (no_better, is_number))
        else:
            better = Call(strict, (x, best))
        first: KExpr = Call("eq", (at, self.identities(instance)[1]))
        take = self.register(Call("logical_or", (first, better)), BOOL, "take")
        if at.dtype != I64:
            position = Call(at.dtype.name, (position,))
        self.emit(Assign(best, Call("select", (take, x, best))), Assign(at, Call("select", (take, position, at))))

    def dtype(self, body: Resolved) -> DType:
        """The dtype of a resolved body."""
        return resolved_dtype(body, self.domain)

    def leaf(self, e: ResolvedLeaf, guarded: bool) -> KExpr:
        """Kernel IR of a use of a value or of a memory access."""
        match e:
            case Use(key):
                return self.value(key)
            case Touch():
                return self.touch(e, guarded)
        raise InternalError(f"not a resolved expression: {e!r}")

    def call(self, e: Call[Resolved], guarded: bool) -> KExpr:
        """Kernel IR of a call; a call that a frame already computed is read from there."""
        for f in self.frames:
            if f.expressions and e in f.expressions:
                return f.expressions[e]
        return super().call(e, guarded) if checked_extent(e) is None else self.in_range(e, guarded)

    def touch(self, e: Touch, guarded: bool) -> KExpr:
        """An element of a boundary value: a register that already holds it, or a load."""
        if not self.buffers[e.value].num_elements:
            # Only loops without iterations read it. A load that does not depend on the loop variable would be emitted outside the loop.
            return const(0, e.dtype)
        identity, load = self.load_of(e, guarded)
        known = self.loaded(identity)
        if known is not None:
            return known
        if guarded:
            return load
        name = self.fresh(e.value + "_at")
        self.emit(Declare(name, e.dtype, None, load))
        held = Reg(name, e.dtype)
        self.hold(identity, held)
        return held

    def load_of(self, e: Touch, guarded: bool = False) -> tuple[tuple[object, ...], Load]:
        """Key of the element among the loads of a frame, and the load itself."""
        offset = self.index(e.offset)
        dynamic = self.dynamic(e, guarded)
        cache = self.cache.get(e.value, "")
        load = Load(self.buffers[e.value].name, e.dtype, offset, dynamic, "" if self.neighbours and cache == "stream" else cache)
        return (e.value, offset, dynamic), load

    def dynamic(self, e: Touch, guarded: bool) -> tuple[tuple[KExpr, int], ...]:
        """The data-dependent subscripts of a touch, each within its extent, with their strides."""
        known = self.dimensions.get(e.value, ())
        return tuple((self._clamped(d, extent, guarded, e.value, known.index((extent, stride)) if (extent, stride) in known else 0), stride)
                     for d, extent, stride in e.dynamic)

    def in_range(self, e: Call[Resolved], guarded: bool, value: str = "", dimension: int = 0, kept: bool = False) -> InRange:
        """A checked subscript. A subscript of a boundary value names that `value` and the `dimension`."""
        extent = checked_extent(e)
        assert extent is not None
        source, place = self._read_from(e.args[0])
        buffer = self.buffers[value].name if value else ""
        index = self.expression(e.args[0], guarded)
        return InRange(index, extent, buffer, dimension, source, place, counts_from_end(e.args[0]), kept)

    def _read_from(self, index: Resolved) -> tuple[str, Affine]:
        """The integer buffer that an index is computed from, and the element's offset; "" if none is readable at the current point."""
        stack = [index]
        while stack:
            e = stack.pop()
            if isinstance(e, Touch) and e.dtype.is_integer and not e.dynamic and e.offset.axes() <= self.env.keys():
                return self.buffers[e.value].name, self.index(e.offset)
            if isinstance(e, Use):
                instance = self.domain.instances[e.key]
                stack += () if instance.shared or instance.serial else (instance.body,)
            stack.extend(resolved_children(e))
        return "", Affine()

    def _clamped(self, subscript: Resolved, extent: int, guarded: bool, of: str, dimension: int) -> KExpr:
        """A data-dependent subscript within 0 .. extent - 1, as i64."""
        checked = checked_extent(subscript)
        if isinstance(subscript, Call) and checked is not None and checked <= extent:
            return self.in_range(subscript, guarded, of, dimension)
        return clamped(self.expression(subscript, guarded), extent)

    # -- hoisting ------------------------------------------------------------------------------------------------

    def hoist(self, keys: Iterable[int], axes: frozenset[str]) -> None:
        """Computes in the current frame the values and loads of `keys` that depend on no axis besides `axes`."""
        seen: set[int] = set()
        for key in list(keys):
            self._hoist(key, axes, seen)

    def _hoist(self, key: int, axes: frozenset[str], seen: set[int]) -> None:
        if key in seen:
            return
        seen.add(key)
        instance = self.domain.instances[key]
        if instance.shared:
            return
        if instance.depends <= axes:
            if self._ready(key):
                self.value(key)
                return
        loops = {loop for loop, _ in instance.serial}
        for x in resolved_walk(instance.body):
            if isinstance(x, Touch):
                within = x.offset.axes() <= axes and not x.offset.axes() & loops
                if within and not x.dynamic and not _under_guard(instance.body, x):
                    self.touch(x, False)
            elif isinstance(x, Use):
                self._hoist(x.key, axes, seen)

    def hoist_body(self, body: Resolved, axes: frozenset[str]) -> None:
        """As `hoist`, for the values and loads that a body uses."""
        seen: set[int] = set()
        for x in resolved_walk(body):
            if isinstance(x, Use):
                self._hoist(x.key, axes, seen)
            elif isinstance(x, Touch) and not x.dynamic and x.offset.axes() <= axes and not _under_guard(body, x):
                self.touch(x, False)

    def _ready(self, key: int) -> bool:
        """Whether every shared reduction that the instance needs is computed. Cost: linear in the instances that it needs."""
        seen = {key}
        stack = [key]
        while stack:
            top = stack.pop()
            if self.find(top) is not None:
                continue
            instance = self.domain.instances[top]
            if instance.shared:
                return False
            fresh = [u for u in instance.uses if u not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return True


def _under_guard(body: Resolved, leaf: Resolved) -> bool:
    """Whether `leaf` occurs in `body` only behind guards."""
    stack = [body]
    while stack:
        e = stack.pop()
        if e == leaf:
            return False
        if isinstance(e, Call):
            stack.extend(e.args)
        elif isinstance(e, Touch):
            stack.extend(d for d, _, _ in e.dynamic)
    return True
