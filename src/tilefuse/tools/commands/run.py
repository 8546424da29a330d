"""The commands that run a model: run, bench. They load, compile, call the library's comparisons and clocks, and print."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilefuse.base.errors import InternalError, ToolchainError
from tilefuse.tools.commands.model import AsJson, Device, Model, OptionFlags, PlanFile, Shapes, TemplateFile
from tilefuse.tools.console import emit_json, results, working
from tilefuse.tools.explain import counted, time_text

if TYPE_CHECKING:
    from tilefuse.driver.compare.compare import Comparison
    from tilefuse.driver.compare.fault import Fault
    from tilefuse.runtime.calls.call_times import CallTimes

# Exit status where outputs differ: the command did its work, and the answer is no.
DIFFERENT = 5

Compare = Annotated[list[str] | None, typer.Option("--compare", metavar="WITH", help="eager, inductor (torch models), onnxruntime (ONNX), "
                                                   "unfused, interpreter, another MODEL, an .npz file of results; several by commas")]
Rtol = Annotated[float | None, typer.Option("--rtol", min=0.0, help="relative tolerance; default: by data type, f32 1.5e-5, f16 6e-3")]
Atol = Annotated[float | None, typer.Option("--atol", min=0.0, help="absolute tolerance; default: rtol times the output's size")]
Inputs = Annotated[Path | None, typer.Option("--inputs", help=".npz file with one array an input; default: random")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="of random inputs")]
Profile = Annotated[bool, typer.Option("--profile", help="a measured run: time, bytes and bandwidth of kernels and library calls")]
ExportProfile = Annotated[Path | None, typer.Option("--export-profile", help="file for that run: .trace.json for Perfetto, .json, or text")]
Warmup = Annotated[float, typer.Option("--warmup", min=0.0, help="milliseconds of calls before the first timed one")]
Iterations = Annotated[int | None, typer.Option("--iterations", "--repeat", min=1, help="least number of timed calls; without --duration "
                                                "so many and no more")]
Duration = Annotated[float | None, typer.Option("--duration", min=0.0, help="least seconds of timed calls (default 1, or 0 with "
                                                "--iterations)")]
Measure = Annotated[str, typer.Option("--measure", help="call (until the results are ready), device (time on the GPU), replay (as a CUDA "
                                      "graph)")]
ExportTimes = Annotated[Path | None, typer.Option("--export-times", help="file for every timed call: .json or .csv")]


def run(model: Model, shapes: Shapes = None, device: Device = "", option: OptionFlags = None, plan: PlanFile = None,
        template: TemplateFile = None, inputs: Inputs = None, seed: Seed = 0,
        save_inputs: Annotated[Path | None, typer.Option("--save-inputs", help=".npz file for the inputs")] = None,
        save_outputs: Annotated[Path | None, typer.Option("--save-outputs", help=".npz file for the results")] = None,
        compare: Compare = None, rtol: Rtol = None, atol: Atol = None,
        layers: Annotated[bool, typer.Option("--layers", help="compare every kernel and call with its definition: its own error, and the "
                                             "error so far")] = False,
        bisect: Annotated[Path | None, typer.Option("--bisect", metavar="DIR", help="find where a difference arises (import, pass, kernel, "
                                                    "overlap), and save the smallest graph that fails in DIR")] = None,
        bisect_seconds: Annotated[float, typer.Option("--bisect-seconds", min=0.0, help="for making that graph smaller")] = 60.0,
        profile: Profile = False, export_profile: ExportProfile = None,
        iterations: Annotated[int, typer.Option("--iterations", "--repeat", min=1, help="timed calls after the first")] = 1,
        as_json: AsJson = False) -> int:
    """Compile a model and run it; print the results' ranges and the time of a call, and compare the results.

    \b
    tilefuse run model.onnx --compare onnxruntime
    tilefuse run model.pt2 --compare eager,inductor --rtol 1e-3 --atol 1e-5
    tilefuse run model.tilefuse --inputs in.npz --compare golden.npz
    tilefuse run model.onnx --layers --bisect fault

    Exit status 5: an output differs.
    """
    from tilefuse.driver.compare.compare import result_names
    from tilefuse.tools.inputs import array_of, write_arrays
    from tilefuse.tools.programs import first_call

    try:
        loaded = _Loaded(model, shapes, device, option, plan, template, inputs, seed, compare, as_json)
    except (InternalError, ToolchainError) as error:
        if bisect is not None:
            error.add_note(_failing_compile(model, shapes, device, option, error, bisect, bisect_seconds))
        raise
    tensors = flat_tensors(first_call(loaded.source, loaded.program, *loaded.fresh()))
    names = result_names(loaded.program, len(tensors))
    arrays = {name: array_of(t) for name, t in zip(names, tensors)}
    if save_inputs is not None:
        write_arrays(save_inputs, {name: array_of(t) for name, t in loaded.subject.told.items()})
    if save_outputs is not None:
        write_arrays(save_outputs, arrays)
    said = _Said(as_json)
    facts = loaded.facts({name: _range(t, arrays[name]) for name, t in zip(names, tensors)})
    said.say(*(_range_text(name, range_of) for name, range_of in facts["results"].items()))
    agrees = _compare_with_peers(loaded, names, tensors, (rtol, atol), said, facts)
    if layers or bisect is not None:
        fault, command = _fault(loaded, rtol, atol, bisect, bisect_seconds, as_json)
        facts["fault"] = {**fault.as_data(), "command": command}
        agrees &= fault.is_none
        said.say(*_fault_lines(fault, command, layers))
    elif not agrees and not loaded.is_saved:
        said.say("--bisect DIR finds the kernel, pass or import where the difference arises, and saves the smallest graph that fails")
    profiled = loaded.profile(profile, export_profile)
    if profiled is not None:
        facts["profile"] = profiled.json()
        said.say(*([profiled.text().rstrip()] if profile else []))
    facts |= loaded.times({"tilefuse": loaded.call}, 0.0, iterations, 0.0, "call")["tilefuse"].summary()
    said.say(_time_line(loaded, facts))
    if as_json:
        emit_json(facts)
    return 0 if agrees else DIFFERENT


def bench(model: Model, shapes: Shapes = None, device: Device = "", option: OptionFlags = None, plan: PlanFile = None,
          template: TemplateFile = None, inputs: Inputs = None, seed: Seed = 0, compare: Compare = None, measure: Measure = "call",
          warmup: Warmup = 200.0, iterations: Iterations = None, duration: Duration = None, export_times: ExportTimes = None,
          profile: Profile = False, export_profile: ExportProfile = None, as_json: AsJson = False) -> None:
    """Time a compiled model, beside other executions of it: percentiles, calls a second, and what of a difference is noise.

    \b
    tilefuse bench model.pt2 --compare eager,inductor
    tilefuse bench model.onnx --compare onnxruntime --iterations 100 --duration 3 --export-times times.csv
    tilefuse bench model.tilefuse --measure replay

    Without --compare a torch model is timed beside eager.
    """
    from tilefuse.driver.compare.compare import result_names
    from tilefuse.runtime.calls.call_times import MEASURED, ratio_of
    from tilefuse.tools.programs import first_call
    from tilefuse.tools.times import require_suffix, write_times

    if export_times is not None:
        require_suffix(export_times)
    loaded = _Loaded(model, shapes, device, option, plan, template, inputs, seed, compare, as_json, by_default=("eager",))
    outputs = flat_tensors(first_call(loaded.source, loaded.program, *loaded.fresh()))
    names = result_names(loaded.program, len(outputs))
    with working("measuring", quiet=as_json):
        calls = {name: loaded.peer(name, names) for name in loaded.peers} | {"tilefuse": loaded.call}
        seconds = duration if duration is not None else 0.0 if iterations is not None else 1.0
        times = loaded.times(calls, warmup / 1e3, iterations or 10, seconds, measure)
    ratios = {name: ratio_of(times[name], times["tilefuse"]) for name in loaded.peers}
    if export_times is not None:
        write_times(export_times, times)
    facts: dict[str, Any] = {
        "model": loaded.source.name, "device": loaded.where, "compile_s": loaded.compile_s, "measured": f"{measure}: {MEASURED[measure]}",
        **{name: timing.summary() for name, timing in times.items()},
        "ratios": {name: {"ratio": r.ratio, "low": r.low, "high": r.high, "within_noise": r.is_within_noise} for name, r in ratios.items()}}
    if ratios:
        facts["ratio"] = next(iter(ratios.values())).ratio
    profiled = loaded.profile(profile, export_profile)
    if profiled is not None:
        facts["profile"] = profiled.json()
    if as_json:
        emit_json(facts)
        return
    _say(f"{loaded.source.name} on {loaded.where}; measured: {MEASURED[measure]}; {len(times['tilefuse'].rounds)} rounds in turn, "
         f"after {warmup / 1e3:g} s of warm-up")
    _print_times(times)
    for name, r in ratios.items():
        verdict = "within the noise" if r.is_within_noise else "beyond the noise"
        _say(f"{name} / tilefuse = {r.ratio:.2f} ({r.low:.2f} to {r.high:.2f} by round: {verdict})")
    if profiled is not None and profile:
        _say(profiled.text().rstrip())


class _Loaded:
    """A compiled model with the arguments of a call, as both commands need it."""

    def __init__(self, model: str, shapes: list[str] | None, device: str, option: list[str] | None, plan: Path | None,
                 template: Path | None, inputs: Path | None, seed: int, compare: list[str] | None, quiet: bool,
                 by_default: tuple[str, ...] = ()) -> None:
        from tilefuse.tools.inputs import read_inputs
        from tilefuse.tools.model_source import SourceKind, load_model, shape_arguments
        from tilefuse.tools.peers import KINDS, named_peers, subject_of_source
        from tilefuse.tools.programs import arguments_of, device_of, load_and_compile, parse_options, wanted_inputs
        from tilefuse.tools.shapes import parse_shapes
        from tilefuse.tools.written import with_files

        flags = with_files(option, plan, template)
        source = load_model(model, parse_shapes(shapes or []))
        self.peers = named_peers(compare or [], source)
        if not compare and KINDS[source.kind] == "torch" and source.eager is not None:
            self.peers = list(by_default)
        with working(f"compiling {model}", quiet=quiet):
            self.source, self.program, self.compile_s = load_and_compile(model, shapes or [], device, flags, source)
        self.is_saved = source.kind is SourceKind.SAVED
        self.quiet = quiet
        self.device = device_of(self.program)
        self.where = "cuda" if self.device.type == "cuda" else "host"
        expected = wanted_inputs(self.program)
        arrays = read_inputs(inputs, expected) if inputs is not None else None
        self.arguments, self.named = arguments_of(self.source, self.program, arrays, seed)
        self.subject = subject_of_source(self.source, self.program, self.arguments, self.named,
                                         shape_arguments(parse_shapes(shapes or [])), parse_options(flags))

    def fresh(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of a call whose changes nobody sees."""
        return self.subject.fresh()

    def facts(self, results: dict[str, Any]) -> dict[str, Any]:
        """The model, its device and its operands, as `run --json` begins. results: range of each result by name."""
        from tilefuse.tools.programs import wanted_inputs

        inputs = {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in wanted_inputs(self.program).items()}
        return {"model": self.source.name, "device": self.where, "compile_s": self.compile_s, "inputs": inputs, "results": results}

    def call(self) -> Any:
        """One call of the program."""
        return self.program(*self.arguments, **self.named)

    def peer(self, name: str, names: list[str]) -> Any:
        """One run of a peer, ready to be called."""
        from tilefuse.tools.peers import peer_run

        return peer_run(name, self.subject, names, str(self.device) if self.where == "cuda" else "host")

    def times(self, calls: dict[str, Any], warmup_s: float, iterations: int, duration_s: float, measured: str) -> dict[str, CallTimes]:
        """Times of calls, in rounds. Units: seconds of the budget."""
        from tilefuse.runtime.calls.call_times import Budget, time_calls

        return time_calls(calls, self.device, Budget(warmup_s, iterations, duration_s), measured)

    def profile(self, wanted: bool, path: Path | None) -> Any:
        """A measured run of every step, written to a file where one is named; None where nobody asked for it."""
        if not wanted and path is None:
            return None
        import tilefuse

        with working("profiling", quiet=self.quiet):
            measured = tilefuse.profile(self.program, *self.arguments, **self.named)
        if path is not None:
            measured.write(path)
        return measured


