"""A model, a program or a saved file as a folder that runs without Python: `tilefuse.export`."""
from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UnsupportedError, UnsupportedOpError, UserError
from tilefuse.base.options import Options
from tilefuse.driver.compile import Generated, generate, import_model, onnx_shapes_of, present_device, titled
from tilefuse.driver.model import CompiledModel
from tilefuse.driver.onnx.model_file import opened
from tilefuse.driver.request import noted, traced
from tilefuse.frontends.imported import Output
from tilefuse.frontends.onnx.call import ValueNeededError
from tilefuse.runtime.archive import holds_parts, read_program
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.standalone.export import Exported, export_program
from tilefuse.standalone.places import Wanted
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec

WHOLE = "export the part of the model before or after what decides sizes by data, each as a model of its own"


def export_model(model: Any, folder: Path | str, example_inputs: Sequence[Any] | None = None, *, device: Any = None,
                 shapes: Mapping[str, Sequence[int]] | None = None, target: str = "", example_kwargs: Mapping[str, Any] | None = None,
                 name: str = "", **options: Any) -> Exported:
    """Writes a folder with the program of a model; see `tilefuse.export`.

    Raises: UnsupportedOpError for a library call without a form outside Python; UnsupportedError for a model that runs in parts; UserError
    and its subclasses for errors of the model, the options or the folder.
    """
    into = Path(folder)
    match model:
        case CompiledModel():
            return export_program(model.spec, model.program.constants, into, name, _wanted(model.spec, model.outputs, model.argument_names))
        case Program() | Generated():
            return export_program(model.spec, model.constants, into, name)
        case str() | Path() if is_saved_program(model):
            if holds_parts(model):
                raise UnsupportedError(f"{model} runs in several parts, which cannot be exported as one program", hint=WHOLE)
            spec, constants = read_program(model)
            return export_program(spec, constants, into, name or Path(model).stem)
    chosen = Options.from_environment().with_overrides(**options)
    where = device_by_name(target) if target else device if isinstance(device, DeviceSpec) else present_device(device or "")[0]
    opened_model = opened(model)
    try:
        imported = import_model(opened_model, example_inputs, shapes=onnx_shapes_of(opened_model, shapes, example_inputs, example_kwargs)
                                if _is_onnx(opened_model) else shapes, example_kwargs=example_kwargs)
    except (UnsupportedOpError, ValueNeededError) as error:
        if not _is_onnx(opened_model):
            raise
        raise UnsupportedError(f"the model runs in several parts, which cannot be exported as one program: {error.message}",
                               where=error.where, hint=WHOLE) from error
    with traced(chosen), noted(f"graph @{imported.graph.name}", where, chosen):
        generated = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=where, options=chosen,
                             fallbacks=imported.fallbacks, result_layouts=imported.result_layouts)
    spec = titled(generated.spec, imported.titles)
    return export_program(spec, generated.constants, into, name or _stem(model), _wanted(spec, imported.outputs, imported.arguments))


def is_saved_program(path: Any) -> bool:
    """Whether a path names a file that `save` wrote, whole or in parts."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return "program.json" in archive.namelist() or holds_parts(path)


def _is_onnx(model: Any) -> bool:
    return isinstance(model, str | os.PathLike | bytes) or type(model).__name__ == "ModelProto"


def _stem(model: Any) -> str:
    return Path(model).stem if isinstance(model, str | os.PathLike) else ""


def _wanted(spec: ProgramSpec, outputs: Sequence[Output], arguments: Sequence[str | None]) -> list[Wanted] | None:
    """The model's outputs as results of the program; None where they are the program's own results.

    Raises: UserError where an output is an argument that no kernel reads; the program does not have it.
    """
    if not outputs:
        return None
    results: list[Wanted] = []
    for number, output in enumerate(outputs):
        if output.result is not None:
            results.append(Wanted(spec.results[output.result], spec.told_results[output.result], output.permutation, output.expanded))
        elif output.argument is not None:
            name = arguments[output.argument] if output.argument < len(arguments) else None
            if name is None or name not in spec.inputs:
                raise UserError(f"output {number} of the model is its argument {output.argument} unchanged, which nothing else reads",
                                hint="leave that output out of the model")
            results.append(Wanted(name, name))
    return results
