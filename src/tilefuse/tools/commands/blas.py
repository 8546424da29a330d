"""The command for BLAS scripts: run one, explain it, or write it as CUDA C++."""
from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tilefuse.base.errors import NameLookupError, OptionError, UnsupportedError, nearest
from tilefuse.tools.commands.model import AsJson, Device, OptionFlags
from tilefuse.tools.console import emit_json, results, working
from tilefuse.tools.explain import time_text
from tilefuse.tools.scripts import Extents, extents_of, script_text

if TYPE_CHECKING:
    from tilefuse.scripts.language.elementary import CallGraph
    from tilefuse.scripts.script import CompiledScript
    from tilefuse.target.device import DeviceSpec

# Programs that a search looks at, implementations of each fusion among them, and rejected fusions that are printed.
MOST_PROGRAMS, IMPLEMENTATIONS_EACH, MOST_REJECTED = 200, 8, 20
DEFAULT_TARGET = "h200"
SIZES = ("arguments", "fixed")
CUDA_SUFFIX, HOST_SUFFIX = ".cu", ".cpp"
LEADING_HELP = "words from a row of a matrix input to the next (from a column, where it is column major), NAME:1008; may be repeated"


def blas(script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="a script, as docs/blas.md describes")],
         shapes: Annotated[list[str] | None, typer.Option("--shapes", help="extents of an input NAME:1000x500; may be repeated")] = None,
         leading: Annotated[list[str] | None, typer.Option("--leading", help=LEADING_HELP)] = None,
         kind: Annotated[str, typer.Option("--kind", help="auto, template or routines: what kernels are made of")] = "auto",
         deterministic: Annotated[bool, typer.Option("--deterministic", help="no atomic additions")] = False,
         device: Device = "", option: OptionFlags = None,
         library: Annotated[list[Path] | None, typer.Option("--library", help="folder with functions of your own; may be repeated")] = None,
         emit: Annotated[Path | None, typer.Option("--emit", help="write CUDA C++ to this .cu, a C header and a driver beside it")] = None,
         sizes: Annotated[str, typer.Option("--sizes", help="with --emit: arguments (the default) or fixed, those of --shapes")] = "",
         target: Annotated[str, typer.Option("--target", help="with --emit or --table: the device to generate for, h200 where --emit does "
                                                              "not say; need not be present")] = "",
         table: Annotated[int, typer.Option("--table", min=0, help="print the search: this many programs from the best predicted on")] = 0,
         seconds: Annotated[float, typer.Option("--search", min=0.0, help="time programs for so many seconds and keep the fastest")] = 0.0,
         repeat: Annotated[int, typer.Option("--repeat", min=1, help="timed calls after the first")] = 5,
         as_json: AsJson = False) -> None:
    """Compile a BLAS script and run it on random data, or write it as CUDA C++ that builds with nvcc alone."""
    from tilefuse.scripts.programs import kind_named
    from tilefuse.scripts.script import compile_script
    from tilefuse.tools.programs import chosen_device, parse_options
    from tilefuse.tools.shapes import parse_shapes

    text = script_text(script)
    if target and emit is None and not table:
        raise OptionError(f"--target {target} names a device to generate code for, but no code is generated",
                          hint="--emit out.cu, or --table 10")
    if sizes and emit is None:
        raise OptionError(f"--sizes {sizes} sets the arguments of an emitted function, but none is emitted", hint="--emit out.cu")
    if sizes not in ("", *SIZES):
        raise OptionError(f"--sizes {sizes!r} is not one of {', '.join(SIZES)}")
    if emit is not None and emit.suffix == HOST_SUFFIX and not target:
        target = "host"
    target = target or (DEFAULT_TARGET if emit is not None else "")
    place = chosen_device(device) if not target or seconds else "host"
    function = compile_script(text, library=library or (), device=place, name=script.stem, kind=kind_named(kind),
                              deterministic=deterministic, options=parse_options(option or []))
    extents = extents_of(function, parse_shapes(shapes or []))
    strides = _strides(function, extents, leading or [])
    searched: dict[str, Any] = {}
    if table or seconds:
        searched = _searched(function, extents, strides, target, place, table or MOST_PROGRAMS, seconds, as_json)
        if not as_json:
            _print_search(searched)
        elif emit is None:
            emit_json(searched)
        if emit is None:
            return
    if emit is not None:
        facts = {**searched, **_emitted(function, extents, strides, emit, target, text, sizes)}
    else:
        with working(f"compiling {script.name}", quiet=as_json):
            facts = _ran(function, extents, strides, place, repeat)
    if as_json:
        emit_json(facts)
        return
    for line in _lines(facts):
        results().print(line, markup=False, highlight=False)


