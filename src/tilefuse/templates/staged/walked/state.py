"""The state of a pipelined walk as its parts write it: a ring of slots for each operand, and rings of biases."""
from __future__ import annotations

from collections.abc import Callable

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine
from tilefuse.ir.scalar import Read
from tilefuse.kernel.pipeline import Ring
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.walked.operand import WalkOperand
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.rings import RingState
from tilefuse.templates.staged.walked.split.parts import part_buffers


class WalkState(RingState):
    """The statements of one kernel so far. walk: the whole plan."""

    walk: WalkPlan

    def __init__(self, program: TileProgram, walk: WalkPlan, device: DeviceSpec) -> None:
        super().__init__(program, walk, walk.staged, device)
        self.ring_by_key = {t.key: Ring(t.key, walk.slots(t), (self.slots[t.key].name,)) for t in walk.tiles}
        self.sums_of_parts = None if walk.sums is None else part_buffers(self, walk.sums, walk.num_tiles, walk.form.online)
        # Biases that rings bring, by their reads.
        self.biases = {bias.read: (bias, tile) for bias, tile in zip(walk.form.biases, walk.biases, strict=False)}

    @property
    def rings(self) -> tuple[Ring, ...]:
        """The ring of each operand."""
        return tuple(self.ring_by_key.values())

    def is_on_chip(self, e: Read) -> bool:
        """Whether a ring brings the element."""
        return e in self.biases

    def produce(self, of: WalkOperand, tile: OperandTile, first_line: Affine, first_inner: Affine) -> str:
        """A filling of an operand's ring: the tile from a line and an element of the inner axis on. The name of its slot."""
        def copied(slot: Affine) -> None:
            self.copy_tile(of, tile, slot, first_line, first_inner)

        return self.fill(tile, copied)

    def fill(self, tile: OperandTile, body: Callable[[Affine], None], threads: int = 1) -> str:
        """A filling of a tile's ring by so many threads. body: writes the slot of that number."""
        return self.filling(self.ring_by_key[tile.key], body, threads)
