"""Python files as arguments: names that they define, read and not run."""
from __future__ import annotations

import ast
import contextlib
from pathlib import Path


def defined(path: Path) -> list[str]:
    """Names of the functions and classes of a Python file, read and not run."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        tree = ast.parse(path.expanduser().read_text(encoding="utf-8"))
        return [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")]
    return []
