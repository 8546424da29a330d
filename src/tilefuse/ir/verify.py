"""The rules of every graph. `verify` returns findings; the caller decides whether they are the user's error or ours.

Each rule has a name (the keys of `RULES`). That reads are in range is proved from the extents and the enclosing guards; a graph
whose reads are in range but not provably so is rejected, so that kernels never need a run-time check.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilefuse.base.errors import CompilerError, VerifyError
from tilefuse.ir.affine import Affine, bounds
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import REDUCE_MONOIDS, SCAN_MONOIDS, SCATTER_MONOIDS, Graph, Node, Type
from tilefuse.ir.monoids import monoid_result
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.ranges import Facts, always, assume, bounds_given, deny, never
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index, Lookup, Read

RULES: dict[str, str] = {
    "one-definition": "every value has one definition",
    "defined-before-use": "a node reads inputs and earlier nodes only",
    "known-kind": "the kind is one of the closed list, and its fields are those of the kind",
    "axes-match": "axes are distinct, one a result dimension; extents are not negative; every axis used is in the iteration domain",
    "subscripts-match": "a read or lookup has one subscript a dimension",
    "reads-in-range": "every read is proved in range from extents and guards",
    "lookups-placed": "lookups occur in gather nodes and in scatters only",
    "types-match": "operands fit their functions, arithmetic happens in arithmetic types, a body has its node's dtype",
    "results-exist": "results are values of the graph; an update gives an input a value of its type, once",
}
_MONOIDS = {"reduce": REDUCE_MONOIDS, "scan": SCAN_MONOIDS, "scatter": SCATTER_MONOIDS}


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule. `node` is the node's name, or "" for the graph as a whole."""

    rule: str
    node: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {'%' + self.node + ': ' if self.node else ''}{self.message}"


def verify(graph: Graph) -> list[Finding]:
    """All broken rules, in graph order; empty if there are none. Never raises. Cost: linear in the size of all bodies."""
    findings: list[Finding] = []
    types: dict[str, Type] = {}
    for item in graph.inputs:
        if item.name in types:
            findings.append(Finding("one-definition", "", f"input %{item.name} is defined twice"))
        if any(extent < 0 for extent in item.type.shape):
            findings.append(Finding("axes-match", "", f"input %{item.name}: {item.type} has a negative extent"))
        types[item.name] = item.type
    for node in graph.nodes:
        findings.extend(verify_node(node, types))
        if node.name in types:
            findings.append(Finding("one-definition", node.name, f"%{node.name} is defined twice"))
        types[node.name] = node.type
    findings.extend(_check_results(graph, types))
    return findings


def check(graph: Graph, where: str) -> None:
    """Raises: VerifyError that names every broken rule; `where` names the origin of the graph (a pass, a frontend)."""
    findings = verify(graph)
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings[:20])
        others = f"\n  and {len(findings) - 20} more" if len(findings) > 20 else ""
        raise VerifyError(f"graph @{graph.name} breaks {len(findings)} rule(s):\n{listed}{others}", where=where)


def _check_results(graph: Graph, types: dict[str, Type]) -> Iterator[Finding]:
    for result in graph.results:
        if result not in types:
            yield Finding("results-exist", "", f"result %{result} is not a value of the graph")
    inputs = {i.name for i in graph.inputs}
    updated: set[str] = set()
    for target, value in graph.updates:
        if target not in inputs:
            yield Finding("results-exist", "", f"update of %{target}, which is not an input")
        if target in updated:
            yield Finding("results-exist", "", f"%{target} is updated twice")
        updated.add(target)
        if value not in types:
            yield Finding("results-exist", "", f"update of %{target} with %{value}, which is not a value of the graph")
        elif target in types and types[target] != types[value]:
            yield Finding("results-exist", "", f"update of %{target}: {types[target]} with %{value}: {types[value]}")


