"""The peers of a comparison: frameworks that run the same model, tilefuse without fusion, and the definition of the graph.

A peer is a callable without arguments: one run of the model on the inputs of the comparison, as a flat list of tensors. The reference
is the same model in f64: by torch with every float type replaced, else by the definition of the graph that tilefuse imported.
"""
from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilefuse.base.errors import CompilerError, OptionError, UnsupportedError, nearest
from tilefuse.driver.compare.meaning import as_array, results_of
from tilefuse.driver.compile import compile_model, import_model
from tilefuse.driver.model import restore
from tilefuse.driver.torch.model import TRACING_ERRORS
from tilefuse.frontends.imported import Imported
from tilefuse.ir.graph import Graph

Run = Callable[[], list[torch.Tensor]]
# Peers by the kind of model that they can run.
PEERS: Mapping[str, tuple[str, ...]] = {
    "torch": ("eager", "inductor", "unfused", "interpreter"),
    "onnx": ("onnxruntime", "unfused", "interpreter"),
    "graph": ("interpreter", "unfused"),
    "saved": ()}
MEANING_OF_PEER: Mapping[str, str] = {
    "eager": "the torch model as it is", "inductor": "torch.compile with its own backend", "onnxruntime": "the ONNX model in onnxruntime",
    "unfused": "tilefuse, every operator a kernel of its own", "interpreter": "the definition of the imported graph, in its own types"}
