"""Exported folders built with the system's compiler, without CMake, and loaded as their own loader does."""
from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from tilefuse.runtime.compilers.host import find_compiler
from tilefuse.standalone.export import Exported

FLAGS = ("-std=c++20", "-march=native", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC",
         "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")


def build_host(made: Exported, optimise: str = "-O1") -> Path:
    """The shared library of an exported folder; several files at a time."""
    sources = [made.folder / f for f in made.files if f.startswith("src/") and f.endswith(".cpp") and "example" not in f]
    command = [*find_compiler(), optimise, *FLAGS, f"-I{made.folder / 'include'}", f"-I{made.folder / 'src'}"]
    objects = made.folder / "objects"
    objects.mkdir()
    groups = [sources[n::2] for n in range(2)]
    running = [subprocess.Popen([*command, "-c", *map(str, group)], cwd=objects, stderr=subprocess.PIPE, text=True)
               for group in groups if group]
    for process in running:
        _, log = process.communicate()
        assert process.returncode == 0, log
    library = made.folder / f"lib{made.name}.so"
    done = subprocess.run([*command, "-shared", *map(str, objects.glob("*.o")), "-o", str(library)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    return library


def loader(made: Exported) -> Any:
    """The module that the folder holds for Python."""
    spec = importlib.util.spec_from_file_location(f"exported_{made.name}", made.folder / f"{made.name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
