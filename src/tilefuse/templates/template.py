"""The protocol of a kernel template: one way to spread a pattern over the machine. Each folder of this room has one, or two.

    flat, transpose, rows, columns      one walk over a domain (`walk.py` has their common part)
    staged                              stages over a tile; products along a walked axis
    packed                              independent parts of any of these, asked through this protocol

Every method is required: a template that lacks one cannot be made. `registry.py` finds the template of a choice.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from tilefuse.base.candidate import Rejected
from tilefuse.base.construction import quickly_built
from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize
from tilefuse.templates.explained import LevelTile, Staging
from tilefuse.templates.notation import Template
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree

C = TypeVar("C", bound=Choice)


@dataclass(frozen=True, slots=True)
class Resources:
    """Estimate of a kernel's needs beside its threads. Units: registers a thread, bytes of shared memory a block.

    min_blocks: blocks a multiprocessor that a part of this kind asks a packed kernel for; 0 asks for no bound on registers.
    """

    registers: int
    shared_bytes: int
    min_blocks: int = 0


@quickly_built
@dataclass(frozen=True, slots=True)
class Overlaps:
    """How a kernel goes together with the kernels ahead of it and behind it.

    walks_memory     its blocks go through large operands from one end to the other, in the order of their numbers
    turns            numbering its blocks backwards turns that walk round
    waits_itself     it may begin before the kernel ahead ends whatever it moves: its loads wait, and nothing of it stands in the way
    fetches_settled  it may fetch operands that the kernel ahead does not write while that kernel still runs
    one_wave         its blocks, one a multiprocessor at most, take all tiles in turn, and each waits once
    prefetches       it has a use for prefetches into L2 alone (`PrefetchOnly`), which may be of operands that the kernel ahead writes
    """

    walks_memory: bool
    turns: bool
    waits_itself: bool
    fetches_settled: bool
    one_wave: bool = False
    prefetches: bool = False


class KernelTemplate(ABC, Generic[C]):
    """One template. `record`: the type of its choices, by which the registry finds it.

    Programs that are handed to a template have a choice of its record.
    """

    record: type[C]

    # Number of tiles that a proposal prices: templates that try few are asked first (`choose.py`). 0: one or a few; 1: tens; 2: hundreds.
    tries_many: ClassVar[int] = 0

    def choice_of(self, program: TileProgram) -> C:
        """The program's choice as this template's record. Raises: InternalError for a program of another template."""
        choice = program.choice
        if not isinstance(choice, self.record):
            raise InternalError(f"kernel {program.name} ({program.template}) is handed to the template of {self.record.__name__}")
        return choice

    # -- work and resources ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The program's work: bytes of every level with repeated reads, operations by unit, waits, endings.

        `domain/roofline.py` prices it; explanations show the same record. Units: as of `Work`.
        """

    @abstractmethod
    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Registers and shared memory that the program needs, estimated before it is compiled."""

    # -- the kernel and its neighbours in time ---------------------------------------------------------------------------------

    @abstractmethod
    def overlaps(self, choice: C) -> Overlaps:
        """How a kernel of this choice goes together with the kernels around it."""

    @abstractmethod
    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The kernel IR of a program; it decides nothing.

        settled: boundary values that the kernel may fetch while the kernel ahead of it runs; taken: names that its buffers must not have.
        Raises: InternalError where the template meets what it cannot hold.
        """

    # -- other choices for the same pattern -----------------------------------------------------------------------------------

    @abstractmethod
    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[C, ...]:
        """Choices near the program's own that tuning tries. Its own is not among them, and none comes twice.

        They differ in speed only. Scheduling them may still reject some. Empty where the template has nothing to vary.
        """

    @abstractmethod
    def program_with(self, program: TileProgram, choice: C, device: DeviceSpec) -> TileProgram | Rejected:
        """The program of the same pattern with another choice of this template, or why there is none."""

    @abstractmethod
    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The program of the same pattern that a written template determines; what it leaves out is as the scheduler chose.

        Exact: the program's own notation, parsed, gives the program back.
        Raises: NameLookupError for a value without a schedule; OptionError for a setting that the template does not have; UserError where
        the written template contradicts the pattern, the device or itself.
        """

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def priority(self) -> int:
        """Place in the order in which templates are asked (`choose.py`), lower numbers first.

        The first priority whose templates take a pattern decides, and only templates of one priority are compared by price: a walk that
        holds a pattern is taken although stages might hold it too.
        """

    @abstractmethod
    def propose(self, request: Request) -> TileProgram | Rejected:
        """The program of the best choice for a pattern, or why this template has none.

        `Reason.OTHER_TEMPLATE` says that the pattern is not of this template's kind; other reasons are shown to the user.
        """

    @abstractmethod
    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """Whether a kernel of this template may hold a product of matrices instead of a library call: none that the library clearly beats.

        The price of such kernels still decides. node: a library operator of `graph`, on a GPU.
        """

    @abstractmethod
    def own_kernel_share(self, device: DeviceSpec) -> float:
        """Most predicted time of a kernel with one product and nothing else, as a share of the library call's that it replaces."""

    # -- updates in place ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Whether one thread computes and stores each element of the result `value`, and loads the operands of that element itself.

        Such a result may overwrite an operand that is read element by element.
        """

    @abstractmethod
    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """Whether the kernel has read `target`, in whichever thread, before it stores the element of `value` that overwrites it.

        target: a boundary value, or "" for a value that the program does not know, of which nothing is known.
        """

    @abstractmethod
    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """Whether each thread reads of `target` only the places in memory to which it stores elements of `value`.

        Requires: both begin at one address and have as many elements, whatever their shapes.
        """

    @abstractmethod
    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """Results that several blocks compute, of which one writes: none of them may lie where the kernel reads."""

    # -- explanations ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The part of the domain that one worker of each level takes, from the grid down.

        launch: of the composed kernel. A template without a domain gives tiles of the largest result.
        """

    @abstractmethod
    def staging(self, program: TileProgram) -> Staging:
        """Stages between barriers, and places in shared memory that are known before the kernel is composed."""

    @abstractmethod
    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """Loops and stages of the kernel with the memory level of every value between them; None for a kernel that is one walk."""

    # -- parts of packed kernels -----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def packs(self) -> bool:
        """Whether kernels of this template hold independent parts: such kernels are made only where packing is asked for."""

    @abstractmethod
    def stands_for(self, program: TileProgram) -> tuple[TileProgram, ...]:
        """Kernels that the plan would have in place of this one, in order; () for a kernel whose nodes would be kernels of their own."""

    @abstractmethod
    def groups(self, program: TileProgram) -> tuple[PackedGroup, ...]:
        """Groups of the independent parts that a kernel holds; empty for a kernel of one pattern."""

    @abstractmethod
    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """Why the program cannot be one part of a packed kernel; None where it can."""

    @abstractmethod
    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> C | None:
        """The program's choice with `threads` threads a block, for parts that share a launch; None where there is no such choice."""

    @abstractmethod
    def in_turns(self, program: TileProgram, blocks: int, fetches_early: bool, device: DeviceSpec) -> TileProgram | None:
        """The program of the same pattern by so many blocks at most, which run at once, take turns and fetch the operands of their first
        turns ahead; None where the template has none.

        fetches_early: as of `Request`.
        """

    @abstractmethod
    def turns_bytes(self, program: TileProgram) -> int:
        """Bytes that the block with the most turns fetches, in a program that `in_turns` may have made; 0 for any other."""

    @abstractmethod
    def thread_loss(self, choice: C, changed: C, device: DeviceSpec) -> float:
        """Share of a part's time that `changed` adds, which differs from `choice` in its threads a block.

        Units: 1. Source: `PackedFigures`.
        """

    @abstractmethod
    def likeness(self, program: TileProgram) -> Hashable | None:
        """Equal for programs that one body may serve, as far as their graphs tell cheaply; None where only equal programs share one."""

    @property
    @abstractmethod
    def any_size(self) -> AnySize[C] | None:
        """Bodies for parts of different sizes; None where each size has a body of its own."""
