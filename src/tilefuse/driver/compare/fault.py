"""Finds the cause of a wrong result: the import, a pass, a layout, one kernel or call, or kernels that overlap.

    program's steps, each against its definition          -> a kernel, or a call of the library
    results of an ordinary call against the stepped ones  -> kernels that overlap
    the planned graph against the imported one, in f64    -> the pass after which they differ, or what follows the passes
    the imported graph against torch in f64               -> the import

After a faulty kernel or pass is identified, its nodes are reduced to the smallest graph that still fails (`reduce.py`).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilefuse.base.errors import CompilerError, UnsupportedError
from tilefuse.base.options import Options
from tilefuse.driver.compare.meaning import Array, as_array, as_tensor, results_of
from tilefuse.driver.compare.peers import Subject, flat_tensors, reference
from tilefuse.driver.compare.reduce import NONSENSE, Failing, as_whole, described, leading_to, reduced, zero_values, zeros
from tilefuse.driver.compare.steps import SteppedRun, StepReport, compare_steps
from tilefuse.driver.compare.values import BY_DTYPE, Reference, Tolerance, compare_values
from tilefuse.driver.compile import Generated, generate, import_model, present_device
from tilefuse.driver.model import restore
from tilefuse.driver.pipeline import context_of, run_passes
from tilefuse.driver.reproducer import write_failing
from tilefuse.frontends.imported import Imported
from tilefuse.ir.graph import Graph
from tilefuse.passes import PassContext, PassRecord, Pipeline
from tilefuse.passes.facts import CallerLayouts
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.rewrites.layout import PlanLayouts
from tilefuse.runtime.program import Program
from tilefuse.target.device import DeviceSpec

SECONDS = 60.0


@dataclass(frozen=True)
class Fault:
    """Where a difference arises.

    stage    "none", "import", "pass", "layout", "kernel", "library" or "overlap"
    name     of the pass, kernel or library operator
    text     the finding in a sentence or two
    steps    every step of the program against its definition
    failing  the smallest graph with inputs that fails, where one was found; device, options: with which it does
    """

    stage: str
    name: str
    text: str
    steps: tuple[StepReport, ...] = ()
    failing: Failing | None = None
    device: str = "host"
    options: Options | None = None

    @property
    def is_none(self) -> bool:
        """Whether nothing differs anywhere."""
        return self.stage == "none"

    @property
    def first(self) -> StepReport | None:
        """The first step whose results differ from their definition."""
        return next((s for s in self.steps if not s.agrees), None)

    def save(self, folder: Any) -> str:
        """Writes the smallest failing graph with its inputs to a folder; the command that runs it. Raises: UserError."""
        return write_failing(folder, self.text, self.failing, self.device, self.options)

    def as_data(self) -> dict[str, Any]:
        """The fault as plain data."""
        return {"stage": self.stage, "name": self.name, "text": self.text, "steps": [s.as_data() for s in self.steps],
                "smallest": None if self.failing is None else described(self.failing)}

    def table(self) -> str:
        """One line per step: its own error and the accumulated error, relative to the size of its results."""
        lines = [f"{'step':>4} {'own error':>10} {'from start':>10}  {'':7} name (nodes)"]
        for s in self.steps:
            mark = "" if s.agrees else "  DIFFERS"
            nodes = ", ".join(s.nodes[-3:]) + (f", {len(s.nodes) - 3} more" if len(s.nodes) > 3 else "")
            own = s.note or f"{s.own_error:.1e}"
            lines.append(f"{s.number:>4} {own:>10} {s.from_start:>10.1e}  {s.kind:<7} {s.name} ({nodes}){mark}")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.text


def find_fault(subject: Subject, tolerance: Tolerance = BY_DTYPE, seconds: float = SECONDS, reduce: bool = True,
               each: Callable[[StepReport], object] | None = None) -> Fault:
    """The first place where a model's compiled form differs from its definition, for these inputs.

    seconds: for reducing. each: called with the report of every step.
    Raises: UnsupportedError for a saved program and for a model in parts; as compiling and running the model.
    """
    return _Search(subject, tolerance, seconds, reduce).run(each)


def failing_compile(graph: Graph, error: CompilerError, device: DeviceSpec, place: str, options: Options,
                    seconds: float = SECONDS) -> Failing | None:
    """The smallest graph whose compile raises the same kind of error as the whole; None where only the data of constants raises it."""
    plain = options.with_overrides(plan="", template="")

    def fails(graph: Graph, inputs: Mapping[str, Array]) -> bool:
        try:
            generated = generate(graph, constants={}, device=device, options=plain)
            Program(generated.spec, generated.constants, place, plain)
        except type(error):
            return True
        except NONSENSE:
            return False
        return False

    whole = as_whole(graph)
    inputs = {i.name: zeros(i.type) for i in whole.inputs}
    return reduced(whole, inputs, fails, seconds, values=zero_values) if fails(whole, inputs) else None


def save_failing_compile(model: Any, examples: Sequence[Any] | None, shapes: Mapping[str, Sequence[int]] | None,
                         named: Mapping[str, Any] | None, error: CompilerError, place: str, options: Options, folder: Any,
                         seconds: float = SECONDS) -> str:
    """Reduces the graph of a model whose compile failed, and saves it; the command that shows the failure, "" where none was found."""
    imported = import_model(model, examples, shapes=shapes, example_kwargs=named)
    failing = failing_compile(imported.graph, error, present_device(place)[0], place, options, seconds)
    return "" if failing is None else write_failing(folder, f"compiling raises {type(error).__name__}: {error.message}", failing, place,
                                                    options)


class _Search:
    def __init__(self, subject: Subject, tolerance: Tolerance, seconds: float, reduce: bool) -> None:
        self.subject, self.tolerance, self.seconds, self.reduce = subject, tolerance, seconds, reduce
        if subject.kind == "saved":
            raise UnsupportedError("a saved program holds no graph to compare its steps with",
                                   hint="name the model that it was compiled from")
        self.options = Options.from_environment().with_overrides(**subject.options)
        self.place = "host" if subject.device.type == "cpu" else str(subject.device)
        self.spec: DeviceSpec = present_device(self.place)[0]
        examples = tuple(subject.arguments) if subject.kind == "torch" else None
        named = dict(subject.named) if subject.kind == "torch" and subject.named else None
        try:
            self.imported: Imported = import_model(subject.model, examples, shapes=subject.shapes, example_kwargs=named)
        except UnsupportedError as error:
            raise UnsupportedError(f"the model runs in parts, so there is no graph of the whole to compare with: {error.message}",
                                   hint="compare its outputs, with onnxruntime for instance") from error
        self.arrays: dict[str, Any] = {name: as_array(t) for name, t in subject.inputs.items()}

    def run(self, each: Callable[[StepReport], object] | None) -> Fault:
        """The first fault; `each` receives every step's report."""
        imported = self.imported
        generated = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=self.spec,
                             options=self.options, fallbacks=imported.fallbacks, result_layouts=imported.result_layouts)
        program = Program(generated.spec, generated.constants, self.place, self.options)
        everything = {**self.arrays, **generated.constants}
        tensors = [self.subject.inputs[name] for name in generated.spec.inputs]
        stepped = compare_steps(generated, program, everything, [t.clone() for t in tensors], self.tolerance, each)
        if stepped.first is not None:
            return self._of_step(generated, stepped, stepped.first, everything)
        with torch.no_grad():
            together = program(*(t.clone() for t in tensors))
        apart = [r for r, a, b in zip(generated.spec.results, together, stepped.results)
                 if not compare_values(r, a, b, self.tolerance).agrees]
        if apart:
            return self._fault("overlap", "", f"every step by itself is right, but %{apart[0]} differs when they run without waiting for "
                               "each other: kernels overlap that must not; -O early_start=off changes whether they do", stepped)
        return self._of_graphs(generated, everything, stepped)

    def _fault(self, stage: str, name: str, text: str, stepped: SteppedRun, failing: Failing | None = None) -> Fault:
        return Fault(stage, name, text, tuple(stepped.steps), failing, self.place, self.options)

    # Kernels

    def _of_step(self, generated: Generated, stepped: SteppedRun, step: StepReport, everything: Mapping[str, Array]) -> Fault:
        values = [v for v in step.own if not v.agrees]
        text = f"the first that differs is step {step.number} of {len(stepped.steps)}: {step.kind} {step.name}"
        text += f", which computes {', '.join('%' + n for n in step.nodes[:8])}{', ...' if len(step.nodes) > 8 else ''}"
        if step.overwritten:
            text += f"; what it reads was overwritten before: {', '.join('%' + v for v in step.overwritten)}"
        for value in values[:1]:
            worst = f" at [{', '.join(map(str, value.worst.index))}]: {value.worst.ours:.9g} instead of {value.worst.theirs:.9g}" \
                if value.worst is not None else f": {value.reason}"
            text += f"; %{value.name} {value.dtype}{list(value.shape)}, {value.num_outside} of {value.num_elements} elements outside{worst}"
        failing = self._smallest(generated, step, stepped, everything) if self.reduce and values else None
        if failing is None and self.reduce and values:
            text += "; its nodes compiled alone are right: it fails only where it stands"
        return self._fault(step.kind, step.name, text, stepped, failing)

    def _smallest(self, generated: Generated, step: StepReport, stepped: SteppedRun, everything: Mapping[str, Array]) -> Failing | None:
        wrong = tuple(v.name for v in step.own if not v.agrees)
        alone = Pattern(step.nodes, wrong).graph(generated.plan.graph, generated.plan.graph.name)
        starts = [(alone, stepped.read), (as_whole(leading_to(generated.plan.graph, wrong)), everything)]
        for graph, inputs in starts:
            arrays = {i.name: as_array(as_tensor_of(inputs[i.name])) for i in graph.inputs}
            if self._fails(graph, arrays):
                return reduced(graph, arrays, self._fails, self.seconds)
        return None

    def _fails(self, graph: Graph, inputs: Mapping[str, Array]) -> bool:
        """Whether a graph, compiled for the same device with the same options, differs from its definition."""
        options = self.options.with_overrides(plan="", template="")
        try:
            generated = generate(graph, constants={}, device=self.spec, options=options)
            program = Program(generated.spec, generated.constants, self.place, options)
            place = program.device
            with torch.no_grad():
                ours = [t.cpu() for t in program(*(as_tensor(inputs[name]).to(place) for name in generated.spec.inputs))]
            return not self._same(ours, graph, inputs)
        except NONSENSE:
            return False

    def _same(self, ours: Sequence[torch.Tensor], graph: Graph, inputs: Mapping[str, Array]) -> bool:
        wide = results_of(graph, inputs, wide=True)
        if all(compare_values("", a, b, self.tolerance).agrees for a, b in zip(ours, wide, strict=True)):
            return True
        narrow = results_of(graph, inputs, wide=False)
        return all(compare_values("", a, b, self.tolerance, Reference(w, True)).agrees for a, b, w in zip(ours, narrow, wide, strict=True))

    # Graphs

    def _of_graphs(self, generated: Generated, everything: Mapping[str, Array], stepped: SteppedRun) -> Fault:
        """A difference that no step causes: in the passes after the import, or in the import."""
        arrays = {**self.arrays, **self.imported.constants}
        undefined = sum(s.note == "undefined" for s in stepped.steps)
        if undefined:
            num = len(stepped.steps)
            return self._fault("none", "", f"{num - undefined} of {num} steps compute what they are defined as, {undefined} have no "
                               "definition outside of torch", stepped)
        meant = results_of(self.imported.graph, arrays, wide=True)
        if not _agree(results_of(generated.plan.graph, everything, wide=True), meant):
            return self._of_passes(arrays, meant, stepped)
        exact, independent, _ = reference(self.subject) if self.subject.kind == "torch" else (None, False, "")
        flat = pytree.tree_leaves((tuple(self.subject.arguments), dict(self.subject.named)))
        outputs = flat_tensors([restore(o, meant, flat) for o in self.imported.outputs]) if self.imported.outputs else meant
        if exact is not None and independent and len(outputs) == len(exact) and not _agree(outputs, exact, 1e-5):
            return self._fault("import", "", "every step is right, and the imported graph differs from the model in f64: the import has "
                               "another idea of an operator", stepped)
        worst = max(stepped.steps, key=lambda s: s.own_error, default=None)
        where = f"; the largest own error is {worst.own_error:.1e}, of {worst.kind} {worst.name}" if worst is not None else ""
        return self._fault("none", "", f"all {len(stepped.steps)} steps compute what they are defined as{where}", stepped)

    def _of_passes(self, arrays: Mapping[str, Array], meant: Sequence[torch.Tensor], stepped: SteppedRun) -> Fault:
        records: list[PassRecord] = []
        context = self._context(CallerLayouts.of(self.imported.graph, self.imported.layouts, self.imported.result_layouts))
        context.constants, context.on_pass = dict(self.imported.constants), records.append
        run_passes(self.imported.graph, context, self.options)
        everything: dict[str, Any] = {**arrays, **context.constants}

        def wrong(number: int) -> bool:
            return not _agree(results_of(records[number].after, everything, wide=True), meant)

        low, high = 0, len(records) - 1
        if not records or not wrong(high):
            return self._fault("layout", "", "every step is right and so are the passes, but the graph that was planned means something "
                               "else", stepped)
        while low < high:  # the first record after which the graph is wrong
            middle = (low + high) // 2
            low, high = (low, middle) if wrong(middle) else (middle + 1, high)
        record = records[low]
        detail = f"every step is right, but pass {record.name} (number {low + 1} of {len(records)}) changes what the graph means"
        failing = self._smallest_for_pass(record, everything) if self.reduce else None
        return self._fault("pass", record.name, detail, stepped, failing)

    def _context(self, caller: CallerLayouts | None = None) -> PassContext:
        context = context_of(self.spec, self.options, caller=caller, place=self.place)
        context.verify = 0  # a wrong graph is looked at, not refused
        return context

    def _smallest_for_pass(self, record: PassRecord, inputs: Mapping[str, Array]) -> Failing | None:
        """The smallest graph whose meaning the pass changes; layouts are planned first if the pass reads them."""
        item = Pipeline((PlanLayouts(self.options.channels_last), record.item) if "layouts" in record.item.depends else (record.item,))
        before = record.before

        def fails(graph: Graph, arrays: Mapping[str, Array]) -> bool:
            context = self._context()
            try:
                after = item.run(graph, context)
                known: dict[str, Any] = {**arrays, **context.constants}
                return not _agree(results_of(after, known, wide=True), results_of(graph, arrays, wide=True))
            except NONSENSE:
                return False

        whole = as_whole(before)
        pass_inputs = {i.name: as_array(as_tensor_of(inputs[i.name])) for i in whole.inputs}
        return reduced(whole, pass_inputs, fails, self.seconds) if fails(whole, pass_inputs) else None


def as_tensor_of(value: Any) -> torch.Tensor:
    """An array or a tensor as a tensor."""
    return value if isinstance(value, torch.Tensor) else as_tensor(value)


def _agree(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], rtol: float = 1e-6) -> bool:
    """Whether results in f64 agree up to rounding in f64; integers computed from rounded values are ignored."""
    return all(compare_values("", a, b, Tolerance(rtol, _size(b) * rtol)).agrees for a, b in zip(ours, theirs, strict=True)
               if a.dtype.is_floating_point)


def _size(tensor: torch.Tensor) -> float:
    finite = tensor.double()[tensor.double().isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
