"""Statements of kernel IR for warp-specialised kernels: rings of slots in shared memory, warps that fill them, warpgroups that use them.

    Pipeline              producer warps           consumer warpgroups
      For k:                For k:                   For k:
        Produce(ab)    ->     wait until empty         wait until full
        Consume(ab)           copy, arrive             products, release

One tree describes both roles, so their order is known: the host executes it as it stands, produce then consume, and its checking mode
proves each wait. Source: PTX ISA, mbarrier, setmaxnreg, wgmma; CUTLASS, warp-specialised main loops.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tilefuse.ir.affine import Affine
from tilefuse.ir.scalar import Bound

# A statement (`kernel.ir.Stmt`, which this module must not import).
S = TypeVar("S")

# Threads of a warpgroup; rows of one of its matrix instructions; bytes of the inner axis of one instruction. Source: PTX ISA, wgmma.
WARPGROUP, WARPGROUP_ROWS, WARPGROUP_INNER_BYTES = 128, 64, 32
# Swizzles act on lines of shared memory of this length, in chunks of this length. Units: bytes.
SWIZZLE_LINE_BYTES, SWIZZLE_CHUNK_BYTES = 128, 16
SWIZZLES = (0, 32, 64, 128)
# Alignment of a swizzled shared buffer, in bytes; rows after which a swizzle repeats, where a slot of its buffer may begin.
TILE_ALIGNMENT_BYTES, SWIZZLE_ROWS = 1024, 8


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring buffer in shared memory: `slots` slots, each holding one tile of every buffer in `buffers`.

    Slot s of a buffer begins at element s * num_elements / slots. A filling is one `Produce`; fillings use the slots in turn.

    cluster  the blocks of the cluster fill each other's slots (multicast copies): a slot is empty once the consumers of all blocks have
             released it
    """

    name: str
    slots: int
    buffers: tuple[str, ...]
    cluster: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[S]):
    """Producer warps and consumer warpgroups that pass tiles through rings. The last statement of a kernel's body; at most one a kernel.

    The block has `consumer_threads` (a multiple of 128) + 128 threads; its last four warps produce. `body` is one tree of statements for
    both roles. Producers run the `Produce` statements with the loops, the uniform branches and the index names around them. Consumers run
    everything else; inside the pipeline, "thread" counts consumers from 0, and a block barrier is one of the consumers alone. Control
    flow around `Produce` and `Consume` is uniform over the block.

    The host executes `body` as it stands. A tree that fills a slot before it has released the filling before is therefore an error, even
    where producers could wait for it.

    producer_registers, consumer_registers  registers per thread of each role (setmaxnreg): multiples of 8 in 24 .. 256, or both 0
    early  producers start the copies that are marked `ahead`, of the first filling of each slot, before they wait for the kernel ahead;
           consumers wait first. No statement of the body waits then, and no statement ahead of the pipeline touches global memory
    """

    rings: tuple[Ring, ...]
    body: tuple[S, ...]
    consumer_threads: int
    producer_registers: int = 0
    consumer_registers: int = 0
    early: bool = False


