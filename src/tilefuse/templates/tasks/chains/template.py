"""Chains in groups as a template: its answers follow from its bodies' templates."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import UserError
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.domain.work import Work
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import RESERVED_SHARED_BYTES
from tilefuse.templates.notation import Template
from tilefuse.templates.request import Request
from tilefuse.templates.tasks.bodied import BodiedTemplate
from tilefuse.templates.tasks.chains.build import chain_program, with_other_products
from tilefuse.templates.tasks.chains.compose import compose_chain
from tilefuse.templates.tasks.chains.price import chain_work
from tilefuse.templates.tasks.chains.record import PRODUCT, GroupedChain, Rhythm


class GroupedChainTemplate(BodiedTemplate[GroupedChain]):
    """A producer, a product and a user as tasks of one kernel in groups of tiles (`plan/select/tile_groups.py` proposes them)."""

    record = GroupedChain

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """That of its bodies side by side."""
        return chain_work(program, self.choice_of(program), device)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """One group of statements for each body, and the order of their tasks."""
        return compose_chain(program, self.choice_of(program), device)

    def stands_for(self, program: TileProgram) -> tuple[TileProgram, ...]:
        """The kernels that the plan has without it."""
        return self.choice_of(program).alone

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[GroupedChain, ...]:
        """One thing changed: distances, groups together, slots of rings, blocks a task, blocks a multiprocessor, or the product's body."""
        choice = self.choice_of(program)
        near = (*with_other_products(program, choice, device), *self._one_more_block(program, device),
                *(replace(choice, rhythm=r) for r in _near(choice.rhythm, choice.groups)), *_near_each(choice))
        return tuple(c for n, c in enumerate(near) if _varied(c) not in {_varied(choice), *map(_varied, near[:n])})

    def _one_more_block(self, program: TileProgram, device: DeviceSpec) -> Iterator[GroupedChain]:
        """One block more on each multiprocessor, which bounds the registers, where shared memory has room for it."""
        choice = self.choice_of(program)
        together = choice.workers // device.num_multiprocessors + 1
        room = device.shared_bytes_per_multiprocessor // (self.resources(program, device).shared_bytes + RESERVED_SHARED_BYTES)
        if together <= min(room, device.max_threads_per_multiprocessor // choice.threads):
            yield replace(choice, resident=together, workers=together * device.num_multiprocessors)

    def program_with(self, program: TileProgram, choice: GroupedChain, device: DeviceSpec) -> TileProgram | Rejected:
        """The program with another rhythm."""
        if any(slots < least for slots, least in zip(choice.rhythm.slots, _least_slots(choice), strict=True)):
            return Rejected(Reason.ILLEGAL_TEMPLATE, "a ring so small has tasks wait for later ones")
        return replace(chain_program(program.graph, program.layouts, choice, device), name=program.name)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """Raises: UserError: its bodies are written as kernels of their own, under the option tile_groups=off."""
        raise UserError(f"kernel {program.name} is a chain in groups, which no template writes",
                        hint="tile_groups=off plans its bodies as kernels, whose templates can be written")

    def propose(self, request: Request) -> TileProgram | Rejected:
        """None for a single pattern: kernels of a plan are joined, not patterns."""
        return Rejected(Reason.OTHER_TEMPLATE, "kernels of a plan become chains, not patterns")



def _least_slots(choice: GroupedChain) -> tuple[int, int]:
    """Fewest slots of the rings with which each task waits for earlier ones alone."""
    r = choice.rhythm
    ahead, between = max(r.ahead, r.together), max(r.between, 1)
    return min(ahead + r.together, choice.groups), min((between + 1) * r.together, choice.groups)


def _varied(choice: GroupedChain) -> tuple[Rhythm, tuple[int, ...], int, Choice]:
    """The parameters that neighbours vary."""
    return choice.rhythm, choice.each, choice.resident, choice.bodies[PRODUCT].choice


def _near(rhythm: Rhythm, groups: int) -> Iterator[Rhythm]:
    """Rhythms with other groups together, half and twice each distance, and the least slots and half as many again."""
    for together in SEARCH.tasks.groups_together:
        yield _with_rings(replace(rhythm, together=together, ahead=max(rhythm.ahead, together)), groups)
    for ahead in (max(rhythm.ahead // 2, rhythm.together), rhythm.ahead * 2):
        yield _with_rings(replace(rhythm, ahead=ahead), groups)
    for between in (max(rhythm.between // 2, 1), rhythm.between * 2):
        yield _with_rings(replace(rhythm, between=between), groups)
    for quarters in (0, 2, 8):
        yield _with_rings(rhythm, groups, quarters)


def _with_rings(rhythm: Rhythm, groups: int, quarters: int = 4) -> Rhythm:
    """The rhythm with rings of the groups under way, and as many quarters of the distances more."""
    ahead, between = rhythm.ahead, rhythm.between * rhythm.together
    slots = (ahead + rhythm.together + quarters * ahead // 4, between + rhythm.together + quarters * between // 4)
    return replace(rhythm, slots=(min(slots[0], groups), min(slots[1], groups)))


def _near_each(choice: GroupedChain) -> Iterator[GroupedChain]:
    """Half and twice as many blocks a task of producers, of products, and of users."""
    for body in range(3):
        for count in (choice.each[body] // 2, choice.each[body] * 2):
            if count and choice.blocks[body] % count == 0:
                yield replace(choice, each=(*choice.each[:body], count, *choice.each[body + 1:]))
