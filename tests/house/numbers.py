"""Numbers that stand in the lines of templates, planner and rewrites for a device: each with its file, name, value and kind.

    python -m tests.house.numbers

Kinds: "structural" (sizes of formats and units), "limit" (bounds on a search or on generated code, the same on every device) and "device"
(everything else: a fitted number, which belongs into `tilefuse.target.fitted`).
"""
from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.house.source_tree import PACKAGE, SourceFile, nodes_of, package_files

ROOMS = ("domain", "emit", "templates", "plan", "passes/device", "scripts")
# Of scripts: formats, index widths, sizes of probes, and values that no result reaches; bounds on the search and on its measurements.
SCRIPT_STRUCTURAL = frozenset({
    "CASES", "FIELD_BYTES", "FIRST_RANK", "FORMAT", "HOST_MATRIX", "HOST_VECTOR_WORDS", "KEY_DIGITS", "LARGEST_INT32", "LONGEST_QUOTED",
    "MATRIX", "ONE_ROW_BYTES", "RATIO_DIGITS", "REGISTER_PIECE", "RESERVED_SHARED_BYTES", "UNREACHED", "UNREACHED_INTEGER", "US_DIGITS",
    "VECTOR_WORDS",
})
SCRIPT_LIMITS = frozenset({
    "BUILT_TOGETHER", "CACHES_FILLED", "COMPUTE_ENVIRONMENTS", "FIRST_IMPLEMENTATIONS", "GRID_WAVES", "LAUNCHES", "LEAST_PROBE_US",
    "LEAST_REGISTERS", "LEAST_THREADS", "MOST_CHOICES", "MOST_INPUT_SETS", "MOST_ORDERED_CHOICES", "MOST_ORDERS", "MOST_SETS",
    "TRANSFER_ENVIRONMENTS", "UNLIKE_DIRECTION", "UNLIKE_SHARED_BYTES",
})
# Of chains of products: bytes of an operand, elements of a lane.
CHAIN_STRUCTURAL = frozenset({"ITEM_BYTES", "LANE_ELEMENTS"})
# Of products with swapped operands: register arrays of an operand.
SWAPPED_STRUCTURAL = frozenset({"EXPANDED_ARRAYS"})
# Of pipelined products: sizes of operands that may be turned, and of elements that pass through stages.
PIPELINED_STRUCTURAL = frozenset({"ACCESSES_OF_PARTS", "LONGEST_STAGED_BYTES", "LOW_TILES", "PRODUCTS_OF_PARTS", "SHARED_BYTES_PER_CYCLE",
                                  "TURNED_BITS"})
