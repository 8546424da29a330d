"""The rows template as a sum of modes: where a row lies between the walks over it, and how the rows are spread over the grid.

    one row a block, once     Held, Streamed, Split
    rows in turns             HeldTurns, ReadAgain                                   without a queue
                              HeldQueue, RowQueue, PieceQueue, AheadQueue            a ring of slots in shared memory

A scan is no mode: it is a property of the pattern, and `legality.py` says which modes hold what a scan needs. `RowSettings` is the same
choice in the flat words of the notation.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.construction import quickly_built
from tilefuse.base.errors import InternalError


@dataclass(frozen=True, slots=True)
class Held:
    """The row stays in the registers of its threads from its loads to its last walk.

    batch: vectors that a thread loads at a time of a row that is read once and is a single batch; 1 for other rows.
    """

    batch: int = 1


@dataclass(frozen=True, slots=True)
class Streamed:
    """Each walk reads the row anew, `batch` vectors a thread at a time."""

    batch: int


@dataclass(frozen=True, slots=True)
class Split:
    """`blocks` blocks read a share of the row each, as `Streamed` does. The last one to arrive adds up the results in global memory."""

    blocks: int
    batch: int


@dataclass(frozen=True, slots=True)
class HeldTurns:
    """`groups` persistent blocks (or clusters) take one row after another into registers, without a queue.

    carried_rows: rows of a group whose sums down the columns its threads carry along; 0 where nothing is carried.
    """

    groups: int
    carried_rows: int = 0


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """As `HeldTurns`, but each walk reads the row anew: carried sums leave no registers for it."""

    groups: int
    carried_rows: int = 0


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """`groups` persistent blocks (or clusters). Rows arrive in a ring of `slots`; each goes into registers, and its slot is free again."""

    groups: int
    slots: int
    carried_rows: int = 0


@dataclass(frozen=True, slots=True)
class RowQueue:
    """As `HeldQueue`, but every walk reads the row from its slot. One slot and a group for every row: the row passes through once."""

    groups: int
    slots: int
    carried_rows: int = 0


@dataclass(frozen=True, slots=True)
class PieceQueue:
    """As `RowQueue`, but a slot holds a piece of the row: one vector a thread. For rows of which two do not fit shared memory."""

    groups: int
    slots: int
    carried_rows: int = 0


@dataclass(frozen=True, slots=True)
class AheadQueue:
    """As `RowQueue`, but each row is reduced one turn before it is finished: partial results travel between blocks meanwhile."""

    groups: int
    slots: int
    carried_rows: int = 0


OneRound = Held | Streamed | Split
Queued = HeldQueue | RowQueue | PieceQueue | AheadQueue
InTurns = HeldTurns | ReadAgain | Queued
RowMode = OneRound | InTurns


@dataclass(frozen=True, slots=True)
class Rows:
    """Reduced axes run along memory: `threads` lanes a row, `rows` rows a block or `cluster` blocks a row. `vector` elements an access,
    `chunks` vectors a thread of its share of a row, `lanes` accumulators a thread.

    resident: blocks that must fit a multiprocessor together; 0 sets no bound on registers.
    Raises: InternalError for numbers that contradict the mode (`conflict`).
    """

    template: ClassVar[str] = "rows"

    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    threads: int
    rows: int
    chunks: int
    lanes: int
    mode: RowMode
    cluster: int = 1
    resident: int = 0

    def __post_init__(self) -> None:
        refusal = conflict(self.mode, rows=self.rows, cluster=self.cluster, chunks=self.chunks)
        if refusal is not None:
            raise InternalError(f"no row kernel is like this: {refusal.detail}")

    @property
    def groups(self) -> int:
        """Persistent blocks, or clusters, that walk the rows in turns; 0 where each block is done after one round."""
        return 0 if isinstance(self.mode, OneRound) else self.mode.groups

    @property
    def slots(self) -> int:
        """Slots of the queue of rows; 0 where there is none."""
        return self.mode.slots if isinstance(self.mode, Queued) else 0

    @property
    def carried_rows(self) -> int:
        """Rows whose sums down the columns a group carries along; 0 where nothing is carried."""
        return 0 if isinstance(self.mode, OneRound) else self.mode.carried_rows

    @property
    def split(self) -> int:
        """Blocks that share a row and meet through global memory."""
        return self.mode.blocks if isinstance(self.mode, Split) else 1

    @property
    def batch(self) -> int:
        """Vectors that a thread loads before it uses the first, where rows are read in batches; else 1."""
        return self.mode.batch if isinstance(self.mode, OneRound) else 1

    def share_of(self, length: int) -> int:
        """A block's share of a row of `length` elements where rows are walked in turns: as many whole vectors for each block."""
        return length // self.vector // self.cluster * self.vector

    @property
    def in_registers(self) -> bool:
        """Whether registers hold the row between the walks over it."""
        return isinstance(self.mode, Held | HeldTurns | HeldQueue)

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.threads * self.rows

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: rows that blocks read, reduce and store one after another stay; rows in turns leave the cache first."""
        return self.groups > 0


def read_by(blocks: int, batch: int) -> Streamed | Split:
    """The mode of a row that `blocks` blocks read in batches."""
    return Split(blocks, batch) if blocks > 1 else Streamed(batch)


def conflict(mode: RowMode, *, rows: int, cluster: int, chunks: int) -> Rejected | None:
    """Why no kernel has this mode with so many rows a block, blocks a cluster and vectors a thread; None where some pattern's may."""
    if cluster > 1 and rows > 1:
        return _illegal("a row over a cluster leaves one row a block", "GRID without CTA")
    match mode:
        case Split(blocks=blocks) if cluster > 1:
            return _illegal(f"{blocks} blocks share a row through global memory, and {cluster} in a cluster", "CLUSTER or GRID alone")
        case Split(blocks=blocks) if rows > 1:
            return _illegal(f"{blocks} blocks share a row through global memory, and each has {rows} rows", "GRID without CTA")
        case AheadQueue(slots=slots) if slots < 2:
            return _illegal(*NO_ROW_AHEAD)
        case PieceQueue() if rows > 1 or chunks == 1:
            return _illegal(f"pieces of {rows} rows of {chunks} vectors a thread are whole rows", f"batch={chunks}")
        case PieceQueue(slots=slots) if slots < chunks:
            # The first walk waits for the last piece of a row, and the last walk frees the slots.
            return _illegal(f"{slots} slots of one vector a thread, and a row has {chunks}", f"stages={chunks} at least, or batch={chunks}")
    return None


