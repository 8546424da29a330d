"""Computing arrays: the graph of the requested arrays, compiled once per structure, run, and its results stored.

A structure is a list of small integers (`structure_of`); programs are stored by it, so computing a known structure costs one visit of its
nodes besides the launch.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tilefuse.arrays.arguments import array_list
from tilefuse.arrays.array import Array, install
from tilefuse.arrays.evaluation.donation import is_used_elsewhere
from tilefuse.arrays.evaluation.followers import follow, variables_of
from tilefuse.arrays.evaluation.nan import checks_nan, find_nan
from tilefuse.arrays.functions.called import CALLED
from tilefuse.arrays.graph import graph_of, structure_of, walking
from tilefuse.arrays.methods import install_functions
from tilefuse.arrays.nodes import Applied, ArrayNode, Source, user_span
from tilefuse.arrays.tracing import is_tracing, value_error
from tilefuse.arrays.types import NAME_OF, as_scalar, integer_range, known_types
from tilefuse.base.bounded import Bounded
from tilefuse.base.errors import SharingError, TypeMismatchError, UserError
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph
from tilefuse.ir.dtype import BOOL, C64, C128, DTYPES, F32, F64, I64, DType
from tilefuse.ir.graph import Type
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.runtime import cuda_api
from tilefuse.runtime.calls.arguments import as_tensor
from tilefuse.runtime.calls.library import COMPLEX_DTYPES, TORCH_DTYPES, as_complex
from tilefuse.runtime.program import Program

# Types that torch does not look up on a CUDA device (torch 2.11: "index_cuda" not implemented for 'UInt16'), and those with as many bits.
_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64, torch.float8_e4m3fn: torch.int8,
         torch.float8_e5m2: torch.int8}
# The types of arrays: those of programs, and complex ones, which programs see as pairs of reals.
TORCH_TYPES: dict[DType, torch.dtype] = {dtype: TORCH_DTYPES[name] for name, dtype in DTYPES.items()}
TORCH_TYPES |= {dtype: COMPLEX_DTYPES[dtype.name] for dtype in (C64, C128)}
_BY_TORCH = {theirs: ours for ours, theirs in TORCH_TYPES.items()}
# Maximum number of programs; above it the oldest is dropped (its kernels stay in the disk cache).
MOST_PROGRAMS = 4096

_programs: Bounded[tuple[object, ...], Program] = Bounded(MOST_PROGRAMS)


def evaluate(*arrays: Array, device: Any = None, keep_history: bool = False, **options: Any) -> Array | tuple[Array, ...]:
    """Computes arrays in one program; they keep their data and give it back. An array that has its data already costs nothing.

    keep_history: remember how they were computed, so that gradients can still be taken through them; otherwise what led to them is
    forgotten (and its memory is free), and they are leaves of everything that follows.
    device: refuses arrays that lie elsewhere. options: fields of `Options`, for this program.
    Raises: UserError for an array that needs a placeholder's value; errors of the compiler.
    """
    for array in arrays:
        if not isinstance(array, Array):
            raise TypeMismatchError(f"evaluate takes arrays, not a {type(array).__name__}", where=user_span(),
                                    hint="evaluate(*arrays)" if isinstance(array, (list, tuple)) else "asarray makes one")
    nodes = [a.node for a in arrays]
    if device is not None:
        target = Evaluation.device_named(device)
        if any(n.device != target for n in nodes):
            raise UserError(f"an array lies on {next(n.device for n in nodes if n.device != target)}, not on {target}", where=user_span(),
                            hint="move it with to_device")
    compute(nodes, options)
    if not keep_history:
        with walking:
            for node in nodes:
                if isinstance(node, Applied):
                    node.operands = ()
    return arrays[0] if len(arrays) == 1 else arrays


def program(*arrays: Array, **options: Any) -> Program:
    """The program that `evaluate` would run for these arrays: `.explain()`, `.source()`, `.kernels`. Nothing is computed.

    options: fields of `Options`.
    Raises: UserError where all of them have their data already; as `evaluate`.
    """
    pending = [a.node for a in array_list(arrays, "program") if a.node.buffer is None]
    if not pending:
        raise UserError("there is nothing left to compute: the arrays have their data", where=user_span(),
                        hint="ask before they are evaluated or printed")
    return program_for(pending, options)[0]


def compute(nodes: Sequence[ArrayNode], options: dict[str, Any] | None = None) -> None:
    """Gives every node without a buffer its value, in one program."""
    by_device: dict[str, list[ArrayNode]] = {}
    for node in dict.fromkeys(nodes):
        if node.buffer is None:
            by_device.setdefault(node.device, []).append(node)
    for pending in by_device.values():
        program, leaves = program_for(pending, options)
        inputs = [leaf.buffer for leaf in leaves]
        if checks_nan():
            find_nan(graph_of([Array(n) for n in pending])[0], inputs, pending[0].device, Options.from_environment())
        taken = {id(buffer) for buffer in inputs}
        results = program(*inputs)
        follow(pending, leaves)
        with walking:
            for node, physical in zip(pending, results, strict=True):
                result = as_complex(physical) if node.type.dtype.is_complex else physical
                if node.buffer is None:  # else another thread computed it meanwhile
                    # Equal values are one result: each array gets a tensor object of its own, so that donating one is seen by the others.
                    node.buffer = result.detach() if id(result) in taken else result
                taken.add(id(result))


def strides_of(buffer: Any) -> tuple[int, ...]:
    """How a program sees a buffer's strides: complex numbers are pairs of reals. Units: elements of the program's type."""
    strides = tuple(buffer.stride())
    return (*(2 * s for s in strides), 1) if buffer.is_complex() else strides


def program_for(nodes: Sequence[ArrayNode], options: dict[str, Any] | None = None) -> tuple[Program, list[ArrayNode]]:
    """The program whose results are these nodes, and the leaves whose buffers are its arguments.

    Requires: all nodes on one device. Raises: UserError for a leaf without data; errors of the compiler.
    """
    device = nodes[0].device
    with walking:
        structure, leaves = structure_of(nodes)
        for leaf in leaves:
            if leaf.buffer is None:
                assert isinstance(leaf, Source)
                if is_tracing():
                    raise value_error("evaluate")
                raise UserError(f"the value of the {leaf.role} {leaf.name or 'without a name'} is needed, and it has none",
                                where=user_span(), hint="feed it: Session().run(fetches, {placeholder: value})")
        key = (structure, device, tuple(sorted(options.items())) if options else ())
        program = _programs.get(key)
        if program is not None:
            return program, leaves
        graph, leaves_again = graph_of([Array(n) for n in nodes])
        assert list(leaves_again) == leaves
    layouts = {i.name: strides_of(leaf.buffer) for i, leaf in zip(graph.inputs, leaves, strict=True)
               if not leaf.buffer.is_contiguous() and 0 not in leaf.buffer.stride()}
    chosen = Options.from_environment().with_overrides(**(options or {}))
    program = _programs.put(key, compile_graph(graph, constants={}, input_layouts=layouts, device=device, options=chosen))
    return program, leaves


class Evaluation:
    """The evaluator of arrays: torch holds the data, programs compute it."""

    @staticmethod
    def compute(nodes: Sequence[ArrayNode]) -> None:
        """Computes nodes, keeping how."""
        compute(nodes)

    @staticmethod
    def default_device() -> str:
        """The GPU that torch has current where there is one, else the host."""
        if cuda_api.has_device() and torch.cuda.is_available():
            return f"cuda:{torch.cuda.current_device()}"
        return "host"

    @staticmethod
    def device_named(given: Any) -> str:
        """The name of a device. Raises: UserError for an unknown one."""
        text = str(given)
        kind, _, number = text.partition(":")
        if kind in ("host", "cpu"):
            return "host"
        if kind != "cuda" or number and not number.isdigit():
            raise UserError(f"there is no device {text!r}", where=user_span(), hint="host, cuda or cuda:<number>")
        if number:
            return text
        return f"cuda:{torch.cuda.current_device() if torch.cuda.is_available() else 0}"

    @staticmethod
    def devices() -> list[str]:
        """The host, and the GPUs that torch sees."""
        return ["host", *(f"cuda:{n}" for n in range(torch.cuda.device_count() if torch.cuda.is_available() else 0))]

    @staticmethod
    def source(data: Any, dtype: DType | None, device: str | None, copy: bool | None) -> Source:
        """A leaf; see `arrays.array.Evaluator`."""
        shared = tensor_of(data, dtype)
        known_dtype = dtype or _known_dtype(shared)
        home = device or (_device_of(shared) if _lies_somewhere(data) else Evaluation.default_device())
        tensor = shared.to(device=_torch_device(home), dtype=TORCH_TYPES[known_dtype])
        moved = tensor is not shared or not _lies_somewhere(data) or _lies_elsewhere(data, shared)
        if copy is False and moved:
            raise SharingError("this data cannot become an array without a copy", where=user_span(), hint="drop copy=False")
        if copy and tensor is shared:
            tensor = tensor.clone()
        return Source(Type(known_dtype, tuple(tensor.shape)), home, tensor)

    @staticmethod
    def moved(node: ArrayNode, device: str, copy: bool) -> Source:
        """A leaf on another device."""
        return Source(node.type, device, node.buffer.to(_torch_device(device), copy=copy))

    @staticmethod
    def is_settled(nodes: Sequence[ArrayNode]) -> bool:
        """Whether all is known but for computing, and follows no variable."""
        pending = [n for n in nodes if n.buffer is None]
        with walking:
            leaves = structure_of(pending)[1] if pending else []
        return not any(n.buffer is None or variables_of(n) for n in (*(n for n in nodes if n.buffer is not None), *leaves))

    @staticmethod
    def elements(buffer: Any, key: tuple[Any, ...]) -> Any:
        """The elements at index tensors."""
        bits = _BITS.get(buffer.dtype)
        return buffer[key] if bits is None else buffer.view(bits)[key].view(buffer.dtype)

    @staticmethod
    def is_lone(buffer: Any) -> bool:
        """Whether the memory is torch's own, and no other tensor lies in it."""
        return not is_used_elsewhere(buffer.untyped_storage())

    @staticmethod
    def host_array(node: ArrayNode) -> np.ndarray[Any, Any]:
        """As numpy; bfloat16 and the 8-bit floats by the types of ml_dtypes."""
        tensor, dtype = node.buffer.detach().cpu(), node.type.dtype
        if dtype.name not in ("bf16", "f8e4m3", "f8e5m2"):
            return np.asarray(tensor.numpy())
        bits = tensor.contiguous().view(torch.int16 if dtype.bits == 16 else torch.int8)
        return np.asarray(bits.numpy()).view(NUMPY_DTYPES[dtype.name])


