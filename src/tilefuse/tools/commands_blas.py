"""The command for BLAS scripts: run one, explain it, or write it as CUDA C++."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilefuse.base.errors import OptionError, UserError
from tilefuse.tools.commands_model import AsJson, Device, OptionFlags
from tilefuse.tools.console import emit_json, results, working

if TYPE_CHECKING:
    from tilefuse.driver.script import CompiledScript


def blas(script: Annotated[Path, typer.Argument(help="a script, as docs/blas.md describes")],
         shapes: Annotated[list[str] | None, typer.Option("--shapes", help="extents of an input NAME:1000x500; may be repeated")] = None,
         kind: Annotated[str, typer.Option("--kind", help="auto, template or routines: what kernels are made of")] = "auto",
         deterministic: Annotated[bool, typer.Option("--deterministic", help="no atomic additions")] = False,
         device: Device = "", option: OptionFlags = None,
         library: Annotated[list[Path] | None, typer.Option("--library", help="folder with functions of your own; may be repeated")] = None,
         emit: Annotated[Path | None, typer.Option("--emit", help="write CUDA C++ to this .cu, a C header and a driver beside it")] = None,
         target: Annotated[str, typer.Option("--target", help="with --emit: the device to generate for; need not be present")] = "h200",
         repeat: Annotated[int, typer.Option("--repeat", min=1, help="timed calls after the first")] = 5,
         as_json: AsJson = False) -> None:
    """Compile a BLAS script and run it on random data, or write it as CUDA C++ that builds with nvcc alone."""
    from tilefuse.driver.script import compile_script
    from tilefuse.tools.programs import chosen_device, parse_options
    from tilefuse.tools.shapes import parse_shapes

    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise UserError(f"cannot read the script {script}: {cause}") from cause
    place = chosen_device(device) if emit is None else "host"
    function = compile_script(text, library=library or (), device=place, name=script.stem, kind=kind, deterministic=deterministic,  # type: ignore[arg-type]
                              options=parse_options(option or []))
    extents = {name: flag.shape for name, flag in parse_shapes(shapes or []).items()}
    missing = [n for n in function.inputs if n not in extents and function.resolved.kinds[n] != "scalar"]
    if missing:
        raise OptionError(f"the sizes of {', '.join(missing)} are not known", hint=f"--shapes {missing[0]}:1000")
    if emit is not None:
        facts = _emitted(function, extents, emit, target, text)
    else:
        with working(f"compiling {script.name}", quiet=as_json):
            facts = _ran(function, extents, place, repeat)
    if as_json:
        emit_json(facts)
        return
    for line in _lines(facts):
        results().print(line, markup=False, highlight=False)


def _emitted(function: CompiledScript, extents: dict[str, tuple[int, ...]], path: Path, target: str, text: str) -> dict[str, Any]:
    from tilefuse.driver.script_programs import choose
    from tilefuse.tools.emit_program import emit_program
    from tilefuse.tools.programs import target_device

    if path.suffix != ".cu":
        raise OptionError(f"--emit {path} has not the suffix .cu", hint=f"--emit {path.with_suffix('.cu')}")
    device = target_device(target)
    choice = choose(function.graph_for(extents), device, function.options, function.kind, function.deterministic)
    made = emit_program(choice.spec, path.stem.replace("-", "_"), path.stem, device.arch, text, function.inputs)
    return {"files": [str(p) for p in made.write(path)], "kernels": [k.name for k in choice.spec.kernels],
            "build": f"nvcc -O3 -arch={device.arch} -o {path.stem} {path.name} {path.stem}_main.cu"}


def _ran(function: CompiledScript, extents: dict[str, tuple[int, ...]], place: str, repeat: int) -> dict[str, Any]:
    """Run on random data. Units: microseconds."""
    import torch

    from tilefuse.runtime.library import TORCH_DTYPES
    from tilefuse.tools.programs import time_calls_us, timing_summary

    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(extents.get(n, ()), generator=generator, dtype=TORCH_DTYPES[function.resolved.dtypes[n].name])
             .to("cpu" if place == "host" else place) for n in function.inputs]
    made = function.program_for(*given)
    out = function(*given)
    arrays = out if isinstance(out, tuple) else (out,)
    timing = timing_summary(time_calls_us(lambda: function(*given), "host" if place == "host" else "cuda", repeat))
    return {"device": place, **timing, "how": made.choice.how, "kernels": [k.name for k in made.program.kernels],
            "results": {n: {"shape": list(a.shape), "norm": float(a.double().norm())} for n, a in zip(function.outputs, arrays)}}


def _lines(facts: dict[str, Any]) -> list[str]:
    if "files" in facts:
        return [*(f"wrote {p}" for p in facts["files"]), f"kernels: {', '.join(facts['kernels'])}", f"build:   {facts['build']}"]
    lines = [f"{n}: shape {r['shape']}, norm {r['norm']:.9g}" for n, r in facts["results"].items()]
    return [*lines, f"kernels ({facts['how']}): {', '.join(facts['kernels'])}", f"{facts['median_us']:.1f} us a call on {facts['device']}"]
