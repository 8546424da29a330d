"""Kernel IR: the program of each thread of a block, with explicit barriers. Both printers print it.

Index arithmetic is `ir.affine.Affine` over the names "thread" (threadIdx.x), "block" (blockIdx.x), "rank" (block rank in its cluster),
"cluster" (number of the block's cluster in the launch), loop variables, names bound by `Let`, and the sizes of the call
(`Kernel.sizes`). Values are scalar expressions of `ir.scalar` (Const, Call, Index, Guard) with the further leaves `Reg`, `Load` and
`InRange`; `Read` and `Lookup` do not occur here. Control flow that contains a barrier, a shuffle or a cluster access is uniform over the
block (over the cluster for cluster barriers). The host printer can therefore run the statements between two such points as a loop over the
threads.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine
from tilefuse.ir.counts import Operand
from tilefuse.ir.dtype import I64, DType
from tilefuse.ir.scalar import Bound, Call, Const, Guard, Index
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait, AwaitEarlier, BulkCopy, BulkWait, LetNextStart, Prefetch
from tilefuse.kernel.pipeline import (
    Consume,
    EachWarpgroup,
    InTurn,
    Pipeline,
    Produce,
    ReleaseSlots,
    SkipSlots,
    WarpgroupProduct,
    WarpgroupWait,
)
from tilefuse.kernel.tasks.order import TaskOrder
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorMap, TensorStore, TensorStoreWait
from tilefuse.target.launch import Launch


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a kernel addresses by element offset. Units: `num_elements` of `dtype`, of which the value has `num_held` (0: no gaps).

    space   "global" (a parameter) or "shared" (one copy a block)
    role    of a global buffer: as `target.launch.Parameter.role`; of a shared buffer: ""
    origin  graph value that it holds, for comments; "" for scratch
    offset_bytes  position of a shared buffer in the block's shared memory (buffers with disjoint live ranges may overlap)
    count   number of elements as a function of the call's sizes; `num_elements` is then its maximum
    swizzle  0, 32, 64 or 128: a shared buffer permuted in 16-byte chunks as `pipeline.swizzled_byte` says, for tensor copies and warpgroup
            products. Indices in kernel IR are those without the swizzle. `offset_bytes` is a multiple of 1024.
    """

    name: str
    dtype: DType
    num_elements: int
    space: str
    role: str = ""
    origin: str = ""
    offset_bytes: int = 0
    count: Operand | None = None
    swizzle: int = 0
    num_held: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """A kernel argument that each launch sets, in 0 .. most: `count`, a function of the program's sizes."""

    name: str
    most: int
    count: Operand


@dataclass(frozen=True, slots=True)
class OfTwo:
    """A non-affine function of two index expressions. Both may depend on sizes that the call decides.

    function: "product", "least" (the minimum), "greatest" (the maximum), "quotient" and "remainder" (left >= 0, right > 0).
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

    cache   "" default; "stream" read once, by the read-only path; "keep" read again; "last" read once by a kernel that writes about as much
            as it reads: the line stays in L2 longer than the lines that the kernel writes
    """

    buffer: str
    dtype: DType
    index: Affine
    dynamic: tuple[tuple[KExpr, int], ...] = ()
    cache: str = ""


@dataclass(frozen=True, slots=True)
class InRange:
    """`index` (i64), which must be one of 0 .. extent - 1.

    For any other index, the kernel goes on with 0, or with the index itself if `kept` (a scatter, which writes nothing there). The host
    executor reports the index; a device asserts at the end of the thread. Without checks (`Kernel.checked`) the index is clamped, or kept.

    buffer     buffer that `index` subscripts along dimension `dimension`; "" for a label
    source     buffer whose element at offset `place` the index was computed from; "" if none
    wraps      whether negative numbers count from the end; they are already converted
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
class FromMemory:
    """The value of an index name that memory decides, as the number of a tile's group: an integer expression, the same in all threads of
    the block.

    No statement behind it writes the memory that it reads. The name's extent is a claim of the kernel, which checking mode tests.
    """

    value: KExpr

    def axes(self) -> frozenset[str]:
        """All index names that occur."""
        return _index_names(self.value)


def _index_names(e: KExpr) -> frozenset[str]:
    places = [e.affine] if isinstance(e, Index) else [e.index] if isinstance(e, Load) else [e.place] if isinstance(e, InRange) else []
    inner = e.args if isinstance(e, Call) else (e.index,) if isinstance(e, InRange) else tuple(d for d, _ in getattr(e, "dynamic", ()))
    if isinstance(e, Guard):
        places, inner = [b.index for b in e.bounds], (e.then, e.otherwise)
    return frozenset[str]().union(*(p.axes() for p in places), *map(_index_names, inner))


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment line in the source: the node, the level."""

    text: str


@dataclass(frozen=True, slots=True)
class Let:
    """Names an index expression, or an integer from memory: `const int name = value`. Later index expressions may use it as an axis.

    extent: the name's values are 0 .. extent - 1 (for bounds and simplification).
    """

    name: str
    value: Affine | OfTwo | FromMemory
    extent: int


