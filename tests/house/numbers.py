"""Numbers that stand in the lines of templates, planner and rewrites for a device: each with its file, name, value and kind.

    python -m tests.house.numbers

Kinds: "structural" (sizes of formats and units), "inline" (without a name) and "device": everything else. A fitted number belongs into
`tilefuse.target.fitted`, a bound of a search into `tilefuse.base.search`, a fact of CUDA into `tilefuse.target`. Bounds come last; those
that decide between kernels or plans by themselves are marked (`DECIDING`).
"""
from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.house.source_tree import PACKAGE, SourceFile, nodes_of, package_files
from tilefuse.base.search.bound import bounds_of
from tilefuse.base.search.limits import SEARCH

ROOMS = ("domain", "emit", "templates", "plan", "passes/device", "scripts")
# Sizes of formats and of units of generated code, codes, column numbers, tolerances of arithmetic: no choice between kernels or plans.
STRUCTURAL = frozenset({
    # codes, formats and digits
    "CASES", "COLUMN", "FIELD_BYTES", "FIRST_RANK", "FORMAT", "INNER", "KEY_DIGITS", "LARGEST_INT32", "ONE_ROW_BYTES",
    "RATIO_DIGITS", "ROW", "UNREACHED", "UNREACHED_INTEGER", "US_DIGITS", "WEIGHT_OPERAND",
    # rounding: equal sums of cycles, ties, tolerances of the solver, terms of one chain of additions, exponents before a rescale
    "LIMIT", "OUTER_STRETCH", "ROUNDING", "ROW_TOLERANCE", "SCORE_TOLERANCE_US", "STRETCH", "TIE",
    # what one step of a generated main loop holds
    "ACCESSES_OF_PARTS", "EXPANDED_ARRAYS", "IN_USE", "ITEM_BYTES", "LANES", "LONGEST_STAGED_BYTES", "LOW_TILES", "PRODUCTS_OF_PARTS",
    "STAGES", "STAGE_COLUMNS", "STEP",
})
# Bounds of searches that decide between kernels or plans by themselves, where a price could: the others list candidates, bound the effort
# of a search or the length of texts, or say which registers an instruction needs.
DECIDING = frozenset({
    # which reductions one thread has, and which values are computed again in place
    "domain.inlined_values", "domain.serial_reduction", "domain.serial_results", "domain.serial_window", "domain.unrolled_taps",
    # which patterns stages take, and what one launch holds
    "stages.inner", "stages.one_block_elements", "packing.bodies", "packing.sibling_operands", "generators.steps_apart",
    # how much memory packing may take, and when measured kernels correct predictions
    "selection.least_records", "selection.more_held_share", "selection.more_live_bytes", "selection.more_live_share",
})
# Numbers inside functions that need no name: small counts, powers of two up to a block's threads, and scales of units.
PLAIN = frozenset({0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 0.5, 1e6})


@dataclass(frozen=True)
class Number:
    """One number. name: of the constant, or of the function that holds it. kind: "structural", "device" or "inline"."""

    file: str
    line: int
    name: str
    value: str
    kind: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.name} = {self.value}  {self.kind}"


def kind_of(name: str) -> str:
    """The kind of a module constant."""
    return "structural" if name in STRUCTURAL else "device"


def constants(tree: ast.Module) -> Iterator[tuple[int, str, ast.expr]]:
    """(line, name, value) of the assignments of a module that hold a number; a tuple of names gives one each."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from ((node.lineno, ast.unparse(n), v) for n, v in zip(names, values, strict=True) if _has_number(v))
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value) if _has_number(value):
                yield node.lineno, ast.unparse(target), value


def inline_numbers(tree: ast.Module) -> Iterator[tuple[int, str, float]]:
    """(line, function, value) of the numbers in functions that are not plain."""
    seen: set[ast.Constant] = set()
    for function in (*nodes_of(tree, ast.FunctionDef), *nodes_of(tree, ast.Lambda)):
        for node in nodes_of(function, ast.Constant):
            if _is_number(node) and node.value not in PLAIN and node not in seen:
                seen.add(node)
                yield node.lineno, getattr(function, "name", "lambda"), node.value  # type: ignore[misc]


def numbers(files: Iterable[SourceFile]) -> Iterator[Number]:
    """All numbers of the files."""
    for file in files:
        yield from (Number(file.name, line, name, ast.unparse(value), kind_of(name)) for line, name, value in constants(file.tree))
        yield from (Number(file.name, line, name, repr(value), "inline") for line, name, value in inline_numbers(file.tree))


def files_of(room: str) -> list[SourceFile]:
    """The source files of a room, or of a folder in one."""
    return [f for f in package_files() if f.path.is_relative_to(PACKAGE / room)]


def _has_number(value: ast.expr) -> bool:
    """Whether a value holds a number outside functions that stand in it, whose numbers `inline_numbers` lists."""
    in_functions = {n for function in ast.walk(value) if isinstance(function, ast.Lambda) for n in ast.walk(function)}
    held = (n for n in ast.walk(value) if n not in in_functions)
    return any(isinstance(n, ast.Constant) and _is_number(n) for n in held) and not isinstance(value, ast.Call)


def _is_number(node: ast.Constant) -> bool:
    return isinstance(node.value, int | float) and not isinstance(node.value, bool)


if __name__ == "__main__":
    for room in ROOMS:
        for number in numbers(files_of(room)):
            print(number)
    for bound in bounds_of(SEARCH):
        mark = "  decides" if bound.name in DECIDING else ""
        print(f"SEARCH.{bound.name} = {bound.value}{mark}  [{bound.reason.unit}] {bound.reason.meaning} Why: {bound.reason.reason}")
