"""Keeps internal values of a kernel in the precision of their computation, instead of the 16 bits that they have in memory.

    t = f16(a * b)  inside the kernel         t = a * b  (f32)
    y = f16(f32(t) + c)  written        ->    y = f16(t + c)

Each such edge saves two conversions per element. A written value keeps its type, and its users read it rounded. The option `eager_rounding`
turns this off. A node that only converts an f32 value stays, and so do conversions to f8: these are deliberate quantisation.
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.base.construction import replace
from tilefuse.domain.contraction import contraction_of
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Lookup, Read, cast, children, const, rebuild, walk

NARROW = ("f16", "bf16")


def keep_precision(pattern: Graph, products: bool = False) -> Graph:
    """The pattern with internal f16 and bf16 values in f32 if that saves conversions; the same object if none does.

    products: products of matrices stay in f32 too, the type of their sums, as maps read them.
    Requires: the pattern's results are all values that outlive the kernel.
    Exact: no. A result differs from the eager one by the omitted roundings, each at most half a unit in the last place of the narrow type.
        The wide values do not overflow the narrow type.
    """
    widened = _worth_widening(pattern, products)
    if not widened:
        return pattern
    rewriter = _Rewriter(pattern, widened)
    return replace(pattern, nodes=tuple(rewriter.node(n) for n in pattern.nodes))


def _parts(e: Expr) -> Iterator[Expr]:
    """Expressions whose value `e` may have: itself, or the alternatives of its selects and guards."""
    match e:
        case Call("select", (_, a, b)) | Guard(_, a, b):
            yield from _parts(a)
            yield from _parts(b)
        case _:
            yield e


def _parts_read(e: Expr) -> Iterator[str]:
    return (x.value for x in _parts(e) if isinstance(x, Read))


def _worth_widening(pattern: Graph, products: bool) -> frozenset[str]:
    """Internal maps that end in a rounding and whose users convert back to f32, directly or through selects, guards and views.

    products: internal products whose users do so as well.
    """
    categories = ("map", "gather", *(("library",) if products else ()))
    candidates = {n.name: n for n in pattern.nodes if n.category in categories and n.type.dtype.name in NARROW
                  and (n.category != "library" or contraction_of(n, pattern) is not None)}
    if not candidates:
        return frozenset()
    for name in (*pattern.results, *(v for n in pattern.nodes for v in n.operands)):
        candidates.pop(name, None)
    rounded: set[str] = set()
    for name, node in candidates.items():
        body = node.body
        if body is None or any(_is_rounding(x, pattern) or isinstance(x, Read) and x.value in rounded for x in _parts(body)):
            rounded.add(name)
    converted: set[str] = set()
    for node in reversed(pattern.nodes):
        for e in (*node.target, *(() if node.body is None else (node.body,))):
            for x in walk(e):
                match x:
                    case Call("f32", (inner,)):
                        converted.update(_parts_read(inner))
                    case Lookup(value, _):
                        rounded.discard(value)
        if node.name in converted and node.name in rounded and node.body is not None:
            converted.update(_parts_read(node.body))
    return frozenset(rounded & converted)


def _is_rounding(e: Expr, pattern: Graph) -> bool:
    """Whether `e` converts a computed f32 value to a narrow float."""
    if not (isinstance(e, Call) and e.fn in NARROW and children(e.args[0])):
        return False
    return dtype_of(e.args[0], lambda v: pattern.type_of(v).dtype) == F32


class _Rewriter:
    def __init__(self, pattern: Graph, widened: frozenset[str]) -> None:
        self.pattern = pattern
        self.widened = widened

    def node(self, n: Node) -> Node:
        if n.body is None:
            return replace(n, type=Type(F32, n.type.shape)) if n.name in self.widened else n
        if n.name in self.widened:
            return replace(n, type=Type(F32, n.type.shape), body=self.wide(n.body))
        if any(v in self.widened for v in _parts_read(n.body)):
            body: Expr = cast(self.wide(n.body), n.type.dtype)
        else:
            body = self.fixed(n.body)
        target = tuple(self.fixed(t) for t in n.target)
        return n if body is n.body and target == n.target else replace(n, body=body, target=target)

    def wide(self, e: Expr) -> Expr:
        """The narrow expression `e` in f32, without its last rounding."""
        match e:
            case Call("select", (condition, a, b)):
                return Call("select", (self.fixed(condition), self.wide(a), self.wide(b)))
            case Guard(bounds, then, otherwise):
                return Guard(bounds, self.wide(then), self.wide(otherwise))
            case Read(value, _) if value in self.widened:
                return e
            case Const():
                return const(e.value, F32)
            case Call(_, (x,)) if _is_rounding(e, self.pattern):
                return self.fixed(x)
        return cast(self.fixed(e), F32)

    def fixed(self, e: Expr) -> Expr:
        """`e` over the widened values, with its type unchanged."""
        match e:
            case Call("f32", (inner,)) if any(v in self.widened for v in _parts_read(inner)):
                return self.wide(inner)
            case Read(value, _) if value in self.widened:
                return cast(e, self.pattern.type_of(value).dtype)
        parts = children(e)
        return rebuild(e, tuple(self.fixed(x) for x in parts)) if parts else e
