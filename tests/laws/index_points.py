"""Runs the index arithmetic of a kernel at chosen points, without memory: the printed text, with the types that C++ gives it.

Every number is a pair of value and width. A sum, product or cast that leaves its width is an error, and so is an element outside of its
buffer, or a name outside of the extent that the kernel states for it. Loops are run at their first and last turns and at one drawn.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from random import Random
from types import CodeType

from tilefuse.ir.affine import Affine, evaluate
from tilefuse.ir.counts import count_value
from tilefuse.ir.scalar import Bound, Call, Guard, Index
from tilefuse.kernel.asynchronous import AsyncCopy, BulkCopy, Prefetch
from tilefuse.kernel.expression import IndexScope
from tilefuse.kernel.ir import (
    Atomic,
    For,
    Group,
    If,
    IfValue,
    Kernel,
    LastBlock,
    Let,
    Load,
    OfTwo,
    Pointer,
    RoutineCall,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.pipeline import WARPGROUP, Consume, EachWarpgroup, Pipeline, Produce
from tilefuse.kernel.pipeline_roles import consumer_tree, producer_tree
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore
from tilefuse.kernel.writer import identifier

INT, LONG = 32, 64


class Overflow(Exception):
    """A number that does not fit the type it is computed in."""


class Number:
    """A C++ integer: its value and the bits of its type."""

    __slots__ = ("bits", "value")

    def __init__(self, value: int, bits: int) -> None:
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise Overflow(f"{value} does not fit {bits} bits")
        self.value, self.bits = value, bits

    def _with(self, other: Number, value: int) -> Number:
        return Number(value, max(self.bits, other.bits))

    def __add__(self, other: Number) -> Number:
        return self._with(other, self.value + other.value)

    def __sub__(self, other: Number) -> Number:
        return self._with(other, self.value - other.value)

    def __mul__(self, other: Number) -> Number:
        return self._with(other, self.value * other.value)

    def __and__(self, other: Number) -> Number:
        return self._with(other, self.value & other.value)

    def __rshift__(self, other: Number) -> Number:
        if not 0 <= other.value < self.bits:
            raise Overflow(f"a shift of {self.bits} bits by {other.value}")
        return Number(self.value >> other.value, self.bits)

    def __neg__(self) -> Number:
        return Number(-self.value, self.bits)


class Cast:
    """`(int)` or `(long long)`, written `cast ** operand`: it binds as tightly in Python."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __pow__(self, operand: Number) -> Number:
        return Number(operand.value, self.bits)


def literal(value: int) -> Number:
    """A number without suffix: int where it fits."""
    return Number(value, INT if value < 1 << 31 else LONG)