def _strides(function: CompiledScript, extents: Extents, leading: list[str]) -> Extents:
    """Strides of the matrices whose leading dimension is given. Units: words."""
    strides_by_name: Extents = {}
    for text in (part.strip() for flag in leading for part in flag.split(",")):
        name, _, words = text.rpartition(":")
        if not words.isdigit():
            raise OptionError(f"--leading {text!r} is not of the form NAME:1008", hint="for example --leading A:1008")
        if name not in function.inputs:
            raise NameLookupError(f"the script has no input {name!r}", hint=nearest(name, function.inputs))
        if len(extents.get(name, ())) != 2:
            raise OptionError(f"--leading {text}: {name} is a {function.resolved.kinds[name]}", hint="matrices have a leading dimension")
        by_columns = bool(function.resolved.script.declared[name][1])
        least = extents[name][0 if by_columns else 1]
        if int(words) < least:
            raise OptionError(f"--leading {text}: a {'column' if by_columns else 'row'} of {name} has {least} words")
        strides_by_name[name] = (1, int(words)) if by_columns else (int(words), 1)
    return strides_by_name


def _searched(function: CompiledScript, extents: Extents, strides: Extents, target: str, place: str, most: int, seconds: float,
              quiet: bool) -> dict[str, Any]:
    """The programs of a script from the best predicted on; timed where `seconds` are given. Units: microseconds.

    Raises: OptionError where programs are to be timed for a device that is not the one at hand.
    """
    from tilefuse.base.candidate import Rejected
    from tilefuse.driver.compile import present_device
    from tilefuse.scripts.programs import how
    from tilefuse.scripts.tune import ScriptTuner
    from tilefuse.tools.programs import target_device

    device, where = (target_device(target), "") if target and not seconds else present_device(place)
    if target and device.name != target_device(target).name:
        raise OptionError(f"--search times programs on the device at hand, {device.name}, which is no {target}",
                          hint="leave --search out, or run it where the target is")
    search = function.search(function.graph_for(extents, strides), device)
    calls = search.graph.calls
    facts: dict[str, Any] = {
        "device": device.name, "calls": [f"{', '.join(c.results)} = {c.function.name}({', '.join(map(str, c.arguments))})" for c in calls],
        "fusions": [{"calls": list(f.calls), "spared_words": f.spared} for f in search.fusions.legal],
        "rejected": [{"calls": list(c), "reason": r.reason.value, "detail": r.detail}
                     for c, r in (*search.unimplemented(), *search.fusions.rejected)]}
    rows: list[dict[str, Any]] = []
    if seconds:
        with working(f"searching programs of {function.name}", quiet=quiet) as progress:
            for trial in ScriptTuner(search, where).trials(most, seconds):
                rejected = isinstance(trial.measured, Rejected)
                rows.append({"rank": trial.rank, "how": trial.how, "predicted_us": trial.predicted_us,
                             "us": None if rejected else trial.measured, "rejected": str(trial.measured) if rejected else None})
                progress.update(progress.task_ids[0], description=f"{len(rows)} programs timed", completed=len(rows), total=most)
    else:
        rows = [{"rank": n, "how": how(c), "predicted_us": c.predicted_us} for n, c in
                enumerate(itertools.islice(search.combinations(IMPLEMENTATIONS_EACH), most))]
    return {**facts, "programs": rows}


def _print_search(facts: dict[str, Any]) -> None:
    for n, call in enumerate(facts["calls"]):
        results().print(f"call {n}: {call}", markup=False, highlight=False)
    fusions = Table(title=f"{len(facts['fusions'])} fusions, {len(facts['rejected'])} rejected", title_justify="left")
    for column in ("calls", "spared words", "rejected"):
        fusions.add_column(column, overflow="fold")
    for f in facts["fusions"]:
        fusions.add_row(str(f["calls"]), str(f["spared_words"]), "")
    for r in facts["rejected"][:MOST_REJECTED]:
        fusions.add_row(str(r["calls"]), "", f"{r['reason']}: {r['detail']}")
    results().print(fusions)
    programs = Table(title=f"programs on {facts['device']}, best predicted first", title_justify="left")
    for column in ("rank", "predicted us", "measured us", "kernels"):
        programs.add_column(column, overflow="fold", justify="right" if column != "kernels" else "left")
    for row in facts["programs"]:
        measured = row.get("rejected") or (f"{row['us']:.2f}" if row.get("us") else "-")
        programs.add_row(str(row["rank"]), f"{row['predicted_us']:.2f}", measured, row["how"])
    results().print(programs)


