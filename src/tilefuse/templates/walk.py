"""The common part of templates that are one walk over a domain: what they share of the protocol, and what each of them must say."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Set
from dataclasses import replace
from math import log2, prod
from typing import Any

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.domain.access import traffic
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, EdgeLevel, Level, TileProgram, kernel_name
from tilefuse.domain.two_pass import two_pass
from tilefuse.domain.wide_squares import wide_squares
from tilefuse.domain.work import Ending, Operations, Work
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize
from tilefuse.templates.explained import NO_STAGES, Staging
from tilefuse.templates.levels import LevelTraffic, scattered_adds
from tilefuse.templates.notation import Template, print_template
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.request import Request, WalkedPattern, is_vector_product, walked_pattern
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.template import C, KernelTemplate
from tilefuse.templates.walk_by_hand import check_program, choice_by_hand
from tilefuse.templates.walk_notation import WalkNotation


class WalkTemplate(KernelTemplate[C]):
    """A template whose programs walk one domain."""

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The walk's work; a scatter moves its boundary's bytes, because data decide where it stores.

        The first-level cache of a multiprocessor holds what its shared memory could.
        """
        choice, moved = self.choice_of(program), LevelTraffic(program.bytes_moved, 0)
        if program.domain.scatter is None:
            moved = self.walk_traffic(choice, program, device, device.shared_bytes_per_multiprocessor)
        return Work(grid=program.launch, read_bytes=program.bytes_read, global_bytes=program.bytes_moved, l2_bytes=moved.l2_bytes,
                    shared_bytes=moved.shared_bytes, scattered_adds=scattered_adds(program), partial_sectors=moved.partial_sectors,
                    operations=(Operations(program.flops),), endings=self.endings(choice, program))

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The kernel of one walk."""
        writer = KernelWriter(program, device, taken)
        writer.settled = settled
        self.write(writer, self.choice_of(program))
        return writer.finish()

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    def own_kernel_share(self, device: DeviceSpec) -> float:
        """That of kernels whose prices leave out reads of cold weights."""
        return device.fitted.products.own_kernel_share

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """Products of a matrix and a vector, which are sums."""
        return is_vector_product(node, graph)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The program of the choice for the pattern's domain."""
        if any(n.category == "library" and not is_vector_product(n, request.graph) for n in request.graph.nodes):
            return Rejected(Reason.OTHER_TEMPLATE, "products of matrices are computed in stages")
        if request.has_products and request.eager_rounding:
            return Rejected(Reason.UNSUPPORTED_OP, "a sum would round each product, the library rounds the sum")
        pattern = request.walked
        if isinstance(pattern, Rejected):
            return pattern
        choice, domain = self.choose(pattern), pattern.domain
        if isinstance(choice, Rejected):
            return choice
        in_one_pass = self.in_one_pass(domain)
        if in_one_pass is not domain:
            again = self.choose(replace(pattern, domain=in_one_pass))
            if not isinstance(again, Rejected):
                choice, domain = again, in_one_pass
        return self._program(pattern, choice, self._in_two_passes(choice, domain))

    def program_with(self, program: TileProgram, choice: C, device: DeviceSpec) -> TileProgram | Rejected:
        """The walk by that choice."""
        pattern = walked_pattern(program.graph, program.layouts, device)
        return pattern if isinstance(pattern, Rejected) else self.program_by(pattern, choice)

    def program_by(self, pattern: WalkedPattern, choice: C) -> TileProgram | Rejected:
        """The program of a pattern by a choice made by hand, by a tuner or for a packed kernel, or why that is not legal."""
        domain = self._in_two_passes(choice, self.in_one_pass(pattern.domain))
        return self.refusal(choice, domain, pattern.device) or self._program(pattern, choice, domain)

    def _in_two_passes(self, choice: C, domain: Domain) -> Domain:
        """The domain with squared deviations in two passes where elements stay on chip, so that two passes read them once."""
        return two_pass(domain) if self.keeps_elements(choice) else domain

    def _program(self, pattern: WalkedPattern, choice: C, domain: Domain) -> TileProgram:
        graph = pattern.graph
        if pattern.device.kind == "host":
            domain = wide_squares(domain, self.sums_vectors(choice))
        sizes = {v: t.num_bytes for v, t in graph.type_by_name.items()}
        moved = traffic(domain, sizes, pattern.device.fitted.flat)
        launch = Launch(0, 1) if has_no_points(domain) else self.launch(choice, domain)
        return TileProgram(
            name=kernel_name(graph), graph=graph, choice=choice,
            notation=print_template(self.notation.template_of(choice, domain, graph, launch)), layouts=pattern.layouts,
            parameters=self.notation.parameters(choice), levels=_levels(graph, domain, self.notation.exchange_level(choice)),
            launch=launch, bytes_read=moved.bytes_read, bytes_written=moved.bytes_written, flops=moved.flops, internal=domain)

    @abstractmethod
    def choose(self, pattern: WalkedPattern) -> C | Rejected:
        """The choice for a pattern on its device. Rejected with `Reason.OTHER_TEMPLATE` where another walk takes such patterns."""

    @abstractmethod
    def launch(self, choice: C, domain: Domain) -> Launch:
        """Blocks and threads of a walk over a domain with points."""

    @abstractmethod
    def refusal(self, choice: C, domain: Domain, device: DeviceSpec) -> Rejected | None:
        """Why a pattern has no kernel of a choice on the device; None where it has one."""

    @abstractmethod
    def in_one_pass(self, domain: Domain) -> Domain:
        """The domain with reductions joined that this walk computes in one pass; the same object where there are none."""

    @abstractmethod
    def keeps_elements(self, choice: C) -> bool:
        """Whether rows (or columns) stay on chip between the walks over them."""

    @abstractmethod
    def sums_vectors(self, choice: C) -> bool:
        """Whether one thread reads rows in vectors, with a chain of sums for each lane."""

    # -- from a text to a program ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def notation(self) -> WalkNotation[C, Any]:
        """How choices of this walk are written and read."""

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The program of the choice that the template writes, where its loops are those of the template."""
        template = self.notation.in_own_words(template, self.choice_of(program), program, device)
        choice = choice_by_hand(self.notation, self.choice_of(program), program, template, device)
        return check_program(self.notation, choice, self.program_with(program, choice, device), template)

    def choice_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> C:
        """The choice that a written template asks for of the program's pattern. Raises: as `program_by_hand`."""
        template = self.notation.in_own_words(template, self.choice_of(program), program, device)
        return choice_by_hand(self.notation, self.choice_of(program), program, template, device)

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """False where threads do not meet."""
        return False

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """False where the order of memory is not the order of the walk."""
        return False

    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """None: each point of the domain is one block's."""
        return frozenset()

    def staging(self, program: TileProgram) -> Staging:
        """Nothing: composing the kernel finds what it needs of shared memory."""
        return NO_STAGES

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """None: a walk has no stages."""
        return None

    @property
    def packs(self) -> bool:
        """A walk is one pattern."""
        return False

    def stands_for(self, program: TileProgram) -> tuple[TileProgram, ...]:
        """None: its nodes would be kernels of their own."""
        return ()

    def groups(self, program: TileProgram) -> tuple[PackedGroup, ...]:
        """None: a walk is one pattern."""
        return ()

    def in_turns(self, program: TileProgram, blocks: int, fetches_early: bool, device: DeviceSpec) -> TileProgram | None:
        """None for walks whose blocks are done after one round."""
        return None

    def turns_bytes(self, program: TileProgram) -> int:
        """0: as `in_turns`."""
        return 0

    def likeness(self, program: TileProgram) -> Hashable | None:
        """None: extents stand in the body of a walk."""
        return None

    @property
    def any_size(self) -> AnySize[C] | None:
        """None: extents stand in the body of a walk."""
        return None

    @abstractmethod
    def walk_traffic(self, choice: C, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Traffic of a walk without a scatter. Units: bytes."""

    @abstractmethod
    def endings(self, choice: C, program: TileProgram) -> tuple[Ending, ...]:
        """How the walk's sums end."""

    @abstractmethod
    def write(self, writer: KernelWriter, choice: C) -> None:
        """Writes the walk's statements."""


def widest_itemsize(program: TileProgram) -> int:
    """Bytes of the widest element of a program's values. Units: bytes."""
    return max((program.graph.type_of(v).dtype.itemsize for v in program.graph.type_by_name), default=4)


def num_shared(domain: Domain) -> int:
    """Reductions whose results several threads exchange."""
    return sum(i.shared for i in domain.instances)


def further_reductions(domain: Domain, device: DeviceSpec) -> int:
    """Reductions beyond those whose registers `PackedFigures.reduction_registers` counts."""
    return max(num_shared(domain) - device.fitted.packed.held_reductions, 0)


def elementwise_thread_loss(choice: Choice, changed: Choice, device: DeviceSpec) -> float:
    """Share of the time of a walk without reductions that another number of threads a block adds. Source: `PackedFigures`."""
    doublings = log2(changed.num_threads / choice.num_threads)
    fitted = device.fitted.packed
    return fitted.wider_walk_loss * doublings if doublings > 0 else fitted.narrower_walk_loss * -doublings


def has_no_points(domain: Domain) -> bool:
    """Whether nothing is computed: neither elements, nor results of sums over no elements."""
    total = prod(domain.extents[a] for a in domain.kept + domain.reduced)
    return total == 0 and (domain.num_kept == 0 or not num_shared(domain))


def _levels(graph: Graph, domain: Domain, exchange: Level) -> tuple[EdgeLevel, ...]:
    """Where the value of each edge inside the pattern lives: in registers, or at level `exchange` where threads share it."""
    shared = {i.node.name for i in domain.instances if i.shared}
    inside = {n.name for n in graph.nodes}
    return tuple(EdgeLevel(v, n.name, exchange if v in shared else Level.REGISTER) for n in graph.nodes for v in n.reads() if v in inside)


def walk_template(choice: Choice) -> WalkTemplate[Any]:
    """The template of a choice of one walk. Raises: InternalError for a choice of another template, or of none."""
    template = kernel_template(choice)
    if not isinstance(template, WalkTemplate):
        raise InternalError(f"{choice.template} kernels are no walk over one domain")
    return template
