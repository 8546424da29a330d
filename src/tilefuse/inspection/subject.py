"""A compiled object as its parts: one record for each program, for any kind of object (model, function, method, script, arrays, saved
file).

Everything that runs in torch instead is listed beside the parts: breaks between graphs, graphs and operators left to torch, sizes without a
program. `subject_of` reads the objects; nothing here compiles or runs them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilefuse.base.errors import TypeMismatchError, UserError
from tilefuse.runtime.explanation import explanation_data

KNOWN = ("a model of torch.compile(backend='tilefuse'), a program of tilefuse.compile or tilefuse.load, "
         "a function of tilefuse.array.compile, a training step of tilefuse.nn, a script of tilefuse.blas.compile")


@dataclass(frozen=True, repr=False)
class Part:
    """One program of a compiled object.

    direction: "inference", "forward" or "backward"; "" where nothing differentiates. sizes: those that it is for, "" for the only ones.
    state: "compiled", or "shared": compiled at a call of another object of the same code, whose calls and this one's both find it.
    function, place: of the user's program. calls: how often it ran. program: `runtime.program.Program`, or `Generated` for sources alone.
    """

    name: str
    program: Any
    direction: str = ""
    sizes: str = ""
    state: str = "compiled"
    function: str = ""
    place: str = ""
    calls: int = 0
    holder: Any = field(default=None, repr=False, compare=False)

    @property
    def title(self) -> str:
        """Name and sizes."""
        return f"{self.name} for {self.sizes}" if self.sizes else self.name

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The kernels' sources and launches."""
        return tuple(self.program.spec.kernels)

    def data(self) -> dict[str, Any]:
        """The program's explanation as plain data."""
        from tilefuse.runtime.page import plain_explanation

        return explanation_data(self.program.spec) or plain_explanation(self.program.spec)

    def explain(self, json: bool = False) -> Any:
        """Why these kernels, as `Program.explain`."""
        return self.program.explain(json=json)

    def source(self, kernel: str | None = None) -> str:
        """Source text of one kernel, or of all. Raises: NameLookupError for an unknown kernel."""
        return str(self.program.spec.source(kernel))

    def view(self, path: Path | str | None = None, *, show: bool = False) -> Path:
        """Writes the program's page, as `Program.view`."""
        return Path(self.program.view(path, show=show))

    def __repr__(self) -> str:
        where = f" of {self.function}" if self.function else ""
        kind = f" ({self.direction})" if self.direction else ""
        return f"Part({self.title}{kind}{where}, {self.state}: {len(self.program.spec.steps)} steps, {self.calls} calls)"


@dataclass(frozen=True)
class InTorch:
    """A piece of the user's program that torch or Python runs instead of a program of ours.

    kind: "graph break", "graph", "operator", "size" or "frame". what: in the user's words; place: `file:line`, "" where it is unknown.
    part: the part that contains it or is next to it.
    """

    kind: str
    what: str
    reason: str
    place: str = ""
    path: str = ""
    advice: str = ""
    part: str = ""


@dataclass(frozen=True)
class Subject:
    """A compiled object: its parts, the items that run in torch, recompilations (function, reason), remarks."""

    name: str
    kind: str
    parts: tuple[Part, ...]
    in_torch: tuple[InTorch, ...] = ()
    recompiled: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def programs(self) -> list[Any]:
        """The parts' programs."""
        return [p.program for p in self.parts]


def subject_of(compiled: Any, *, needs_parts: bool = True) -> Subject:
    """The parts of a compiled object. needs_parts: whether one without programs is an error.

    Raises: TypeMismatchError for an object that tilefuse did not compile; UserError for one that has no program: it was not called yet, or
    its programs were forgotten.
    """
    subject = _read(compiled)
    if subject is None:
        raise TypeMismatchError(f"tilefuse did not compile this {_kind_name(compiled)}", hint=f"give {KNOWN}")
    if needs_parts and not subject.parts:
        raise UserError(f"{subject.name} has no program" + "".join(f"; {note}" for note in subject.notes),
                        hint="a model or function is compiled when it is called first, for the types and sizes of that call: call it, then "
                             "ask")
    return subject


def _kind_name(compiled: object) -> str:
    return f"function {compiled.__qualname__}" if hasattr(compiled, "__qualname__") else type(compiled).__name__