def verify_node(node: Node, types: dict[str, Type]) -> Iterator[Finding]:
    """The broken rules of one node; `types` are those of the values it may read."""
    shape_findings = list(_check_form(node, types))
    yield from shape_findings
    undefined = [v for v in node.reads() if v not in types]
    for value in undefined:
        yield Finding("defined-before-use", node.name, f"reads %{value}, which is not defined before it")
    if shape_findings or undefined or node.category == "library":
        return
    assert node.body is not None
    type_findings = list(_check_types(node, types))
    yield from type_findings
    if type_findings:
        return
    extents = node.extents
    if 0 in extents.values():
        return  # nothing is evaluated, so nothing is read
    subscripts = _Subscripts(node, types, extents)
    for e in (node.body, *node.target):
        subscripts.walk(e, ())
    yield from subscripts.findings


def _check_form(node: Node, types: dict[str, Type]) -> Iterator[Finding]:
    """Kind, fields and axes."""
    def broken(rule: str, message: str) -> Finding:
        return Finding(rule, node.name, message)

    category, detail = node.category, node.detail
    if category == "library":
        if not detail:
            yield broken("known-kind", "a library node names its operator: library.NAME")
        if node.axes or node.over or node.along or node.body is not None or node.target:
            yield broken("known-kind", "a library node has operands and attributes only")
        if list(node.attributes) != sorted(node.attributes, key=lambda pair: pair[0]):
            yield broken("known-kind", "attributes are not sorted by name")
        if len({name for name, _ in node.attributes}) != len(node.attributes):
            yield broken("known-kind", "an attribute is given twice")
        return
    known = node.kind in ("map", "gather") or detail in _MONOIDS.get(category, ())
    if not known:
        yield broken("known-kind", f"unknown kind {node.kind}")
        return
    if node.body is None:
        yield broken("known-kind", "has no body")
    if node.attributes:
        yield broken("known-kind", "only library nodes have attributes")
    if any(extent < 0 for extent in (*node.type.shape, *(extent for _, extent in node.over))):
        yield broken("axes-match", "an extent is negative")
    if category != "reduce" and category != "scatter" and node.over:
        yield broken("known-kind", f"a {category} has no reduced axes")
    if (category == "scan") != bool(node.along) or (node.along and node.along not in node.axes):
        yield broken("axes-match", f"along names {node.along or 'no axis'}; a scan, and nothing else, runs along one of its axes")
    if category == "scatter":
        yield from _check_scatter_form(node, types)
    else:
        if node.target or node.operands:
            yield broken("known-kind", f"a {category} has neither a target nor operands")
        if len(node.axes) != len(node.type.shape):
            yield broken("axes-match", f"{len(node.axes)} axes for {len(node.type.shape)} dimensions")
    axes = (*node.axes, *(name for name, _ in node.over))
    if len(set(axes)) != len(axes):
        yield broken("axes-match", f"an axis occurs twice among {' '.join(axes)}")


def _check_scatter_form(node: Node, types: dict[str, Type]) -> Iterator[Finding]:
    if node.axes:
        yield Finding("axes-match", node.name, "a scatter's domain is given by over, not by axes")
    if len(node.operands) != 1:
        yield Finding("known-kind", node.name, f"a scatter starts from one value, not {len(node.operands)}")
    elif node.operands[0] in types and types[node.operands[0]] != node.type:
        base = node.operands[0]
        yield Finding("types-match", node.name, f"has type {node.type}, but its initial contents %{base}: {types[base]}")
    if len(node.target) != len(node.type.shape):
        yield Finding("subscripts-match", node.name, f"{len(node.target)} target subscripts for {len(node.type.shape)} dimensions")


