"""Folders that reproduce a fault: of a failed compile (graph, FX code, shapes, error; no tensor data), and of a wrong result (the smallest
graph that fails, with its inputs)."""

from __future__ import annotations

import json
import shlex
import tempfile
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.driver.compare.reduce import Failing, described
from tilefuse.ir.rewrite import rename_values
from tilefuse.ir.text import print_graph

# Options that decide the generated text: a reproducer is compiled with the same ones.
_CODE_OPTIONS = frozenset(f.name for f in fields(Options) if f.metadata["affects_code"]) - {"plan", "template"}
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


FAILING = """{text}

The smallest graph that fails: {nodes} node{s}, after {tried} candidates in {seconds:.0f} s{rest}.

graph.txt   the graph
inputs.npz  its inputs
fault.json  the same as data, with the options of the compile

Exit status 5 and the elements that differ, from:

    {command}

Please report it with these files.
"""


def write_failing(folder: Path | str, text: str, failing: Failing | None, device: str, options: Options | None) -> str:
    """Writes a failing graph with its inputs to a folder; the command that runs it.

    Raises: UserError where there is no failing graph, or the folder cannot be written.
    """
    if failing is None:
        raise UserError("there is no failing graph to save")
    target = Path(folder)
    graph = rename_values(failing.graph, {"file": "file_"})  # NumPy's own name for where an archive goes
    arrays = {("file_" if name == "file" else name): _storable(array) for name, array in failing.inputs.items()}
    changed = {name: value for name, value in options.changed().items() if name in _CODE_OPTIONS} if options is not None else {}
    flags = "".join(f" -O {shlex.quote(f'{name}={value}')}" for name, value in changed.items())
    where = shlex.quote(str(target))
    command = f"tilefuse run {where}/graph.txt --inputs {where}/inputs.npz --device {device} --compare interpreter{flags}"
    facts = described(failing)
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "graph.txt").write_text(print_graph(graph))
        np.savez(target / "inputs.npz", **arrays)
        (target / "fault.json").write_text(json.dumps({"text": text, "device": device, "command": command, "options": changed, **facts},
                                                      indent=1, default=str) + "\n")
        (target / "README").write_text(FAILING.format(
            text=text, nodes=facts["nodes"], s="" if facts["nodes"] == 1 else "s", tried=failing.tried, seconds=failing.spent_s,
            rest="" if failing.finished else ", when the time was over", command=command))
    except OSError as error:
        raise UserError(f"cannot write the reproducer to {target}: {error.strerror or error}") from error
    return command


def _storable(array: Any) -> Any:
    """An array as NumPy's files can hold it: bf16 and fp8 as f32, which reading turns back exactly."""
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)