def _read(compiled: Any) -> Subject | None:
    if isinstance(compiled, Subject):
        return compiled
    if isinstance(compiled, Part):
        return Subject(compiled.name, "program", (compiled,))
    readers: Mapping[tuple[str, str], Callable[[Any], Subject]] = {
        ("tilefuse.runtime.program", "Program"): _of_program, ("tilefuse.driver.compile", "Generated"): _of_program,
        ("tilefuse.driver.model", "CompiledModel"): _of_program, ("tilefuse.arrays.evaluation.compile", "Compiled"): _of_arrays,
        ("tilefuse.nn.training", "TrainingStep"): _of_training,
        ("tilefuse.arrays.evaluation.session", "Session"): _of_session, ("tilefuse.arrays.array", "Array"): _of_array,
        ("tilefuse.scripts.script", "CompiledScript"): _of_script,
        ("tilefuse.driver.onnx.split", "SplitModel"): _of_split, ("tilefuse.driver.torch.part", "CompiledPart"): _of_part,
        ("tilefuse.runtime.calls.capture", "CapturedProgram"): _of_program, ("tilefuse.scripts.script", "ScriptProgram"): _of_program,
    }
    for kind in type(compiled).__mro__:
        reader = readers.get((kind.__module__, kind.__name__))
        if reader is not None:
            return reader(compiled)
    return _of_torch(compiled)


def _of_program(compiled: Any) -> Subject:
    program = getattr(compiled, "program", compiled)
    calls = program.counts.calls if hasattr(program, "counts") else 0
    return _with_operators(Subject(program.spec.name, "program", (Part(program.spec.name, program, calls=calls, holder=compiled),)))


def _of_part(compiled: Any) -> Subject:
    return _with_operators(Subject(compiled.imported.graph.name, "torch.compile", (_torch_part(compiled),)))


def _of_arrays(compiled: Any) -> Subject:
    parts = [Part(p.spec.name, p, sizes=_input_types(p) if len(compiled.programs) > 1 else "", calls=p.counts.calls, holder=compiled)
             for p in compiled.programs]
    return _with_operators(Subject(compiled.__name__, "arrays", tuple(parts)))


def _of_training(step: Any) -> Subject:
    """The programs of a training step, under the name of the model that it trains."""
    return replace(_of_arrays(step.compiled), name=type(step.model).__name__, kind="training step")


def _of_array(array: Any) -> Subject:
    """The program that will compute an array. Raises: UserError for one that has its data already."""
    from tilefuse.arrays.evaluation.evaluate import program

    return _of_program(program(array))


def _of_session(compiled: Any) -> Subject:
    parts = [Part(f"{p.spec.name} {n}", p, calls=p.counts.calls, holder=compiled) for n, p in enumerate(compiled.programs)]
    return _with_operators(Subject("session", "arrays", tuple(parts)))


def _of_script(compiled: Any) -> Subject:
    programs = compiled.programs
    parts = [Part(compiled.name, p.program, sizes=_input_types(p.program) if len(programs) > 1 else "", calls=p.program.counts.calls,
                  holder=compiled) for p in programs]
    notes = [f"kernels: {how}" for how in dict.fromkeys(p.choice.how for p in programs)]
    return _with_operators(Subject(compiled.name, "script", tuple(parts), notes=tuple(notes)))


def _of_split(compiled: Any) -> Subject:
    data = compiled.explain(json=True)
    parts = [Part(p.spec.name, p, sizes=_input_types(p), calls=getattr(getattr(p, "counts", None), "calls", 0), holder=compiled)
             for p in compiled.programs]
    known = {(f.what, f.reason) for part in parts for f in _operators(part)}
    hosted = [InTorch("operator", f["operator"], f["reason"]) for f in data["fallbacks"] if (f["operator"], f["reason"]) not in known]
    return _with_operators(Subject(compiled.title, "ONNX model in parts", tuple(parts), tuple(hosted), notes=tuple(compiled.notes())))


def _input_types(program: Any) -> str:
    """Shapes of the inputs that are no weights, as text."""
    types = {v.name: v for v in program.spec.values}
    inputs = [f"{title} {_shape(types[name].shape)}" for title, name in zip(program.spec.told_inputs, program.spec.inputs)]
    return ", ".join(inputs[:4]) + (", ..." if len(inputs) > 4 else "")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _with_operators(subject: Subject) -> Subject:
    """The subject with the operators that its programs call in the framework, each with its place."""
    operators = [f for part in subject.parts for f in _operators(part)]
    return Subject(subject.name, subject.kind, subject.parts, (*subject.in_torch, *operators), subject.recompiled, subject.notes)


