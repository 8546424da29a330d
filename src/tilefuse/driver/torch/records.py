"""Records of torch's compilations, with the compiled objects that caused them; used by `tilefuse.explain(compiled)` and similar functions.

    call of a compiled object -> torch compiles a frame -> graph -> our programs
    its context (on the stack)   compile id, code          name      by the graph's name

A context is torch's object behind one call of `torch.compile`. Code that torch compiled for one object also serves other objects with the
same code whose guards hold: `is_found_by` evaluates these guards. Nothing here runs while a program runs.
"""
from __future__ import annotations

import contextlib
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from tilefuse.base.logs import log_of

_BREAKS, _RECOMPILES = log_of("graph_breaks"), log_of("recompiles")
# Errors from reading torch's own records after torch changed them; they must not fail a compile.
TORCH_CHANGED = (AttributeError, ImportError, TypeError, LookupError, ValueError, RuntimeError)
# Compiles that are remembered; the oldest go.
MOST_RECORDS = 1024
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where torch ended a graph: reason (its first line), explanation and hint, the user's line."""

    reason: str
    advice: str
    place: str
    line_text: str = ""


@dataclass(eq=False)
class Compilation:
    """One compilation of a frame of the user's program by torch.

    contexts    of the calls on whose behalf it was compiled, the innermost first
    roots       code of the functions that those contexts call; callers: their names
    code        of the frame, with its function, file and line
    graph       name of its graph, which programs begin their names with; "" where it has none
    inputs      names of the graph's inputs in the user's program, in order
    in_torch    (name, reason) of the parts of the graph that torch runs
    recompiled  reason why earlier compiled code could not be called; failed: reason why torch gave the frame up
    """

    compile_id: str
    contexts: tuple[weakref.ref[Any], ...] = ()
    roots: tuple[weakref.ref[CodeType], ...] = ()
    callers: tuple[str, ...] = ()
    code: weakref.ref[CodeType] | None = None
    function: str = ""
    file: str = ""
    line: int = 0
    graph: str = ""
    num_operators: int = 0
    inputs: tuple[str, ...] = ()
    breaks: list[GraphBreak] = field(default_factory=list)
    in_torch: list[tuple[str, str]] = field(default_factory=list)
    recompiled: str = ""
    failed: str = ""

    @property
    def place(self) -> str:
        """`file:line` of the frame's function; "" for a frame of torch that calls a module."""
        return f"{self.file}:{self.line}" if self.file and not self.file.startswith(_TORCH) else ""

    @property
    def title(self) -> str:
        """The frame's function in the user's words. Torch creates functions for the code after a break and around modules."""
        own = None if self.code is None else self.code()
        if self.callers and (self.file.startswith(_TORCH) or own is not None and any(ref() is own for ref in self.roots)):
            return self.callers[0]
        head, _, rest = self.function.partition("torch_dynamo_resume_in_")
        if not rest:
            return head
        name, _, line = rest.rpartition("_at_")
        return f"{name}, after the break at line {line}"

    def is_of(self, context: object) -> bool:
        """Whether it was compiled during a call of this context."""
        return any(ref() is context for ref in self.contexts)


