"""The record of a chain in groups: three bodies, and the parameters of the order of their tasks.

    body 0  producer, writes %v        S_I tasks a group
    body 1  product, %v x weights      S_G tasks a group, reads the group's %v, writes its %m
    body 2  user, reads %m             S_O tasks a group
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.domain.tile import TileProgram
from tilefuse.kernel.tasks.mixture import Mixture, TaskSequence, joined_rounds

PRODUCER, PRODUCT, USER = range(3)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Parameters of the order of tasks that may be tuned.

    length    places of the shared axis in a group (tiles of a convolution)
    together  groups whose products with one part of the weights follow each other (the paper's M)
    ahead     groups of producers before the first product: D_IG in groups
    between   rounds of products before the first user: D_GO in rounds of `together` groups
    slots     groups of the ring of %v, and of the ring of %m
    """

    length: int
    together: int
    ahead: int
    between: int
    slots: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GroupedChain:
    """`threads` threads a block for all bodies; `workers` blocks take the tasks.

    bodies    programs over groups: %v and %m have the group as their first axis
    handed    names of %v and %m
    groups    number of groups
    blocks    blocks of each body in a group
    each      blocks that a task of each body takes one after another
    alone     patterns' programs without groups, as kernels of their own
    limit_ms  longest wait of a task before the kernel stops with a message; 0: for ever
    recorded  whether the kernel records the start and the end of each task
    resident  blocks that must fit a multiprocessor, which bounds the registers of a thread; 0 for no bound
    """

    template: ClassVar[str] = "grouped chain"

    threads: int
    workers: int
    rhythm: Rhythm
    bodies: tuple[TileProgram, ...]
    handed: tuple[str, str]
    groups: int
    blocks: tuple[int, ...]
    each: tuple[int, ...]
    alone: tuple[TileProgram, ...] = ()
    limit_ms: int = 0
    recorded: bool = False
    resident: int = 0

    @property
    def num_threads(self) -> int:
        """Threads a block, the same for all bodies."""
        return self.threads

    @property
    def streams_results(self) -> bool:
        """Results may leave the second-level cache first: nothing in the kernel reads them again."""
        return True

    def tasks(self, body: int) -> int:
        """Tasks of a group: S_I, S_G or S_O."""
        return -(-self.blocks[body] // self.each[body])

    @property
    def tasks_a_group(self) -> int:
        """Tasks of all bodies for one group."""
        return sum(self.tasks(n) for n in range(len(self.bodies)))

    def handed_bytes(self, which: int) -> int:
        """Bytes of one group of a value that is handed on: 0 for %v, 1 for %m."""
        return self.bodies[which].graph.type_of(self.handed[which]).num_bytes // self.groups

    @property
    def ring_bytes(self) -> int:
        """Bytes of both rings."""
        return sum(self.handed_bytes(n) * slots for n, slots in enumerate(self.rhythm.slots))


def mixture_of(choice: GroupedChain) -> Mixture:
    """The order of a chain's tasks.

        ahead groups of producers | rounds of producers and products | rounds of all three | products and users | users

    A round has M groups: a column for each product task of a group, of which M stand side by side with their share of producers and users.
    Source: algorithm 1 of the mega-kernel paper. Its distances are whole groups here, its quotients are rounded down at the end of each
    column, and its last tasks follow in the same rounds as far as there are products.
    """
    rhythm, groups = choice.rhythm, choice.groups
    sizes = [choice.tasks(n) for n in range(3)]
    produced = min(max(rhythm.ahead, rhythm.together), groups)
    rounds: list[tuple[int, tuple[tuple[int, int], ...]]] = [(1, ((PRODUCER, produced * sizes[PRODUCER]),))]
    used = multiplied = 0
    for number in range(-(-groups // rhythm.together)):
        begun = min(rhythm.together, groups - produced)
        now = min(rhythm.together, groups - multiplied)
        users = min(rhythm.together, multiplied - used) if number >= max(rhythm.between, 1) else 0
        counts = ((PRODUCER, begun * sizes[PRODUCER]), (PRODUCT, now * sizes[PRODUCT]), (USER, users * sizes[USER]))
        rounds.append((sizes[PRODUCT], counts))
        produced, multiplied, used = produced + begun, multiplied + now, used + users
    rounds.append((1, ((USER, (groups - used) * sizes[USER]),)))
    return Mixture(joined_rounds(rounds), tuple(TaskSequence(groups, sizes[n], rhythm.together if n == PRODUCT else 1) for n in range(3)))
