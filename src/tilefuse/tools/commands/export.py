"""The command that writes a model as a program without Python."""
from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilefuse.tools.commands.model import Device, OptionFlags, PlanFile, Shapes, TemplateFile
from tilefuse.tools.console import emit_json, results, working
from tilefuse.tools.explain import bytes_text, counted


def export(model: Annotated[str, typer.Argument(metavar="MODEL", help="as for `tilefuse compile`, or a saved program")],
           out: Annotated[Path, typer.Option("--out", help="the folder to write")], shapes: Shapes = None, device: Device = "",
           target: Annotated[str, typer.Option("--target", help="GPU to write for, e.g. h200; need not be present")] = "",
           name: Annotated[str, typer.Option("--name", help="what files and functions are called; default: as the model")] = "",
           option: OptionFlags = None, plan: PlanFile = None, template: TemplateFile = None,
           as_json: Annotated[bool, typer.Option("--json", help="print JSON on standard output")] = False) -> None:
    """Write a model as C++ with its weights, a C interface and a CMake file: it runs without Python, torch or tilefuse."""
    from tilefuse.tools.programs import check_one_device
    from tilefuse.tools.written import with_files

    check_one_device(target, device)
    with working(f"exporting {model}", quiet=as_json):
        result = _exported(model, out, shapes or [], device, target, name, with_files(option, plan, template) or [])
    if as_json:
        facts = {kind: [{"name": n, "dtype": t, "shape": list(s)} for n, t, s in listed]
                 for kind, listed in (("inputs", result.inputs), ("results", result.results))}
        emit_json({"folder": str(result.folder), "name": result.name, "files": list(result.files),
                   "library_calls": list(result.kinds), **facts,
                   "kernels": result.num_kernels, "weight_bytes": result.weight_bytes, "workspace_bytes": result.workspace_bytes})
        return
    calls = f", library calls: {', '.join(result.kinds)}" if result.kinds else ""
    weights = bytes_text(result.weight_bytes)
    results().print(f"{result.name}: {counted(result.num_kernels, 'kernel')}{calls}, {weights} of weights", highlight=False)
    for kind, listed in (("takes", result.inputs), ("gives", result.results)):
        texts = ", ".join(f"{n}: {t}{list(s)}" for n, t, s in listed)
        results().print(f"  {kind} {texts}", highlight=False, soft_wrap=True)
    results().print(f"in {result.folder}: README.md says how to build and run it", highlight=False)


def _exported(model: str, out: Path, shapes: list[str], device: str, target: str, name: str, option: list[str]) -> Any:
    from tilefuse.driver.export import export_model, is_saved_program
    from tilefuse.tools.model_source import SourceKind, load_model, shape_arguments
    from tilefuse.tools.programs import chosen_device, compile_source, parse_options
    from tilefuse.tools.shapes import parse_shapes

    if is_saved_program(model):
        return export_model(model, out, name=name)
    flags, options = parse_shapes(shapes), parse_options(option)
    source = load_model(model, flags)
    where = "" if target else chosen_device(device)
    name = name or source.name
    if where.startswith("cuda") and source.kind is SourceKind.TORCH:
        # Recorded on the device: attention there is another operator than on a processor.
        return export_model(compile_source(source, flags, where, options), out, name=name)
    return export_model(source.model, out, source.examples, device=where or None, target=target, shapes=shape_arguments(flags),
                        example_kwargs=source.named or None, name=name, **options)
