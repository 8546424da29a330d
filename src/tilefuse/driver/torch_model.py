"""A torch module, function or exported program as a graph, with what its results are put together from.

Modules and functions are recorded in one run (`frontends/torch_trace.py`); what that cannot record, torch.export traces, or says why not.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilefuse.base import trace
from tilefuse.base.errors import UserError
from tilefuse.frontends.imported import Imported

if TYPE_CHECKING:
    from tilefuse.driver.torch_arguments import Arguments


@dataclass(frozen=True, slots=True)
class TorchModel:
    """The graph, how calls' arguments become its inputs, the pytree structure of the results, and the device on which inputs and
    weights lie ("host" or CUDA's name)."""

    imported: Imported
    arguments: Arguments
    out_spec: Any
    place: str


def import_torch(model: Any, example_inputs: Sequence[Any] | None) -> TorchModel:
    """The graph of a module or function for inputs like these, or of an exported program.

    Raises: UserError for what is none of these, or without example inputs; errors of the frontend and of torch.export.
    """
    from tilefuse.driver.torch_arguments import Arguments

    if type(model).__name__ == "ExportedProgram":
        return _exported(model, "exportedprogram", Arguments(None, *_exported_for(model)))
    import torch

    if not isinstance(model, torch.nn.Module) and not callable(model):
        raise UserError(f"cannot compile what is of type {type(model).__name__}",
                        hint="give an ONNX file, a torch.nn.Module or function with example inputs, or a tilefuse graph")
    if example_inputs is None:
        raise UserError("a torch model is compiled for the shapes of its example inputs, and none were given",
                        hint="tilefuse.compile(model, (x, y))")
    given = tuple(example_inputs) if isinstance(example_inputs, list | tuple) else (example_inputs,)
    name = model_name(model)
    arguments = Arguments(model, given)
    return _traced(model, given, name, arguments) or _exported(_export(model, given), name, arguments)


def model_name(model: Any) -> str:
    """A name for the graph of a torch model: the function's or the class's."""
    found = getattr(model, "__name__", type(model).__name__)
    return "".join(c if c.isalnum() else "_" for c in str(found)).strip("_").lower() or "model"


def _traced(model: Callable[..., Any], given: tuple[Any, ...], name: str, arguments: Arguments) -> TorchModel | None:
    """The model as one run over stand-ins shows it; None where it takes torch.export, which then also says what is wrong."""
    from tilefuse.frontends.torch_fx import import_traced
    from tilefuse.frontends.torch_trace import NOT_THIS_WAY
    from tilefuse.frontends.torch_trace import trace as record

    try:
        found = record(model, given)
    except NOT_THIS_WAY as reason:
        trace.current().event("by torch.export", "frontend", model=name, reason=f"{type(reason).__name__}: {reason}"[:400])
        return None
    stand_ins = (n.meta["val"] for n in found.graph.nodes if n.op == "placeholder" and n.name not in found.held)
    return TorchModel(import_traced(found, name), arguments, found.out_spec, _place([*found.held.values(), *stand_ins]))


def _export(model: Any, given: tuple[Any, ...]) -> Any:
    import torch

    module = model if isinstance(model, torch.nn.Module) else _as_module(model)
    with torch.no_grad():
        return torch.export.export(module, _told_apart(given))


def _told_apart(given: tuple[Any, ...]) -> Any:
    """Arguments of which no two are one tensor: torch.export would take those for one input, which later calls need not repeat."""
    import torch
    from torch.utils import _pytree as pytree

    seen: set[int] = set()

    def own(tensor: Any) -> Any:
        known = id(tensor) in seen
        seen.add(id(tensor))
        return tensor.detach() if known else tensor

    return pytree.tree_map_only(torch.Tensor, own, given)


def _as_module(function: Callable[..., Any]) -> Any:
    """A module whose forward is `function` (torch.export takes modules only)."""
    import torch

    class Function(torch.nn.Module):
        def forward(self, *arguments: Any) -> Any:
            return function(*arguments)

    return Function()


def _exported(program: Any, name: str, arguments: Arguments) -> TorchModel:
    from tilefuse.frontends.torch_decompositions import decompositions, is_taken_apart
    from tilefuse.frontends.torch_fx import import_exported

    apart = program if is_taken_apart(program) else program.run_decompositions(decompositions())
    tensors = [*program.state_dict.values(), *(n.meta["val"] for n in program.graph.nodes if n.op == "placeholder")]
    return TorchModel(import_exported(apart, name), arguments, program.call_spec.out_spec, _place(tensors))


def _exported_for(program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments like those that a program was exported for, tensors without their extents: it need not hold its example inputs."""
    import torch
    from torch.export.graph_signature import InputKind
    from torch.utils import _pytree as pytree

    specs = [s.arg for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    leaves = [arg.value if hasattr(arg, "value") else torch.empty(()) for arg in specs]
    examples, named = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return examples, named


def _place(tensors: Iterable[Any]) -> str:
    return next((str(t.device) for t in tensors if getattr(t, "is_cuda", False)), "host")