@dataclass(frozen=True, slots=True)
class Produce(Generic[S]):
    """Producers wait until the next slot of `ring` is empty, run `body`, and mark the slot full once its copies have arrived.

    `slot` names the slot's number in `body`. The body writes the ring's buffers within this slot and no other memory. All `Produce`
    statements of one ring have the same `threads`.

    threads  1: one thread, which starts copies. 32, 64, 96 or 128: that many threads; "thread" counts them from 0 inside the body, and
             their ordinary stores are visible to consumers and to their products
    """

    ring: str
    slot: str
    body: tuple[S, ...]
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Consume(Generic[S]):
    """Consumers wait until the next slot of `ring` is full, run `body`, and release slots. `slot` names the slot's number in `body`.

    Consumers may also write the slot: each thread that does executes a `ProxyFence` and meets the threads that use it.

    held_slots  number of the latest slots that stay unreleased: products that are still in flight read them. With 1, this statement
                releases the slot of the `Consume` before.
    """

    ring: str
    slot: str
    body: tuple[S, ...]
    held_slots: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Consumers release every slot of `ring` that a `Consume` still holds."""

    ring: str


@dataclass(frozen=True, slots=True)
class EachWarpgroup(Generic[S]):
    """The consumer warpgroups run `body` and `after` in turn, each alone. `group` names the number of the warpgroup at hand.

        For tile:                          warpgroup 0                 warpgroup 1
          EachWarpgroup(g)                   tile 0: main loop
            body: main loop         ->       tile 0: results             tile 1: main loop
            after: results                   tile 2: main loop           tile 1: results

    A warpgroup begins its `body` once the warpgroup before has ended its own, so slots of rings are used in the order of the tree. `after`
    runs beside the bodies of the others. "thread" counts the warpgroup's 128 threads from 0, barriers are those of teams. `body` uses
    slots; each is released before `after` ends. A ring whose slots are used here is used nowhere else.

    bounds  a warpgroup runs both where these hold, of `group` among others; else it does nothing in its turn
    """

    group: str
    body: tuple[S, ...]
    after: tuple[S, ...] = ()
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class InTurn(Generic[S]):
    """The consumer warpgroups begin `body` one after another, in the order of their numbers, again and again.

        products of warpgroup 0 | products of warpgroup 1 | products of warpgroup 0 ...
                                  powers of warpgroup 0   | powers of warpgroup 1

    A warpgroup begins once the one before has started everything in its own `body`; products that it has started may be in flight. This
    orders no accesses to memory: it keeps one warpgroup's products beside the instructions of another. All consumers run it, equally often.
    A pipeline has either this or `EachWarpgroup`.
    """

    body: tuple[S, ...]


@dataclass(frozen=True, slots=True)
class SkipSlots:
    """Consumers pass over `count` fillings of a ring, which others use. Only printers write it, into the trees of `pipeline_roles`."""

    ring: str
    count: int


@dataclass(frozen=True, slots=True)
class WarpgroupProduct:
    """accumulator += left * right on tensor cores, asynchronously, by each warpgroup (thread // 128) with its own operands.

    The operands are a tile of `rows` x `inner` and one of `inner` x `columns`. One statement is one group of products: it reads its
    operands and writes its accumulator until a `WarpgroupWait` that covers it. Consumers of a `Pipeline` run it; compute capability 9.0.
    Operands outside rings: each thread that stored an element has executed a `ProxyFence`, and met the warpgroup since.

    Accumulator: a register array of rows * columns / 128 elements, f32 (i32 for 8-bit integers). Element ((a * columns / 8) + b) * 4 + q is
    row 64 * a + 16 * (thread % 128 // 32) + lane // 4 + 8 * (q // 2), column 8 * b + 2 * (lane % 4) + q % 2, lane = thread % 32: within a
    warp the layout of `MatrixProduct`. Source: PTX ISA, wgmma.mma_async, register fragments.

    Operands in shared memory lie in panels, as tensor copies write them: a panel is w = max(swizzle, 16) / itemsize elements wide along the
    contiguous axis, and panels lie `left_panel` (`right_panel`) elements apart. Offsets, unswizzled, in elements:

        left (row, k)        left_index + (k // w) * left_panel + row * w + k % w
        left turned          left_index + (row // w) * left_panel + k * w + row % w
        right (k, column)    right_index + (column // w) * right_panel + k * w + column % w
        right turned         right_index + (k // w) * right_panel + column * w + k % w

    Indices are the same in all threads of a warpgroup. They start a row of the panel, or advance along k by whole instructions (32 bytes).
    Only 16-bit elements may be contiguous along rows or columns; other types need left not turned and right turned.

    rows            a multiple of 64
    columns         a multiple of 8 up to 256; beyond 24, of 16 for 8-bit integers
    inner           a multiple of 32 bytes
    left_registers  `left` is a register array of 16-bit elements in the accumulator's layout, with `inner` columns; `left_index`,
                    `left_panel` and `left_turned` are unused
    by_warps        each warp multiplies its 16 of every 64 rows itself and loads the right operand for that (mma.sync): the products are
                    complete behind the statement. Requires: `left_registers`, `right_turned`, panels of 128 bytes
    in_pieces       the four lanes of a row hold two pieces each, 16 neighbours of two panels of 64 inner elements, in the order of their
                    registers; the right operand lies in its own order. Columns 0 to 63 of the accumulator's layout are pieces that begin
                    at inner elements 0, 32, 80 and 112, columns 64 to 127 those at 16, 48, 64 and 96. Requires: `by_warps`, pairs of panels
    arithmetic      "tf32" for f32 operands, of which the unit reads the first 11 significant bits; "" for others
    term            number of this product in its sum: number 0 overwrites the accumulator instead of adding to it. None: always adds.
    """

    accumulator: str
    left: str
    left_index: Affine
    left_panel: int
    left_turned: bool
    right: str
    right_index: Affine
    right_panel: int
    right_turned: bool
    rows: int
    columns: int
    inner: int
    left_registers: bool = False
    arithmetic: str = ""
    term: Affine | None = None
    by_warps: bool = False
    in_pieces: bool = False


@dataclass(frozen=True, slots=True)
class WarpgroupWait:
    """Each thread waits until at most the last `pending` of its warpgroup's `WarpgroupProduct` statements are in flight."""

    pending: int = 0


# Pieces of a lane in as many panels, and panels that single warps multiply at once.
PIECES = 2


def inner_of_piece(k: Affine, panel: int) -> Affine:
    """The inner element that stands for column `k` of the accumulator's layout where lanes hold pieces. panel: its inner elements."""
    lane, both = k % 8 // 2, PIECES * panel
    piece = (k % both // panel + k % 8 // 4) % PIECES
    return k // both * both + lane * (panel // 2) + piece * (panel // 4) + k % panel // 8 * 2 + k % 2


def swizzled_byte(offset: int, swizzle: int) -> int:
    """Position of a byte of a swizzled buffer, `offset` bytes from its start without the swizzle.

    Chunk c (16 bytes) of line n (128 bytes) lies at chunk c ^ (n mod (swizzle / 16)). Source: PTX ISA, tensor copies, swizzle modes.
    """
    if not swizzle:
        return offset
    return offset ^ (offset // SWIZZLE_LINE_BYTES % (swizzle // SWIZZLE_CHUNK_BYTES) * SWIZZLE_CHUNK_BYTES)


def panel_width(swizzle: int, itemsize: int) -> int:
    """Elements of a panel along its contiguous axis."""
    return max(swizzle, SWIZZLE_CHUNK_BYTES) // itemsize
