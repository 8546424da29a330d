"""The whole pipeline: model -> graph -> passes -> layouts -> plan -> kernels -> program. The only place where all stages meet.

`tilefuse.compile` is `compile_model`; frontends that bring their own calling convention use `compile_graph`. `generate_sources` does all
but the last step, for devices that need not be present.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilefuse.base import trace
from tilefuse.base.errors import OptionError, UnsupportedDeviceError, UnsupportedError, UnsupportedOpError, UserError
from tilefuse.base.options import Options
from tilefuse.driver.executor import executor_of
from tilefuse.driver.explain.explain import explanation_of
from tilefuse.driver.lowering.lower import lower
from tilefuse.driver.lowering.static_weights import kept_values, planned_apart
from tilefuse.driver.measure.measure import KernelMeasurer
from tilefuse.driver.onnx.model_file import onnx_shapes, opened
from tilefuse.driver.pipeline import context_of, run_passes
from tilefuse.driver.planning import plan_on_device
from tilefuse.driver.request import compiled_early, noted, rarely_collected, shown_progress, traced
from tilefuse.driver.reuse.known_programs import is_keepable
from tilefuse.driver.reuse.known_seeds import Found, keep_made, look_up
from tilefuse.driver.torch.model import import_torch
from tilefuse.frontends.imported import UNTITLED, Imported, Titles
from tilefuse.frontends.onnx.call import ValueNeededError
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import print_graph
from tilefuse.ir.verify import check
from tilefuse.passes.facts import CHOICES, CallerLayouts
from tilefuse.plan.pattern import Plan
from tilefuse.plan.price.measure import Measurer
from tilefuse.plan.seeded import Seed
from tilefuse.plan.select.release_order import in_release_order
from tilefuse.plan.text.text import print_plan
from tilefuse.runtime.spec import KernelCode, ProgramSpec
from tilefuse.target.calibration import with_calibration
from tilefuse.target.catalog import describe_device, device_by_name, host_device
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class Generated:
    """All of a program except its machine code: the plan, the sources, and the data of its constants."""

    plan: Plan
    spec: ProgramSpec
    constants: Mapping[str, object]
    device: DeviceSpec

    def explain(self, json: bool = False) -> Any:
        """The reasons for these kernels: text, or plain data with `json=True`."""
        from tilefuse.runtime.explanation import explanation_data, explanation_text

        data = explanation_data(self.spec)
        return data if json else explanation_text(data)

    def view(self, path: Path | str | None = None, *, answers: Sequence[Mapping[str, Any]] = (), show: bool = False) -> Path:
        """Writes the page of the plan and returns its path, as `Program.view`, without measurements. answers: of `explain_why`."""
        from tilefuse.runtime.page import spec_data, write_page

        return write_page(self.spec.name, [spec_data(self.spec, answers=answers)], path, show=show)

    @property
    def kernels(self) -> tuple[KernelCode, ...]:
        """The kernels' sources and launches."""
        return self.spec.kernels

    def source(self, kernel: str | None = None) -> str:
        """Source text of one kernel, or of all. Raises: NameLookupError for an unknown kernel."""
        return self.spec.source(kernel)

    def save(self, path: object, *, sign: object = None) -> None:
        """A program is saved with its machine code. Raises: UnsupportedDeviceError always."""
        raise UnsupportedDeviceError(f"{self.spec.name} was generated for {self.device.name}, which need not be here: it has no machine "
                                     "code to save", hint=f"`tilefuse compile MODEL --target {self.device.name} --emit DIR` writes sources")

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Sources do not run. Raises: UnsupportedDeviceError always."""
        raise UnsupportedDeviceError(f"{self.spec.name} was generated for {self.device.name} as sources, and cannot be called",
                                     hint="compile it with device= of a device that is here")


def present_device(where: str | Any = "", plan_for: str = "") -> tuple[DeviceSpec, str]:
    """The executor that `where` names, and its name for the runtime.

    where: "host", "cpu", "cuda", "cuda:1", a torch device; "" for the GPU if there is one, else the host.
    plan_for: GPU of the catalog that stands in the host's place in plans (option `plan_for`).
    Figures that `tilefuse calibrate` measured on this machine stand in place of the catalog's.
    Raises: UserError for another name; OptionError for `plan_for` beside a GPU; DeviceError where a GPU is asked for and there is none.
    """
    from tilefuse.runtime import cuda_api
    from tilefuse.runtime.stores.cache import default_folder

    text = str(where) or ("cuda" if cuda_api.has_device() else "host")
    kind, _, number = text.partition(":")
    if kind in ("host", "cpu"):
        return device_by_name(plan_for) if plan_for else with_calibration(host_device(), default_folder()), "host"
    if kind != "cuda" or number and not number.isdigit():
        raise UserError(f"there is no device {text!r}", hint="host, cuda or cuda:<number>; for sources only, name a target (h200)")
    if plan_for:
        raise OptionError(f"plan_for={plan_for!r}: kernels for it run on the host, and the device is {text!r}",
                          hint="device=\"host\", tensors on the CPU, or no plan_for")
    if not number:
        number = str(_current_index())
    present = cuda_api.describe_device(int(number))
    described = describe_device(present.name, present.capability, present.memory_bytes, dict(present.facts))
    return with_calibration(described, default_folder()), f"cuda:{number}"


def _current_index() -> int:
    import torch

    return int(torch.cuda.current_device()) if torch.cuda.is_available() else 0


@dataclass(frozen=True)
class Prepared:
    """A graph after passes, with all decisions on which planning builds.

    constants: data of the constants, including those that passes created. given, fixed: strides of inputs, and required strides of results.
    notes: choices of passes that an explanation tells.
    """

    graph: Graph
    constants: Mapping[str, object]
    given: Layouts
    layouts: Layouts
    fixed: Layouts
    notes: tuple[str, ...] = ()


def prepare(graph: Graph, *, constants: Mapping[str, object], input_layouts: Layouts | None = None, device: DeviceSpec,
            options: Options, result_layouts: Layouts | None = None, free_results: Collection[int] = ()) -> Prepared:
    """Passes and layouts of a graph. Arguments and errors: as `generate`."""
    now = trace.current()
    now.begin_dump(graph.name)
    with now.span("verify"):
        check(graph, f"graph @{graph.name} as given")
    if now.options.dump_dir:
        now.dump("0_given.txt", print_graph(graph))
    caller = CallerLayouts.of(graph, input_layouts, result_layouts, free_results)
    context = context_of(device, options, constants=constants, caller=caller)
    with now.span("passes"):
        graph = run_passes(graph, context, options)
    if now.options.dump_dir:
        now.dump("1_passed.txt", print_graph(graph))
    free = caller.free_values(graph)
    fixed = {v: s for v, s in caller.wanted(graph).items() if v not in free}
    return Prepared(graph, context.constants, caller.given(graph), context.layouts.strides, fixed, context.attributes.get(CHOICES, ()))


@rarely_collected()
def generate(graph: Graph, *, constants: Mapping[str, object], input_layouts: Layouts | None = None, device: DeviceSpec,
             options: Options, fallbacks: Iterable[tuple[str, str]] = (), result_layouts: Layouts | None = None,
             free_results: Collection[int] = (), measurer: Measurer | None = None, static: Collection[str] = (),
             given_up: Collection[str] = (), overwritable: Collection[str] = (), printed: Callable[[KernelCode], None] | None = None,
             seed: Seed | None = None) -> Generated:
    """Passes, layouts, plan and sources of a graph.

    free_results: numbers of results that may get other strides than those in `result_layouts`, where that is faster.
    static: inputs (parameters); values computed from them alone get launches of their own, so that they can be stored across calls.
    given_up: inputs that only the call holds; their memory is free after their last use.
    overwritable: those of `given_up` whose memory other values may take over (see `Program.call_boxed`).
    measurer: times kernels on the device, which must be present; without it costs are predictions.
    printed: receives each kernel as soon as it is printed.
    seed: decisions of a plan of other sizes that planning starts from; parts that are planned separately (`static`) use none.
    Raises: VerifyError for a graph that breaks a rule; OptionError for an unknown pass; InternalError for an error of the compiler.
    """
    now = trace.current()
    ready = prepare(graph, constants=constants, input_layouts=input_layouts, device=device, options=options,
                    result_layouts=result_layouts, free_results=free_results)
    with now.span("plan") as facts:
        plan = in_release_order(_planned(ready, device, options, measurer, static, seed, given_up), given_up)
        plan = replace(plan, notes=(*plan.notes, *ready.notes))
        facts.update(nodes=len(ready.graph.nodes), kernels=len(plan.kernels), distinct=len(plan.programs))
    text = print_plan(plan)
    now.line("plan", text)
    now.dump("2_plan.txt", text)
    with now.span("sources"):
        spec = lower(plan, device, options, given_up, printed, overwritable)
    reported = list(fallbacks)
    for operator, reason in reported:
        now.event("fallback", "frontend", operator=operator, reason=reason)
    if reported:
        listed = "; ".join(f"{o} ({r})" for o, r in reported)
        now.line("fallbacks", f"{graph.name}: {len(reported)} operators run in the framework: {listed}")
    explanation = json.dumps(explanation_of(plan, spec, reported, options.changed(), device, graph))
    now.dump("explanation.json", explanation)
    seconds = plan.search.seconds if plan.search is not None else None
    constant_names = {v.name for v in spec.values if v.role == "constant"}
    bound = {k: v for k, v in ready.constants.items() if k in constant_names}
    return Generated(plan, replace(spec, plan_text=text, explanation=explanation, plan_seconds=seconds), bound, device)


def _planned(ready: Prepared, device: DeviceSpec, options: Options, measurer: Measurer | None, static: Collection[str],
             seed: Seed | None, given_up: Collection[str]) -> Plan:
    """The plan; the computation of stored values from `static` inputs is planned separately, if there is any. A plan in the options is
    followed as it is."""
    def plan(graph: Graph, given: Layouts, fixed: Layouts, seed: Seed | None = None) -> Plan:
        return plan_on_device(graph, given, device, options, result_layouts=fixed, layouts=ready.layouts, measurer=measurer, seed=seed,
                              given_up=given_up)

    written = options.plan or options.template
    kept_apart = kept_values(ready.graph, static, {**ready.layouts, **ready.given}, ready.fixed) if static and not written else ()
    if not kept_apart:
        return plan(ready.graph, ready.given, ready.fixed, seed)
    return planned_apart(ready.graph, kept_apart, ready.given, {**ready.layouts, **ready.given}, ready.fixed, plan)


def compile_graph(graph: Graph, *, constants: Mapping[str, object], input_layouts: Layouts | None = None,
                  device: DeviceSpec | str | None = None, options: Options | None = None, fallbacks: Iterable[tuple[str, str]] = (),
                  result_layouts: Layouts | None = None, free_results: Collection[int] = (), titles: Titles = UNTITLED,
                  static: Collection[str] = (), given_up: Collection[str] = (), overwritable: Collection[str] = ()) -> Any:
    """The runnable program (`runtime.program.Program`) of a graph.

    constants: data of every constant input. device: a record, an executor's name, or None for the one at hand. titles: names of the source.
    static, given_up, overwritable: as for `generate`.
    Raises: as `generate`; ToolchainError when a compiler fails; DeviceError.
    """
    from tilefuse.runtime.program import Program

    chosen = options or Options.from_environment()
    if isinstance(device, DeviceSpec):
        spec, place = device, "cuda" if device.kind == "cuda" else "host"
    else:
        spec, place = present_device(device or "", chosen.plan_for)
    if chosen.plan_for and chosen.measure:
        raise OptionError(f"measure times kernels on their device, and plan_for={chosen.plan_for!r} runs them on the host",
                          hint="leave one of the two out")
    with traced(chosen) as now, noted(f"graph @{graph.name}", spec, chosen):
        now.line("device", f"{graph.name} for {spec.name} ({spec.arch}) on {place}")
        facts: dict[str, Any] = {"constants": constants, "input_layouts": input_layouts, "device": spec, "options": chosen,
                                 "fallbacks": list(fallbacks), "result_layouts": result_layouts, "free_results": free_results,
                                 "static": static, "given_up": given_up, "overwritable": overwritable}
        lookup: Found | None = None
        if is_keepable(chosen):
            with now.span("known program", "cache"):
                lookup = look_up(graph, facts)
            known = lookup.program
            if known is not None:
                constant_names = {v.name for v in known.spec.values if v.role == "constant"}
                bound = {k: v for k, v in constants.items() if k in constant_names} | dict(known.constants)
                with now.span("build"), shown_progress(chosen) as progress:
                    told_spec = replace(titled(known.spec, titles), places=_places(graph))
                    return Program(told_spec, bound, place, chosen, progress=progress, copies_constants=True)
        with compiled_early(executor_of(spec, chosen), chosen) as early:
            generated = generate(graph, **facts, measurer=KernelMeasurer(spec, place, chosen) if chosen.measure else None,
                                 printed=None if early is None else early.begin, seed=None if lookup is None else lookup.seed)
            with now.span("build"), shown_progress(chosen) as progress:
                program = Program(titled(generated.spec, titles), generated.constants, place, chosen, progress=progress,
                                  copies_constants=True, begun=None if early is None else early.futures)
        if lookup is not None:
            # Only after the build: sources that no compiler accepts are not stored.
            keep_made(lookup, generated, graph, facts)
        return program


def compile_imported(imported: Imported, *, device: DeviceSpec | str | None = None, options: Options | None = None,
                     free_results: Collection[int] = (), static: Collection[str] = (), given_up: Collection[str] = (),
                     overwritable: Collection[str] = ()) -> Any:
    """The runnable program of an imported model. Raises: as `compile_graph`."""
    return compile_graph(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=device, options=options,
                         fallbacks=imported.fallbacks, result_layouts=imported.result_layouts, free_results=free_results,
                         titles=imported.titles, static=static, given_up=given_up, overwritable=overwritable)


def _places(graph: Graph) -> dict[str, tuple[str, str, str]]:
    """Operator, module and source place of every node of a graph, as explanations show them."""
    return {n.name: (n.span.operator, n.span.path, n.span.place) for n in graph.nodes if n.span is not None}


def titled(spec: ProgramSpec, titles: Titles) -> ProgramSpec:
    """A program with the source's names for its inputs and results, where they differ from the values' own."""
    inputs = tuple(titles.inputs.get(name, name) for name in spec.inputs)
    results = titles.results or spec.results
    weights = tuple((v.name, title) for v in spec.values if v.role == "constant" and (title := titles.inputs.get(v.name, v.name)) != v.name)
    return replace(spec, input_titles=() if inputs == spec.inputs else inputs, result_titles=() if results == spec.results else results,
                   weight_titles=weights)


def _is_of_torch(model: Any) -> bool:
    """Whether a model is a torch model or a function: neither a graph nor an ONNX file (path, bytes, ModelProto)."""
    return not (isinstance(model, Imported | Graph | str | os.PathLike | bytes) or type(model).__name__ == "ModelProto")


def import_model(model: Any, example_inputs: Sequence[Any] | None = None, *, shapes: Mapping[str, Sequence[int]] | None = None,
                 example_kwargs: Mapping[str, Any] | None = None) -> Imported:
    """The graph of a model: an ONNX model (path, bytes, ModelProto), a torch module or function, an exported program, or a graph.

    Raises: UserError for any other object, and for a torch module without example inputs; errors of the frontend.
    """
    model = opened(model)
    if isinstance(model, Imported):
        return model
    if isinstance(model, Graph):
        return Imported(model)
    if _is_of_torch(model):
        return import_torch(model, example_inputs, example_kwargs).imported
    from tilefuse.frontends.onnx.importer import import_onnx

    return import_onnx(model, onnx_shapes(model, shapes, example_inputs, example_kwargs))


def onnx_shapes_of(model: Any, shapes: Mapping[str, Sequence[int]] | None, examples: Sequence[Any] | None,
                   named: Mapping[str, Any] | None) -> Mapping[str, Sequence[int]] | None:
    """`onnx_shapes` of an ONNX model; for a graph, which has its own shapes, the given ones."""
    return shapes if isinstance(model, Imported | Graph) else onnx_shapes(model, shapes, examples, named)


def compile_model(model: Any, example_inputs: Sequence[Any] | None = None, *, device: Any = None,
                  shapes: Mapping[str, Sequence[int]] | None = None, target: str = "", example_kwargs: Mapping[str, Any] | None = None,
                  **options: Any) -> Any:
    """A callable program of a model; see `tilefuse.compile`.

    target: a device that need not be present: the result then holds plan and sources and cannot be called.
    Raises: UserError and its subclasses for errors of the model or the options; ToolchainError; DeviceError.
    """
    if target:
        return generate_sources(model, example_inputs, device=target, shapes=shapes, example_kwargs=example_kwargs, **options)
    chosen = Options.from_environment().with_overrides(**options)
    model = opened(model)
    of_torch = import_torch(model, example_inputs, example_kwargs) if _is_of_torch(model) else None
    if of_torch is None:
        imported = _whole_or_split(model, onnx_shapes_of(model, shapes, example_inputs, example_kwargs),
                                   lambda part: compile_imported(part, device=device, options=chosen), device, chosen)
        if not isinstance(imported, Imported):
            return imported
    else:
        imported = of_torch.imported
    place = device if device is not None or of_torch is None else of_torch.place
    program = compile_imported(imported, device=place, options=chosen)
    if of_torch is None and not chosen.cuda_graph:
        return program
    from tilefuse.driver.model import CompiledModel
    from tilefuse.driver.model_form import ModelForm

    if of_torch is None:
        return CompiledModel(program, ModelForm(outputs=imported.outputs, replay=True))
    return CompiledModel(program, ModelForm(imported.arguments, imported.outputs, of_torch.arguments, of_torch.out_spec, chosen.cuda_graph))


def _whole_or_split(model: Any, shapes: Mapping[str, Sequence[int]] | None, make: Callable[[Imported], Any], device: Any,
                    options: Options, runs: bool = True) -> Any:
    """The graph of an ONNX model or of a graph; a callable over the parts of an ONNX model that is not expressible as one graph.

    make: the program of a part. Raises: as `import_model`; the import's error where no part of the model runs otherwise.
    """
    try:
        return import_model(model, shapes=shapes)
    except (UnsupportedOpError, ValueNeededError) as error:
        if isinstance(model, Imported | Graph):
            raise
        whole = error
    import torch

    from tilefuse.driver.onnx.split import SplitModel

    spec, place = (device, "host") if isinstance(device, DeviceSpec) else present_device(device or "")
    try:
        with traced(options):
            return SplitModel(model, shapes, make, torch.device("cpu" if place == "host" else place), spec.name, runs)
    except UnsupportedError as error:
        raise whole from error


def generate_sources(model: Any, example_inputs: Sequence[Any] | None = None, *, device: str | DeviceSpec,
                     shapes: Mapping[str, Sequence[int]] | None = None, example_kwargs: Mapping[str, Any] | None = None,
                     **options: Any) -> Any:
    """Plan and sources (`Generated`) of a model for a device that need not be present; nothing is built or loaded. For an ONNX model in
    parts, those with known sizes.

    device: the name of a known device ("h200"), of an available executor ("host", "cuda"), or a record.
    Raises: OptionError for an unknown device or option; as `generate`.
    """
    chosen = Options.from_environment().with_overrides(**options)
    if isinstance(device, str):
        at_hand = device.partition(":")[0] in ("cuda", "cpu")
        device = present_device(device)[0] if at_hand else device_by_name(device)
    spec = device

    def sources(imported: Imported) -> Generated:
        with traced(chosen), noted(f"graph @{imported.graph.name}", spec, chosen):
            generated = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=spec, options=chosen,
                                 fallbacks=imported.fallbacks, result_layouts=imported.result_layouts)
            return replace(generated, spec=titled(generated.spec, imported.titles))

    model = opened(model)
    if _is_of_torch(model):
        return sources(import_model(model, example_inputs, example_kwargs=example_kwargs))
    imported = _whole_or_split(model, onnx_shapes_of(model, shapes, example_inputs, example_kwargs), sources, spec, chosen, runs=False)
    return sources(imported) if isinstance(imported, Imported) else imported
