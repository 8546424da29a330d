"""Flat walks of any length, for parts of packed kernels that differ in nothing but their sizes."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.access import accesses, vector_limit, widest_vector
from tilefuse.domain.tile import TileProgram
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize, SizedForm
from tilefuse.templates.flat.compose_any_size import REST, VECTORS, compose_any_size, has_rest
from tilefuse.templates.flat.flat_form import FLAT, flat_form, flat_key
from tilefuse.templates.flat.notation import FlatNotation
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.notation import print_template
from tilefuse.templates.parts import PackedGroup


class FlatOfAnySize(AnySize[Pointwise]):
    """A flat walk whose every access lies at its position, so that only the number of elements tells sizes apart."""

    def form(self, program: TileProgram) -> SizedForm | None:
        """The domain in flat form; None where warps stand across two axes, or an access does not follow the flat position."""
        choice = program.choice
        assert isinstance(choice, Pointwise)
        flat = flat_form(program.domain, choice.order) if choice.side == 1 else None
        return None if flat is None else SizedForm(flat, flat.extents[FLAT], flat_key(flat, program.graph))

    def choice(self, program: TileProgram, threads: int, device: DeviceSpec) -> Pointwise:
        """Vectors as wide as memory allows: elements behind the last whole vector come one by one, so the width need divide no size."""
        choice, accessed = program.choice, accesses(program.domain)
        assert isinstance(choice, Pointwise)
        limit = vector_limit(accessed, device)
        return Pointwise((FLAT,), widest_vector(accessed, (FLAT,), limit, limit), threads, choice.steps, choice.unrolled)

    def num_blocks(self, choice: Pointwise, num_elements: int) -> int:
        """Blocks of whole vectors first, then of one element a thread."""
        items = num_elements // choice.vector + num_elements % choice.vector
        return -(-items // (choice.threads * choice.steps))

    def body(self, program: TileProgram, choice: Pointwise, num_blocks: int) -> TileProgram:
        """The same body with the numbers of another choice."""
        launch, notation = Launch(num_blocks, choice.threads), FlatNotation()
        text = print_template(notation.template_of(choice, program.domain, program.graph, launch))
        return replace(program, choice=choice, notation=text, launch=launch, parameters=notation.parameters(choice))

    def numbers(self, group: PackedGroup) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Whole vectors of each part, and the elements behind them where some part of the group has any."""
        choice = group.program.choice
        assert isinstance(choice, Pointwise)
        numbers = [divmod(part.num_elements, choice.vector) for part in group.parts]
        if not has_rest(group, choice):
            return tuple(((VECTORS, vectors),) for vectors, _ in numbers)
        return tuple(((VECTORS, vectors), (REST, rest)) for vectors, rest in numbers)

    def compose(self, group: PackedGroup, device: DeviceSpec, taken: set[str]) -> Kernel:
        """The walk over vectors, then over the elements behind them."""
        choice = group.program.choice
        assert isinstance(choice, Pointwise)
        return compose_any_size(group, choice, device, taken)