class Records:
    """All compilations of this process since the last reset, in order."""

    def __init__(self) -> None:
        self._found: deque[Compilation] = deque(maxlen=MOST_RECORDS)
        self._lock = threading.RLock()
        self._num_breaks = 0
        self._absorbed: deque[tuple[object, object]] = deque(maxlen=MOST_RECORDS)

    def listen(self) -> None:
        """Makes torch report every frame that it compiles from now on (its own reset removes the hooks)."""
        from torch._dynamo.callback import callback_handler

        if self._started not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._started)
            callback_handler.register_end_callback(self._ended)

    def all(self) -> list[Compilation]:
        """Every compilation, the oldest first."""
        with self._lock:
            self._absorb()
            return list(self._found)

    def clear(self) -> None:
        """Forgets all."""
        with self._lock:
            self._absorb()
            self._found.clear()

    def graph(self, gm: torch.fx.GraphModule, name: str) -> None:
        """Records the graph of the frame that torch compiles now under this name."""
        with self._lock, contextlib.suppress(*TORCH_CHANGED):
            self.listen()
            current = self._now()
            current.graph = name
            current.num_operators = sum(n.op.startswith("call_") for n in gm.graph.nodes)
            current.inputs = tuple(input_names(gm, current))

    def of_graph(self, name: str) -> Compilation | None:
        """The compilation of a graph. name: the graph's, or that of one of its parts, which starts with the graph's."""
        graph = name.partition("_")[0]
        with self._lock:
            return next((c for c in reversed(self._found) if c.graph == graph), None)

    def left_to_torch(self, name: str, reason: str) -> None:
        """Records that torch runs a part of a graph. name: as for `of_graph`."""
        compilation = self.of_graph(name)
        if compilation is not None and (name, reason) not in compilation.in_torch:
            compilation.in_torch.append((name, reason))

    def _now(self) -> Compilation:
        """The current compilation; records it if it is new."""
        now = str(torch._guards.CompileContext.current_compile_id())
        last = self._found[-1] if self._found else None
        code, contexts, roots, callers = _surroundings()
        if last is not None and last.compile_id == now and not last.graph:
            last.code = last.code or (None if code is None else weakref.ref(code))
            return last
        for older in self._found:
            if older.compile_id == now:  # torch was reset, and counts anew
                older.compile_id = ""
        compilation = Compilation(now, tuple(map(weakref.ref, contexts)), tuple(map(weakref.ref, roots)),
                                  tuple(callers), None if code is None else weakref.ref(code))
        if code is not None:
            compilation.function, compilation.file, compilation.line = code.co_name, code.co_filename, code.co_firstlineno
        self._found.append(compilation)
        return compilation

    def _started(self, callback_args: Any = None) -> None:
        """Torch starts to compile a frame, or a backward graph, which belongs to a frame compiled before."""
        if getattr(getattr(callback_args, "callback_trigger", None), "name", "DYNAMO") != "DYNAMO":
            return
        with self._lock, contextlib.suppress(*TORCH_CHANGED):
            self._absorb()
            self._now()

    def _ended(self, callback_args: Any = None) -> None:
        with self._lock, contextlib.suppress(*TORCH_CHANGED):
            self._take_breaks()
            reason = _recompile_reason()
            last = self._found[-1] if self._found else None
            if reason and last is not None and not last.recompiled:
                last.recompiled = reason
                _RECOMPILES.info("%s%s: %s", last.title, f" at {last.place}" if last.place else "", _first_line(reason))
                _RECOMPILES.debug("%s", reason)

    def _absorb(self) -> None:
        """Adds torch's reports since the last call: breaks, and its records of compilations."""
        from torch._dynamo.utils import get_compilation_metrics

        self._take_breaks()
        for metrics in get_compilation_metrics():
            key = (getattr(metrics, "compile_id", None), getattr(metrics, "start_time_us", None))
            if key in self._absorbed:
                continue
            self._absorbed.append(key)
            file = getattr(metrics, "co_filename", None)
            if not file:  # of a backward graph
                continue
            compilation = next((c for c in reversed(self._found) if c.compile_id == key[0]), None)
            if compilation is None:
                continue
            compilation.function, compilation.file = str(metrics.co_name), str(file)
            compilation.line = int(metrics.co_firstlineno or 0)
            compilation.recompiled = str(getattr(metrics, "recompile_reason", None) or compilation.recompiled)
            if metrics.fail_reason and not compilation.graph:
                compilation.failed = _first_line(metrics.fail_reason)

    def _take_breaks(self) -> None:
        from torch._dynamo.output_graph import graph_break_reasons

        if len(graph_break_reasons) < self._num_breaks:  # torch was reset
            self._num_breaks = 0
        new, self._num_breaks = graph_break_reasons[self._num_breaks:], len(graph_break_reasons)
        if not new or not self._found:
            return
        breaks = [graph_break(r) for r in new]
        self._found[-1].breaks += breaks
        for one in breaks:
            _BREAKS.info("%s: %s%s", one.place or "a place not known", one.reason, f" at {one.line_text}" if one.line_text else "")
            _BREAKS.debug("%s", one.advice)