def _compare_with_peers(loaded: _Loaded, names: list[str], tensors: list[Any], tolerances: tuple[float | None, float | None],
                        printed: _Said, facts: dict[str, Any]) -> bool:
    """Whether every peer agrees. Each comparison is printed when it is made, and is one of "comparisons" in `facts`."""
    agrees = True
    for name in loaded.peers:
        comparison = _compared(name, loaded, names, tensors, *tolerances)
        facts.setdefault("comparisons", []).append(comparison.as_data())
        agrees &= comparison.agrees
        printed.say(comparison.text().rstrip())
    return agrees


def _compared(name: str, loaded: _Loaded, names: list[str], tensors: list[Any], rtol: float | None, atol: float | None) -> Comparison:
    from tilefuse.driver.compare.compare import compare_with
    from tilefuse.driver.compare.values import Tolerance

    return compare_with(loaded.source.name, names, tensors, name, loaded.peer(name, names), loaded.subject, Tolerance(rtol, atol))


def _fault(loaded: _Loaded, rtol: float | None, atol: float | None, folder: Path | None, seconds: float,
           quiet: bool) -> tuple[Fault, str]:
    """Where a difference arises, and the command that runs the saved reproducer ("" without one)."""
    from tilefuse.driver.compare.fault import find_fault
    from tilefuse.driver.compare.values import Tolerance

    with working("comparing step by step", quiet=quiet):
        fault = find_fault(loaded.subject, Tolerance(rtol, atol), seconds, reduce=folder is not None)
    return fault, fault.save(folder) if folder is not None and fault.failing is not None else ""