def _emitted(function: CompiledScript, extents: Extents, strides: Extents, path: Path, target: str, text: str,
             sizes: str) -> dict[str, Any]:
    """Write the program: with sizes as arguments, or with those that are given where kernels have no others and nobody asked for more.

    Raises: OptionError where sizes are to be arguments and cannot be.
    """
    from tilefuse.standalone.c_names import identifier
    from tilefuse.tools.emit.program import emit_program
    from tilefuse.tools.programs import target_device

    on_host = target == "host"
    suffix = HOST_SUFFIX if on_host else CUDA_SUFFIX
    if path.suffix != suffix:
        raise OptionError(f"--emit {path} has not the suffix {suffix}", hint=f"--emit {path.with_suffix(suffix)}")
    device = target_device(target)
    graph = function.graph_for(extents, strides)
    why = "they were asked to be"
    if sizes != "fixed":
        written = _with_size_arguments(function, graph, strides, path, device, text)
        if not isinstance(written, str):
            return written
        why = written
        if sizes or on_host:
            raise OptionError(f"sizes cannot be arguments: {why}", hint="--sizes fixed" if not on_host else "--emit out.cu --sizes fixed")
    elif on_host:
        raise OptionError("a program for the processor takes its sizes as arguments", hint=f"--emit {path.with_suffix(CUDA_SUFFIX)}")
    search = function.search(graph, device)
    choice = function.chosen(search)
    turned = [v.name for v in search.graph.variables.values() if v.is_transposed]
    origin = f"{text.rstrip()}\n\nSizes are those of {', '.join(f'{n} {list(s)}' for n, s in extents.items())}: {why}"
    emitted = emit_program(choice.spec, identifier(path.stem), path.stem, device.arch, origin, function.inputs, turned)
    return {"files": [str(p) for p in emitted.write(path)], "kernels": [k.name for k in choice.spec.kernels], "sizes": f"fixed: {why}",
            "predicted_us": choice.predicted_us,
            "build": shlex.join(["nvcc", "-O3", f"-arch={device.arch}", "-o", path.stem, path.name, f"{path.stem}_main.cu"])}


def _with_size_arguments(function: CompiledScript, graph: CallGraph, strides: Extents, path: Path, device: DeviceSpec,
                         text: str) -> dict[str, Any] | str:
    """Write the program that takes its sizes as arguments; or why there is none."""
    from tilefuse.scripts.schedule.sizes import with_named_sizes
    from tilefuse.scripts.sized_programs import sized_program
    from tilefuse.standalone.c_names import identifier
    from tilefuse.tools.emit.sized import emit_sized

    if function.kind == "template":
        return "kernels made from meanings have those that they are planned for"
    search = function.search(with_named_sizes(graph, strides), device, "routines")
    try:
        choice = function.chosen(search)
        program = sized_program(search, choice, device, function.options)
    except UnsupportedError as error:
        return error.message
    sized = emit_sized(program, identifier(path.stem), path.stem, device, search.script_name, text)
    build = ["g++", "-O3", "-fopenmp", "-shared", "-fPIC", "-o", f"{path.stem}.so", path.name] if device.kind == "host" else \
        ["nvcc", "-O3", f"-arch={device.arch}", "-o", path.stem, path.name, f"{path.stem}_main.cu"]
    return {"files": [str(p) for p in sized.write(path)], "kernels": [k.name for s in program.steps for k in s.kernels[:1]],
            "sizes": f"arguments: {', '.join(program.sizes) or 'none'}", "predicted_us": choice.predicted_us, "build": shlex.join(build)}


def _ran(function: CompiledScript, extents: Extents, strides: Extents, place: str, repeat: int) -> dict[str, Any]:
    """Run on random data. Units: microseconds."""
    import torch

    from tilefuse.runtime.calls.call_times import Budget, time_calls
    from tilefuse.runtime.calls.library import TORCH_DTYPES

    generator = torch.Generator().manual_seed(0)
    arguments = []
    for name in function.inputs:
        shape, dtype, on = extents.get(name, ()), TORCH_DTYPES[function.resolved.dtypes[name].name], "cpu" if place == "host" else place
        drawn = torch.randn(shape, generator=generator, dtype=dtype).to(on)
        laid = torch.empty_strided(shape, strides[name], dtype=dtype, device=on).copy_(drawn) if name in strides else drawn
        arguments.append(laid)
    planned = function.program_for(*arguments)
    out = function(*arguments)
    arrays = out if isinstance(out, tuple) else (out,)
    device = torch.device("cpu" if place == "host" else place)
    timing = time_calls({"script": lambda: function(*arguments)}, device, Budget(0.0, repeat, 0.0))["script"].summary()
    return {"device": place, **timing, "how": planned.choice.how, "kernels": [k.name for k in planned.program.kernels],
            "results": {n: {"shape": list(a.shape), "norm": float(a.double().norm())} for n, a in zip(function.outputs, arrays)}}


def _lines(facts: dict[str, Any]) -> list[str]:
    if "files" in facts:
        return [*(f"wrote {p}" for p in facts["files"]), f"kernels: {', '.join(facts['kernels'])}", f"sizes:   {facts['sizes']}",
                f"build:   {facts['build']}"]
    lines = [f"{n}: shape {r['shape']}, norm {r['norm']:.9g}" for n, r in facts["results"].items()]
    return [*lines, f"kernels ({facts['how']}): {', '.join(facts['kernels'])}",
            f"{time_text(facts['median_us'])} a call on {facts['device']}"]