def graph_break(told: Any) -> GraphBreak:
    """A break as torch records it (`GraphCompileReason`)."""
    lines = [line.strip() for line in str(told.reason).splitlines() if line.strip()]
    explanations = [line for line in lines[1:] if line.startswith(("Explanation:", "Hint:"))][:2]
    frames = list(told.user_stack or ())
    own = [f for f in frames if not f.filename.startswith(_TORCH)] or frames
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    return GraphBreak(lines[0] if lines else "", " ".join(explanations), place, (own[-1].line or "").strip() if own else "")


def input_names(gm: torch.fx.GraphModule, found: Compilation | None = None) -> Iterator[str]:
    """The user's name of every input of dynamo's graph: a parameter's path, an argument's name; torch's own name where there is none."""
    root = found.roots[0]() if found is not None and found.roots else None
    parameters = () if root is None else root.co_varnames[1:root.co_argcount]
    for node in gm.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        name = getattr(source, "name", "")
        yield user_name(str(name() if callable(name) else name), parameters) or str(node.name)


def user_name(source: str, parameters: Sequence[str] = ()) -> str:
    """A source of dynamo in the user's words: "L['self']._modules['layers']._modules['0'].weight" is "layers.0.weight".

    parameters: of the forward method of a module that torch calls with arguments by number.
    """
    by_number = re.match(r"L\['args'\]\[(\d+)\]", source)
    if by_number is not None and int(by_number[1]) < len(parameters):
        source = parameters[int(by_number[1])] + source[by_number.end():]
    name = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", source)
    name = re.sub(r"^L\['(?:self|fn)'\]\.?(?=.)", "", name)
    name = re.sub(r"^L\['kwargs'\]\['([^']*)'\]", r"\1", name)
    return re.sub(r"^[LG]\['([^']*)'\]", r"\1", name)


def contexts_of(compiled: Any) -> list[Any]:
    """Contexts of torch.compile behind an object: a compiled module, function or method, a module compiled in place, a module that contains
    such modules. Empty where there are none."""
    context_by_id: dict[int, Any] = {}
    for one in (compiled, *(compiled.modules() if isinstance(compiled, torch.nn.Module) else ())):
        for context in _own_contexts(one):
            context_by_id.setdefault(id(context), context)
    return list(context_by_id.values())


def _own_contexts(compiled: Any) -> Iterator[Any]:
    context = vars(compiled).get("dynamo_ctx") if isinstance(compiled, torch.nn.Module) else None
    if context is not None:
        yield context
    call = getattr(compiled, "_compiled_call_impl", None) if isinstance(compiled, torch.nn.Module) else compiled
    call = getattr(call, "__func__", call)
    if hasattr(call, "_torchdynamo_orig_callable"):
        kind = torch._dynamo.eval_frame._TorchDynamoContext
        yield from (c for c in (_content(cell) for cell in getattr(call, "__closure__", None) or ()) if isinstance(c, kind))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def root_of_call(compiled: Any) -> tuple[CodeType | None, Any]:
    """Code of the function behind a compiled object, and its module or instance; None where there is none."""
    if isinstance(compiled, torch.nn.Module):
        module = getattr(compiled, "_orig_mod", compiled)
        return getattr(module.forward, "__code__", None), module
    instance = getattr(compiled, "__self__", None)
    function = getattr(compiled, "__func__", compiled)
    while (inner := getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "__wrapped__", None)) is not None:
        instance = getattr(inner, "__self__", instance)
        function = getattr(inner, "__func__", inner)
    if isinstance(function, torch.nn.Module):
        return root_of_call(function)
    return getattr(function, "__code__", None), instance