LOW_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Subject:
    """The model of a comparison with the inputs of one call.

    kind        "torch", "onnx", "graph", or "saved" (a program without its model)
    arguments, named  of a call, on the device; inputs: the tensors among them by the program's own names of its inputs
    told        the same tensors by the source's names (those of ONNX)
    shapes, options  those that the program was compiled with
    tf32        whether torch is set to allow tf32 for one of the program's library calls
    """

    kind: str
    model: Any
    arguments: Sequence[Any]
    named: Mapping[str, Any]
    inputs: Mapping[str, torch.Tensor]
    told: Mapping[str, torch.Tensor]
    device: torch.device
    shapes: Mapping[str, Sequence[int]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    tf32: bool = False

    def fresh(self) -> tuple[list[Any], dict[str, Any]]:
        """Copies of the call's arguments: a model may write into them."""
        own: tuple[list[Any], dict[str, Any]] = pytree.tree_map_only(torch.Tensor, torch.clone, (list(self.arguments), dict(self.named)))
        return own


def kind_of(model: Any) -> str:
    """The kind of a model, by its type. None stands for a saved program."""
    if model is None:
        return "saved"
    if isinstance(model, Graph | Imported):
        return "graph"
    return "onnx" if isinstance(model, str | bytes | Path) or type(model).__name__ == "ModelProto" else "torch"


def require_peer(name: str, kind: str) -> None:
    """Raises: OptionError for a peer that no such model has, with those that it has."""
    if name in PEERS[kind]:
        return
    has = ", ".join(PEERS[kind])
    what = {"torch": "a torch model", "onnx": "an ONNX model", "graph": "a graph in text form",
            "saved": "a saved program, which does not hold its model,"}[kind]
    if name in MEANING_OF_PEER:
        files = "another MODEL, or an .npz file of results"
        raise OptionError(f"{what} cannot be compared with {name}", hint=f"with {has}, {files}" if has else f"with {files}")
    raise OptionError(f"there is nothing called {name!r} to compare with",
                      hint=nearest(name, MEANING_OF_PEER) or f"{', '.join(MEANING_OF_PEER)}, another MODEL, or an .npz file of results")


def peer(name: str, subject: Subject) -> Run:
    """The peer of this name; its first run compiles it if necessary.

    Raises: OptionError for a peer that the model does not have; UnsupportedError where its package is missing.
    """
    require_peer(name, subject.kind)
    match name:
        case "eager":
            return partial(_run_torch, subject.model, subject)
        case "inductor":
            return partial(_run_torch, torch.compile(subject.model, backend="inductor", dynamic=False), subject)
        case "onnxruntime":
            return _onnxruntime(subject)
        case "unfused":
            return _unfused(subject)
    return partial(_interpreted, subject, False)


def flat_tensors(outputs: Any) -> list[torch.Tensor]:
    """All tensors of a model's outputs, in any structure."""
    return [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


def _run_torch(model: Callable[..., Any], subject: Subject) -> list[torch.Tensor]:
    with torch.no_grad():
        return flat_tensors(model(*subject.arguments, **subject.named))


def _unfused(subject: Subject) -> Run:
    options = {**subject.options, "fuse": False, "plan": "", "template": ""}
    examples = tuple(subject.arguments) if subject.kind == "torch" else None
    place = "host" if subject.device.type == "cpu" else str(subject.device)
    model = compile_model(subject.model, examples, device=place, shapes=subject.shapes,
                          example_kwargs=dict(subject.named) or None if subject.kind == "torch" else None, **options)

    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            return flat_tensors(model(*subject.arguments, **subject.named))

    return run


def _onnxruntime(subject: Subject) -> Run:
    try:
        import onnxruntime
    except ImportError as cause:
        raise UnsupportedError("onnxruntime is not installed in this environment", hint="pip install onnxruntime (onnxruntime-gpu for "
                               "CUDA), or compare with unfused or interpreter") from cause
    from tilefuse.frontends.onnx.model import input_names, load_model

    proto = load_model(subject.model)[0]
    gpu = subject.device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    data = str(subject.model) if isinstance(subject.model, str | Path) else proto.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(data, settings, providers=["CUDAExecutionProvider"] if gpu else ["CPUExecutionProvider"])
    except _refusals_of(onnxruntime) as cause:
        raise UnsupportedError(f"onnxruntime does not take the model: {str(cause).splitlines()[0]}",
                               hint="compare with unfused or interpreter") from cause
    feeds = {name: _fed(name, subject, proto) for name in input_names(proto)}

    def run() -> list[torch.Tensor]:
        return [torch.from_numpy(r.copy()) for r in session.run(None, feeds)]

    return run


def _refusals_of(onnxruntime: Any) -> tuple[type[BaseException], ...]:
    """The errors of onnxruntime, which have no class in common."""
    own = vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
    return (RuntimeError, *(kind for kind in own if isinstance(kind, type) and issubclass(kind, BaseException)))


def _fed(name: str, subject: Subject, proto: Any) -> Any:
    """The array of one ONNX input; zeros for an unused input.

    Raises: UnsupportedError for a type that NumPy lacks.
    """
    import numpy as np

    from tilefuse.frontends.onnx.model import element_dtype, input_shapes
    from tilefuse.ir.scalar import NUMPY_DTYPES

    if name not in subject.told:
        declared = next(i for i in proto.graph.input if i.name == name)
        kind = element_dtype(declared.type.tensor_type.elem_type, f"input {name!r}")
        initializers = frozenset(t.name for t in proto.graph.initializer)
        return np.zeros(input_shapes(proto, subject.shapes or {}, initializers)[name], NUMPY_DTYPES[kind.name])
    array = as_array(subject.told[name])
    if array.dtype.kind not in "fiub":
        raise UnsupportedError(f"onnxruntime takes inputs as arrays of NumPy, which have no {array.dtype} (input {name!r})",
                               hint="compare with unfused or interpreter")
    return array


def _interpreted(subject: Subject, wide: bool) -> list[torch.Tensor]:
    """The outputs by the definition of the imported graph, in its own types or in f64."""
    examples = tuple(subject.arguments) if subject.kind == "torch" else None
    imported = import_model(subject.model, examples, shapes=subject.shapes,
                            example_kwargs=dict(subject.named) if subject.kind == "torch" and subject.named else None)
    arrays: dict[str, Any] = {name: as_array(t) for name, t in subject.inputs.items()} | dict(imported.constants)
    results = results_of(imported.graph, arrays, wide)
    if not imported.outputs:
        return results
    flat = pytree.tree_leaves((tuple(subject.arguments), dict(subject.named)))
    return flat_tensors([restore(o, results, flat) for o in imported.outputs])


class _Doubled(TorchDispatchMode):
    """Every operator that names a smaller float type gets f64 instead."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide = pytree.tree_map_only(torch.dtype, lambda d: torch.float64 if d in LOW_FLOATS else d, (args, kwargs or {}))
        return func(*wide[0], **wide[1])


@contextlib.contextmanager
def _as_defined() -> Iterator[None]:
    """Inside, torch's fast path for encoder layers is off: on a GPU it replaces GELU by its tanh approximation, in f64 too."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def reference(subject: Subject) -> tuple[list[torch.Tensor] | None, bool, str]:
    """(the outputs in f64, whether they are independent of tilefuse, how they were computed or the reason why there are none)."""
    if subject.kind == "torch":
        try:
            with _Doubled(), _as_defined(), torch.no_grad():
                model = copy.deepcopy(subject.model).double() if isinstance(subject.model, torch.nn.Module) else subject.model
                arguments, named = pytree.tree_map_only(torch.Tensor, _double, subject.fresh())
                outputs = flat_tensors(model(*arguments, **named))
            return outputs, True, "the torch model in f64"
        except (*TRACING_ERRORS, NotImplementedError) as error:
            refusal = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    else:
        refusal = ""
    if subject.kind == "saved":
        return None, False, "a saved program does not hold its model"
    try:
        definition = "the definition of the imported graph in f64"
        return _interpreted(subject, True), False, definition + (f" (torch refuses f64: {refusal})" if refusal else "")
    except (CompilerError, MemoryError) as error:
        return None, False, f"no reference in f64: {str(error).partition(chr(10))[0]}"


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype in LOW_FLOATS else tensor