def _failing_compile(model: str, shapes: list[str] | None, device: str, option: list[str] | None, error: Any, folder: Path,
                     seconds: float) -> str:
    """Saves the smallest graph whose compile fails in the same way; a line about it."""
    from tilefuse.base.options import Options
    from tilefuse.driver.compare.fault import save_failing_compile
    from tilefuse.tools.model_source import load_model, shape_arguments
    from tilefuse.tools.programs import chosen_device, parse_options
    from tilefuse.tools.shapes import parse_shapes

    flags = parse_shapes(shapes or [])
    source = load_model(model, flags)
    options = Options.from_environment().with_overrides(**parse_options(option or []))
    with working("reducing the graph whose compile fails"):
        command = save_failing_compile(source.model, source.examples, shape_arguments(flags), source.named or None, error,
                                       chosen_device(device), options, folder, seconds)
    return f"the smallest graph whose compile fails: {command}" if command else "no smaller graph fails to compile by itself"


def _fault_lines(fault: Fault, command: str, layers: bool) -> list[str]:
    lines: list[str] = []
    if layers:
        lines += [fault.table().rstrip(), "errors are largest differences over the size (root mean square) of what a step writes"]
    lines.append(f"{fault.stage if not fault.is_none else 'no fault'}: {fault.text}")
    if command and fault.failing is not None:
        nodes = len(fault.failing.graph.nodes)
        rest = "" if fault.failing.finished else " (time was over; --bisect-seconds gives more)"
        lines += [f"smallest graph that fails: {counted(nodes, 'node')}, after {fault.failing.tried} candidates{rest}", f"  {command}"]
    return lines