def _operators(part: Part) -> Iterator[InTorch]:
    """Operators of a part without a kernel of ours, by reason, at the first place where each stands."""
    data = part.data()
    nodes = (data.get("graph") or {}).get("nodes", ())
    for row in data.get("fallbacks", ()):
        short = str(row["operator"]).rsplit(".", 1)[0]
        at = next((n for n in nodes if n["kind"] == f"library.{row['operator']}"), None) or next(
            (n for n in nodes if n.get("operator") in (row["operator"], short)), None) or {}
        yield InTorch("operator", str(row["operator"]), str(row["reason"]), str(at.get("place", "")), str(at.get("path", "")),
                      part=part.name)


# Models and functions of torch.compile


def _of_torch(compiled: Any) -> Subject | None:
    import sys

    if "torch" not in sys.modules:
        return None
    import torch

    from tilefuse.driver.torch.records import RECORDS, contexts_of, is_found_by, is_kept

    if not (isinstance(compiled, torch.nn.Module) or callable(compiled)):
        return None
    contexts = contexts_of(compiled)
    if not contexts or not any(map(_is_ours, contexts)):
        return None
    from tilefuse.driver.torch_backend import compiled_parts, sized_parts

    name = _torch_name(compiled)
    own_compilations = [c for c in RECORDS.all() if any(c.is_of(context) for context in contexts)]
    shared = [c for c in RECORDS.all()
              if c not in own_compilations and c.graph and any(is_found_by(c, compiled, context) for context in contexts)]
    parts: list[Part] = []
    in_torch: list[InTorch] = []
    recompiled: list[tuple[str, str]] = []
    notes: list[str] = []
    all_parts, all_sized = compiled_parts(), sized_parts()
    for compilation in (*own_compilations, *shared):
        function, place = compilation.title, compilation.place
        if compilation.graph and not is_kept(compilation):
            notes.append(f"{compilation.graph} of {function} was forgotten by torch (torch.compiler.reset, or more variants than "
                         "recompile_limit); a call compiles it again")
            continue
        own = [p for p in all_parts if compilation.graph and _graph_of(p.imported.graph.name) == compilation.graph]
        parts += [_torch_part(p, function, place, "shared" if compilation in shared else "compiled") for p in own]
        in_torch += [InTorch("graph break", b.line_text or b.reason, b.reason, b.place, advice=b.advice, part=compilation.graph)
                     for b in compilation.breaks]
        in_torch += [InTorch("graph", part, reason, place, part=compilation.graph) for part, reason in compilation.in_torch]
        if compilation.failed:
            in_torch.append(InTorch("frame", function, compilation.failed, place))
        if compilation.recompiled:
            recompiled.append((function, compilation.recompiled))
        sized = [s for s in all_sized if compilation.graph and _graph_of(s.name) == compilation.graph]
        for one in sized:
            in_torch += [InTorch("size", f"{one.name} for {sizes}" if sizes else one.name, why, place, part=one.name)
                         for sizes, why in one.waiting()]
            notes += one.notes()[:1] if one.is_of_sizes else []
    if not own_compilations and shared:
        notes.append(f"calls of this {type(getattr(compiled, '_orig_mod', compiled)).__name__} find programs that were compiled for "
                     "another object of the same code")
    if not own_compilations and not shared:
        notes.append("none of its calls was compiled since the last reset")
    return _with_operators(Subject(name, "torch.compile", tuple(parts), tuple(in_torch), tuple(recompiled), tuple(dict.fromkeys(notes))))


def _is_ours(context: Any) -> bool:
    """Whether a context compiles with tilefuse."""
    from torch._dynamo.eval_frame import innermost_backend

    try:
        backend = innermost_backend(context.callback)
    except AttributeError:
        return False
    backend = getattr(backend, "compiler_fn", backend)
    return str(getattr(backend, "__module__", "")).startswith("tilefuse")


def _graph_of(name: str) -> str:
    return name.partition("_")[0]


def _torch_part(piece: Any, function: str = "", place: str = "", state: str = "compiled") -> Part:
    return Part(piece.imported.graph.name, piece.program, piece.kind, piece.sizes, state, function, place, piece.calls, piece)


def _torch_name(compiled: Any) -> str:
    import torch

    if isinstance(compiled, torch.nn.Module):
        return type(getattr(compiled, "_orig_mod", compiled)).__name__
    return str(getattr(compiled, "__qualname__", type(compiled).__name__))