# A bool is an int to Python, so it comes first.
_KINDS: tuple[tuple[type, DType], ...] = ((bool, BOOL), (int, I64), (float, F32), (complex, C64))


def tensor_of(data: Any, dtype: DType | None = None) -> Any:
    """A torch tensor of data: over its memory where it has some; numbers and nested lists in the default types.

    Raises: TypeMismatchError for data that is no array of numbers; ShapeError is torch's to raise and becomes one.
    """
    if isinstance(data, torch.Tensor):
        if data.layout != torch.strided or data.is_meta:
            layout = "meta" if data.is_meta else str(data.layout).removeprefix("torch.")
            raise TypeMismatchError(f"a {layout} tensor has no elements side by side in memory", where=user_span(),
                                    hint=None if data.is_meta else "x.to_dense() has")
        return data.detach().resolve_conj().resolve_neg()
    number = as_scalar(data)
    if number is not None and not isinstance(data, np.generic):
        kind = next(kind for python, kind in _KINDS if isinstance(number, python))
        return torch.tensor(number, dtype=TORCH_TYPES[_fitting(kind, number, dtype or kind)])
    if isinstance(data, (list, tuple, range)):
        return _of_list(data, dtype)
    if isinstance(data, np.ndarray):
        data = _plain_numpy(data)
    if not hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        data = _of_buffer(data)
        if not isinstance(data, np.ndarray) or data.dtype.kind not in "biufc":
            raise TypeMismatchError(f"a value of type {type(data).__name__} is no array of numbers", where=user_span(),
                                    hint="asarray takes numbers, nested lists of them, numpy and torch arrays, anything with DLPack")
    return as_tensor(np.asarray(data) if isinstance(data, np.generic) else data, "asarray").detach()