@dataclass(frozen=True, slots=True)
class Declare:
    """A register variable (`size` None) or register array, uninitialised without `init` (scalars only)."""

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
    """for (var = start; var < stop; var += step).

    `unroll`: the loop is unrolled fully (start and stop are constant). `simd`: the host compiler may vectorise the loop, whose iterations
    are independent or lanes of a reduction. `rolled`: the loop is not unrolled, however short it is: its body is long."""

    var: str
    start: Affine
    stop: Affine
    step: int | Affine
    body: tuple[Stmt, ...]
    unroll: bool = False
    simd: bool = False
    rolled: bool = False


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
    """buffer[index + dynamic] = value. cache: "" or "stream" (evict first)."""

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

    signal  a cluster barrier with a signal is an exchange: each block waits until `num_bytes` of signalled `ClusterStore`s have arrived in
            its shared memory on transaction barrier `signal` in this `phase`. A device waits for nothing else, so outstanding global
            stores do not delay it. The host executor treats it as a full barrier; with a `team`, of the teams of all blocks with the same
            numbers, which alone wait.
    memory  False if no thread reads other threads' earlier writes, except through transaction barriers. A cluster barrier then does not
            wait for outstanding loads and stores.
    loaded  register arrays that must hold their loaded elements in every thread at a block barrier, because asynchronous copies then
            overwrite the shared memory that they were loaded from
    team    if positive, only the threads of each team of `team` threads (one warp or several) synchronise; at most 15 teams. The host
            executor synchronises the whole block.
    counter a cluster barrier of a scattered launch (`Launch.scattered`) has one: the teams of all blocks of a cluster meet at
            counter[index] in global memory, which the last one to go sets to zero again. It also orders their accesses to global memory.
            A counter that a team has left is free again once another meeting of the same teams has ended.
    """

    scope: str = "block"
    signal: Affine | None = None
    phase: Affine | None = None
    num_bytes: int = 0
    memory: bool = True
    loaded: tuple[str, ...] = ()
    team: int = 0
    counter: str = ""
    index: Affine | None = None


@dataclass(frozen=True, slots=True)
class Shuffle:
    """target = source of another lane of the warp.

    mode: "xor" (lane ^ amount), "up" (lane - amount; the first lanes keep their own), "down" (lane + amount), "lane" (lane `amount`
    of the group). `width`: lanes per group, a power of two."""

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
    barrier `signal`, if one is given (elements of 4 or 8 bytes).

    further  values of the elements behind it, which one access stores together: 4 elements of 4 bytes each, aligned to 16 bytes; with a
             signal
    """

    buffer: str
    index: Affine
    rank: Affine
    value: KExpr
    signal: Affine | None = None
    further: tuple[KExpr, ...] = ()

    @property
    def values(self) -> tuple[KExpr, ...]:
        """Values of neighbouring elements, from `index` on."""
        return (self.value, *self.further)


