"""Kernel IR: what both printers print. One block's program for every thread, with explicit barriers.

Index arithmetic is `ir.affine.Affine` over the names "thread" (threadIdx.x), "block" (blockIdx.x), "rank" (block rank in
its cluster), loop variables, names bound by `Let`, and sizes that calls give (`Kernel.sizes`). Values are scalar expressions of
`ir.scalar` (Const, Call, Index, Guard) with two more leaves, `Reg` and `Load`; `Read` and `Lookup` do not occur here. All control
flow that contains a barrier, a shuffle or a cluster access is uniform over the block (over the cluster for cluster barriers), so the host
printer can run each stretch between two such statements as a loop over the threads.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from tilefuse.ir.affine import Affine
from tilefuse.ir.counts import Operand
from tilefuse.ir.dtype import I64, DType
from tilefuse.ir.scalar import Bound, Call, Const, Guard, Index
from tilefuse.kernel.asynchronous import (
    AsyncCopy,
    AsyncGroup,
    AsyncWait,
    AwaitEarlier,
    BulkCopy,
    BulkWait,
    LetNextStart,
    Prefetch,
)
from tilefuse.target.launch import Launch


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a kernel addresses by element offset. Units: `num_elements` elements of `dtype`.

    space   "global" (a parameter) or "shared" (one copy a block)
    role    global: as `target.launch.Parameter.role`; shared: ""
    origin  the graph value it holds, for comments; "" for scratch
    offset_bytes  shared: position in the block's shared memory (buffers whose live ranges are disjoint may overlap)
    count   elements where sizes that calls give decide them; `num_elements` is then the most that there may be
    """

    name: str
    dtype: DType
    num_elements: int
    space: str
    role: str = ""
    origin: str = ""
    offset_bytes: int = 0
    count: Operand | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """A number that each launch gives to a kernel, 0 .. most: an extent, or what follows from extents (`count`, of the program's sizes)."""

    name: str
    most: int
    count: Operand


@dataclass(frozen=True, slots=True)
class OfTwo:
    """Result of two index expressions where it is not affine, since both depend on sizes that calls give.

    function: "product", "quotient" and "remainder" (of a number that is not negative, by one that is positive), "least".
    """

    function: str
    left: Affine
    right: Affine

    def axes(self) -> frozenset[str]:
        """All names that occur."""
        return self.left.axes() | self.right.axes()


