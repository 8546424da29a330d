"""A program's requirements for each argument, and the conversion of an argument that does not meet them.

A wrong shape, dtype or device is the caller's error, and the message names the argument. Other strides, or an address that is no multiple
of 16, are legal in torch. The kernels were compiled for one layout, so such an argument is copied into it.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefuse.base.errors import InternalError, ShapeError, TypeMismatchError, UserError
from tilefuse.runtime.calls.call_plan import Slot, storage_bytes, storage_span
from tilefuse.runtime.calls.library import DTYPE_NAMES, TORCH_DTYPES
from tilefuse.runtime.calls.strided import fits, relaid
from tilefuse.runtime.spec import Value


@dataclass(frozen=True, slots=True)
class Argument:
    """One input of a program. `index` numbers its value; `slots` are the pointer arguments that point into it.

    may_stay: the argument is one number that only torch's own operators read, so it may lie in host memory too.
    """

    name: str
    position: int
    index: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    slots: tuple[Slot, ...]
    updated: bool
    may_stay: bool = False

    @property
    def may_be_negated(self) -> bool:
        """Whether a tensor of these strides may carry torch's lazy negation: the imaginary part of a conjugate has gaps, or is a scalar."""
        return not self.shape or storage_span(self.shape, self.strides) != self.shape.numel()

    @property
    def slot_pairs(self) -> tuple[tuple[int, int], ...]:
        """The slots as plain (number, bytes of offset) pairs."""
        return tuple((s.number, s.offset_bytes) for s in self.slots)


# Types of numpy arrays that come from ml_dtypes, by torch's names for them.
NUMPY_EXTENSIONS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def make_argument(value: Value, told: str, position: int, index: int, slots: tuple[Slot, ...], updated: bool,
                  only_torch_reads: bool = False) -> Argument:
    """The argument of an input value. `told`: its name in the source."""
    if value.dtype not in TORCH_DTYPES:
        raise InternalError(f"input {value.name} has an unknown dtype {value.dtype!r}")
    return Argument(told, position, index, TORCH_DTYPES[value.dtype], torch.Size(value.shape), tuple(value.strides), slots, updated,
                    only_torch_reads and not value.shape and not updated)


