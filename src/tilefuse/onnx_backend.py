"""The standard ONNX backend interface over tilefuse: `onnx.backend.test.BackendTest` and other tools can drive it.

Inputs whose data decides a shape are specialised on when a prepared model runs: one import for every distinct data.
An operator that cannot be expressed is a `unittest.SkipTest` for the test runner and an `UnsupportedOpError` for everyone else.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from tilefuse.base.errors import UnsupportedDeviceError, UnsupportedError, UnsupportedOpError, UserError
from tilefuse.frontends.imported import Imported
from tilefuse.frontends.onnx.call import ValueNeededError
from tilefuse.frontends.onnx.importer import import_onnx
from tilefuse.frontends.onnx.model import static_extent
from tilefuse.ir.graph import Node
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES, walk
from tilefuse.ir.scalar import Call as ScalarCall

# An input may be specialised on when it is no larger than this: shapes, axes, paddings, scales. Units: elements
SPECIALISED_LIMIT = 64
EXECUTORS = ("interpret", "host")


class UnsupportedModel(unittest.SkipTest, UnsupportedOpError):
    """A model that tilefuse cannot express: test runners skip it, everyone else sees operator, opset and reason."""

    def __init__(self, message: str, where: object = None, hint: str | None = None) -> None:
        UnsupportedOpError.__init__(self, message, where=None if where is None else str(where), hint=hint)


class PreparedModel(BackendRep):
    """A model ready to run. Its graph is made at once, or when data that decides shapes is there.

    random: whether operators that draw random numbers are let through; no reference output can be compared with theirs.
    """

    def __init__(self, model: onnx.ModelProto, executor: str, random: bool = False) -> None:
        if executor not in EXECUTORS:
            raise UserError(f"unknown executor {executor!r}", hint=f"known: {', '.join(EXECUTORS)}")
        self.model = model
        self.executor = executor
        self.random = random
        held = {t.name for t in model.graph.initializer}
        self.defaults = held & {i.name for i in model.graph.input}  # inputs that have a value where none is given
        self.input_names = [i.name for i in model.graph.input if i.name not in held]
        self.output_names = [o.name for o in model.graph.output]
        self.specialised: tuple[str, ...] = ()
        self.made: dict[tuple[object, ...], tuple[Imported, Any]] = {}
        if not any(_is_dynamic(i) for i in model.graph.input if i.name not in held):
            try:
                self._make({}, {})
            except ValueNeededError as needed:
                self.specialised = needed.inputs

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Results for `inputs`: a sequence in the order of the model's inputs, or a mapping by name."""
        feeds = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(self.input_names, inputs))
        for name, value in feeds.items():
            if not isinstance(value, np.ndarray) and not np.isscalar(value):
                raise UnsupportedModel(f"input {name!r} is no tensor")
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        self.specialised = tuple(sorted({*self.specialised, *(self.defaults & set(arrays))}))
        imported, program = self.specialise(arrays)
        results = execute(imported, program, self.graph_arguments(arrays))
        return tuple(namedtupledict("Outputs", self.output_names)(*results))

    def graph_arguments(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The inputs that the graph still has, in order."""
        return [arrays[name] for name in self.input_names if name not in self.specialised]

    def specialise(self, arrays: Mapping[str, np.ndarray]) -> tuple[Imported, Any]:
        """The graph (and the program) for inputs of these shapes, with the data of those that decide shapes.

        Raises: UnsupportedModel when too much data decides shapes, or an operator cannot be expressed.
        """
        while True:
            try:
                return self._make(arrays, {name: arrays[name] for name in self.specialised if name in arrays})
            except ValueNeededError as needed:
                large = [name for name in needed.inputs if arrays[name].size > SPECIALISED_LIMIT]
                if large or not needed.inputs or set(needed.inputs) <= set(self.specialised):
                    raise UnsupportedModel(needed.message, needed.where) from needed
                self.specialised = tuple(sorted({*self.specialised, *needed.inputs}))

    def _make(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> tuple[Imported, Any]:
        shapes = {name: array.shape for name, array in arrays.items() if name not in values}
        key = (tuple(sorted(shapes.items())), tuple((name, a.shape, a.tobytes()) for name, a in sorted(values.items())))
        if key not in self.made:
            try:
                imported = import_onnx(self.model, shapes, values)
            except UnsupportedError as cause:
                raise UnsupportedModel(cause.message, cause.where, cause.hint) from cause
            if not self.random and draws_random_numbers(imported):
                ops = ", ".join(
                    sorted({f"{n.op_type} (opset {o.version})" for n in self.model.graph.node for o in self.model.opset_import[:1]})
                )
                raise UnsupportedModel(f"ONNX operator {ops}: its result is drawn at random", hint="prepare(model, random=True) runs it")
            self.made[key] = (imported, prepare_program(imported, self.executor))
        return self.made[key]


def draws_random_numbers(imported: Imported) -> bool:
    """Whether the graph's results differ from other implementations by their random numbers alone."""
    calls = (x.fn for node in imported.graph.nodes if node.body is not None for x in walk(node.body) if isinstance(x, ScalarCall))
    return any(fn.startswith("random_") for fn in calls)


def _is_dynamic(item: onnx.ValueInfoProto) -> bool:
    tensor = item.type.tensor_type
    return item.type.WhichOneof("value") == "tensor_type" and (
        not tensor.HasField("shape") or any(static_extent(d) is None for d in tensor.shape.dim)
    )


def prepare_program(imported: Imported, executor: str) -> Any:
    """A compiled program for the executor "host"; None for "interpret"."""
    if executor == "interpret":
        return None
    from tilefuse.driver.compile import compile_imported

    return compile_imported(imported, device="host")


def execute(imported: Imported, program: Any, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results as numpy arrays, in the model's order; `arguments` are the inputs of the graph in order."""
    named = {name: a for name, a in zip(imported.arguments, arguments) if name is not None}
    if program is None:
        constants = {name: np.asarray(data) for name, data in imported.constants.items()}
        return [np.asarray(a) for a in interpret(imported.graph, {**named, **constants}, framework_call)]
    given = [named[i.name] for i in imported.graph.inputs if not i.constant]
    return [as_array(t) for t in program(*(as_tensor(a) for a in given))]


def framework_call(node: Node, operands: list[np.ndarray]) -> list[np.ndarray]:
    """A library node that the interpreter gives no meaning to, performed by the framework."""
    from tilefuse.runtime.calls.library import call_library

    return [as_array(t) for t in call_library(node.detail, [as_tensor(a) for a in operands], dict(node.attributes))]


def as_tensor(array: np.ndarray) -> Any:
    """The torch tensor of an array, also of types that numpy has from ml_dtypes only."""
    import torch

    from tilefuse.runtime.calls.arguments import NUMPY_EXTENSIONS
    from tilefuse.runtime.calls.library import TORCH_DTYPES

    name = next(n for n, d in NUMPY_DTYPES.items() if d == array.dtype)
    dense = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.name in NUMPY_EXTENSIONS:
        words = np.dtype(f"u{array.dtype.itemsize}")
        return torch.from_numpy(dense.view(words)).view(TORCH_DTYPES[name])
    return torch.from_numpy(dense if dense.flags.writeable else dense.copy())


def as_array(tensor: Any) -> np.ndarray:
    """The numpy array of a CPU tensor; the inverse of `as_tensor`."""
    import torch

    from tilefuse.runtime.calls.arguments import NUMPY_EXTENSIONS
    from tilefuse.runtime.calls.library import DTYPE_NAMES

    plain = tensor.detach().cpu().contiguous()
    wanted = NUMPY_DTYPES[DTYPE_NAMES[plain.dtype]]
    if wanted.name in NUMPY_EXTENSIONS:
        plain = plain.view({1: torch.uint8, 2: torch.uint16}[wanted.itemsize])
        return np.asarray(plain.numpy()).view(wanted)
    return np.asarray(plain.numpy())


class TilefuseBackend(Backend):
    """The interface's entry points. `executor="interpret"` runs the reference interpreter, `"host"` compiled host code."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be expressed, as far as can be told without its inputs' data."""
        try:
            PreparedModel(model, "interpret", random=True)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", executor: str = "interpret", random: bool = False, **kwargs: Any
    ) -> PreparedModel:
        """The model, ready to run; `random` lets operators through that draw random numbers.

        Raises: UnsupportedModel naming operator, opset and reason; UserError for an invalid model.
        """
        if not cls.supports_device(device):
            raise UnsupportedDeviceError(f"device {device} is not supported by the ONNX backend", hint="use CPU")
        return PreparedModel(model, executor, random)

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        """Results of one node on `inputs` (a sequence, one array an operand)."""
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        names = [name for name in node.input if name]
        arrays = [np.asarray(a) for a in inputs]
        given = [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in zip(names, arrays)
        ]
        made = [onnx.helper.make_empty_tensor_value_info(n) for n in node.output if n]
        graph = onnx.helper.make_graph([node], node.op_type, given, made)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, opset)])
        return cls.prepare(onnx.shape_inference.infer_shapes(model), device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """CPU only: node tests need no accelerator."""
        return device.split(":")[0] == "CPU"


is_compatible = TilefuseBackend.is_compatible
prepare = TilefuseBackend.prepare
run_model = TilefuseBackend.run_model
run_node = TilefuseBackend.run_node
supports_device = TilefuseBackend.supports_device