# Sizes of formats and hardware units, codes and column numbers.
STRUCTURAL = frozenset({
    "CHUNK_BYTES", "COLUMN", "COPY_BYTES", "HALF_ROWS", "HALVES", "INNER", "IN_USE", "LANES", "LIMIT", "MAX_OPERANDS", "MOST_COLUMNS",
    "MOST_REGISTERS", "NEIGHBOURS", "REGISTER_BYTES", "REGISTER_UNIT", "ROUNDING", "ROW", "ROW_LANES", "ROW_TOLERANCE",
    "SCORE_TOLERANCE_US", "STAGES", "STAGE_COLUMNS", "STEP", "SWIZZLE", "TIE", "TOGETHER", "WEIGHT_OPERAND",
}) | SCRIPT_STRUCTURAL | CHAIN_STRUCTURAL | SWAPPED_STRUCTURAL | PIPELINED_STRUCTURAL
# Bounds on searches and on the size of generated code, and the values that a search tries.
LIMITS = frozenset({
    "ALIKE_RADIUS", "CLUSTERS", "COLUMN_TILES", "FEW_NODES", "GENERATOR_SHARE", "INLINE_LIMIT", "LARGEST_WINDOW",
    "LEAST_RECORDS", "MANY_COLUMNS", "MANY_RESULTS", "MAX_BETWEEN", "MAX_CYCLES_A_PART", "MAX_DEPTH", "MAX_FACTORS", "MAX_GROUPS",
    "MAX_GROWTH", "MAX_HALVES", "MAX_INNER", "MAX_INSTRUCTIONS", "MAX_ORDERED", "MAX_PIECES", "MAX_PRODUCTS", "MAX_REJECTED_KEPT",
    "MAX_ROUNDS", "MAX_ROW_INSTRUCTIONS", "MAX_SETS", "MAX_SETS_A_SEED", "MAX_SIBLINGS", "MAX_SIBLING_OPERANDS", "MAX_STEM_LENGTH",
    "MAX_STEPS_APART", "MAX_STEPS_OF_ONE_BLOCK", "MAX_SUMS", "MAX_TAPS", "MAX_TRIES", "MAX_VISITED", "MORE_HELD_SHARE", "MORE_LIVE_BYTES",
    "MORE_LIVE_SHARE", "MOST_BAND", "MOST_CASES", "MOST_CHARACTERS", "MOST_LISTED", "MOST_NAMED", "MOST_PARTS", "MOST_PEAKS", "MOST_ROWS",
    "MOST_SLOTS", "MOST_SWAPPED_SLOTS", "MOST_THREADS", "MOST_TILES", "MOST_UNROLLED", "MOST_WARPGROUPS", "NEW_STRUCTURES",
    "ONE_BLOCK_ELEMENTS", "OUTER_STRETCH", "ROUNDS_WITHOUT_GUIDES", "ROW_TILES", "SERIAL_REDUCTION_LIMIT", "STEPS", "STEPS_AHEAD",
    "STRETCH", "THREADS", "TRIED_BLOCKS", "TRIED_PANELS", "TRIED_RUNS", "TRIED_SIDES", "TRIED_SLOTS", "TRIED_THREADS", "TRIED_TILES",
    "TRIED_WARPGROUPS", "WIDE_COLUMNS", "WARPGROUP_TILES",
}) | SCRIPT_LIMITS
# Numbers inside functions that need no name: small counts, powers of two up to a block's threads, and scales of units.
PLAIN = frozenset({0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 0.5, 1e6})


@dataclass(frozen=True)
class Number:
    """One number. name: of the constant, or of the function that holds it. kind: "structural", "limit", "device" or "inline"."""

    file: str
    line: int
    name: str
    value: str
    kind: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.name} = {self.value}  {self.kind}"


def kind_of(name: str) -> str:
    """The kind of a module constant."""
    return "structural" if name in STRUCTURAL else "limit" if name in LIMITS else "device"


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
    for function in nodes_of(tree, ast.FunctionDef):
        for node in nodes_of(function, ast.Constant):
            if _is_number(node) and node.value not in PLAIN and node not in seen:
                seen.add(node)
                yield node.lineno, function.name, node.value  # type: ignore[misc]


def numbers(files: Iterable[SourceFile]) -> Iterator[Number]:
    """All numbers of the files."""
    for file in files:
        yield from (Number(file.name, line, name, ast.unparse(value), kind_of(name)) for line, name, value in constants(file.tree))
        yield from (Number(file.name, line, name, repr(value), "inline") for line, name, value in inline_numbers(file.tree))


def files_of(room: str) -> list[SourceFile]:
    """The source files of a room, or of a folder in one."""
    return [f for f in package_files() if f.path.is_relative_to(PACKAGE / room)]


def _has_number(value: ast.expr) -> bool:
    return any(isinstance(n, ast.Constant) and _is_number(n) for n in ast.walk(value)) and not isinstance(value, ast.Call)


def _is_number(node: ast.Constant) -> bool:
    return isinstance(node.value, int | float) and not isinstance(node.value, bool)


if __name__ == "__main__":
    for room in ROOMS:
        for number in numbers(files_of(room)):
            print(number)