def _division(quotient: bool, floored: bool, wide: bool):  # type: ignore[no-untyped-def]
    def divide(value: Number, by: Number) -> Number:
        if by.value <= 0 or not wide and by.value >= 1 << 31:
            raise Overflow(f"a division by {by.value} as unsigned int")
        if not floored and value.value < 0:
            raise Overflow(f"{value.value} is divided as if it were not negative")
        return Number(value.value // by.value if quotient else value.value % by.value, LONG if wide else value.bits)
    return divide


DIVISIONS = (("div", True, False), ("rem", False, False), ("floordiv", True, True), ("floormod", False, True))
FUNCTIONS = {f"tf_{width}_{name}": _division(quotient, floored, width == "wide")
             for width in ("index", "wide") for name, quotient, floored in DIVISIONS}
FUNCTIONS |= {"literal": literal, "to_int": Cast(INT), "to_long": Cast(LONG)}


@functools.cache
def compiled(text: str) -> CodeType:
    """A printed index expression as Python."""
    text = re.sub(r"(?<![\w.])(\d+)(?:ll)?\b", r"literal(\1)", text)
    return compile(text.replace("(int)", "to_int ** ").replace("(long long)", "to_long ** "), text, "eval")


class Points:
    """Runs a kernel's index arithmetic; `errors` says what went wrong, with the expression and the point."""

    def __init__(self, kernel: Kernel, random: Random, sizes: Mapping[str, int] | None = None) -> None:
        self.kernel, self.random = kernel, random
        self.given = {s.name: count_value(s.count, sizes or {}) for s in kernel.sizes}
        self.bits = kernel.index_bits
        self.errors: list[str] = []
        self.num_checked = 0
        self.depth = 0  # of loops
        self.slots: dict[str, int] = {}  # slots by ring of the pipeline at hand
        self.groups = self.consumers = 0  # its consumer warpgroups, and their threads: 0 in its producers
        self.sizes = {name: b.num_elements if b.count is None else count_value(b.count, sizes or {})
                      for name, b in kernel.addressed.items()}

    def run(self, blocks: Iterable[int], threads: Iterable[int]) -> None:
        """The kernel in these blocks and threads."""
        launch = self.kernel.launch
        for block in blocks:
            for thread in threads:
                self.scope = IndexScope(self.kernel)
                self.values = {"block": block, "thread": thread, "rank": block % launch.cluster, **self.given}
                self.body(self.kernel.body)

    def wrong(self, what: str) -> None:
        self.errors.append(f"{what}, at {self.values}")

    def index(self, e: Affine) -> int:
        """The value of an index expression, its printed text checked."""
        value: int = evaluate(e, self.values)
        text = self.scope.text(e)
        self.num_checked += 1
        try:
            names = {identifier(a): Number(self.values[a], self.bits) for a in e.axes()}
            printed = eval(compiled(text), FUNCTIONS, names)
            Number(printed.value, self.bits)
            if printed.value != value:
                self.wrong(f"{text} is {printed.value}, not {value}")
        except Overflow as error:
            self.wrong(f"{text}: {error}")
        return value

    def of_two(self, value: OfTwo) -> int:
        """The value of a product, quotient, remainder or least of two index expressions."""
        left, right = self.index(value.left), self.index(value.right)
        if value.function in ("quotient", "remainder") and (left < 0 or right <= 0):
            self.wrong(f"{left} is divided by {right}")
            return 0
        found = {"product": left * right, "quotient": left // max(right, 1), "remainder": left % max(right, 1), "least": min(left, right)}
        self.within(found[value.function], f"the {value.function} of {value.left} and {value.right}")
        return found[value.function]

    def body(self, body: tuple[Stmt, ...]) -> None:
        """The statements of one scope."""
        saved = dict(self.values)
        with self.scope.nested():
            for s in body:
                self.statement(s)
        self.values = saved

    def holds(self, bounds: tuple[Bound, ...]) -> bool:
        """Whether the bounds hold; as in C++, those behind the first that fails are not computed."""
        return all(b.low <= self.index(b.index) < b.high for b in bounds)

    def turns(self, start: int, stop: int, step: int) -> list[int]:
        """Values of a loop variable to run: the first, the last and one drawn; of loops deep inside others one of the ends."""
        count = max(-(-(stop - start) // step), 0)
        if not count:
            return []
        chosen = {0, count - 1} if self.depth < 4 else {self.random.choice((0, count - 1))}
        if self.depth < 2:
            chosen.add(self.random.randrange(count))
        return [start + step * n for n in sorted(chosen)]

    def statement(self, s: Stmt) -> None:
        """One statement, and those inside it."""
        match s:
            case Let(name, value, extent):
                self.values[name] = found = self.of_two(value) if isinstance(value, OfTwo) else self.index(value)
                self.scope.extents[name] = extent
                if not 0 <= found < extent:
                    self.wrong(f"{name} = {found} is stated to be below {extent}")
            case For(var, start, stop, step, inner):
                first, end = self.index(start), self.index(stop)
                step = self.index(step) if isinstance(step, Affine) else step
                self.within(end + step - 1, f"the end of {var}")
                with self.scope.nested():
                    self.scope.add_loop(var, start, stop)
                    turns = self.turns(first, end, step)
                    self.depth += 1
                    for at in turns:
                        self.values[var] = at
                        self.body(inner)
                    self.depth -= 1
                self.values.pop(var, None)
            case If(bounds, inner, other):
                if self.holds(bounds):
                    with self.scope.assuming(bounds):
                        self.body(inner)
                else:
                    self.body(other)
            case IfValue(condition, inner):
                self.expression(condition)
                self.body(inner)
            case Group():
                self.group(s)
            case Pipeline():
                self.pipeline(s)
            case EachWarpgroup():
                self.each_warpgroup(s)
            case Produce(ring, slot, inner, count):
                if self.values["thread"] < count:
                    self.filling(ring, slot, inner, count)
            case Consume(ring, slot, inner):
                self.filling(ring, slot, inner)
            case _:
                self.access(s)

    def pipeline(self, s: Pipeline[Stmt]) -> None:
        """The role that the thread has; both count their threads from 0."""
        thread, consumers = self.values["thread"], s.consumer_threads
        self.slots = {r.name: r.slots for r in s.rings}
        is_consumer = thread < consumers
        self.groups, self.consumers = consumers // WARPGROUP, consumers if is_consumer else 0
        self.values["thread"] = thread if is_consumer else thread - consumers
        with self.scope.nested():
            self.scope.extents["thread"] = consumers if is_consumer else self.kernel.launch.num_threads - consumers
            self.body(consumer_tree(s.body) if is_consumer else producer_tree(s.body))
        self.values["thread"] = thread

    def each_warpgroup(self, s: EachWarpgroup[Stmt]) -> None:
        """The turn of the thread's own warpgroup; producers see the turns of all."""
        thread = self.values["thread"]
        for number in (thread // WARPGROUP,) if self.consumers else range(self.groups):
            with self.scope.nested():
                self.scope.extents[s.group] = self.groups
                self.values[s.group] = number
                if self.consumers:
                    self.scope.extents["thread"], self.values["thread"] = WARPGROUP, thread % WARPGROUP
                if self.holds(s.bounds):
                    with self.scope.assuming(s.bounds):
                        self.body((*s.body, *s.after))
            self.values["thread"] = thread
            del self.values[s.group]

    def filling(self, ring: str, slot: str, inner: tuple[Stmt, ...], threads: int = 0) -> None:
        """The statements of the first and the last slot of a ring; threads: of `Produce`."""
        for at in sorted({0, self.slots[ring] - 1}):
            with self.scope.nested():
                self.scope.extents |= {slot: self.slots[ring], **({"thread": threads} if threads else {})}
                self.values[slot] = at
                self.body(inner)
        self.values.pop(slot, None)

    def within(self, value: int, what: str) -> None:
        if not -(1 << (self.bits - 1)) <= value < 1 << (self.bits - 1):
            self.wrong(f"{what} is {value}, in {self.bits} bits")

    def group(self, group: Group) -> None:
        """The body for the member that the block belongs to."""
        number = self.values["block"] - group.first_block
        if not 0 <= number < group.num_blocks:
            return
        which = max(n for n, first in enumerate(group.first_blocks) if first <= number)
        member, saved = group.members[which], dict(self.values)
        self.values["block"] = number - group.first_blocks[which]
        self.values |= dict(zip((name for name, _ in group.numbers), member.numbers, strict=True))
        of_slot = dict(zip((b.name for b in group.slots), member.arguments, strict=True))
        sizes, self.sizes = self.sizes, self.sizes | {slot: self.sizes[argument] for slot, argument in of_slot.items()}
        with self.scope.nested():
            self.scope.enter_group(group)
            self.body(group.body)
        self.values, self.sizes = saved, sizes

    def element(self, buffer: str, index: Affine, count: int = 1) -> None:
        """`count` elements from one on."""
        at = self.index(index)
        if not 0 <= at <= self.sizes[buffer] - count:
            self.wrong(f"{buffer}[{index}] is {count} elements from {at} on, of {self.sizes[buffer]}")

    def dynamic(self, buffer: str, index: Affine, dynamic: tuple[tuple[object, int], ...]) -> None:
        """An element with data-dependent subscripts, which are as large as memory allows."""
        at = self.index(index)
        if dynamic:
            self.within(self.sizes[buffer] - 1 - min(at, 0), f"an offset into {buffer}")
        if not dynamic and not 0 <= at < self.sizes[buffer]:
            self.wrong(f"{buffer}[{index}] is element {at} of {self.sizes[buffer]}")

    def access(self, s: Stmt) -> None:
        """A statement without statements inside."""
        match s:
            case VectorLoad(array_index=at, buffer=buffer, index=index, width=width, dynamic=dynamic):
                self.index(at)
                self.expression(tuple(e for e, _ in dynamic))
                if dynamic:
                    self.dynamic(buffer, index, dynamic)
                else:
                    self.element(buffer, index, width)
            case VectorStore(buffer, index, _, at, width):
                self.index(at)
                self.element(buffer, index, width)
            case Store(buffer, index, value, dynamic) | Atomic(_, buffer, index, value, dynamic):
                self.expression((value, *(e for e, _ in dynamic)))
                self.dynamic(buffer, index, dynamic)
            case AsyncCopy(shared, shared_index, buffer, index, count):
                self.element(shared, shared_index, count)
                self.element(buffer, index, count)
            case BulkCopy(shared=shared, shared_index=shared_index, buffer=buffer, index=index, num_elements=count):
                if self.values["thread"] == 0:
                    self.element(shared, shared_index, count)
                    self.element(buffer, index, count)
            case TensorCopy(name, coordinates, buffer, index) | TensorStore(name, coordinates, buffer, index):
                for at in map(self.index, coordinates):
                    if not -(1 << 31) <= at < 1 << 31:
                        self.wrong(f"coordinate {at} of {name} has 32 bits")
                self.element(buffer, index, self.kernel.map_named(name).box_elements)
            case LastBlock(counter=buffer, index=index, count=count):
                self.element(buffer, index)
                if isinstance(count, Affine):
                    self.index(count)
            case Prefetch(buffer, index):
                self.element(buffer, index)
            case RoutineCall(_, arguments):
                for a in arguments:
                    self.index(a.index if isinstance(a, Pointer) else a) if isinstance(a, Pointer | Affine) else self.expression(a)
            case _:
                self.expression(s)

    def expression(self, x: object) -> None:
        """The index expressions in a value; of a guard, the side that is taken."""
        match x:
            case Affine():
                self.index(x)
            case Guard(bounds, then, otherwise):
                self.expression(then if self.holds(bounds) else otherwise)
            case Load(buffer, _, index, dynamic):
                self.expression(tuple(e for e, _ in dynamic))
                self.dynamic(buffer, index, dynamic)
            case Index(affine):
                self.index(affine)
            case Call(_, args):
                self.expression(args)
            case tuple():
                for part in x:
                    self.expression(part)
            case _ if hasattr(x, "__dataclass_fields__"):
                self.expression(tuple(getattr(x, name) for name in x.__dataclass_fields__))
