"""Tensor copies: boxes of a tensor that one thread asks the copy engine to move between global and shared memory.

    box at (row, column)        global memory                        shared memory
      +----------------+        tensor of `extents`, `strides`       box, row after row
      |  inside        |   ->   elements outside the extents    ->   0 (a load), left alone (a store)

A `TensorMap` is an argument of the kernel; its launch encodes it. The statements name a map, never memory of the tensor itself. Source:
PTX ISA, cp.async.bulk.tensor; CUDA C++ Programming Guide, tensor memory access.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import DType
from tilefuse.target.tensor_map import GRANULE_BYTES, why_no_box, why_no_tensor


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A view of a global buffer as a tensor of 1 to 5 dimensions, and the box of it that one copy moves. A kernel argument.

    Dimensions are in row-major order: the innermost comes last.

    buffer   global buffer, of elements of `dtype`
    extents  of the tensor: numbers, or index expressions over the call's sizes (`Kernel.sizes`)
    strides  in elements, likewise; the innermost is 1, the others are multiples of 16 bytes
    box      extents of one copy, at most 256 each; its rows are multiples of 16 bytes
    swizzle  pattern of the box in shared memory, as `Buffer.swizzle`: rows of the box have so many bytes; 0: none
    first    element of the buffer at which the tensor begins, at a multiple of 16 bytes

    Raises: InternalError for a map that the driver cannot encode. `why_no_map` asks beforehand.
    Source: CUDA driver API, cuTensorMapEncodeTiled.
    """

    name: str
    buffer: str
    dtype: DType
    extents: tuple[int | Affine, ...]
    strides: tuple[int | Affine, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        wrong = why_no_map(self.dtype, self.extents, self.strides, self.box, self.swizzle, self.first)
        if wrong:
            raise InternalError(f"tensor map {self.name} of buffer {self.buffer} has {wrong}")

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.box)

    @property
    def box_elements(self) -> int:
        """Elements of one copy, those outside the tensor included."""
        return prod(self.box)

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy to shared memory reports to its barrier: all of the box, wherever it lies."""
        return self.box_elements * self.dtype.itemsize

    @property
    def is_sized(self) -> bool:
        """Whether its extents or strides follow from the call's sizes."""
        return any(not _affine(e).is_const for e in (*self.extents, *self.strides))


@lru_cache(maxsize=1024)
def why_no_map(dtype: DType, extents: tuple[int | Affine, ...], strides: tuple[int | Affine, ...], box: tuple[int, ...], swizzle: int = 0,
               first: int = 0) -> str:
    """Why no `TensorMap` has these fields, with the values; "" where one has. Templates ask before they choose tensor copies.

    Extents and strides that follow from the call's sizes pass: the launch of the kernel refuses those that are illegal.
    """
    if len(box) != len(extents):
        return f"{len(extents)} extents and a box of {len(box)}"
    if strides and not _affine(strides[-1]).is_const:
        return f"an innermost stride of {strides[-1]} elements, not 1"
    known = [_affine(e).const if _affine(e).is_const else 1 for e in extents]
    steps = [_affine(s).const if _affine(s).is_const else GRANULE_BYTES for s in strides]
    return why_no_tensor(dtype.itemsize, known, steps, first) or why_no_box(dtype.itemsize, box, swizzle)


def _affine(e: int | Affine) -> Affine:
    return number(e) if isinstance(e, int) else e


@dataclass(frozen=True, slots=True)
class TensorCopy:
    """Starts an asynchronous copy of the box at `coordinates` to shared buffer[index .. + box elements). One thread executes it.

    Elements outside the tensor arrive as 0; coordinates may be negative, the last one is a multiple of 16 bytes. The destination is
    aligned to 128 bytes, to 8 rows of the pattern if the map has a swizzle. Threads have read the destination before, and the copying
    thread has met them since.

    barrier    transaction barrier on which the copy completes, as in `BulkCopy`; None inside `Produce`, where it is the slot's
    arrive     as in `BulkCopy`; only the last copy of a phase sets it
    multicast  mask of ranks in the cluster, 0 for this block alone. The box arrives at the same place in each of these blocks, on the same
               barrier of each. All blocks of the mask execute the statement, each with its own box and index, and each waits for the
               boxes of all of them. Their threads have met since the destination was last used anywhere, and once before the first copy.
    team       if positive, the first of every `team` threads starts its own copy on its own barrier
    cache      "" or "last" as in `Load`, or "first": lines leave L2 before others
    ahead      in a `Produce` of a pipeline that begins early: the first filling of each slot starts before the kernel ahead has ended
    """

    map: str
    coordinates: tuple[Affine, ...]
    buffer: str
    index: Affine
    barrier: Affine | None = None
    arrive: bool = True
    multicast: int = 0
    team: int = 0
    cache: str = ""
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class ProxyFence:
    """Orders this thread's earlier stores to shared memory before later reads by the copy engine and the tensor cores.

    Each storing thread executes it, then meets the thread that starts the `TensorStore` or the product.
    Source: PTX ISA, fence.proxy.async.
    """


@dataclass(frozen=True, slots=True)
class TensorStore:
    """Starts an asynchronous store of shared buffer[index .. + box elements) to the box at `coordinates`. One thread executes it.

    Elements outside the tensor are not written. The source is aligned as the destination of a `TensorCopy`. Storing threads have executed
    a `ProxyFence` and met the thread since. No thread writes the source before that thread has waited for the store, and met the writer.

    team  if positive, the first of every `team` threads starts its own store
    """

    map: str
    coordinates: tuple[Affine, ...]
    buffer: str
    index: Affine
    team: int = 0


@dataclass(frozen=True, slots=True)
class TensorStoreWait:
    """Each thread that started stores waits until at most its last `pending` ones still read shared memory.

    A kernel waits for all stores before its blocks end. The end of the kernel orders the stores before the next kernel's reads.

    team  as in the stores
    """

    pending: int = 0
    team: int = 0