def is_found_by(made: Compilation, compiled: Any, context: Any) -> bool:
    """Whether calls of an object use code that was compiled for another one: torch's guards on the object hold.

    Guards on arguments are not evaluated: a call's arguments are unknown here.
    """
    root, instance = root_of_call(compiled)
    code = None if made.code is None else made.code()
    if root is None or code is None or all(ref() is not root for ref in made.roots):
        return False
    entry = cache_entry(made)
    if entry is None or not _same_backend(entry, context):
        return False
    return instance is None or _holds(entry.guard_manager.root, instance)


def cache_entry(made: Compilation) -> Any:
    """Torch's cached code of a compilation; None where it has none any more."""
    code = None if made.code is None else made.code()
    if code is None:
        return None
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return next((e for e in _debug_get_cache_entry_list(code) if str(getattr(e, "compile_id", "")) == made.compile_id), None)


def is_kept(made: Compilation) -> bool:
    """Whether torch still has the compiled code: it forgets it at a reset and above its limit."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    code = None if made.code is None else made.code()
    if not made.compile_id or code is None:
        return False
    compile_ids = [getattr(e, "compile_id", None) for e in _debug_get_cache_entry_list(code)]
    return None in compile_ids or made.compile_id in map(str, compile_ids)


def _same_backend(entry: Any, context: Any) -> bool:
    from torch._dynamo.eval_frame import innermost_backend

    try:
        return bool(entry.backend == innermost_backend(context.callback))
    except AttributeError:  # a torch that tells no backend
        return True


def _holds(manager: Any, instance: Any) -> bool:
    """Whether the guards below a manager that concern only the instance hold. Guards that cannot be evaluated count as holding."""
    source = str(manager.get_source())
    if source.startswith(("L['self']", "L['fn']")):
        try:
            value = eval(source, {"__builtins__": {}}, {"L": {"self": instance, "fn": instance}})
        except (LookupError, AttributeError):
            return False
        except (SyntaxError, NameError, TypeError, ValueError, RuntimeError):  # a source that is no expression, or needs other names
            return True
        if not all(guard(value) for guard in manager.get_leaf_guards() if callable(guard)):
            return False
    return all(_holds(child, instance) for child in manager.get_child_managers())


def _surroundings() -> tuple[CodeType | None, list[Any], list[CodeType], list[str]]:
    """The code that torch compiles now, the contexts of the calls that caused it, and code and names of the functions that these call."""
    from torch._dynamo.eval_frame import _TorchDynamoContext

    code: CodeType | None = None
    contexts: list[Any] = []
    roots: list[CodeType] = []
    callers: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if code is None and name.endswith("convert_frame.py"):
            code_local = frame.f_locals.get("code")
            code = code_local if isinstance(code_local, CodeType) else None
        elif name.endswith("eval_frame.py") and isinstance(context := frame.f_locals.get("self"), _TorchDynamoContext):
            contexts.append(context)
            called: Any = frame.f_locals.get("fn")
            whole = getattr(called, "__name__", "") in ("__call__", "_call_impl", "_wrapped_call_impl")
            root, instance = root_of_call(called.__self__ if whole and hasattr(called, "__self__") else called)
            entry = getattr(getattr(called, "__func__", called), "__code__", None)
            roots += [c for c in (root, entry) if c is not None]
            is_module = isinstance(instance, torch.nn.Module) and (whole or entry is None or entry.co_filename.startswith(_TORCH))
            callers.append(f"{type(instance).__name__}.forward" if is_module else str(getattr(called, "__qualname__", "")))
        frame = frame.f_back
    return code, contexts, roots, callers


def _recompile_reason() -> str:
    """The reason why torch recompiles the current frame; "" for a first compile."""
    from torch._dynamo.utils import get_metrics_context

    metrics = getattr(get_metrics_context(), "_metrics", {})
    return str(metrics.get("recompile_reason") or "") if isinstance(metrics, dict) else ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")


RECORDS = Records()
