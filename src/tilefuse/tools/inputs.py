"""Inputs for a program run from the command line: drawn at random, or read from an .npz file."""
from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilefuse.base.errors import NameLookupError, ShapeError, TypeMismatchError, UserError
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.runtime.stores.cache import DAMAGE
from tilefuse.tools.console import write_file

if TYPE_CHECKING:
    import torch


def random_array(dtype: str, shape: Sequence[int], seed: int) -> np.ndarray:
    """A drawn array: floats standard normal, booleans even odds, integers 0 or 1 (legal as indices of any axis longer than one)."""
    generator = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    if kind.kind == "float":
        return np.asarray(generator.standard_normal(tuple(shape))).astype(NUMPY_DTYPES[dtype])
    return np.asarray(generator.integers(0, 2, tuple(shape))).astype(NUMPY_DTYPES[dtype])


def random_tensor(dtype: str, shape: Sequence[int], seed: int) -> torch.Tensor:
    """The same as a torch tensor on the host."""
    return tensor_of(random_array(dtype, shape, seed), dtype)


def tensor_of(array: np.ndarray, dtype: str) -> torch.Tensor:
    """A torch tensor with the array's data. Types that numpy has only by extension travel as their bits."""
    import torch

    names = {"f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
    if dtype in ("bf16", "f8e4m3", "f8e5m2"):
        bits = np.ascontiguousarray(array).view(np.int16 if dtype == "bf16" else np.uint8)
        return torch.from_numpy(bits.copy()).view(names[dtype])
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def array_of(tensor: Any) -> np.ndarray:
    """A numpy array with a tensor's data, bf16 and fp8 widened to f32 (numpy files cannot hold them)."""
    host = tensor.detach().cpu()
    if str(host.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"):
        host = host.float()
    return np.asarray(host.numpy())


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """The arrays as an .npz file at `path`, which appears whole or not at all. Raises: UserError when it cannot be written."""
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w") as archive:  # numpy.savez cannot hold an array called "file"
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array))
    write_file(path, contents.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises: UserError when it is missing or is no .npz."""
    try:
        loaded = np.load(path)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        with loaded as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as cause:
        raise UserError(f"there is no file {path}") from cause
    except (*DAMAGE, OSError, AttributeError) as cause:
        raise UserError(f"{path} is not an .npz file: {cause}", hint="write it with numpy.savez(path, name=array)") from cause


def read_inputs(path: Path, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[torch.Tensor]:
    """The arrays of an .npz file in the program's order. `wanted`: (dtype, shape) by input name.

    Raises: UserError when the file is missing or is no .npz; NameLookupError for missing arrays; ShapeError and TypeMismatchError
    for arrays that do not fit.
    """
    tensors: list[torch.Tensor] = []
    arrays = read_arrays(path)
    for name, (dtype, shape) in wanted.items():
        if name not in arrays:
            raise NameLookupError(f"{path} has no array {name!r}", hint=f"it has: {', '.join(arrays) or 'none'}")
        array = arrays[name]
        if array.shape != shape:
            raise ShapeError(f"{path}: array {name!r} is {list(array.shape)}, the model takes {list(shape)}")
        if DTYPES[dtype].is_float != np.issubdtype(array.dtype, np.floating):
            raise TypeMismatchError(f"{path}: array {name!r} is {array.dtype}, the model takes {dtype}")
        tensors.append(tensor_of(array.astype(NUMPY_DTYPES[dtype]), dtype))
    return tensors
