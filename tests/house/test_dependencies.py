"""Every import of the package is declared, and every declared package is imported; the package itself imports quickly."""
from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache

from tests.house.source_tree import ROOT, nodes_of, package_files

# Distributions whose modules have another name, and those without modules: NVRTC's library, which cuda.bindings loads.
MODULES = {"cuda_bindings": "cuda.bindings"}
LIBRARIES = {"nvidia_cuda_nvrtc"}
SECONDS = 0.5


def declared() -> set[str]:
    """Modules of the runtime dependencies."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[<>=;\s]", d, maxsplit=1)[0].replace("-", "_") for d in listed]
    return {MODULES.get(n, n) for n in names if n not in LIBRARIES}


@cache
def imported() -> set[str]:
    """Modules of other packages that ours import, also inside functions."""
    found: set[str] = set()
    for file in package_files():
        for statement in nodes_of(file.tree, ast.Import):
            found |= {alias.name for alias in statement.names}
        for origin in nodes_of(file.tree, ast.ImportFrom):
            if not origin.level and origin.module:
                found |= {origin.module, *(f"{origin.module}.{alias.name}" for alias in origin.names)}
    return {name for name in found if name.partition(".")[0] not in (*sys.stdlib_module_names, "tilefuse")}


def covers(module: str, name: str) -> bool:
    """Whether `name` is the module or inside it."""
    return name == module or name.startswith(module + ".")


def test_every_dependency_is_used() -> None:
    """None is declared that nothing imports."""
    used = imported()
    assert {d for d in declared() if not any(covers(d, name) for name in used)} == set()


def test_every_import_is_declared() -> None:
    """Except optional packages, each behind its own message, and what a declared package is part of."""
    # google.protobuf comes with onnx, functorch and sympy with torch.
    optional = {"cupy", "functorch", "google", "jax", "onnxruntime", "sympy", "transformers", "triton"}
    roots = {d.partition(".")[0] for d in declared()} | optional
    assert {name for name in imported() if name.partition(".")[0] not in roots} == set()


def test_importing_the_package_is_quick() -> None:
    """Without frameworks and graph libraries; processor time, and the best of three: other work on the machine only lengthens it."""
    script = "import time; t = time.process_time(); import tilefuse; print(time.process_time() - t)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    taken = [float(subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout)
             for _ in range(3)]
    assert min(taken) < SECONDS, taken