def is_numpy(array: Any) -> bool:
    """Whether an argument is an array of NumPy. A process that has not imported NumPy has none."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


def as_numpy(result: Any) -> Any:
    """A result as an array of NumPy over the same host memory; bf16 and 8-bit floats in the types of ml_dtypes, as they were given.

    Results that are not tensors are returned unchanged.
    """
    if not isinstance(result, torch.Tensor):
        return result
    tensor = result.detach().cpu().resolve_conj().resolve_neg()
    if (name := str(tensor.dtype).removeprefix("torch.")) in NUMPY_EXTENSIONS:
        import ml_dtypes

        return tensor.contiguous().view(getattr(torch, f"uint{8 * tensor.element_size()}")).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


def all_numpy(tensors: Sequence[Any]) -> bool:
    """Whether all arrays of a call are NumPy's; then its results are NumPy's too."""
    return bool(tensors) and type(tensors[0]) is not torch.Tensor and all(map(is_numpy, tensors))


def as_tensor(array: Any, name: str) -> torch.Tensor:
    """A torch tensor over the same memory. Raises: TypeMismatchError for any other object."""
    if isinstance(array, torch.Tensor):
        return array
    dtype: Any = getattr(array, "dtype", None)
    if str(dtype) in NUMPY_EXTENSIONS:
        # numpy has bf16 and the 8-bit floats from ml_dtypes only, and torch knows neither: the bits travel as integers.
        return as_tensor(array.view(f"u{dtype.itemsize}"), name).view(getattr(torch, str(dtype)))
    if hasattr(array, "filled") and hasattr(array, "mask") and bool(array.mask.any()):
        raise TypeMismatchError(f"argument {name} has masked elements, which programs would read as others", hint="fill them: .filled(0)")
    strides: Any = getattr(array, "strides", None)
    if isinstance(strides, tuple) and any(s < 0 or s % array.itemsize for s in strides):
        # Torch has neither, and ends the process at a negative stride that comes by DLPack.
        array = array.copy()
    if hasattr(array, "__array_interface__") and not getattr(getattr(array, "flags", None), "writeable", True):
        # Torch warns of read-only memory; the program writes only to inputs that it updates.
        return torch.from_numpy(array.copy())
    if hasattr(array, "__dlpack__"):
        try:
            return torch.from_dlpack(array)
        except (TypeError, RuntimeError, BufferError):
            pass
    if hasattr(array, "__array__"):
        try:
            return torch.from_numpy(array.__array__())
        except (TypeError, ValueError) as error:
            raise TypeMismatchError(f"argument {name} is an array of a type that torch lacks: {error}") from error
    raise TypeMismatchError(f"argument {name} is a {type(array).__name__}, not a tensor", hint="pass a torch tensor or a DLPack array")


def check_argument(array: Any, want: Argument, device: torch.device) -> torch.Tensor:
    """The argument as a dense tensor on `device`, of any strides and alignment.

    Raises: TypeMismatchError, ShapeError or UserError (device), naming the argument and both sides of the difference.
    """
    tensor = as_tensor(array, want.name)
    if tensor.is_complex() and tensor.shape + (2,) == want.shape:
        # Complex numbers travel as pairs of reals.
        tensor = torch.view_as_real(tensor.resolve_conj())
    where = f"argument {want.position} ({want.name})"
    if tensor.dtype != want.dtype:
        dtype = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
        raise TypeMismatchError(f"{where} has dtype {dtype}, expected {DTYPE_NAMES[want.dtype]}",
                                hint=f"convert it with .to({want.dtype}), or compile for this dtype")
    if tensor.shape != want.shape:
        raise ShapeError(f"{where} has shape {tuple(tensor.shape)}, expected {tuple(want.shape)}",
                         hint="a program is compiled for one set of shapes; compile for this one")
    if tensor.device != device:
        if tensor.dim() == 0 and tensor.device.type == "cpu" and not want.updated:
            # Attention passes the state of the generator to its backward operator as numbers on the host; moving one waits for the device.
            return tensor if want.may_stay else tensor.to(device)
        raise UserError(f"{where} is on {tensor.device}, the program runs on {device}", hint=f"move it with .to('{device}')")
    if tensor.layout != torch.strided:
        raise TypeMismatchError(f"{where} has layout {tensor.layout}, expected a dense tensor", hint="convert it with .to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if want.updated and any(s == 0 and n > 1 for n, s in zip(tensor.shape, tensor.stride())):
        raise ShapeError(f"{where} is updated in place, but several of its elements share memory (strides {tensor.stride()})",
                         hint="pass a tensor without expanded axes, as .contiguous() gives")
    return tensor


def adapt(array: Any, want: Argument, device: torch.device) -> torch.Tensor:
    """The argument as the kernels require it: itself, or a copy with the right strides and alignment.

    Raises: as `check_argument`.
    """
    tensor = check_argument(array, want, device)
    if any(want_step == 0 != step and n > 1 for n, step, want_step in zip(want.shape, tensor.stride(), want.strides)):
        raise ShapeError(f"argument {want.position} ({want.name}) has strides {tensor.stride()}, and was compiled as one that repeats its "
                         f"elements (strides {want.strides})", hint="compile it with an example that is not expanded")
    return tensor if fits(tensor, want.shape, want.strides) else relaid(tensor, want.shape, want.strides)


def bind_constant(array: Any, value: Value, device: torch.device, copies: bool = False) -> torch.Tensor:
    """A constant on the program's device, in the layout of its value; in the caller's own memory where that fits.

    copies: copy a tensor even where it fits (arrays of NumPy come from importers, which keep no reference).

    Raises: TypeMismatchError or ShapeError when the data does not match the compiled type.
    """
    tensor = as_tensor(array, value.name).detach()
    want = TORCH_DTYPES[value.dtype]
    if tensor.dtype != want:
        if DTYPE_NAMES.get(tensor.dtype) is None or tensor.element_size() != want.itemsize:
            raise TypeMismatchError(f"constant {value.name} has dtype {tensor.dtype}, expected {want}")
        # numpy has no bf16 or f8: their bits travel as integers of the same size.
        if tensor.dtype.is_floating_point or want not in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool):
            raise TypeMismatchError(f"constant {value.name} has dtype {tensor.dtype}, expected {want}")
        tensor = tensor.view(want)
    if tuple(tensor.shape) != value.shape:
        raise ShapeError(f"constant {value.name} has shape {tuple(tensor.shape)}, expected {value.shape}")
    moved = tensor.to(device)
    if storage_bytes(value) == 0:
        return moved
    shared = copies and isinstance(array, torch.Tensor) and moved.data_ptr() == tensor.data_ptr()
    return moved if fits(moved, value.shape, value.strides) and not shared else relaid(moved, value.shape, value.strides)
