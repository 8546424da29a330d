"""Model files: the kind that a path's suffix names, and readers for kinds other than ONNX."""
from __future__ import annotations

import importlib
import logging
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError, nearest
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph

EXPORTED_SUFFIX = ".pt2"
SAVED_SUFFIX = ".tilefuse"
TEXT_SUFFIXES = (".tf", ".txt", SAVED_SUFFIX)


def opened(model: Any) -> Any:
    """The exported program or the graph that a path names; every other model as it is.

    Raises: as `exported_program` and `graph_of_text`.
    """
    if not isinstance(model, str | os.PathLike):
        return model
    path = Path(model)
    if path.suffix == EXPORTED_SUFFIX:
        return exported_program(path)
    return graph_of_text(path) if path.suffix in TEXT_SUFFIXES else model


def require_file(path: Path) -> None:
    """Raises: UserError where there is no such file, naming the nearest one."""
    if path.is_file():
        return
    folder = path.parent if path.parent.is_dir() else None
    near = nearest(path.name, os.listdir(folder)) if folder is not None else f"the folder {path.parent} does not exist"
    raise UserError(f"there is no file {path}", hint=near)


def exported_program(path: Path) -> Any:
    """The program of torch.export in a file. Raises: UserError for a missing file, or one that torch.export cannot load."""
    require_file(path)
    log = _Told()
    logger = logging.getLogger("torch.export")
    logger.addFilter(log)
    try:
        return _loaded(path, log)
    except (RuntimeError, ValueError, OSError, KeyError, zipfile.BadZipFile, ImportError) as cause:
        if log.missing:
            raise UserError(f"{path} gives or takes a {log.missing}, and that class is not here",
                            hint=f"install the package {log.missing.partition('.')[0]} that defines it, or export the model with plain "
                            "tuples and mappings") from cause
        said = log.last or str(cause)
        raise UserError(f"{path} is not a program of torch.export: {said}", hint="write it with torch.export.save") from cause
    finally:
        logger.removeFilter(log)


def _loaded(path: Path, log: _Told) -> Any:
    """The program. Imports the modules that register the classes in its structures, as the model itself did."""
    import torch

    while True:
        try:
            return torch.export.load(str(path))
        except RuntimeError:
            module = log.missing.rpartition(".")[0]
            if not module or module in log.imported:
                raise
            log.imported.add(module)
            importlib.import_module(module)


class _Told(logging.Filter):
    """Hides torch's log messages about an unreadable file: the error carries their content in a line."""

    def __init__(self) -> None:
        super().__init__()
        self.missing, self.last = "", ""
        self.imported: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """False always. Extracts the class that a structure needs, and the last line of the reason."""
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.getMessage()}\n{error or ''}"
        self.last = text.strip().rpartition("\n")[2]
        match = re.search(r"Deserializing ([\w.]+) in pytree", text)
        self.missing = match[1] if match else self.missing
        return False


def graph_of_text(path: Path) -> Graph:
    """The graph in a text file. Raises: UserError for a missing file, or one that is not text; ParseError."""
    require_file(path)
    try:
        return parse_graph(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as cause:
        raise UserError(f"cannot read {path}: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        if zipfile.is_zipfile(path):
            raise UserError(f"{path} is a saved program, not a graph in text form", hint="tilefuse.load reads saved programs") from cause
        if path.suffix == SAVED_SUFFIX:
            raise UserError(f"{path} is neither a saved program nor a graph in text form",
                            hint="if a program was saved there, the file is damaged: compile and save it again") from cause
        raise UserError(f"{path} is not text, and so no graph in text form",
                        hint=f"graphs in text form end in {', '.join(TEXT_SUFFIXES)}") from cause


def onnx_shapes(model: Any, shapes: Mapping[str, Sequence[int]] | None, examples: Sequence[Any] | None,
                named: Mapping[str, Any] | None) -> Mapping[str, Sequence[int]] | None:
    """Shapes of an ONNX model's inputs: those given, and those of example inputs, by place or by name.

    Raises: UserError for more example inputs than the model has; errors of reading it.
    """
    if examples is None and not named:
        return shapes
    from tilefuse.frontends.onnx.model import input_names, load_model

    listed = list(examples) if isinstance(examples, list | tuple) else [] if examples is None else [examples]
    names = input_names(load_model(model)[0])
    if len(listed) > len(names):
        raise UserError(f"the model takes {len(names)} inputs ({', '.join(names)}), got {len(listed)} example inputs")
    by_example = dict(zip(names, listed)) | dict(named or {})
    return {name: tuple(example.shape) for name, example in by_example.items() if hasattr(example, "shape")} | dict(shapes or {})
