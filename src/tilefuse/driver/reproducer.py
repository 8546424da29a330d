"""A folder that reproduces a failed compile: graph, FX code, shapes, error. It holds no tensor data."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path
from typing import Any

from tilefuse.base.options import Options

README = """A graph that tilefuse failed to compile; torch ran it instead.

graph.txt   the imported graph, if the import got that far: `tilefuse opt graph.txt`
fx.py       the ATen graph that torch traced
inputs.txt  type, shape and strides of every input
error.txt   what went wrong

Please report it with these files.
"""


def write_reproducer(kind: str, gm: Any, graph_text: str, error: BaseException, options: Options) -> Path:
    """Writes the folder and gives its path. Raises: OSError when no folder can be written."""
    parent = Path(options.dump_dir) if options.dump_dir else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"tilefuse-{kind}-", dir=parent))
    (folder / "README").write_text(README)
    (folder / "graph.txt").write_text(graph_text)
    (folder / "fx.py").write_text(gm.print_readable(print_output=False))
    lines = []
    for node in gm.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("val")
        described = (
            f"{fake.dtype} {tuple(fake.shape)} strides {tuple(fake.stride())} on {fake.device}" if hasattr(fake, "stride") else repr(fake)
        )
        lines.append(f"{node.name}: {described}")
    (folder / "inputs.txt").write_text("\n".join(lines) + "\n")
    changed = "".join(f"{name} = {value!r}\n" for name, value in options.changed().items())
    (folder / "error.txt").write_text("".join(traceback.format_exception(error)) + "\n" + changed)
    return folder