class _Said:
    """Lines for people, printed as they come; none where the answer is JSON."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def say(self, *lines: str) -> None:
        """Prints lines unless the output is a document."""
        for line in () if self._quiet else lines:
            _say(line)


def _print_times(times: dict[str, CallTimes]) -> None:
    width = max(map(len, times))
    columns = ("median", "min", "p90", "p95", "p99", "max")
    hosted = any(timing.host for timing in times.values())
    head = "".join(f"{c:>10}" for c in columns) + f"{'calls/s':>11}{'calls':>8}{'spread':>8}" + (f"{'host':>10}" if hosted else "")
    _say(" " * width + head)
    for name, timing in times.items():
        facts = timing.summary()
        cells = "".join(f"{time_text(facts[f'{c}_us']):>10}" for c in columns)
        tail = f"{time_text(facts['host_us']):>10}" if hosted else ""
        _say(f"{name:<{width}}{cells}{facts['calls_per_s']:>11.4g}{facts['calls']:>8}{facts['spread']:>8.1%}{tail}")
    _say("spread: range of the rounds' medians; a smaller difference is noise" + ("; host: until the call returns" if hosted else ""))


def _say(text: str) -> None:
    results().print(text, markup=False, highlight=False, soft_wrap=True)


def flat_tensors(outputs: Any) -> list[Any]:
    """All tensors of a model's outputs, whatever structure they come in."""
    from tilefuse.driver.compare.peers import flat_tensors as flat

    return flat(outputs)


def _range(tensor: Any, array: Any) -> dict[str, Any]:
    """Type, extents and range of a result; of the magnitudes where it is complex, of the finite elements where some are not."""
    import numpy as np

    from tilefuse.driver.compare.values import dtype_name

    real = abs(array) if tensor.is_complex() else array
    finite = real[np.isfinite(real)]
    low, high, mean = (float(finite.min()), float(finite.max()), float(finite.astype("f8").mean())) if finite.size else (None, None, None)
    return {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), "min": low, "max": high, "mean": mean,
            "nan": int(np.isnan(real).sum()), "inf": int(np.isinf(real).sum())}


def _range_text(name: str, range_of: dict[str, Any]) -> str:
    """A line about a result. range_of: as `_range` gives it."""
    extent = "no number"
    if range_of["min"] is not None:
        extent = f"min {range_of['min']:.6g} max {range_of['max']:.6g} mean {range_of['mean']:.6g}"
    odd = "".join(f", {range_of[kind]} {kind}" for kind in ("nan", "inf") if range_of[kind])
    return f"{name}: {range_of['dtype']} {range_of['shape']}  {extent}{odd}"


def _time_line(loaded: _Loaded, facts: dict[str, Any]) -> str:
    calls = "one timed call" if facts["calls"] == 1 else f"median of {facts['calls']}"
    return (f"{time_text(facts['median_us'])} a call on {loaded.where} ({calls}), "
            f"{'loaded' if loaded.is_saved else 'compiled'} in {loaded.compile_s:.2f} s")
