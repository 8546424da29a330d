"""Bodies that parts of different sizes share: the size is an argument of each part of a packed kernel, not a number in the code."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.parts import PackedGroup

C = TypeVar("C", bound=Choice)


@dataclass(frozen=True, slots=True)
class SizedForm:
    """A program's domain with one extent that tells sizes apart. key: equal for forms that one body serves. Units: elements."""

    domain: Domain
    num_elements: int
    key: Hashable


class AnySize(ABC, Generic[C]):
    """How a template writes one body for parts of any size. Programs of such bodies have the domain of a `SizedForm`."""

    @abstractmethod
    def form(self, program: TileProgram) -> SizedForm | None:
        """The program in a form of any size; None where its body needs extents that it cannot be told."""

    @abstractmethod
    def choice(self, program: TileProgram, threads: int, device: DeviceSpec) -> C:
        """The choice of a body of any size, in place of the choice of a program whose domain is already in that form."""

    @abstractmethod
    def num_blocks(self, choice: C, num_elements: int) -> int:
        """Blocks of a part. Units: num_elements in elements."""

    @abstractmethod
    def body(self, program: TileProgram, choice: C, num_blocks: int) -> TileProgram:
        """The program of a body by another choice. num_blocks: of the largest part."""

    @abstractmethod
    def numbers(self, group: PackedGroup) -> tuple[tuple[tuple[str, int], ...], ...]:
        """For each part (name in the body, value) of each number that its size decides; the same names for all parts of a group."""

    @abstractmethod
    def compose(self, group: PackedGroup, device: DeviceSpec, taken: set[str]) -> Kernel:
        """The kernel of the group's body, in which the names of `numbers` are free. taken: names that its buffers must not have."""