def _is_of_numbers(dtype: np.dtype[Any]) -> bool:
    """Whether elements are numbers of at most 64 bits (complex ones of twice as many)."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _plain_numpy(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array with the bytes of a number in this machine's order, and no negative steps. Raises: TypeMismatchError."""
    if not _is_of_numbers(data.dtype) and data.dtype not in NUMPY_DTYPES.values():
        raise TypeMismatchError(f"arrays have no type {data.dtype}", where=user_span(), hint=known_types())
    if np.ma.is_masked(data):
        raise TypeMismatchError("a masked array has elements without a value", where=user_span(), hint="x.filled(value) gives them one")
    native = data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))
    return np.ascontiguousarray(native) if any(s < 0 for s in native.strides) else native


def _of_buffer(data: Any) -> Any:
    """An array over any object with Python's buffer protocol; any other object is returned unchanged."""
    try:
        return np.asarray(memoryview(data))
    except TypeError:
        return data


def _fitting(kind: DType, number: Any, dtype: DType) -> DType:
    """The type in which a number of this kind is written down before it is converted.

    Raises: TypeMismatchError where an integer does not fit.
    """
    if dtype.is_integer and kind == I64:
        low, high = integer_range(dtype)
        if not low <= number <= high:
            raise TypeMismatchError(f"{number} is outside {NAME_OF[dtype]}, which holds {low} to {high}", where=user_span())
        return dtype
    return dtype if (dtype, kind) in ((F64, F32), (C128, C64)) else kind