# The notation's words for rows that cannot be reduced a turn ahead.
NO_ROW_AHEAD = ("rows reduced a turn ahead wait in a queue of two or more (stages=2; on_chip=false;), and their threads exchange once",
                "ahead=false")


def _illegal(detail: str, remedy: str) -> Rejected:
    return Rejected(Reason.ILLEGAL_TEMPLATE, detail, remedy)


@quickly_built
@dataclass(frozen=True, slots=True)
class RowSettings:
    """A row kernel in the flat words of the notation, as templates, saved programs and tuning records hold it.

    on_chip: registers hold the row. stages: slots of the queue. groups: as of the modes; loops show it as GRID_n. span: `carried_rows`.
    batch: of a queue, 1 for pieces of rows and `chunks` for whole ones. Settings contradict each other freely: `mode_of` judges them.
    """

    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    threads: int
    rows: int
    chunks: int
    cluster: int
    split: int
    on_chip: bool
    lanes: int
    batch: int = 1
    stages: int = 0
    groups: int = 0
    span: int = 0
    resident: int = 0
    ahead: bool = False

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.threads * self.rows


def settings_of_rows(choice: Rows) -> RowSettings:
    """The choice in the words of the notation. Exact: `rows_of` gives the choice back."""
    mode = choice.mode
    batch = choice.chunks if isinstance(mode, RowQueue | AheadQueue) else choice.batch
    return RowSettings(choice.kept_order, choice.reduced_order, choice.vector, choice.threads, choice.rows, choice.chunks, choice.cluster,
                       choice.split, choice.in_registers, choice.lanes, batch, choice.slots, choice.groups, choice.carried_rows,
                       choice.resident, isinstance(mode, AheadQueue))


def rows_of(settings: RowSettings, length: int) -> Rows | Rejected:
    """The choice that settings write for rows of `length` elements, or why they contradict each other."""
    s = settings
    mode = mode_of(s, length)
    if isinstance(mode, Rejected):
        return mode
    refusal = conflict(mode, rows=s.rows, cluster=s.cluster, chunks=s.chunks)
    return refusal or Rows(s.kept_order, s.reduced_order, s.vector, s.threads, s.rows, s.chunks, s.lanes, mode, s.cluster, s.resident)


def mode_of(s: RowSettings, length: int) -> RowMode | Rejected:
    """The mode that settings write for rows of `length` elements, or why they contradict each other."""
    if s.ahead and (s.on_chip or s.stages < 2 or not s.groups or s.split > 1):
        return _illegal(*NO_ROW_AHEAD)
    if s.split > 1:
        return _split_mode(s)
    if not s.groups:
        if s.stages:
            return _illegal(f"a queue of rows (stages={s.stages}) without blocks that walk them in turns",
                            "GRID_n with so many blocks, or stages=0")
        return Held(s.batch) if s.on_chip else Streamed(s.batch)
    if not s.stages:
        return HeldTurns(s.groups, s.span) if s.on_chip else ReadAgain(s.groups, s.span)
    if s.ahead:
        return AheadQueue(s.groups, s.stages, s.span)
    if s.on_chip:
        return HeldQueue(s.groups, s.stages, s.span)
    # Pieces take a share of which all threads of a block have equally many vectors.
    whole = length // s.vector // s.cluster == s.chunks * s.threads
    in_pieces = s.batch == 1 < s.chunks and s.rows == 1 and whole
    return PieceQueue(s.groups, s.stages, s.span) if in_pieces else RowQueue(s.groups, s.stages, s.span)


def _split_mode(s: RowSettings) -> Split | Rejected:
    if s.on_chip:
        return _illegal("a row split over the grid is not held on chip", "on_chip=false")
    if s.groups or s.stages:
        return _illegal(f"a row split over {s.split} blocks is read once, and these walk rows in turns (stages={s.stages})",
                        "stages=0, and GRID without a number for the rows")
    return Split(s.split, s.batch)
