"""The commands that take a model and do not run it: compile, opt, explain, view."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tilefuse.base.errors import OptionError, UnsupportedError
from tilefuse.tools import completion
from tilefuse.tools.console import emit_json, emit_text, errors, results, working
from tilefuse.tools.explain import SHOWN_STEPS, bytes_text, counted, explanation_lines, summary_lines
from tilefuse.tools.scripts import PlannedScript

Planned = Annotated[str, typer.Argument(
    metavar="MODEL", autocompletion=completion.models,
    help="a .onnx or .pt2 file, package.module:factory, file.py:factory, a graph in text form, a saved program (.tilefuse), or a BLAS "
         "script (.blas)")]
Model = Annotated[str, typer.Argument(
    metavar="MODEL", autocompletion=completion.models,
    help="a .onnx or .pt2 file, package.module:factory, file.py:factory, a graph in text form, or a saved program (.tilefuse)")]
Shapes = Annotated[list[str] | None, typer.Option("--shapes", help="input extents NAME:1x2x3[@dtype]; may be repeated")]
Device = Annotated[str, typer.Option("--device", autocompletion=completion.devices, help="host or cuda; default: the GPU if there is one")]
OptionFlags = Annotated[list[str] | None, typer.Option("-O", "--option", autocompletion=completion.option_values,
                                                       help="NAME=VALUE; `tilefuse options` lists them")]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="follow the plan in this file, as written by explain --plan-text")]
TemplateFile = Annotated[Path | None, typer.Option("--template", help="one kernel's template in the notation that explain prints")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]


def compile_model(model: Model, shapes: Shapes = None, device: Device = "", option: OptionFlags = None, plan: PlanFile = None,
                  template: TemplateFile = None,
                  target: Annotated[str, typer.Option("--target", autocompletion=completion.targets,
                                                 help="device to generate for, e.g. h200; need not be present")] = "",
                  emit: Annotated[Path | None, typer.Option("--emit", help="folder for the kernels' sources, plan and manifest")] = None,
                  save: Annotated[Path | None, typer.Option("--save", help="file for the program; `tilefuse.load` reads it")] = None,
                  sign: Annotated[Path | None, typer.Option("--sign", help="sign that file with the key in this file; `tilefuse key` "
                                                            "makes one, tilefuse.load(..., require_signature=...) verifies")] = None,
                  as_json: AsJson = False) -> None:
    """Compile a model: save the program, or write its sources for a device."""
    from tilefuse.runtime.spec import KernelStep
    from tilefuse.tools.emit.emit import write_sources
    from tilefuse.tools.programs import check_one_device, generate, load_and_compile, target_device
    from tilefuse.tools.written import with_files

    option = with_files(option, plan, template)
    if sign is not None and save is None:
        raise OptionError("--sign signs the file that --save writes", hint="name that file with --save FILE")
    if target:
        check_one_device(target, device)
        if save is not None:
            raise OptionError("--save needs the device itself; with --target only sources are generated", hint="use --emit DIR")
        if emit is None:
            raise OptionError("--target generates sources: say where with --emit DIR")
        with working(f"generating {model} for {target}", quiet=as_json):
            program = generate(model, shapes or [], target_device(target), option or [])
        compile_s = None
    else:
        with working(f"compiling {model}", quiet=as_json):
            _, program, compile_s = load_and_compile(model, shapes or [], device, option or [])
    facts: dict[str, Any] = {"program": program.spec.name, "kernels": len(program.spec.kernels), "compile_s": compile_s}
    if emit is not None:
        facts["files"] = [str(p) for p in write_sources(program, emit)]
    if save is not None:
        program.save(save, sign=sign)
        facts["saved"] = str(save)
    if as_json:
        emit_json(facts)
        return
    took = f" in {compile_s:.2f} s" if compile_s is not None else ""
    launches = sum(isinstance(step, KernelStep) for step in program.spec.steps) or facts["kernels"]
    distinct = f" ({facts['kernels']} distinct)" if facts["kernels"] < launches else ""
    results().print(f"{Path(model).name}: {counted(launches, 'kernel')}{distinct}{took}", highlight=False)
    if emit is not None:
        results().print(f"sources, plan and manifest in {emit}", highlight=False)
    if save is not None:
        results().print(f"program in {save} ({bytes_text(save.stat().st_size)})", highlight=False)
    if emit is None and save is None:
        errors().print("kept in the cache alone: --save FILE writes the program, --emit DIR its sources", markup=False, highlight=False)


def opt(model: Annotated[str, typer.Argument(metavar="MODEL", help="as for `tilefuse compile`; not needed with --list and --order")] = "",
        shapes: Shapes = None,
        passes: Annotated[str | None, typer.Option("--passes", autocompletion=completion.pipelines,
                                                        help="pipeline text; default: the compiler's own; empty: none")] = None,
        target: Annotated[str, typer.Option("--target", autocompletion=completion.targets,
                                            help="device to rewrite for, e.g. h200; need not be present. Without one, passes that need a "
                                            "device change nothing, and the default pipeline ends before them")] = "",
        option: OptionFlags = None,
        verify: Annotated[int, typer.Option("--verify", min=0, max=2, help="0 off, 1 rules, 2 + properties after each pass")] = 1,
        list_passes: Annotated[bool, typer.Option("--list", help="list the passes and stop")] = False,
        order: Annotated[bool, typer.Option("--order", help="print the order of all passes of a compile and stop")] = False,
        as_json: AsJson = False) -> None:
    """Run passes over a model or a graph in text form and print the graph."""
    import tilefuse.driver.kernel_passes  # noqa: F401  registers the passes of every room
    from tilefuse.base.options import Options
    from tilefuse.driver.pipeline import context_of, order_text
    from tilefuse.ir.text import print_graph
    from tilefuse.passes import DEFAULT_PIPELINE
    from tilefuse.passes.manager import PASSES, PassContext, Pipeline
    from tilefuse.tools.model_source import load_graph
    from tilefuse.tools.programs import parse_options, target_device
    from tilefuse.tools.shapes import parse_shapes

    options = Options.from_environment().with_overrides(**parse_options(option or []), verify=verify)
    if list_passes or order:
        description = {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in sorted(PASSES.items())} if list_passes else {}
        description |= {"order": order_text(options)} if order else {}
        if as_json:
            emit_json(description)
            return
        for name, line in description.items():
            results().print(f"{name}: {line}" if list_passes else line, markup=False, highlight=False, soft_wrap=True)
        return
    graph = load_graph(model, parse_shapes(shapes or []))
    default = order_text(options) if target else options.passes or DEFAULT_PIPELINE
    text = default if passes is None else passes
    if text.strip():
        graph = Pipeline.parse(text).run(graph, context_of(target_device(target), options) if target else PassContext(verify=verify))
    if as_json:
        emit_json({"name": graph.name, "passes": text, "nodes": len(graph.nodes), "graph": print_graph(graph)})
        return
    emit_text(print_graph(graph))


def explain(model: Planned, shapes: Shapes = None, device: Device = "", option: OptionFlags = None, plan: PlanFile = None,
            template: TemplateFile = None,
            target: Annotated[str, typer.Option("--target", autocompletion=completion.targets,
                                                 help="explain the plan for a device that is not present")] = "",
            summary: Annotated[bool, typer.Option("--summary", help="the first screen alone")] = False,
            full: Annotated[bool, typer.Option("--full", help="every step, template, figure and rejected candidate, nothing cut")] = False,
            why: Annotated[tuple[str, str] | None, typer.Option("--why", metavar="A B", help="two values: why they are or are not in one "
                                                                 "kernel, and what the other choice would cost")] = None,
            plan_text: Annotated[bool, typer.Option("--plan-text", help="print the plan as text that --plan reads")] = False,
            as_json: AsJson = False) -> None:
    """Print the plan: a summary of one screen, then a line for each kernel, call, fallback, and pair that was not fused.

    Lines are cut to the terminal's width, and whole in a pipe or with --full: tilefuse explain MODEL | grep '^kernel'
    """
    from tilefuse.tools.programs import planned_program
    from tilefuse.tools.written import with_files

    if (saved := kept_explanation(model)) is not None:
        if why is not None or plan_text or target or plan is not None or template is not None:
            raise OptionError(f"{model} is an explanation that was written before: nothing of it is planned again",
                              hint="--why, --plan-text, --target, --plan and --template need the model itself")
        if as_json:
            emit_json(saved)
        else:
            print_explanation(saved, (), summary, full, "" if model.endswith(".json") else Path(model).name)
        return
    option = with_files(option, plan, template)
    if why is not None or plan_text:
        from tilefuse.tools.written import answer_why

        planned = planned_program(model, shapes, device, option, target, as_json)
        if isinstance(planned, PlannedScript):
            raise UnsupportedError(f"kernels of {model} are fused routines, which no plan describes",
                                   hint="other programs with their predicted times: "
                                        f"tilefuse blas {model} --table 10, with the same --shapes")
        if why is not None:
            answer_why(planned, why, option, as_json)
        elif not planned.spec.plan_text:
            raise UnsupportedError(f"{model} runs in parts, each with plans of its own", hint="explain without --plan-text tells the parts")
        elif as_json:
            emit_json({"plan": planned.spec.plan_text})
        else:
            emit_text(planned.spec.plan_text)
        return
    planned = planned_program(model, shapes, device, option, target, as_json)
    explanation = explanation_data(planned)
    if as_json:
        emit_json(explanation)
        return
    print_explanation(explanation, answers_of(planned, explanation, option), summary, full, Path(model).name)


def view(model: Planned,
         other: Annotated[str, typer.Argument(metavar="[OTHER]", autocompletion=completion.models,
                                              help="a second model, or a file that explain --json wrote: shown beside the first")] = "",
         shapes: Shapes = None, device: Device = "", option: OptionFlags = None,
         target: Annotated[str, typer.Option("--target", autocompletion=completion.targets,
                                                 help="show the plan for a device that is not present")] = "",
         measure: Annotated[bool, typer.Option("--measure", help="run the model and show measured times")] = False,
         show: Annotated[bool, typer.Option("--open", help="open the page in the browser")] = False,
         out: Annotated[Path, typer.Option("--out", help="the HTML file to write")] = Path("plan.html")) -> None:
    """Write the plan as one self-contained HTML page: graph, kernels, reasons, times, memory."""
    from tilefuse.runtime.page import write_page
    from tilefuse.tools.view import shown_programs

    names = [model, *([other] if other else [])]
    programs = [program for number, name in enumerate(names)
                for program in shown_programs(name, shapes or [], device, option or [], target, measure, label=name if other else "",
                                              side=number if other else None)]
    write_page(str(programs[0]["label"]) if not other else f"{Path(model).name} beside {Path(other).name}", programs, out, show=show)
    errors().print(f"written to {out}", markup=False, highlight=False)


def kept_explanation(model: str) -> dict[str, Any] | None:
    """The explanation in a .json file or in a saved program; None where the argument names a model.

    Raises: UserError for a .json file that is no explanation; as reading a saved program.
    """
    path = Path(model)
    if path.suffix == ".json":
        from tilefuse.tools.view import read_explanation

        return read_explanation(path)
    from tilefuse.runtime.archive import is_saved
    from tilefuse.tools.saved_file import saved_explanation

    return saved_explanation(path) if path.is_file() and is_saved(path) else None


def print_explanation(explanation: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], summary: bool, full: bool,
                      name: str) -> None:
    """The summary, and unless it alone is wanted every line behind it; cut to a terminal's width, whole in a pipe."""
    from tilefuse.tools.lines import output_width, print_lines

    width = output_width()
    print_lines(iter(summary_lines(explanation, answers, name)), wrap=True, width=width)
    if not summary:
        most = SHOWN_STEPS if width is not None and not full else None
        print_lines(explanation_lines(explanation, full=full, most_steps=most), wrap=full, width=width)


def answers_of(made: Any, explanation: Mapping[str, Any], option: Sequence[str] | None) -> list[dict[str, Any]]:
    """Priced other choices around the costliest places of a plan; none where a model runs in parts, each with plans of its own."""
    from tilefuse.base.options import Options
    from tilefuse.driver.compile import Generated
    from tilefuse.driver.explain.why import neighbour_answers
    from tilefuse.runtime.summary import places_of
    from tilefuse.tools.programs import parse_options

    if not isinstance(made, Generated):
        return []
    about = {value for place in places_of(explanation) for step in place.steps for value in step.values}
    options = Options.from_environment().with_overrides(**parse_options(option or ()))
    return neighbour_answers(made.plan, made.device, options, about=about)


def explanation_data(program: Any) -> dict[str, Any]:
    """A program's explanation as a mapping, whether it keeps it as text or as data."""
    import json

    explanation = program.explain(json=True)
    data: dict[str, Any] = json.loads(explanation) if isinstance(explanation, str) else explanation
    return data
