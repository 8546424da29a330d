"""A torch module, function or exported program as a graph, with the parts from which its results are assembled.

Modules and functions are recorded in one run (`frontends/torch/trace.py`); where that fails, torch.export traces them or gives the reason.
"""
from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tilefuse.base import trace
from tilefuse.base.errors import CompilerError, UnsupportedError, UserError
from tilefuse.frontends.imported import Imported

if TYPE_CHECKING:
    from tilefuse.driver.torch.arguments import Arguments


@dataclass(frozen=True, slots=True)
class TorchModel:
    """The graph, the mapping from calls' arguments to its inputs, the pytree structure of the results, and the device of inputs and weights
    ("host" or CUDA's name)."""

    imported: Imported
    arguments: Arguments
    out_spec: Any
    place: str


# Errors that a model, torch's recording of it, or torch.export raises where the model or its inputs are wrong, or do not fit each other.
TRACING_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, ImportError, LookupError, ArithmeticError)
# Loggers on which torch repeats the message of a failed trace's error.
TRACING_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch._export.non_strict_utils",
                   "torch.export._trace")


def import_torch(model: Any, example_inputs: Sequence[Any] | None, example_kwargs: Mapping[str, Any] | None = None) -> TorchModel:
    """The graph of a module or function for inputs like these, or of an exported program. NumPy's arrays stand for tensors.

    Raises: UserError for another kind of object, without example inputs, or for inputs that do not fit its parameters; the model's own
    errors for its example inputs; UnsupportedError where neither way records it; errors of the frontend.
    """
    from tilefuse.driver.torch.arguments import Arguments, as_tensors, bound
    from tilefuse.frontends.torch.decompositions import whole_resamplings

    if type(model).__name__ == "ExportedProgram":
        return _exported(model, "exportedprogram", Arguments(None, *_exported_for(model)))
    import torch

    if not isinstance(model, torch.nn.Module) and not callable(model):
        raise UserError(f"cannot compile an object of type {type(model).__name__}",
                        hint="give an ONNX file, a torch.nn.Module or function with example inputs, or a tilefuse graph")
    if example_inputs is None and example_kwargs is None:
        raise UserError("a torch model is compiled for the shapes of its example inputs, and none were given",
                        hint="tilefuse.compile(model, (x, y)), or example_kwargs={'x': x}")
    listed = tuple(example_inputs) if isinstance(example_inputs, list | tuple) else () if example_inputs is None else (example_inputs,)
    tensors, named = as_tensors(bound(model, listed, dict(example_kwargs or {})))
    name = model_name(model)
    arguments = Arguments(model, tensors, named)
    try:
        with _quiet(), whole_resamplings():
            traced = None if named else _traced(model, tensors, name, arguments)
            return traced or _exported(_export(model, tensors, named), name, arguments)
    except CompilerError as error:
        if not isinstance(error.__cause__, TRACING_ERRORS):
            raise
        failure: Exception = error
    except TRACING_ERRORS as error:
        failure = error
    require_runs(model, tensors, named)
    raise failure


def require_runs(model: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Runs the model as torch does, after tracing it or calling its program failed.

    Raises: the model's own error, if it has one: then the model or its inputs are at fault, and not the tracing.
    """
    import torch

    try:
        with torch.no_grad():
            model(*given, **named)
    except TRACING_ERRORS as error:
        error.add_note("the model raises this in torch as well, for the same inputs")
        raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides torch's own reports of a failed trace from the terminal: the error carries the same message."""
    captured = io.StringIO()
    loggers = [logging.getLogger(name) for name in TRACING_LOGGERS]
    for logger in loggers:
        logger.addFilter(_refuse)
    try:
        with contextlib.redirect_stderr(captured):
            yield
        if captured.getvalue():
            sys.stderr.write(captured.getvalue())  # of the model's own
    finally:
        for logger in loggers:
            logger.removeFilter(_refuse)


def _refuse(record: logging.LogRecord) -> bool:
    return False


def model_name(model: Any) -> str:
    """A name for the graph of a torch model: the function's or the class's."""
    raw_name = getattr(model, "__name__", type(model).__name__)
    return "".join(c if c.isalnum() else "_" for c in str(raw_name)).strip("_").lower() or "model"


def _traced(model: Callable[..., Any], inputs: tuple[Any, ...], name: str, arguments: Arguments) -> TorchModel | None:
    """The model as recorded in one run over fake tensors; None where it needs torch.export, which then also reports errors."""
    from tilefuse.frontends.torch.fx import import_traced
    from tilefuse.frontends.torch.trace import NOT_THIS_WAY
    from tilefuse.frontends.torch.trace import trace as record

    try:
        recorded = record(model, inputs)
    except NOT_THIS_WAY as reason:
        trace.current().event("by torch.export", "frontend", model=name, reason=f"{type(reason).__name__}: {reason}"[:400])
        return None
    stand_ins = (n.meta["val"] for n in recorded.graph.nodes if n.op == "placeholder" and n.name not in recorded.held)
    return TorchModel(import_traced(recorded, name), arguments, recorded.out_spec, _place([*recorded.held.values(), *stand_ins]))


def _export(model: Any, tensors: tuple[Any, ...], named: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The model as torch.export traces it. Raises: UnsupportedError where it cannot."""
    import torch

    module = model if isinstance(model, torch.nn.Module) else _as_module(model)
    arguments, keywords = _told_apart((tensors, dict(named)))
    try:
        with torch.no_grad():
            return torch.export.export(module, arguments, keywords)
    except TRACING_ERRORS as cause:
        said = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
        raise UnsupportedError(f"torch.export cannot trace {model_name(model)}: {type(cause).__name__}: {said}",
                               hint="torch.compile(model, backend='tilefuse') splits a model where it cannot be traced") from cause


def _told_apart(arguments: tuple[Any, ...]) -> Any:
    """Arguments in which no two are the same tensor: torch.export would make one input of both, and later calls need not pass equal
    ones."""
    import torch
    from torch.utils import _pytree as pytree

    seen: set[int] = set()

    def own(tensor: Any) -> Any:
        known = id(tensor) in seen
        seen.add(id(tensor))
        return tensor.detach() if known else tensor

    return pytree.tree_map_only(torch.Tensor, own, arguments)


def _as_module(function: Callable[..., Any]) -> Any:
    """A module whose forward is `function` (torch.export takes modules only)."""
    import torch

    class Function(torch.nn.Module):
        def forward(self, *arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

    return Function()


def _exported(program: Any, name: str, arguments: Arguments) -> TorchModel:
    from tilefuse.frontends.torch.decompositions import decompositions, is_taken_apart, whole_resamplings
    from tilefuse.frontends.torch.fx import import_exported

    with whole_resamplings():  # the program may come from a file
        apart = program if is_taken_apart(program) else program.run_decompositions(decompositions())
    tensors = [*program.state_dict.values(), *(n.meta["val"] for n in program.graph.nodes if n.op == "placeholder")]
    return TorchModel(import_exported(apart, name), arguments, program.call_spec.out_spec, _place(tensors))


def _exported_for(program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments like those that a program was exported for, with tensors without extents: it need not store its example inputs."""
    import torch
    from torch.export.graph_signature import InputKind
    from torch.utils import _pytree as pytree

    specs = [s.arg for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    leaves = [arg.value if hasattr(arg, "value") else torch.empty(()) for arg in specs]
    examples, named = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return examples, named


def _place(tensors: Iterable[Any]) -> str:
    return next((str(t.device) for t in tensors if getattr(t, "is_cuda", False)), "host")