def _of_list(data: Any, dtype: DType | None) -> Any:
    leaves = list(_leaves(data))
    if is_tracing() and any(isinstance(leaf, Array) and leaf.node.buffer is None for leaf in leaves):
        raise UserError("a list of arrays becomes an array by their values, and while a function is traced there are none",
                        where=user_span(), hint="stack(list) puts arrays side by side, concat(list) one after the other")
    if any(isinstance(leaf, (Array, torch.Tensor, np.ndarray)) for leaf in leaves):
        data = _plain(data)
        leaves = list(_leaves(data))
    try:
        data_array = np.asarray(data)
    except ValueError as error:
        raise TypeMismatchError(f"the lists do not have one shape: {error}", where=user_span()) from None
    if not _is_of_numbers(data_array.dtype):
        raise TypeMismatchError(f"a list of {data_array.dtype} is no array of numbers", where=user_span(), hint=known_types())
    limits = dtype or (None if any(isinstance(leaf, np.generic) for leaf in leaves) else I64)
    if limits is not None and limits.is_integer and data_array.dtype.kind in "iu" and data_array.size:
        for number in (int(data_array.min()), int(data_array.max())):
            _fitting(I64, number, limits)
    if data_array.dtype.kind in "iu":
        data_array = data_array.astype(f"{data_array.dtype.kind}{data_array.dtype.itemsize}")  # C's long long is another type to torch
    narrow = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}.get(data_array.dtype)
    if narrow is not None and dtype is None and not any(isinstance(leaf, (np.float64, np.complex128)) for leaf in leaves):
        data_array = data_array.astype(narrow)
    if not leaves and dtype is None:
        data_array = data_array.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(data_array).reshape(data_array.shape))


def _leaves(data: Any) -> Any:
    for item in data:
        if isinstance(item, (list, tuple, range)):
            yield from _leaves(item)
        else:
            yield item


def _plain(data: Any) -> Any:
    """Nested lists whose leaves are numbers: small arrays in a list are read."""
    if isinstance(data, (list, tuple, range)):
        return [_plain(item) for item in data]
    return data.tolist() if hasattr(data, "tolist") else data


def _known_dtype(tensor: Any) -> DType:
    dtype = _BY_TORCH.get(tensor.dtype)
    if dtype is None:
        raise TypeMismatchError(f"arrays have no type {str(tensor.dtype).removeprefix('torch.')}", where=user_span(),
                                hint=known_types())
    return dtype


def _lies_somewhere(data: Any) -> bool:
    """Whether data has memory of its own that an array may share where it is: numbers and lists have none; numpy arrays and other
    buffers are at home where arrays are made on the host."""
    if as_scalar(data) is not None or isinstance(data, (list, tuple, range)):
        return False
    if isinstance(data, np.ndarray) or not hasattr(data, "__dlpack_device__"):
        return Evaluation.default_device() == "host"
    return True


def _lies_elsewhere(data: Any, tensor: Any) -> bool:
    """Whether a numpy array had to be copied: torch has no negative steps, and nothing that must not be written."""
    return isinstance(data, np.ndarray) and data.size > 0 and data.ctypes.data != tensor.data_ptr()


def _device_of(tensor: Any) -> str:
    return "host" if tensor.device.type == "cpu" else str(tensor.device)


def _torch_device(device: str) -> torch.device:
    """Raises: UserError for a device that is not here."""
    known = Evaluation.devices()
    if device not in known:
        raise UserError(f"there is no device {device} here", where=user_span(), hint=f"devices: {', '.join(known)}")
    return torch.device("cpu" if device == "host" else device)


install(Evaluation)
install_functions(CALLED)
