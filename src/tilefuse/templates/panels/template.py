"""Products by panels as a template: bodies of tasks, which have no tensor copies, transaction barriers or roles of warps.

    panels rows=128 columns=64 down=4 across=2 depth=32 slots=3
"""
from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import fields, replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError, UserError
from tilefuse.domain.tile import TileProgram, kernel_name
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import NO_STAGES, LevelTile, Staging, largest_result, numbered
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.notation import Template
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.panels.compose import compose_panels
from tilefuse.templates.panels.plan import PanelProduct, candidates, choose_panels, panels_work, product_of, registers_of, why_not
from tilefuse.templates.panels.record import Panels
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.template import Overlaps, Resources


class PanelsTemplate(OwnLaunchTemplate[Panels]):
    """Products of dense f32 operands as bodies of tasks, with inner axes of any length."""

    record = Panels
    priority = 3

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The cheapest tiles, for tasks alone: as a kernel of its own, a pipeline of warpgroups or the library is faster."""
        if not request.is_task:
            return Rejected(Reason.OTHER_TEMPLATE, "products by panels are bodies of tasks")
        product = product_of(request.graph, request.layouts, request.device)
        if isinstance(product, Rejected):
            return product
        choice = choose_panels(product, request.graph, request.device)
        return choice if isinstance(choice, Rejected) else _program(request.graph, product, choice)

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """Copies beside products."""
        return panels_work(_product(program, device), self.choice_of(program), boundary_work(program.graph), device)

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Sums and fragments; the slots."""
        choice = self.choice_of(program)
        return Resources(registers_of(choice, device), _product(program, device).shared_bytes(choice))

    def overlaps(self, choice: Panels) -> Overlaps:
        """Its blocks go through their operands in an order of their own."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=False)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The ring of panels, the products, the stores."""
        return compose_panels(program, _product(program, device), self.choice_of(program), device, set(taken))

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """None: its blocks know nothing of each other."""
        return None

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Panels | None:
        """The program's own, if it has as many threads."""
        choice = self.choice_of(program)
        return choice if choice.num_threads == threads else None

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Panels, ...]:
        """All tiles that fit."""
        return others_than(self.choice_of(program), candidates(_product(program, device), device))

    def program_with(self, program: TileProgram, choice: Panels, device: DeviceSpec) -> TileProgram | Rejected:
        """The product in other tiles."""
        product = _product(program, device)
        refusal = why_not(product, choice, device)
        return refusal if refusal is not None else replace(_program(program.graph, product, choice), name=program.name)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """Raises: UserError: bodies of tasks are not written."""
        raise UserError(f"kernel {program.name} is a body of tasks, which no template writes",
                        hint="tile_groups=off plans it as a kernel, whose template can be written")

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: it competes for tasks alone."""
        return False

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The result, and the tile of a block."""
        choice = self.choice_of(program)
        return (LevelTile("grid", numbered(largest_result(program))),
                LevelTile("block", (("rows", choice.rows), ("columns", choice.columns))))

    def staging(self, program: TileProgram) -> Staging:
        """Nothing between barriers but the ring."""
        return NO_STAGES

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """None: one stage."""
        return None


def _product(program: TileProgram, device: DeviceSpec) -> PanelProduct:
    product = product_of(program.graph, program.layouts, device)
    if isinstance(product, Rejected):
        raise InternalError(f"kernel {program.name} is no product by panels: {product}")
    return product


def _program(graph: Graph, product: PanelProduct, choice: Panels) -> TileProgram:
    settings = tuple((f.name, int(getattr(choice, f.name))) for f in fields(choice))
    notation = "panels " + " ".join(f"{name}={value}" for name, value in settings) + ";"
    inner = product.contraction.inner
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=notation, layouts={}, parameters=tuple(sorted(settings)), levels=(),
        launch=Launch(product.num_blocks(choice), choice.num_threads), bytes_read=sum(i.type.num_bytes for i in graph.inputs),
        bytes_written=product.node.type.num_bytes, flops=2 * product.node.type.num_elements * inner)
