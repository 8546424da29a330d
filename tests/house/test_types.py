"""Types are right, not silenced: every ignored type error is counted here, with the reason why no annotation can end it."""
from __future__ import annotations

import ast
import io
import pickle
import re
import tokenize

from tests.house.source_tree import nodes_of, package_files
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call, Guard, Read, const
from tilefuse.kernel.ir import Load, Reg

IGNORED = re.compile(r"#\s*type:\s*ignore")
# Ignored errors by file.
KNOWN = {
    "src/tilefuse/arrays/array.py": 2,  # the array standard's == and != give arrays, those of `object` give bool
    "src/tilefuse/ir/scalar.py": 1,  # a constant's value is complex in frontends alone; everywhere else it would have to be narrowed
    "src/tilefuse/tools/cli.py": 1,  # typer does not say where it keeps its click: the class of a usage error is found at run time
}
# Uses of `typing.cast` by file: each states a type that mypy cannot see.
CASTS = {
    "src/tilefuse/arrays/arguments.py": 1,
    "src/tilefuse/scripts/language/routine_library.py": 1,
    "src/tilefuse/frontends/onnx/importer.py": 1,
    "src/tilefuse/frontends/onnx/model.py": 1,
}


def num_ignored(text: str) -> int:
    """Comments that ignore type errors."""
    if not IGNORED.search(text):
        return 0
    return sum(t.type == tokenize.COMMENT and bool(IGNORED.search(t.string)) for t in tokenize.generate_tokens(io.StringIO(text).readline))


def num_casts(tree: ast.Module) -> int:
    """Calls of `typing.cast` where the file imports it."""
    imported = {a.asname or a.name for node in nodes_of(tree, ast.ImportFrom) if node.module == "typing"
                for a in node.names if a.name == "cast"}
    return sum(isinstance(node.func, ast.Name) and node.func.id in imported for node in nodes_of(tree, ast.Call))


def _more_than(known: dict[str, int], count_of: dict[str, int]) -> list[str]:
    return [f"{name}: {n}, known: {known.get(name, 0)}" for name, n in count_of.items() if n > known.get(name, 0)]


def test_no_type_error_is_ignored_besides_the_known_ones() -> None:
    """An expression has the type of its level (`Expr`, `Resolved`, `KExpr`): a new ignored error hides a mix of levels, or a None."""
    counts = {f.name: n for f in package_files() if (n := num_ignored(f.text))}
    assert not _more_than(KNOWN, counts), "annotate instead of ignoring the error"
    assert counts == KNOWN, "an ignored error is gone: lower the number above"


def test_typing_cast_is_used_nowhere_else() -> None:
    counts = {f.name: n for f in package_files() if (n := num_casts(f.tree))}
    assert not _more_than(CASTS, counts), "narrow by isinstance or annotate instead of typing.cast"
    assert counts == CASTS, "a cast is gone: lower the number above"


def test_ignored_errors_and_casts_are_found() -> None:
    """The checks themselves can fail."""
    assert num_ignored('x = 1  # type: ignore[arg-type]\ny = "# type: ignore"\n') == 1
    assert num_casts(ast.parse("from typing import cast\nx = cast(int, y)\n")) == 1
    assert num_casts(ast.parse("from tilefuse.ir.scalar import cast\nx = cast(e, F32)\n")) == 0


def test_generic_calls_and_guards_stay_plain_records() -> None:
    """The type parameter exists for the type checker alone: slots, equality, hash and pickled form are those of a plain record."""
    of_graph = Call("add", (Read("x", ()), const(1.0, F32)))
    of_kernel: Call[object] = Call("add", (Reg("a", F32), Load("b", F32, Affine())))
    guard = Guard((), of_graph, const(0.0, F32))
    for e in (of_graph, of_kernel, guard):
        assert not hasattr(e, "__dict__") and not hasattr(e, "__orig_class__")
        again = pickle.loads(pickle.dumps(e))
        assert again == e and hash(again) == hash(e) and type(again) is type(e)
    assert Call.__slots__ == ("fn", "args") and Guard.__slots__ == ("bounds", "then", "otherwise")
    assert of_graph != of_kernel
