"""The backend of `torch.compile(model, backend="tilefuse")`.

AOTAutograd passes an inference graph, or a forward and a backward graph, of ATen operators without mutation; each becomes a program. A
program has fixed sizes: a graph that torch traced for any size is called through `driver/torch/sizes.py`, which decides which sizes become
programs. Torch runs everything that tilefuse cannot compile: single operators as library calls, a whole graph where a type or effect cannot
be expressed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from tilefuse.base.errors import CompilerError, InternalError, OptionError, ToolchainError, UnsupportedError, UserError
from tilefuse.base.logs import log_of
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_imported, present_device
from tilefuse.driver.executor import executor_of
from tilefuse.driver.reproducer import write_reproducer
from tilefuse.driver.request import rarely_collected, start_compilers
from tilefuse.driver.reuse.background import Ticket, background, request_of
from tilefuse.driver.reuse.known_traces import Trace, find_trace, is_called_as_it_is, keep_trace, trace_digest
from tilefuse.driver.torch.part import CompiledPart, log
from tilefuse.driver.torch.partition import prepare
from tilefuse.driver.torch.records import RECORDS
from tilefuse.driver.torch.settings import Settings, list_mode_options, list_options, settings_of
from tilefuse.driver.torch.sizes import Policy, SizedPart, Variants, told_dynamic
from tilefuse.driver.torch.split import split
from tilefuse.driver.torch.surroundings import Surroundings
from tilefuse.driver.torch.symbols import is_symbolic
from tilefuse.frontends.imported import Imported
from tilefuse.frontends.torch.decompositions import decompositions_with_gradients, whole_resamplings
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.frontends.torch.titles import NO_NAMES, user_names
from tilefuse.ir.text import print_graph
from tilefuse.runtime.page import running_data, write_page

__all__ = ["backend", "compiled_parts", "explain", "list_mode_options", "list_options", "reset", "settle", "sized_parts", "view"]

_PARTS: list[weakref.ref[CompiledPart]] = []
_SIZED: list[weakref.ref[SizedPart]] = []
_VARIANTS = Variants()
_COUNTS = {"graphs": 0}
_LIMIT_BEFORE: dict[str, int] = {}


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    **unknown: Any,
) -> Callable[..., Any]:
    """A callable that runs `gm` compiled; torch.compile calls this once for every graph, of fixed sizes or of any size.

    Raises: OptionError for an unknown mode or option; ToolchainError when no compiler is found or one fails.
    """
    if unknown:
        raise OptionError(
            f"torch.compile passed {', '.join(sorted(unknown))}, which this backend does not take", hint="known: mode, options"
        )
    settings = settings_of(mode, options)
    _raise_recompile_limit(settings.recompile_limit)
    name = f"graph{_COUNTS['graphs']}"
    _COUNTS["graphs"] += 1
    RECORDS.graph(gm, name)
    _specialise(example_inputs)
    sized = any(map(is_symbolic, example_inputs))
    policy = Policy.of(settings, example_inputs) if sized else Policy.of_fixed(settings, _VARIANTS.number(settings, example_inputs))
    if sized and told_dynamic():
        log.warning("dynamic=True: a tilefuse program has fixed sizes. For %s tilefuse %s", name, policy.text())
    with rarely_collected():
        run = _differentiable(gm, example_inputs, name, settings, policy, sized)
    return _of_plain_tensors(run, example_inputs)


def _of_plain_tensors(run: Callable[..., Any], example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """`run` with arguments of users' tensor classes converted to plain tensors: torch has traced the functions of their classes, and its
    operators refuse such tensors while a mode is active. Torch guards on the classes, so these arguments stay the same."""
    own = [n for n, x in enumerate(example_inputs) if _has_own_functions(x)]
    if not own:
        return run

    def call(*arguments: Any) -> Any:
        listed = list(arguments)
        for n in own:
            listed[n] = listed[n].as_subclass(torch.Tensor)
        return run(*listed)

    return call


def _has_own_functions(x: Any) -> bool:
    """Whether a tensor's class has a `__torch_function__` of its own and contains no other tensors."""
    if not isinstance(x, torch.Tensor) or is_traceable_wrapper_subclass(x):
        return False
    return type(x).__torch_function__ not in (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


def _differentiable(gm: torch.fx.GraphModule, inputs: Sequence[Any], name: str, settings: Settings, policy: Policy,
                    sized: bool) -> Callable[..., Any]:
    """The graph compiled for inputs like these, with its gradient where they require one. sized: whether it is a graph over named sizes."""
    from torch._dynamo.backends.common import aot_autograd

    # A number: the functions here live as long as the compiled one, and tensors after a graph break may be large.
    num_inputs = len(inputs)
    numbers = {node.name: n for n, node in enumerate(gm.graph.nodes)}
    record = RECORDS.of_graph(name)
    digest = "" if sized else trace_digest(gm, inputs, name, settings.options, () if record is None else record.inputs)
    known = find_trace(digest, settings.options, gm) if digest else None
    if known is not None:
        return _unboxed(_part_of(known, settings, gm))
    if policy.at_once and not sized:
        # They are ready by the time torch has traced the graph and its kernels are planned.
        _start_compilers(inputs, settings.options)

    def keep(trace: Trace) -> None:
        keep_trace(digest, trace, num_inputs, settings.options, numbers)

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_(part: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            keep_trace_of = keep if digest and kind == "inference" and is_called_as_it_is(num_inputs) else None
            if not sized and not policy.at_once or any(is_symbolic(n.meta.get("val")) for n in part.graph.find_nodes(op="placeholder")):
                return _sized(part, SizeCompiler(kind, f"{name}_{kind}", settings, Surroundings.now(), keep_trace_of), policy)
            _restride(part, inputs)
            around = Surroundings.now(part if kind == "backward" else None)
            return compile_part(part, kind, f"{name}_{kind}", settings, told=keep_trace_of, around=around)

        return compile_

    compiled = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions_with_gradients(),
        partition_fn=partial(_partitioned, settings.options),
        keep_inference_input_mutations=True,
    )
    with whole_resamplings():
        function: Callable[..., Any] = compiled(gm, inputs)
        return function


def _start_compilers(inputs: Sequence[Any], options: Options) -> None:
    on_gpu = next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"), None)
    if on_gpu is not None and torch.cuda.is_available():
        start_compilers(executor_of(present_device(on_gpu)[0], options), options)


def _partitioned(options: Options, joint: torch.fx.GraphModule, inputs: Any, **settings: Any
                 ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Forward and backward of a joint graph. Between them, values are saved that cost less to save than to recompute."""
    from functorch.compile import min_cut_rematerialization_partition

    device, _ = present_device(_device_of(joint), options.plan_for)
    prepare(joint, int(settings["num_fwd_outputs"]), settings.get("static_lifetime_input_indices") or (), device, options)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **settings)
    return forward, backward


def _sized(gm: torch.fx.GraphModule, compiler: SizeCompiler, policy: Policy) -> Callable[[list[Any]], Any]:
    """A graph over named sizes, or one that is not compiled at its first call, as a boxed callable."""
    record = RECORDS.of_graph(compiler.name)
    titles = NO_NAMES if record is None else user_names(gm, record.inputs)
    sized = SizedPart(gm, compiler.kind, compiler.name, policy, compiler, _by_torch(gm), titles.inputs)
    if policy.in_background and policy.at_call:
        background().start()
    _SIZED.append(weakref.ref(sized))
    return sized.boxed()


@dataclass(frozen=True, slots=True)
class SizeCompiler:
    """Compiles a graph over named sizes with the sizes inserted: now, or in the background. told: as for `compile_part`."""

    kind: str
    name: str
    settings: Settings
    around: Surroundings
    told: Callable[[Trace], None] | None = None

    def now(self, gm: torch.fx.GraphModule, sizes: str, known: Trace | None = None) -> Callable[[list[Any]], Any]:
        """The program as a boxed callable. known: the trace of the graph, if there is one."""
        return compile_part(gm, self.kind, self.name, self.settings, told=self.told, around=self.around, sizes=sizes, known=known)

    def has_room(self) -> bool:
        """Whether a compile in the background would begin soon."""
        return background().has_room()

    def later(self, gm: torch.fx.GraphModule, sizes: str) -> PendingPart | None:
        """The compile in the background; None for a graph that must be compiled here: one in parts, or one that only this process can make.

        An internal error there does not fail this call: the compile in this process meets it again and reports it.
        """
        try:
            with _disable_current_modes():
                trace = _trace_of(gm, self.name)
                spec, _ = present_device(trace.device, self.settings.options.plan_for)
                decided = _decided(trace, self.kind, self.settings, self.around)
                request = request_of(trace.imported, spec, self.settings.options, **decided)
        except Exception:  # the boundary to the user's program
            return None
        return None if request is None else PendingPart(self, gm, trace, sizes, background().ask(request))


@dataclass(frozen=True, slots=True)
class PendingPart:
    """A part that is being compiled in the background. Its program is then in the cache, where a compile here loads it."""

    compiler: SizeCompiler
    gm: torch.fx.GraphModule
    trace: Trace
    sizes: str
    ticket: Ticket

    def is_ready(self) -> bool:
        """Whether the background is done with it."""
        return self.ticket.done.is_set()

    def finish(self) -> Callable[[list[Any]], Any]:
        """The program as a boxed callable; compiled here where the background process failed."""
        if self.ticket.reason:
            sizes = self.sizes or "its sizes"
            log.warning("tilefuse compiles %s for %s while its call waits: %s", self.compiler.name, sizes, self.ticket.reason)
        return self.compiler.now(self.gm, self.sizes, self.trace)


def compile_part(gm: torch.fx.GraphModule, kind: str, name: str, settings: Settings, whole: bool = True,
                 told: Callable[[Trace], None] | None = None, around: Surroundings | None = None,
                 sizes: str = "", known: Trace | None = None) -> Callable[[list[Any]], Any]:
    """One graph as a boxed callable: compiled, or run by torch where it cannot be.

    whole: whether it is the whole graph that torch calls, not a part between nodes that torch runs.
    told: receives the trace of a graph that was compiled whole.
    around: surroundings of a graph that torch traced before; by default those of the current trace.
    sizes: the graph's sizes, where torch traced it for any. known: the trace of the graph, if it was imported before.
    Raises: CompilerError of every kind with `strict`; otherwise ToolchainError only.
    """
    trace = known
    around = around or Surroundings.now()
    try:
        # Torch traces under a mode in which every new tensor is a fake tensor without data; constants and probes here are real.
        with _disable_current_modes():
            trace = known or _trace_of(gm, name)
            part = _compiled(trace, kind, settings, whole, around, sizes)
    except UnsupportedError as reason:
        return _in_parts(gm, kind, name, settings) or _left_to_torch(gm, name, reason)
    except ToolchainError:
        raise
    except Exception as error:  # the boundary to the user's program: an internal error must not stop it
        if settings.strict:
            raise
        _report(kind, name, gm, "" if trace is None else print_graph(trace.imported.graph), error, settings)
        return _by_torch(gm)
    if whole:
        _report_strides(part, gm)
    if told is not None:
        told(trace)
    return _entered(part)


def _trace_of(gm: torch.fx.GraphModule, name: str) -> Trace:
    """The imported graph. Raises: UnsupportedError for one that cannot be compiled as a whole."""
    record = RECORDS.of_graph(name)
    imported = import_fx(gm, name, NO_NAMES if record is None else user_names(gm, record.inputs))
    device = _device_of(gm)
    placeholders = tuple(n.name for n in gm.graph.find_nodes(op="placeholder"))
    return Trace(imported, device, _moved_arguments(gm, device), placeholders)


def _part_of(trace: Trace, settings: Settings, gm: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The boxed callable of an inference graph that was traced before. Raises: as `compile_imported`."""
    with _disable_current_modes():
        part = _compiled(trace, "inference", settings, True, Surroundings(static=_marked_static(gm)))
    return _entered(part)


def _entered(part: CompiledPart) -> Callable[[list[Any]], Any]:
    """The boxed callable of a part, which is logged and listed."""
    _summarise(part.imported.graph.name, part.imported)
    _PARTS.append(weakref.ref(part))
    return part.boxed()


def _unboxed(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """The function that dynamo calls, with arguments one by one."""

    def call(*arguments: Any) -> Any:
        return run(list(arguments))

    return call


def compiled_parts(kind: str | None = None) -> list[CompiledPart]:
    """The parts compiled since the last `reset` that are still alive, in order; `kind` selects inference, forward or backward."""
    alive = [part for part in (ref() for ref in _PARTS) if part is not None]
    return [part for part in alive if kind is None or part.kind == kind]


def sized_parts(kind: str | None = None) -> list[SizedPart]:
    """The graphs over named sizes since the last `reset` that are still alive, in order; `kind` as for `compiled_parts`."""
    alive = [part for part in (ref() for ref in _SIZED) if part is not None]
    return [part for part in alive if kind is None or part.kind == kind]


def explain() -> str:
    """Text about all graphs compiled since the last `reset`: every program with its kernels, and how calls with several sizes were run."""
    return "".join(part.explain() for part in compiled_parts()) + "".join(f"{line}\n" for part in sized_parts() for line in part.notes())


def settle(timeout_s: float | None = None) -> bool:
    """Waits until all background compiles are done; the next calls of their sizes load the programs. False after the time limit.

    Units: seconds
    """
    return background().settle(timeout_s)


def view(path: Path | str = "torch.html", *, show: bool = False) -> Path:
    """Writes one page with every program compiled since the last `reset` and returns its path, as `Program.view`.

    Raises: UserError if nothing has been compiled yet.
    """
    parts = compiled_parts()
    if not parts:
        raise UserError("torch.compile has made no program with tilefuse yet", hint="a model is compiled when it is called first")
    titles = [f"{part.program.spec.name}{f' for {part.sizes}' if part.sizes else ''}" for part in parts]
    return write_page(titles[0] if len(parts) == 1 else f"{len(parts)} programs of torch.compile",
                      [running_data(part.program, label=title) for part, title in zip(parts, titles, strict=True)], path, show=show)


def reset() -> None:
    """Forgets all compiled graphs, as `torch.compiler.reset` does, and restores torch's recompile limit."""
    import torch._dynamo.config as config

    torch._dynamo.reset()
    _PARTS.clear()
    _SIZED.clear()
    RECORDS.clear()
    RECORDS.listen()
    _COUNTS["graphs"] = 0
    for name, limit in _LIMIT_BEFORE.items():
        setattr(config, name, limit)
    _LIMIT_BEFORE.clear()


def _in_parts(gm: torch.fx.GraphModule, kind: str, name: str, settings: Settings) -> Callable[[list[Any]], Any] | None:
    """The graph in parts: torch runs the nodes between compiled parts; None where it cannot be divided so."""
    divided = split(gm)
    if divided is None or not any(part.ours for part in divided.parts):
        return None
    log.warning("tilefuse compiles %s in parts, since torch runs %s", name, ", ".join(divided.foreign()))
    for operator in divided.foreign():
        RECORDS.left_to_torch(name, f"{operator}: no place in a tilefuse graph, between its parts")
    runs = [
        compile_part(part.module, kind, f"{name}_{n}", settings, whole=False) if part.ours else _by_torch(part.module)
        for n, part in enumerate(divided.parts)
    ]
    return divided.joined(runs)


def _left_to_torch(gm: torch.fx.GraphModule, name: str, reason: UnsupportedError) -> Callable[[list[Any]], Any]:
    log.warning("tilefuse leaves %s to torch: %s", name, reason)
    log_of("fallbacks").info("%s: torch runs the graph: %s", name, reason.message)
    RECORDS.left_to_torch(name, reason.message)
    return _by_torch(gm)


def _compiled(trace: Trace, kind: str, settings: Settings, whole: bool, around: Surroundings, sizes: str = "") -> CompiledPart:
    imported = trace.imported
    decided = _decided(trace, kind, settings, around, whole)
    program = compile_imported(imported, device=trace.device, options=settings.options, **decided)
    static = _kept_inputs(trace, around) if kind == "backward" else _static_inputs(imported, around)
    replay = _replay(kind, settings.options) if whole and not trace.moved else "never"
    lent = _lent(kind, imported, around) if replay == "always" else frozenset()
    if kind == "forward" and not lent:
        replay = "never"
    return CompiledPart(kind, program, imported, trace.moved, static if whole else (), replay, lent, sizes)


def _decided(trace: Trace, kind: str, settings: Settings, around: Surroundings, whole: bool = True) -> dict[str, Any]:
    """Arguments of a compile that follow from a part's kind and surroundings, in this process and in the background (see `generate`)."""
    imported = trace.imported
    return {"free_results": _saved(imported, around) if whole and kind == "forward" else (),
            "static": _static_inputs(imported, around) if kind == "inference" and settings.options.keep_weights else (),
            "given_up": _given_up(trace) if whole and kind == "backward" else (),
            "overwritable": _overwritable(trace, settings, around) if whole and kind == "backward" else ()}


def _lent(kind: str, imported: Imported, around: Surroundings) -> frozenset[int]:
    """Results that a recording may lend: all; of a forward part, those that only the backward part sees.

    A caller keeps a loss while the next step runs; the values for the backward part are released by then.
    """
    everything = frozenset(o.result for o in imported.outputs if o.result is not None)
    seen = imported.outputs[:around.num_seen] if kind == "forward" else ()
    return everything - {o.result for o in seen}


def _replay(kind: str, options: Options) -> str:
    """Whether calls of a part become replays of a CUDA graph (see `CompiledPart`).

    Without the mode only inference calls do: values that a forward part saves for the backward part would be copied out of the graph.
    """
    if options.cuda_graph:
        return "always"
    return "auto" if options.replay == "auto" and kind == "inference" else "never"


def _moved_arguments(gm: torch.fx.GraphModule, device: str) -> tuple[int, ...]:
    """Numbers of arguments that torch passes on another kind of device than the graph's."""
    here = "cpu" if device == "host" else "cuda"
    fakes = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    return tuple(n for n, fake in enumerate(fakes) if isinstance(fake, torch.Tensor) and fake.device.type != here)


def _device_of(gm: torch.fx.GraphModule) -> str:
    """The graph's device: the GPU if any tensor lies there. Raises: UnsupportedError for several GPUs or another device."""
    devices: dict[str, None] = {}
    for node in gm.graph.nodes:
        fakes = node.meta.get("val")
        for fake in fakes if isinstance(fakes, (list, tuple)) else (fakes,):
            if isinstance(fake, torch.Tensor):
                devices[str(fake.device)] = None
    kinds = {torch.device(d).type for d in devices}
    if kinds - {"cpu", "cuda"}:
        raise UnsupportedError(f"tensors on {', '.join(sorted(kinds))}", hint="tilefuse runs on cpu and cuda")
    gpus = [d for d in devices if torch.device(d).type == "cuda"]
    if len({torch.device(d).index for d in gpus}) > 1:
        raise UnsupportedError(f"one graph over several GPUs: {', '.join(gpus)}")
    return gpus[0] if gpus else "host"


def _static_inputs(imported: Imported, around: Surroundings) -> tuple[str, ...]:
    """Inputs with fixed addresses: parameters and buffers, as torch marks them."""
    names = (imported.arguments[n] for n in around.static if n < len(imported.arguments))
    return tuple(name for name in names if name is not None)


def _given_up(trace: Trace) -> tuple[str, ...]:
    """Inputs of a backward part that are freed after their last use: values saved by the forward part, and gradients of results."""
    passed_on = {o.argument for o in trace.imported.outputs}
    return tuple(name for n, (name, torchs) in enumerate(zip(trace.imported.arguments, trace.placeholders, strict=True))
                 if name is not None and n not in passed_on and not torchs.startswith("primals"))


def _overwritable(trace: Trace, settings: Settings, around: Surroundings) -> tuple[str, ...]:
    """Inputs of a backward part whose memory it may reuse. A recording reads the values of its forward part in place at every replay: none.
    """
    if settings.options.cuda_graph or trace.moved:
        return ()
    free = set(_given_up(trace))
    return tuple(name for name, torchs in zip(trace.imported.arguments, trace.placeholders, strict=True)
                 if name in free and torchs in around.donated)


def _kept_inputs(trace: Trace, around: Surroundings) -> tuple[str, ...]:
    """Inputs of a backward part with the addresses of the forward part's recording, and parameters: all except gradients of results and the
    forward part's own arguments, by AOTAutograd's names."""
    parameters = {f"primals_{n + 1}" for n in around.static}
    return tuple(name for name, torchs in zip(trace.imported.arguments, trace.placeholders, strict=True)
                 if name is not None and (torchs in parameters or not torchs.startswith(("tangents", "primals"))))


def _marked_static(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Arguments with fixed addresses, as dynamo marks them in its own graph: AOTAutograd's marks are missing for a stored trace."""
    nodes = gm.graph.find_nodes(op="placeholder")
    return tuple(n for n, node in enumerate(nodes) if node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def _by_torch(gm: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The graph run operator by operator."""
    from functorch.compile import make_boxed_func

    boxed: Callable[[list[Any]], Any] = make_boxed_func(gm.forward)
    return boxed


def _specialise(example_inputs: Sequence[Any]) -> None:
    """Makes torch guard on the floats of this call, so that other values compile again: one graph serves only different sizes."""
    for value in example_inputs:
        if isinstance(value, torch.SymFloat):
            _ = float(value)


def _raise_recompile_limit(limit: int) -> None:
    """Torch gives up on a function after 8 variants and runs it uncompiled from then on; here every shape is a variant."""
    import torch._dynamo.config as config

    for name, least in (("recompile_limit", limit), ("accumulated_recompile_limit", 16 * limit)):
        now = getattr(config, name, None)
        if isinstance(now, int) and now < least:
            _LIMIT_BEFORE.setdefault(name, now)
            setattr(config, name, least)


def _summarise(name: str, imported: Imported) -> None:
    if imported.fallbacks:
        listed = ", ".join(f"{operator} ({reason})" for operator, reason in imported.fallbacks)
        count = len(imported.fallbacks)
        log_of("fallbacks").info("%s: %s", name, listed)
        log.warning("tilefuse runs %d operator%s of %s in torch: %s", count, "" if count == 1 else "s", name, listed)


def _restride(part: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Enters the real strides of its arguments into the graph: saved activations have the layouts of our forward part."""
    for node, value in zip(part.graph.find_nodes(op="placeholder"), inputs):
        traced = node.meta.get("val")
        if isinstance(traced, torch.Tensor) and isinstance(value, torch.Tensor) and traced.stride() != value.stride():
            node.meta["val"] = value


def _saved(imported: Imported, around: Surroundings) -> tuple[int, ...]:
    """Numbers of results that only the backward part sees, so that the compiler chooses their layout."""
    if around.num_seen is None:
        return ()
    seen = {o.result for o in imported.outputs[:around.num_seen]}
    rest = imported.outputs[around.num_seen:]
    saved = (o.result for o in rest if o.permutation is None and o.expanded is None and not o.complex)
    return tuple(dict.fromkeys(n for n in saved if n is not None and n not in seen))


def _report_strides(part: CompiledPart, gm: torch.fx.GraphModule) -> None:
    """Reports the real strides of results to torch, so that the backward graph is compiled for them."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    strides_by_name = {v.name: v.strides for v in part.program.spec.values}
    listed = gm.graph.output_node().args[0]
    assert isinstance(listed, (list, tuple))
    for node, output in zip(listed, part.imported.outputs, strict=True):
        fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if not isinstance(fake, torch.Tensor):
            context.output_strides.append(None)
        elif output.result is None or output.permutation is not None or output.expanded is not None:
            context.output_strides.append(given_strides(fake))
        else:
            strides = strides_by_name[part.program.spec.results[output.result]]
            context.output_strides.append(tuple(s // 2 for s in strides[:-1]) if output.complex else strides)


def given_strides(fake: torch.Tensor) -> tuple[int, ...]:
    """Strides that a compiled part gives a result for which torch expects those of `fake`. Units: elements

    Dense tensors keep their order of dimensions, and repeated dimensions stay repeated; tensors with gaps become row-major.
    """
    strides = tuple(int(s) for s in fake.stride())
    step = 1
    compact = [(s, int(e)) for s, e in zip(strides, fake.shape) if s and int(e) > 1]
    for stride, extent in sorted(compact):
        if stride != step:
            dense = torch.empty([1 if not s else int(e) for s, e in zip(strides, fake.shape)], device="meta").stride()
            return tuple(0 if not s and int(e) > 1 else int(d) for s, d, e in zip(strides, dense, fake.shape))
        step *= extent
    return strides


def _report(kind: str, name: str, gm: torch.fx.GraphModule, graph_text: str, error: Exception, settings: Settings) -> None:
    """Reports that tilefuse failed on a graph, with the place of the reproducer."""
    head = str(error).splitlines()[0] if str(error) else type(error).__name__
    label = "error" if isinstance(error, (CompilerError, InternalError)) else f"internal {type(error).__name__}"
    RECORDS.left_to_torch(name, f"tilefuse could not compile it ({label}: {head})")
    try:
        folder = write_reproducer(kind, gm, graph_text, error, settings.options)
    except OSError as reason:
        log.error("tilefuse could not compile a %s graph (%s: %s); torch runs it. No reproducer was written: %s", kind, label, head, reason)
        return
    log.error(
        "tilefuse could not compile a %s graph (%s: %s); torch runs it. Please report it with the folder %s", kind, label, head, folder
    )


RECORDS.listen()