@dataclass(frozen=True, slots=True)
class Reg:
    """A thread's register variable, or one element of its register array (`index`: constant once loops are unrolled)."""

    name: str
    dtype: DType
    index: Affine | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a global or shared buffer at offset `index` + sum of expression * stride over `dynamic`.

    Units: offsets and strides in elements. Dynamic subscripts are integer expressions, already clamped to range.
    cache: "" default, "stream" read once (read-only path), "last" read once by a kernel that writes as much meanwhile: leaves the
    second-level cache after what is written; "keep" will be read again.
    """

    buffer: str
    dtype: DType
    index: Affine
    dynamic: tuple[tuple[KExpr, int], ...] = ()
    cache: str = ""


@dataclass(frozen=True, slots=True)
class InRange:
    """`index` (i64), which must be one of 0 .. extent - 1.

    The host executor reports any other and goes on with 0, or with the index itself where `kept` (a scatter, which writes nothing there).
    A device does so too and asserts at the end of the thread. Without checks (`Kernel.checked`) the index is moved into range, or kept.

    buffer     what it is a subscript of ("" for a label), along dimension `dimension`
    source     the buffer that it was read from, or computed from what was read there, and the element's offset `place`; "" if none
    wraps      whether negative numbers were counted from the end before
    """

    index: KExpr
    extent: int
    buffer: str = ""
    dimension: int = 0
    source: str = ""
    place: Affine = field(default=Affine(), compare=False)
    wraps: bool = False
    kept: bool = False

    @property
    def dtype(self) -> DType:
        return I64


KernelLeaf = Union[Reg, Load, InRange]
KExpr = Union[Const, Index, Reg, Load, InRange, "Call[KExpr]", "Guard[KExpr]"]


@dataclass(frozen=True, slots=True)
class Comment:
    """A line for the reader of the source: which node, which level."""

    text: str


@dataclass(frozen=True, slots=True)
class Let:
    """Names an index expression: `const int name = value`. Later index expressions may use the name as an axis.

    extent: the name's values are 0 .. extent - 1 (for bounds and simplification).
    """

    name: str
    value: Affine | OfTwo
    extent: int


@dataclass(frozen=True, slots=True)
class Declare:
    """A register variable (`size` None) or register array, uninitialised unless `init` is given (scalars only)."""

    name: str
    dtype: DType
    size: int | None = None
    init: KExpr | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """target = value."""

    target: Reg
    value: KExpr


@dataclass(frozen=True, slots=True)
class For:
    """for (var = start; var < stop; var += step). `unroll`: fully unrolled (start, stop constant). `simd`: iterations are
    independent or a plain reduction lane loop; the host compiler may vectorise it."""

    var: str
    start: Affine
    stop: Affine
    step: int | Affine
    body: tuple[Stmt, ...]
    unroll: bool = False
    simd: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """Body where all bounds hold."""

    bounds: tuple[Bound, ...]
    body: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class IfValue:
    """Body where the boolean expression holds. `uniform`: the same in all threads of the block (may contain barriers)."""

    condition: KExpr
    body: tuple[Stmt, ...]
    uniform: bool = False


@dataclass(frozen=True, slots=True)
class VectorLoad:
    """array[array_index .. + width) = buffer[index + dynamic .. + width) as one access of width * itemsize bytes (aligned).

    The register array has the buffer's dtype. width * itemsize is 1, 2, 4, 8 or 16 on a GPU (a multiple of 16 becomes
    several accesses); anything on the host.
    """

    array: str
    array_index: Affine
    buffer: str
    index: Affine
    width: int
    cache: str = ""
    dynamic: tuple[tuple[KExpr, int], ...] = ()


@dataclass(frozen=True, slots=True)
class VectorStore:
    """buffer[index .. + width) = array[array_index .. + width) as one aligned access. cache: "" or "stream" (evict first)."""

    buffer: str
    index: Affine
    array: str
    array_index: Affine
    width: int
    cache: str = ""


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index + dynamic] = value."""

    buffer: str
    index: Affine
    value: KExpr
    dynamic: tuple[tuple[KExpr, int], ...] = ()
    cache: str = ""