@dataclass(frozen=True, slots=True)
class LastBlock:
    """target (bool, uniform over the block) = this block is the last of `count` to arrive at counter[index].

    The earlier global writes of all arrived blocks are visible to the last one. The statement contains block barriers. The last block sets
    the counter to zero.
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
    """The launch's blocks from `first_block` on. They belong to the `members` in order; each runs `body` with its member's operands.

    A kernel with groups contains nothing else in its body. Inside a group, "block" counts from the member's first block.

    In a kernel of tasks (`Kernel.tasks`) a member has tasks in place of blocks. The body runs once for each task, whose number in its
    member is "tf_task"; `first_block` says nothing.

    slots    buffers that the body addresses in place of parameters (`num_elements` is the largest member's)
    numbers  index names with a value per member: (name, extent over all members)
    shared   slots that may alias another slot (an input that is updated in place)
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
        """Thread blocks of all members."""
        return sum(m.num_blocks for m in self.members)

    @property
    def first_blocks(self) -> tuple[int, ...]:
        """First block of each member, counted from the group's first block."""
        starts = [0]
        for m in self.members[:-1]:
            starts.append(starts[-1] + m.num_blocks)
        return tuple(starts)

    @property
    def even_blocks(self) -> int:
        """Number of blocks per member if all members have equally many, else 0."""
        counts = {m.num_blocks for m in self.members}
        return counts.pop() if len(counts) == 1 else 0


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """accumulator += left * right on tensor cores, by one warp, from shared memory, over all `inner` elements of the contracted axis.

    The warp's tile is `tiles_m` x `tiles_n` instructions of 16 x 8 elements. Element ((a * tiles_n) + b) * 4 + q of the accumulator
    (f32) is row 16*a + lane // 4 + 8*(q // 2), column 8*b + 2*(lane % 4) + q % 2, lane = thread % 32 (the layout of m16n8k16 and m16n8k8).
    left element (row, k): left_index + row * left_stride + k, or + k * left_stride + row where `left_turned`; right element
    (k, column): right_index + k * right_stride + column, or + column * right_stride + k where `right_turned`. Units: elements.
    Rows of both operands are 16-byte aligned. Source: PTX ISA, mma.m16n8k16 and ldmatrix.

    left_turned, right_turned  whether the operand lies transposed in shared memory
    left_registers  `left` is a register array instead: row tiles x `inner` / 8 tiles in the accumulator's layout. `left_index`,
                `left_stride` and `left_turned` are then unused.
    arithmetic  "" for 16-bit operands. For f32 operands: "split", three products of the operands' high and low parts, as exact as f32; or
                "tf32", one product of 11-bit significands. These need no alignment, and `inner` and `columns` may be any number: elements
                beyond them count as 0 and are not read.
    columns     columns of the right operand if fewer than 8 * tiles_n; 0 for all
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
    """Words that a routine reads or writes through a pointer: element `index` of `target` for all values of `loops`.

    target   a buffer, or a register array of the calling thread (`register`)
    loops    (name, number of values), names of `index` and `bounds`
    bounds   conditions under which the word is accessed
    scaled   further terms of `index`: (index expression, size), which are multiplied
    first    condition that selects the call's first thread. All threads of a call access buffers together, and the kernel IR does not know
             the split; the first thread's declaration covers them all.

    Only the checking mode of the host executor uses these records.
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
    touched    words that the routine reads and writes through its pointers
    """

    function: str
    arguments: tuple[Pointer | Reg | Affine | KExpr, ...]
    touched: tuple[Touched, ...] = ()


@dataclass(frozen=True, slots=True)
class Renew:
    """Forces the compiler to rematerialise values derived from a register array: it may not reuse those computed earlier. Changes no value.

    Purpose: 16-bit elements that are held across a reduction. Their f32 conversions take twice the registers, and the assembler would spill
    them instead of converting again. Requires: the elements of the array fill 32-bit words.
    """

    array: str


@dataclass(frozen=True, slots=True)
class RoutineText:
    """C text of routines with macros expanded, printed before the kernel in a namespace of this name. Device and host share it."""

    namespace: str
    text: str


Stmt = Union[Comment, Let, Declare, Assign, For, If, IfValue, VectorLoad, VectorStore, Store, Atomic, Barrier, Shuffle,
             ClusterLoad, ClusterStore, LastBlock, BulkCopy, BulkWait, AsyncCopy, AsyncGroup, AsyncWait, MatrixProduct, RoutineCall,
             Prefetch, Renew, AwaitEarlier, LetNextStart, TensorCopy, TensorStore, TensorStoreWait, ProxyFence, Group, "Pipeline[Stmt]",
             "Produce[Stmt]", "Consume[Stmt]", "EachWarpgroup[Stmt]", "InTurn[Stmt]", SkipSlots, ReleaseSlots, WarpgroupProduct,
             WarpgroupWait, Await, Publish]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. Its parameters are the global buffers, in order, then `sizes`, then `maps`; a kernel of groups takes one structure of
    pointers, and has neither sizes nor maps.

    header        comment lines: nodes, levels, bytes
    index_bits    width of index arithmetic, 32 or 64
    min_blocks    minimum blocks per multiprocessor of the launch bounds; 0 for none
    num_barriers  number of transaction barriers (of `BulkCopy` and `TensorCopy`)
    narrow        the kernel's data has 16 bits or fewer, so functions of f32 may be the approximate ones of `ir.ops.NARROW_CUDA`
    routines      texts of the routines that its `RoutineCall`s call
    backwards     block numbers are reversed: the block that starts first does the work of the last number
    checked       whether its `InRange`s are checked
    sizes         arguments that each launch sets
    maps          tensor maps of its `TensorCopy`s and `TensorStore`s, which each launch encodes
    blocks        number of blocks as a function of the call's sizes; `launch.num_blocks` is then its maximum
    tasks         order in which blocks take the tasks of the groups' members; None for a kernel whose blocks have one piece of work each
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
    maps: tuple[TensorMap, ...] = ()
    tasks: TaskOrder | None = None

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """Buffers in global memory, in the order of the arguments."""
        return tuple(b for b in self.buffers if b.space == "global")

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of a packed kernel; () for any other."""
        return tuple(s for s in self.body if isinstance(s, Group))

    @property
    def pipeline(self) -> Pipeline[Stmt] | None:
        """The kernel's warp-specialised part; None for most kernels."""
        return next((s for s in self.body if isinstance(s, Pipeline)), None)

    @property
    def addressed(self) -> dict[str, Buffer]:
        """Memory that statements may address, by name: the buffers and the slots of groups."""
        return {b.name: b for b in self.buffers} | {b.name: b for g in self.groups for b in g.slots}

    def map_named(self, name: str) -> TensorMap:
        """The tensor map that statements call `name`. Raises: InternalError for an unknown one."""
        for m in self.maps:
            if m.name == name:
                return m
        raise InternalError(f"kernel {self.name} has no tensor map {name}; it has {', '.join(m.name for m in self.maps) or 'none'}")