def _check_types(node: Node, types: dict[str, Type]) -> Iterator[Finding]:
    def read_dtype(value: str) -> DType:
        return types[value].dtype

    assert node.body is not None
    category, detail = node.category, node.detail
    try:
        body_dtype = dtype_of(node.body, read_dtype)
        if category in ("reduce", "scan") or (category == "scatter" and detail != "set"):
            body_dtype = monoid_result(detail, body_dtype)
        for subscript in node.target:
            kind = dtype_of(subscript, read_dtype)
            if not kind.is_integer:
                yield Finding("types-match", node.name, f"a target subscript is {kind}, not an integer")
    except CompilerError as error:
        yield Finding("types-match", node.name, error.message + (f" ({error.where})" if error.where else "")
                      + (f"; {error.hint}" if error.hint else ""))
        return
    if body_dtype != node.type.dtype:
        yield Finding("types-match", node.name, f"has dtype {node.type.dtype}, but its body gives {body_dtype}")


class _Subscripts:
    """Visits the bodies of one node and collects errors in its subscripts, under the guards around them."""

    def __init__(self, node: Node, types: dict[str, Type], extents: dict[str, int]) -> None:
        self.node = node
        self.types = types
        self.extents = extents
        self.findings: list[Finding] = []

    def broken(self, rule: str, message: str) -> None:
        """Adds a finding about the node."""
        self.findings.append(Finding(rule, self.node.name, message))

    def axes_known(self, e: Affine) -> bool:
        """Whether all axes of an index expression belong to the node; adds findings otherwise."""
        unknown = sorted(e.axes() - self.extents.keys())
        for name in unknown:
            self.broken("axes-match", f"{e} uses the axis {name}, which is not in the iteration domain")
        return not unknown

    def walk(self, e: Expr, facts: Facts) -> None:
        """Visits an expression under the facts of the guards around it."""
        match e:
            case Call(_, args):
                for a in args:
                    self.walk(a, facts)
            case Read(value, index):
                self.read(value, index, facts)
            case Const():
                return
            case Index(affine):
                self.axes_known(affine)
            case Lookup(value, subscripts):
                self.lookup(value, subscripts)
                for s in subscripts:
                    self.walk(s, facts)
            case Guard(tests, then, otherwise):
                known = [self.axes_known(b.index) for b in tests]  # all of them, so that each unknown axis is found
                if not all(known):
                    return
                if not any(never(b, self.extents, facts) for b in tests):
                    self.walk(then, assume(tests, facts))
                if not all(always(b, self.extents, facts) for b in tests):
                    self.walk(otherwise, deny(tests, self.extents, facts))

    def lookup(self, value: str, subscripts: tuple[Expr, ...]) -> None:
        """Checks a lookup's place and the types of its subscripts."""
        if self.node.category not in ("gather", "scatter"):
            self.broken("lookups-placed", f"lookup of %{value} in a {self.node.kind}; only gather and scatter nodes have lookups")
        shape = self.types[value].shape
        if len(subscripts) != len(shape):
            self.broken("subscripts-match", f"%{value} has {len(shape)} dimensions, lookup gives {len(subscripts)} subscripts")
        elif any(extent == 0 for extent in shape):
            self.broken("reads-in-range", f"lookup of %{value}: {self.types[value]}, which has no elements")

    def read(self, value: str, index: tuple[Affine, ...], facts: Facts) -> None:
        """Checks that a read's subscripts lie within the value's extents."""
        shape = self.types[value].shape
        if len(index) != len(shape):
            self.broken("subscripts-match", f"%{value} has {len(shape)} dimensions, read with {len(index)} subscripts")
            return
        for dimension, e in enumerate(index):
            extent = shape[dimension]
            span = bounds(e, self.extents)
            # A remainder is bounded even if its axes are unknown, so only sums of plain axes are done here.
            if span is not None and span[0] >= 0 and span[1] < extent and e.is_linear:
                continue
            if not self.axes_known(e):
                continue
            span = bounds_given(e, self.extents, facts)
            assert span is not None
            if span[0] <= span[1] and (span[0] < 0 or span[1] >= extent):
                self.broken("reads-in-range", f"%{value}[{', '.join(map(str, index))}]: dimension {dimension} runs over"
                                              f" {span[0]} .. {span[1]}, but the extent is {extent}")