@dataclass(frozen=True, slots=True)
class Atomic:
    """buffer[index + dynamic] = combine(old, value) atomically; op is "sum", "max", "min" or "prod"."""

    op: str
    buffer: str
    index: Affine
    value: KExpr
    dynamic: tuple[tuple[KExpr, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of the scope arrive before any goes on; orders their shared-memory accesses. scope: "block", "cluster".

    With `signal` a cluster barrier is an exchange: each block waits until `num_bytes` of signalled `ClusterStore`s have come
    into its shared memory on transaction barrier `signal` in this `phase`. On a device that waits for nothing else, so stores
    to global memory on their way do not hold it up; the host executor treats it as a full barrier.
    memory: False where nobody relies on what another thread wrote before it, transaction barriers apart: a cluster barrier then lets
    loads and stores on their way pass.
    loaded: register arrays whose elements must have arrived in every thread of a block barrier, since asynchronous copies overwrite
    the shared memory that they were read from.
    team: if positive, only each `team` threads of the block meet: those of one warp, or of several; 15 teams at most (the host executor
    lets the whole block meet).
    """

    scope: str = "block"
    signal: Affine | None = None
    phase: Affine | None = None
    num_bytes: int = 0
    memory: bool = True
    loaded: tuple[str, ...] = ()
    team: int = 0


@dataclass(frozen=True, slots=True)
class Shuffle:
    """target = source of another lane of the warp. mode: "xor" (lane ^ amount), "up" (lane - amount; lanes below keep their
    own), "down" (lane + amount), "lane" (absolute lane `amount` within the group). `width`: lanes a group (power of two)."""

    target: Reg
    source: Reg
    mode: str
    amount: int
    width: int = 32


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """target = shared buffer[index] of the block with cluster rank `rank` (distributed shared memory)."""

    target: Reg
    buffer: str
    index: Affine
    rank: Affine


@dataclass(frozen=True, slots=True)
class ClusterStore:
    """shared buffer[index] of the block with cluster rank `rank` = value; asynchronous, counted on that block's transaction
    barrier `signal`, if one is given (elements of 4 or 8 bytes)."""

    buffer: str
    index: Affine
    rank: Affine
    value: KExpr
    signal: Affine | None = None


@dataclass(frozen=True, slots=True)
class LastBlock:
    """target (bool, uniform over the block) = this block is the last of `count` to arrive at counter[index].

    Makes this block's earlier global writes visible to the last one; contains block barriers; the counter is zero again
    afterwards.
    """

    target: Reg
    counter: str
    index: Affine
    count: int | Affine


@dataclass(frozen=True, slots=True)
class Member:
    """One set of operands of a `Group`: a kernel parameter for each of its slots, a value for each of its numbers, and its blocks."""

    arguments: tuple[str, ...]
    num_blocks: int
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """The launch's blocks from `first_block` on, shared out among `members` in order; each runs `body` with that member's operands.

    Stands only at the top of a kernel, whose body then holds nothing else. Inside, "block" counts from the member's first block.
    slots    what the body addresses in place of parameters (`num_elements` is the largest member's)
    numbers  index names that have a value of their own for each member, with the extent of all: (name, extent)
    shared   slots that may lie in the same memory as another one (an input that is updated in place)
    narrow   as `Kernel.narrow`, for this body
    """

    first_block: int
    slots: tuple[Buffer, ...]
    members: tuple[Member, ...]
    body: tuple[Stmt, ...]
    numbers: tuple[tuple[str, int], ...] = ()
    shared: tuple[str, ...] = ()
    narrow: bool = False

    @property
    def num_blocks(self) -> int:
        return sum(m.num_blocks for m in self.members)

    @property
    def first_blocks(self) -> tuple[int, ...]:
        """Where each member begins, counted from the group's first block."""
        starts = [0]
        for m in self.members[:-1]:
            starts.append(starts[-1] + m.num_blocks)
        return tuple(starts)

    @property
    def even_blocks(self) -> int:
        """Blocks of each member where all have equally many, else 0."""
        counts = {m.num_blocks for m in self.members}
        return counts.pop() if len(counts) == 1 else 0


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """accumulator += left * right on the matrix unit, by one warp, from shared memory; all `inner` elements of the contracted axis.

    The warp's tile is `tiles_m` x `tiles_n` instructions of 16 x 8 elements. Element ((a * tiles_n) + b) * 4 + q of the accumulator
    (f32) is row 16*a + lane // 4 + 8*(q // 2), column 8*b + 2*(lane % 4) + q % 2, lane = thread % 32 (the layout of m16n8k16 and m16n8k8).
    left element (row, k): left_index + row * left_stride + k, or + k * left_stride + row where `left_turned`; right element
    (k, column): right_index + k * right_stride + column, or + column * right_stride + k where `right_turned`. Units: elements.
    Rows of both operands are 16-byte aligned. `left_registers`: `left` is a register array of the warp's lanes instead, which holds row
    tiles x `inner` / 8 tiles as an accumulator does; its index, stride and turn mean nothing. Source: PTX ISA, mma.m16n8k16 and ldmatrix.
    arithmetic: of f32 operands ("" for 16-bit ones): "split", three products of halves, as exact as f32, or "tf32", one of 11 bits. They
    need no alignment, and `inner` and `columns` need be no multiple of 8: what lies beyond counts as 0 and is not read.
    columns: columns of the right operand, if fewer than 8 * tiles_n; 0: all.
    """

    accumulator: str
    left: str
    left_index: Affine
    left_stride: int
    left_turned: bool
    right: str
    right_index: Affine
    right_stride: int
    right_turned: bool
    tiles_m: int
    tiles_n: int
    inner: int
    left_registers: bool = False
    arithmetic: str = ""
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Pointer:
    """Address of an element of a global or shared buffer, as an argument of a routine."""

    buffer: str
    index: Affine


@dataclass(frozen=True, slots=True)
class Touched:
    """Words that a routine reads or writes out of the kernel IR's view: element `index` of `target` for all values of `loops`.

    target   a buffer, or a register array of the calling thread (`register`)
    loops    (name, number of values), names of `index` and `bounds`
    bounds   where one does not hold, the word is not touched
    scaled   further terms of `index`: (index expression, size), which are multiplied
    Words of buffers are touched by all threads of the call together, nobody knows which by whom: only where `first` holds (the call's
    first thread) they are declared, for all. Only the checking mode of the host executor asks.
    """

    target: str
    index: Affine
    loops: tuple[tuple[str, int], ...]
    writes: bool
    register: bool = False
    bounds: tuple[Bound, ...] = ()
    first: tuple[Bound, ...] = ()
    scaled: tuple[tuple[Affine, Affine], ...] = ()


@dataclass(frozen=True, slots=True)
class RoutineCall:
    """function(arguments): one thread's call of a routine of `Kernel.routines`. It neither synchronises nor shuffles.

    arguments  addresses of buffer elements, register arrays (a `Reg` with index: the address of that element), index values, scalars
    touched    what the routine reads and writes through its pointers
    """

    function: str
    arguments: tuple[Pointer | Reg | Affine | KExpr, ...]
    touched: tuple[Touched, ...] = ()


@dataclass(frozen=True, slots=True)
class Renew:
    """The compiler may not keep what was computed from a register array so far for what is computed from it later. Changes nothing.

    16-bit elements held over a reduction: their values in single precision take twice the registers, and the assembler would rather spill
    than widen them again. Requires: elements of the array fill words of 32 bits.
    """

    array: str


@dataclass(frozen=True, slots=True)
class RoutineText:
    """C text of routines, macros replaced; it stands in a namespace of this name before the kernel. Equal text on device and host."""

    namespace: str
    text: str


Stmt = Union[Comment, Let, Declare, Assign, For, If, IfValue, VectorLoad, VectorStore, Store, Atomic, Barrier, Shuffle,
             ClusterLoad, ClusterStore, LastBlock, BulkCopy, BulkWait, AsyncCopy, AsyncGroup, AsyncWait, MatrixProduct, RoutineCall,
             Prefetch, Renew, AwaitEarlier, LetNextStart, Group]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. Parameters are the global buffers, in order; a kernel of groups takes them as one structure of pointers.

    Behind the buffers stand the `sizes` that a launch gives, and `blocks` is then how many blocks it has (`launch.num_blocks` the most).

    Units: `num_barriers` counts transaction barriers (for BulkCopy). `index_bits` is 32 or 64. `min_blocks` is the
    second launch bound (0: none). `narrow`: the kernel's data has 16 bits or fewer, so functions of f32 may be the approximate
    ones of `ir.ops.NARROW_CUDA`. `backwards`: the first block does what stands for the last number. `header` is what the reader should
    know first: nodes, levels, bytes. `routines` is what its `RoutineCall`s call. `checked`: whether its `InRange`s are checked.
    """

    name: str
    buffers: tuple[Buffer, ...]
    launch: Launch
    body: tuple[Stmt, ...]
    header: tuple[str, ...] = ()
    index_bits: int = 32
    min_blocks: int = 0
    num_barriers: int = 0
    narrow: bool = False
    routines: tuple[RoutineText, ...] = ()
    backwards: bool = False
    checked: bool = True
    sizes: tuple[Size, ...] = ()
    blocks: Operand | None = None

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.space == "global")

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of a packed kernel; () for any other."""
        return tuple(s for s in self.body if isinstance(s, Group))

    @property
    def addressed(self) -> dict[str, Buffer]:
        """Memory that statements may address, by name: the buffers, and the slots of groups."""
        return {b.name: b for b in self.buffers} | {b.name: b for g in self.groups for b in g.slots}
